//! R21 to R24 without failures, and the timestamps of events: which work an event stands for, and who
//! waits for it.

use outrigger_device::Code;
use outrigger_tests::Gate;

use crate::support::{Log, Memory, Target, block, event, fill, note, queue, read, until};

crate::cases! {
    Nothing:
        r21_an_event_stands_for_the_work_so_far,
        r21_a_wait_keeps_the_point_it_was_made_for,
        r22_an_event_without_a_record_is_finished,
        r24_a_wait_returns_at_once_and_holds_later_work,
        r24_waits_go_around_in_circles_of_queues,
        r24_one_event_serves_many_queues;
    TwoDevices:
        r24_a_wait_reaches_over_devices;
    Timing:
        timing_follows_the_order_of_the_points,
        timing_needs_an_event_that_has_it;
}

fn r21_an_event_stands_for_the_work_so_far(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let (gate, later, event) = (Gate::new(), Gate::new(), event(&driver));
    block(&queue, &gate);
    event.record(&queue).unwrap();
    block(&queue, &later);
    assert!(!event.query().unwrap());
    gate.open();
    event.synchronize().unwrap();
    assert!(
        event.query().unwrap(),
        "the work behind the record does not matter"
    );
    assert!(!queue.query().unwrap());
    event.record(&queue).unwrap();
    assert!(!event.query().unwrap(), "it moved to the new point");
    later.open();
    event.synchronize().unwrap();
}

fn r21_a_wait_keeps_the_point_it_was_made_for(target: &Target) {
    let driver = target.open();
    let (first, second) = (queue(&driver), queue(&driver));
    let (gate, later) = (Gate::new(), Gate::new());
    let (log, event) = (Log::default(), event(&driver));
    block(&first, &gate);
    event.record(&first).unwrap();
    second.wait_event(&event).unwrap();
    note(&second, &log, 1);
    block(&first, &later);
    event.record(&first).unwrap();
    assert!(log.values().is_empty());
    gate.open();
    second.synchronize().unwrap();
    assert_eq!(log.values(), [1]);
    assert!(!event.query().unwrap());
    later.open();
    event.synchronize().unwrap();
}

fn r22_an_event_without_a_record_is_finished(target: &Target) {
    let driver = target.open();
    let (queue, event) = (queue(&driver), event(&driver));
    assert!(event.query().unwrap());
    event.synchronize().unwrap();
    queue.wait_event(&event).unwrap();
    queue.synchronize().unwrap();
}

fn r24_a_wait_returns_at_once_and_holds_later_work(target: &Target) {
    let driver = target.open();
    let (first, second) = (queue(&driver), queue(&driver));
    let memory = Memory::new(&driver, 0, 256);
    let (gate, log, event) = (Gate::new(), Log::default(), event(&driver));
    block(&first, &gate);
    fill(&first, memory.address, 256, &[1]);
    note(&first, &log, 1);
    event.record(&first).unwrap();
    note(&second, &log, 0);
    second.wait_event(&event).unwrap();
    fill(&second, memory.address + 128, 128, &[2]);
    note(&second, &log, 2);
    // What lies before the wait runs; what lies behind it does not.
    until(|| log.values() == [0]);
    assert!(!second.query().unwrap());
    gate.open();
    let bytes = read(&second, memory.address, 256);
    assert_eq!(
        (&bytes[..128], &bytes[128..]),
        (&[1; 128][..], &[2; 128][..])
    );
    assert_eq!(log.values(), [0, 1, 2]);
}

fn r24_waits_go_around_in_circles_of_queues(target: &Target) {
    let driver = target.open();
    let queues: Vec<_> = (0..3).map(|_| queue(&driver)).collect();
    let (log, event) = (Log::default(), event(&driver));
    for i in 0..600 {
        let queue = &queues[i % 3];
        queue.wait_event(&event).unwrap();
        note(queue, &log, i as u64);
        event.record(queue).unwrap();
    }
    event.synchronize().unwrap();
    assert_eq!(log.values(), (0..600).collect::<Vec<_>>());
}

fn r24_one_event_serves_many_queues(target: &Target) {
    let driver = target.open();
    let first = queue(&driver);
    let (gate, log, event) = (Gate::new(), Log::default(), event(&driver));
    block(&first, &gate);
    note(&first, &log, 0);
    event.record(&first).unwrap();
    let others: Vec<_> = (0..16).map(|_| queue(&driver)).collect();
    for queue in &others {
        queue.wait_event(&event).unwrap();
        note(queue, &log, 1);
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| event.synchronize().unwrap());
        }
        gate.open();
    });
    for queue in &others {
        queue.synchronize().unwrap();
    }
    let values = log.values();
    assert_eq!((values[0], values.len()), (0, 17));
}

fn r24_a_wait_reaches_over_devices(target: &Target) {
    let driver = target.open();
    let (near, far) = (
        driver.queue_create(0, 0).unwrap(),
        driver.queue_create(1, 0).unwrap(),
    );
    let (gate, log, event) = (
        Gate::new(),
        Log::default(),
        driver.event_create(0, false).unwrap(),
    );
    block(&near, &gate);
    note(&near, &log, 1);
    event.record(&near).unwrap();
    far.wait_event(&event).unwrap();
    note(&far, &log, 2);
    assert!(!far.query().unwrap());
    gate.open();
    far.synchronize().unwrap();
    assert_eq!(log.values(), [1, 2]);
}

fn timing_follows_the_order_of_the_points(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let events: Vec<_> = (0..3)
        .map(|_| driver.event_create(0, true).unwrap())
        .collect();
    let gate = Gate::new();
    let before = driver.device_time_ns(0).unwrap().unwrap();
    events[0].record(&queue).unwrap();
    block(&queue, &gate);
    events[1].record(&queue).unwrap();
    note(&queue, &Log::default(), 0);
    events[2].record(&queue).unwrap();
    assert_eq!(
        events[1].time_ns().unwrap(),
        None,
        "its point has not passed"
    );
    events[0].synchronize().unwrap();
    let opened = driver.device_time_ns(0).unwrap().unwrap();
    gate.open();
    queue.synchronize().unwrap();
    let after = driver.device_time_ns(0).unwrap().unwrap();
    let times: Vec<u64> = events
        .iter()
        .map(|e| e.time_ns().unwrap().unwrap())
        .collect();
    let order = [before, times[0], opened, times[1], times[2], after];
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(
        events[1].time_ns().unwrap(),
        Some(times[1]),
        "a time does not change"
    );
}

fn timing_needs_an_event_that_has_it(target: &Target) {
    let driver = target.open();
    let (queue, event) = (queue(&driver), event(&driver));
    event.record(&queue).unwrap();
    queue.synchronize().unwrap();
    assert_eq!(event.time_ns().unwrap_err().code(), Code::INVALID_ARGUMENT);
}
