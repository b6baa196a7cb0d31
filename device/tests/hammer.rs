//! Eight threads on four queues of the host driver at once: submissions, waits across queues, queries
//! and synchronization in random order, checked against what stream order promises. And six threads that
//! submit to one queue, which is empty or has a backlog.

mod common;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{open, within_limit};
use outrigger_device::{Code, Driver, Kernel, Queue};

const THREADS: usize = 8;
const QUEUES: usize = 4;
const STEPS: u64 = 3000;

/// What has run. A slot holds the last number that a thread's work has reached on a queue.
#[derive(Default)]
struct Model {
    slots: [[AtomicU64; QUEUES]; THREADS],
    /// Not atomic in effect: a read and a write apart, so that two executors at once lose counts.
    counts: [AtomicU64; QUEUES],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    model: *const Model,
    thread: u64,
    queue: u64,
    number: u64,
}

/// Counts on its queue and moves its thread's slot there, which must be one behind.
unsafe extern "C" fn step(args: *const c_void, _size: u32, _bias: i64) -> i32 {
    // SAFETY: launched with these arguments; the model outlives the test.
    let args = unsafe { args.cast::<Args>().read_unaligned() };
    // SAFETY: as above.
    let model = unsafe { &*args.model };
    let count = &model.counts[args.queue as usize];
    let before = count.load(Ordering::Relaxed);
    let slot = &model.slots[args.thread as usize][args.queue as usize];
    let last = slot.swap(args.number, Ordering::Relaxed);
    count.store(before + 1, Ordering::Relaxed);
    if last + 1 == args.number {
        0
    } else {
        Code::OUT_OF_RANGE.0
    }
}

/// Fails unless the work of its thread on the named queue has come as far as the number.
unsafe extern "C" fn check(args: *const c_void, _size: u32, _bias: i64) -> i32 {
    // SAFETY: launched with these arguments; the model outlives the test.
    let args = unsafe { args.cast::<Args>().read_unaligned() };
    // SAFETY: as above.
    let slot = unsafe { &(*args.model).slots[args.thread as usize][args.queue as usize] };
    if slot.load(Ordering::Relaxed) >= args.number {
        0
    } else {
        Code::EXECUTION.0
    }
}

fn launch(queue: &Queue, kernel: &Kernel, args: Args) {
    // SAFETY: arguments are plain data.
    let bytes = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(&args).cast::<u8>(), size_of::<Args>())
    };
    // SAFETY: what the kernel expects.
    unsafe { queue.launch(kernel, bytes, 50, c"hammer") }.unwrap();
}

struct Setting {
    driver: Driver,
    queues: Vec<Queue>,
    step: Kernel,
    check: Kernel,
    model: &'static Model,
}

fn hammer(setting: &Setting, thread: usize) {
    let Setting {
        driver,
        queues,
        step,
        check,
        model,
    } = setting;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread as u64 + 1);
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    let event = driver.event_create(0, false).unwrap();
    let mut numbers = [0u64; QUEUES];
    for _ in 0..STEPS {
        let (queue, other) = (next(QUEUES), next(QUEUES));
        numbers[queue] += 1;
        let args = Args {
            model: *model,
            thread: thread as u64,
            queue: queue as u64,
            number: numbers[queue],
        };
        launch(&queues[queue], step, args);
        let reached = || model.slots[thread][queue].load(Ordering::Relaxed) >= numbers[queue];
        match next(16) {
            0..=4 => {
                event.record(&queues[queue]).unwrap();
                queues[other].wait_event(&event).unwrap();
                launch(&queues[other], check, args);
            }
            5 => {
                event.record(&queues[queue]).unwrap();
                event.synchronize().unwrap();
                assert!(reached());
            }
            6 => {
                queues[queue].synchronize().unwrap();
                assert!(reached());
            }
            7 => {
                event.record(&queues[queue]).unwrap();
                if event.query().unwrap() {
                    assert!(reached());
                }
            }
            8 => {
                let passing = driver.queue_create(0, 0).unwrap();
                event.record(&queues[queue]).unwrap();
                passing.wait_event(&event).unwrap();
                launch(&passing, check, args);
            }
            9 => queues[queue].flush().unwrap(),
            _ => {}
        }
    }
}

#[test]
fn stream_order_holds_under_eight_threads() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let setting = Setting {
            queues: (0..QUEUES)
                .map(|_| driver.queue_create(0, 0).unwrap())
                .collect(),
            step: driver.host_kernel(0, step).unwrap().unwrap(),
            check: driver.host_kernel(0, check).unwrap().unwrap(),
            model: Box::leak(Box::default()),
            driver,
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let setting = &setting;
                scope.spawn(move || hammer(setting, thread));
            }
        });
        for queue in &setting.queues {
            queue.synchronize().unwrap();
        }
        let ran: u64 = setting
            .model
            .counts
            .iter()
            .map(|c| c.load(Ordering::Relaxed))
            .sum();
        assert_eq!(ran, THREADS as u64 * STEPS);
    });
}

/// Adds one, as two threads at once would not: a read and a write apart.
unsafe extern "C" fn count(args: *const c_void, _size: u32, _bias: i64) -> i32 {
    // SAFETY: launched with the address of a counter that is never freed.
    let counter = unsafe { &*(args.cast::<u64>().read_unaligned() as *const AtomicU64) };
    let before = counter.load(Ordering::Relaxed);
    counter.store(before + 1, Ordering::Relaxed);
    0
}

#[test]
fn threads_that_share_a_queue_run_what_they_submitted_and_no_more() {
    const SUBMITTERS: u64 = 6;
    const COMMANDS: u64 = 50_000;
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let kernel = driver.host_kernel(0, count).unwrap().unwrap();
        let counter: &AtomicU64 = Box::leak(Box::default());
        let args = (std::ptr::from_ref(counter) as u64).to_ne_bytes();
        // Between two waits of a thread: one command, so that the queue runs dry while others count its
        // backlog; and many, so that submitters help.
        for burst in [1, 1000] {
            let before = counter.load(Ordering::Relaxed);
            let queue = driver.queue_create(0, 0).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..SUBMITTERS {
                    scope.spawn(|| {
                        for number in 1..=COMMANDS {
                            // SAFETY: what the kernel expects.
                            unsafe { queue.launch(&kernel, &args, 1, c"count") }.unwrap();
                            if number % burst == 0 {
                                queue.synchronize().unwrap();
                            }
                        }
                    });
                }
            });
            queue.synchronize().unwrap();
            let ran = counter.load(Ordering::Relaxed) - before;
            assert_eq!(ran, SUBMITTERS * COMMANDS);
        }
    });
}
