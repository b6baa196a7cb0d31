//! An open driver and what belongs to it as a whole: devices, memory, and the creation of queues,
//! events and kernels. It adds ownership and errors to the table, but no policy.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::fork::{forked, refuse_fork};
use crate::order::Threads;
use crate::profile::{What, WorkKind};
use crate::raw::{Owner, RawDriver};
use crate::table::{Table, entry};
use crate::{Code, DeviceProperties, Error, Event, Queue, Result, params, sys};

/// An open driver with at least one device.
///
/// It is cheap to clone. The library stays loaded and the driver open until the last clone, queue,
/// event and kernel is gone. Memory is the exception: the caller frees it before that.
///
/// A device is opened by the first call that needs it open, and stays so until [`close_device`](Self::close_device).
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    devices: Vec<Place>,
    // Declared before `raw`: the driver is closed when its queues are gone.
    threads: Ending,
    raw: Arc<RawDriver>,
}

/// The threads that run what queues hold. Dropping it waits for what they run.
struct Ending(Threads);

impl Drop for Ending {
    fn drop(&mut self) {
        // After a fork there are no threads in this process.
        if !forked() {
            self.0.finish();
        }
    }
}

/// A device, which may be open.
pub(crate) struct Place {
    is_open: AtomicBool,
    found: DeviceProperties,
    /// The properties that the device had when it was first opened (R57).
    opened: OnceLock<DeviceProperties>,
}

impl Place {
    fn properties(&self) -> &DeviceProperties {
        self.opened.get().unwrap_or(&self.found)
    }
}

impl Driver {
    /// Opens a driver by its checked table.
    ///
    /// # Errors
    /// Of `open`, with its text; `LOAD` if the driver has no device or broken properties.
    ///
    /// # Safety
    /// The functions of `table` keep the driver contract, and lie in `owner` or this library.
    pub(crate) unsafe fn from_table(
        table: Table,
        owner: Option<Owner>,
        options: Option<&CStr>,
        origin: String,
    ) -> Result<Self> {
        // SAFETY: the functions of `table` keep the driver contract, and lie in `owner` or this library.
        let mut raw = unsafe { RawDriver::open(table, owner, options) }?;
        raw.set_origin(origin);
        Self::from_raw(raw)
    }

    /// The driver behind an open table and handle.
    ///
    /// # Errors
    /// `LOAD` if the driver has no device or broken properties; it is closed then.
    pub fn from_raw(raw: RawDriver) -> Result<Self> {
        let devices = find_devices(&raw)?;
        Ok(Self(Arc::new(Inner {
            devices,
            threads: Ending(Threads::default()),
            raw: Arc::new(raw),
        })))
    }

    /// The table and handle of the driver, to be wrapped by a [layer](RawDriver).
    ///
    /// # Errors
    /// Gives the driver back while clones, queues, events or kernels of it live.
    pub fn into_raw(self) -> Result<RawDriver, Self> {
        let Inner {
            devices,
            threads,
            raw,
        } = Arc::try_unwrap(self.0).map_err(Self)?;
        threads.0.finish();
        Arc::try_unwrap(raw).map_err(|raw| {
            Self(Arc::new(Inner {
                devices,
                threads,
                raw,
            }))
        })
    }

    /// The short name of the driver, as `"host"`.
    pub fn name(&self) -> &str {
        &self.0.raw.table().name
    }

    /// Who makes the driver.
    pub fn vendor(&self) -> &str {
        &self.0.raw.table().vendor
    }

    /// The version of the driver, in its maker's own form.
    pub fn version(&self) -> &str {
        &self.0.raw.table().version
    }

    /// Major and minor number of the contract that the driver was compiled with.
    pub fn api_version(&self) -> (u32, u32) {
        (
            self.0.raw.table().api.api_major,
            self.0.raw.table().api.api_minor,
        )
    }

    /// How many devices there are; at least one.
    pub fn device_count(&self) -> u32 {
        self.0.devices.len() as u32
    }

    /// The properties of a device, which need not be open: then its priorities may be 0.
    ///
    /// # Errors
    /// `INVALID_DEVICE` with the number of devices.
    pub fn properties(&self, device: u32) -> Result<DeviceProperties> {
        Ok(self.place(device)?.properties().clone())
    }

    /// Whether a device is open; `false` for one that is not there.
    pub fn is_open(&self, device: u32) -> bool {
        let place = self.0.devices.get(device as usize);
        place.is_some_and(|place| place.is_open.load(Ordering::Acquire))
    }

