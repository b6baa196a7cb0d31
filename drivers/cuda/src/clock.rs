//! The clocks of devices, and the events of CUDA's that they go by. Such an event marks a point of a stream, and is used
//! again when nobody looks at the point any more.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use outrigger_contract as c;
use outrigger_driver_kit::{Fault, Result};
use parking_lot::Mutex;

use crate::cuda::{self, Cuda};
use crate::device::Device;

/// An event of CUDA's.
#[derive(Clone, Copy)]
pub(crate) struct Raw(pub(crate) cuda::Event);

// SAFETY: CUDA's events may be used by any thread.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    fn create(device: &Device, timed: bool) -> Result<Self> {
        let _entered = device.enter()?;
        let flags = if timed {
            cuda::EVENT_DEFAULT
        } else {
            cuda::EVENT_DISABLE_TIMING
        };
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for the event.
        let made = unsafe { (device.cuda.event_create)(&mut event, flags) };
        device.check(made, "cuEventCreate")?;
        Ok(Self(event))
    }

    /// The event is made and nobody uses it.
    fn destroy(self, device: &Device) {
        // A context that is lost takes its events along.
        if let Ok(_entered) = device.enter() {
            // SAFETY: made by `create`.
            unsafe { (device.cuda.event_destroy)(self.0) };
        }
    }
}

/// Events of a device that nobody uses, without and with a timestamp.
#[derive(Default)]
pub(crate) struct Events([Mutex<Vec<Raw>>; 2]);

/// More than that are not kept.
const MOST_EVENTS: usize = 256;

impl Events {
    pub(crate) fn take(&self, device: &Device, timed: bool) -> Result<Raw> {
        let free = self.0[usize::from(timed)].lock().pop();
        free.map_or_else(|| Raw::create(device, timed), Ok)
    }

    pub(crate) fn put(&self, device: &Device, event: Raw, timed: bool) {
        let mut free = self.0[usize::from(timed)].lock();
        if free.len() < MOST_EVENTS {
            free.push(event);
            return;
        }
        drop(free);
        event.destroy(device);
    }

    pub(crate) fn destroy(&self, device: &Device) {
        for events in &self.0 {
            let events = std::mem::take(&mut *events.lock());
            events.into_iter().for_each(|event| event.destroy(device));
        }
    }
}

/// After this time the difference to a base is less exact than half a microsecond: CUDA tells it as a float of
/// milliseconds.
const RENEW: Duration = Duration::from_secs(8);

/// The clock of a device. CUDA tells only differences between events, so times are counted from bases.
pub(crate) struct Clock {
    /// The stream does nothing but tell the time.
    stream: Stream,
    newest: Mutex<(Arc<Base>, Instant)>,
}

struct Stream {
    cuda: &'static Cuda,
    context: Context,
    raw: cuda::Stream,
}

// SAFETY: CUDA's streams may be used by any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: a context that lives, a stream of it that nobody else has, and a place for what is popped.
        unsafe {
            if (self.cuda.context_push)(self.context.0) == cuda::SUCCESS {
                (self.cuda.stream_destroy)(self.raw);
                (self.cuda.context_pop)(&mut context);
            }
        }
    }
}

/// An event whose time is known, or follows from that of the base before it.
pub(crate) struct Base {
    cuda: &'static Cuda,
    context: Context,
    event: Raw,
    before: Mutex<Option<Arc<Self>>>,
    nanoseconds: OnceLock<u64>,
}

/// The context of the device, which outlives its bases.
struct Context(cuda::Context);

// SAFETY: CUDA's contexts may be used by any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Base {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: a context that lives, an event of it that nobody else has, and a place for what is popped.
        unsafe {
            if (self.cuda.context_push)(self.context.0) == cuda::SUCCESS {
                (self.cuda.event_destroy)(self.event.0);
                (self.cuda.context_pop)(&mut context);
            }
        }
    }
}

