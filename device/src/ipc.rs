//! Memory and events that processes share, by handles that are plain bytes. The caller passes the bytes
//! to the other process, and knows when both processes have finished with the memory or event.

use crate::fork::refuse_fork;
use crate::table::entry;
use crate::{Code, Driver, Error, Event, Physical, Result, params, sys};

impl Driver {
    /// Memory of other processes; `None` if the driver shares none.
    pub fn ipc(&self) -> Option<Ipc<'_>> {
        self.table().ipc.as_ref().map(|group| Ipc {
            driver: self,
            group,
        })
    }
}

/// What stands for exported memory, or an event, in another process of the same user, for as long as the
/// exporter keeps it (R42). It owns nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpcHandle(pub [u8; IpcHandle::SIZE]);

impl IpcHandle {
    /// Bytes of a handle.
    pub const SIZE: usize = sys::OTR_IPC_HANDLE_BYTES;
}

/// Memory of another process, where it lies in this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
}

/// Memory that a driver shares with other processes.
#[derive(Clone, Copy, Debug)]
pub struct Ipc<'a> {
    driver: &'a Driver,
    group: &'a sys::otr_ipc_api,
}

impl Ipc<'_> {
    /// The handle of an allocation, of which `base` is the start.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for what is no live allocation; `UNSUPPORTED` for one that cannot be shared.
    pub fn memory_export(&self, base: u64) -> Result<IpcHandle> {
        refuse_fork()?;
        let mut handle = params::ipc_handle([0; IpcHandle::SIZE]);
        let export = entry!(self.group, memory_export);
        // SAFETY: the driver is open and `handle` lives through the call.
        let code = unsafe { export(self.driver.handle(), base, &mut handle) };
        self.driver.check(code)?;
        Ok(IpcHandle(handle.bytes))
    }

    /// Imports another process's allocation as memory of a device.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for bytes that are no such handle; `NOT_FOUND` where the exporter has freed it;
    /// `UNSUPPORTED` where the driver refuses its own process; `INVALID_DEVICE`.
    pub fn memory_import(&self, device: u32, handle: &IpcHandle) -> Result<Imported> {
        refuse_fork()?;
        self.driver.open_device(device)?;
        let raw = params::ipc_handle(handle.0);
        let mut found = params::imported();
        let import = entry!(self.group, memory_import);
        // SAFETY: the driver is open, and both structs live through the call.
        let code = unsafe { import(self.driver.handle(), device, &raw, &mut found) };
        self.driver.check(code)?;
        if found.address == 0 {
            return Err(Error::new(
                Code::INTERNAL,
                "the driver imported memory at the address 0, which R13 forbids",
            ));
        }
        Ok(Imported {
            address: found.address,
            size: found.size,
        })
    }

    /// Gives an imported allocation back.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for what was not imported.
    ///
    /// # Safety
    /// All submitted work that uses the memory has finished (R12).
    pub unsafe fn memory_close(&self, base: u64) -> Result<()> {
        refuse_fork()?;
        let close = entry!(self.group, memory_close);
        // SAFETY: the driver is open; R12: the caller closes only memory whose work has finished.
        self.driver
            .check(unsafe { close(self.driver.handle(), base) })
    }

    /// Whether physical memory can be shared too.
    pub fn shares_physical(&self) -> bool {
        self.group.physical_export.is_some()
    }

    /// The handle of physical memory.
    ///
    /// # Errors
    /// `UNSUPPORTED` where the driver shares none, or not this; `INVALID_HANDLE`.
    ///
    /// # Safety
    /// It is a live handle of this driver.
    pub unsafe fn physical_export(&self, physical: Physical) -> Result<IpcHandle> {
        refuse_fork()?;
        let Some(export) = self.group.physical_export else {
            return Err(self.no_physical());
        };
        let mut handle = params::ipc_handle([0; IpcHandle::SIZE]);
        // SAFETY: the object is a live handle of this driver; `handle` lives through the call.
        let code = unsafe { export(self.driver.handle(), physical.handle(), &mut handle) };
        self.driver.check(code)?;
        Ok(IpcHandle(handle.bytes))
    }

    /// Makes another process's physical memory an object of a device here, and says how many bytes it has. It is
    /// mapped and destroyed as any.
    ///
    /// # Errors
    /// As of [`memory_import`](Self::memory_import); `UNSUPPORTED` where the driver shares none.
    pub fn physical_import(&self, device: u32, handle: &IpcHandle) -> Result<(Physical, u64)> {
        refuse_fork()?;
        self.driver.open_device(device)?;
        let Some(import) = self.group.physical_import else {
            return Err(self.no_physical());
        };
        let raw = params::ipc_handle(handle.0);
        let (mut found, mut physical) = (params::imported(), std::ptr::null_mut());
        // SAFETY: the driver is open, and all three live through the call.
        let code = unsafe {
            import(
                self.driver.handle(),
                device,
                &raw,
                &mut found,
                &mut physical,
            )
        };
        self.driver.check(code)?;
        Ok((Physical::from_handle(physical)?, found.size))
    }

    /// Whether events can be shared too.
    pub fn shares_events(&self) -> bool {
        self.group.event_export.is_some() && self.group.event_import.is_some()
    }

    /// The handle of an event. Other processes see it where it is recorded, also later.
    ///
    /// # Errors
    /// `UNSUPPORTED` where the driver shares none, or not this; `INVALID_HANDLE` for one of another driver.
    pub fn event_export(&self, event: &Event) -> Result<IpcHandle> {
        refuse_fork()?;
        event.check_driver(self.driver)?;
        let Some(export) = self.group.event_export else {
            return Err(self.no_events());
        };
        event.show()?;
        let mut handle = params::ipc_handle([0; IpcHandle::SIZE]);
        // SAFETY: the event is live, and `handle` lives through the call.
        let code = unsafe { export(event.raw(), &mut handle) };
        self.driver.check(code)?;
        Ok(IpcHandle(handle.bytes))
    }

    /// Imports another process's event, to query it and wait for it. The other process records it.
    ///
    /// # Errors
    /// As of [`memory_import`](Self::memory_import); `UNSUPPORTED` where the driver shares none.
    pub fn event_import(&self, handle: &IpcHandle) -> Result<Event> {
        refuse_fork()?;
        let Some(import) = self.group.event_import else {
            return Err(self.no_events());
        };
        self.driver.open_any()?;
        let raw = params::ipc_handle(handle.0);
        let mut event = std::ptr::null_mut();
        // SAFETY: the driver is open, and both live through the call.
        let code = unsafe { import(self.driver.handle(), &raw, &mut event) };
        self.driver.check(code)?;
        Event::imported(self.driver, event)
    }

    #[cold]
    fn no_events(&self) -> Error {
        Error::new(
            Code::UNSUPPORTED,
            format!("the driver {} shares no events", self.driver.name()),
        )
    }

    #[cold]
    fn no_physical(&self) -> Error {
        Error::new(
            Code::UNSUPPORTED,
            format!(
                "the driver {} shares allocations and no physical memory",
                self.driver.name()
            ),
        )
    }
}
