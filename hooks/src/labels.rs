//! Labels of allocations. The histories of all memory start to keep labels when the first label is pushed.

use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_allocator::{History, Label};
use outrigger_device::Code;
use outrigger_locks::{Mutex, Rank};

use crate::{Error, Result};

/// Whether any thread has pushed a label. From then on the histories of all memory keep labels.
static LABELS: AtomicBool = AtomicBool::new(false);

/// The histories of all memory: that of each device, and that of pinned memory.
static HISTORIES: Mutex<Vec<&'static History>> = Mutex::new(Rank::Histories, Vec::new());

/// Gives this label to what the calling thread allocates from now on, on any device, until [`pop_label`]. Labels appear
/// in statistics, snapshots and the text of errors.
pub fn push_label(name: &str) {
    // A label costs each allocation some ten nanoseconds. That is why none are kept before the first one.
    if !LABELS.swap(true, Ordering::AcqRel) {
        let histories = HISTORIES.lock().clone();
        histories.into_iter().for_each(History::keep_labels);
    }
    Label::new(name).push();
}

/// Takes the label of the last [`push_label`] of this thread away. The label before it is in force again.
///
/// # Errors
/// `INVALID_ARGUMENT` if the thread has no label.
pub fn pop_label() -> Result<()> {
    Label::pop().map(drop).ok_or_else(|| {
        Error::new(
            Code::INVALID_ARGUMENT,
            "this thread has no label to pop: each pop follows a push of the same thread",
        )
    })
}

/// Makes a history keep labels from now on, or from the first label on.
pub(crate) fn follow(history: &'static History) {
    HISTORIES.lock().push(history);
    // The history is in the list first: either a push of another thread finds it there, or its flag is seen here.
    if LABELS.load(Ordering::Acquire) {
        history.keep_labels();
    }
}
