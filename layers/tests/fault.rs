//! The layer `fault`: each kind of fault happens when it was asked for, and only then.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use outrigger_device::{Code, CopyKind, Driver, Queue, Result, Tail};
use outrigger_layers::Stack;

fn driver(faults: &str) -> Driver {
    let host = Driver::open(
        &"host?devices=1&memory=64M&virtual_memory=on"
            .parse()
            .unwrap(),
    );
    let stack = Stack::parse(&format!("fault:{faults}")).unwrap();
    stack.apply(host.unwrap()).unwrap()
}

fn code<T>(result: Result<T>) -> Code {
    result.map_or_else(|error| error.code(), |_| Code::OK)
}

#[test]
fn the_asked_for_call_is_refused_and_no_other() {
    let driver =
        driver("memory_alloc@2=call:OUT_OF_MEMORY&queue_create@2..=call:OUT_OF_HOST_MEMORY");
    let allocs: Vec<_> = (0..4).map(|_| code(driver.memory_alloc(0, 64))).collect();
    assert_eq!(allocs, [Code::OK, Code::OUT_OF_MEMORY, Code::OK, Code::OK]);
    let queues: Vec<_> = (0..3).map(|_| code(driver.queue_create(0, 0))).collect();
    assert_eq!(
        queues,
        [Code::OK, Code::OUT_OF_HOST_MEMORY, Code::OUT_OF_HOST_MEMORY]
    );
}

#[test]
fn memory_ends_where_it_was_asked_to() {
    let driver = driver("above=1M&total=1536K");
    assert_eq!(
        code(driver.memory_alloc(0, (1 << 20) + 1)),
        Code::OUT_OF_MEMORY
    );
    let first = driver.memory_alloc(0, 1 << 20).unwrap();
    assert_eq!(code(driver.memory_alloc(0, 1 << 20)), Code::OUT_OF_MEMORY);
    // Physical memory counts too, and what was given back is there again.
    let virtual_memory = driver.virtual_memory().unwrap();
    // SAFETY: nothing uses it.
    unsafe { driver.memory_free(first) }.unwrap();
    let physical = virtual_memory.create(0, 1 << 20).map_err(|e| e.code());
    if let Ok(physical) = physical {
        assert_eq!(code(driver.memory_alloc(0, 1 << 20)), Code::OUT_OF_MEMORY);
        // SAFETY: it is live and mapped nowhere.
        unsafe { virtual_memory.destroy(physical) }.unwrap();
    } else {
        assert_eq!(physical, Err(Code::INVALID_ARGUMENT)); // a granularity above 1 MiB
    }
    assert_eq!(code(driver.memory_alloc(0, 1 << 20)), Code::OK);
}

