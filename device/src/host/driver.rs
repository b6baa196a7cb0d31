//! An open host driver: its devices, its live objects, and the entries of the table that concern it as
//! a whole. It knows nothing of work.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::command::{inside, now};
use super::exports::{Exports, Handle, Kind};
use super::fault::{Fault, done, params};
use super::memory::{Memory, limit_of};
use super::options::{Face, Options};
use super::pages::Part;
use crate::{Code, sys};

/// One device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) memory: Memory,
    /// Queues that the host has not given back.
    pub(super) queues: AtomicUsize,
    /// Queues whose work has not finished, destroyed ones included.
    pub(super) working: Working,
}

impl Device {
    /// How much of each kind the host has not given back.
    fn counts(&self) -> [(usize, &'static str); 5] {
        let left = self.memory.mapping().left();
        [
            (self.queues.load(Ordering::Relaxed), "queues"),
            (self.memory.allocations(), "device allocations"),
            (left.ranges, "reserved ranges"),
            (left.objects, "physical objects"),
            (left.imports, "imported allocations"),
        ]
    }
}

/// The place of a device, which may be open (R58).
#[derive(Debug, Default)]
struct Place {
    is_open: AtomicBool,
    /// Held while the device is opened or closed.
    turn: Mutex<()>,
    /// The device, from its first opening on. A closed one keeps its addresses, which calls for other devices may
    /// look at, and has no memory behind them.
    device: OnceLock<Device>,
}

/// One result of `open`. Queues keep it alive until their work has finished.
#[derive(Debug)]
pub(super) struct Host {
    places: Box<[Place]>,
    /// Bytes of each device, and what the host sees of them.
    memory: u64,
    face: Face,
    /// Events, graphs, operators, ranks of communicators and semaphores that the host has not given back.
    pub(super) events: AtomicUsize,
    pub(super) graphs: AtomicUsize,
    pub(super) operators: AtomicUsize,
    pub(super) communicators: AtomicUsize,
    pub(super) semaphores: AtomicUsize,
    /// Pinned allocations: address to mapped bytes.
    pinned: Mutex<HashMap<usize, usize>>,
    /// What other processes may use of its memory, and it of theirs.
    pub(super) exports: Exports,
    /// The communicators that not all ranks have joined, by the ids that were made here: their names and
    /// their files.
    pub(super) ids: Mutex<HashMap<Handle, (u64, Part)>>,
}

/// How many queues may still work. Counted apart from those that the host has, since a destroyed queue
/// works on (R11) and `close` waits for it (R12).
#[derive(Debug, Default)]
pub(super) struct Working {
    count: Mutex<usize>,
    none: Condvar,
}

impl Working {
    pub(super) fn begin(&self) {
        *self.count.lock() += 1;
    }

    pub(super) fn end(&self) {
        let mut count = self.count.lock();
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }

    fn wait(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            self.none.wait(&mut count);
        }
    }
}

impl Host {
    /// The driver behind a handle, without taking it over.
    ///
    /// # Safety
    /// `handle` is NULL or came from `open` and was not closed.
    #[inline]
    pub(super) unsafe fn from_handle(
        handle: *mut sys::otr_driver,
    ) -> Result<ManuallyDrop<Arc<Self>>, Fault> {
        if handle.is_null() {
            return Err(Fault::null("the driver", Code::INVALID_HANDLE));
        }
        // SAFETY: made by `Arc::into_raw` in `open`; never dropped here.
        Ok(ManuallyDrop::new(unsafe {
            Arc::from_raw(handle.cast::<Self>())
        }))
    }

    fn place(&self, index: u32) -> Result<&Place, Fault> {
        self.places.get(index as usize).ok_or_else(|| {
            Fault::new(
                Code::INVALID_DEVICE,
                format!(
                    "there is no device {index}; devices are 0 to {}",
                    self.places.len() - 1
                ),
            )
        })
    }

    /// Refuses a device that is not there, open or not.
    pub(super) fn has_device(&self, index: u32) -> Result<(), Fault> {
        self.place(index).map(drop)
    }

    /// A device that is open.
    #[inline]
    pub(super) fn device(&self, index: u32) -> Result<&Device, Fault> {
        let place = self.place(index)?;
        match place.device.get() {
            Some(device) if place.is_open.load(Ordering::Acquire) => Ok(device),
            _ => Err(closed(format!("device {index} is not open"))),
        }
    }

    /// The first device that is open, for work that is of no device.
    pub(super) fn any_device(&self) -> Result<&Device, Fault> {
        let mut open = (0..self.places.len() as u32).filter_map(|index| self.device(index).ok());
        open.next()
            .ok_or_else(|| closed("no device is open".to_owned()))
    }

