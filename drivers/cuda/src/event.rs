//! Events, and the clocks of devices. An event of the contract is the kit's, with its driver; an event of CUDA's marks a
//! point of a stream, and is used again when nobody looks at the point any more.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use outrigger_contract as c;
use outrigger_driver_kit::given::Out;
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::{Fault, Progress, Result, event as kit, queue as kit_queue};
use parking_lot::Mutex;

use crate::cuda::{self, Cuda};
use crate::device::Device;
use crate::driver::{Open, get as get_driver};
use crate::lane::Lane;
use crate::queue::{self, Queue};

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
#[derive(Default)]
pub(crate) struct Clock(OnceLock<Ticking>);

struct Ticking {
    /// It does nothing but to tell the time.
    stream: StreamOfClock,
    /// `None` when the device is being closed.
    newest: Mutex<Option<(Arc<Base>, Instant)>>,
}

struct StreamOfClock(cuda::Stream);

// SAFETY: CUDA's streams may be used by any thread.
unsafe impl Send for StreamOfClock {}
// SAFETY: as above.
unsafe impl Sync for StreamOfClock {}

/// An event whose time is known, or follows from that of the base before it.
pub(crate) struct Base {
    cuda: &'static Cuda,
    context: Context,
    event: Raw,
    before: Mutex<Option<Arc<Self>>>,
    nanoseconds: OnceLock<u64>,
}

/// Of the device, which outlives its bases.
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
    /// When it was; `None` if the device has not come to it yet.
    fn time(&self) -> Result<Option<u64>> {
        if let Some(time) = self.nanoseconds.get() {
            return Ok(Some(*time));
        }
        let before = self.before.lock().clone();
        let Some(before) = before else {
            return Ok(self.nanoseconds.get().copied());
        };
        let Some(time) = before.time_of(self.event)? else {
            return Ok(None);
        };
        let time = *self.nanoseconds.get_or_init(|| time);
        *self.before.lock() = None;
        Ok(Some(time))
    }

    /// The time of an event behind this one.
    pub(crate) fn time_of(&self, event: Raw) -> Result<Option<u64>> {
        let Some(base) = self.time()? else {
            return Ok(None);
        };
        let mut milliseconds = 0.0_f32;
        // SAFETY: a place for the number, and two live events with timestamps.
        let told = unsafe { (self.cuda.event_elapsed)(&mut milliseconds, self.event.0, event.0) };
        if told == cuda::ERROR_NOT_READY {
            return Ok(None);
        }
        self.cuda.check(told, "cuEventElapsedTime")?;
        let since = f64::from(milliseconds.max(0.0)) * 1e6;
        Ok(Some(base + since as u64))
    }
}

impl Clock {
    /// Begins to count, from the host's clock.
    pub(crate) fn start(&self, device: &Device) -> Result {
        let _entered = device.enter()?;
        let mut stream = std::ptr::null_mut();
        let (flags, urgent) = (cuda::STREAM_NON_BLOCKING, device.priorities.1);
        // SAFETY: a place for the stream.
        let made = unsafe { (device.cuda.stream_create)(&mut stream, flags, urgent) };
        device.check(made, "cuStreamCreateWithPriority")?;
        let stream = StreamOfClock(stream);
        let base = base(device, &stream, None)?;
        // SAFETY: a live event.
        let reached = unsafe { (device.cuda.event_synchronize)(base.event.0) };
        device.check(reached, "cuEventSynchronize")?;
        base.nanoseconds.get_or_init(host_time);
        let newest = Mutex::new(Some((base, Instant::now())));
        self.0.get_or_init(|| Ticking { stream, newest });
        Ok(())
    }

    /// A base for events that are recorded from now on.
    pub(crate) fn base(&self, device: &Device) -> Result<Arc<Base>> {
        let ticking = self.ticking()?;
        let mut newest = ticking.newest.lock();
        let (old, set) = newest.as_ref().ok_or_else(stopped)?;
        if set.elapsed() <= RENEW {
            return Ok(Arc::clone(old));
        }
        // By now the device has come to it, so that the chain of bases does not grow.
        old.time()?;
        let new = base(device, &ticking.stream, Some(Arc::clone(old)))?;
        *newest = Some((Arc::clone(&new), Instant::now()));
        Ok(new)
    }

    /// What time it is on the device.
    pub(crate) fn now(&self, device: &Device) -> Result<u64> {
        let _entered = device.enter()?;
        let before = self.base(device)?;
        let now = base(device, &self.ticking()?.stream, Some(before))?;
        // SAFETY: a live event of a stream that does nothing else.
        let reached = unsafe { (device.cuda.event_synchronize)(now.event.0) };
        device.check(reached, "cuEventSynchronize")?;
        now.time()?
            .ok_or_else(|| Fault::new(c::OTR_ERR_INTERNAL, "an event that was reached has no time"))
    }

    fn ticking(&self) -> Result<&Ticking> {
        self.0.get().ok_or_else(stopped)
    }

    /// Ends with the device.
    pub(crate) fn stop(&self, device: &Device) {
        if let (Some(ticking), Ok(_entered)) = (self.0.get(), device.enter()) {
            *ticking.newest.lock() = None;
            // SAFETY: made by `start`.
            unsafe { (device.cuda.stream_destroy)(ticking.stream.0) };
        }
    }
}

#[cold]
fn stopped() -> Fault {
    Fault::new(c::OTR_ERR_INTERNAL, "the clock of the device does not run")
}

