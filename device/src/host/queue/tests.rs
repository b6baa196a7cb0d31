//! Tests with many threads on one queue: calls through the table alone rarely collide.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::command::Command;
use super::super::driver::Host;
use super::Queue;

/// A queue of a driver of its own, for a test that destroys it.
fn queue() -> &'static Queue {
    let host = Arc::new(Host::open("devices=1,memory=64K").unwrap());
    let queue = Queue::create(&host, &host.devices[0]).unwrap();
    host.queues.fetch_add(1, Ordering::Relaxed);
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
