//! R16, R21 and R24: pairs of commands of all kinds, of which the second depends on the first, in one
//! queue and in two queues that an event orders. On hardware, each pair takes another way through copy
//! engines and compute units.
//!
//! The commands work on two blocks of device memory, A and B, and on two of host memory, X and Y. Pairs
//! without common memory are left out.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_device::{Code, CopyKind, Event, Kernel, Queue};

use super::kit::{Bench, HostBytes, copy, fill, pattern, read, within, write};
use crate::verdict::{check, equal};
use crate::{Context, Need, Test, Verdict};

/// A kind of command, with what it does to the four blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    /// A = value
    Fill,
    /// A = X
    H2d,
    /// Y = A
    D2h,
    /// B = A
    Save,
    /// A = B
    Load,
    /// Y = X
    H2h,
    /// X = value, after Y was summed up
    Call,
    /// A = A + 1
    Kernel,
}

/// Bytes of each block.
const SIZE: usize = 1 << 18;

/// The four blocks, as they should be.
#[derive(Clone)]
struct Model {
    a: Vec<u8>,
    b: Vec<u8>,
    x: Vec<u8>,
    y: Vec<u8>,
    sum: u64,
}

fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8);
    words.fold(1, |sum, word| {
        let word = word.try_into().map_or(0, u64::from_le_bytes);
        sum.wrapping_mul(31).wrapping_add(word)
    })
}

impl Model {
    /// Makes the change of a command to a part of the blocks.
    fn step(&mut self, op: Op, at: usize, size: usize, value: u8) {
        let range = at..at + size;
        match op {
            Op::Fill => self.a[range].fill(value),
            Op::H2d => self.a[range.clone()].copy_from_slice(&self.x[range]),
            Op::D2h => self.y[range.clone()].copy_from_slice(&self.a[range]),
            Op::Save => self.b[range.clone()].copy_from_slice(&self.a[range]),
            Op::Load => self.a[range.clone()].copy_from_slice(&self.b[range]),
            Op::H2h => self.y[range.clone()].copy_from_slice(&self.x[range]),
            Op::Call => {
                self.sum = sum(&self.y);
                self.x[range].fill(value);
            }
            Op::Kernel => self.a[range]
                .iter_mut()
                .for_each(|b| *b = b.wrapping_add(1)),
        }
    }
}

/// The four blocks of a driver.
struct Machine {
    a: u64,
    b: u64,
    x: HostBytes,
    y: HostBytes,
    sum: Arc<AtomicU64>,
    kernel: Option<Kernel>,
}

/// Adds 1 to each byte of a range of device memory.
unsafe extern "C" fn increment(args: *const c_void, size: u32, bias: i64) -> i32 {
    if size as usize != size_of::<[u64; 2]>() {
        return Code::INVALID_ARGUMENT.0;
    }
    // SAFETY: the block is a pair of device address and size, of live memory that no other work uses now.
    unsafe {
        let [address, size] = args.cast::<[u64; 2]>().read_unaligned();
        let start = address.wrapping_add_signed(bias) as *mut u8;
        for byte in std::slice::from_raw_parts_mut(start, size as usize) {
            *byte = byte.wrapping_add(1);
        }
    }
    Code::OK.0
}

impl Machine {
    fn submit(&self, queue: &Queue, op: Op, at: usize, size: usize, value: u8) -> Verdict {
        let offset = at as u64;
        let (a, b, bytes) = (self.a + offset, self.b + offset, size as u64);
        let (x, y) = (self.x.at(at), self.y.at(at));
        match op {
            Op::Fill => fill(queue, a, bytes, &[value]),
            Op::H2d => copy(queue, a, x, bytes, CopyKind::HostToDevice),
            Op::D2h => copy(queue, y, a, bytes, CopyKind::DeviceToHost),
            Op::Save => within(queue, b, a, bytes),
            Op::Load => within(queue, a, b, bytes),
            Op::H2h => copy(queue, y, x, bytes, CopyKind::HostToHost),
            Op::Call => {
                let (x, y, total) = (self.x, self.y, self.sum.clone());
                queue.callback(move |_| {
                    total.store(sum(&y.get()), Ordering::SeqCst);
                    x.fill(at, size, value);
                })?;
                Ok(())
            }
            Op::Kernel => {
                let Some(kernel) = &self.kernel else {
                    return Err(crate::Failure::new("the driver takes host kernels"));
                };
                let args = [a, bytes].map(u64::to_ne_bytes).concat();
                // SAFETY: what the kernel expects, and live until the queue was waited for.
                unsafe { queue.launch(kernel, &args, 0, c"increment") }?;
                Ok(())
            }
        }
    }
}

/// The order of the two commands.
enum Order {
    Queue,
    Event,
}

