//! R8, R11, R16 to R19: order within a queue, independence of queues, progress, and what queries say.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use outrigger_device::CopyKind;
use outrigger_tests::Gate;

use crate::support::{Log, Memory, Target, block, event, fill, note, queue, read, until, write};

crate::cases! {
    Nothing:
        r08_a_queue_takes_work_from_many_threads,
        r08_objects_are_made_and_destroyed_by_many_threads,
        r11_a_destroyed_queue_finishes_its_work,
        r11_a_destroyed_event_still_holds_those_who_wait,
        r16_work_of_one_queue_is_in_order,
        r17_a_blocked_queue_blocks_no_other,
        r17_host_calls_of_two_queues_run_at_the_same_time,
        r17_a_full_queue_takes_more_work,
        r17_many_queues_work_at_once,
        r18_work_starts_by_itself,
        r18_waiting_for_an_event_starts_its_work,
        r19_a_query_sees_all_that_was_submitted;
}

fn r08_a_queue_takes_work_from_many_threads(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let log = Log::default();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (queue, log) = (&queue, &log);
            scope.spawn(move || {
                for i in 0..200 {
                    note(queue, log, thread << 32 | i);
                    if i % 50 == 0 {
                        queue.query().unwrap();
                        queue.synchronize().unwrap();
                    }
                }
            });
        }
    });
    queue.synchronize().unwrap();
    let values = log.values();
    assert_eq!(values.len(), 8 * 200);
    for thread in 0..8 {
        let own: Vec<u64> = values
            .iter()
            .filter(|v| *v >> 32 == thread)
            .map(|v| v & 0xffff_ffff)
            .collect();
        assert_eq!(
            own,
            (0..200).collect::<Vec<_>>(),
            "the order of thread {thread}"
        );
    }
}

fn r08_objects_are_made_and_destroyed_by_many_threads(target: &Target) {
    let driver = target.open();
    let calls = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..40 {
                    let (a, b) = (queue(&driver), queue(&driver));
                    let (event, memory) = (event(&driver), Memory::new(&driver, 0, 256));
                    fill(&a, memory.address, 256, &[1]);
                    event.record(&a).unwrap();
                    b.wait_event(&event).unwrap();
                    let calls = calls.clone();
                    b.host_call(move |upstream| {
                        calls.fetch_add(1, Ordering::Relaxed);
                        upstream
                    })
                    .unwrap();
                    event.record(&b).unwrap();
                    event.synchronize().unwrap();
                }
            });
        }
    });
    assert_eq!(calls.load(Ordering::Relaxed), 6 * 40);
}

fn r11_a_destroyed_queue_finishes_its_work(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let (gate, log, event) = (Gate::new(), Log::default(), event(&driver));
    block(&queue, &gate);
    for i in 0..5 {
        note(&queue, &log, i);
    }
    event.record(&queue).unwrap();
    drop(queue);
    assert!(
        !event.query().unwrap(),
        "destroying a queue did not wait for its work, nor drop it"
    );
    gate.open();
    event.synchronize().unwrap();
    assert_eq!(log.values(), [0, 1, 2, 3, 4]);
}

fn r11_a_destroyed_event_still_holds_those_who_wait(target: &Target) {
    let driver = target.open();
    let (first, second) = (queue(&driver), queue(&driver));
    let (gate, log) = (Gate::new(), Log::default());
    block(&first, &gate);
    note(&first, &log, 1);
    let event = event(&driver);
    event.record(&first).unwrap();
    second.wait_event(&event).unwrap();
    drop(event);
    note(&second, &log, 2);
    assert!(!second.query().unwrap());
    gate.open();
    second.synchronize().unwrap();
    assert_eq!(log.values(), [1, 2]);
}

