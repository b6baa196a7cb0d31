//! A device of the driver: its properties, which OpenCL tells without a context, and the context and the clock of a
//! device that is open.

use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use outrigger_contract as c;
use outrigger_driver_kit::Result;
use outrigger_driver_kit::given::put_text;
use parking_lot::Mutex;

use crate::cl::{self, Cl};
use crate::platform::{Candidate, ask, ask_text, platform_text};

/// The number that every allocation is aligned to: the largest type of OpenCL C, sixteen numbers of 8 bytes.
pub(crate) const ALIGNMENT: u32 = 128;

/// Extensions that opencl-sys has behind features, or not at all.
const CL_DEVICE_UUID_KHR: cl::cl_device_info = 0x106A;
const CL_DEVICE_PCI_BUS_INFO_KHR: cl::cl_device_info = 0x410F;
const CL_DEVICE_SINGLE_FP_ATOMIC_CAPABILITIES_EXT: cl::cl_device_info = 0x4231;
const CL_DEVICE_GLOBAL_FP_ATOMIC_ADD_EXT: u64 = 1 << 1;

/// The devices of one platform that the driver has. Memory and events of a context are good on all of them.
pub(crate) struct Context {
    cl: &'static Cl,
    pub(crate) raw: cl::cl_context,
}

// SAFETY: OpenCL's objects may be used by any thread, but for kernels, which are not in here.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by `of`, and nothing uses it any more.
        unsafe { (self.cl.clReleaseContext)(self.raw) };
    }
}

/// The devices of one platform that the driver has. They share a context, so that the first of them that is opened makes
/// it; it stays until the driver is closed.
struct Platform {
    cl: &'static Cl,
    id: cl::cl_platform_id,
    devices: Vec<cl::cl_device_id>,
    /// The lock is held while the context is made.
    context: Mutex<Option<Arc<Context>>>,
}

// SAFETY: OpenCL's platforms and devices may be used by any thread.
unsafe impl Send for Platform {}
// SAFETY: as above.
unsafe impl Sync for Platform {}

impl Platform {
    fn context(&self) -> Result<Arc<Context>> {
        let mut context = self.context.lock();
        if let Some(made) = &*context {
            return Ok(Arc::clone(made));
        }
        let made = Context::of(self.cl, self.id, &self.devices)?;
        Ok(Arc::clone(context.insert(made)))
    }
}

impl Context {
    fn of(
        cl: &'static Cl,
        platform: cl::cl_platform_id,
        ids: &[cl::cl_device_id],
    ) -> Result<Arc<Self>> {
        let properties = [cl::CL_CONTEXT_PLATFORM, platform as isize, 0];
        let mut status = cl::CL_SUCCESS;
        // SAFETY: a list that ends in 0, and as many live devices as are counted.
        let raw = unsafe {
            (cl.clCreateContext)(
                properties.as_ptr().cast(),
                ids.len() as u32,
                ids.as_ptr(),
                None,
                std::ptr::null_mut(),
                &mut status,
            )
        };
        cl::check(status, "clCreateContext")?;
        Ok(Arc::new(Self { cl, raw }))
    }
}

/// A device of the driver.
pub(crate) struct Device {
    pub(crate) id: cl::cl_device_id,
    platform: Arc<Platform>,
    opened: OnceLock<Opened>,
    is_open: AtomicBool,
    /// Held while the device is opened.
    turn: Mutex<()>,
    pub(crate) is_cpu: bool,
    pub(crate) visible: bool,
    pub(crate) memory: u64,
    pub(crate) largest: u64,
    /// The largest group of any kernel.
    pub(crate) largest_group: usize,
    pub(crate) largest_block: [usize; 3],
    /// The name of the device and its runtime: code that it compiled is for these alone.
    pub(crate) version: String,
    properties: c::otr_device_properties,
}

// SAFETY: OpenCL's devices may be used by any thread; the pointer in the properties is NULL.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The state that a device has from its first opening on.
struct Opened {
    context: Arc<Context>,
    clock: Clock,
}

