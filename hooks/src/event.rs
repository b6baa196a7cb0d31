//! Events: points in the work of a stream that can be waited for, also across streams and devices.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use outrigger_device::Code;
use outrigger_graph::CapturedMark;
use outrigger_locks::{Mutex, Rank};

use crate::{Device, Error, Result, Stream};
use outrigger_handles::{Kind, Lasting, LastingTable, Life, Resting};

static TABLE: LastingTable<Event> = LastingTable::new(Kind::Event);

/// Destroyed events that serve again, by device and whether they have timing.
static FREE: LazyLock<Mutex<Free>> = LazyLock::new(|| Mutex::new(Rank::FreeEvents, Free::new()));

type Free = HashMap<(u32, bool), Vec<Resting<Event>>>;

/// An event of a device. An event that was never recorded counts as passed.
#[derive(Debug)]
pub struct Event {
    life: Life,
    device: &'static Device,
    timing: bool,
    inner: outrigger_device::Event,
    /// Whether it was recorded since it was created or created again.
    recorded: AtomicBool,
    state: EventState,
    captured: CapturedMark,
}

/// A count of recordings, and one bit: whether the latest recording is known to have passed without a failure. Then no
/// query needs the driver. The count never goes back, so what was learned about one recording is never taken for
/// another.
#[derive(Debug, Default)]
struct EventState(AtomicU64);

impl EventState {
    const PASSED: u64 = 1;

    #[inline]
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Counts another recording, about which nothing is known.
    fn recorded(&self) {
        let next = |state: u64| Some((state | Self::PASSED) + 1);
        _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
    }

    /// Notes that the recording which was the latest when `state` was loaded has passed.
    fn passed(&self, state: u64) {
        let passed = state | Self::PASSED;
        let (done, missed) = (Ordering::AcqRel, Ordering::Relaxed);
        _ = self.0.compare_exchange(state, passed, done, missed);
    }

    /// Notes that there is nothing to wait for.
    fn clear(&self) {
        self.recorded();
        self.0.fetch_or(Self::PASSED, Ordering::AcqRel);
    }
}

impl Lasting for Event {
    #[inline]
    fn life(&self) -> &Life {
        &self.life
    }
}

impl Event {
    /// The id in the C ABI; 0 after the event was destroyed.
    pub fn id(&self) -> u64 {
        self.life.id()
    }

    /// The device on whose streams it is recorded.
    #[inline]
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// The event of the driver; `None` if the latest recording is known to have passed.
    #[inline]
    fn inner(&self) -> Option<&outrigger_device::Event> {
        (self.state.load() & EventState::PASSED == 0).then_some(&self.inner)
    }

    /// Moves the event to the point after the work that `stream` was given so far. Waits that were made before keep the
    /// old point.
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
        if stream.is_capturing()
            && let Some(recorded) = stream.record(|steps| {
                steps.mark(&self.captured);
                Ok(())
            })
        {
            return recorded;
        }
        if self.captured.active() {
            self.captured.clear();
        }
        self.inner
            .record(stream.queue())
            .map_err(|error| stream.failed(error))?;
        self.recorded.store(true, Ordering::Release);
        self.state.recorded();
        Ok(())
    }

    /// Whether the work before the event has finished. Never waits.
    ///
    /// # Errors
    /// The failure of that work; `CAPTURE` if it was recorded in a capture.
    #[inline]
    pub fn query(&self) -> Result<bool> {
        if self.captured.active() {
            return Err(self.captured.refusal("a query"));
        }
        let state = self.state.load();
        if state & EventState::PASSED != 0 {
            return Ok(true);
        }
        let passed = self.inner.query()?;
        if passed {
            self.state.passed(state);
        }
        Ok(passed)
    }

    /// Waits for the work before the event.
    ///
    /// # Errors
    /// The failure of that work; `CAPTURE` if it was recorded in a capture.
    #[inline]
    pub fn synchronize(&self) -> Result<()> {
        Ok(self.wait()??)
    }

    /// The same, with the failure of that work apart from those of the call, which say nothing about the work.
    #[inline]
    fn wait(&self) -> Result<outrigger_device::Result<()>> {
        if self.captured.active() {
            return Err(self.captured.refusal("a wait"));
        }
        let state = self.state.load();
        if state & EventState::PASSED != 0 {
            return Ok(Ok(()));
        }
        match self.inner.synchronize() {
            Ok(()) => {
                self.state.passed(state);
                Ok(Ok(()))
            }
            Err(failure) if failure.is_outcome() => Ok(Err(failure)),
            Err(error) => Err(error.into()),
        }
    }
}

