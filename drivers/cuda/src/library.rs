//! cuBLASLt as an open driver has it: a handle for each device, which is made when it is first asked for.

use std::sync::OnceLock;

use outrigger_contract as c;
use outrigger_driver_kit::{Fault, Result, table};
use parking_lot::Mutex;

use crate::cublaslt::{self, Lt};
use crate::device::Device;

/// The handle of cuBLASLt for a device.
pub(crate) struct Handle {
    pub(crate) lt: &'static Lt,
    pub(crate) raw: cublaslt::Handle,
}

// SAFETY: cuBLASLt's handles may be used by any thread, and by several at a time.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// The library, if it is there.
pub(crate) struct Library {
    lt: Option<&'static Lt>,
    handles: Box<[OnceLock<Handle>]>,
    /// Held while a handle is made.
    making: Mutex<()>,
}

impl Library {
    /// The library of a name, which has to be there, or one that the system's loader finds.
    pub(crate) fn new(path: Option<&str>, devices: usize) -> Result<Self> {
        let lt = match cublaslt::load(path) {
            Ok(lt) => Some(lt),
            // Whoever named it wants it.
            Err(fault) if path.is_some() => return Err(fault),
            Err(fault) => {
                let text = format!("products of matrices are no operators: {}", fault.text());
                table::log(c::OTR_LOG_INFO, &text);
                None
            }
        };
        Ok(Self {
            lt,
            handles: (0..devices).map(|_| OnceLock::new()).collect(),
            making: Mutex::new(()),
        })
    }

    pub(crate) fn is_there(&self) -> bool {
        self.lt.is_some()
    }

    /// The handle for a device, whose context is entered.
    pub(crate) fn handle(&self, device: &Device) -> Result<&Handle> {
        let place = &self.handles[device.ordinal as usize];
        if let Some(handle) = place.get() {
            return Ok(handle);
        }
        let Some(lt) = self.lt else {
            return Err(Fault::unsupported("cuBLASLt is not installed"));
        };
        let _making = self.making.lock();
        if let Some(handle) = place.get() {
            return Ok(handle);
        }
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        lt.check(unsafe { (lt.create)(&mut raw) }, "cublasLtCreate")?;
        Ok(place.get_or_init(|| Handle { lt, raw }))
    }

    /// Gives the handle for a device back. Its work has finished.
    pub(crate) fn close(&mut self, device: &Device) {
        if let Some(Handle { lt, raw }) = self.handles[device.ordinal as usize].take()
            && let Ok(_entered) = device.enter()
        {
            // SAFETY: made by `handle`, and used no more.
            unsafe { (lt.destroy)(raw) };
        }
    }
}
