//! The properties of a device, as an owned Rust struct.

use crate::sys;

/// The properties of a device; they do not change while the driver is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// The name for people.
    pub name: String,
    /// Who makes the device.
    pub vendor: String,
    /// Identifies the device across processes; all zero if it has no such number.
    pub uuid: [u8; 16],
    /// `OTR_DEVICE_*` bits of `driver.h`, also those that this version does not know.
    pub flags: u64,
    /// Bytes of device memory.
    pub total_memory: u64,
    /// What every allocation is aligned to, in bytes: a power of two, at least 64.
    pub address_alignment: u32,
    /// Parallel units; 0 if unknown.
    pub compute_units: u32,
    /// The least urgent priority of a queue. As in CUDA, a lower number is more urgent.
    pub priority_lowest: i32,
    /// The most urgent priority of a queue.
    pub priority_highest: i32,
    /// Peak bandwidth of device memory in bytes per second; 0 if unknown.
    pub peak_bytes_per_second: u64,
    /// Peak rate of f32 operations per second; 0 if unknown.
    pub peak_flops_f32: u64,
    /// Peak rate of f16 operations per second; 0 if unknown.
    pub peak_flops_f16: u64,
}

impl DeviceProperties {
    /// Whether a device address is a host pointer to the same bytes (R15).
    #[inline]
    pub fn host_visible(&self) -> bool {
        self.flags & sys::OTR_DEVICE_HOST_VISIBLE != 0
    }

    /// Whether the device is the CPU of the host.
    #[inline]
    pub fn is_cpu(&self) -> bool {
        self.flags & sys::OTR_DEVICE_CPU != 0
    }

    /// An empty struct for a driver to fill.
    pub(crate) fn raw() -> sys::otr_device_properties {
        sys::otr_device_properties {
            struct_size: size_of::<sys::otr_device_properties>(),
            next: std::ptr::null_mut(),
            name: [0; 128],
            vendor: [0; 64],
            uuid: [0; 16],
            flags: 0,
            total_memory: 0,
            address_alignment: 0,
            compute_units: 0,
            priority_lowest: 0,
            priority_highest: 0,
            peak_bytes_per_second: 0,
            peak_flops_f32: 0,
            peak_flops_f16: 0,
        }
    }

    /// Takes over what a driver wrote, or says which value breaks the contract.
    pub(crate) fn from_raw(raw: &sys::otr_device_properties) -> Result<Self, String> {
        let alignment = raw.address_alignment;
        if !alignment.is_power_of_two() || alignment < 64 {
            return Err(format!(
                "address_alignment is {alignment}; R14 asks for a power of two of at least 64"
            ));
        }
        if raw.priority_highest > raw.priority_lowest {
            return Err(format!(
                "priority_highest is {} and priority_lowest {}; the more urgent one is the lower number",
                raw.priority_highest, raw.priority_lowest
            ));
        }
        Ok(Self {
            name: text(&raw.name),
            vendor: text(&raw.vendor),
            uuid: raw.uuid,
            flags: raw.flags,
            total_memory: raw.total_memory,
            address_alignment: alignment,
            compute_units: raw.compute_units,
            priority_lowest: raw.priority_lowest,
            priority_highest: raw.priority_highest,
            peak_bytes_per_second: raw.peak_bytes_per_second,
            peak_flops_f32: raw.peak_flops_f32,
            peak_flops_f16: raw.peak_flops_f16,
        })
    }
}

/// A fixed field up to its NUL, or all of it where a driver forgot the NUL.
fn text(field: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = field
        .iter()
        .map(|&c| c as u8)
        .take_while(|&c| c != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::DeviceProperties;

    #[test]
    fn a_field_without_nul_is_read_to_its_end_and_no_further() {
        let mut raw = DeviceProperties::raw();
        raw.address_alignment = 64;
        raw.name = [b'x' as std::ffi::c_char; 128];
        let properties = DeviceProperties::from_raw(&raw).unwrap();
        assert_eq!(properties.name, "x".repeat(128));
        assert_eq!(properties.vendor, "");
    }

    #[test]
    fn a_broken_alignment_is_named() {
        for alignment in [0, 3, 32, 96] {
            let mut raw = DeviceProperties::raw();
            raw.address_alignment = alignment;
            let error = DeviceProperties::from_raw(&raw).unwrap_err();
            assert!(
                error.contains("address_alignment") && error.contains("R14"),
                "{error}"
            );
        }
    }
}
