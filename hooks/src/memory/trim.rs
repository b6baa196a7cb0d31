//! A thread that gives memory back that was idle for as long as `trim_after_ms` of `OUTRIGGER_ALLOC` says.
//!
//! It is there only where that is set. It must never hold up who allocates: it waits for streams without a
//! lock.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use outrigger_allocator::IdleWatch;
use outrigger_device::Code;

use crate::{Device, Error, Result};

/// Has the thread look after a device from now on; starts it, if this is the first.
///
/// # Errors
/// `OUT_OF_HOST_MEMORY` if there can be no thread.
pub(crate) fn start_trimming(device: &'static Device, after: Duration) -> Result<()> {
    static DEVICES: OnceLock<Sender<&'static Device>> = OnceLock::new();
    let devices = match DEVICES.get() {
        Some(devices) => devices,
        None => {
            let (sender, receiver) = channel();
            let thread = thread::Builder::new().name("outrigger-trim".to_owned());
            // It ends with the process, as devices do.
            let made = thread.spawn(move || trim(after / IdleWatch::LOOKS, &receiver));
            made.map_err(|error| {
                let text = format!("no thread for trim_after_ms in OUTRIGGER_ALLOC: {error}");
                Error::new(Code::OUT_OF_HOST_MEMORY, text)
            })?;
            DEVICES.get_or_init(|| sender)
        }
    };
    // The thread never ends before the process.
    let _ = devices.send(device);
    Ok(())
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
