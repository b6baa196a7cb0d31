//! An open driver: what all of its objects share, and the entries that concern it as a whole.

use std::sync::Arc;

use outrigger_contract as c;
use outrigger_driver_kit::allocations::Allocations;
use outrigger_driver_kit::given::{self, Out};
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::options::Options;
use outrigger_driver_kit::{Fault, Pool, Result, field, table};
use parking_lot::{Mutex, RwLock};

use crate::clock::{Clock, Events};
use crate::cuda::{self, Cuda};
use crate::device::{Device, PROPERTIES_START};
use crate::library::Library;
use crate::nvrtc::{self, Nvrtc};
use crate::pinned::Pinned;
use crate::ranges::Mappings;

/// The options that `open` takes.
const OPTIONS: [(&str, &str); 3] = [("libcuda", "PATH"), ("nvrtc", "PATH"), ("cublaslt", "PATH")];

/// The first version of the driver API that has all that is used here.
const OLDEST: i32 = 11040;

/// An open driver. Queues keep it alive until their work has finished.
pub(crate) struct Open {
    pub(crate) nvrtc: Option<&'static Nvrtc>,
    pub(crate) allocations: Allocations,
    pub(crate) mappings: Mappings,
    pub(crate) pinned: Pinned,
    pub(crate) free_events: Box<[Events]>,
    pub(crate) pool: Pool,
    pub(crate) library: Library,
    /// The clocks of devices that are open.
    clocks: Box<[RwLock<Option<Arc<Clock>>>]>,
    pub(crate) devices: Box<[Device]>,
    /// Held while a device is opened or closed.
    turn: Mutex<()>,
}

impl Open {
    /// A device that is open.
    pub(crate) fn device(&self, index: u32) -> Result<&Device> {
        let found = self.found(index)?;
        if !found.is_open() {
            return Err(Fault::not_open(index));
        }
        Ok(found)
    }

    /// A device, open or not.
    pub(crate) fn found(&self, index: u32) -> Result<&Device> {
        let found = self.devices.get(index as usize);
        found.ok_or_else(|| Fault::no_device(index, self.devices.len()))
    }

    /// The first device that is open, and its number, for what is of no device.
    pub(crate) fn any_device(&self) -> Result<(u32, &Device)> {
        let mut open = (0..)
            .zip(&self.devices)
            .filter(|(_, device)| device.is_open());
        open.next().ok_or_else(|| {
            Fault::new(
                c::OTR_ERR_INVALID_DEVICE,
                "no device is open: device_open comes first",
            )
        })
    }

    /// The clock of a device that is open.
    pub(crate) fn clock(&self, device: u32) -> Result<Arc<Clock>> {
        let clock = self.clocks[device as usize].read().clone();
        clock.ok_or_else(|| Fault::new(c::OTR_ERR_INVALID_DEVICE, "the device is closed"))
    }

    /// Opens a device, if it is not open.
    fn open_device(&self, index: u32) -> Result {
        let device = self.found(index)?;
        let _turn = self.turn.lock();
        if device.is_open() {
            return Ok(());
        }
        let started = device.take_context().and_then(|()| Clock::start(device));
        match started {
            Ok(clock) => *self.clocks[index as usize].write() = Some(Arc::new(clock)),
            Err(fault) => {
                device.give_back();
                return Err(fault);
            }
        }
        for peer in self.devices.iter().filter(|peer| peer.is_open()) {
            enable_peer(device, peer);
            enable_peer(peer, device);
        }
        device.set_open(true);
        Ok(())
    }

    fn close_device(&self, index: u32) -> Result {
        let _turn = self.turn.lock();
        let device = self.device(index)?;
        let memory = [
            (self.allocations.count_of(index), "device allocations"),
            (self.pinned.count_of(index), "pinned allocations"),
            (self.mappings.count_of(index), "reservations"),
        ];
        let counts = device.live.counts().into_iter().chain(memory);
        if let Some(left) = listed(counts) {
            return Err(Fault::new(
                c::OTR_ERR_BUSY,
                format!(
                    "{left} are left: destroy and free all of device {index} before closing it"
                ),
            ));
        }
        // Destroyed queues may still work.
        device.live.lanes.wait();
        device.set_open(false);
        self.end_device(index);
        Ok(())
    }

    /// Gives back what a device took.
    fn end_device(&self, index: u32) {
        let device = &self.devices[index as usize];
        self.free_events[index as usize].destroy(device);
        self.library.close(device);
        *self.clocks[index as usize].write() = None;
        device.give_back();
    }

