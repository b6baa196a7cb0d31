//! Memory and semaphores that other libraries and processes share by file descriptor (R59 to R63). Descriptors are owned
//! here as everywhere in Rust: what an export gives is the caller's, and an import borrows one. The caller knows when the
//! work that uses imported memory has finished.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::fork::{forked, refuse_fork};
use crate::table::entry;
use crate::{Code, Driver, Error, Queue, Result, params, sys};

/// What a file descriptor is. Any number is valid; a driver refuses what it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FdKind(pub u32);

impl FdKind {
    /// Of the driver, and of those that its documentation names.
    pub const OPAQUE: Self = Self(sys::OTR_FD_OPAQUE);
    /// A dma-buf of Linux.
    pub const DMA_BUF: Self = Self(sys::OTR_FD_DMA_BUF);
}

/// Memory that an export gave.
#[derive(Debug)]
pub struct ExportedMemory {
    /// The descriptor, which keeps the bytes.
    pub fd: OwnedFd,
    /// Where they begin in it.
    pub offset: u64,
    /// How many there are: as many as were allocated or more.
    pub size: u64,
}

/// Memory in a descriptor, for an import.
#[derive(Clone, Copy, Debug)]
pub struct FdMemory<'a> {
    /// The descriptor, which stays the caller's.
    pub fd: BorrowedFd<'a>,
    /// What it is.
    pub kind: FdKind,
    /// Where the memory begins in it.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
}

impl Driver {
    /// Memory and semaphores by file descriptor.
    ///
    /// # Errors
    /// `UNSUPPORTED` where the driver has no table for them.
    pub fn external(&self) -> Result<External<'_>> {
        let group = self.table().external.as_ref().ok_or_else(|| {
            Error::new(
                Code::UNSUPPORTED,
                format!(
                    "the driver {} shares nothing by file descriptor: it has no table `external`",
                    self.name()
                ),
            )
        })?;
        Ok(External {
            driver: self,
            group,
        })
    }
}

/// What a driver shares by file descriptor.
#[derive(Clone, Copy, Debug)]
pub struct External<'a> {
    driver: &'a Driver,
    group: &'a sys::otr_external_api,
}

// SAFETY: R8: every function may be called from any thread. The table is a copy that is never written.
unsafe impl Send for External<'_> {}
// SAFETY: as above.
unsafe impl Sync for External<'_> {}