fn pair(context: &Context, first: Op, second: Op, order: &Order) -> Verdict {
    let bench = Bench::new(context)?;
    let queues = bench.queues(2)?;
    let (point, back) = (bench.event()?, bench.event()?);
    let kernel = [first, second].contains(&Op::Kernel);
    let machine = Machine {
        a: bench.memory(SIZE as u64)?,
        b: bench.memory(SIZE as u64)?,
        x: HostBytes::of(SIZE, 0),
        y: HostBytes::of(SIZE, 0),
        sum: Arc::default(),
        kernel: if kernel {
            bench.host_kernel(0, increment)?
        } else {
            None
        },
    };
    // The whole block and then its end, the whole twice, a small part and then the whole: a second command
    // that starts early meets bytes that the first one has not reached.
    let ranges = [
        (0, SIZE, SIZE - 64, 64),
        (0, SIZE, 0, SIZE),
        (SIZE - 4096, 4096, 0, SIZE),
        (0, SIZE, SIZE / 2, SIZE / 2),
    ];
    for round in 0..12usize {
        let (at, size, then, count) = ranges[round % ranges.len()];
        let mut model = fresh(&machine, &queues[0], round as u64)?;
        let [values, value] = [round as u8 * 2 + 1, round as u8 * 2 + 2];
        machine.submit(&queues[0], first, at, size, values)?;
        let last = match order {
            Order::Queue => &queues[0],
            Order::Event => {
                hand_over(&queues[0], &queues[1], &point)?;
                &queues[1]
            }
        };
        machine.submit(last, second, then, count, value)?;
        model.step(first, at, size, values);
        model.step(second, then, count, value);
        if matches!(order, Order::Event) {
            hand_over(&queues[1], &queues[0], &back)?;
        }
        let what = format!("{first:?} of {size} bytes, then {second:?} of {count}, round {round}");
        let (a, b) = (
            read(&queues[0], machine.a, SIZE)?,
            read(&queues[0], machine.b, SIZE)?,
        );
        for (name, found, expected) in [
            ("A", &a, &model.a),
            ("B", &b, &model.b),
            ("X", &machine.x.get(), &model.x),
            ("Y", &machine.y.get(), &model.y),
        ] {
            if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
                equal!(found[at], expected[at], "byte {at} of {name} after {what}");
            }
        }
        let called = [first, second].contains(&Op::Call);
        check!(
            !called || machine.sum.load(Ordering::SeqCst) == model.sum,
            "what the host call saw of Y: {what}"
        );
    }
    bench.finish()
}

fn hand_over(from: &Queue, to: &Queue, event: &Event) -> Verdict {
    event.record(from)?;
    to.wait_event(event)?;
    Ok(())
}

/// Puts new bytes into all four blocks.
fn fresh(machine: &Machine, queue: &Queue, round: u64) -> Verdict<Model> {
    let model = Model {
        a: pattern(SIZE, round * 4),
        b: pattern(SIZE, round * 4 + 1),
        x: pattern(SIZE, round * 4 + 2),
        y: pattern(SIZE, round * 4 + 3),
        sum: 0,
    };
    machine.x.set(&model.x);
    machine.y.set(&model.y);
    write(queue, machine.a, &model.a)?;
    write(queue, machine.b, &model.b)?;
    queue.synchronize()?;
    Ok(model)
}

macro_rules! pairs {
    ($($first_name:literal $first:ident: $($second_name:literal $second:ident $(needs $need:ident)?),+;)+) => {
        pub(super) const ORDER: &[Test] = &[$($(pairs!(
            @test "stream.order", Queue, ["R16"], " in one queue", $first_name $first $second_name $second $($need)?
        ),)+)+];
        pub(super) const CROSS: &[Test] = &[$($(pairs!(
            @test "stream.cross", Event, ["R21", "R24"], " in a second queue that waits for it",
            $first_name $first $second_name $second $($need)?
        ),)+)+];
    };
    (@test $subject:literal, $order:ident, [$($rule:literal),+], $where:literal,
     $first_name:literal $first:ident $second_name:literal $second:ident $($need:ident)?) => {
        Test {
            id: concat!($subject, ".", $first_name, "_then_", $second_name),
            rules: &[$($rule),+],
            needs: &[$(Need::$need)?],
            absent: &[],
            about: concat!("A ", $second_name, " behind a ", $first_name, $where, " sees all of its effects, and undoes none."),
            compiler_prints: false,
            limit: crate::test::DEFAULT_LIMIT,
            run: |context| pair(context, Op::$first, Op::$second, &Order::$order),
        }
    };
}

pairs! {
    "fill" Fill: "fill" Fill, "h2d" H2d, "d2h" D2h, "d2d" Save, "d2d_onto_it" Load, "kernel" Kernel needs HostKernels;
    "h2d" H2d: "fill" Fill, "h2d" H2d, "d2h" D2h, "d2d" Save, "d2d_onto_it" Load, "host_call" Call, "kernel" Kernel needs HostKernels;
    "d2h" D2h: "fill" Fill, "h2d" H2d, "d2h" D2h, "d2d_onto_it" Load, "h2h" H2h, "host_call" Call, "kernel" Kernel needs HostKernels;
    "d2d" Save: "fill" Fill, "h2d" H2d, "d2d" Save, "d2d_onto_it" Load, "kernel" Kernel needs HostKernels;
    "d2d_onto_it" Load: "fill" Fill, "h2d" H2d, "d2h" D2h, "d2d" Save, "d2d_onto_it" Load, "kernel" Kernel needs HostKernels;
    "h2h" H2h: "d2h" D2h, "h2h" H2h, "host_call" Call;
    "host_call" Call: "h2d" H2d, "d2h" D2h, "h2h" H2h, "host_call" Call;
}

macro_rules! kernel_pairs {
    ($($second_name:literal $second:ident),+ $(,)?) => {
        pub(super) const KERNEL_ORDER: &[Test] = &[$(pairs!(
            @test "stream.order", Queue, ["R16"], " in one queue", "kernel" Kernel $second_name $second HostKernels
        )),+];
        pub(super) const KERNEL_CROSS: &[Test] = &[$(pairs!(
            @test "stream.cross", Event, ["R21", "R24"], " in a second queue that waits for it",
            "kernel" Kernel $second_name $second HostKernels
        )),+];
    };
}

kernel_pairs! { "fill" Fill, "h2d" H2d, "d2h" D2h, "d2d" Save, "d2d_onto_it" Load, "kernel" Kernel }
