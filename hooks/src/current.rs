//! The current device and stream of each thread. It must never allocate: operators ask on every call.

use std::cell::Cell;

use crate::{MAX_DEVICES, Result, runtime, stream};

thread_local! {
    static DEVICE: Cell<u32> = const { Cell::new(0) };
    // The id of the thread's stream on each device; 0 is the device's default stream.
    static STREAMS: [Cell<u64>; MAX_DEVICES] = const { [const { Cell::new(0) }; MAX_DEVICES] };
}

/// The current device of this thread; 0 until it is set.
#[inline]
pub fn current_device() -> u32 {
    DEVICE.get()
}

/// Makes `device` the current one of this thread.
///
/// # Errors
/// `INVALID_DEVICE` if there is no such device.
pub fn set_current_device(device: u32) -> Result<()> {
    runtime()?.device(device)?;
    DEVICE.set(device);
    Ok(())
}

/// The id of the current stream of this thread on `device`: its default stream until one is set.
///
/// # Errors
/// `INVALID_DEVICE` if there is no such device.
#[inline]
pub fn current_stream(device: u32) -> Result<u64> {
    let set = STREAMS.with(|streams| streams.get(device as usize).map_or(0, Cell::get));
    if set != 0 {
        Ok(set)
    } else {
        Ok(runtime()?.device(device)?.default_stream().id())
    }
}

/// Makes a stream the current one of this thread on the stream's device.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live stream.
pub fn set_current_stream(id: u64) -> Result<()> {
    let device = stream(id)?.device().index();
    STREAMS.with(|streams| streams[device as usize].set(id));
    Ok(())
}
