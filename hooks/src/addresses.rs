//! Memory by its address alone, where a host does not say of which device it is. Two drivers may give the same number:
//! then the host is asked to say it.

use outrigger_allocator::FreeError;
use outrigger_device::Code;

use crate::current::current_device;
use crate::memory::{PointerInfo, not_allocated, nowhere};
use crate::{Device, Error, Result, Runtime};

impl Runtime {
    /// All devices, the current one first: memory mostly is of that one.
    fn by_likelihood(&self) -> impl Iterator<Item = &'static Device> {
        let current = self.device(current_device()).ok();
        let rest = self
            .devices()
            .filter(move |one| Some(one.index()) != current.map(Device::index));
        current.into_iter().chain(rest)
    }

    /// What the one device answers that knows an address; `None` if none does.
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

    /// The one device that has an address in a live allocation.
    fn only_owner(&self, address: u64) -> Result<Option<&'static Device>> {
        let live = |device: &Device| {
            device
                .allocator()
                .lookup(address)
                .filter(|block| !block.free)
        };
        Ok(self.only(address, live)?.map(|(device, _)| device))
    }

    /// Frees an allocation of whichever device, at any time: it is reused in stream order. Address 0 is
    /// ignored. [`Device::free`] is for those who know the device.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that says whether the address was never allocated or was freed before, or which
    /// two devices have it.
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

    /// Says that work of `stream` uses the allocation at `address`, of the stream's device or else of
    /// another one; see [`Device::record_stream`].
    ///
    /// # Errors
    /// `NOT_FOUND` if no device has the address; `INVALID_ARGUMENT` if two others have it; `INVALID_HANDLE`.
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

    /// What is known of an address within an allocation of any device. [`Device::pointer_info`] is for those
    /// who know the device.
    ///
    /// # Errors
    /// `NOT_FOUND` if it is in no live allocation; `INVALID_ARGUMENT` if two devices have it.
    pub fn pointer_info(&self, address: u64) -> Result<PointerInfo> {
        let known = self.only(address, |device| device.pointer_info(address))?;
        known.map(|(_, info)| info).ok_or_else(|| nowhere(address))
    }

    /// The allocation around an address of whichever device as a text; see [`Device::export_memory`].
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

/// A number that two drivers have given for memory of theirs.
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
