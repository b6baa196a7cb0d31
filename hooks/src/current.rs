//! The current device and stream of each thread, as numbers. Nothing here allocates, because each operator call asks.

use std::cell::Cell;

/// The most devices of a process: frameworks keep device numbers in signed bytes.
pub const MAX_DEVICES: usize = 128;

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

pub(crate) fn choose_device(device: u32) {
    DEVICE.set(device);
}

/// The stream that this thread has chosen on a device; `None` for the default one.
#[inline]
pub(crate) fn chosen_stream(device: u32) -> Option<u64> {
    let set = STREAMS.with(|streams| streams.get(device as usize).map_or(0, Cell::get));
    (set != 0).then_some(set)
}

pub(crate) fn choose_stream(device: u32, id: u64) {
    STREAMS.with(|streams| streams[device as usize].set(id));
}
