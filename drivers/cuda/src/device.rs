//! The devices: their properties in the words of the contract, which CUDA tells without a context, and the context of a
//! device that is open.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use outrigger_contract as c;
use outrigger_driver_kit::Result;
use outrigger_driver_kit::given::put_text;
use parking_lot::{Condvar, Mutex};

use crate::cuda::{self, Cuda, Status};

/// The offset of the first property that a driver writes.
pub(crate) const PROPERTIES_START: usize = offset_of!(c::otr_device_properties, name);

/// The alignment of `cuMemAlloc`.
pub(crate) const ALIGNMENT: u32 = 256;
/// The bytes of an argument block that every device takes; newer ones take more.
const ARGUMENT_BLOCK: u32 = 4096;

/// A device. While it is open it has its primary context, which it shares with all else in the process that uses CUDA.
pub(crate) struct Device {
    pub(crate) cuda: &'static Cuda,
    pub(crate) ordinal: cuda::Device,
    /// NULL while the device is closed.
    context: AtomicPtr<c_void>,
    is_open: AtomicBool,
    pub(crate) live: Live,
    pub(crate) name: String,
    pub(crate) memory: u64,
    /// Major and minor number of the compute capability.
    pub(crate) capability: (u32, u32),
    /// The priorities of streams: the least and the most urgent one. Known from the first opening on.
    priorities: OnceLock<(i32, i32)>,
    pub(crate) largest_group: u32,
    pub(crate) largest_block: [u32; 3],
    /// Bytes of shared memory that a kernel can have if it asks.
    pub(crate) shared: u32,
    /// The granularity of virtual memory; 0: the device has none. Known from the first opening on.
    granularity: OnceLock<u64>,
    properties: c::otr_device_properties,
    lost: AtomicBool,
}

// SAFETY: CUDA's contexts may be used by any thread; the properties are plain data without pointers.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The context of a device is the thread's current one until this is dropped.
pub(crate) struct Entered(Option<&'static Cuda>);

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        if let Some(cuda) = self.0 {
            let mut context = std::ptr::null_mut();
            // SAFETY: takes back what `enter` pushed (R9).
            unsafe { (cuda.context_pop)(&mut context) };
        }
    }
}

/// The number of objects of a device that the host has not given back.
#[derive(Default)]
pub(crate) struct Live {
    pub(crate) queues: AtomicUsize,
    pub(crate) events: AtomicUsize,
    pub(crate) modules: AtomicUsize,
    pub(crate) graphs: AtomicUsize,
    pub(crate) operators: AtomicUsize,
    pub(crate) objects: AtomicUsize,
    /// The lanes, with those of destroyed queues.
    pub(crate) lanes: Lanes,
}

/// The number of lanes of a device.
#[derive(Default)]
pub(crate) struct Lanes {
    count: Mutex<usize>,
    none: Condvar,
}

impl Lanes {
    pub(crate) fn begin(&self) {
        *self.count.lock() += 1;
    }

    pub(crate) fn end(&self) {
        let mut count = self.count.lock();
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }

    pub(crate) fn wait(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            self.none.wait(&mut count);
        }
    }
}

