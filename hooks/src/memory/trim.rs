//! A thread that gives back memory which was idle for `trim_after_ms` of `OUTRIGGER_ALLOC`.
//!
//! The thread exists only if that option is set. It waits for streams without a lock, so it delays no allocation.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use outrigger_allocator::IdleWatch;
use outrigger_device::Code;

use crate::{Device, Error, Result};

/// Gives the thread, which watches the devices that it is sent. The first call starts it.
///
/// # Errors
/// `OUT_OF_HOST_MEMORY` if the thread cannot be started.
pub(crate) fn trimmer(after: Duration) -> Result<&'static Sender<&'static Device>> {
    static DEVICES: OnceLock<Sender<&'static Device>> = OnceLock::new();
    if let Some(devices) = DEVICES.get() {
        return Ok(devices);
    }
    let (sender, receiver) = channel();
    let thread = thread::Builder::new().name("outrigger-trim".to_owned());
    // The thread runs until the process ends, as devices live.
    let made = thread.spawn(move || trim(after / IdleWatch::LOOKS, &receiver));
    made.map_err(|error| {
        let text =
            format!("the thread for trim_after_ms in OUTRIGGER_ALLOC cannot be started: {error}");
        Error::new(Code::OUT_OF_HOST_MEMORY, text)
    })?;
    Ok(DEVICES.get_or_init(|| sender))
}

fn trim(every: Duration, devices: &Receiver<&'static Device>) {
    let mut watched: Vec<(&Device, IdleWatch)> = Vec::new();
    let mut next = Instant::now() + every;
    loop {
        match devices.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(device) => watched.push((device, IdleWatch::default())),
            Err(RecvTimeoutError::Timeout) => {
                watched
                    .iter_mut()
                    .for_each(|(device, watch)| look(device, watch));
                next = Instant::now() + every;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn look(device: &Device, watch: &mut IdleWatch) {
    let bytes = device.allocator().trim_idle(watch);
    if bytes > 0 {
        tracing::debug!(target: "outrigger::memory", device = device.index(), bytes, "idle memory was given back");
    }
}
