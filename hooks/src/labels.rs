//! Labels of allocations: whether anybody has named one, and what has to keep them from then on.

use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_allocator::{History, Label};
use outrigger_device::Code;
use outrigger_locks::{Mutex, Rank};

use crate::{Error, Result};

/// Whether any thread has named a label: from then on all memory keeps them.
static LABELS: AtomicBool = AtomicBool::new(false);

/// The histories of all memory: of devices, and of pinned memory.
static HISTORIES: Mutex<Vec<&'static History>> = Mutex::new(Rank::Histories, Vec::new());

/// Gives this label to what the calling thread allocates from now on, on any device, until
/// [`pop_label`]. Labels are for statistics, snapshots and the text of errors.
pub fn push_label(name: &str) {
    // A label costs each allocation some ten nanoseconds, so that none are kept before the first.
    if !LABELS.swap(true, Ordering::AcqRel) {
        let histories = HISTORIES.lock().clone();
        histories.into_iter().for_each(History::keep_labels);
    }
    Label::new(name).push();
}

/// Goes back to the label before the last [`push_label`] of this thread.
///
/// # Errors
/// `INVALID_ARGUMENT` if the thread has none.
pub fn pop_label() -> Result<()> {
    Label::pop().map(drop).ok_or_else(|| {
        Error::new(
            Code::INVALID_ARGUMENT,
            "this thread has no label to take away: each pop follows a push of the same thread",
        )
    })
}

/// Has new memory keep labels from now on, or from the first label on.
pub(crate) fn follow(history: &'static History) {
    HISTORIES.lock().push(history);
    // Listed first: a label of another thread is seen here, or sees the list.
    if LABELS.load(Ordering::Acquire) {
        history.keep_labels();
    }
}
