//! Stream order on the host driver: within a queue, across queues and devices, through events (R16,
//! R17, R21, R22, R24), and the operands of copies and fills (R25, R28).

mod common;

use std::sync::Barrier;

use common::{Gate, block, launch, log, logger, open, within_limit};
use outrigger_device::{Code, CopyKind};

#[test]
fn commands_of_all_kinds_take_effect_in_order() {
    within_limit(|| {
        for face in ["unified", "discrete"] {
            let driver = open(&format!("host?devices=1&memory=4M&face={face}"));
            let queue = driver.queue_create(0, 0).unwrap();
            let memory = driver.memory_alloc(0, 4096).unwrap();
            let (log, kernel) = (log(), logger(&driver, 0));
            let source: Vec<u8> = (0..4096).map(|i| i as u8).collect();
            let (mut first, mut second) = (vec![0u8; 4096], vec![0u8; 4096]);
            // SAFETY: all ranges are live until the queue has been synchronized.
            unsafe {
                queue
                    .copy(memory, source.as_ptr() as u64, 4096, CopyKind::HostToDevice)
                    .unwrap();
                queue.fill(memory + 6, 2 * 11, &[0xaa, 0xbb]).unwrap();
                queue
                    .copy(
                        first.as_mut_ptr() as u64,
                        memory,
                        4096,
                        CopyKind::DeviceToHost,
                    )
                    .unwrap();
                launch(&queue, &kernel, log, 1, Code::OK);
                queue
                    .copy(memory + 2048, memory, 1024, CopyKind::DeviceToDevice)
                    .unwrap();
                queue
                    .host_call(|upstream| {
                        log.push(2);
                        upstream
                    })
                    .unwrap();
                queue.fill(memory, 0, &[1]).unwrap();
                queue
                    .copy(
                        second.as_mut_ptr() as u64,
                        memory,
                        4096,
                        CopyKind::DeviceToHost,
                    )
                    .unwrap();
                launch(&queue, &kernel, log, 3, Code::OK);
                queue.synchronize().unwrap();
                driver.memory_free(memory).unwrap();
            }
            let mut model = source.clone();
            for pair in model[6..28].chunks_exact_mut(2) {
                pair.copy_from_slice(&[0xaa, 0xbb]);
            }
            assert_eq!(first, model, "{face}");
            model.copy_within(0..1024, 2048);
            assert_eq!(second, model, "{face}");
            assert_eq!(log.values(), [1, 2, 3], "{face}");
        }
    });
}

#[test]
fn work_behind_a_wait_starts_after_the_point_also_on_another_device() {
    within_limit(|| {
        let driver = open("host?devices=2&memory=1M");
        let (a, b) = (
            driver.queue_create(0, 0).unwrap(),
            driver.queue_create(1, 0).unwrap(),
        );
        let (on_a, on_b) = (logger(&driver, 0), logger(&driver, 1));
        let (log, gate) = (log(), Gate::new());
        let event = driver.event_create(0, false).unwrap();
        assert!(
            event.query().unwrap(),
            "R22: never recorded counts as finished"
        );

        block(&a, gate);
        launch(&a, &on_a, log, 1, Code::OK);
        event.record(&a).unwrap();
        b.wait_event(&event).unwrap();
        launch(&b, &on_b, log, 2, Code::OK);
        // R21: recording again moves the event, and not the wait that was made before.
        let second = Gate::new();
        block(&a, second);
        event.record(&a).unwrap();
        assert!(!b.query().unwrap() && !event.query().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(log.values().is_empty());
        gate.open();
        b.synchronize().unwrap();
        assert_eq!(log.values(), [1, 2]);
        assert!(!event.query().unwrap());
        second.open();
        event.synchronize().unwrap();
        assert!(event.query().unwrap() && a.query().unwrap());
    });
}

#[test]
fn queues_that_wait_for_each_other_in_turn_do_not_deadlock() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let queues = [
            driver.queue_create(0, 0).unwrap(),
            driver.queue_create(0, 0).unwrap(),
        ];
        let (log, kernel) = (log(), logger(&driver, 0));
        let events: Vec<_> = (0..600)
            .map(|_| driver.event_create(0, false).unwrap())
            .collect();
        for (i, event) in events.iter().enumerate() {
            launch(&queues[i % 2], &kernel, log, i as u64, Code::OK);
            event.record(&queues[i % 2]).unwrap();
            queues[(i + 1) % 2].wait_event(event).unwrap();
        }
        std::thread::scope(|scope| {
            for queue in &queues {
                scope.spawn(|| queue.synchronize().unwrap());
            }
        });
        assert_eq!(log.values(), (0..600).collect::<Vec<u64>>());
    });
}