    fn new(options: &str) -> Result<Self> {
        let options = Options::parse(options, &OPTIONS)?;
        let cuda = cuda::load(options.get("libcuda").unwrap_or(cuda::LIBRARY))?;
        let count = count(cuda)?;
        let nvrtc = match nvrtc::load(options.get("nvrtc")) {
            Ok(nvrtc) => Some(nvrtc),
            // A host that has named NVRTC wants it.
            Err(fault) if options.get("nvrtc").is_some() => return Err(fault),
            Err(fault) => {
                table::log(
                    c::OTR_LOG_INFO,
                    &format!("CUDA C is not taken: {}", fault.text()),
                );
                None
            }
        };
        let library = Library::new(options.get("cublaslt"), count as usize)?;
        let mut formats = 1 << c::OTR_CODE_PTX | 1 << c::OTR_CODE_ELF;
        if nvrtc.is_some() {
            formats |= 1 << c::OTR_CODE_CUDA_C;
        }
        let (mut devices, mut unusable) = (Vec::new(), None);
        for index in 0..count {
            match Device::find(cuda, index, formats) {
                Ok(device) => devices.push(device),
                // A device that has fallen off the bus, for instance, is no reason to do without the rest.
                Err(fault) => {
                    let text = format!("CUDA's device {index} is left out: {}", fault.text());
                    table::log(c::OTR_LOG_WARN, &text);
                    unusable.get_or_insert(fault);
                }
            }
        }
        if let (true, Some(fault)) = (devices.is_empty(), unusable) {
            return Err(fault);
        }
        Ok(Self {
            nvrtc,
            // The room for memory is a question to CUDA: other programs use the device too.
            allocations: Allocations::new(devices.iter().map(|_| (u64::MAX, u64::MAX))),
            mappings: Mappings::default(),
            pinned: Pinned::default(),
            free_events: devices.iter().map(|_| Events::default()).collect(),
            pool: Pool::default(),
            library,
            clocks: devices.iter().map(|_| RwLock::default()).collect(),
            devices: devices.into(),
            turn: Mutex::default(),
        })
    }

    /// Refuses bytes that are neither within one allocation nor in mapped memory of a device (R7, R41).
    #[inline]
    pub(crate) fn check(&self, device: u32, address: u64, size: u64) -> Result {
        if self.allocations.has(device, address, size)
            || self.mappings.reaches(device, address, size)
        {
            return Ok(());
        }
        self.allocations.check(device, address, size)
    }

    /// The objects that stand in the way of closing, in words.
    fn in_use(&self) -> Option<String> {
        let memory = [
            (self.allocations.count(), "device allocations"),
            (self.pinned.count(), "pinned allocations"),
            (self.mappings.count(), "reservations"),
        ];
        let mut counts = memory.to_vec();
        for (count, what) in self.devices.iter().flat_map(|device| device.live.counts()) {
            match counts.iter_mut().find(|(_, other)| *other == what) {
                Some((sum, _)) => *sum += count,
                None => counts.push((count, what)),
            }
        }
        listed(counts)
    }
}