impl Live {
    pub(crate) fn counts(&self) -> [(usize, &'static str); 6] {
        [
            (&self.queues, "queues"),
            (&self.events, "events"),
            (&self.modules, "modules"),
            (&self.graphs, "graphs"),
            (&self.operators, "operators"),
            (&self.objects, "memory objects"),
        ]
        .map(|(count, what)| (count.load(Ordering::Relaxed), what))
    }
}

impl Device {
    /// A device with what CUDA tells of it without a context.
    pub(crate) fn find(cuda: &'static Cuda, index: c_int, code_formats: u32) -> Result<Self> {
        let mut ordinal = 0;
        // SAFETY: a place for the device.
        let told = unsafe { (cuda.device_get)(&mut ordinal, index) };
        cuda.check(told, "cuDeviceGet")?;
        let ask = |what| attribute(cuda, ordinal, what);
        let capability = (
            ask(cuda::COMPUTE_CAPABILITY_MAJOR)?,
            ask(cuda::COMPUTE_CAPABILITY_MINOR)?,
        );
        let largest_group = ask(cuda::MAX_THREADS_PER_BLOCK)?;
        let largest_block = [
            ask(cuda::MAX_BLOCK_DIM_X)?,
            ask(cuda::MAX_BLOCK_DIM_Y)?,
            ask(cuda::MAX_BLOCK_DIM_Z)?,
        ];
        let shared = ask(cuda::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let mut name = [0; 128];
        // SAFETY: as many bytes as are said.
        let told = unsafe { (cuda.device_name)(name.as_mut_ptr(), name.len() as c_int, ordinal) };
        cuda.check(told, "cuDeviceGetName")?;
        let mut memory = 0;
        // SAFETY: a place for the size.
        let told = unsafe { (cuda.device_total)(&mut memory, ordinal) };
        cuda.check(told, "cuDeviceTotalMem")?;
        let mut device = Self {
            cuda,
            ordinal,
            context: AtomicPtr::default(),
            is_open: AtomicBool::new(false),
            live: Live::default(),
            name: text(&name),
            memory: memory as u64,
            capability,
            priorities: OnceLock::new(),
            largest_group,
            largest_block,
            shared,
            granularity: OnceLock::new(),
            // SAFETY: zero is valid for all fields: integers, bytes and a pointer.
            properties: unsafe { std::mem::zeroed() },
            lost: AtomicBool::new(false),
        };
        device.properties = device.describe(code_formats)?;
        Ok(device)
    }

    /// Takes the primary context, and asks what only a context tells. [`give_back`](Self::give_back) undoes it, after a
    /// failure too.
    pub(crate) fn take_context(&self) -> Result {
        let (cuda, mut context) = (self.cuda, std::ptr::null_mut());
        // SAFETY: a place for the context.
        let retained = unsafe { (cuda.context_retain)(&mut context, self.ordinal) };
        cuda.check(retained, "cuDevicePrimaryCtxRetain")?;
        self.context.store(context, Ordering::Release);
        self.lost.store(false, Ordering::Release);
        let _entered = self.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: places for both.
        let told = unsafe { (cuda.priority_range)(&mut least, &mut greatest) };
        cuda.check(told, "cuCtxGetStreamPriorityRange")?;
        self.priorities.get_or_init(|| (least, greatest));
        let has_mapping = cuda::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        let mut granularity = 0;
        if attribute(cuda, self.ordinal, has_mapping)? != 0 {
            let of = self.allocation_properties();
            // SAFETY: a place for the number, and a struct that lives through the call.
            let told =
                unsafe { (cuda.granularity)(&mut granularity, &of, cuda::GRANULARITY_RECOMMENDED) };
            cuda.check(told, "cuMemGetAllocationGranularity")?;
        }
        self.granularity.get_or_init(|| granularity as u64);
        Ok(())
    }

    /// Gives the context back, if the device has it.
    pub(crate) fn give_back(&self) {
        let context = self.context.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !context.is_null() {
            // SAFETY: retained by `take_context`.
            unsafe { (self.cuda.context_release)(self.ordinal) };
        }
    }

    /// Whether the host has opened the device, and not closed it (R58).
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    pub(crate) fn set_open(&self, open: bool) {
        self.is_open.store(open, Ordering::Release);
    }

    /// The context of a device that is open.
    #[inline]
    pub(crate) fn context(&self) -> cuda::Context {
        self.context.load(Ordering::Acquire).cast()
    }

    /// The least and the most urgent priority of streams; both are 0 before the first opening.
    pub(crate) fn priorities(&self) -> (i32, i32) {
        self.priorities.get().copied().unwrap_or_default()
    }

    /// The granularity of virtual memory; 0: the device has none.
    pub(crate) fn granularity(&self) -> u64 {
        self.granularity.get().copied().unwrap_or_default()
    }

    /// Makes the context of the device the thread's current one (R9: and the old one again).
    #[inline]
    pub(crate) fn enter(&self) -> Result<Entered> {
        let mut current = std::ptr::null_mut();
        // SAFETY: a place for the context.
        let told = unsafe { (self.cuda.context_current)(&mut current) };
        let context = self.context();
        if told == cuda::SUCCESS && current == context {
            return Ok(Entered(None));
        }
        // SAFETY: a context that lives as long as the device.
        let told = unsafe { (self.cuda.context_push)(context) };
        self.check(told, "cuCtxPushCurrent")?;
        Ok(Entered(Some(self.cuda)))
    }

    /// The answer of a function as a result. An error that takes the context with it is remembered.
    #[inline]
    pub(crate) fn check(&self, status: Status, what: &str) -> Result {
        if status == cuda::SUCCESS {
            return Ok(());
        }
        if cuda::is_lost(status) {
            self.lost.store(true, Ordering::Release);
        }
        Err(self.cuda.fault(status, what))
    }

    /// Whether nothing works any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(crate) fn properties(&self) -> c::otr_device_properties {
        let (priority_lowest, priority_highest) = self.priorities();
        c::otr_device_properties {
            priority_lowest,
            priority_highest,
            ..self.properties
        }
    }

