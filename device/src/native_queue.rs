//! Queues that other libraries use too, through the vendor's own interface (R55, R56). What a native queue is, the driver
//! alone knows: here it is a number.

use std::ptr::NonNull;

use crate::fork::refuse_fork;
use crate::table::entry;
use crate::{Code, Driver, Error, Queue, Result, sys};

impl Driver {
    /// Whether the driver shares its queues with other libraries.
    pub fn shares_native_queues(&self) -> bool {
        self.table().native_queue.is_some()
    }

    fn native_queues(&self) -> Result<&sys::otr_native_queue_api> {
        self.table().native_queue.as_ref().ok_or_else(|| {
            Error::new(
                Code::UNSUPPORTED,
                format!(
                    "the driver {} shares its queues with no other library: it has no table `native_queue`",
                    self.name()
                ),
            )
        })
    }

    /// Makes a queue of a native one of a device, which its library keeps until the queue is gone and its work has
    /// finished.
    ///
    /// # Errors
    /// `UNSUPPORTED`; `INVALID_DEVICE` and `INVALID_ARGUMENT` for a native queue that is not of the device, or not in
    /// order.
    ///
    /// # Safety
    /// `native` is a native queue of the driver's interface, and lives as R56 has it.
    pub unsafe fn queue_adopt(&self, device: u32, native: u64) -> Result<Queue> {
        refuse_fork()?;
        self.open_device(device)?;
        let adopt = entry!(self.native_queues()?, adopt);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver is open, and the handle lives through the call; R56 by this function's contract.
        self.check(unsafe { adopt(self.handle(), device, native, &mut handle) })?;
        match NonNull::new(handle) {
            Some(handle) => {
                let queue = Queue::of(self, device, handle);
                queue.order().lane().share();
                Ok(queue)
            }
            None => Err(Error::new(
                Code::INTERNAL,
                "the driver gave NULL for a queue",
            )),
        }
    }
}

impl Queue {
    /// What the vendor's own interface calls the queue. All that was submitted is in there when this returns.
    ///
    /// # Errors
    /// `UNSUPPORTED`; `CANCELLED` for a queue that has failed; `CAPTURE` while it records.
    pub fn native(&self) -> Result<u64> {
        refuse_fork()?;
        let handle = entry!(self.driver().native_queues()?, handle);
        self.settle()?;
        // Before the call: what another thread submits meanwhile is not held either.
        self.order().lane().share();
        let mut native = 0;
        // SAFETY: the queue is live, and the place lives through the call.
        let code = unsafe { handle(self.raw(), &mut native) };
        self.driver().check(code)?;
        Ok(native)
    }
}