/// The kinds of which there are some, with their counts, in words.
fn listed(counts: impl IntoIterator<Item = (usize, &'static str)>) -> Option<String> {
    let left: Vec<String> = (counts.into_iter())
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    (!left.is_empty()).then(|| left.join(", "))
}

impl Drop for Open {
    fn drop(&mut self) {
        (0..self.devices.len() as u32).for_each(|index| self.end_device(index));
    }
}

/// The number of devices; an error that says what is missing where there is none.
fn count(cuda: &Cuda) -> Result<i32> {
    // SAFETY: 0 is the only flag.
    cuda.check(unsafe { (cuda.init)(0) }, "cuInit")?;
    let mut version = 0;
    // SAFETY: a place for the number.
    let told = unsafe { (cuda.driver_version)(&mut version) };
    cuda.check(told, "cuDriverGetVersion")?;
    if version < OLDEST {
        let text = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
        return Err(Fault::new(
            c::OTR_ERR_LOAD,
            format!(
                "the driver of NVIDIA's is too old: it has CUDA {}, and {} is needed",
                text(version),
                text(OLDEST)
            ),
        ));
    }
    let mut count = 0;
    // SAFETY: a place for the number.
    let told = unsafe { (cuda.device_count)(&mut count) };
    cuda.check(told, "cuDeviceGetCount")?;
    if count == 0 {
        return Err(Fault::new(
            c::OTR_ERR_LOAD,
            "CUDA has no device here; CUDA_VISIBLE_DEVICES may hide some",
        ));
    }
    Ok(count)
}

/// Lets a device reach the memory of another where it can. Copies between two of them need it not, and are faster with it.
fn enable_peer(device: &Device, peer: &Device) {
    let enable = || {
        if !reaches(device, peer)? {
            return Ok(());
        }
        let _entered = device.enter()?;
        // SAFETY: a live context; 0 is the only flag.
        let enabled = unsafe { (device.cuda.enable_peer)(peer.context(), 0) };
        // Contexts are shared: somebody else may have done it.
        if enabled == cuda::ERROR_PEER_ACCESS_ALREADY_ENABLED {
            return Ok(());
        }
        device.check(enabled, "cuCtxEnablePeerAccess")
    };
    // A device has a limit of peers, for instance.
    if let Err(fault) = enable() {
        let text = format!(
            "copies between CUDA's devices {} and {} take another way: {}",
            device.ordinal,
            peer.ordinal,
            fault.text()
        );
        table::log(c::OTR_LOG_INFO, &text);
    }
}

/// Whether work of a device can reach the memory of another.
pub(crate) fn reaches(device: &Device, peer: &Device) -> Result<bool> {
    if device.ordinal == peer.ordinal {
        return Ok(true);
    }
    let mut yes = 0;
    // SAFETY: a place for the answer.
    let told = unsafe { (device.cuda.can_access_peer)(&mut yes, device.ordinal, peer.ordinal) };
    device.check(told, "cuDeviceCanAccessPeer")?;
    Ok(yes != 0)
}

/// The handle of an open driver.
pub(crate) struct Driver(Arc<Open>);

impl Object for Driver {
    type Raw = c::otr_driver;
    const KIND: u64 = 0x6375_6461_6472_7672;
    const NAME: &'static str = "the driver";
}

/// The open driver behind a handle.
///
/// # Safety
/// R8: the handle is NULL, or one of this driver's that no other call destroys.
pub(crate) unsafe fn get<'a>(handle: *mut c::otr_driver) -> Result<&'a Arc<Open>> {
    // SAFETY: this function's contract.
    let driver = unsafe { handle::get::<Driver>(handle)? };
    Ok(&driver.0)
}

/// # Safety
/// R1, R10: the parameters are NULL or a struct of their size.
pub(crate) unsafe fn open(
    params: *const c::otr_open_params,
    place: *mut *mut c::otr_driver,
) -> Result {
    let place = Out::new(place, "the place for the driver")?;
    let mut options = "";
    if !params.is_null() {
        // SAFETY: not NULL, so a struct of its size (R1), with a text or NULL (R10).
        unsafe {
            if let Some(text) = field!(params, c::otr_open_params, options) {
                options = given::text(text, "the options")?.unwrap_or_default();
            }
        }
    }
    let open = Arc::new(Open::new(options)?);
    place.give(handle::give(Driver(open)));
    Ok(())
}

/// # Safety
/// R8, R12: no other call uses the driver.
pub(crate) unsafe fn close(handle: *mut c::otr_driver) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    if let Some(left) = open.in_use() {
        return Err(Fault::new(
            c::OTR_ERR_BUSY,
            format!("{left} are left: destroy and free all before closing the driver"),
        ));
    }
    // Destroyed queues may still work (R12).
    open.pool.finish();
    // SAFETY: this function's contract.
    unsafe { handle::take::<Driver>(handle) }.map(drop)
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn device_count(handle: *mut c::otr_driver, place: *mut u32) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    Out::new(place, "the place for the count")?.give(open.devices.len() as u32);
    Ok(())
}

/// # Safety
/// R1, R8, R10.
pub(crate) unsafe fn device_properties(
    handle: *mut c::otr_driver,
    device: u32,
    place: *mut c::otr_device_properties,
) -> Result {
    // SAFETY: this function's contract.
    let device = unsafe { get(handle)? }.found(device)?;
    // SAFETY: NULL, or a struct of its size (R1).
    unsafe {
        given::write_struct(
            place,
            &device.properties(),
            PROPERTIES_START,
            "the place for the properties",
        )
    }
}

/// # Safety
/// R1, R8: the parameters are NULL or a struct of their size.
pub(crate) unsafe fn device_open(
    handle: *mut c::otr_driver,
    device: u32,
    params: *const c::otr_device_params,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    open.found(device)?;
    // SAFETY: this function's contract.
    unsafe { given::device_params(params)? };
    open.open_device(device)
}

/// # Safety
/// R8: no other call uses the device.
pub(crate) unsafe fn device_close(handle: *mut c::otr_driver, device: u32) -> Result {
    // SAFETY: this function's contract.
    unsafe { get(handle)? }.close_device(device)
}
