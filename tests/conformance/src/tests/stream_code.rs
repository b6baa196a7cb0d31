//! R8, R10 and R30 for code that a driver compiles: kernels in OpenCL C, with arguments of every kind.

use outrigger_device::{Arguments, Code, Driver, Event, Grid, Kernel, Module, Queue, sys};

use super::kit::{Bench, block, fill, read, threads, write};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Gate, Verdict};

tests! { "stream.code":
    /// A kernel of source gets addresses, values and local memory, and runs in groups.
    source_runs: R30, needs Kernel OpenclC;
    /// Source that does not compile is refused with the compiler's log, and nothing is loaded.
    source_that_does_not_compile: R4 R5, needs Kernel OpenclC, lets compiler print;
    /// Options reach the compiler.
    options_reach_the_compiler: R10, needs Kernel OpenclC, lets compiler print;
    /// Kernels are found by their names, and others are not.
    kernels_have_names: R4, needs Kernel OpenclC;
    /// Arguments are copied during the call.
    arguments_are_copied: R10 R30, needs Kernel OpenclC;
    /// Arguments that do not fit block or kernel are refused, and nothing runs.
    arguments_that_do_not_fit: R4 R7 R30, needs Kernel OpenclC;
    /// Threads launch one kernel with arguments of their own.
    threads_share_a_kernel: R8 R30, needs Kernel OpenclC;
    /// A kernel keeps its place among fills and copies, on two queues too.
    a_launch_keeps_its_place: R16 R24, needs Kernel OpenclC;
    /// The compiled form of a module does what the module does, if the driver tells it.
    the_compiled_form: R10, needs Kernel OpenclC;
}

/// Adds `step` to as many numbers, and to each the sum of those of its group before.
const SOURCE: &str = "
__kernel void add(__global uint* to, __global const uint* from, uint step, ulong count, __local uint* group) {
  size_t at = get_global_id(0), own = get_local_id(0);
  group[own] = at < count ? from[at] : 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  uint sum = 0;
  for (size_t i = 0; i < get_local_size(0); i++) sum += group[i];
  if (at < count) to[at] = sum + step;
}
__kernel void set(__global uint* to, uint value) { to[get_global_id(0)] = value; }
";

const GROUP: u32 = 16;

fn load(driver: &Driver) -> Verdict<Module> {
    Ok(driver.module_load(0, sys::OTR_CODE_OPENCL_C, SOURCE.as_bytes(), None)?)
}

fn part(offset: u32, size: u32, kind: u32) -> sys::otr_argument {
    sys::otr_argument { offset, size, kind }
}

const ADDRESS: u32 = sys::OTR_ARGUMENT_ADDRESS;
const VALUE: u32 = sys::OTR_ARGUMENT_VALUE;
const LOCAL: u32 = sys::OTR_ARGUMENT_LOCAL;

/// The block of `add`, and its parts.
fn add_block(to: u64, from: u64, step: u32, count: u64) -> ([u8; 32], [sys::otr_argument; 5]) {
    let mut block = [0; 32];
    block[..8].copy_from_slice(&to.to_ne_bytes());
    block[8..16].copy_from_slice(&from.to_ne_bytes());
    block[16..20].copy_from_slice(&step.to_ne_bytes());
    block[24..].copy_from_slice(&count.to_ne_bytes());
    let parts = [
        part(0, 8, ADDRESS),
        part(8, 8, ADDRESS),
        part(16, 4, VALUE),
        part(24, 8, VALUE),
        part(0, 4 * GROUP, LOCAL),
    ];
    (block, parts)
}

fn grid(groups: u32) -> Grid {
    Grid {
        groups: [groups, 1, 1],
        items: [GROUP, 1, 1],
        shared_bytes: 0,
    }
}

/// Adds `step` to groups of numbers.
fn add(queue: &Queue, kernel: &Kernel, (to, from): (u64, u64), step: u32, count: u64) -> Verdict {
    let (block, parts) = add_block(to, from, step, count);
    let (block, parts) = (&block[..], &parts[..]);
    let groups = grid(count.div_ceil(u64::from(GROUP)) as u32);
    // SAFETY: what the kernel expects, in memory that lives until the queue was waited for.
    unsafe { queue.launch_grid(kernel, &groups, Arguments { block, parts }, 0, c"add") }?;
    Ok(())
}

