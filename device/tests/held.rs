//! Queues that hold: what is submitted behind a host call that may fail, and where it meets what cannot wait.

mod common;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use common::{Gate, block, launch, log, logger, open, until, within_limit};
use outrigger_device::{Arguments, Code, CopyKind, Driver, Grid, Kernel, Queue, Rows};

const HOST: &str = "host?devices=2&memory=1M&graphs=native";

/// A kernel that waits for a gate: work of the device that has not finished, on a queue that does not hold.
fn slow(driver: &Driver) -> Kernel {
    unsafe extern "C" fn pass(args: *const c_void, _: u32, _: i64) -> i32 {
        // SAFETY: the address of a gate, which lives as long as the process.
        unsafe { &*args.cast::<*const Gate>().read_unaligned() }.pass();
        0
    }
    driver.host_kernel(0, pass).unwrap().unwrap()
}

fn slow_down(queue: &Queue, kernel: &Kernel, gate: &'static Gate) {
    let args = (std::ptr::from_ref(gate) as usize).to_ne_bytes();
    // SAFETY: what the kernel expects.
    unsafe { queue.launch(kernel, &args, 100, c"slow") }.unwrap();
}

fn fail(queue: &Queue, code: Code) {
    queue.host_call(move |_| Err(code)).unwrap();
}

#[test]
fn what_is_held_has_copies_of_all_that_it_was_given() {
    within_limit(|| {
        let driver = open(HOST);
        let (queue, gate, log) = (driver.queue_create(0, 0).unwrap(), Gate::new(), log());
        let kernel = logger(&driver, 0);
        let memory = driver.memory_alloc(0, 64).unwrap();
        let mut back = [0_u8; 64];
        block(&queue, gate);
        {
            let mut pattern = vec![7_u8, 8];
            // SAFETY: live ranges, which are waited for before they go.
            unsafe { queue.fill(memory, 32, &pattern) }.unwrap();
            pattern.fill(0);
            launch(&queue, &kernel, log, 5, Code::OK);
            let rows = Rows {
                dst: memory + 32,
                src: memory,
                size: 2,
                count: 4,
                dst_pitch: 8,
                src_pitch: 4,
            };
            // SAFETY: as above.
            unsafe {
                queue.fill(memory + 32, 32, &[0]).unwrap();
                queue.copy_rows(&rows, CopyKind::DeviceToDevice).unwrap();
                let to = back.as_mut_ptr() as u64;
                queue.copy(to, memory, 64, CopyKind::DeviceToHost).unwrap();
            }
        }
        assert!(!queue.query().unwrap());
        assert!(log.values().is_empty());
        gate.open();
        queue.synchronize().unwrap();
        let row = [7, 8, 0, 0, 0, 0, 0, 0];
        assert_eq!(back[..32], [7, 8].repeat(16));
        assert_eq!(back[32..], row.repeat(4));
        assert_eq!(log.values(), [5]);
        // SAFETY: nothing uses the memory any more.
        unsafe { driver.memory_free(memory) }.unwrap();
    });
}

#[test]
fn what_the_driver_refuses_late_is_a_failure_of_the_queue() {
    within_limit(|| {
        let driver = open(HOST);
        let (queue, gate, log) = (driver.queue_create(0, 0).unwrap(), Gate::new(), log());
        let kernel = logger(&driver, 0);
        block(&queue, gate);
        let args = Arguments {
            block: &[],
            parts: &[],
        };
        let none = Grid {
            groups: [0; 3],
            ..Grid::ONE
        };
        // SAFETY: it is refused.
        unsafe { queue.launch_grid(&kernel, &none, args, 1, c"none") }.unwrap();
        launch(&queue, &kernel, log, 1, Code::OK);
        gate.open();
        let error = queue.synchronize().unwrap_err();
        assert!(
            error.is_outcome() && error.code() == Code::INVALID_ARGUMENT,
            "{error:?}"
        );
        assert!(log.values().is_empty());
        queue.synchronize().unwrap();
    });
}

#[test]
fn an_event_that_is_recorded_again_leaves_waits_at_the_old_point() {
    within_limit(|| {
        let driver = open(HOST);
        let queues = [(); 4].map(|()| driver.queue_create(0, 0).unwrap());
        let [a, b, c, free] = &queues;
        let (kernel, slow, log) = (logger(&driver, 0), slow(&driver), log());
        let gates = [Gate::new(), Gate::new(), Gate::new()];
        let event = driver.event_create(0, false).unwrap();
        // Recorded on a queue that holds, then on one that does not.
        block(a, gates[0]);
        launch(a, &kernel, log, 1, Code::OK);
        event.record(a).unwrap();
        b.wait_event(&event).unwrap();
        launch(b, &kernel, log, 2, Code::OK);
        event.record(free).unwrap();
        event.synchronize().unwrap();
        assert!(event.query().unwrap() && !b.query().unwrap());
        // On one that does not hold, and waited for by one that does.
        slow_down(free, &slow, gates[1]);
        event.record(free).unwrap();
        block(c, gates[2]);
        c.wait_event(&event).unwrap();
        launch(c, &kernel, log, 3, Code::OK);
        event.record(b).unwrap();
        gates[2].open();
        assert!(!c.query().unwrap() && !event.query().unwrap());
        gates[0].open();
        event.synchronize().unwrap();
        assert_eq!(log.values(), [1, 2]);
        assert!(!c.query().unwrap());
        gates[1].open();
        c.synchronize().unwrap();
        assert_eq!(log.values(), [1, 2, 3]);
        // The event is as any other again.
        event.record(free).unwrap();
        event.synchronize().unwrap();
    });
}

