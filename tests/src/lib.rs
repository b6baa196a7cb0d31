//! What the tests of this package share: the libraries that its build script made, a time limit for
//! every test, and gates that hold a queue back. This crate asserts nothing about Outrigger itself.

pub mod abi;

pub use outrigger_conformance::Gate;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The driver in C that vendors copy, built by its own Makefile.
pub fn c_driver() -> PathBuf {
    PathBuf::from(env!("OUTRIGGER_C_DRIVER"))
}

/// The C template with one defect, by the name of its macro in `drivers/broken.c`, in lower case.
pub fn broken_driver(defect: &str) -> PathBuf {
    broken_drivers().join(format!("liboutrigger_{defect}.so"))
}

/// Two copies of the driver in `drivers/dispatcher.c`: loaded, they are two drivers, which give the same
/// addresses.
pub fn twin_drivers() -> [PathBuf; 2] {
    ["one", "two"].map(|twin| broken_drivers().join(format!("liboutrigger_{twin}.so")))
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
