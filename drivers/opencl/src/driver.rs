//! An open driver: what all of its objects share, and the entries that concern it as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_contract as c;
use outrigger_driver_kit::allocations::Allocations;
use outrigger_driver_kit::given::{self, Out};
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::{Fault, Pool, Result, field};

use crate::cl::{self, Cl};
use crate::device::{self, Device, PROPERTIES_START};
use crate::exit;
use crate::pinned::Pinned;
use crate::platform::{self, Choice};

/// An open driver. Queues keep it alive until their work has finished.
pub(crate) struct Open {
    pub(crate) cl: &'static Cl,
    pub(crate) devices: Box<[Device]>,
    pub(crate) allocations: Allocations,
    pub(crate) pinned: Pinned,
    pub(crate) pool: Pool,
    /// Objects that the host has not given back.
    pub(crate) queues: AtomicUsize,
    pub(crate) events: AtomicUsize,
    pub(crate) modules: AtomicUsize,
}

impl Open {
    /// A device that is open.
    pub(crate) fn device(&self, index: u32) -> Result<&Device> {
        let found = self.found(index)?;
        if !found.is_open() {
            return Err(Fault::not_open(index));
        }
        Ok(found)
    }

    /// A device, open or not.
    fn found(&self, index: u32) -> Result<&Device> {
        let found = self.devices.get(index as usize);
        found.ok_or_else(|| Fault::no_device(index, self.devices.len()))
    }

    fn new(options: &str) -> Result<Self> {
        let choice = Choice::parse(options)?;
        Self::over(cl::load()?, &choice)
    }

    /// Opens the driver over some OpenCL, with the devices that were chosen.
    pub(crate) fn over(cl: &'static Cl, choice: &Choice) -> Result<Self> {
        let candidates = platform::find(cl, choice)?;
        let devices = device::found(cl, &candidates);
        exit::watch();
        Ok(Self {
            cl,
            allocations: Allocations::new(devices.iter().map(|one| (one.memory, one.largest))),
            pinned: Pinned::default(),
            pool: Pool::default(),
            queues: AtomicUsize::new(0),
            events: AtomicUsize::new(0),
            modules: AtomicUsize::new(0),
            devices,
        })
    }

    /// The objects that stand in the way of closing, in words.
    fn in_use(&self) -> Option<String> {
        let counts = [
            (self.queues.load(Ordering::Relaxed), "queues"),
            (self.events.load(Ordering::Relaxed), "events"),
            (self.modules.load(Ordering::Relaxed), "modules"),
            (self.allocations.count(), "device allocations"),
            (self.pinned.count(), "pinned allocations"),
        ];
        let left: Vec<String> = (counts.iter())
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        (!left.is_empty()).then(|| left.join(", "))
    }
}

/// The handle of an open driver.
pub(crate) struct Driver(pub(crate) Arc<Open>);

impl Object for Driver {
    type Raw = c::otr_driver;
    const KIND: u64 = 0x6f63_6c20_6472_7672;
    const NAME: &'static str = "the driver";
}

/// The open driver behind a handle.
///
/// # Safety
/// R8: the handle is NULL, or one of this driver's that no other call destroys.
pub(crate) unsafe fn get<'a>(handle: *mut c::otr_driver) -> Result<&'a Arc<Open>> {
    // SAFETY: this function's contract.
    let driver = unsafe { handle::get::<Driver>(handle)? };
    Ok(&driver.0)
}

/// # Safety
/// R1, R10: the parameters are NULL or a struct of their size.
pub(crate) unsafe fn open(
    params: *const c::otr_open_params,
    place: *mut *mut c::otr_driver,
) -> Result {
    let place = Out::new(place, "the place for the driver")?;
    let mut options = "";
    if !params.is_null() {
        // SAFETY: not NULL, so a struct of its size (R1), with a text or NULL (R10).
        unsafe {
            if let Some(text) = field!(params, c::otr_open_params, options) {
                options = given::text(text, "the options")?.unwrap_or_default();
            }
        }
    }
    let open = Arc::new(Open::new(options)?);
    place.give(handle::give(Driver(open)));
    Ok(())
}

/// # Safety
/// R8, R12: no other call uses the driver.
pub(crate) unsafe fn close(handle: *mut c::otr_driver) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    if let Some(left) = open.in_use() {
        return Err(Fault::new(
            c::OTR_ERR_BUSY,
            format!("{left} are left: destroy and free all before closing the driver"),
        ));
    }
    // Destroyed queues may still work (R12).
    open.pool.finish();
    // SAFETY: this function's contract.
    unsafe { handle::take::<Driver>(handle) }.map(drop)
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn device_count(handle: *mut c::otr_driver, place: *mut u32) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    Out::new(place, "the place for the count")?.give(open.devices.len() as u32);
    Ok(())
}

/// # Safety
/// R1, R8, R10.
pub(crate) unsafe fn device_properties(
    handle: *mut c::otr_driver,
    device: u32,
    place: *mut c::otr_device_properties,
) -> Result {
    // SAFETY: this function's contract.
    let device = unsafe { get(handle)? }.found(device)?;
    // SAFETY: NULL, or a struct of its size (R1).
    unsafe {
        given::write_struct(
            place,
            device.properties(),
            PROPERTIES_START,
            "the place for the properties",
        )
    }
}

/// # Safety
/// R1, R8: the parameters are NULL or a struct of their size.
pub(crate) unsafe fn device_open(
    handle: *mut c::otr_driver,
    device: u32,
    params: *const c::otr_device_params,
) -> Result {
    // SAFETY: this function's contract.
    let device = unsafe { get(handle)? }.found(device)?;
    // SAFETY: this function's contract.
    unsafe { given::device_params(params)? };
    device.open()
}

/// # Safety
/// R8: no other call uses the device.
pub(crate) unsafe fn device_close(handle: *mut c::otr_driver, index: u32) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    let device = open.device(index)?;
    match open.allocations.count_of(index) {
        0 => device.close(),
        left => {
            let text = format!("{left} allocations of device {index} are left: free them first");
            return Err(Fault::new(c::OTR_ERR_BUSY, text));
        }
    }
    Ok(())
}
