//! Failures of submitted work on the host driver: what is skipped, who learns of it, and what clears it
//! (R20, R23, R24, R27).

mod common;

use common::{Gate, Log, block, launch, log, logger, open, within_limit};
use outrigger_device::{Code, Queue};

fn note_upstream(queue: &Queue, log: &'static Log) {
    queue
        .host_call(move |upstream| {
            log.push(upstream.map_or_else(|code| code.0 as u64, |()| 0));
            upstream
        })
        .unwrap();
}

#[test]
fn the_first_failure_counts_and_is_reported_once_with_its_place() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let queue = driver.queue_create(0, 0).unwrap();
        let (log, upstreams, kernel) = (log(), common::log(), logger(&driver, 0));
        let (before, after) = (
            driver.event_create(0, false).unwrap(),
            driver.event_create(0, false).unwrap(),
        );
        launch(&queue, &kernel, log, 1, Code::OK);
        before.record(&queue).unwrap();
        note_upstream(&queue, upstreams);
        launch(&queue, &kernel, log, 2, Code::OUT_OF_RANGE);
        launch(&queue, &kernel, log, 3, Code::EXECUTION);
        note_upstream(&queue, upstreams);
        after.record(&queue).unwrap();

        let error = queue.synchronize().unwrap_err();
        assert_eq!(error.code(), Code::OUT_OF_RANGE);
        assert_eq!(
            (error.label(), error.submission()),
            (Some("logger"), Some(2)),
            "the second one that the driver was given"
        );
        assert_eq!(log.values(), [1, 2]);
        assert_eq!(upstreams.values(), [0, Code::OUT_OF_RANGE.0 as u64]);

        // The queue takes work again; the events keep what they were.
        queue.synchronize().unwrap();
        launch(&queue, &kernel, log, 4, Code::OK);
        queue.synchronize().unwrap();
        assert_eq!(log.values(), [1, 2, 4]);
        assert!(before.query().unwrap());
        for _ in 0..2 {
            assert_eq!(after.query().unwrap_err().code(), Code::OUT_OF_RANGE);
            assert_eq!(after.synchronize().unwrap_err().submission(), Some(2));
        }
        // An event that is recorded after the report is good, also without new work in between.
        let fresh = driver.event_create(0, false).unwrap();
        launch(&queue, &kernel, log, 5, Code::BUSY);
        assert_eq!(queue.synchronize().unwrap_err().code(), Code::BUSY);
        fresh.record(&queue).unwrap();
        fresh.synchronize().unwrap();
        after.record(&queue).unwrap();
        after.synchronize().unwrap();
    });
}

#[test]
fn a_query_reports_a_failure_and_does_not_clear_it() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let queue = driver.queue_create(0, 0).unwrap();
        launch(&queue, &logger(&driver, 0), log(), 1, Code::EXECUTION);
        common::until(|| !matches!(queue.query(), Ok(false)));
        assert_eq!(queue.query().unwrap_err().label(), Some("logger"));
        assert_eq!(queue.query().unwrap_err().code(), Code::EXECUTION);
        assert!(queue.synchronize().is_err());
        assert!(queue.query().unwrap());
    });
}

#[test]
fn a_failed_event_fails_the_queue_that_waits_for_it() {
    within_limit(|| {
        let driver = open("host?devices=2&memory=1M");
        let (a, b) = (
            driver.queue_create(0, 0).unwrap(),
            driver.queue_create(1, 0).unwrap(),
        );
        let (log, gate) = (log(), Gate::new());
        let kernels = [logger(&driver, 0), logger(&driver, 1)];
        let event = driver.event_create(0, false).unwrap();
        block(&a, gate);
        launch(&a, &kernels[0], log, 1, Code::OUT_OF_RANGE);
        event.record(&a).unwrap();
        b.wait_event(&event).unwrap();
        launch(&b, &kernels[1], log, 2, Code::OK);
        gate.open();
        let error = b.synchronize().unwrap_err();
        assert_eq!(error.code(), Code::OUT_OF_RANGE);
        assert_eq!(
            (error.label(), error.submission()),
            (Some("logger"), Some(1))
        );
        assert!(
            error.message().contains("which this work waited for"),
            "{error}"
        );
        assert_eq!(log.values(), [1]);
        // A wait for a point that has failed already fails its queue too.
        b.wait_event(&event).unwrap();
        assert_eq!(b.synchronize().unwrap_err().code(), Code::OUT_OF_RANGE);
        b.synchronize().unwrap();
        assert!(a.synchronize().is_err());
    });
}

#[test]
fn host_calls_fail_their_queue_by_code_and_by_panic() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let queue = driver.queue_create(0, 0).unwrap();
        for (outcome, seen) in [
            (Code::CANCELLED, Code::CANCELLED),
            (Code::OK, Code::EXECUTION),
            (Code(99), Code(99)),
        ] {
            queue.host_call(move |_| Err(outcome)).unwrap();
            let error = queue.synchronize().unwrap_err();
            assert_eq!((error.code(), error.label()), (seen, None));
        }
        queue.host_call(|_| panic!("on purpose")).unwrap();
        assert_eq!(queue.synchronize().unwrap_err().code(), Code::EXECUTION);
        queue.synchronize().unwrap();
    });
}

#[test]
fn every_thread_that_waited_for_failed_work_learns_of_it() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let queue = driver.queue_create(0, 0).unwrap();
        let (kernel, log) = (logger(&driver, 0), log());
        for _ in 0..50 {
            let gate = Gate::new();
            let ready = std::sync::Barrier::new(3);
            block(&queue, gate);
            launch(&queue, &kernel, log, 0, Code::EXECUTION);
            let failures = std::thread::scope(|scope| {
                let wait = || {
                    ready.wait();
                    queue.synchronize().is_err()
                };
                let threads = [scope.spawn(wait), scope.spawn(wait)];
                ready.wait();
                // Both are inside of their call by then, nearly always; that is the case to be shown.
                std::thread::sleep(std::time::Duration::from_millis(3));
                gate.open();
                threads.map(|thread| thread.join().unwrap())
            });
            assert!(failures[0] || failures[1]);
            if failures != [true, true] {
                continue;
            }
            queue.synchronize().unwrap();
            return;
        }
        panic!("only one of two waiting threads ever learned of a failure");
    });
}