impl Stream {
    /// Makes later work of this stream start after the point at which `event` was last recorded. Does not wait, unless
    /// the event is of another driver: a driver cannot wait for work of another one.
    ///
    /// # Errors
    /// What the driver reports. A failure that the event carries fails the stream, not this call.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        if self.wait_event_on_device(event)? {
            Ok(())
        } else {
            self.wait_event_on_host(event)
        }
    }

    #[cold]
    fn wait_event_on_host(&self, event: &Event) -> Result<()> {
        match event.wait()? {
            Ok(()) => Ok(()),
            Err(failure) => {
                let code = failure.code();
                self.host_call_now(move |upstream| upstream.and(Err(code)))
            }
        }
    }

    /// Does what [`wait_event`](Self::wait_event) does, but never waits itself. Returns `false` if the event is of
    /// another driver, so that the host has to wait for it.
    ///
    /// # Errors
    /// Those of [`wait_event`](Self::wait_event).
    #[inline]
    pub fn wait_event_on_device(&self, event: &Event) -> Result<bool> {
        if (self.is_capturing() || event.captured.active())
            && self.wait_captured(&event.captured, || event.query())?
        {
            return Ok(true);
        }
        let Some(inner) = event.inner() else {
            return Ok(true);
        };
        if !event.device().driver().same_as(self.device().driver()) {
            return Ok(false);
        }
        let waits = self.queue().wait_event(inner);
        waits.map(|()| true).map_err(|error| self.failed(error))
    }
}

impl Device {
    /// Makes an event. With `timing` it can be used with [`elapsed_ms`].
    ///
    /// # Errors
    /// `UNSUPPORTED` for timing on a driver without timestamps; `OUT_OF_HOST_MEMORY` if too many are alive.
    pub fn create_event(&'static self, timing: bool) -> Result<&'static Event> {
        let next = || {
            let free = FREE
                .lock()
                .get_mut(&(self.index(), timing))
                .and_then(Vec::pop);
            let event = match free {
                Some(event) => event,
                None => Resting::new(Event {
                    life: Life::default(),
                    device: self,
                    timing,
                    inner: self.driver().event_create(self.ordinal(), timing)?,
                    recorded: AtomicBool::new(false),
                    state: EventState::default(),
                    captured: CapturedMark::default(),
                }),
            };
            event.recorded.store(false, Ordering::Relaxed);
            event.state.clear();
            event.captured.clear();
            Ok(event)
        };
        TABLE.begin(next)
    }
}

/// The event with this id.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live event.
#[inline]
pub fn event(id: u64) -> Result<&'static Event> {
    Ok(TABLE.get(id)?)
}

/// Destroys an event without waiting. Waits that were made for it stay in force.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live event.
pub fn destroy_event(id: u64) -> Result<()> {
    let event = TABLE.end(id)?;
    let mut free = FREE.lock();
    free.entry((event.device.index(), event.timing))
        .or_default()
        .push(event);
    Ok(())
}

/// The milliseconds between two events that were made with timing, were recorded, and have passed.
///
/// # Errors
/// `NOT_READY` if one of them has not passed yet; `INVALID_ARGUMENT` if one of them has no time.
pub fn elapsed_ms(start: &Event, end: &Event) -> Result<f64> {
    let time = |event: &Event, which: &str| {
        if event.captured.active() {
            return Err(event.captured.refusal("a time"));
        }
        if !event.recorded.load(Ordering::Acquire) {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!("the {which} event was never recorded, so it has no time"),
            ));
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
