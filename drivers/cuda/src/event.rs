//! Events and times: the kit's events, as handles.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_contract as c;
use outrigger_driver_kit::given::{Out, event_flags};
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::recording::Marked;
use outrigger_driver_kit::{Fault, Progress, Result, event as kit, queue as kit_queue};

use crate::body::Recorded;
use crate::driver::{Open, get as get_driver};
use crate::lane::Lane;
use crate::queue::{self, Queue};

/// The handle of an event.
pub(crate) struct Event {
    open: Arc<Open>,
    device: u32,
    event: kit::Event<Lane>,
    /// The mark that stands in place of the point if the event was recorded last on a queue that records.
    marked: Marked<Recorded>,
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
    params: *const c::otr_event_params,
    place: *mut *mut c::otr_drv_event,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get_driver(handle)? };
    let of = open.device(device)?;
    // SAFETY: R1: NULL, or a struct of the size that stands in it.
    let flags = unsafe { event_flags(params)? };
    let place = Out::new(place, "the place for the event")?;
    of.live.events.fetch_add(1, Ordering::Relaxed);
    place.give(handle::give(Event {
        open: Arc::clone(open),
        device,
        event: kit::Event::new(flags != 0),
        marked: Marked::default(),
    }));
    Ok(())
}

/// # Safety
/// R8: no other call uses the event.
pub(crate) unsafe fn destroy(handle: *mut c::otr_drv_event) -> Result {
    // SAFETY: this function's contract.
    let Event {
        open,
        device,
        event,
        ..
    } = unsafe { handle::take::<Event>(handle)? };
    // Waits that were submitted keep its point.
    drop(event);
    let live = &open.devices[device as usize].live;
    live.events.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

/// # Safety
/// R8.
pub(crate) unsafe fn record(event: *mut c::otr_drv_event, queue: *mut c::otr_queue) -> Result {
    // SAFETY: this function's contract.
    let (event, queue) = unsafe { both(event, queue)? };
    if event.marked.record(&queue.recorder) {
        event.event.forget();
        return Ok(());
    }
    event.event.record(&queue.ordered)
}

/// # Safety
/// R8.
pub(crate) unsafe fn query(event: *mut c::otr_drv_event) -> Result<Progress> {
    // SAFETY: this function's contract.
    let event = unsafe { get(event)? };
    event.marked.refuse("event_query")?;
    event.event.query()
}

/// # Safety
/// R8.
pub(crate) unsafe fn synchronize(event: *mut c::otr_drv_event) -> Result {
    // SAFETY: this function's contract.
    let event = unsafe { get(event)? };
    event.marked.refuse("event_synchronize")?;
    event.event.synchronize()
}

/// # Safety
/// R8.
pub(crate) unsafe fn queue_wait(queue: *mut c::otr_queue, event: *mut c::otr_drv_event) -> Result {
    // SAFETY: this function's contract.
    let (event, queue) = unsafe { both(event, queue)? };
    if queue.recorder.wait(&event.marked)? {
        return Ok(());
    }
    let point = event.event.point();
    if queue.recorder.is_active() {
        return match point.as_ref().map(|point| point.query()) {
            None | Some(Ok(Progress::Done)) => Ok(()),
            Some(_) => Err(Fault::new(
                c::OTR_ERR_CAPTURE,
                "a recording can only wait for points of its own, and for those outside that were reached without a failure",
            )),
        };
    }
    match point {
        Some(point) => queue.ordered.wait_for(&point),
        None => Ok(()),
    }
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn time(event: *mut c::otr_drv_event, place: *mut u64) -> Result<Progress> {
    // SAFETY: this function's contract.
    let event = unsafe { get(event)? };
    event.marked.refuse("event_time")?;
    let event = &event.event;
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
    let open = unsafe { get_driver(handle)? };
    let of = open.device(device)?;
    let place = Out::new(place, "the place for the time")?;
    place.give(open.clock(device)?.now(of)?);
    Ok(())
}
