//! Calls that are given an address without a device. Two drivers may give the same number (H21): then the call is
//! refused, and the host has to name the device.

use outrigger_allocator::FreeError;
use outrigger_device::Code;

use crate::current::current_device;
use crate::memory::{PointerInfo, not_allocated, nowhere};
use crate::{Device, Error, Result, Runtime};

impl Runtime {
    /// Iterates over all devices, the current one first: most memory is of that one.
    fn by_likelihood(&self) -> impl Iterator<Item = &'static Device> {
        let current = self.device(current_device()).ok();
        let rest = self
            .devices()
            .filter(move |one| Some(one.index()) != current.map(Device::index));
        current.into_iter().chain(rest)
    }

    /// Asks all devices about an address, and returns the one that knows it, with its answer; `None` if none does.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that names two devices that know it.
    fn only<T>(
        &self,
        address: u64,
        ask: impl Fn(&'static Device) -> Option<T>,
    ) -> Result<Option<(&'static Device, T)>> {
        let mut known = self
            .by_likelihood()
            .filter_map(|device| Some((device, ask(device)?)));
        let found = known.next();
        if self.addresses_may_repeat()
            && let Some((first, _)) = found
            && let Some((second, _)) = known.next()
        {
            return Err(ambiguous(address, first, second));
        }
        Ok(found)
    }

    /// The one device in whose live allocations or imported memory an address lies.
    fn only_owner(&self, address: u64) -> Result<Option<&'static Device>> {
        let has = |device: &Device| device.has(address).then_some(());
        Ok(self.only(address, has)?.map(|(device, ())| device))
    }

    /// Frees an allocation of any device, at any time. It is reused in stream order. Address 0 is ignored. A caller who
    /// knows the device uses [`Device::free`].
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that says whether the address was never allocated, was freed before, or is an address of two
    /// devices.
    pub fn free(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        if self.addresses_may_repeat()
            && let Some(device) = self.only_owner(address)?
        {
            return device.free(address);
        }
        let mut refusal = None;
        for device in self.by_likelihood() {
            match device.free_address(address) {
                Ok(freed) => {
                    device.tell_freed(address, &freed);
                    return Ok(());
                }
                Err(FreeError::Unknown { .. }) => {}
                Err(error) => refusal = Some(error),
            }
        }
        Err(not_allocated(
            refusal.unwrap_or(FreeError::Unknown { address }),
        ))
    }

    /// Notes that work of `stream` uses the allocation around `address`: that of the stream's device, else that of another
    /// device; see [`Device::record_stream`].
    ///
    /// # Errors
    /// `NOT_FOUND` if no device has the address; `INVALID_ARGUMENT` if two other devices have it; `INVALID_HANDLE`.
    pub fn record_stream(&self, address: u64, stream: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let own = crate::stream::stream(stream)?.device();
        match own.record(address, stream) {
            Ok(()) => Ok(()),
            Err(_) => self.record_elsewhere(address, stream),
        }
    }

    #[cold]
    fn record_elsewhere(&self, address: u64, stream: u64) -> Result<()> {
        let held = |device: &&'static Device| device.allocator().lookup(address).is_some();
        let owner = match self.only_owner(address)? {
            None => self.devices().find(held),
            owner => owner,
        };
        let owner = owner.ok_or_else(|| nowhere(address))?;
        owner.record(address, stream).map_err(not_allocated)
    }

    /// The place and the size of the allocation of any device that has an address. A caller who knows the device uses
    /// [`Device::pointer_info`].
    ///
    /// # Errors
    /// `NOT_FOUND` if the address is in no live allocation; `INVALID_ARGUMENT` if two devices have it.
    pub fn pointer_info(&self, address: u64) -> Result<PointerInfo> {
        let known = self.only(address, |device| device.pointer_info(address))?;
        known.map(|(_, info)| info).ok_or_else(|| nowhere(address))
    }

    /// Exports the allocation that contains an address, of any device, as a text; see [`Device::export_memory`].
    ///
    /// # Errors
    /// Those of [`Device::export_memory`]; `INVALID_ARGUMENT` if two devices have the address.
    pub fn export_memory(&self, address: u64) -> Result<String> {
        let owner = self.only_owner(address)?;
        owner
            .ok_or_else(|| nowhere(address))?
            .export_memory(address)
    }
}

/// The error for an address of two devices.
#[cold]
fn ambiguous(address: u64, first: &Device, second: &Device) -> Error {
    let (first, second) = (first.index(), second.index());
    Error::new(
        Code::INVALID_ARGUMENT,
        format!(
            "{address:#x} is an address of device {first} and of device {second}: say of which device it is"
        ),
    )
}
