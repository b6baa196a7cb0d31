//! Graphs of a driver that has none, as launches of persistent kernels: on a device that compiles plain C, whose groups run on
//! one thread or on several.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use outrigger_device::{
    Arguments, Code, CopyKind, Driver, Event, Grid, Kernel, Module, NativeGraph, Queue, sys,
};
use outrigger_device_ops::with_kernels;
use outrigger_layers::fault::{FaultSpec, fault};
use outrigger_layers::{Layer, Next, layered};

const DIALECT: &str = concat!(
    include_str!("../../../include/outrigger/dialect.h"),
    include_str!("../../../include/outrigger/dialect_functions.h")
);

/// Two texts that declare and define the same names, and mean different things. T and N are also parameters of the
/// dialect's macros.
const TEXTS: [&str; 2] = [
    "
typedef struct { u64 factor, more; } arguments_t;
#define JOIN(a, b) ((a) * args.factor + (b))
#define T left
OTR_FUNCTION u64 join(u64 T, u64 b, arguments_t args) { return JOIN(left, b) + args.more; }
OTR_KERNEL(mix)(OTR_ITEM OTR_GLOBAL u64* to, OTR_GLOBAL const u64* a, OTR_GLOBAL const u64* b,
    const arguments_t args) {
  i64 at = OTR_GROUP_ID(0) + OTR_GROUP_COUNT(0) * (OTR_GROUP_ID(1) + OTR_GROUP_COUNT(1) * OTR_GROUP_ID(2));
  const u64 left = a[at];
  {
    const u64 N = b[at];
    to[at] = join(left, N, args);
  }
}
",
    "
typedef struct { u64 more, factor; } arguments_t;
#define JOIN(a, b) ((a) - args.factor * (b))
#define N left
OTR_FUNCTION u64 join(u64 b, u64 N, arguments_t args) { return JOIN(left, b) ^ args.more; }
OTR_KERNEL(mix)(OTR_ITEM OTR_GLOBAL u64* to, OTR_GLOBAL const u64* a, OTR_GLOBAL const u64* b,
    const arguments_t args) {
  i64 at = OTR_GROUP_ID(0) + OTR_GROUP_COUNT(0) * (OTR_GROUP_ID(1) + OTR_GROUP_COUNT(1) * OTR_GROUP_ID(2));
  const u64 left = a[at];
  {
    const u64 T = b[at];
    to[at] = join(left, T, args);
  }
}
",
];

/// The layers below: they count launches of kernels.
#[derive(Debug, Clone, Default)]
struct Launches(Arc<AtomicU64>);

impl Launches {
    fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Layer for Launches {
    unsafe fn kernel_launch(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        kernel: *mut sys::otr_drv_kernel,
        launch: *const sys::otr_launch,
    ) -> i32 {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's arguments.
        unsafe { next.kernel_launch(queue, kernel, launch) }
    }
}

/// A host call that does nothing.
unsafe extern "C" fn pass(_: *mut c_void, upstream: i32) -> i32 {
    upstream
}

/// A row of numbers in device memory, and how many there are.
const ROW: u64 = 64;
const ROWS: u64 = 12;

struct Bench {
    driver: Driver,
    modules: Vec<Module>,
    kernels: Vec<Kernel>,
    launches: Launches,
    memory: u64,
}

impl Bench {
    fn new(options: &str) -> Self {
        Self::over(&format!("devices=1,memory=64M,{options}"), "")
    }

    fn over(options: &str, faults: &str) -> Self {
        let launches = Launches::default();
        let driver = outrigger_dialect_driver::driver(options).unwrap();
        let driver = match faults {
            "" => driver,
            faults => layered(driver, fault(&FaultSpec::parse(faults).unwrap())).unwrap(),
        };
        let driver = with_kernels(layered(driver, launches.clone()).unwrap()).unwrap();
        assert!(driver.native_graphs().is_some());
        let load = |text: &&str| {
            let source = ["#define OTR_GROUP_SIZE 1\n", DIALECT, text].concat();
            let module = driver.module_load(0, sys::OTR_CODE_OPENCL_C, source.as_bytes(), None);
            module.unwrap()
        };
        let modules: Vec<Module> = TEXTS.iter().map(load).collect();
        let kernel = |module: &Module| module.kernel(Some(c"mix")).unwrap();
        let kernels = modules.iter().map(kernel).collect();
        let memory = driver.memory_alloc(0, ROWS * ROW * 8).unwrap();
        Self {
            driver,
            modules,
            kernels,
            launches,
            memory,
        }
    }