fn r16_work_of_one_queue_is_in_order(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 4096);
    let (a, b) = (memory.address, memory.address + 2048);
    let log = Log::default();
    for round in 0..50u8 {
        fill(&queue, a, 2048, &[round]);
        note(&queue, &log, u64::from(round));
        // SAFETY: both halves are live and apart.
        unsafe { queue.copy(b, a, 2048, CopyKind::DeviceToDevice) }.unwrap();
        fill(&queue, a, 2048, &[0xff]);
        write(&queue, b, &[round, 0xaa]);
        fill(&queue, b + 1, 1, &[round]);
        assert_eq!(read(&queue, b, 2048), [round; 2048]);
        assert_eq!(read(&queue, a, 2048), [0xff; 2048]);
    }
    assert_eq!(log.values(), (0..50).collect::<Vec<_>>());
}

fn r17_a_blocked_queue_blocks_no_other(target: &Target) {
    let driver = target.open();
    let (blocked, free) = (queue(&driver), queue(&driver));
    let gate = Gate::new();
    block(&blocked, &gate);
    let memory = Memory::new(&driver, 0, 64);
    fill(&free, memory.address, 64, &[7]);
    assert_eq!(read(&free, memory.address, 64), [7; 64]);
    assert!(free.query().unwrap() && !blocked.query().unwrap());
    gate.open();
    blocked.synchronize().unwrap();
}

fn r17_host_calls_of_two_queues_run_at_the_same_time(target: &Target) {
    let driver = target.open();
    let queues = [queue(&driver), queue(&driver)];
    let meeting = Arc::new(Barrier::new(2));
    for queue in &queues {
        let meeting = meeting.clone();
        queue
            .host_call(move |upstream| {
                meeting.wait();
                upstream
            })
            .unwrap();
    }
    for queue in &queues {
        queue.synchronize().unwrap();
    }
}

/// The gate opens only after all submissions, so that a driver that waits for room would hang.
fn r17_a_full_queue_takes_more_work(target: &Target) {
    let driver = target.open();
    let (first, second) = (queue(&driver), queue(&driver));
    let (gate, log, event) = (Gate::new(), Log::default(), event(&driver));
    block(&first, &gate);
    event.record(&first).unwrap();
    second.wait_event(&event).unwrap();
    for i in 0..5000 {
        note(&second, &log, i);
    }
    gate.open();
    second.synchronize().unwrap();
    assert_eq!(log.values(), (0..5000).collect::<Vec<_>>());
}

fn r17_many_queues_work_at_once(target: &Target) {
    let driver = target.open();
    let queues: Vec<_> = (0..64).map(|_| queue(&driver)).collect();
    let memory = Memory::new(&driver, 0, 64 * 64);
    for round in 0..20u8 {
        for (queue, at) in queues.iter().zip((memory.address..).step_by(64)) {
            fill(queue, at, 64, &[round]);
        }
    }
    for (queue, at) in queues.iter().zip((memory.address..).step_by(64)) {
        assert_eq!(read(queue, at, 64), [19; 64]);
    }
}

fn r18_work_starts_by_itself(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let log = Log::default();
    note(&queue, &log, 1);
    queue.flush().unwrap();
    until(|| log.values() == [1]);
}

fn r18_waiting_for_an_event_starts_its_work(target: &Target) {
    let driver = target.open();
    let (first, second) = (queue(&driver), queue(&driver));
    let (log, event) = (Log::default(), event(&driver));
    note(&first, &log, 1);
    event.record(&first).unwrap();
    event.synchronize().unwrap();
    assert_eq!(log.values(), [1]);
    note(&first, &log, 2);
    event.record(&first).unwrap();
    second.wait_event(&event).unwrap();
    second.synchronize().unwrap();
    assert_eq!(log.values(), [1, 2]);
}

fn r19_a_query_sees_all_that_was_submitted(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    assert!(queue.query().unwrap(), "a new queue has nothing to do");
    let gate = Gate::new();
    block(&queue, &gate);
    for _ in 0..100 {
        assert!(!queue.query().unwrap());
    }
    gate.open();
    until(|| queue.query().unwrap());
    let log = Log::default();
    for i in 1..=200 {
        note(&queue, &log, i);
        if queue.query().unwrap() {
            assert_eq!(
                log.values().last(),
                Some(&i),
                "finished, and its effect is there"
            );
        }
    }
    queue.synchronize().unwrap();
}
