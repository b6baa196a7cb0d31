//! Tests with many threads on one queue: calls through the table alone rarely collide.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::command::Command;
use super::super::driver::Host;
use super::super::event;
use super::Queue;
use crate::{Code, NO_OUTCOME};

/// A queue of a driver of its own, for a test that destroys it.
fn queue() -> &'static Queue {
    let host = Arc::new(Host::open("devices=1,memory=64K").unwrap());
    host.open_device(0).unwrap();
    let device = host.device(0).unwrap();
    let queue = Queue::create(&host, device).unwrap();
    device.queues.fetch_add(1, Ordering::Relaxed);
    queue
}

#[test]
fn a_backlog_is_counted_while_others_submit_and_execute() {
    const COMMANDS: u64 = 1_000_000;
    let queue = queue();
    std::thread::scope(|scope| {
        let submitter = || {
            for _ in 0..COMMANDS {
                queue.mark(Command::Nop).unwrap();
                queue.synchronize().unwrap();
            }
        };
        let submitters = [scope.spawn(submitter), scope.spawn(submitter)];
        while submitters.iter().any(|thread| !thread.is_finished()) {
            queue.relieve();
        }
    });
    assert!(queue.idle());
    queue.destroy().unwrap();
}

#[test]
fn failures_that_nobody_can_ask_for_are_not_kept() {
    const FAILURES: usize = 2000;
    let queue = queue();
    let host = queue.owner().unwrap();
    let fail = || {
        queue.submit(failing()).unwrap();
        let event = event::Event::new(&host, false, None).handle();
        let at = std::ptr::from_ref(queue).cast_mut().cast();
        // SAFETY: both are live, and of one driver.
        assert_eq!(unsafe { event::record(event, at) }, 0);
        queue.synchronize().unwrap_err();
        event
    };
    // SAFETY: live events, which are destroyed once.
    let destroy = |event| assert_eq!(unsafe { event::destroy(event) }, 0);
    // SAFETY: as above.
    let query = |event| unsafe {
        let mut outcome = NO_OUTCOME;
        assert_eq!(event::query(event, &mut outcome), 0);
        outcome.code
    };
    let kept: Vec<_> = (0..100)
        .map(|_| {
            let kept = fail();
            (1..FAILURES / 100).for_each(|_| destroy(fail()));
            kept
        })
        .collect();
    let most = queue.failures_on_record();
    assert!((100..=400).contains(&most), "{most} failures are kept");
    for event in kept {
        assert_eq!(query(event), Code::EXECUTION.0);
        destroy(event);
    }
    (0..FAILURES).for_each(|_| destroy(fail()));
    let most = queue.failures_on_record();
    assert!(most <= 64, "{most} failures are kept");
    queue.destroy().unwrap();
}

fn failing() -> Command {
    unsafe extern "C" fn fails(_user: *mut c_void, _upstream: i32) -> i32 {
        Code::EXECUTION.0
    }
    Command::HostCall {
        function: fails,
        user: std::ptr::null_mut(),
        can_fail: true,
    }
}

#[test]
fn a_wait_keeps_the_failure_of_its_point() {
    let (queue, waiting) = (queue(), queue());
    waiting.submit(failing()).unwrap();
    waiting.synchronize().unwrap_err();
    queue.submit(failing()).unwrap();
    waiting.wait_for(queue, queue.tail()).unwrap();
    for _ in 0..100 {
        queue.synchronize().unwrap_err();
        queue.submit(failing()).unwrap();
    }
    queue.synchronize().unwrap_err();
    waiting.synchronize().unwrap_err();
    queue.synchronize().unwrap();
    queue.destroy().unwrap();
    waiting.destroy().unwrap();
}
