//! Tools by which tests hold queues back. This module asserts nothing.

use std::sync::{Arc, Condvar, Mutex};

/// A door that host calls wait behind. Opens for good, at the latest when its last handle outside of the
/// waiting calls is dropped, so that a failing test leaves no blocked thread behind.
#[derive(Debug)]
pub struct Gate(Arc<Door>);

#[derive(Debug, Default)]
struct Door {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// A closed gate.
    #[expect(
        clippy::new_without_default,
        reason = "a default gate says nothing about being closed"
    )]
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Lets everybody through.
    pub fn open(&self) {
        // A poisoned lock is as good: the flag is a plain value.
        *self.0.open.lock().unwrap_or_else(|e| e.into_inner()) = true;
        self.0.opened.notify_all();
    }

    /// A function that waits at this gate when it is called.
    pub fn waiter(&self) -> impl FnOnce() + Send + 'static {
        let door = Arc::clone(&self.0);
        move || {
            let open = door.open.lock().unwrap_or_else(|e| e.into_inner());
            drop(door.opened.wait_while(open, |open| !*open));
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}