/// Sets 16 numbers.
fn set(queue: &Queue, kernel: &Kernel, to: u64, value: u32) -> Verdict {
    let mut block = [0; 12];
    block[..8].copy_from_slice(&to.to_ne_bytes());
    block[8..].copy_from_slice(&value.to_ne_bytes());
    let parts = &[part(0, 8, ADDRESS), part(8, 4, VALUE)];
    let args = Arguments {
        block: &block,
        parts,
    };
    // SAFETY: what the kernel expects, in memory that lives until the queue was waited for.
    unsafe { queue.launch_grid(kernel, &grid(1), args, 0, c"set") }?;
    Ok(())
}

fn bytes(numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
    numbers.into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn source_runs(context: &Context) -> Verdict {
    const COUNT: u32 = 1000;
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(8 * 1024)?);
    let kernel = load(bench.driver())?.kernel(Some(c"add"))?;
    write(&queue, at, &bytes(0..COUNT))?;
    let to = at + 4096;
    fill(&queue, to, 4096, &[0])?;
    add(&queue, &kernel, (to, at), 7, COUNT.into())?;
    let sum = |group: u32| (group * GROUP..COUNT.min((group + 1) * GROUP)).sum::<u32>();
    let expected = (0..COUNT).map(|i| sum(i / GROUP) + 7);
    equal!(
        read(&queue, to, 4 * COUNT as usize)?,
        bytes(expected),
        "sums of groups"
    );
    equal!(
        read(&queue, to + 4 * u64::from(COUNT), 96)?,
        [0; 96],
        "what is behind them"
    );
    bench.finish()
}

fn source_that_does_not_compile(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    for source in [
        "__kernel void f(__global int* p) { p[0] = not_declared_anywhere; }",
        "not_declared_anywhere",
    ] {
        let code = source.as_bytes();
        let answer = bench
            .driver()
            .module_load(0, sys::OTR_CODE_OPENCL_C, code, None);
        let Err(error) = answer else {
            return Err(crate::Failure::new(
                "source that does not compile was loaded",
            ));
        };
        equal!(error.code(), Code::INVALID_ARGUMENT, "its code");
        check!(
            error.message().contains("not_declared_anywhere"),
            "the text has the compiler's log: {error}"
        );
    }
    bench.finish()
}

fn options_reach_the_compiler(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(64)?);
    let source = b"__kernel void set(__global uint* to, uint value) { to[get_global_id(0)] = value + MORE; }";
    let load = |options| {
        let format = sys::OTR_CODE_OPENCL_C;
        bench.driver().module_load(0, format, source, options)
    };
    answers!(
        load(None),
        Code::INVALID_ARGUMENT,
        "source without its option"
    );
    for (option, more) in [(c"-DMORE=40", 40), (c"-DMORE=50", 50)] {
        let kernel = load(Some(option))?.kernel(None)?;
        set(&queue, &kernel, at, 2)?;
        equal!(
            read(&queue, at, 64)?,
            bytes([2 + more; 16]),
            "with {option:?}"
        );
    }
    bench.finish()
}

fn kernels_have_names(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(64)?);
    let module = load(bench.driver())?;
    answers!(module.kernel(Some(c"ad")), Code::NOT_FOUND, "a kernel `ad`");
    answers!(
        module.kernel(Some(c"")),
        Code::NOT_FOUND,
        "a kernel without a name"
    );
    answers!(
        module.kernel(None),
        Code::NOT_FOUND,
        "the only kernel of a module with two"
    );
    let kernel = module.kernel(Some(c"set"))?;
    // The kernel keeps the module.
    drop(module);
    set(&queue, &kernel, at, 9)?;
    equal!(read(&queue, at, 64)?, bytes([9; 16]), "what it set");
    bench.finish()
}

fn arguments_are_copied(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at, gate) = (bench.queue()?, bench.memory(4 * 64)?, Gate::new());
    let kernel = load(bench.driver())?.kernel(Some(c"set"))?;
    block(&queue, &gate)?;
    let (mut bytes_of, mut parts) = ([0_u8; 12], [part(0, 8, ADDRESS), part(8, 4, VALUE)]);
    for i in 0..4_u32 {
        bytes_of[..8].copy_from_slice(&(at + 64 * u64::from(i)).to_ne_bytes());
        bytes_of[8..].copy_from_slice(&(i + 1).to_ne_bytes());
        let args = Arguments {
            block: &bytes_of,
            parts: &parts,
        };
        // SAFETY: what the kernel expects, in memory that lives until the queue was waited for.
        unsafe { queue.launch_grid(&kernel, &grid(1), args, 0, c"set") }?;
    }
    bytes_of.fill(0xff);
    parts.fill(part(u32::MAX, u32::MAX, u32::MAX));
    gate.open();
    let expected = bytes((0..4).flat_map(|i| [i + 1; 16]));
    equal!(read(&queue, at, 4 * 64)?, expected, "what the launches set");
    bench.finish()
}

