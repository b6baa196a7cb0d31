//! Random numbers of graphs: what a replay draws, and where it leaves its generator, is what the same calls do eagerly.

use std::ptr::null;

use outrigger_device::sys::{otr_operator_call_t, otr_tensor_t};
use outrigger_device::{Code, DType};

use super::operators::empty_call;
use super::{
    alloc, begin, download, end, instantiate, made, otr, refused, replay, scalar, start, stream,
    ways,
};
use crate::test::tests;
use crate::verdict::equal;
use crate::{Context, Verdict};

tests! { "host-abi.random":
    /// Replays draw what as many eager calls draw, also where the work sets the state of its generator.
    replays_draw_as_eager_calls: H25 H28;
    /// The states of a child follow those of its parent.
    children_follow_their_parent: H27 H28;
    /// A state that was read within a capture is refused elsewhere.
    states_of_a_capture: H2 H26;
}

/// A generator, a stream whose captures draw, and memory to draw into.
struct Dice {
    stream: u64,
    generator: u64,
    memory: u64,
}

/// The bytes of the numbers of one draw.
const BYTES: u64 = 64;

type Work = fn(&Dice) -> Verdict;

/// The numbers of all places, and the state of the generator.
type Drawn = (Vec<u32>, (u64, u64));

impl Dice {
    /// The dice of the default stream, which is current where none was chosen.
    fn on_default() -> Verdict<Self> {
        Self::of(made(|out| otr!(stream_default, 0, out))?)
    }

    /// The dice of a new stream, which becomes the current one.
    fn new() -> Verdict<Self> {
        let stream = stream()?;
        otr!(stream_set_current, stream)?;
        Self::of(stream)
    }

    fn of(stream: u64) -> Verdict<Self> {
        Ok(Self {
            stream,
            generator: made(|out| otr!(generator_create, 0, out))?,
            memory: alloc(4 * BYTES, stream)?,
        })
    }

    fn seed(&self, seed: u64) -> Verdict {
        Ok(otr!(generator_seed, self.generator, seed)?)
    }

    fn state(&self) -> Verdict<(u64, u64)> {
        let (mut seed, mut offset) = (0, 0);
        otr!(generator_state, self.generator, &mut seed, &mut offset)?;
        Ok((seed, offset))
    }

    fn set_state(&self, (seed, offset): (u64, u64)) -> Verdict {
        Ok(otr!(generator_set_state, self.generator, seed, offset)?)
    }

    /// Draws 16 numbers to one of four places.
    fn draw(&self, place: u64) -> Verdict {
        let (mut seed, mut offset) = (0, 0);
        otr!(generator_reserve, self.generator, 8, &mut seed, &mut offset)?;
        let (sizes, strides) = ([16], [1]);
        let output = otr_tensor_t {
            address: self.memory + place * BYTES,
            dtype: DType::F32.0,
            rank: 1,
            sizes: sizes.as_ptr(),
            strides: strides.as_ptr(),
        };
        let scalars = [
            scalar(DType::F64, 0),
            scalar(DType::F64, 1),
            scalar(DType::I64, seed as i64),
            scalar(DType::I64, offset as i64),
        ];
        let call = otr_operator_call_t {
            outputs: &raw const output,
            output_count: 1,
            scalars: scalars.as_ptr(),
            scalar_count: 4,
            ..empty_call()
        };
        let uniform = made(|out| otr!(operator_find, c"uniform".as_ptr(), out))?;
        Ok(otr!(operator_call, self.stream, uniform, &call)?)
    }

    fn captured(&self, work: Work) -> Verdict<u64> {
        begin(self.stream)?;
        work(self)?;
        end(self.stream)
    }

    /// The numbers of all places and the state of the generator, after each of three runs from the same seed.
    fn three(&self, run: &dyn Fn() -> Verdict) -> Verdict<Vec<Drawn>> {
        self.seed(42)?;
        let round = |_| {
            run()?;
            Ok((download(self.stream, self.memory, 64)?, self.state()?))
        };
        (0..3).map(round).collect()
    }

    /// Replays of a graph, in each way, do what the same work does eagerly.
    fn same(&self, context: &Context, graph: u64, work: &dyn Fn() -> Verdict) -> Verdict {
        let eager = self.three(work)?;
        for way in ways(context)? {
            let exec = instantiate(graph, way)?;
            let replayed = self.three(&|| replay(exec, self.stream))?;
            equal!(replayed, eager, "numbers and states by flags {way:#x}");
            otr!(graph_exec_destroy, exec)?;
        }
        Ok(())
    }
}

fn draws(dice: &Dice) -> Verdict {
    (0..3).try_for_each(|place| dice.draw(place))
}

/// Goes back to an earlier place, as the second pass of a checkpoint does.
fn repeats(dice: &Dice) -> Verdict {
    let state = dice.state()?;
    dice.draw(0)?;
    let after = dice.state()?;
    dice.set_state(state)?;
    dice.draw(1)?;
    dice.set_state(after)?;
    dice.draw(2)
}

/// Draws from a seed of its own in between.
fn forks(dice: &Dice) -> Verdict {
    dice.draw(0)?;
    let state = dice.state()?;
    dice.seed(7)?;
    dice.draw(1)?;
    dice.set_state(state)?;
    dice.draw(2)
}

/// Leaves the generator at a place that it has set.
fn seeds(dice: &Dice) -> Verdict {
    dice.draw(0)?;
    dice.set_state((9, 100))?;
    dice.draw(1)?;
    dice.draw(2)
}

fn replays_draw_as_eager_calls(context: &Context) -> Verdict {
    start(context)?;
    for make in [Dice::on_default, Dice::new] {
        let dice = make()?;
        for work in [draws as Work, repeats, forks, seeds] {
            let graph = dice.captured(work)?;
            dice.same(context, graph, &|| work(&dice))?;
        }
    }
    Ok(())
}

fn children_follow_their_parent(context: &Context) -> Verdict {
    start(context)?;
    let dice = Dice::new()?;
    let works: [(Work, Work); 3] = [(repeats, forks), (seeds, repeats), (seeds, seeds)];
    for (first, second) in works {
        // A child of a child: the numbers of a seed of the parent's own stay what they are.
        let children = [dice.captured(first)?, dice.captured(second)?];
        let outer = made(|out| otr!(graph_create, 0, 0, out))?;
        let whole = made(|out| otr!(graph_create, 0, 0, out))?;
        let mut node = 0;
        otr!(graph_add_child, outer, null(), 0, children[0], &mut node)?;
        let before = node;
        otr!(graph_add_child, outer, &before, 1, children[1], &mut node)?;
        otr!(graph_add_child, whole, null(), 0, outer, &mut node)?;
        dice.same(context, whole, &|| {
            first(&dice)?;
            second(&dice)
        })?;
    }
    Ok(())
}

fn states_of_a_capture(context: &Context) -> Verdict {
    start(context)?;
    let dice = Dice::new()?;
    dice.seed(5)?;
    begin(dice.stream)?;
    let (seed, offset) = dice.state()?;
    otr!(graph_destroy, end(dice.stream)?)?;
    let set = || otr!(generator_set_state, dice.generator, seed, offset);
    refused(set(), Code::CAPTURE, "a state of a capture that has ended")?;
    equal!(dice.state()?, (5, 0), "the state after a refused one");
    begin(dice.stream)?;
    refused(set(), Code::CAPTURE, "a state of another capture")?;
    refused(
        otr!(capture_end, dice.stream, &mut 0),
        Code::CAPTURE,
        "the end of the capture in which it was set",
    )?;
    Ok(())
}