    /// The devices that are open or have been.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.places.iter().filter_map(|place| place.device.get())
    }

    /// Finds the devices that the options describe.
    pub(super) fn open(options: &str) -> Result<Self, Fault> {
        let options = Options::parse(options)?;
        Ok(Self {
            places: (0..options.devices).map(|_| Place::default()).collect(),
            memory: options.memory,
            face: options.face,
            events: AtomicUsize::new(0),
            graphs: AtomicUsize::new(0),
            operators: AtomicUsize::new(0),
            communicators: AtomicUsize::new(0),
            semaphores: AtomicUsize::new(0),
            pinned: Mutex::default(),
            exports: Exports::default(),
            ids: Mutex::default(),
        })
    }

    /// Reserves the memory of a device, or opens it again.
    pub(super) fn open_device(&self, index: u32) -> Result<(), Fault> {
        let place = self.place(index)?;
        let _turn = place.turn.lock();
        if place.device.get().is_none() {
            let memory = Memory::new(index, self.places.len() as u32, self.memory, self.face)?;
            place.device.get_or_init(|| Device {
                index,
                memory,
                queues: AtomicUsize::new(0),
                working: Working::default(),
            });
        }
        place.is_open.store(true, Ordering::Release);
        Ok(())
    }

    fn close_device(&self, index: u32) -> Result<(), Fault> {
        let place = self.place(index)?;
        let _turn = place.turn.lock();
        let device = self.device(index)?;
        if let Some(rest) = listed(&device.counts()) {
            return Err(Fault::new(
                Code::BUSY,
                format!(
                    "{rest} are left: destroy and free all of device {index} before closing it"
                ),
            ));
        }
        // As in `close`.
        if !inside() {
            device.working.wait();
        }
        place.is_open.store(false, Ordering::Release);
        Ok(())
    }

    /// What still stands in the way of closing.
    fn in_use(&self) -> Option<String> {
        let mut counts = vec![
            (self.events.load(Ordering::Relaxed), "events"),
            (self.graphs.load(Ordering::Relaxed), "graphs"),
            (self.operators.load(Ordering::Relaxed), "operators"),
            (self.communicators.load(Ordering::Relaxed), "communicators"),
            (self.semaphores.load(Ordering::Relaxed), "semaphores"),
            (self.pinned.lock().len(), "pinned allocations"),
        ];
        for (count, what) in self.devices().flat_map(Device::counts) {
            match counts.iter_mut().find(|(_, other)| *other == what) {
                Some((sum, _)) => *sum += count,
                None => counts.push((count, what)),
            }
        }
        listed(&counts)
    }
}

#[cold]
fn closed(what: String) -> Fault {
    Fault::new(
        Code::INVALID_DEVICE,
        format!("{what}: device_open comes first"),
    )
}

/// What there is some of, in words.
fn listed(counts: &[(usize, &str)]) -> Option<String> {
    let rest: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    (!rest.is_empty()).then(|| rest.join(", "))
}

pub(super) unsafe extern "C" fn open(
    params: *const sys::otr_open_params,
    driver: *mut *mut sys::otr_driver,
) -> i32 {
    done(|| {
        if driver.is_null() {
            return Err(Fault::null(
                "the place for the driver",
                Code::INVALID_ARGUMENT,
            ));
        }
        let mut options = "";
        if !params.is_null() {
            // SAFETY: not NULL, so a struct of at least its first two fields (R1).
            let size = unsafe { (*params).struct_size };
            let needed = std::mem::offset_of!(sys::otr_open_params, options) + size_of::<usize>();
            let mut text = std::ptr::null();
            if size >= needed {
                // SAFETY: within the size that the host wrote.
                text = unsafe { (*params).options };
            }
            if !text.is_null() {
                // SAFETY: not NULL, so NUL-terminated.
                options = unsafe { CStr::from_ptr(text) }
                    .to_str()
                    .map_err(|_| Fault::argument("the options are not UTF-8"))?;
            }
        }
        let host = Arc::new(Host::open(options)?);
        // SAFETY: not NULL, so writable.
        unsafe { *driver = Arc::into_raw(host).cast_mut().cast() };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn close(driver: *mut sys::otr_driver) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        if let Some(rest) = host.in_use() {
            return Err(Fault::new(
                Code::BUSY,
                format!("{rest} are left: destroy and free all before closing the driver"),
            ));
        }
        // A host call that closes the driver cannot be waited for by itself: then work of destroyed
        // queues that still runs keeps the rest alive.
        if !inside() {
            host.devices().for_each(|device| device.working.wait());
        }
        drop(ManuallyDrop::into_inner(host));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn device_count(driver: *mut sys::otr_driver, count: *mut u32) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        // SAFETY: `give` refuses NULL (R7); the host makes any other place writable.
        unsafe { give(count, host.places.len() as u32) }
    })
}