#[test]
fn work_fails_when_it_runs_and_its_event_too() {
    let driver = driver("fill@2=work:OUT_OF_RANGE");
    let queue = driver.queue_create(0, 0).unwrap();
    let event = driver.event_create(0, false).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    let seen = Arc::new(AtomicI32::new(-1));
    let upstream = Arc::clone(&seen);
    // SAFETY: the memory lives through the test.
    unsafe {
        queue.fill(memory, 64, &[1]).unwrap();
        queue.fill(memory, 64, &[2]).unwrap();
    }
    event.record(&queue).unwrap();
    queue
        .host_call(move |failure| {
            upstream.store(failure.err().map_or(0, |c| c.0), Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
    assert_eq!(code(queue.synchronize()), Code::OUT_OF_RANGE);
    assert_eq!(seen.load(Ordering::Relaxed), Code::OUT_OF_RANGE.0);
    assert_eq!(code(event.synchronize()), Code::OUT_OF_RANGE);
    let mut back = [0u8; 64];
    // SAFETY: both ends live until the queue was synchronized.
    unsafe {
        queue
            .copy(back.as_mut_ptr() as u64, memory, 64, CopyKind::DeviceToHost)
            .unwrap();
        queue.synchronize().unwrap();
    }
    assert_eq!(back, [1; 64]);
}

/// Keeps a queue busy until the sender is dropped.
fn held(queue: &Queue) -> Sender<()> {
    let (door, opened) = channel::<()>();
    queue
        .host_call(move |upstream| {
            // The wait ends with an error when the door is dropped.
            let _ = opened.recv();
            upstream
        })
        .unwrap();
    door
}

#[test]
fn a_query_that_is_refused_says_nothing_of_work_that_is_over() {
    // With the code of a failure, too: who asks cannot know better.
    let driver = driver("event_query@1=call:OUT_OF_HOST_MEMORY&event_query@2=call:EXECUTION");
    let queue = driver.queue_create(0, 0).unwrap();
    let tail = Tail::of(&queue).unwrap();
    queue.synchronize().unwrap();
    let told = [0; 3].map(|_| tail.is_over());
    assert_eq!(told, [false, false, true]);
}

#[test]
fn a_wait_that_is_refused_is_none() {
    let driver = driver("event_synchronize@1=call:EXECUTION");
    let queue = driver.queue_create(0, 0).unwrap();
    let door = held(&queue);
    let tail = Tail::of(&queue).unwrap();
    assert_eq!(code(tail.wait()), Code::EXECUTION);
    assert!(!tail.is_over());
    drop(door);
    tail.wait().unwrap();
    assert!(tail.is_over());
}

#[test]
fn without_any_outcome_work_stays_unfinished() {
    let driver = driver("event_query@1..=call:INTERNAL&event_synchronize@1..=call:INTERNAL");
    let queue = driver.queue_create(0, 0).unwrap();
    let tail = Tail::of(&queue).unwrap();
    queue.synchronize().unwrap();
    assert!(!tail.is_over());
    assert_eq!(code(tail.wait()), Code::INTERNAL);
}

#[test]
fn work_that_failed_is_over() {
    let driver = driver("fill@1=work:OUT_OF_RANGE");
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    // SAFETY: the memory lives through the test.
    unsafe { queue.fill(memory, 64, &[1]) }.unwrap();
    let tail = Tail::of(&queue).unwrap();
    tail.wait().unwrap();
    assert!(tail.is_over());
    // The wait has left the failure to whoever waits for the queue.
    let (finished, over) = queue.finish();
    assert_eq!((code(finished), over), (Code::OUT_OF_RANGE, true));
    assert_eq!(code(queue.synchronize()), Code::OK);
}

#[test]
fn a_wait_for_a_queue_that_is_refused_is_made_once_more_and_leaves_its_failure() {
    let driver = driver(
        "fill@1=work:OUT_OF_RANGE&queue_synchronize@1=call:INTERNAL&queue_synchronize@3..=call:INTERNAL",
    );
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    // SAFETY: the memory lives through the test.
    unsafe { queue.fill(memory, 64, &[1]) }.unwrap();
    let told = [0; 2].map(|_| {
        let (finished, over) = queue.finish();
        (code(finished), over)
    });
    assert_eq!(told, [(Code::OUT_OF_RANGE, true), (Code::INTERNAL, false)]);
}

#[test]
fn an_event_is_late_and_a_copy_is_torn() {
    let driver = driver("event_record@1=delay:80&copy@1=torn:EXECUTION&copy@3=torn:OK");
    let queue = driver.queue_create(0, 0).unwrap();
    let event = driver.event_create(0, false).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    let start = Instant::now();
    event.record(&queue).unwrap();
    assert!(!event.query().unwrap() || start.elapsed() >= Duration::from_millis(80));
    event.synchronize().unwrap();
    assert!(start.elapsed() >= Duration::from_millis(80));
    let copy = |from: &[u8; 64], to: &mut [u8; 64]| {
        // SAFETY: all memory lives until the queue was synchronized.
        unsafe {
            queue
                .copy(memory, from.as_ptr() as u64, 64, CopyKind::HostToDevice)
                .unwrap();
            let there = code(queue.synchronize());
            queue
                .copy(to.as_mut_ptr() as u64, memory, 64, CopyKind::DeviceToHost)
                .unwrap();
            (there, code(queue.synchronize()))
        }
    };
    // SAFETY: the memory is live.
    unsafe { queue.fill(memory, 64, &[9]) }.unwrap();
    let mut back = [0; 64];
    assert_eq!(copy(&[1; 64], &mut back), (Code::EXECUTION, Code::OK));
    assert_eq!(back, [[1; 32], [9; 32]].concat().as_slice());
    assert_eq!(copy(&[2; 64], &mut back), (Code::OK, Code::OK));
    assert_eq!(back, [[2; 32], [9; 32]].concat().as_slice());
}

#[test]
fn a_lost_device_answers_nothing_and_can_be_cleaned_up() {
    // In front of the fill there are the properties of two devices, the opening of one, and a queue and memory of it.
    let driver = driver("any@7=lost");
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    // SAFETY: the memory is live until it is freed, after the queue was given up.
    unsafe {
        assert_eq!(code(queue.fill(memory, 64, &[1])), Code::DEVICE_LOST);
        assert_eq!(code(queue.synchronize()), Code::DEVICE_LOST);
        drop(queue);
        driver.memory_free(memory).unwrap();
    }
}

#[test]
fn of_work_of_a_lost_device_nobody_knows_that_it_is_over() {
    let driver = driver("event_query@2=lost");
    let queue = driver.queue_create(0, 0).unwrap();
    let tail = Tail::of(&queue).unwrap();
    queue.synchronize().unwrap();
    assert!(tail.is_over());
    assert!(!tail.is_over());
}

#[test]
fn work_with_the_code_of_a_lost_device_is_over() {
    let driver = driver("");
    let queue = driver.queue_create(0, 0).unwrap();
    queue.host_call(|_| Err(Code::DEVICE_LOST)).unwrap();
    let (finished, over) = queue.finish();
    assert_eq!((code(finished), over), (Code::DEVICE_LOST, true));
}

#[test]
fn chance_follows_the_seed() {
    let run = |seed: u64| -> Vec<Code> {
        let driver = driver(&format!(
            "seed={seed}&event_create%30=call:OUT_OF_HOST_MEMORY"
        ));
        (0..200)
            .map(|_| code(driver.event_create(0, false)))
            .collect()
    };
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first, run(2));
    let failed = first.iter().filter(|code| **code != Code::OK).count();
    assert!((30..=90).contains(&failed), "{failed} of 200 at 30 %");
}
