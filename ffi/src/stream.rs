//! Streams.

use outrigger_hooks as hooks;

use crate::guard::Out;
use crate::{otr_event_t, otr_stream_t};

api! {
    /// The default stream of a device. It belongs to the runtime (H12): the same at every call.
    fn otr_stream_default(device: u32, stream: *mut otr_stream_t) {
        let out = Out::new(stream, "stream")?;
        out.set(hooks::runtime()?.device(device)?.default_stream().id());
        Ok(())
    }

    /// The next stream of a device's pool of streams, in turn. It belongs to the runtime (H12). A lower
    /// priority number is more urgent; it is clamped to the device's range.
    fn otr_stream_from_pool(device: u32, priority: i32, stream: *mut otr_stream_t) {
        let out = Out::new(stream, "stream")?;
        out.set(hooks::runtime()?.device(device)?.pool_stream(priority)?.id());
        Ok(())
    }

    /// Makes a stream. It is the caller's until otr_stream_destroy. A lower priority number is more
    /// urgent; it is clamped to the device's range (otr_device_info). OTR_ERR_OUT_OF_HOST_MEMORY if
    /// there is no room for another stream.
    fn otr_stream_create(device: u32, priority: i32, stream: *mut otr_stream_t) {
        let out = Out::new(stream, "stream")?;
        out.set(hooks::create_stream(device, priority)?.id());
        Ok(())
    }

    /// Makes a stream over a queue that another library made by the driver's own interface, such as a
    /// cl_command_queue or a CUstream: the documentation of the driver says what, and which queues fit. It
    /// is the caller's until otr_stream_destroy. The native queue lives until then, and until the stream's
    /// work has finished; both may use it at any time, and what its library has put in before a call comes
    /// before that. OTR_ERR_UNSUPPORTED if the driver shares no queues, OTR_ERR_INVALID_ARGUMENT or
    /// OTR_ERR_INVALID_DEVICE for a queue that does not fit.
    fn otr_stream_from_native(device: u32, native: u64, stream: *mut otr_stream_t) {
        let out = Out::new(stream, "stream")?;
        let device = hooks::runtime()?.device(device)?;
        // SAFETY: this function's contract.
        out.set(unsafe { device.adopt_stream(native) }?.id());
        Ok(())
    }

    /// A stream's queue as the driver's own interface names it, for another library that puts work into it. All that
    /// was submitted to the stream is in there when this returns, so that what the library puts in comes behind it, and
    /// before the next call with the stream. The library asks anew before it does so again. The call may wait.
    /// OTR_ERR_UNSUPPORTED if the driver shares no queues, OTR_ERR_CAPTURE while the stream captures, OTR_ERR_CANCELLED
    /// if it has failed.
    fn otr_stream_native(stream: otr_stream_t, native: *mut u64) {
        let out = Out::new(native, "native")?;
        out.set(hooks::stream(stream)?.native()?);
        Ok(())
    }

    /// Destroys a stream without waiting. Submitted work still runs; memory that was allocated on the
    /// stream can be used and freed as before. OTR_ERR_INVALID_ARGUMENT for a stream of the runtime,
    /// OTR_ERR_BUSY for one that captures.
    fn otr_stream_destroy(stream: otr_stream_t) {
        hooks::destroy_stream(stream)
    }

    /// The device of a stream.
    fn otr_stream_device(stream: otr_stream_t, device: *mut u32) {
        let out = Out::new(device, "device")?;
        out.set(hooks::stream(stream)?.device().index());
        Ok(())
    }

    /// The clamped priority of a stream. A lower number is more urgent.
    fn otr_stream_priority(stream: otr_stream_t, priority: *mut i32) {
        let out = Out::new(priority, "priority")?;
        out.set(hooks::stream(stream)?.priority());
        Ok(())
    }

    /// The current stream of this thread on a device: its default stream until one is set.
    fn otr_stream_current(device: u32, stream: *mut otr_stream_t) {
        let out = Out::new(stream, "stream")?;
        out.set(hooks::current_stream(device)?);
        Ok(())
    }

    /// Makes a stream the current one of this thread on its device. The current device stays.
    fn otr_stream_set_current(stream: otr_stream_t) {
        hooks::set_current_stream(stream)
    }

    /// Sets `finished` to 1 if all work submitted before has finished, else to 0. Never waits. Fails
    /// with the first failure of the stream's work, and does not clear it. OTR_ERR_CAPTURE while the
    /// stream captures.
    fn otr_stream_query(stream: otr_stream_t, finished: *mut u32) {
        let out = Out::new(finished, "finished")?;
        out.set(hooks::stream(stream)?.query()?.into());
        Ok(())
    }

    /// Waits for all work submitted before. Fails with the first failure of the stream's work, and
    /// clears it: the stream takes work again. OTR_ERR_CAPTURE while the stream captures.
    fn otr_stream_synchronize(stream: otr_stream_t) {
        hooks::stream(stream)?.synchronize()
    }

    /// Starts the submitted work if the driver holds it back. Waiting does this, too. While the stream
    /// captures, the call does nothing.
    fn otr_stream_flush(stream: otr_stream_t) {
        hooks::stream(stream)?.flush()
    }

    /// Makes later work of a stream start after the point at which an event was recorded last, also on
    /// another device. The call does not wait, unless the event is of another driver. If the event
    /// carries a failure, the stream fails, not this call. If the event is a point of a capture, the
    /// stream joins the capture.
    fn otr_stream_wait_event(stream: otr_stream_t, event: otr_event_t) {
        let event = hooks::event(event)?;
        hooks::stream(stream)?.wait_event(event)
    }
}