pub(super) unsafe extern "C" fn device_open(
    driver: *mut sys::otr_driver,
    device: u32,
    params: *const sys::otr_device_params,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        // SAFETY: NULL, or a struct of the size that stands in it (R1).
        let flags = match unsafe { params.as_ref() } {
            Some(params) if params.struct_size >= size_of::<sys::otr_device_params>() => {
                params.flags
            }
            _ => 0,
        };
        host.place(device)?;
        if flags != 0 {
            return Err(Fault::argument(format!(
                "device flags {flags:#x}; none are known"
            )));
        }
        host.open_device(device)
    })
}

pub(super) unsafe extern "C" fn device_close(driver: *mut sys::otr_driver, device: u32) -> i32 {
    // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
    done(|| unsafe { Host::from_handle(driver)? }.close_device(device))
}

pub(super) unsafe extern "C" fn device_properties(
    driver: *mut sys::otr_driver,
    device: u32,
    properties: *mut sys::otr_device_properties,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        host.place(device)?;
        if properties.is_null() {
            return Err(Fault::null("the properties", Code::INVALID_ARGUMENT));
        }
        let mut full = crate::DeviceProperties::raw();
        let face = match host.face {
            Face::Unified => "unified",
            Face::Discrete => "discrete",
        };
        text(
            &mut full.name,
            &format!("Outrigger host device {device} ({face})"),
        );
        text(&mut full.vendor, VENDOR);
        full.uuid[..8].copy_from_slice(b"otr-host");
        full.uuid[8] = host.face as u8 + 1;
        full.uuid[12..].copy_from_slice(&device.to_be_bytes());
        full.flags = sys::OTR_DEVICE_CPU;
        if host.face == Face::Unified {
            full.flags |= sys::OTR_DEVICE_HOST_VISIBLE;
        }
        full.total_memory = limit_of(host.memory);
        // Allocations are aligned to far more; a cache line is what kernels profit from.
        full.address_alignment = 64;
        full.compute_units =
            std::thread::available_parallelism().map_or(0, |count| count.get() as u32);
        full.code_formats = 1 << sys::OTR_CODE_HOST_FUNCTION;
        // SAFETY: not NULL, so a struct of the size that stands in it; R1: no further is written, and
        // size and chain stay the host's.
        unsafe {
            let (size, start) = ((*properties).struct_size, PROPERTIES_START);
            let end = size.min(size_of::<sys::otr_device_properties>());
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(&full).byte_add(start).cast::<u8>(),
                properties.byte_add(start).cast::<u8>(),
                end.saturating_sub(start),
            );
        }
        Ok(())
    })
}

/// Where what a driver writes begins.
const PROPERTIES_START: usize = std::mem::offset_of!(sys::otr_device_properties, name);

/// Who makes the devices.
pub(super) const VENDOR: &str = "Outrigger";

/// Copies a text into a zeroed field, cut so that a NUL remains.
fn text(field: &mut [c_char], text: &str) {
    let room = field.len() - 1;
    for (to, from) in field[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// Refuses a place for a result before there is one.
pub(super) fn writable<T>(place: *mut T) -> Result<(), Fault> {
    if place.is_null() {
        return Err(Fault::null(
            "the place for the result",
            Code::INVALID_ARGUMENT,
        ));
    }
    Ok(())
}

/// Writes an output.
///
/// # Safety
/// `place` is NULL or writable.
pub(super) unsafe fn give<T>(place: *mut T, value: T) -> Result<(), Fault> {
    writable(place)?;
    // SAFETY: not NULL, so writable.
    unsafe { place.write(value) };
    Ok(())
}

// ---- Memory ------------------------------------------------------------------------------------

pub(super) unsafe extern "C" fn memory_alloc(
    driver: *mut sys::otr_driver,
    device: u32,
    params: *const sys::otr_memory_params,
    address: *mut u64,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let device = host.device(device)?;
        if address.is_null() {
            return Err(Fault::null(
                "the place for the address",
                Code::INVALID_ARGUMENT,
            ));
        }
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        let params = unsafe { memory_params(params, sys::OTR_MEMORY_EXPORTABLE_FD)? };
        if params.size == 0 {
            return Err(Fault::argument(
                "an allocation of 0 bytes; at least 1 is needed",
            ));
        }
        let exportable = params.flags & sys::OTR_MEMORY_EXPORTABLE_FD != 0;
        let taken = if exportable {
            device
                .memory
                .alloc_exportable(params.size, params.alignment)?
        } else {
            device.memory.alloc(params.size, params.alignment)?
        };
        // SAFETY: not NULL, so writable.
        unsafe { give(address, taken) }
    })
}

