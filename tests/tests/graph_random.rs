//! Random numbers of graphs through the C ABI: what a replay draws, and where it leaves its generators, is what the same
//! calls do eagerly.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals, or with what the contract says is checked"
)]

use std::ptr::null;

use outrigger::ffi::*;
use outrigger::runtime::{Code, DType};
use outrigger_device::sys::{otr_operator_call_t, otr_scalar_t, otr_tensor_t};
use outrigger_tests::abi::{
    DEVICES, alloc, begin, download, end, fails, instantiate, made, ok, replay, stream,
};
use serial_test::serial;

/// A generator, a stream that is current, and memory to draw into.
struct Dice {
    device: u32,
    stream: u64,
    generator: u64,
    memory: u64,
}

impl Dice {
    /// The bytes of the numbers of one draw.
    const BYTES: u64 = 64;

    fn new(device: u32) -> Self {
        let stream = stream(device);
        ok(unsafe { otr_stream_set_current(stream) });
        Self {
            device,
            stream,
            generator: made(|out| unsafe { otr_generator_create(device, out) }),
            memory: alloc(device, 4 * Self::BYTES, stream),
        }
    }

    fn seed(&self, seed: u64) {
        ok(unsafe { otr_generator_seed(self.generator, seed) });
    }

    fn state(&self) -> (u64, u64) {
        let (mut seed, mut offset) = (0, 0);
        ok(unsafe { otr_generator_state(self.generator, &mut seed, &mut offset) });
        (seed, offset)
    }

    fn set_state(&self, (seed, offset): (u64, u64)) {
        ok(unsafe { otr_generator_set_state(self.generator, seed, offset) });
    }

    /// Draws 16 numbers to one of four places.
    fn draw(&self, place: u64) {
        let (mut seed, mut offset) = (0, 0);
        ok(unsafe { otr_generator_reserve(self.generator, 8, &mut seed, &mut offset) });
        let id = made(|out| unsafe { otr_operator_find(c"uniform".as_ptr(), out) });
        let (sizes, strides) = ([16], [1]);
        let output = otr_tensor_t {
            address: self.memory + place * Self::BYTES,
            dtype: DType::F32.0,
            rank: 1,
            sizes: sizes.as_ptr(),
            strides: strides.as_ptr(),
        };
        let mut scalars: [otr_scalar_t; 4] = unsafe { std::mem::zeroed() };
        for (scalar, value) in scalars.iter_mut().zip([0.0f64, 1.0]) {
            scalar.dtype = DType::F64.0;
            scalar.value.f64_ = value;
        }
        for (scalar, value) in scalars[2..].iter_mut().zip([seed, offset]) {
            scalar.dtype = DType::I64.0;
            scalar.value.i64_ = value as i64;
        }
        let call = otr_operator_call_t {
            struct_size: size_of::<otr_operator_call_t>(),
            next: null(),
            name: null(),
            inputs: null(),
            outputs: &output,
            scalars: scalars.as_ptr(),
            input_count: 0,
            output_count: 1,
            scalar_count: 4,
            flags: 0,
        };
        ok(unsafe { otr_operator_call(self.stream, id, &call) });
    }

    /// The numbers of all places.
    fn numbers(&self) -> Vec<f32> {
        download(self.stream, self.memory, 4 * 16)
    }

    fn finish(self) {
        ok(unsafe { otr_generator_destroy(self.generator) });
        let default = made(|out| unsafe { otr_stream_default(self.device, out) });
        ok(unsafe { otr_stream_set_current(default) });
    }
}

/// Runs `work` three times from the same seed, eagerly and as a graph that `make` makes of it, and compares.
fn same_as_eager(dice: &Dice, work: &dyn Fn(&Dice), make: &dyn Fn(&Dice) -> u64) {
    let exec = instantiate(make(dice), 0);
    let three = |run: &dyn Fn()| -> Vec<_> {
        dice.seed(42);
        let round = |_| {
            run();
            (dice.numbers(), dice.state())
        };
        (0..3).map(round).collect()
    };
    let eager = three(&|| work(dice));
    let replayed = three(&|| replay(exec, dice.stream));
    assert_eq!(replayed, eager, "device {}", dice.device);
}

fn captured(dice: &Dice, work: &dyn Fn(&Dice)) -> u64 {
    begin(dice.stream);
    work(dice);
    end(dice.stream)
}

/// Goes back to an earlier place, as the second pass of a checkpoint does.
fn repeats(dice: &Dice) {
    let state = dice.state();
    dice.draw(0);
    let after = dice.state();
    dice.set_state(state);
    dice.draw(1);
    dice.set_state(after);
    dice.draw(2);
}

/// Draws from a seed of its own in between.
fn forks(dice: &Dice) {
    dice.draw(0);
    let state = dice.state();
    dice.seed(7);
    dice.draw(1);
    dice.set_state(state);
    dice.draw(2);
}

/// Leaves the generator at a place that it has set.
fn seeds(dice: &Dice) {
    dice.draw(0);
    dice.set_state((9, 100));
    dice.draw(1);
    dice.draw(2);
}

#[test]
#[serial]
fn a_replay_draws_what_eager_calls_draw() {
    let draws = |dice: &Dice| (0..3).for_each(|place| dice.draw(place));
    for device in *DEVICES {
        let dice = Dice::new(device);
        for work in [&draws as &dyn Fn(&Dice), &repeats, &forks, &seeds] {
            same_as_eager(&dice, work, &|dice| captured(dice, work));
        }
        dice.finish();
    }
}

#[test]
#[serial]
fn the_states_of_a_child_follow_those_of_its_parent() {
    for device in *DEVICES {
        let dice = Dice::new(device);
        for (first, second) in [
            (repeats as fn(&Dice), forks as fn(&Dice)),
            (seeds, repeats),
            (seeds, seeds),
        ] {
            let both = |dice: &Dice| {
                first(dice);
                second(dice);
            };
            same_as_eager(&dice, &both, &|dice| {
                let graph = captured(dice, &first);
                let child = captured(dice, &second);
                // A child of a child: the numbers of a seed of the parent's own stay what they are.
                let outer = made(|out| unsafe { otr_graph_create(device, 0, out) });
                let mut node = 0;
                ok(unsafe { otr_graph_add_child(outer, null(), 0, graph, &mut node) });
                ok(unsafe { otr_graph_add_child(outer, &node, 1, child, &mut node) });
                let whole = made(|out| unsafe { otr_graph_create(device, 0, out) });
                ok(unsafe { otr_graph_add_child(whole, null(), 0, outer, &mut node) });
                whole
            });
        }
        dice.finish();
    }
}

#[test]
#[serial]
fn a_state_of_a_capture_is_refused_outside_of_it() {
    for device in *DEVICES {
        let dice = Dice::new(device);
        dice.seed(5);
        begin(dice.stream);
        let (seed, offset) = dice.state();
        end(dice.stream);
        let set = || unsafe { otr_generator_set_state(dice.generator, seed, offset) };
        fails(set(), Code::CAPTURE, &["was read within a capture"]);
        assert_eq!(dice.state(), (5, 0));
        begin(dice.stream);
        fails(set(), Code::CAPTURE, &["was read within a capture"]);
        fails(
            unsafe { otr_capture_end(dice.stream, &mut 7) },
            Code::CAPTURE,
            &["was read within a capture"],
        );
        dice.finish();
    }
}