    fn queue(&self) -> Queue {
        self.driver.queue_create(0, 0).unwrap()
    }

    fn row(&self, number: u64) -> u64 {
        self.memory + number * ROW * 8
    }

    fn write(&self, seed: u64) {
        for at in 0..ROWS * ROW {
            // SAFETY: R15: an allocation of that size, whose address is a host pointer, and that nothing uses.
            unsafe { *((self.memory + at * 8) as *mut u64) = seed.wrapping_mul(at * at + 7) };
        }
    }

    fn read(&self) -> Vec<u64> {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.memory as *const u64, (ROWS * ROW) as usize) }
            .to_vec()
    }

    /// Records what is submitted.
    fn record(&self, submit: impl FnOnce(&Queue)) -> NativeGraph {
        let (graphs, queue) = (self.driver.native_graphs().unwrap(), self.queue());
        graphs.record_begin(&queue).unwrap();
        submit(&queue);
        graphs.record_end(&queue).unwrap()
    }

    fn submit(&self, queue: &Queue, step: &Step) {
        let row = |number: u64| self.row(number);
        // SAFETY: all of it is in the memory of the bench, which is freed after its last use; kernels get what they
        // expect.
        unsafe {
            match *step {
                Step::Mix {
                    kernel,
                    to,
                    a,
                    b,
                    factor,
                    groups,
                } => {
                    let block = [row(to), row(a), row(b), factor, 3];
                    let bytes: Vec<u8> = block.iter().flat_map(|word| word.to_ne_bytes()).collect();
                    let address = |at: u32| sys::otr_argument {
                        offset: at * 8,
                        size: 8,
                        kind: sys::OTR_ARGUMENT_ADDRESS,
                    };
                    let value = sys::otr_argument {
                        offset: 24,
                        size: 16,
                        kind: sys::OTR_ARGUMENT_VALUE,
                    };
                    let parts = [address(0), address(1), address(2), value];
                    let grid = Grid {
                        groups,
                        ..Grid::ONE
                    };
                    let args = Arguments {
                        block: &bytes,
                        parts: &parts,
                    };
                    queue.launch_grid(&self.kernels[kernel], &grid, args, 0, c"mix")
                }
                Step::Fill {
                    to,
                    skip,
                    size,
                    value,
                } => queue.fill(row(to) + skip, size, &u32::to_ne_bytes(value)),
                Step::Copy {
                    to,
                    from,
                    skip,
                    size,
                } => queue.copy(row(to) + skip, row(from), size, CopyKind::DeviceToDevice),
                Step::Call => {
                    let flags = sys::OTR_HOST_CALL_CANNOT_FAIL;
                    queue.host_call_raw(pass, std::ptr::null_mut(), flags)
                }
            }
        }
        .unwrap();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // SAFETY: R12: each test waits for its work.
        let _ = unsafe { self.driver.memory_free(self.memory) };
    }
}

#[derive(Clone, Debug)]
enum Step {
    Mix {
        kernel: usize,
        to: u64,
        a: u64,
        b: u64,
        factor: u64,
        groups: [u32; 3],
    },
    Fill {
        to: u64,
        skip: u64,
        size: u64,
        value: u32,
    },
    Copy {
        to: u64,
        from: u64,
        skip: u64,
        size: u64,
    },
    Call,
}

/// Numbers of a fixed sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// A step that reads rows `from` on, and writes one of `width` rows of its own.
    fn step(&mut self, own: u64, width: u64, calls: bool) -> Step {
        let to = own + self.below(width);
        let from = (to + 1 + self.below(width - 1) - own) % width + own;
        let skip = [0, 4, 8][self.below(3) as usize];
        let size = 4 * self.below(ROW * 2 - 2);
        match self.below(if calls { 12 } else { 11 }) {
            0..=6 => Step::Mix {
                kernel: self.below(2) as usize,
                to,
                a: own + self.below(width),
                b: own + self.below(width),
                factor: self.below(1000),
                groups: [[1, 1, 1], [ROW as u32, 1, 1], [4, 2, 3]][self.below(3) as usize],
            },
            7..=8 => Step::Fill {
                to,
                skip,
                size,
                value: self.below(1 << 31) as u32,
            },
            9..=10 => Step::Copy {
                to,
                from,
                skip,
                size,
            },
            _ => Step::Call,
        }
    }
}