/// The devices that were found.
pub(crate) fn found(cl: &'static Cl, candidates: &[Candidate]) -> Box<[Device]> {
    let mut devices = Vec::new();
    for same in candidates.chunk_by(|a, b| a.platform == b.platform) {
        let platform = Arc::new(Platform {
            cl,
            id: same[0].platform,
            devices: same.iter().map(|one| one.device).collect(),
            context: Mutex::default(),
        });
        // Memory of a context has to fit each of its devices.
        let largest = same.iter().map(|one| one.largest).min().unwrap_or(0);
        devices.extend(
            same.iter()
                .map(|one| Device::of(cl, *one, &platform, largest)),
        );
    }
    devices.into()
}

impl Device {
    fn of(cl: &'static Cl, candidate: Candidate, platform: &Arc<Platform>, largest: u64) -> Self {
        let id = candidate.device;
        let number = |what| ask::<u32>(cl, id, what).unwrap_or(0);
        let largest_group = ask(cl, id, cl::CL_DEVICE_MAX_WORK_GROUP_SIZE).unwrap_or(1);
        let largest_block = ask::<[usize; 3]>(cl, id, cl::CL_DEVICE_MAX_WORK_ITEM_SIZES);
        let mut device = Self {
            id,
            platform: Arc::clone(platform),
            opened: OnceLock::new(),
            is_open: AtomicBool::new(false),
            turn: Mutex::default(),
            is_cpu: candidate.kind & cl::CL_DEVICE_TYPE_CPU != 0,
            visible: candidate.visible,
            memory: candidate.memory,
            largest: largest.min(candidate.memory),
            largest_group,
            largest_block: largest_block.unwrap_or([largest_group, 1, 1]),
            version: [
                cl::CL_DEVICE_NAME,
                cl::CL_DEVICE_VERSION,
                cl::CL_DRIVER_VERSION,
            ]
            .map(|what| ask_text(cl, id, what))
            .join(", ")
                // Some runtimes tell the version of their compiler here alone.
                + ", "
                + &platform_text(cl, candidate.platform, cl::CL_PLATFORM_VERSION),
            // SAFETY: zero is valid for all fields: integers, and a pointer.
            properties: unsafe { std::mem::zeroed() },
        };
        let mut properties = device.properties;
        put_text(&mut properties.name, &ask_text(cl, id, cl::CL_DEVICE_NAME));
        put_text(
            &mut properties.vendor,
            &ask_text(cl, id, cl::CL_DEVICE_VENDOR),
        );
        let extensions = ask_text(cl, id, cl::CL_DEVICE_EXTENSIONS);
        let has = |name| extensions.split_whitespace().any(|one| one == name);
        if has("cl_khr_device_uuid") {
            properties.uuid = ask(cl, id, CL_DEVICE_UUID_KHR).unwrap_or_default();
        }
        if has("cl_khr_pci_bus_info")
            && let Some(place) = ask::<[u32; 4]>(cl, id, CL_DEVICE_PCI_BUS_INFO_KHR)
        {
            properties.flags |= c::OTR_DEVICE_PCI;
            [
                properties.pci_domain,
                properties.pci_bus,
                properties.pci_device,
                properties.pci_function,
            ] = place;
        }
        if device.visible {
            properties.flags |= c::OTR_DEVICE_HOST_VISIBLE;
        }
        if device.is_cpu {
            properties.flags |= c::OTR_DEVICE_CPU;
        }
        properties.total_memory = device.memory;
        properties.address_alignment = ALIGNMENT;
        properties.compute_units = number(cl::CL_DEVICE_MAX_COMPUTE_UNITS);
        properties.largest_allocation = device.largest;
        // A command that has failed is seen when somebody asks: those behind it may have run by then.
        properties.failure_scope = c::OTR_FAILURE_COMMAND;
        properties.code_formats = 1 << c::OTR_CODE_ELF;
        if number(cl::CL_DEVICE_COMPILER_AVAILABLE) == cl::CL_TRUE {
            properties.code_formats |= 1 << c::OTR_CODE_OPENCL_C;
        }
        let il = ask_text(cl, id, cl::CL_DEVICE_IL_VERSION);
        if cl.clCreateProgramWithIL.is_some() && has_2_1(cl, id) && il.contains("SPIR-V") {
            properties.code_formats |= 1 << c::OTR_CODE_SPIRV;
        }
        if has("cl_khr_fp16") {
            properties.features |= c::OTR_FEATURE_F16;
        }
        if ask::<u64>(cl, id, cl::CL_DEVICE_DOUBLE_FP_CONFIG).is_some_and(|config| config != 0) {
            properties.features |= c::OTR_FEATURE_F64;
        }
        let atomics = || ask::<u64>(cl, id, CL_DEVICE_SINGLE_FP_ATOMIC_CAPABILITIES_EXT);
        if has("cl_ext_float_atomics")
            && atomics().is_some_and(|can| can & CL_DEVICE_GLOBAL_FP_ATOMIC_ADD_EXT != 0)
        {
            properties.features |= c::OTR_FEATURE_ATOMIC_ADD_F32;
        }
        if has("cl_khr_int64_base_atomics") && has("cl_khr_int64_extended_atomics") {
            properties.features |= c::OTR_FEATURE_ATOMIC_64;
        }
        properties.largest_group = saturated(device.largest_group);
        properties.largest_block = device.largest_block.map(saturated);
        // Known since OpenCL 3.0, and 0 before.
        let step = ask(cl, id, cl::CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE).unwrap_or(0);
        properties.sub_group = saturated(step);
        let local = ask::<u64>(cl, id, cl::CL_DEVICE_LOCAL_MEM_SIZE).unwrap_or(0);
        properties.local_memory_bytes = saturated(local as usize);
        let block = ask::<usize>(cl, id, cl::CL_DEVICE_MAX_PARAMETER_SIZE).unwrap_or(0);
        properties.argument_block_bytes = saturated(block);
        device.properties = properties;
        device
    }

