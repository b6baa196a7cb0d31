//! cuBLASLt as an open driver has it: a handle for each device, which is made when it is first asked for.

use std::sync::Arc;

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
    /// The handles by device. The lock is held while one is made.
    handles: Box<[Mutex<Option<Arc<Handle>>>]>,
}

impl Library {
    /// The library of a name, which has to be there, or one that the system's loader finds.
    pub(crate) fn new(path: Option<&str>, devices: usize) -> Result<Self> {
        let lt = match cublaslt::load(path) {
            Ok(lt) => Some(lt),
            // A host that has named cuBLASLt wants it.
            Err(fault) if path.is_some() => return Err(fault),
            Err(fault) => {
                let text = format!("products of matrices are no operators: {}", fault.text());
                table::log(c::OTR_LOG_INFO, &text);
                None
            }
        };
        Ok(Self {
            lt,
            handles: (0..devices).map(|_| Mutex::default()).collect(),
        })
    }

    pub(crate) fn is_there(&self) -> bool {
        self.lt.is_some()
    }

    /// The handle for a device, whose context is entered.
    pub(crate) fn handle(&self, device: &Device) -> Result<Arc<Handle>> {
        let mut place = self.handles[device.ordinal as usize].lock();
        if let Some(handle) = &*place {
            return Ok(Arc::clone(handle));
        }
        let Some(lt) = self.lt else {
            return Err(Fault::unsupported("cuBLASLt is not installed"));
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        lt.check(unsafe { (lt.create)(&mut raw) }, "cublasLtCreate")?;
        Ok(Arc::clone(place.insert(Arc::new(Handle { lt, raw }))))
    }

    /// Gives the handle for a device back. Its work has finished.
    pub(crate) fn close(&self, device: &Device) {
        if let Some(handle) = self.handles[device.ordinal as usize].lock().take()
            && let Ok(_entered) = device.enter()
        {
            // SAFETY: made by `handle`, and used no more.
            unsafe { (handle.lt.destroy)(handle.raw) };
        }
    }
}