/// A program of several queues: each has rows of its own, until all are joined and one queue has all rows.
fn random_programs(options: &str, calls: bool) {
    const QUEUES: u64 = 3;
    let bench = Bench::new(options);
    let queue = bench.queue();
    let more: Vec<_> = (1..QUEUES).map(|_| bench.queue()).collect();
    for seed in 0..12 {
        let mut random = Random(seed);
        let width = ROWS / QUEUES;
        let mut parts = || -> Vec<(usize, Step)> {
            let mut all = Vec::new();
            for round in 0..3 {
                for _ in 0..12 {
                    let on = random.below(QUEUES);
                    all.push((on as usize, random.step(on * width, width, calls)));
                }
                // Rows of all queues, behind the join.
                all.extend((0..3).map(|_| (usize::MAX, random.step(0, ROWS, calls && round == 1))));
            }
            all
        };
        let (steps, mut others) = (parts(), parts());
        let eager = |steps: &[(usize, Step)]| {
            bench.write(seed + 1);
            steps
                .iter()
                .for_each(|(_, step)| bench.submit(&queue, step));
            queue.synchronize().unwrap();
            bench.read()
        };
        let record = |steps: &[(usize, Step)]| {
            bench.record(|first| {
                let event = |on: &Queue| {
                    let event: Event = bench.driver.event_create(0, false).unwrap();
                    event.record(on).unwrap();
                    event
                };
                let fork = |on: &Queue| {
                    more.iter()
                        .for_each(|queue| queue.wait_event(&event(on)).unwrap())
                };
                let mut joined = true;
                for (on, step) in steps {
                    if *on == usize::MAX {
                        more.iter()
                            .for_each(|queue| first.wait_event(&event(queue)).unwrap());
                        joined = true;
                    } else if joined {
                        fork(first);
                        joined = false;
                    }
                    let on = match *on {
                        0 | usize::MAX => first,
                        other => &more[other - 1],
                    };
                    bench.submit(on, step);
                }
            })
        };
        let right = eager(&steps);
        let graph = record(&steps);
        for replay in 0..3 {
            bench.write(seed + 1);
            // SAFETY: the memory is freed after the last launch.
            unsafe { queue.launch_graph(&graph) }.unwrap();
            queue.synchronize().unwrap();
            assert_eq!(
                bench.read(),
                right,
                "seed {seed}, replay {replay}: {steps:?}"
            );
        }
        // The same kinds and kernels with other arguments.
        for ((_, old), (_, new)) in steps.iter().zip(&mut others) {
            *new = changed(old, &mut random);
        }
        let others: Vec<_> = steps
            .iter()
            .zip(others)
            .map(|(old, new)| (old.0, new.1))
            .collect();
        let right = eager(&others);
        let part = 10..20;
        let some = bench.record(|queue| {
            others[part.clone()]
                .iter()
                .for_each(|(_, step)| bench.submit(queue, step))
        });
        graph.update_part(part.start as u32, &some).unwrap();
        let mixed = [
            &steps[..part.start],
            &others[part.clone()],
            &steps[part.end..],
        ]
        .concat();
        let of_part = eager(&mixed);
        bench.write(seed + 1);
        // SAFETY: as above.
        unsafe { queue.launch_graph(&graph) }.unwrap();
        queue.synchronize().unwrap();
        assert_eq!(bench.read(), of_part, "seed {seed}, a part");
        graph.update(&record(&others)).unwrap();
        bench.write(seed + 1);
        // SAFETY: as above.
        unsafe { queue.launch_graph(&graph) }.unwrap();
        queue.synchronize().unwrap();
        assert_eq!(bench.read(), right, "seed {seed}, updated");
    }
}

/// A step with other numbers, on the same rows.
fn changed(step: &Step, random: &mut Random) -> Step {
    let mut step = step.clone();
    match &mut step {
        Step::Mix { factor, groups, .. } => {
            *factor = random.below(1000);
            *groups = [[1, 1, 1], [7, 3, 1], [4, 2, 3]][random.below(3) as usize];
        }
        Step::Fill { value, size, .. } => {
            *value = random.below(1 << 31) as u32;
            *size = 4 * random.below(ROW * 2 - 2);
        }
        Step::Copy { size, .. } => *size = 4 * random.below(ROW * 2 - 2),
        Step::Call => {}
    }
    step
}

#[test]
fn random_programs_give_what_their_commands_give() {
    random_programs("checked=1", true);
}

/// The workers of a launch run one after the other: the first one does all.
#[test]
fn several_workers_on_one_thread() {
    random_programs("threads=1,units=4", false);
}