impl External<'_> {
    /// Whether memory can be exported, and not only imported.
    pub fn exports_memory(&self) -> bool {
        self.group.memory_export.is_some()
    }

    /// Whether semaphores can be made and exported, and not only imported.
    pub fn makes_semaphores(&self) -> bool {
        self.group.semaphore_create.is_some()
    }

    /// Allocates memory that can be exported. It is freed as any.
    ///
    /// # Errors
    /// As of [`Driver::memory_alloc`]; `UNSUPPORTED` where the driver exports no memory.
    pub fn memory_alloc(&self, device: u32, size: u64) -> Result<u64> {
        if !self.exports_memory() {
            return Err(self.only_imports("memory"));
        }
        self.driver
            .allocate(device, size, sys::OTR_MEMORY_EXPORTABLE_FD)
    }

    /// A new descriptor of what [`memory_alloc`](Self::memory_alloc) gave.
    ///
    /// # Errors
    /// `UNSUPPORTED` for a kind that the driver has not, and for other memory; `INVALID_ARGUMENT` for an address that
    /// is not the start of an allocation.
    pub fn memory_export(&self, address: u64, kind: FdKind) -> Result<ExportedMemory> {
        refuse_fork()?;
        let Some(export) = self.group.memory_export else {
            return Err(self.only_imports("memory"));
        };
        let mut place = params::fd(-1, kind.0);
        // SAFETY: the driver is open, and the place lives through the call.
        let code = unsafe { export(self.driver.handle(), address, &mut place) };
        self.driver.check(code)?;
        Ok(ExportedMemory {
            fd: owned(&place)?,
            offset: place.offset,
            size: place.size,
        })
    }

    /// Makes memory of a descriptor memory of a device, and gives its address.
    ///
    /// # Errors
    /// `UNSUPPORTED` for a kind that the driver has not; `INVALID_HANDLE` for a descriptor that is none of the kind;
    /// `INVALID_ARGUMENT` for more bytes than there are; `INVALID_DEVICE`.
    pub fn memory_import(&self, device: u32, memory: &FdMemory<'_>) -> Result<u64> {
        refuse_fork()?;
        self.driver.open_device(device)?;
        let raw = sys::otr_fd {
            offset: memory.offset,
            size: memory.size,
            ..params::fd(memory.fd.as_raw_fd(), memory.kind.0)
        };
        let mut address = 0;
        let import = entry!(self.group, memory_import);
        // SAFETY: the driver is open, and both live through the call.
        let code = unsafe { import(self.driver.handle(), device, &raw, &mut address) };
        self.driver.check(code)?;
        if address == 0 {
            return Err(Error::new(
                Code::INTERNAL,
                "the driver imported memory at the address 0, which R13 forbids",
            ));
        }
        Ok(address)
    }

    /// Gives imported memory back.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for what was not imported.
    ///
    /// # Safety
    /// All submitted work that uses the memory has finished (R12).
    pub unsafe fn memory_close(&self, address: u64) -> Result<()> {
        refuse_fork()?;
        let close = entry!(self.group, memory_close);
        // SAFETY: the driver is open; R12: the caller closes only memory whose work has finished.
        self.driver
            .check(unsafe { close(self.driver.handle(), address) })
    }

    /// Makes a semaphore that can be exported.
    ///
    /// # Errors
    /// `UNSUPPORTED` where the driver only imports them; what else the driver answers.
    pub fn semaphore_create(&self, device: u32, initial: u64) -> Result<Semaphore> {
        refuse_fork()?;
        self.driver.open_device(device)?;
        let Some(create) = self.group.semaphore_create else {
            return Err(self.only_imports("semaphores"));
        };
        let params = params::semaphore(initial);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver is open, and both live through the call.
        let code = unsafe { create(self.driver.handle(), device, &params, &mut handle) };
        self.driver.check(code)?;
        Semaphore::of(self.driver, device, handle)
    }

    /// Makes a semaphore of a device of that in a descriptor.
    ///
    /// # Errors
    /// `UNSUPPORTED` for a kind that the driver has not; `INVALID_HANDLE` for a descriptor that is none of the kind;
    /// `INVALID_DEVICE`.
    pub fn semaphore_import(
        &self,
        device: u32,
        fd: BorrowedFd<'_>,
        kind: FdKind,
    ) -> Result<Semaphore> {
        refuse_fork()?;
        self.driver.open_device(device)?;
        let raw = params::fd(fd.as_raw_fd(), kind.0);
        let mut handle = std::ptr::null_mut();
        let import = entry!(self.group, semaphore_import);
        // SAFETY: the driver is open, and both live through the call.
        let code = unsafe { import(self.driver.handle(), device, &raw, &mut handle) };
        self.driver.check(code)?;
        Semaphore::of(self.driver, device, handle)
    }

    #[cold]
    fn only_imports(&self, what: &str) -> Error {
        Error::new(
            Code::UNSUPPORTED,
            format!(
                "the driver {} imports {what} by file descriptor, and exports none",
                self.driver.name()
            ),
        )
    }
}

/// Takes over the descriptor that a driver gave.
fn owned(place: &sys::otr_fd) -> Result<OwnedFd> {
    if place.fd < 0 {
        return Err(Error::new(
            Code::INTERNAL,
            format!("the driver gave the file descriptor {}", place.fd),
        ));
    }
    // SAFETY: R59: an export gives a descriptor of its own each time, which is the host's.
    Ok(unsafe { OwnedFd::from_raw_fd(place.fd) })
}