#[test]
fn a_chain_over_many_queues_needs_no_stack() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let (log, kernel) = (log(), logger(&driver, 0));
        let gate = Gate::new();
        let queues: Vec<_> = (0..300)
            .map(|_| driver.queue_create(0, 0).unwrap())
            .collect();
        let event = driver.event_create(0, false).unwrap();
        block(&queues[0], gate);
        for (i, queue) in queues.iter().enumerate() {
            queue.wait_event(&event).unwrap();
            launch(queue, &kernel, log, i as u64, Code::OK);
            event.record(queue).unwrap();
        }
        assert!(!event.query().unwrap());
        gate.open();
        event.synchronize().unwrap();
        assert_eq!(log.values(), (0..300).collect::<Vec<u64>>());
    });
}

#[test]
fn host_calls_of_two_queues_run_at_the_same_time() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let meeting: &'static Barrier = Box::leak(Box::new(Barrier::new(2)));
        let queues = [
            driver.queue_create(0, 0).unwrap(),
            driver.queue_create(0, 0).unwrap(),
        ];
        for queue in &queues {
            queue
                .host_call(move |upstream| {
                    meeting.wait();
                    upstream
                })
                .unwrap();
            queue.flush().unwrap();
        }
        for queue in &queues {
            queue.synchronize().unwrap();
        }
    });
}

#[test]
fn peer_copies_reach_both_devices() {
    within_limit(|| {
        for face in ["unified", "discrete"] {
            let driver = open(&format!("host?devices=2&memory=1M&face={face}"));
            let queue = driver.queue_create(1, 0).unwrap();
            let (on_0, on_1) = (
                driver.memory_alloc(0, 64).unwrap(),
                driver.memory_alloc(1, 64).unwrap(),
            );
            let peer = driver.peer().unwrap();
            assert!(peer.can_access(0, 1).unwrap());
            let mut back = [0u8; 64];
            // SAFETY: live ranges, waited for before they go.
            unsafe {
                queue.fill(on_1, 64, &[5]).unwrap();
                // A plain copy stays on its device.
                let error = queue
                    .copy(on_0, on_1, 64, CopyKind::DeviceToDevice)
                    .unwrap_err();
                assert!(error.message().contains("peer copy"), "{error}");
                peer.copy(&queue, (0, on_0), (1, on_1), 64).unwrap();
                queue.synchronize().unwrap();
                let other = driver.queue_create(0, 0).unwrap();
                other
                    .copy(back.as_mut_ptr() as u64, on_0, 64, CopyKind::DeviceToHost)
                    .unwrap();
                other.synchronize().unwrap();
                driver.memory_free(on_0).unwrap();
                driver.memory_free(on_1).unwrap();
            }
            assert_eq!(back, [5; 64]);
        }
    });
}

#[test]
fn what_can_be_seen_to_be_wrong_is_refused_and_nothing_is_submitted() {
    within_limit(|| {
        let driver = open("host?devices=1&memory=1M");
        let queue = driver.queue_create(0, 0).unwrap();
        let memory = driver.memory_alloc(0, 4096).unwrap();
        let host = [0u8; 16];
        let pointer = host.as_ptr() as u64;
        // SAFETY: none of these is executed.
        let errors = unsafe {
            [
                queue.copy(pointer, pointer, 16, CopyKind::HostToDevice),
                queue.copy(memory, 0, 16, CopyKind::HostToDevice),
                queue.copy(memory, pointer, u64::MAX, CopyKind::HostToDevice),
                queue.fill(memory, 16, &[1, 2, 3]),
                queue.fill(memory, 15, &[1, 2]),
                queue.fill(pointer, 16, &[1]),
                queue.fill(memory, 16, &[]),
            ]
        };
        for error in errors {
            assert_eq!(error.unwrap_err().code(), Code::INVALID_ARGUMENT);
        }
        assert!(queue.query().unwrap());
        // SAFETY: nothing was submitted.
        unsafe { driver.memory_free(memory).unwrap() };
    });
}
