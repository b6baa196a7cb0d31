//! Events.

use outrigger_hooks as hooks;
use outrigger_hooks::{Code, Error};

use crate::guard::Out;
use crate::{otr_event_t, otr_stream_t};

/// The event can be used with otr_event_elapsed.
pub const OTR_EVENT_TIMED: u32 = 1;

api! {
    /// Makes an event for streams of a device. It is the caller's until otr_event_destroy. `flags` is 0
    /// or OTR_EVENT_TIMED. Until it is recorded, it counts as passed. OTR_ERR_UNSUPPORTED for a timed
    /// event of a device without timestamps.
    fn otr_event_create(device: u32, flags: u32, event: *mut otr_event_t) {
        let out = Out::new(event, "event")?;
        if flags & !OTR_EVENT_TIMED != 0 {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!("event flags {flags:#x} are unknown: use 0 or OTR_EVENT_TIMED"),
            ));
        }
        out.set(hooks::create_event(device, flags & OTR_EVENT_TIMED != 0)?.id());
        Ok(())
    }

    /// Destroys an event without waiting. Streams that wait for it still do.
    fn otr_event_destroy(event: otr_event_t) {
        hooks::destroy_event(event)
    }

    /// Moves an event to the end of the work that was submitted to a stream of its device so far.
    /// Earlier waits keep the old point. If the stream captures, the event becomes a point of the
    /// capture.
    fn otr_event_record(event: otr_event_t, stream: otr_stream_t) {
        let event = hooks::event(event)?;
        event.record(&*hooks::stream(stream)?)
    }

    /// Sets `finished` to 1 if the work before an event has finished, else to 0. Never waits.
    /// Fails with the failure of that work, at every call; with OTR_ERR_CAPTURE for a point of a capture.
    fn otr_event_query(event: otr_event_t, finished: *mut u32) {
        let out = Out::new(finished, "finished")?;
        out.set(hooks::event(event)?.query()?.into());
        Ok(())
    }

    /// Waits for the work before an event. Fails with the failure of that work, at every call; with
    /// OTR_ERR_CAPTURE for a point of a capture.
    fn otr_event_synchronize(event: otr_event_t) {
        hooks::event(event)?.synchronize()
    }

    /// Milliseconds between two events that were made with OTR_EVENT_TIMED and have passed.
    fn otr_event_elapsed(start: otr_event_t, end: otr_event_t, milliseconds: *mut f64) {
        let out = Out::new(milliseconds, "milliseconds")?;
        out.set(hooks::elapsed_ms(hooks::event(start)?, hooks::event(end)?)?);
        Ok(())
    }
}