/// What memory is asked for, checked but for its size. All of this driver's can be given to `ipc`; which flags the entry
/// knows besides, it says.
///
/// # Safety
/// `given` is NULL, or to a struct that begins with its size.
pub(super) unsafe fn memory_params<'a>(
    given: *const sys::otr_memory_params,
    flags: u32,
) -> Result<&'a sys::otr_memory_params, Fault> {
    // SAFETY: this function's contract.
    let given = unsafe { params(given, "the parameters of the memory")? };
    if given.kind != sys::OTR_MEMORY_DEVICE {
        return Err(Fault::new(
            Code::UNSUPPORTED,
            format!(
                "memory of kind {:#x}; this driver has OTR_MEMORY_DEVICE ({}) alone",
                given.kind,
                sys::OTR_MEMORY_DEVICE
            ),
        ));
    }
    let known = sys::OTR_MEMORY_EXPORTABLE | flags;
    if given.flags & !known != 0 {
        return Err(Fault::argument(format!(
            "memory flags {:#x}; known here are {known:#x}, of OTR_MEMORY_EXPORTABLE and OTR_MEMORY_EXPORTABLE_FD",
            given.flags
        )));
    }
    if given.alignment != 0 && !given.alignment.is_power_of_two() {
        return Err(Fault::argument(format!(
            "an alignment of {} bytes; it is a power of two, or 0",
            given.alignment
        )));
    }
    Ok(given)
}

pub(super) unsafe extern "C" fn memory_free(driver: *mut sys::otr_driver, address: u64) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        for device in host.devices() {
            let forget = || host.exports.forget(Kind::Memory, address);
            if device.memory.free(address, forget)? {
                return Ok(());
            }
        }
        Err(Fault::argument(format!(
            "{address:#x} is not an address of a device of this driver"
        )))
    })
}

pub(super) unsafe extern "C" fn memory_info(
    driver: *mut sys::otr_driver,
    device: u32,
    free: *mut u64,
    total: *mut u64,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let memory = &host.device(device)?.memory;
        if free.is_null() || total.is_null() {
            return Err(Fault::null(
                "a place for the numbers",
                Code::INVALID_ARGUMENT,
            ));
        }
        // SAFETY: neither is NULL, so both are writable.
        unsafe {
            give(free, memory.available())?;
            give(total, memory.limit())
        }
    })
}

pub(super) unsafe extern "C" fn pinned_alloc(
    driver: *mut sys::otr_driver,
    size: u64,
    pointer: *mut *mut c_void,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        if pointer.is_null() {
            return Err(Fault::null(
                "the place for the pointer",
                Code::INVALID_ARGUMENT,
            ));
        }
        if size == 0 {
            return Err(Fault::argument(
                "an allocation of 0 bytes; at least 1 is needed",
            ));
        }
        // SAFETY: takes a number and gives a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
        let refused = |why: String| {
            Fault::new(
                Code::OUT_OF_HOST_MEMORY,
                format!("{size} bytes of pinned host memory: {why}"),
            )
        };
        let length = usize::try_from(size)
            .ok()
            .and_then(|size| size.checked_next_multiple_of(page))
            .ok_or_else(|| refused("more than the address space has".to_owned()))?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|error| refused(error.to_string()))?;
        // Fewer faults for large buffers; a kernel without huge pages refuses, which is fine.
        // SAFETY: the range was just mapped and nobody else knows it.
        let _ = unsafe { madvise(memory, length, Advice::LinuxHugepage) };
        host.pinned.lock().insert(memory as usize, length);
        // SAFETY: not NULL, so writable.
        unsafe { give(pointer, memory) }
    })
}

pub(super) unsafe extern "C" fn pinned_free(
    driver: *mut sys::otr_driver,
    pointer: *mut c_void,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let Some(length) = host.pinned.lock().remove(&(pointer as usize)) else {
            return Err(Fault::argument(format!(
                "{pointer:p} is not pinned memory of this driver, or was freed before"
            )));
        };
        // SAFETY: mapped with this length by `pinned_alloc`, and given back by the host.
        unsafe { munmap(pointer, length) }.map_err(|error| {
            Fault::new(
                Code::INTERNAL,
                format!("pinned memory could not be unmapped: {error}"),
            )
        })
    })
}

pub(super) unsafe extern "C" fn can_access(
    driver: *mut sys::otr_driver,
    device: u32,
    peer: u32,
    yes: *mut u32,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        host.device(device)?;
        host.device(peer)?;
        // One process, one memory. SAFETY: `give` refuses NULL (R7); the host makes any other place writable.
        unsafe { give(yes, 1) }
    })
}

pub(super) unsafe extern "C" fn device_time(
    driver: *mut sys::otr_driver,
    device: u32,
    nanoseconds: *mut u64,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        host.device(device)?;
        // SAFETY: `give` refuses NULL (R7); the host makes any other place writable.
        unsafe { give(nanoseconds, now()) }
    })
}