    /// Makes the device ready, or does nothing if it is (R58).
    pub(crate) fn open(&self) -> Result {
        let _turn = self.turn.lock();
        if self.opened.get().is_none() {
            let context = self.platform.context()?;
            let clock = Clock::of(self.platform.cl, self.id, &context)?;
            self.opened.get_or_init(|| Opened { context, clock });
        }
        self.is_open.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn close(&self) {
        self.is_open.store(false, Ordering::Release);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    fn opened(&self) -> &Opened {
        let opened = self.opened.get();
        opened.expect("calls for a device that was never open are refused")
    }

    /// The context of a device that is open.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.opened().context
    }

    /// The time of a device that is open.
    pub(crate) fn now(&self) -> Result<u64> {
        self.opened().clock.now(self.platform.cl, self.id)
    }

    pub(crate) fn properties(&self) -> &c::otr_device_properties {
        &self.properties
    }

    pub(crate) fn takes(&self, format: u32) -> bool {
        format < 32 && self.properties.code_formats & (1 << format) != 0
    }
}

/// The offset of the first property that a driver writes.
pub(crate) const PROPERTIES_START: usize = offset_of!(c::otr_device_properties, name);

fn saturated(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The clock that timestamps of a device count on.
#[derive(Clone, Copy)]
pub(crate) enum Clock {
    /// The device tells its time.
    Device,
    /// A clock of the host, and how far that of the device is ahead of it.
    Host(libc::clockid_t, i64),
}

impl Clock {
    /// Finds out how to read the clock of a device.
    fn of(cl: &'static Cl, device: cl::cl_device_id, context: &Context) -> Result<Self> {
        if device_time(cl, device).is_some() {
            return Ok(Self::Device);
        }
        // The time at which a command was queued lies between two readings of the clock around the call.
        let queue = create_queue(cl, device, context, true)?;
        let mut measured = Ok(Self::Host(libc::CLOCK_MONOTONIC, 0));
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_MONOTONIC_RAW] {
            measured = Self::measure(cl, queue, clock);
            // The device counts on this very clock.
            if matches!(measured, Ok(Self::Host(_, 0)) | Err(_)) {
                break;
            }
        }
        // SAFETY: made above, and idle.
        unsafe { (cl.clReleaseCommandQueue)(queue) };
        measured
    }

    fn measure(cl: &Cl, queue: cl::cl_command_queue, clock: libc::clockid_t) -> Result<Self> {
        let (mut low, mut high) = (i64::MIN, i64::MAX);
        for _ in 0..8 {
            let mut event = std::ptr::null_mut();
            let before = host_time(clock);
            // SAFETY: a live queue, and a place for the event.
            let status =
                unsafe { (cl.clEnqueueMarkerWithWaitList)(queue, 0, std::ptr::null(), &mut event) };
            let after = host_time(clock);
            cl::check(status, "clEnqueueMarkerWithWaitList")?;
            // SAFETY: the event of the marker, which is released here.
            let (waited, queued) = unsafe {
                let waited = (cl.clWaitForEvents)(1, &event);
                let queued = cl::number::<u64>(|size, to| {
                    let what = cl::CL_PROFILING_COMMAND_QUEUED;
                    (cl.clGetEventProfilingInfo)(event, what, size, to, std::ptr::null_mut())
                });
                (cl.clReleaseEvent)(event);
                (waited, queued)
            };
            cl::check(waited, "clWaitForEvents")?;
            let Some(queued) = queued else {
                return Ok(Self::Host(clock, 0));
            };
            low = low.max(queued.wrapping_sub(after) as i64);
            high = high.min(queued.wrapping_sub(before) as i64);
        }
        let ahead = if low <= 0 && high >= 0 {
            0
        } else {
            low.midpoint(high)
        };
        Ok(Self::Host(clock, ahead))
    }

    /// The time of a device.
    pub(crate) fn now(self, cl: &Cl, device: cl::cl_device_id) -> Result<u64> {
        match self {
            Self::Device => device_time(cl, device)
                .ok_or_else(|| cl::fault(cl::CL_INVALID_OPERATION, "clGetDeviceAndHostTimer")),
            Self::Host(clock, ahead) => Ok(host_time(clock).wrapping_add_signed(ahead)),
        }
    }
}

/// Whether a device is of OpenCL 2.1 or later. Functions of 2.1 are not even looked for in an older runtime.
fn has_2_1(cl: &Cl, device: cl::cl_device_id) -> bool {
    let text = ask_text(cl, device, cl::CL_DEVICE_VERSION);
    let number = text.strip_prefix("OpenCL ").unwrap_or_default();
    let mut parts = number
        .split([' ', '.'])
        .map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (2, 1)
}

/// The clock of a device that tells it.
fn device_time(cl: &Cl, device: cl::cl_device_id) -> Option<u64> {
    let tell = cl.clGetDeviceAndHostTimer.filter(|_| has_2_1(cl, device))?;
    let (mut time, mut host) = (0, 0);
    // SAFETY: a live device of a runtime that has the function, and places for both times.
    let status = unsafe { tell(device, &mut time, &mut host) };
    (status == cl::CL_SUCCESS && time != 0).then_some(time)
}

fn host_time(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a place for the time; both clocks are on every Linux, and a failure leaves 0.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// An in-order queue of OpenCL. Timestamps cost time at every command, so that only queues for markers have them.
pub(crate) fn create_queue(
    cl: &Cl,
    device: cl::cl_device_id,
    context: &Context,
    timed: bool,
) -> Result<cl::cl_command_queue> {
    let flags = if timed {
        cl::CL_QUEUE_PROFILING_ENABLE
    } else {
        0
    };
    let properties = [u64::from(cl::CL_QUEUE_PROPERTIES), flags, 0];
    let mut status = cl::CL_SUCCESS;
    // SAFETY: a live context with this device, and a list that ends in 0.
    let queue = unsafe {
        (cl.clCreateCommandQueueWithProperties)(
            context.raw,
            device,
            properties.as_ptr(),
            &mut status,
        )
    };
    cl::check(status, "clCreateCommandQueueWithProperties")?;
    Ok(queue)
}