    pub(crate) fn takes(&self, format: u32) -> bool {
        1_u32
            .checked_shl(format)
            .is_some_and(|bit| self.properties.code_formats & bit != 0)
    }

    /// The properties of memory without an address.
    pub(crate) fn allocation_properties(&self) -> cuda::AllocationProperties {
        cuda::AllocationProperties {
            kind: cuda::ALLOCATION_PINNED,
            handle_types: 0,
            location: self.location(),
            security: std::ptr::null_mut(),
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        }
    }

    pub(crate) fn location(&self) -> cuda::Location {
        cuda::Location {
            kind: cuda::LOCATION_DEVICE,
            id: self.ordinal,
        }
    }

    fn describe(&self, code_formats: u32) -> Result<c::otr_device_properties> {
        let ask = |what| attribute(self.cuda, self.ordinal, what);
        let mut uuid = cuda::Uuid([0; 16]);
        // SAFETY: a place for the number.
        let told = unsafe { (self.cuda.device_uuid)(&mut uuid, self.ordinal) };
        self.cuda.check(told, "cuDeviceGetUuid")?;
        let units = ask(cuda::MULTIPROCESSOR_COUNT)?;
        // The clocks are told in kHz, the width of the bus in bits, and each clock of memory carries two bits.
        let memory_clock = u64::from(ask(cuda::MEMORY_CLOCK_RATE)?) * 1000;
        let bus = u64::from(ask(cuda::GLOBAL_MEMORY_BUS_WIDTH)?) / 8;
        let clock = u64::from(ask(cuda::CLOCK_RATE)?) * 1000;
        let mut features =
            c::OTR_FEATURE_F64 | c::OTR_FEATURE_ATOMIC_ADD_F32 | c::OTR_FEATURE_ATOMIC_64;
        if self.capability >= (5, 3) {
            features |= c::OTR_FEATURE_F16;
        }
        let mut told = c::otr_device_properties {
            struct_size: size_of::<c::otr_device_properties>(),
            uuid: uuid.0,
            flags: c::OTR_DEVICE_PCI,
            total_memory: self.memory,
            address_alignment: ALIGNMENT,
            compute_units: units,
            peak_bytes_per_second: 2 * memory_clock * bus,
            // A multiply and an addition at each clock.
            peak_flops_f32: 2 * u64::from(units) * lanes_f32(self.capability) * clock,
            failure_scope: c::OTR_FAILURE_DEVICE,
            code_formats,
            features,
            largest_group: self.largest_group,
            largest_block: self.largest_block,
            sub_group: ask(cuda::WARP_SIZE)?,
            local_memory_bytes: ask(cuda::MAX_SHARED_MEMORY_PER_BLOCK)?.max(self.shared),
            argument_block_bytes: ARGUMENT_BLOCK,
            pci_domain: ask(cuda::PCI_DOMAIN_ID)?,
            pci_bus: ask(cuda::PCI_BUS_ID)?,
            pci_device: ask(cuda::PCI_DEVICE_ID)?,
            ..self.properties
        };
        put_text(&mut told.name, &self.name);
        put_text(&mut told.vendor, "NVIDIA");
        Ok(told)
    }
}

fn attribute(cuda: &Cuda, device: cuda::Device, what: c_int) -> Result<u32> {
    let mut value = 0;
    // SAFETY: a place for the number.
    let told = unsafe { (cuda.device_attribute)(&mut value, what, device) };
    cuda.check(told, "cuDeviceGetAttribute")?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// The count of 32-bit numbers that a multiprocessor works on at each clock, by its compute capability; 0 for those
/// that came before all that run today's drivers.
fn lanes_f32((major, minor): (u32, u32)) -> u64 {
    match (major, minor) {
        (0..=4, _) => 0,
        (6 | 8, 0) | (7, _) => 64,
        _ => 128,
    }
}

fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field
        .iter()
        .map(|&byte| byte as u8)
        .take_while(|&byte| byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
