//! Events, and the clocks of devices. An event is the kit's, with its driver.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_contract as c;
use outrigger_driver_kit::given::{Out, event_flags};
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::{Fault, Progress, Result, event as kit};

use crate::driver::{Open, get as get_driver};
use crate::queue::{self, Lane, Queue};

/// The handle of an event.
pub(crate) struct Event {
    open: Arc<Open>,
    event: kit::Event<Lane>,
}

impl Object for Event {
    type Raw = c::otr_drv_event;
    const KIND: u64 = 0x6f63_6c20_6576_656e;
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
        return Err(Fault::handle(
            "the event and the queue are of two open drivers: both have to be of one",
        ));
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
    open.device(device)?;
    // SAFETY: R1: NULL, or a struct of the size that stands in it.
    let flags = unsafe { event_flags(params)? };
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
        return Err(Fault::argument(
            "the event has no timestamp: make it with OTR_EVENT_TIMING",
        ));
    }
    let Some(point) = event.point() else {
        return Err(Fault::argument(
            "the event was never recorded, so it has no time",
        ));
    };
    if point.query()? == Progress::NotReady {
        return Ok(Progress::NotReady);
    }
    let marker = point.marker().ok_or_else(|| {
        let text = "a timed event has no marker: a defect of the driver";
        Fault::new(c::OTR_ERR_INTERNAL, text)
    })?;
    place.give(marker.time()?);
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
    let device = open.device(device)?;
    let place = Out::new(place, "the place for the time")?;
    place.give(device.now()?);
    Ok(())
}
