//! The properties of a device, as an owned Rust struct.

use std::fmt;

use crate::sys;

/// The properties of a device. They do not change while the driver is open, but for the priorities, which may be 0 until
/// the device is open.
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
    /// Bytes of the largest allocation; 0 if that is all of the memory.
    pub largest_allocation: u64,
    /// How far a failure of the device's own work reaches.
    pub failure_scope: FailureScope,
    /// Limits of code that is loaded as a module.
    pub limits: CodeLimits,
    /// Where the device is plugged in, if that is known.
    pub pci: Option<PciPlace>,
    /// The node of the host's memory that is nearest, if that is known.
    pub numa_node: Option<u32>,
    /// Bytes of memory of each kind, by its number; 0 if there is none of it. The first is `total_memory`.
    pub memory: [u64; sys::OTR_MEMORY_KINDS as usize],
}

/// A place on the PCI bus, written as `0000:01:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciPlace {
    /// The domain, which some call segment.
    pub domain: u32,
    /// The bus within the domain.
    pub bus: u32,
    /// The device on the bus.
    pub device: u32,
    /// The function of the device.
    pub function: u32,
}

impl fmt::Display for PciPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl PciPlace {
    /// The node of the host's memory that is nearest, as the system knows it. Few interfaces of vendors tell it.
    fn numa_node(self) -> Option<u32> {
        let path = format!("/sys/bus/pci/devices/{self}/numa_node");
        // A machine with one node says -1.
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}

/// How far a failure of the device's own work reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureScope {
    /// Later work of its queue is not executed.
    #[default]
    Queue,
    /// As [`Queue`](Self::Queue), but work that was submitted before the failure was seen may run.
    Command,
    /// The device is lost.
    Device,
}

/// What code for a device has to keep to, host functions apart. 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeLimits {
    /// Bit N: code of format N (`OTR_CODE_*`) is loaded.
    pub formats: u32,
    /// `OTR_FEATURE_*`.
    pub features: u32,
    /// Work-items of a group, in all.
    pub group: u32,
    /// Work-items of a group in each dimension.
    pub block: [u32; 3],
    /// Work-items that run in step.
    pub sub_group: u32,
    /// Bytes of local memory of a group.
    pub local_memory: u32,
    /// Bytes of the argument block of a launch.
    pub arguments: u32,
}

impl CodeLimits {
    /// Whether code of a format (`OTR_CODE_*`) is loaded.
    pub fn takes(&self, format: u32) -> bool {
        1_u32
            .checked_shl(format)
            .is_some_and(|bit| self.formats & bit != 0)
    }
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
            largest_allocation: 0,
            failure_scope: sys::OTR_FAILURE_QUEUE,
            code_formats: 0,
            features: 0,
            largest_group: 0,
            largest_block: [0; 3],
            sub_group: 0,
            local_memory_bytes: 0,
            argument_block_bytes: 0,
            pci_domain: 0,
            pci_bus: 0,
            pci_device: 0,
            pci_function: 0,
            numa_node: 0,
            reserved: 0,
            memory_bytes: [0; sys::OTR_MEMORY_KINDS as usize],
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
        let failure_scope = match raw.failure_scope {
            sys::OTR_FAILURE_QUEUE => FailureScope::Queue,
            sys::OTR_FAILURE_COMMAND => FailureScope::Command,
            sys::OTR_FAILURE_DEVICE => FailureScope::Device,
            other => {
                return Err(format!(
                    "failure_scope is {other}, not one of OTR_FAILURE_*"
                ));
            }
        };
        let pci = (raw.flags & sys::OTR_DEVICE_PCI != 0).then_some(PciPlace {
            domain: raw.pci_domain,
            bus: raw.pci_bus,
            device: raw.pci_device,
            function: raw.pci_function,
        });
        let numa_node = match raw.flags & sys::OTR_DEVICE_NUMA {
            0 => pci.and_then(PciPlace::numa_node),
            _ => Some(raw.numa_node),
        };
        let mut memory = raw.memory_bytes;
        memory[0] = raw.total_memory;
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
            largest_allocation: raw.largest_allocation,
            failure_scope,
            limits: CodeLimits {
                formats: raw.code_formats,
                features: raw.features,
                group: raw.largest_group,
                block: raw.largest_block,
                sub_group: raw.sub_group,
                local_memory: raw.local_memory_bytes,
                arguments: raw.argument_block_bytes,
            },
            pci,
            numa_node,
            memory,
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
    use crate::sys;

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
    fn a_place_counts_only_with_its_flag() {
        let mut raw = DeviceProperties::raw();
        raw.address_alignment = 64;
        raw.total_memory = 5;
        (
            raw.pci_domain,
            raw.pci_bus,
            raw.pci_device,
            raw.pci_function,
        ) = (0xfff0, 0x1a, 0x1f, 7);
        raw.numa_node = 3;
        raw.memory_bytes = [0, 7, 0, 9];
        let found = DeviceProperties::from_raw(&raw).unwrap();
        assert_eq!((found.pci, found.numa_node), (None, None));
        assert_eq!(found.memory, [5, 7, 0, 9]);
        raw.flags = sys::OTR_DEVICE_PCI | sys::OTR_DEVICE_NUMA;
        let found = DeviceProperties::from_raw(&raw).unwrap();
        assert_eq!(found.pci.unwrap().to_string(), "fff0:1a:1f.7");
        assert_eq!(found.numa_node, Some(3));
        // A place that this machine does not have.
        raw.flags = sys::OTR_DEVICE_PCI;
        assert_eq!(DeviceProperties::from_raw(&raw).unwrap().numa_node, None);
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
