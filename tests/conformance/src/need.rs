//! Capabilities: what a driver may leave out, and how the suite sees that a driver declares them.

use std::ffi::c_void;
use std::mem::offset_of;

use outrigger_device::{Code, Driver, sys};
use serde::{Deserialize, Serialize};

/// Something that a driver may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// More than one device.
    TwoDevices,
    /// `OTR_DEVICE_HOST_VISIBLE` on device 0.
    HostVisible,
    /// The opposite of `HostVisible`.
    HostInvisible,
    /// The entry `queue_flush`.
    Flush,
    /// A range of priorities of queues.
    Priorities,
    /// The group `memory_info`.
    MemoryInfo,
    /// The group `virtual_memory`.
    VirtualMemory,
    /// The group `pinned_memory`.
    Pinned,
    /// Its entries `pin` and `unpin`.
    Pin,
    /// The group `peer`.
    Peer,
    /// The group `timing`.
    Timing,
    /// The group `kernel`.
    Kernel,
    /// Kernels that are host functions, on device 0.
    HostKernels,
    /// Kernels in OpenCL C, on device 0.
    OpenclC,
    /// Kernels that are host functions, or memory that the host sees: host functions reach the memory.
    HostReach,
    /// Not the group `operators`: all operators are Outrigger's own.
    OwnOperators,
    /// The group `operators`.
    Operators,
    /// The group `graph`.
    Graphs,
    /// Its entry `update`.
    GraphUpdate,
    /// Its entry `update_part`.
    GraphUpdatePart,
    /// The group `ipc`.
    Ipc,
    /// Its entries for events.
    IpcEvents,
    /// Its entries for memory without an address.
    IpcPhysical,
    /// The table `collectives`.
    Collectives,
    /// Its entry `exchange`.
    CollectivesExchange,
    /// The table `native_queue`.
    NativeQueue,
    /// The table `external`.
    External,
    /// Its entry `memory_export`.
    ExternalMemory,
    /// Its entries `semaphore_create` and `semaphore_export`.
    ExternalSemaphores,
    /// A driver in a file, whose `otr_driver_get_api` can be called.
    Library,
}

/// What is loaded to see whether a driver takes host functions. It is never launched.
unsafe extern "C" fn probe(_: *const c_void, _: u32, _: i64) -> i32 {
    Code::OK.0
}

/// Whether a group is there, reaches as far as an entry, and has it.
macro_rules! has_entry {
    ($group:expr, $type:ident, $entry:ident) => {{
        let group: *const sys::$type = $group;
        let end = offset_of!(sys::$type, $entry) + size_of::<usize>();
        !group.is_null()
            // SAFETY: a group that is not NULL is as large as its first word says, which the loader
            // relied on too; the entry is read only if it lies within.
            && unsafe {
                group.cast::<usize>().read() >= end && (&raw const (*group).$entry).read().is_some()
            }
    }};
}

impl Need {
    /// All of them.
    pub const ALL: [Self; 30] = [
        Self::TwoDevices,
        Self::HostVisible,
        Self::HostInvisible,
        Self::Flush,
        Self::Priorities,
        Self::MemoryInfo,
        Self::VirtualMemory,
        Self::Pinned,
        Self::Pin,
        Self::Peer,
        Self::Timing,
        Self::Kernel,
        Self::HostKernels,
        Self::OpenclC,
        Self::HostReach,
        Self::OwnOperators,
        Self::Operators,
        Self::Graphs,
        Self::GraphUpdate,
        Self::GraphUpdatePart,
        Self::Ipc,
        Self::IpcEvents,
        Self::IpcPhysical,
        Self::Collectives,
        Self::CollectivesExchange,
        Self::NativeQueue,
        Self::External,
        Self::ExternalMemory,
        Self::ExternalSemaphores,
        Self::Library,
    ];

    /// Whether a driver, opened by `spec`, declares it.
    ///
    /// A group that is there counts as declared as a whole, also where a call in it fails: that is for
    /// the tests to find.
    pub fn declared(self, driver: &Driver, spec: &str) -> bool {
        let (api, _) = driver.raw();
        let properties = || driver.properties(0);
        match self {
            Self::TwoDevices => driver.device_count() > 1,
            Self::HostVisible => properties().is_ok_and(|p| p.host_visible()),
            Self::HostInvisible => properties().is_ok_and(|p| !p.host_visible()),
            Self::Flush => api.queue_flush.is_some(),
            Self::Priorities => properties().is_ok_and(|p| p.priority_lowest != p.priority_highest),
            Self::MemoryInfo => !api.memory_info.is_null(),
            Self::VirtualMemory => driver.virtual_memory().is_some(),
            Self::Pinned => driver.pinned().is_some(),
            Self::Pin => {
                has_entry!(api.pinned_memory, otr_pinned_memory_api, pin)
                    && has_entry!(api.pinned_memory, otr_pinned_memory_api, unpin)
            }
            Self::Peer => driver.peer().is_some(),
            Self::Timing => !api.timing.is_null(),
            Self::Kernel => !api.kernel.is_null(),
            Self::HostKernels => {
                !api.kernel.is_null() && !matches!(driver.host_kernel(0, probe), Ok(None))
            }
            Self::OpenclC => properties().is_ok_and(|p| p.limits.takes(sys::OTR_CODE_OPENCL_C)),
            Self::HostReach => {
                Self::HostVisible.declared(driver, spec) || Self::HostKernels.declared(driver, spec)
            }
            Self::OwnOperators => driver.operators().is_none(),
            Self::Operators => driver.operators().is_some(),
            Self::Graphs => driver.native_graphs().is_some(),
            Self::GraphUpdate => driver.native_graphs().is_some_and(|g| g.can_update()),
            Self::GraphUpdatePart => driver.native_graphs().is_some_and(|g| g.can_update_part()),
            Self::Ipc => driver.ipc().is_some(),
            Self::IpcEvents => driver.ipc().is_some_and(|ipc| ipc.shares_events()),
            Self::IpcPhysical => {
                driver.virtual_memory().is_some()
                    && driver.ipc().is_some_and(|ipc| ipc.shares_physical())
            }
            Self::Collectives => driver.collectives().is_some(),
            Self::CollectivesExchange => driver.collectives().is_some_and(|c| c.can_exchange()),
            Self::NativeQueue => driver.shares_native_queues(),
            Self::External => driver.external().is_ok(),
            Self::ExternalMemory => driver.external().is_ok_and(|e| e.exports_memory()),
            Self::ExternalSemaphores => driver.external().is_ok_and(|e| e.makes_semaphores()),
            Self::Library => spec.split('?').next().is_some_and(|p| p.contains('/')),
        }
    }
}
