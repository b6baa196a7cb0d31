//! Virtual memory of a driver: ranges of addresses, physical memory, and mappings. The caller uses them
//! in the right order. As with all memory in this crate, nothing is freed automatically.

use std::num::NonZeroUsize;

use crate::fork::refuse_fork;
use crate::table::entry;
use crate::{Code, Driver, Error, Result, params, sys};

impl Driver {
    /// Virtual memory: addresses and memory are separate. `None` if the driver has none.
    pub fn virtual_memory(&self) -> Option<VirtualMemory<'_>> {
        self.table()
            .virtual_memory
            .as_ref()
            .map(|group| VirtualMemory {
                driver: self,
                group,
            })
    }
}

/// Physical memory of a device: the driver's own handle, which frees nothing when it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Physical(NonZeroUsize);

impl Physical {
    /// The handle as a number, to keep it where no driver is known.
    pub fn raw(self) -> u64 {
        self.0.get() as u64
    }

    /// The handle behind a number of [`raw`](Self::raw); `None` for 0, which is none.
    pub fn from_raw(raw: u64) -> Option<Self> {
        NonZeroUsize::new(usize::try_from(raw).ok()?).map(Self)
    }

    /// What the driver gave; `INTERNAL` if it was NULL.
    pub(crate) fn from_handle(handle: *mut sys::otr_physical) -> Result<Self> {
        Self::from_raw(handle.expose_provenance() as u64).ok_or_else(|| {
            Error::new(
                Code::INTERNAL,
                "the driver returned NULL for physical memory",
            )
        })
    }

    pub(crate) fn handle(self) -> *mut sys::otr_physical {
        std::ptr::with_exposed_provenance_mut(self.0.get())
    }
}

// `map` hands a slice of them to the driver as it is.
const _: () = assert!(
    size_of::<Physical>() == size_of::<*mut sys::otr_physical>()
        && align_of::<Physical>() == align_of::<*mut sys::otr_physical>()
);

/// Ranges of addresses, physical memory, and mappings of a driver.
#[derive(Clone, Copy, Debug)]
pub struct VirtualMemory<'a> {
    driver: &'a Driver,
    group: &'a sys::otr_virtual_memory_api,
}

impl VirtualMemory<'_> {
    /// What addresses and sizes of a device are multiples of, in bytes: a power of two.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `INTERNAL` if it is no power of two; what else the driver answers.
    pub fn granularity(&self, device: u32) -> Result<u64> {
        refuse_fork()?;
        self.driver.open_device(device)?;
        let mut bytes = 0;
        let granularity = entry!(self.group, granularity);
        // SAFETY: the handle is open and `bytes` lives through the call.
        let code = unsafe { granularity(self.driver.handle(), device, &mut bytes) };
        self.driver.check(code)?;
        if bytes.is_power_of_two() {
            return Ok(bytes);
        }
        Err(Error::new(
            Code::INTERNAL,
            format!(
                "the driver {} has a granularity of {bytes} bytes, which is not a power of two (R37)",
                self.driver.name()
            ),
        ))
    }

    /// Reserves `size` bytes of addresses, without memory, aligned to a power of two or, for 0, to the
    /// granularity.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a size or alignment that is no multiple of the granularity;
    /// `OUT_OF_MEMORY` or `OUT_OF_HOST_MEMORY`; `INVALID_DEVICE`.
    pub fn reserve(&self, device: u32, size: u64, alignment: u64) -> Result<u64> {
        refuse_fork()?;
        self.driver.open_device(device)?;
        let mut address = 0;
        let params = params::reserve(size, alignment);
        let reserve = entry!(self.group, reserve);
        // SAFETY: the handle is open; the parameters and `address` live through the call.
        let code = unsafe { reserve(self.driver.handle(), device, &params, &mut address) };
        self.driver.check(code)?;
        if address == 0 {
            return Err(Error::new(
                Code::INTERNAL,
                "the driver reserved the address 0, which R13 forbids",
            ));
        }
        Ok(address)
    }

    /// Gives a whole reserved range back. Nothing is mapped in it.
    ///
    /// # Errors
    /// `BUSY` while something is mapped in it; `INVALID_ARGUMENT` for what is no reserved range.
    pub fn release(&self, address: u64, size: u64) -> Result<()> {
        refuse_fork()?;
        let release = entry!(self.group, release);
        // SAFETY: the handle is open; nothing is mapped there, as the driver checks (R37).
        self.driver
            .check(unsafe { release(self.driver.handle(), address, size) })
    }

    /// Takes `size` bytes of memory of a device. They have no address yet, and no initial value.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; `INVALID_ARGUMENT` for a size that is no multiple of the granularity;
    /// `INVALID_DEVICE`.
    pub fn create(&self, device: u32, size: u64) -> Result<Physical> {
        refuse_fork()?;
        self.driver.open_device(device)?;
        let mut handle = std::ptr::null_mut();
        let params = sys::otr_memory_params {
            flags: self.driver.memory_flags(),
            ..params::memory(size)
        };
        let create = entry!(self.group, create);
        // SAFETY: the driver is open; the parameters and `handle` live through the call.
        let code = unsafe { create(self.driver.handle(), device, &params, &mut handle) };
        self.driver.check(code)?;
        Physical::from_handle(handle)
    }

    /// Gives a handle back. Memory that is mapped goes with its last unmap.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where the driver does not know it.
    ///
    /// # Safety
    /// It is a live handle of this driver, and not used again.
    pub unsafe fn destroy(&self, physical: Physical) -> Result<()> {
        refuse_fork()?;
        let destroy = entry!(self.group, destroy);
        // SAFETY: a live handle of this driver, which the caller does not use again.
        self.driver
            .check(unsafe { destroy(self.driver.handle(), physical.handle()) })
    }

    /// Maps whole objects one after another, from `address` on: all of them or none.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for no objects, and where the range is not in one reservation of the device or
    /// something is mapped in it; `OUT_OF_MEMORY` or `OUT_OF_HOST_MEMORY` for page tables;
    /// `INVALID_HANDLE`.
    ///
    /// # Safety
    /// They are live handles of this driver.
    pub unsafe fn map(&self, address: u64, physical: &[Physical]) -> Result<()> {
        refuse_fork()?;
        let count = u32::try_from(physical.len()).map_err(|_| {
            Error::new(
                Code::INVALID_ARGUMENT,
                format!("{} objects in one mapping", physical.len()),
            )
        })?;
        let params = params::map(address, physical.as_ptr().cast(), count);
        let map = entry!(self.group, map);
        // SAFETY: as many handles as are counted, of the size of pointers as asserted above, and live, by
        // the contract of this function.
        self.driver
            .check(unsafe { map(self.driver.handle(), &params) })
    }

    /// Ends the mappings of a range, which begins and ends where objects do and has no gaps.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for any other range.
    ///
    /// # Safety
    /// All submitted work that uses the range has finished (R40).
    pub unsafe fn unmap(&self, address: u64, size: u64) -> Result<()> {
        refuse_fork()?;
        let unmap = entry!(self.group, unmap);
        // SAFETY: the handle is open; R40: all work that uses the range has finished.
        self.driver
            .check(unsafe { unmap(self.driver.handle(), address, size) })
    }
}
