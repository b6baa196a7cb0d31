//! What the calls of the `host` driver cost, through its table and the safe layer, on one thread.
//! `cargo bench -p outrigger-device`.

use std::ffi::c_void;

use divan::{Bencher, black_box};
use outrigger_device::{CopyKind, Driver, Event, Kernel, Queue};

fn main() {
    divan::main();
}

/// A kernel that does nothing, so that only the way to it is measured.
unsafe extern "C" fn nothing(args: *const c_void, size: u32, bias: i64) -> i32 {
    black_box((args, size, bias));
    0
}

struct Bench {
    driver: Driver,
    queue: Queue,
    kernel: Kernel,
    event: Event,
    memory: u64,
}

fn bench() -> Bench {
    let spec = "host?devices=1&memory=64M"
        .parse()
        .expect("a specification");
    let driver = Driver::open(&spec).expect("the built-in driver opens");
    let queue = driver.queue_create(0, 0).expect("a queue");
    let kernel = driver
        .host_kernel(0, nothing)
        .expect("a kernel")
        .expect("taken by the driver");
    let event = driver.event_create(0, false).expect("an event");
    let memory = driver.memory_alloc(0, 1 << 20).expect("memory");
    Bench {
        driver,
        queue,
        kernel,
        event,
        memory,
    }
}

impl Bench {
    fn launch(&self, args: &[u8]) {
        // SAFETY: the kernel reads nothing.
        unsafe { self.queue.launch(&self.kernel, args, 100, c"nothing") }.expect("a launch");
    }
}

/// Launches only: 200 of them, without the time of running them.
#[divan::bench(args = [16, 64, 200, 512])]
fn launch_200(bencher: Bencher<'_, '_>, size: usize) {
    let bench = bench();
    let args = vec![7u8; size];
    bencher
        .counter(divan::counter::ItemsCount::new(200usize))
        .with_inputs(|| bench.queue.synchronize())
        .bench_local_values(|_| {
            for _ in 0..200 {
                bench.launch(black_box(&args));
            }
        });
}

/// Launches and their execution by the thread that waits: 10,000 of them.
#[divan::bench]
fn launch_10000_and_synchronize(bencher: Bencher<'_, '_>) {
    let bench = bench();
    let args = [7u8; 64];
    bencher
        .counter(divan::counter::ItemsCount::new(10_000usize))
        .bench_local(|| {
            for _ in 0..10_000 {
                bench.launch(black_box(&args));
            }
            bench.queue.synchronize().expect("no failure");
        });
}

#[divan::bench]
fn launch_and_synchronize(bencher: Bencher<'_, '_>) {
    let bench = bench();
    let args = [7u8; 64];
    bencher.bench_local(|| {
        bench.launch(black_box(&args));
        bench.queue.synchronize()
    });
}

#[divan::bench]
fn event_record(bencher: Bencher<'_, '_>) {
    let bench = bench();
    bencher.bench_local(|| bench.event.record(black_box(&bench.queue)));
}

#[divan::bench]
fn event_query(bencher: Bencher<'_, '_>) {
    let bench = bench();
    bench.event.record(&bench.queue).expect("recorded");
    bencher.bench_local(|| black_box(&bench.event).query());
}

#[divan::bench]
fn event_record_and_synchronize(bencher: Bencher<'_, '_>) {
    let bench = bench();
    bencher.bench_local(|| {
        bench
            .event
            .record(black_box(&bench.queue))
            .and_then(|()| bench.event.synchronize())
    });
}

#[divan::bench]
fn queue_query_idle(bencher: Bencher<'_, '_>) {
    let bench = bench();
    bencher.bench_local(|| black_box(&bench.queue).query());
}

#[divan::bench]
fn queue_synchronize_idle(bencher: Bencher<'_, '_>) {
    let bench = bench();
    bencher.bench_local(|| black_box(&bench.queue).synchronize());
}

#[divan::bench]
fn wait_for_a_passed_event(bencher: Bencher<'_, '_>) {
    let bench = bench();
    let other = bench.driver.queue_create(0, 0).expect("a queue");
    bench.event.record(&other).expect("recorded");
    bencher.bench_local(|| black_box(&bench.queue).wait_event(&bench.event));
}

#[divan::bench]
fn copy_1k_and_synchronize(bencher: Bencher<'_, '_>) {
    let bench = bench();
    let source = [1u8; 1024];
    bencher.bench_local(|| {
        // SAFETY: both ranges outlive the copy, which is waited for.
        unsafe {
            bench.queue.copy(
                bench.memory,
                source.as_ptr() as u64,
                1024,
                CopyKind::HostToDevice,
            )
        }
        .and_then(|()| bench.queue.synchronize())
    });
}

#[divan::bench]
fn host_call_and_synchronize(bencher: Bencher<'_, '_>) {
    let bench = bench();
    bencher.bench_local(|| {
        bench
            .queue
            .host_call(|upstream| upstream)
            .and_then(|()| bench.queue.synchronize())
    });
}
