//! A thread that gives memory back that was idle for as long as `trim_after_ms` of `OUTRIGGER_ALLOC` says.
//!
//! It is there only where that is set. It must never hold up who allocates: it waits for streams without a
//! lock.

use std::sync::Once;
use std::thread;
use std::time::Duration;

use outrigger_allocator::IdleWatch;
use outrigger_device::Code;

use crate::{Error, MAX_DEVICES, Result, Runtime, runtime};

/// Starts the thread, once.
///
/// # Errors
/// `OUT_OF_HOST_MEMORY` if there can be no thread.
pub(crate) fn start_trimming(after: Duration) -> Result<()> {
    static STARTED: Once = Once::new();
    let mut outcome = Ok(());
    STARTED.call_once(|| {
        let thread = thread::Builder::new().name("outrigger-trim".to_owned());
        // It ends with the process, as devices do.
        let made = thread.spawn(move || trim(after / IdleWatch::LOOKS));
        outcome = made.map(drop).map_err(|error| {
            let text = format!("no thread for trim_after_ms in OUTRIGGER_ALLOC: {error}");
            Error::new(Code::OUT_OF_HOST_MEMORY, text)
        });
    });
    outcome
}

fn trim(every: Duration) {
    let mut watches = [IdleWatch::default(); MAX_DEVICES];
    loop {
        thread::sleep(every);
        let Ok(runtime) = runtime() else { return };
        look(runtime, &mut watches);
    }
}

fn look(runtime: &Runtime, watches: &mut [IdleWatch]) {
    for (device, watch) in runtime.devices().zip(watches) {
        let bytes = device.allocator().trim_idle(watch);
        if bytes > 0 {
            tracing::debug!(target: "outrigger::memory", device = device.index(), bytes, "idle memory was given back");
        }
    }
}