impl Base {
    /// The time of the base; `None` if the device has not come to it yet.
    fn time(&self, device: &Device) -> Result<Option<u64>> {
        if let Some(time) = self.nanoseconds.get() {
            return Ok(Some(*time));
        }
        let before = self.before.lock().clone();
        let Some(before) = before else {
            return Ok(self.nanoseconds.get().copied());
        };
        let Some(time) = before.time_of(device, self.event)? else {
            return Ok(None);
        };
        let time = *self.nanoseconds.get_or_init(|| time);
        *self.before.lock() = None;
        Ok(Some(time))
    }

    /// The time of an event behind this one.
    pub(crate) fn time_of(&self, device: &Device, event: Raw) -> Result<Option<u64>> {
        let Some(base) = self.time(device)? else {
            return Ok(None);
        };
        let mut milliseconds = 0.0_f32;
        // SAFETY: a place for the number, and two live events with timestamps.
        let told = unsafe { (device.cuda.event_elapsed)(&mut milliseconds, self.event.0, event.0) };
        if told == cuda::ERROR_NOT_READY {
            return Ok(None);
        }
        device.check(told, "cuEventElapsedTime")?;
        let since = f64::from(milliseconds.max(0.0)) * 1e6;
        Ok(Some(base + since as u64))
    }
}

impl Clock {
    /// Begins to count, from the host's clock.
    pub(crate) fn start(device: &Device) -> Result<Self> {
        let _entered = device.enter()?;
        let mut raw = std::ptr::null_mut();
        let (flags, urgent) = (cuda::STREAM_NON_BLOCKING, device.priorities().1);
        // SAFETY: a place for the stream.
        let made = unsafe { (device.cuda.stream_create)(&mut raw, flags, urgent) };
        device.check(made, "cuStreamCreateWithPriority")?;
        let stream = Stream {
            cuda: device.cuda,
            context: Context(device.context()),
            raw,
        };
        let base = base(device, &stream, None)?;
        // SAFETY: a live event.
        let reached = unsafe { (device.cuda.event_synchronize)(base.event.0) };
        device.check(reached, "cuEventSynchronize")?;
        base.nanoseconds.get_or_init(host_time);
        let newest = Mutex::new((base, Instant::now()));
        Ok(Self { stream, newest })
    }

    /// A base for events that are recorded from now on.
    pub(crate) fn base(&self, device: &Device) -> Result<Arc<Base>> {
        let mut newest = self.newest.lock();
        let (old, set) = &*newest;
        if set.elapsed() <= RENEW {
            return Ok(Arc::clone(old));
        }
        // By now the device has come to it, so that the chain of bases does not grow.
        old.time(device)?;
        let new = base(device, &self.stream, Some(Arc::clone(old)))?;
        *newest = (Arc::clone(&new), Instant::now());
        Ok(new)
    }

    /// The time of the device.
    pub(crate) fn now(&self, device: &Device) -> Result<u64> {
        let _entered = device.enter()?;
        let before = self.base(device)?;
        let now = base(device, &self.stream, Some(before))?;
        // SAFETY: a live event of a stream that does nothing else.
        let reached = unsafe { (device.cuda.event_synchronize)(now.event.0) };
        device.check(reached, "cuEventSynchronize")?;
        let missing = || Fault::new(c::OTR_ERR_INTERNAL, "an event that was reached has no time");
        now.time(device)?.ok_or_else(missing)
    }
}

/// An event on the stream of the clock.
fn base(device: &Device, stream: &Stream, before: Option<Arc<Base>>) -> Result<Arc<Base>> {
    let event = Raw::create(device, true)?;
    // SAFETY: a live event and a live stream of one context.
    let recorded = unsafe { (device.cuda.event_record)(event.0, stream.raw) };
    device.check(recorded, "cuEventRecord")?;
    Ok(Arc::new(Base {
        cuda: device.cuda,
        context: Context(device.context()),
        event,
        before: Mutex::new(before),
        nanoseconds: OnceLock::new(),
    }))
}

/// Nanoseconds of a clock of the host that never goes back.
fn host_time() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // The time counts from 1: a time of 0 looks as if nobody had written it.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}
