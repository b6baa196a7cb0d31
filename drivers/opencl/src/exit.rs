//! The end of a process that did not close its drivers, which most programs do not do. Intel's runtime for CPUs hangs
//! or aborts when a process ends while queues of it still work. So the hardware's work is waited for, for a while,
//! before the runtimes are told of the end. Host calls that have not been made are not made any more.

use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use outrigger_driver_kit::{Result, guard};
use parking_lot::Mutex;

/// A queue that may still work when the process ends.
pub(crate) trait Unfinished: Send + Sync {
    /// Waits for the work that the hardware was given.
    fn wait_until(&self, deadline: Instant) -> Result;
}

/// The longest time that the end of a process waits. Work that takes this long may never end.
const PATIENCE: Duration = Duration::from_secs(5);

/// The queues of all open drivers, those included that were destroyed and still work.
static QUEUES: Mutex<Vec<Weak<dyn Unfinished>>> = Mutex::new(Vec::new());

/// Remembers a queue as long as it lives.
pub(crate) fn remember(queue: &Arc<dyn Unfinished>) {
    let mut queues = QUEUES.lock();
    if queues.len() == queues.capacity() {
        queues.retain(|one| one.strong_count() > 0);
    }
    queues.push(Arc::downgrade(queue));
}

/// Has the end of the process wait. If this library is unloaded before, nothing is left to wait for.
pub(crate) fn watch() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        // SAFETY: a function of this library, which the end of the process or its unloading calls.
        // If there is no room for it, nobody waits.
        unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    guard(|| {
        let queues = std::mem::take(&mut *QUEUES.lock());
        let deadline = Instant::now() + PATIENCE;
        for queue in queues.iter().filter_map(Weak::upgrade) {
            // Failures are nobody's any more.
            let _ = queue.wait_until(deadline);
        }
        Ok(())
    });
}