    /// Opens a device, if it is not open.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; why the driver cannot open it, with its name. A later call tries again.
    #[inline]
    pub fn open_device(&self, device: u32) -> Result<()> {
        let place = self.place(device)?;
        if place.is_open.load(Ordering::Acquire) {
            return Ok(());
        }
        self.open_now(device, place)
    }

    /// Threads may come here at a time: R58 lets all of them open it.
    #[cold]
    fn open_now(&self, device: u32, place: &Place) -> Result<()> {
        refuse_fork()?;
        let open = entry!(self.0.raw.table().api, device_open);
        // SAFETY: the handle is open; NULL means defaults.
        let opened = self.check(unsafe { open(self.handle(), device, std::ptr::null()) });
        opened.map_err(|error| self.unopened(device, &error))?;
        if place.opened.get().is_none() {
            let properties = read_properties(&self.0.raw, device);
            let properties = properties.map_err(|error| self.unopened(device, &error))?;
            place.opened.get_or_init(|| properties);
        }
        place.is_open.store(true, Ordering::Release);
        Ok(())
    }

    #[cold]
    fn unopened(&self, device: u32, error: &Error) -> Error {
        let text = format!(
            "opening device {device} of the driver {}: {}",
            self.name(),
            error.message()
        );
        Error::new(error.code(), text)
    }

    /// Closes a device. The next call that needs it opens it again.
    ///
    /// # Errors
    /// `INVALID_DEVICE` for a device that is not open; `BUSY` while objects or memory of it live.
    pub fn close_device(&self, device: u32) -> Result<()> {
        refuse_fork()?;
        let place = self.place(device)?;
        let close = entry!(self.0.raw.table().api, device_close);
        // The driver waits for the work of its destroyed queues (R58), and some may not be destroyed yet.
        self.0.threads.0.await_leavers();
        // SAFETY: the handle is open; R8: nothing of the device is in use.
        self.check(unsafe { close(self.handle(), device) })?;
        place.is_open.store(false, Ordering::Release);
        Ok(())
    }

    /// Opens the first device if none is open, for calls that name no device.
    pub(crate) fn open_any(&self) -> Result<()> {
        if (0..self.device_count()).any(|device| self.is_open(device)) {
            return Ok(());
        }
        self.open_device(0)
    }

