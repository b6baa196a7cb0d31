//! Knows whether this process was forked after a driver had been opened. Threads and device handles do
//! not survive a fork, so every call in such a child is refused instead of hanging.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Code, Error, Result};

static FORKED: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Marks children of this process that are forked from now on.
pub(crate) fn watch() {
    WATCH.call_once(|| {
        // SAFETY: the handler is a plain function that lives as long as this library and does one
        // atomic store, which a child may do right after a fork.
        let code = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if code != 0 {
            tracing::warn!(target: "outrigger::device", code, "forks cannot be watched");
        }
    });
}

/// Whether this process is a child that was forked after the first driver had been opened. Nothing of
/// this crate works there: a process that needs devices is spawned, or replaces itself by exec.
#[inline]
pub fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Refuses the call in a forked child.
#[inline]
pub(crate) fn refuse_fork() -> Result<()> {
    if forked() { Err(error()) } else { Ok(()) }
}

#[cold]
fn error() -> Error {
    Error::new(
        Code::FORKED,
        "this process was forked after a driver had been opened, and devices do not survive a fork: \
         start it by spawn or exec (in Python: multiprocessing.get_context(\"spawn\")), or fork \
         before the first use of a device",
    )
}
