//! The device of an address, for a host that has only the number. Two drivers may give the same number (H21).

use outrigger_device::Code;

use crate::{Device, Error, Result, Runtime};

impl Runtime {
    /// The device in whose live allocations or imported memory an address lies. Every other call takes the device with
    /// the address: this is for a host that was given the number alone.
    ///
    /// # Errors
    /// `NOT_FOUND` if no device has the address; `INVALID_ARGUMENT`, which names both, if two devices have it.
    pub fn find(&self, address: u64) -> Result<&'static Device> {
        let mut owners = self.devices().filter(|device| device.has(address));
        let found = owners.next().ok_or_else(|| {
            let text = format!("{address:#x} is not in the live memory of any device");
            Error::new(Code::NOT_FOUND, text)
        })?;
        match owners.next() {
            Some(other) => Err(ambiguous(address, found, other)),
            None => Ok(found),
        }
    }
}

/// The error for an address of two devices.
#[cold]
fn ambiguous(address: u64, first: &Device, second: &Device) -> Error {
    let (first, second) = (first.index(), second.index());
    Error::new(
        Code::INVALID_ARGUMENT,
        format!(
            "{address:#x} is an address of device {first} and of device {second}: the number does not say which is meant"
        ),
    )
}