    /// Whether both are clones of one open driver.
    #[inline]
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Allocates device memory. No initial value.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; `INVALID_ARGUMENT` for a size of 0; `INVALID_DEVICE`.
    pub fn memory_alloc(&self, device: u32, size: u64) -> Result<u64> {
        refuse_fork()?;
        self.open_device(device)?;
        if size == 0 {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                "an allocation of 0 bytes; a driver allocates at least one",
            ));
        }
        let mut address = 0;
        let params = sys::otr_memory_params {
            flags: self.memory_flags(),
            ..params::memory(size)
        };
        let alloc = entry!(self.0.raw.table().api, memory_alloc);
        // SAFETY: the handle is open; the parameters and `address` live through the call.
        self.check(unsafe { alloc(self.handle(), device, &params, &mut address) })?;
        if address == 0 {
            return Err(Error::new(
                Code::INTERNAL,
                format!(
                    "the driver {} returned the address 0, which R13 forbids",
                    self.name()
                ),
            ));
        }
        Ok(address)
    }

    /// The flags of all memory. Any of it may be exported later, if the driver exports some.
    #[inline]
    pub(crate) fn memory_flags(&self) -> u32 {
        match &self.table().ipc {
            Some(_) => sys::OTR_MEMORY_EXPORTABLE,
            None => 0,
        }
    }

    /// Frees device memory.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` where the driver does not know the address.
    ///
    /// # Safety
    /// All submitted work that uses the memory has finished (R12).
    pub unsafe fn memory_free(&self, address: u64) -> Result<()> {
        refuse_fork()?;
        let free = entry!(self.0.raw.table().api, memory_free);
        // SAFETY: the handle is open; R12: the caller frees only memory whose work has finished.
        self.check(unsafe { free(self.handle(), address) })
    }

    /// Free and total bytes of a device; `None` if the driver does not tell.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or what the driver answers.
    pub fn memory_info(&self, device: u32) -> Result<Option<(u64, u64)>> {
        refuse_fork()?;
        let Some(group) = &self.0.raw.table().memory_info else {
            return Ok(None);
        };
        self.open_device(device)?;
        let (mut free, mut total) = (0, 0);
        let info = entry!(group, info);
        // SAFETY: the handle is open and both numbers live through the call.
        self.check(unsafe { info(self.handle(), device, &mut free, &mut total) })?;
        Ok(Some((free, total)))
    }

    /// Host memory that the device reaches fast and asynchronously; `None` if the driver has none.
    pub fn pinned(&self) -> Option<Pinned<'_>> {
        self.0
            .raw
            .table()
            .pinned_memory
            .as_ref()
            .map(|group| Pinned {
                driver: self,
                group,
            })
    }

    /// Copies between two devices of the driver; `None` if it cannot.
    pub fn peer(&self) -> Option<Peer<'_>> {
        self.0.raw.table().peer.as_ref().map(|group| Peer {
            driver: self,
            group,
        })
    }

    /// The clock of a device in nanoseconds; `None` if the driver has no timestamps.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or what the driver answers.
    pub fn device_time_ns(&self, device: u32) -> Result<Option<u64>> {
        refuse_fork()?;
        let Some(group) = &self.0.raw.table().timing else {
            return Ok(None);
        };
        self.open_device(device)?;
        let mut time = 0;
        let device_time = entry!(group, device_time);
        // SAFETY: the handle is open and `time` lives through the call.
        self.check(unsafe { device_time(self.handle(), device, &mut time) })?;
        Ok(Some(time))
    }

    /// Makes an in-order queue. A priority outside of the device's range is clamped.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `OUT_OF_HOST_MEMORY`, or what else the driver answers.
    pub fn queue_create(&self, device: u32, priority: i32) -> Result<Queue> {
        refuse_fork()?;
        self.open_device(device)?;
        Queue::create(self, device, priority)
    }

    /// Makes an event, with a timestamp if `timing`.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `UNSUPPORTED` for `timing` if the driver has no timestamps.
    pub fn event_create(&self, device: u32, timing: bool) -> Result<Event> {
        refuse_fork()?;
        self.open_device(device)?;
        Event::create(self, device, timing)
    }

    /// The table and the handle, for calls that the wrappers do not allow, such as wrong calls in a
    /// conformance test. The table holds what the driver's `struct_size` covers, and zeros behind it.
    /// Its groups are the driver's own, and end where their `struct_size` says.
    pub fn raw(&self) -> (&sys::otr_driver_api, *mut sys::otr_driver) {
        (self.0.raw.api(), self.handle())
    }

    /// The checked table and the handle, for what stands between this driver and a host and calls entries itself.
    pub fn as_raw(&self) -> &RawDriver {
        &self.0.raw
    }

    pub(crate) fn table(&self) -> &Table {
        self.0.raw.table()
    }

    pub(crate) fn handle(&self) -> *mut sys::otr_driver {
        self.0.raw.handle()
    }

    pub(crate) fn place(&self, device: u32) -> Result<&Place> {
        self.0.devices.get(device as usize).ok_or_else(|| {
            let count = self.0.devices.len();
            Error::new(
                Code::INVALID_DEVICE,
                format!(
                    "device {device} of the driver {}, which has {count} (0 to {})",
                    self.name(),
                    count - 1
                ),
            )
        })
    }

    /// Turns the answer of a call that has just returned on this thread into a result.
    #[inline]
    pub(crate) fn check(&self, code: i32) -> Result<()> {
        self.0.raw.check(code)
    }

    /// Whether all of the work has finished, by a call that writes an outcome.
    ///
    /// # Errors
    /// Those of [`RawDriver::ask`].
    #[inline]
    pub(crate) fn ask(&self, call: impl FnOnce(*mut sys::otr_outcome) -> i32) -> Result<bool> {
        self.0.raw.ask(call)
    }

    /// The same for a call that waits, or has an outcome at any time.
    ///
    /// # Errors
    /// Those of [`RawDriver::ask`].
    #[inline]
    pub(crate) fn wait(&self, call: impl FnOnce(*mut sys::otr_outcome) -> i32) -> Result<()> {
        self.0.raw.wait(call)
    }

    /// The table and the handle, for what outlives this.
    pub(crate) fn shared(&self) -> &Arc<RawDriver> {
        &self.0.raw
    }

    /// The threads that run what queues hold.
    pub(crate) fn threads(&self) -> &Threads {
        &self.0.threads.0
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("name", &self.name())
            .field("version", &self.version())
            .field("devices", &self.device_count())
            .finish_non_exhaustive()
    }
}

fn find_devices(raw: &RawDriver) -> Result<Vec<Place>> {
    let mut count = 0;
    let device_count = entry!(raw.table().api, device_count);
    // SAFETY: the handle is open and `count` lives through the call.
    let code = Code(unsafe { device_count(raw.handle(), &mut count) });
    if code != Code::OK {
        return Err(while_opening("device_count", raw.failed(code)));
    }
    if count == 0 {
        return Err(Error::new(
            Code::LOAD,
            "it opened, but it found no device; a driver without devices gives the reason by \
             failing its `open`",
        ));
    }
    let place = |device| {
        Ok(Place {
            is_open: AtomicBool::new(false),
            found: read_properties(raw, device)?,
            opened: OnceLock::new(),
        })
    };
    (0..count).map(place).collect()
}

