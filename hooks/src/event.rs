//! Events: points in the work of a stream that can be waited for, also across streams and devices.

use std::sync::Arc;

use outrigger_device::Code;

use crate::graph::CapturedMark;
use crate::table::{Kind, Table};
use crate::{Device, Error, Result, Stream, runtime};

static TABLE: Table<Event> = Table::new(Kind::Event);

/// An event of a device. Until it is recorded it counts as passed.
#[derive(Debug)]
pub struct Event {
    id: u64,
    device: &'static Device,
    inner: outrigger_device::Event,
    captured: CapturedMark,
}

impl Event {
    /// The id, as C hosts hold it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The device on whose streams it is recorded.
    pub fn device(&self) -> &'static Device {
        self.device
    }

    pub(crate) fn inner(&self) -> &outrigger_device::Event {
        &self.inner
    }

    pub(crate) fn captured(&self) -> &CapturedMark {
        &self.captured
    }

    /// Moves the event to the end of the work submitted to `stream` so far. Waits that were made
    /// before keep the old point.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the stream is of another device; what the driver reports.
    #[inline]
    pub fn record(&self, stream: &Stream) -> Result<()> {
        if stream.device().index() != self.device.index() {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "an event of device {} cannot be recorded on a stream of device {}: make the \
                     event for that device",
                    self.device.index(),
                    stream.device().index()
                ),
            )
            .on_stream(stream.id()));
        }
        if stream.is_capturing() {
            return stream.record_event(self);
        }
        if self.captured.active() {
            self.captured.clear();
        }
        self.inner
            .record(stream.queue())
            .map_err(|error| stream.failed(error))
    }

    /// True if the work before the event has finished. Never waits.
    ///
    /// # Errors
    /// The failure of that work; `CAPTURE` if it was recorded in a capture.
    #[inline]
    pub fn query(&self) -> Result<bool> {
        if self.captured.active() {
            return Err(self.captured.refusal("a query"));
        }
        Ok(self.inner.query()?)
    }

    /// Waits for the work before the event.
    ///
    /// # Errors
    /// The failure of that work; `CAPTURE` if it was recorded in a capture.
    pub fn synchronize(&self) -> Result<()> {
        if self.captured.active() {
            return Err(self.captured.refusal("a wait"));
        }
        Ok(self.inner.synchronize()?)
    }
}

/// Makes an event; with `timing` it can be used with [`elapsed_ms`].
///
/// # Errors
/// `INVALID_DEVICE`; `UNSUPPORTED` for timing on a driver without timestamps.
pub fn create_event(device: u32, timing: bool) -> Result<Arc<Event>> {
    let device = runtime()?.device(device)?;
    let inner = device.driver().event_create(device.ordinal(), timing)?;
    TABLE.insert(|id| Event {
        id,
        device,
        inner,
        captured: CapturedMark::default(),
    })
}

/// The event with this id.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live event.
pub fn event(id: u64) -> Result<Arc<Event>> {
    TABLE.get(id)
}

/// Runs a call that does not wait on the event with this id.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live event; what `call` returns.
#[inline]
pub fn with_event<R>(id: u64, call: impl FnOnce(&Event) -> Result<R>) -> Result<R> {
    TABLE.with(id, call)
}

/// Destroys an event without waiting. What waits for it goes on waiting.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live event.
pub fn destroy_event(id: u64) -> Result<()> {
    TABLE.remove(id).map(drop)
}

/// Milliseconds between two events that were made with timing, recorded, and have passed.
///
/// # Errors
/// `NOT_READY` if one has not passed yet; `INVALID_ARGUMENT` if one has no time.
pub fn elapsed_ms(start: &Event, end: &Event) -> Result<f64> {
    let time = |event: &Event, which: &str| {
        if event.captured.active() {
            return Err(event.captured.refusal("a time"));
        }
        event.inner.time_ns()?.ok_or_else(|| {
            Error::new(
                Code::NOT_READY,
                format!("the {which} event has not passed yet: synchronize it first"),
            )
        })
    };
    let (start, end) = (time(start, "start")?, time(end, "end")?);
    Ok((end as f64 - start as f64) * 1e-6)
}
