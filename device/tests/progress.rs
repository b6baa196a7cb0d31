//! That work gets on without anybody waiting, that nobody waits for himself, and that what is destroyed
//! or full does not stand in the way (R11, R17, R18, R27), on the host driver.

mod common;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{Gate, block, launch, log, logger, open, until, within_limit};
use outrigger_device::{Code, Queue};

#[test]
fn work_runs_although_nobody_waits_flushes_or_asks() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let queue = driver.queue_create(0, 0).unwrap();
        let (log, kernel) = (log(), logger(&driver, 0));
        for round in 0..3 {
            launch(&queue, &kernel, log, round, Code::OK);
            until(|| log.values().len() as u64 == round + 1);
            // Long enough for the ticker to sleep in between.
            std::thread::sleep(std::time::Duration::from_millis(150));
        }
    });
}

#[test]
fn a_flush_starts_the_work() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let queue = driver.queue_create(0, 0).unwrap();
        let (log, kernel) = (log(), logger(&driver, 0));
        launch(&queue, &kernel, log, 1, Code::OK);
        queue.flush().unwrap();
        until(|| log.values() == [1]);
    });
}

#[test]
fn submissions_far_beyond_the_ring_do_not_wait_for_an_unmet_dependency() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let (a, b) = (
            driver.queue_create(0, 0).unwrap(),
            driver.queue_create(0, 0).unwrap(),
        );
        let (log, kernel, gate) = (log(), logger(&driver, 0), Gate::new());
        let event = driver.event_create(0, false).unwrap();
        block(&b, gate);
        event.record(&b).unwrap();
        a.wait_event(&event).unwrap();
        // The gate is opened by this thread, after all of these.
        for i in 0..5000 {
            launch(&a, &kernel, log, i, Code::OK);
        }
        assert!(log.values().is_empty() && !a.query().unwrap());
        gate.open();
        a.synchronize().unwrap();
        assert_eq!(log.values(), (0..5000).collect::<Vec<u64>>());
    });
}

#[test]
fn a_submitter_never_runs_a_host_call_that_may_wait_for_it() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let queue = driver.queue_create(0, 0).unwrap();
        let (log, kernel, gate) = (log(), logger(&driver, 0), Gate::new());
        // A backlog first, so that the submitter helps, and then meets the host call.
        for i in 0..1000 {
            launch(&queue, &kernel, log, i, Code::OK);
        }
        block(&queue, gate);
        for i in 1000..4000 {
            launch(&queue, &kernel, log, i, Code::OK);
        }
        gate.open();
        queue.synchronize().unwrap();
        assert_eq!(log.values(), (0..4000).collect::<Vec<u64>>());
    });
}

#[test]
fn arguments_of_any_size_arrive() {
    static SUM: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn sum(args: *const std::ffi::c_void, size: u32, _bias: i64) -> i32 {
        // SAFETY: the block that was launched.
        let bytes = unsafe { std::slice::from_raw_parts(args.cast::<u8>(), size as usize) };
        SUM.fetch_add(bytes.iter().map(|b| u64::from(*b)).sum(), Ordering::Relaxed);
        0
    }
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let queue = driver.queue_create(0, 0).unwrap();
        let kernel = driver.host_kernel(0, sum).unwrap().unwrap();
        let mut expected = 0;
        for size in [0, 1, 63, 64, 65, 4096, 65_000, 65_536, 1 << 20] {
            let args: Vec<u8> = (0..size).map(|i| (i * 7) as u8).collect();
            expected += args.iter().map(|b| u64::from(*b)).sum::<u64>();
            // SAFETY: the kernel takes any block.
            unsafe { queue.launch(&kernel, &args, 0, c"sum") }.unwrap();
        }
        queue.synchronize().unwrap();
        assert_eq!(SUM.load(Ordering::Relaxed), expected);
    });
}

#[test]
fn a_destroyed_queue_finishes_its_work_and_its_events() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let (log, kernel) = (log(), logger(&driver, 0));
        for round in 0..20 {
            let (queue, gate) = (driver.queue_create(0, 0).unwrap(), Gate::new());
            let event = driver.event_create(0, false).unwrap();
            block(&queue, gate);
            launch(&queue, &kernel, log, round, Code::OK);
            let dropped = driver.event_create(0, false).unwrap();
            dropped.record(&queue).unwrap();
            let other = driver.queue_create(0, 0).unwrap();
            other.wait_event(&dropped).unwrap();
            drop(dropped);
            event.record(&queue).unwrap();
            drop(queue);
            assert!(!event.query().unwrap());
            gate.open();
            other.synchronize().unwrap();
            event.synchronize().unwrap();
            assert_eq!(log.values().len() as u64, round + 1);
        }
    });
}