fn arguments_that_do_not_fit(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(64)?);
    let kernel = load(bench.driver())?.kernel(Some(c"set"))?;
    fill(&queue, at, 64, &[0])?;
    let mut block = [7; 12];
    block[..8].copy_from_slice(&at.to_ne_bytes());
    let (address, value) = (part(0, 8, ADDRESS), part(8, 4, VALUE));
    for (what, parts) in [
        (
            "a value behind the block",
            vec![address, part(12, 4, VALUE)],
        ),
        (
            "a value that ends behind the block",
            vec![address, part(9, 4, VALUE)],
        ),
        (
            "a value far behind the block",
            vec![address, part(u32::MAX, 4, VALUE)],
        ),
        (
            "an address that ends behind the block",
            vec![part(5, 8, ADDRESS), value],
        ),
        (
            "a value of the wrong size",
            vec![address, part(8, 2, VALUE)],
        ),
        ("an unknown kind", vec![address, part(8, 4, 99)]),
        ("too few arguments", vec![address]),
        ("too many arguments", vec![address, value, value]),
    ] {
        let args = Arguments {
            block: &block,
            parts: &parts,
        };
        // SAFETY: it is refused; the memory lives until the queue was waited for.
        let answer = unsafe { queue.launch_grid(&kernel, &grid(1), args, 0, c"set") };
        answers!(answer, Code::INVALID_ARGUMENT, "{what}");
    }
    equal!(read(&queue, at, 64)?, [0; 64], "what no launch has set");
    set(&queue, &kernel, at, 3)?;
    equal!(read(&queue, at, 64)?, bytes([3; 16]), "a launch that fits");
    bench.finish()
}

fn threads_share_a_kernel(context: &Context) -> Verdict {
    const THREADS: u64 = 4;
    const ROUNDS: u32 = 100;
    let bench = Bench::new(context)?;
    let at = bench.memory(THREADS * 64)?;
    let kernel = load(bench.driver())?.kernel(Some(c"set"))?;
    threads(THREADS as usize, |thread| {
        let (queue, at) = (bench.queue()?, at + 64 * thread as u64);
        for round in 0..ROUNDS {
            let value = round * THREADS as u32 + thread as u32;
            set(&queue, &kernel, at, value)?;
            if round % 10 == 9 {
                equal!(read(&queue, at, 64)?, bytes([value; 16]), "thread {thread}");
            }
        }
        Ok(())
    })?;
    bench.finish()
}

fn a_launch_keeps_its_place(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, other, at) = (bench.queue()?, bench.queue()?, bench.memory(128)?);
    let module = load(bench.driver())?;
    let (add_up, set_all) = (module.kernel(Some(c"add"))?, module.kernel(Some(c"set"))?);
    let events: Vec<Event> = (0..2).map(|_| bench.event()).collect::<Verdict<_>>()?;
    for round in 0..50_u32 {
        fill(&queue, at, 128, &[0xee])?;
        set(&queue, &set_all, at, round)?;
        events[0].record(&queue)?;
        other.wait_event(&events[0])?;
        add(&other, &add_up, (at + 64, at), 1, GROUP.into())?;
        events[1].record(&other)?;
        queue.wait_event(&events[1])?;
        let found = read(&queue, at, 128)?;
        let expected = bytes([[round; 16], [round * GROUP + 1; 16]].concat());
        equal!(found, expected, "round {round}");
    }
    bench.finish()
}

fn the_compiled_form(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(64)?);
    let module = load(bench.driver())?;
    let binary = match module.binary() {
        Err(error) if error.code() == Code::UNSUPPORTED => return bench.finish(),
        binary => binary?,
    };
    check!(!binary.is_empty(), "the compiled form has bytes");
    drop(module);
    let again = |code: &[u8]| bench.driver().module_load(0, sys::OTR_CODE_ELF, code, None);
    let kernel = again(&binary)?.kernel(Some(c"set"))?;
    set(&queue, &kernel, at, 5)?;
    equal!(
        read(&queue, at, 64)?,
        bytes([5; 16]),
        "what the loaded form set"
    );
    for broken in [
        &binary[..0],
        &binary[..binary.len() / 2],
        b"no compiled form",
    ] {
        check!(
            again(broken).is_err(),
            "{} bytes of a broken form are refused",
            broken.len()
        );
    }
    bench.finish()
}
