//! What the tests of this package share: the libraries that its build script made, a limit in time for
//! every test, and gates that hold a queue back. Nothing here asserts anything about Outrigger itself.

pub mod abi;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The driver in C that vendors copy, built by its own Makefile.
pub fn c_driver() -> PathBuf {
    PathBuf::from(env!("OUTRIGGER_C_DRIVER"))
}

/// The C template with one defect, by the name of its macro in `drivers/broken.c`, in lower case.
pub fn broken_driver(defect: &str) -> PathBuf {
    broken_drivers().join(format!("liboutrigger_{defect}.so"))
}

/// The folder of all broken drivers.
pub fn broken_drivers() -> &'static Path {
    Path::new(env!("OUTRIGGER_BROKEN_DRIVERS"))
}

/// Far longer than a test takes on a busy machine: a test that hangs fails instead.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Runs a test on a thread of its own, and panics if it panics or has not ended after [`LIMIT`]. The
/// thread of a test that hangs is left behind.
///
/// # Panics
/// As said.
pub fn within_limit(test: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = channel::<()>();
    let thread = std::thread::spawn(move || {
        test();
        drop(sender);
    });
    match receiver.recv_timeout(LIMIT) {
        Err(RecvTimeoutError::Timeout) => panic!("it hangs: no end after {LIMIT:?}"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            if let Err(payload) = thread.join() {
                std::panic::resume_unwind(payload);
            }
        }
    }
}

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

    /// What waits at this gate when it is called.
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
