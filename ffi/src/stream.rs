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

    /// The next stream in turn of a device's pool, which belongs to the runtime. A lower priority
    /// number is more urgent; it is clamped to the device's range.
    fn otr_stream_from_pool(device: u32, priority: i32, stream: *mut otr_stream_t) {
        let out = Out::new(stream, "stream")?;
        out.set(hooks::runtime()?.device(device)?.pool_stream(priority)?.id());
        Ok(())
    }

    /// Makes a stream, the caller's until otr_stream_destroy. A lower priority number is more urgent; it
    /// is clamped to the device's range (otr_device_info). OTR_ERR_OUT_OF_HOST_MEMORY if there is no room
    /// for another one.
    fn otr_stream_create(device: u32, priority: i32, stream: *mut otr_stream_t) {
        let out = Out::new(stream, "stream")?;
        out.set(hooks::create_stream(device, priority)?.id());
        Ok(())
    }

    /// Destroys a stream without waiting: work that was submitted still runs, and memory that was
    /// allocated on it can be used and freed as before. OTR_ERR_INVALID_ARGUMENT for a stream of the
    /// runtime.
    fn otr_stream_destroy(stream: otr_stream_t) {
        hooks::destroy_stream(stream)
    }

    /// The device of a stream.
    fn otr_stream_device(stream: otr_stream_t, device: *mut u32) {
        let out = Out::new(device, "device")?;
        out.set(hooks::stream(stream)?.device().index());
        Ok(())
    }

    /// The priority of a stream, as it was clamped; a lower number is more urgent.
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

    /// Sets `finished` to 1 if all work submitted before has finished, else to 0. Never waits.
    /// Fails with the first failure of the stream's work, which stays; with OTR_ERR_CAPTURE while it
    /// captures.
    fn otr_stream_query(stream: otr_stream_t, finished: *mut u32) {
        let out = Out::new(finished, "finished")?;
        out.set(hooks::stream(stream)?.query()?.into());
        Ok(())
    }

    /// Waits for all work submitted before. Fails with the first failure of the stream's work, which
    /// is thereby cleared: the stream takes work again. OTR_ERR_CAPTURE while it captures.
    fn otr_stream_synchronize(stream: otr_stream_t) {
        hooks::stream(stream)?.synchronize()
    }

    /// Sees to it that what was submitted starts by itself. Waiting does it too. While the stream
    /// captures it does nothing.
    fn otr_stream_flush(stream: otr_stream_t) {
        hooks::stream(stream)?.flush()
    }

    /// Lets later work of a stream start after the point at which an event was last recorded, also
    /// on another device. Does not wait, unless the event is of another driver. A failure that the event
    /// carries fails the stream, not this call. While the event's stream captures, the stream joins.
    fn otr_stream_wait_event(stream: otr_stream_t, event: otr_event_t) {
        let event = hooks::event(event)?;
        hooks::stream(stream)?.wait_event(event)
    }
}