#[test]
fn several_workers_on_several_threads() {
    random_programs("threads=4", true);
}

/// Many steps of one row, each of which reads the one before.
fn chain(bench: &Bench, queue: &Queue, count: u64) {
    for at in 0..count {
        let (to, a) = (at % 2, (at + 1) % 2);
        let kernel = (at % 2) as usize;
        bench.submit(
            queue,
            &Step::Mix {
                kernel,
                to,
                a,
                b: 2,
                factor: at,
                groups: [8, 1, 1],
            },
        );
    }
}

#[test]
fn a_chain_is_one_launch() {
    for options in ["threads=1", "threads=4"] {
        let bench = Bench::new(options);
        let queue = bench.queue();
        bench.write(5);
        chain(&bench, &queue, 300);
        queue.synchronize().unwrap();
        let right = bench.read();
        assert_eq!(bench.launches.take(), 300);
        let graph = bench.record(|queue| chain(&bench, queue, 300));
        for _ in 0..20 {
            bench.write(5);
            // SAFETY: the memory is freed after the last launch.
            unsafe { queue.launch_graph(&graph) }.unwrap();
            queue.synchronize().unwrap();
            assert_eq!(bench.read(), right, "{options}");
            assert_eq!(bench.launches.take(), 1, "{options}");
        }
    }
}

/// A command that cannot be a task stands between two launches.
#[test]
fn a_host_call_parts_a_graph() {
    let bench = Bench::new("threads=2");
    let queue = bench.queue();
    let graph = bench.record(|queue| {
        chain(&bench, queue, 5);
        bench.submit(queue, &Step::Call);
        chain(&bench, queue, 5);
        bench.submit(queue, &Step::Call);
        chain(&bench, queue, 1);
    });
    // SAFETY: the memory is freed after the last launch.
    unsafe { queue.launch_graph(&graph) }.unwrap();
    queue.synchronize().unwrap();
    assert_eq!(bench.launches.take(), 3);
}

/// A kernel with many groups for each worker is left to the driver.
#[test]
fn a_wide_kernel_is_launched_by_itself() {
    let bench = Bench::new("threads=2");
    let queue = bench.queue();
    let submit = |queue: &Queue| {
        chain(&bench, queue, 5);
        for groups in [[4, 4, 1], [17, 1, 1]] {
            let (kernel, to, a, b, factor) = (1, 3, 4, 5, 6);
            let step = Step::Mix {
                kernel,
                to,
                a,
                b,
                factor,
                groups,
            };
            bench.submit(queue, &step);
        }
        chain(&bench, queue, 5);
    };
    bench.write(7);
    submit(&queue);
    queue.synchronize().unwrap();
    let right = bench.read();
    let graph = bench.record(submit);
    bench.launches.take();
    bench.write(7);
    // SAFETY: the memory is freed after the last launch.
    unsafe { queue.launch_graph(&graph) }.unwrap();
    queue.synchronize().unwrap();
    assert_eq!(bench.read(), right);
    assert_eq!(bench.launches.take(), 3);
}

/// Blocks a queue until something is sent, or the sender is gone.
fn block(queue: &Queue) -> mpsc::Sender<()> {
    let (open, closed) = mpsc::channel();
    queue.callback(move |_| drop(closed.recv())).unwrap();
    open
}

unsafe extern "C" fn fail(_: *const c_void, _: u32, _: i64) -> i32 {
    Code::EXECUTION.0
}

/// Launches of one graph on two queues do not wait for each other, and have tables of their own.
#[test]
fn two_queues_launch_one_graph_at_a_time() {
    let bench = Bench::new("threads=2");
    let (one, other, gate) = (bench.queue(), bench.queue(), bench.queue());
    let graph = bench.record(|queue| {
        let mix = |to, a| Step::Mix {
            kernel: 0,
            to,
            a,
            b: a,
            factor: 2,
            groups: [ROW as u32, 1, 1],
        };
        (0..40).for_each(|at| bench.submit(queue, &mix(2 + at % 8, 0)));
    });
    bench.write(3);
    // SAFETY: the memory is freed after the last launch.
    let launch = |queue: &Queue| unsafe { queue.launch_graph(&graph) }.unwrap();
    let open = block(&gate);
    let event = bench.driver.event_create(0, false).unwrap();
    event.record(&gate).unwrap();
    one.wait_event(&event).unwrap();
    launch(&one);
    launch(&other);
    other.synchronize().unwrap();
    let right = bench.read();
    open.send(()).unwrap();
    one.synchronize().unwrap();
    assert_eq!(bench.read(), right);
    for _ in 0..50 {
        launch(&one);
        launch(&other);
    }
    one.synchronize().unwrap();
    other.synchronize().unwrap();
    assert_eq!(bench.read(), right);
}