/// A number that only grows, which processes and libraries share (R61). Dropping it does not wait.
pub struct Semaphore {
    handle: NonNull<sys::otr_drv_semaphore>,
    device: u32,
    // Declared last: the driver stays open until the semaphore is destroyed.
    driver: Driver,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Semaphore {}
// SAFETY: as above.
unsafe impl Sync for Semaphore {}

impl Drop for Semaphore {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let group = self.driver.table().external.as_ref();
        let Some(destroy) = group.and_then(|group| group.semaphore_destroy) else {
            return;
        };
        // SAFETY: the handle is live and nobody else holds this value.
        if let Err(error) = self.driver.check(unsafe { destroy(self.raw()) }) {
            tracing::warn!(target: "outrigger::device", %error, "a semaphore could not be destroyed");
        }
    }
}

impl Semaphore {
    fn of(driver: &Driver, device: u32, handle: *mut sys::otr_drv_semaphore) -> Result<Self> {
        match NonNull::new(handle) {
            Some(handle) => Ok(Self {
                handle,
                device,
                driver: driver.clone(),
            }),
            None => Err(Error::new(
                Code::INTERNAL,
                "the driver gave NULL for a semaphore",
            )),
        }
    }

    /// The index of the device within its driver.
    pub fn device(&self) -> u32 {
        self.device
    }

    fn raw(&self) -> *mut sys::otr_drv_semaphore {
        self.handle.as_ptr()
    }

    /// A new descriptor of the semaphore.
    ///
    /// # Errors
    /// `UNSUPPORTED` for a kind that the driver has not, and where it only imports semaphores.
    pub fn export(&self, kind: FdKind) -> Result<OwnedFd> {
        refuse_fork()?;
        let external = self.driver.external()?;
        let Some(export) = external.group.semaphore_export else {
            return Err(external.only_imports("semaphores"));
        };
        let mut place = params::fd(-1, kind.0);
        // SAFETY: the semaphore is live, and the place lives through the call.
        self.driver
            .check(unsafe { export(self.raw(), &mut place) })?;
        owned(&place)
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("driver", &self.driver.name())
            .field("device", &self.device)
            .field("handle", &self.handle)
            .finish()
    }
}

impl Queue {
    /// Sets a semaphore to a value, which is larger than what it has, once all that was submitted before has taken effect
    /// or has failed (R62).
    ///
    /// # Errors
    /// `INVALID_DEVICE` for a semaphore of another device; `UNSUPPORTED` while the queue records; what else the driver
    /// answers.
    pub fn signal(&self, semaphore: &Semaphore, value: u64) -> Result<()> {
        refuse_fork()?;
        let signal = entry!(semaphore.driver.external()?.group, signal);
        // SAFETY: both are live, and of one driver.
        self.call_of(semaphore, |queue, semaphore| unsafe {
            signal(queue, semaphore, value)
        })
    }

    /// Lets later work of this queue start when a semaphore has come to a value. Returns at once.
    ///
    /// # Errors
    /// As of [`signal`](Self::signal).
    pub fn wait_semaphore(&self, semaphore: &Semaphore, value: u64) -> Result<()> {
        refuse_fork()?;
        let wait = entry!(semaphore.driver.external()?.group, wait);
        // SAFETY: as above.
        self.call_of(semaphore, |queue, semaphore| unsafe {
            wait(queue, semaphore, value)
        })
    }

    fn call_of(
        &self,
        semaphore: &Semaphore,
        call: impl FnOnce(*mut sys::otr_queue, *mut sys::otr_drv_semaphore) -> i32,
    ) -> Result<()> {
        if !self.driver().same_as(&semaphore.driver) {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "a semaphore of the driver {} with a queue of the driver {}: import it there by its descriptor",
                    semaphore.driver.name(),
                    self.driver().name()
                ),
            ));
        }
        self.driver().check(call(self.raw(), semaphore.raw()))
    }
}