#[test]
fn a_failure_reaches_queues_of_the_same_driver_and_of_another_one() {
    within_limit(|| {
        let drivers = [open(HOST), open(HOST)];
        let first = drivers[0].queue_create(0, 0).unwrap();
        let same = drivers[0].queue_create(1, 0).unwrap();
        let other = drivers[1].queue_create(0, 0).unwrap();
        let kernels = [logger(&drivers[0], 1), logger(&drivers[1], 0)];
        let (log, gate) = (log(), Gate::new());
        let event = drivers[0].event_create(0, false).unwrap();
        block(&first, gate);
        fail(&first, Code::OUT_OF_RANGE);
        event.record(&first).unwrap();
        for (queue, kernel) in [&same, &other].into_iter().zip(&kernels) {
            queue.wait_event(&event).unwrap();
            launch(queue, kernel, log, 1, Code::OK);
            assert!(!queue.query().unwrap());
        }
        gate.open();
        for queue in [&same, &other, &first] {
            let error = queue.synchronize().unwrap_err();
            assert!(error.is_outcome() && error.code() == Code::OUT_OF_RANGE);
            queue.synchronize().unwrap();
        }
        for _ in 0..2 {
            assert_eq!(event.query().unwrap_err().code(), Code::OUT_OF_RANGE);
        }
        // Who waits now fails too, though the queue has reported it.
        same.wait_event(&event).unwrap();
        assert_eq!(same.synchronize().unwrap_err().code(), Code::OUT_OF_RANGE);
        assert!(log.values().is_empty());
        event.record(&first).unwrap();
        same.wait_event(&event).unwrap();
        launch(&same, &kernels[0], log, 2, Code::OK);
        same.synchronize().unwrap();
        assert_eq!(log.values(), [2]);
    });
}

#[test]
fn a_queue_that_another_library_uses_holds_nothing_when_a_call_returns() {
    within_limit(|| {
        let driver = open(HOST);
        let (queue, gate) = (driver.queue_create(0, 0).unwrap(), Gate::new());
        let called = Arc::new(AtomicU32::new(0));
        let count = |queue: &Queue, upstream| {
            let called = Arc::clone(&called);
            let call = move |before: Result<(), Code>| {
                assert_eq!(before, upstream);
                called.fetch_add(1, Ordering::Relaxed);
                before
            };
            queue.host_call(call).unwrap();
        };
        block(&queue, gate);
        count(&queue, Ok(()));
        std::thread::scope(|scope| {
            let native = scope.spawn(|| queue.native().unwrap());
            gate.open();
            assert_ne!(native.join().unwrap(), 0);
        });
        assert_eq!(called.load(Ordering::Relaxed), 1);
        count(&queue, Ok(()));
        assert_eq!(called.load(Ordering::Relaxed), 2);
        // SAFETY: the native queue lives as long as `queue`.
        let adopted = unsafe { driver.queue_adopt(0, queue.native().unwrap()) }.unwrap();
        count(&adopted, Ok(()));
        assert_eq!(called.load(Ordering::Relaxed), 3);
        fail(&queue, Code::EXECUTION);
        count(&queue, Err(Code::EXECUTION));
        assert_eq!(called.load(Ordering::Relaxed), 4);
        assert_eq!(queue.native().unwrap_err().code(), Code::CANCELLED);
        assert_eq!(queue.synchronize().unwrap_err().code(), Code::EXECUTION);
        queue.native().unwrap();
        drop(adopted);
    });
}

#[test]
fn a_recording_begins_behind_what_is_held_and_takes_no_host_call_that_may_fail() {
    within_limit(|| {
        let driver = open(HOST);
        let graphs = driver.native_graphs().unwrap();
        let (queue, gate, log) = (driver.queue_create(0, 0).unwrap(), Gate::new(), log());
        let kernel = logger(&driver, 0);
        block(&queue, gate);
        launch(&queue, &kernel, log, 1, Code::OK);
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                graphs.record_begin(&queue).unwrap();
                begun.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(std::time::Duration::from_millis(2));
            assert!(!begun.load(Ordering::SeqCst));
            gate.open();
        });
        let refused = queue.host_call(|upstream| upstream).unwrap_err();
        assert_eq!(refused.code(), Code::UNSUPPORTED);
        launch(&queue, &kernel, log, 2, Code::OK);
        let graph = graphs.record_end(&queue).unwrap();
        // SAFETY: the log lives as long as the process.
        unsafe { queue.launch_graph(&graph) }.unwrap();
        queue.host_call(|upstream| upstream).unwrap();
        queue.synchronize().unwrap();
        assert_eq!(log.values(), [1, 2]);
        fail(&queue, Code::EXECUTION);
        let refused = graphs.record_begin(&queue).unwrap_err();
        assert_eq!(refused.code(), Code::CANCELLED);
        assert!(queue.synchronize().is_err());
        graphs.record_begin(&queue).unwrap();
        graphs.record_end(&queue).unwrap();
    });
}