/// A graph that is destroyed while its launch is to come gives its memory back once a queue was waited for.
#[test]
fn a_destroyed_graph_gives_its_memory_back() {
    let bench = Bench::new("threads=2");
    let queue = bench.queue();
    let free = || bench.driver.memory_info(0).unwrap();
    let before = free();
    let open = block(&queue);
    let graph = bench.record(|queue| chain(&bench, queue, 5));
    // SAFETY: the memory is freed after the last launch.
    unsafe { queue.launch_graph(&graph) }.unwrap();
    drop(graph);
    assert_ne!(free(), before, "the launch has its table");
    open.send(()).unwrap();
    queue.synchronize().unwrap();
    assert_eq!(free(), before);
}

/// A copy of a table that was left out is done again.
#[test]
fn a_launch_that_failed_leaves_the_next_one_right() {
    let bench = Bench::new("threads=2");
    let queue = bench.queue();
    let graph = bench.record(|queue| chain(&bench, queue, 50));
    let other = bench.record(|queue| chain(&bench, queue, 50));
    let fails = bench.driver.host_kernel(0, fail).unwrap().unwrap();
    bench.write(9);
    chain(&bench, &queue, 50);
    queue.synchronize().unwrap();
    let right = bench.read();
    for round in 0..3 {
        if round > 0 {
            graph.update(&other).unwrap();
        }
        bench.write(9);
        // SAFETY: the kernel uses nothing.
        unsafe { queue.launch(&fails, &[], 0, c"fails") }.unwrap();
        // SAFETY: the memory is freed after the last launch.
        unsafe { queue.launch_graph(&graph) }.unwrap();
        assert_eq!(queue.synchronize().unwrap_err().code(), Code::EXECUTION);
        // SAFETY: as above.
        unsafe { queue.launch_graph(&graph) }.unwrap();
        queue.synchronize().unwrap();
        assert_eq!(bench.read(), right, "round {round}");
    }
}

/// The device is lost between two parts of a launch: the call says so, and everything can be destroyed.
#[test]
fn a_device_that_is_lost_within_a_launch() {
    static DONE: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn done(_: *mut c_void, upstream: i32) -> i32 {
        DONE.fetch_add(1, Ordering::Release);
        upstream
    }
    let bench = Bench::over("devices=1,memory=64M", "kernel_launch@2..=lost");
    let queue = bench.queue();
    let graph = bench.record(|queue| {
        chain(&bench, queue, 5);
        let flags = sys::OTR_HOST_CALL_CANNOT_FAIL;
        // SAFETY: the function takes anything.
        unsafe { queue.host_call_raw(done, std::ptr::null_mut(), flags) }.unwrap();
        chain(&bench, queue, 5);
    });
    for _ in 0..2 {
        // SAFETY: the memory is freed after the last launch.
        let outcome = unsafe { queue.launch_graph(&graph) };
        assert_eq!(outcome.unwrap_err().code(), Code::DEVICE_LOST);
    }
    // A driver that says that it is lost still runs what it had: nothing is freed under it.
    for _ in 0..10_000 {
        if DONE.load(Ordering::Acquire) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    assert_eq!(
        DONE.load(Ordering::Acquire),
        1,
        "the first part and the call ran"
    );
    drop(graph);
}

/// Code that another process has compiled is recorded as that of this process.
#[test]
fn a_compiled_form_keeps_its_text() {
    let bench = Bench::new("threads=2");
    let binaries = bench.modules.iter().map(|module| module.binary().unwrap());
    let mut again = Bench::new("threads=2");
    let load = |binary: Vec<u8>| {
        let module = again
            .driver
            .module_load(0, sys::OTR_CODE_ELF, &binary, None)
            .unwrap();
        // A module that was loaded can be kept again.
        assert_eq!(module.binary().unwrap(), binary);
        module.kernel(Some(c"mix")).unwrap()
    };
    let kernels = binaries.map(load).collect();
    again.kernels = kernels;
    let queue = again.queue();
    let graph = again.record(|queue| chain(&again, queue, 20));
    // SAFETY: the memory is freed after the last launch.
    unsafe { queue.launch_graph(&graph) }.unwrap();
    queue.synchronize().unwrap();
    assert_eq!(again.launches.take(), 1);
}
