//! Drivers, devices, and the current device of a thread.

use std::ffi::c_char;

use outrigger_hooks as hooks;

use crate::guard::{Out, OutStruct, string, text};

/// Facts of a device. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct otr_device_info_t {
    /// sizeof(otr_device_info_t)
    pub struct_size: usize,
    /// The device's name.
    pub name: [c_char; 128],
    /// The maker's name.
    pub vendor: [c_char; 64],
    /// The driver's name.
    pub driver: [c_char; 64],
    /// The driver's version.
    pub driver_version: [c_char; 32],
    /// Bytes of memory.
    pub total_memory: u64,
    /// 1 if a device address is a host pointer to the same bytes.
    pub host_visible: u32,
    /// Alignment of allocations in bytes.
    pub address_alignment: u32,
    /// 0: unknown.
    pub compute_units: u32,
    /// The least urgent priority of streams; a lower number is more urgent. Both may be 0 until the device is used for
    /// the first time.
    pub priority_lowest: i32,
    /// The most urgent priority of streams.
    pub priority_highest: i32,
    /// The device's number within its driver.
    pub driver_ordinal: u32,
    /// Bytes of the largest allocation.
    pub largest_allocation: u64,
    /// Formats of code that otr_module_load takes: bit N is OTR_CODE_* number N.
    pub code_formats: u32,
    /// Features of code for the device, 0 unknown: OTR_FEATURE_*.
    pub features: u32,
    /// Work-items of a group, in all.
    pub largest_group: u32,
    /// Work-items of a group in each dimension.
    pub largest_block: [u32; 3],
    /// Work-items that run in step.
    pub sub_group: u32,
    /// Bytes of local memory of a group.
    pub local_memory_bytes: u32,
    /// Bytes of the argument block of a launch.
    pub argument_block_bytes: u32,
    /// The node of the host's memory that is nearest; -1: unknown.
    pub numa_node: i32,
    /// Identifies the device across processes; all zero: there is no such number.
    pub uuid: [u8; 16],
    /// 1 if the numbers of its PCI place, which follow, are known; else they are 0.
    pub has_pci: u32,
    /// The PCI domain.
    pub pci_domain: u32,
    /// The bus within the domain.
    pub pci_bus: u32,
    /// The device on the bus.
    pub pci_device: u32,
    /// The function of the device.
    pub pci_function: u32,
    /// 0
    pub reserved: u32,
    /// Bytes of memory of each kind, by its number; 0: there is none of it. The first is `total_memory`.
    pub memory_bytes: [u64; 4],
}

fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    out
}

/// The version of Outrigger, such as "0.1.0". Lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn otr_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

api! {
    /// Makes the runtime ready: reads the environment and loads the drivers of OUTRIGGER_DRIVER
    /// ("name-or-path?key=value&...", several separated by commas; "host" by default). It also starts
    /// the log if OUTRIGGER_LOG is set. Any other call that needs the runtime does the same. Fails if
    /// there is no device at all, with the reason for each driver.
    fn otr_runtime_init() {
        if std::env::var_os("OUTRIGGER_LOG").is_some() {
            crate::diagnostics::install()?;
        }
        hooks::runtime()?.found(0).map(drop)
    }

    /// Names the drivers that are loaded where OUTRIGGER_DRIVER is not set, instead of "host". For a package that brings
    /// a driver; before any call that needs the runtime, else OTR_ERR_BUSY.
    fn otr_driver_default(specs: *const c_char) {
        hooks::set_default_drivers(text(specs, "specs")?)
    }

    /// Loads one more driver, or several separated by commas. Their devices get the next numbers.
    /// Drivers are never unloaded. If a driver is refused, OTR_ERR_LOAD gives the reason for each; the
    /// devices of the others were added.
    fn otr_driver_load(spec: *const c_char) {
        hooks::runtime()?.load(text(spec, "spec")?).map(drop)
    }

    /// The drivers that were tried so far, as JSON: which were taken, and which were refused and why.
    /// Free it with otr_string_free.
    fn otr_load_report(json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        out.set(string(hooks::runtime()?.load_report().to_json()));
        Ok(())
    }

    /// Tells the number of devices. A device is opened by the first call that uses it (H8).
    fn otr_device_count(count: *mut u32) {
        let out = Out::new(count, "count")?;
        out.set(hooks::runtime()?.device_count());
        Ok(())
    }

    /// Tells the facts of a device, which is not opened for that. They do not change while the process lives, but for
    /// the priorities.
    fn otr_device_info(device: u32, info: *mut otr_device_info_t) {
        let out = OutStruct::new(info, "info")?;
        let device = hooks::runtime()?.found(device)?;
        let (driver, properties) = (device.driver(), device.properties()?);
        let limits = &properties.limits;
        out.set(&otr_device_info_t {
            struct_size: 0,
            name: chars(&properties.name),
            vendor: chars(&properties.vendor),
            driver: chars(driver.name()),
            driver_version: chars(driver.version()),
            total_memory: properties.total_memory,
            host_visible: properties.host_visible().into(),
            address_alignment: properties.address_alignment,
            compute_units: properties.compute_units,
            priority_lowest: properties.priority_lowest,
            priority_highest: properties.priority_highest,
            driver_ordinal: device.ordinal(),
            largest_allocation: match properties.largest_allocation {
                0 => properties.total_memory,
                bytes => bytes,
            },
            code_formats: limits.formats,
            features: limits.features,
            largest_group: limits.group,
            largest_block: limits.block,
            sub_group: limits.sub_group,
            local_memory_bytes: limits.local_memory,
            argument_block_bytes: limits.arguments,
            numa_node: properties.numa_node.map_or(-1, |node| node as i32),
            uuid: properties.uuid,
            has_pci: properties.pci.is_some().into(),
            pci_domain: properties.pci.map_or(0, |place| place.domain),
            pci_bus: properties.pci.map_or(0, |place| place.bus),
            pci_device: properties.pci.map_or(0, |place| place.device),
            pci_function: properties.pci.map_or(0, |place| place.function),
            reserved: 0,
            memory_bytes: properties.memory,
        });
        Ok(())
    }

    /// Sets `yes` to 1 if copies between two devices go from one to the other, by the driver of both, else
    /// to 0: then otr_copy_peer goes through host memory.
    fn otr_device_can_access_peer(device: u32, peer: u32, yes: *mut u32) {
        let out = Out::new(yes, "yes")?;
        let runtime = hooks::runtime()?;
        out.set(runtime.device(device)?.can_access(runtime.device(peer)?)?.into());
        Ok(())
    }

    /// The current device of this thread; 0 until it is set.
    fn otr_device_current(device: *mut u32) {
        let out = Out::new(device, "device")?;
        out.set(hooks::current_device());
        Ok(())
    }

    /// Makes a device the current one of this thread, which does not open it.
    fn otr_device_set_current(device: u32) {
        hooks::set_current_device(device)
    }

    /// Waits for all work submitted to any stream of a device, also to streams that were destroyed.
    /// Reports the first failure, and clears the failures of all streams. OTR_ERR_CAPTURE on a thread that records a capture of this device,
    /// unless the capture has the mode OTR_CAPTURE_RELAXED.
    fn otr_device_synchronize(device: u32) {
        hooks::runtime()?.opened(device)?.map_or(Ok(()), hooks::Device::synchronize)
    }
}