#[test]
fn destroying_a_queue_returns_without_waiting_and_its_host_calls_are_called() {
    struct Told(Arc<AtomicU32>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    within_limit(|| {
        let told = Arc::new(AtomicU32::new(0));
        let (driver, gate) = (open("host?devices=1&memory=1M"), Gate::new());
        for _ in 0..8 {
            let queue = driver.queue_create(0, 0).unwrap();
            block(&queue, gate);
            let one = Told(Arc::clone(&told));
            queue
                .host_call(move |upstream| {
                    drop(one);
                    upstream
                })
                .unwrap();
        }
        assert_eq!(told.load(Ordering::Relaxed), 0);
        gate.open();
        // Closing the driver waits for what still runs (R12).
        drop(driver);
        assert_eq!(told.load(Ordering::Relaxed), 8);
    });
}

#[test]
fn a_wait_inside_of_a_host_call_is_refused_unless_it_has_nothing_to_wait_for() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let queue: Arc<Queue> = Arc::new(driver.queue_create(0, 0).unwrap());
        let idle = driver.queue_create(0, 0).unwrap();
        let event = driver.event_create(0, false).unwrap();
        let seen: Arc<Mutex<Vec<Code>>> = Arc::default();
        let (inner, codes) = (Arc::clone(&queue), Arc::clone(&seen));
        event.record(&queue).unwrap();
        queue
            .host_call(move |upstream| {
                let code = |result: outrigger_device::Result<()>| match result {
                    Ok(()) => Code::OK,
                    Err(error) => error.code(),
                };
                let all = [inner.synchronize(), event.synchronize(), idle.synchronize()];
                codes.lock().unwrap().extend(all.map(code));
                upstream
            })
            .unwrap();
        queue.synchronize().unwrap();
        assert_eq!(
            *seen.lock().unwrap(),
            [Code::WOULD_DEADLOCK, Code::OK, Code::OK]
        );
    });
}

#[test]
fn timestamps_follow_the_order_of_the_work() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let (queue, gate) = (driver.queue_create(0, 0).unwrap(), Gate::new());
        let events: Vec<_> = (0..3)
            .map(|_| driver.event_create(0, true).unwrap())
            .collect();
        let plain = driver.event_create(0, false).unwrap();
        assert_eq!(plain.time_ns().unwrap_err().code(), Code::INVALID_ARGUMENT);
        assert_eq!(
            events[0].time_ns().unwrap_err().code(),
            Code::INVALID_ARGUMENT
        );
        let start = driver.device_time_ns(0).unwrap().unwrap();
        events[0].record(&queue).unwrap();
        block(&queue, gate);
        events[1].record(&queue).unwrap();
        events[2].record(&queue).unwrap();
        assert_eq!(events[1].time_ns().unwrap(), None);
        until(|| events[0].query().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(2));
        gate.open();
        queue.synchronize().unwrap();
        let times: Vec<u64> = events
            .iter()
            .map(|e| e.time_ns().unwrap().unwrap())
            .collect();
        let end = driver.device_time_ns(0).unwrap().unwrap();
        assert!(start <= times[0] && times[0] < times[1] && times[1] <= times[2]);
        assert!(times[1] - times[0] >= 2_000_000 && times[2] <= end);
    });
}

#[test]
fn memory_has_a_limit_that_is_named_and_leaves_the_driver_usable() {
    let driver = open("host?devices=2&memory=1M");
    let first = driver.memory_alloc(0, 768 << 10).unwrap();
    let error = driver.memory_alloc(0, 512 << 10).unwrap_err();
    assert_eq!(error.code(), Code::OUT_OF_MEMORY);
    assert!(
        error.message().contains("524288") && error.message().contains("1048576"),
        "{error}"
    );
    assert_eq!(driver.memory_info(0).unwrap(), Some((256 << 10, 1 << 20)));
    assert_eq!(driver.memory_info(1).unwrap(), Some((1 << 20, 1 << 20)));
    let second = driver.memory_alloc(0, 256 << 10).unwrap();
    assert_eq!(
        driver.memory_alloc(7, 1).unwrap_err().code(),
        Code::INVALID_DEVICE
    );
    let pinned = driver.pinned().unwrap();
    let pointer = pinned.alloc(5000).unwrap();
    assert_eq!(pointer as usize % 4096, 0);
    // SAFETY: 5000 bytes were allocated; nothing else uses any of this memory.
    unsafe {
        pointer.cast::<u8>().write_bytes(1, 5000);
        pinned.free(pointer).unwrap();
        assert_eq!(
            pinned.free(pointer).unwrap_err().code(),
            Code::INVALID_ARGUMENT
        );
        driver.memory_free(first).unwrap();
        driver.memory_free(second).unwrap();
        assert_eq!(
            driver.memory_free(second).unwrap_err().code(),
            Code::INVALID_ARGUMENT
        );
    }
}