fn read_properties(raw: &RawDriver, device: u32) -> Result<DeviceProperties> {
    let device_properties = entry!(raw.table().api, device_properties);
    let mut properties = DeviceProperties::raw();
    // SAFETY: the handle is open and `properties` lives through the call, with its size in it.
    let code = Code(unsafe { device_properties(raw.handle(), device, &mut properties) });
    if code != Code::OK {
        let what = format!("device_properties of device {device}");
        return Err(while_opening(&what, raw.failed(code)));
    }
    DeviceProperties::from_raw(&properties).map_err(|problem| {
        Error::new(
            Code::LOAD,
            format!("the properties of device {device}: {problem}"),
        )
    })
}

fn while_opening(what: &str, error: Error) -> Error {
    Error::new(
        error.code(),
        format!("it opened, but {what} failed: {error}"),
    )
}

/// Pinned host memory of a driver.
#[derive(Clone, Copy, Debug)]
pub struct Pinned<'a> {
    driver: &'a Driver,
    group: &'a sys::otr_pinned_memory_api,
}

impl Pinned<'_> {
    /// Allocates `size` bytes of host memory, without an initial value.
    ///
    /// # Errors
    /// `OUT_OF_HOST_MEMORY`; `INVALID_ARGUMENT` for a size of 0.
    pub fn alloc(&self, size: u64) -> Result<*mut c_void> {
        refuse_fork()?;
        if size == 0 {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                "an allocation of 0 bytes of pinned memory; at least one is needed",
            ));
        }
        self.driver.open_any()?;
        let mut pointer = std::ptr::null_mut();
        let alloc = entry!(self.group, alloc);
        // SAFETY: the handle is open and `pointer` lives through the call.
        let code = unsafe { alloc(self.driver.handle(), size, &mut pointer) };
        self.driver.check(code)?;
        if pointer.is_null() {
            return Err(Error::new(
                Code::INTERNAL,
                "the driver returned NULL for pinned memory",
            ));
        }
        Ok(pointer)
    }

    /// Frees what [`alloc`](Self::alloc) gave.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` where the driver does not know the pointer.
    ///
    /// # Safety
    /// Nobody uses the memory any more, submitted work included.
    pub unsafe fn free(&self, pointer: *mut c_void) -> Result<()> {
        refuse_fork()?;
        let free = entry!(self.group, free);
        // SAFETY: the handle is open; R12: the caller frees only memory whose work has finished.
        self.driver
            .check(unsafe { free(self.driver.handle(), pointer) })
    }
}

/// Copies between two devices of one driver.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    driver: &'a Driver,
    group: &'a sys::otr_peer_api,
}

impl Peer<'_> {
    /// Whether work of `device` may read and write memory of `peer`.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or what the driver answers.
    pub fn can_access(&self, device: u32, peer: u32) -> Result<bool> {
        refuse_fork()?;
        self.driver.open_device(device)?;
        self.driver.open_device(peer)?;
        let mut yes = 0;
        let can_access = entry!(self.group, can_access);
        // SAFETY: the handle is open and `yes` lives through the call.
        let code = unsafe { can_access(self.driver.handle(), device, peer, &mut yes) };
        self.driver.check(code)?;
        Ok(yes != 0)
    }

    /// Copies `size` bytes from `src` on one device to `dst` on another, in the order of `queue`.
    /// Each end is a pair of device and address.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `INVALID_ARGUMENT` for a queue of another driver or ranges that the driver
    /// does not know.
    ///
    /// # Safety
    /// Both ranges are live until the copy has finished, and do not overlap.
    pub unsafe fn copy(
        &self,
        queue: &Queue,
        dst: (u32, u64),
        src: (u32, u64),
        size: u64,
    ) -> Result<()> {
        refuse_fork()?;
        self.driver.open_device(dst.0)?;
        self.driver.open_device(src.0)?;
        if !queue.driver().same_as(self.driver) {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "a peer copy of the driver {} on a queue of the driver {}",
                    self.driver.name(),
                    queue.driver().name()
                ),
            ));
        }
        let copy = entry!(self.group, copy);
        let params = params::peer_copy(dst, src, size);
        let handle = queue.raw();
        queue.submit_owned(
            move || What::new(WorkKind::Copy, "copy between devices", size),
            // SAFETY: the queue is live; both ranges are live until the copy has finished, and do not
            // overlap (R26).
            move || unsafe { copy(handle, &params) },
        )
    }
}