/// An event on the stream of the clock.
fn base(device: &Device, stream: &StreamOfClock, before: Option<Arc<Base>>) -> Result<Arc<Base>> {
    let event = Raw::create(device, true)?;
    // SAFETY: a live event and a live stream of one context.
    let recorded = unsafe { (device.cuda.event_record)(event.0, stream.0) };
    device.check(recorded, "cuEventRecord")?;
    Ok(Arc::new(Base {
        cuda: device.cuda,
        context: Context(device.context),
        event,
        before: Mutex::new(before),
        nanoseconds: OnceLock::new(),
    }))
}

/// Nanoseconds of a clock of the host that never goes back.
fn host_time() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // From 1 on: a time of 0 looks as if nobody had written it.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

/// The handle of an event.
pub(crate) struct Event {
    open: Arc<Open>,
    event: kit::Event<Lane>,
}

impl Object for Event {
    type Raw = c::otr_drv_event;
    const KIND: u64 = 0x6375_6461_6576_656e;
    const NAME: &'static str = "the event";
}

/// # Safety
/// R8: the handle is NULL, or one of this driver's that no other call destroys.
unsafe fn get<'a>(handle: *mut c::otr_drv_event) -> Result<&'a Event> {
    // SAFETY: this function's contract.
    unsafe { handle::get::<Event>(handle) }
}

/// An event and a queue of one call, which belong to one open driver (R7).
///
/// # Safety
/// As for `get`.
unsafe fn both<'a>(
    event: *mut c::otr_drv_event,
    queue: *mut c::otr_queue,
) -> Result<(&'a Event, &'a Queue)> {
    // SAFETY: this function's contract.
    let (event, queue) = unsafe { (get(event)?, queue::get(queue)?) };
    if !Arc::ptr_eq(&event.open, &queue.open) {
        let text = "the event and the queue are of two open drivers: both have to be of one";
        return Err(Fault::handle(text));
    }
    Ok((event, queue))
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn create(
    handle: *mut c::otr_driver,
    device: u32,
    flags: u32,
    place: *mut *mut c::otr_drv_event,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get_driver(handle)? };
    open.device(device)?;
    if flags & !c::OTR_EVENT_TIMING != 0 {
        return Err(Fault::argument(format!(
            "event flags {flags:#x}; known is OTR_EVENT_TIMING ({:#x})",
            c::OTR_EVENT_TIMING
        )));
    }
    let place = Out::new(place, "the place for the event")?;
    open.events.fetch_add(1, Ordering::Relaxed);
    place.give(handle::give(Event {
        open: Arc::clone(open),
        event: kit::Event::new(flags != 0),
    }));
    Ok(())
}

/// # Safety
/// R8: no other call uses the event.
pub(crate) unsafe fn destroy(handle: *mut c::otr_drv_event) -> Result {
    // SAFETY: this function's contract.
    let Event { open, event } = unsafe { handle::take::<Event>(handle)? };
    // Waits that were submitted keep its point.
    drop(event);
    open.events.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

/// # Safety
/// R8.
pub(crate) unsafe fn record(event: *mut c::otr_drv_event, queue: *mut c::otr_queue) -> Result {
    // SAFETY: this function's contract.
    let (event, queue) = unsafe { both(event, queue)? };
    event.event.record(&queue.ordered)
}

/// # Safety
/// R8.
pub(crate) unsafe fn query(event: *mut c::otr_drv_event) -> Result<Progress> {
    // SAFETY: this function's contract.
    unsafe { get(event)? }.event.query()
}

/// # Safety
/// R8.
pub(crate) unsafe fn synchronize(event: *mut c::otr_drv_event) -> Result {
    // SAFETY: this function's contract.
    unsafe { get(event)? }.event.synchronize()
}

/// # Safety
/// R8.
pub(crate) unsafe fn queue_wait(queue: *mut c::otr_queue, event: *mut c::otr_drv_event) -> Result {
    // SAFETY: this function's contract.
    let (event, queue) = unsafe { both(event, queue)? };
    match event.event.point() {
        Some(point) => queue.ordered.wait_for(&point),
        None => Ok(()),
    }
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn time(event: *mut c::otr_drv_event, place: *mut u64) -> Result<Progress> {
    // SAFETY: this function's contract.
    let event = &unsafe { get(event)? }.event;
    let place = Out::new(place, "the place for the time")?;
    if !event.is_timed() {
        let text = "the event has no timestamp: make it with OTR_EVENT_TIMING";
        return Err(Fault::argument(text));
    }
    let Some(point) = event.point() else {
        return Err(Fault::argument(
            "the event was never recorded, so it has no time",
        ));
    };
    if point.query()? == Progress::NotReady {
        return Ok(Progress::NotReady);
    }
    let Some(marker) = point.marker() else {
        return Err(Fault::new(
            c::OTR_ERR_INTERNAL,
            "a timed event has no marker",
        ));
    };
    let mut time = marker.time()?;
    if time.is_none() {
        // All work before the event has finished, and the stream comes to it at this moment.
        kit_queue::Marker::wait(&**marker)?;
        time = marker.time()?;
    }
    let Some(time) = time else {
        return Ok(Progress::NotReady);
    };
    place.give(time);
    Ok(Progress::Done)
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn device_time(
    handle: *mut c::otr_driver,
    device: u32,
    place: *mut u64,
) -> Result {
    // SAFETY: this function's contract.
    let device = unsafe { get_driver(handle)? }.device(device)?;
    let place = Out::new(place, "the place for the time")?;
    place.give(device.clock.now(device)?);
    Ok(())
}