#[test]
fn a_launch_of_a_graph_that_is_held_keeps_what_it_had() {
    within_limit(|| {
        let driver = open(HOST);
        let graphs = driver.native_graphs().unwrap();
        let (queue, gate, log) = (driver.queue_create(0, 0).unwrap(), Gate::new(), log());
        let (kernel, recording) = (logger(&driver, 0), driver.queue_create(0, 0).unwrap());
        let graph = |value| {
            graphs.record_begin(&recording).unwrap();
            launch(&recording, &kernel, log, value, Code::OK);
            graphs.record_end(&recording).unwrap()
        };
        let (first, second) = (graph(1), graph(2));
        block(&queue, gate);
        // SAFETY: the log lives as long as the process.
        unsafe { queue.launch_graph(&first) }.unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| first.update(&second).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(2));
            gate.open();
        });
        // SAFETY: as above.
        unsafe { queue.launch_graph(&first) }.unwrap();
        queue.synchronize().unwrap();
        assert_eq!(log.values(), [1, 2]);
        // One that is destroyed while its launch is held still runs (R36).
        let gate = Gate::new();
        block(&queue, gate);
        // SAFETY: as above.
        unsafe { queue.launch_graph(&second) }.unwrap();
        drop((first, second));
        gate.open();
        queue.synchronize().unwrap();
        assert_eq!(log.values(), [1, 2, 2]);
    });
}

#[test]
fn a_device_is_closed_behind_the_work_of_queues_that_were_dropped() {
    within_limit(|| {
        let driver = open(HOST);
        let (queue, gate, log) = (driver.queue_create(0, 0).unwrap(), Gate::new(), log());
        let kernel = logger(&driver, 0);
        block(&queue, gate);
        launch(&queue, &kernel, log, 1, Code::OK);
        drop(queue);
        assert!(log.values().is_empty());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(2));
                gate.open();
            });
            // The kernel is of the device, so it is busy; but nothing of the queue is left.
            let _ = driver.close_device(0);
        });
        until(|| log.values() == [1]);
    });
}

#[test]
fn an_event_that_other_processes_see_is_recorded_behind_what_is_held() {
    within_limit(|| {
        let driver = open(HOST);
        let Some(ipc) = driver.ipc().filter(|ipc| ipc.shares_events()) else {
            return;
        };
        let (queue, gate, log) = (driver.queue_create(0, 0).unwrap(), Gate::new(), log());
        let kernel = logger(&driver, 0);
        let event = driver.event_create(0, false).unwrap();
        ipc.event_export(&event).unwrap();
        block(&queue, gate);
        launch(&queue, &kernel, log, 1, Code::OK);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(2));
                gate.open();
            });
            event.record(&queue).unwrap();
        });
        event.synchronize().unwrap();
        assert_eq!(log.values(), [1]);
        fail(&queue, Code::EXECUTION);
        assert_eq!(event.record(&queue).unwrap_err().code(), Code::CANCELLED);
        assert!(queue.synchronize().is_err());
        // One that stands at a point of a list is shown when the point has passed.
        let later = driver.event_create(0, false).unwrap();
        queue.host_call(|upstream| upstream).unwrap();
        later.record(&queue).unwrap();
        ipc.event_export(&later).unwrap();
        assert!(later.query().unwrap() && queue.query().unwrap());
    });
}

#[test]
fn calls_that_cannot_fail_are_called_whatever_happens() {
    unsafe extern "C" fn count(user: *mut c_void, upstream: i32) -> i32 {
        // SAFETY: a counter, which lives as long as the process.
        let seen = unsafe { &*user.cast::<AtomicU32>() };
        seen.fetch_add(1 + 100 * u32::from(upstream != 0), Ordering::Relaxed);
        Code::INTERNAL.0
    }
    within_limit(|| {
        let driver = open(HOST);
        let queue = driver.queue_create(0, 0).unwrap();
        let seen: &'static AtomicU32 = Box::leak(Box::default());
        let submit = || {
            let user = std::ptr::from_ref(seen).cast_mut().cast();
            let flags = outrigger_device::sys::OTR_HOST_CALL_CANNOT_FAIL;
            // SAFETY: as above.
            unsafe { queue.host_call_raw(count, user, flags) }.unwrap();
        };
        submit();
        queue.synchronize().unwrap();
        queue.host_call(|upstream| upstream).unwrap();
        submit();
        queue.synchronize().unwrap();
        assert_eq!(seen.load(Ordering::Relaxed), 2);
        fail(&queue, Code::EXECUTION);
        submit();
        assert_eq!(queue.synchronize().unwrap_err().code(), Code::EXECUTION);
        assert_eq!(seen.load(Ordering::Relaxed), 103);
    });
}
