//! The entries of the table `external`: memory and semaphores in files of this process, which others reach by descriptor.
//! Anything that the system maps is memory to this driver: what another library keeps in a memfd can be imported too.

use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::fcntl_dupfd_cloexec;

use super::command::Command;
use super::driver::{Host, give, writable};
use super::event::queue;
use super::fault::{Fault, done, params};
use super::pages::{Pages, Part};
use super::queue::Queue;
use super::semaphore::Semaphore;
use crate::{Code, sys};

/// What an offset in a file is a multiple of, so that it can be mapped.
const PAGE: u64 = 4096;

/// A semaphore as the host names it.
struct Named {
    semaphore: Arc<Semaphore>,
    device: u32,
    host: Arc<Host>,
}

impl Named {
    fn handle(host: &Arc<Host>, device: u32, semaphore: Semaphore) -> *mut sys::otr_drv_semaphore {
        host.semaphores.fetch_add(1, Ordering::Relaxed);
        let named = Self {
            semaphore: Arc::new(semaphore),
            device,
            host: Arc::clone(host),
        };
        Box::into_raw(Box::new(named)).cast()
    }
}

/// The semaphore behind a handle.
///
/// # Safety
/// `handle` is NULL or came from `semaphore_create` or `semaphore_import` and was not destroyed.
unsafe fn semaphore<'a>(handle: *mut sys::otr_drv_semaphore) -> Result<&'a Named, Fault> {
    // SAFETY: this function's contract.
    unsafe { handle.cast::<Named>().as_ref() }
        .ok_or_else(|| Fault::null("the semaphore", Code::INVALID_HANDLE))
}

/// The queue and the semaphore of one command, which are of one device (R61).
///
/// # Safety
/// As of [`queue`] and [`semaphore`].
unsafe fn both<'a>(
    on: *mut sys::otr_queue,
    of: *mut sys::otr_drv_semaphore,
) -> Result<(&'static Queue, &'a Named), Fault> {
    // SAFETY: this function's contract.
    let (queue, named) = unsafe { (queue(on)?, semaphore(of)?) };
    if !queue.is_of(&named.host) {
        return Err(Fault::new(
            Code::INVALID_HANDLE,
            "the semaphore and the queue are of two open drivers: both have to be of one",
        ));
    }
    let here = queue.device().index;
    if here != named.device {
        return Err(Fault::new(
            Code::INVALID_DEVICE,
            format!(
                "a semaphore of device {} on a queue of device {here}: import it there by its descriptor",
                named.device
            ),
        ));
    }
    if queue.recorder().active() {
        return Err(Fault::new(
            Code::UNSUPPORTED,
            "a signal or a wait of a semaphore is not recorded: submit it before or behind the launch of the graph",
        ));
    }
    Ok((queue, named))
}

/// Refuses kinds that this driver does not have.
fn check_kind(kind: u32, what: &str) -> Result<(), Fault> {
    let name = match kind {
        sys::OTR_FD_OPAQUE => return Ok(()),
        sys::OTR_FD_DMA_BUF => "OTR_FD_DMA_BUF".to_owned(),
        kind => format!("kind {kind:#x}"),
    };
    Err(Fault::new(
        Code::UNSUPPORTED,
        format!(
            "{what} by a descriptor of {name}; this driver has OTR_FD_OPAQUE ({}) alone",
            sys::OTR_FD_OPAQUE
        ),
    ))
}

/// A descriptor of this driver's own for what the host imports: a file that can be read and written.
fn taken(fd: i32, what: &str) -> Result<OwnedFd, Fault> {
    let none = |why: String| {
        Fault::new(
            Code::INVALID_HANDLE,
            format!("the descriptor {fd} is none of {what} of this driver: {why}"),
        )
    };
    if fd < 0 {
        return Err(none("it is negative".to_owned()));
    }
    // SAFETY: R59: the host's for the length of the call. Of a number that is none the system says so.
    let given = unsafe { BorrowedFd::borrow_raw(fd) };
    let file = fcntl_dupfd_cloexec(given, 0).map_err(|error| none(error.to_string()))?;
    let stat = fstat(&file).map_err(|error| none(error.to_string()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(none("it is no file in memory".to_owned()));
    }
    let flags = fcntl_getfl(&file).map_err(|error| none(error.to_string()))?;
    if flags & OFlags::ACCMODE != OFlags::RDWR {
        return Err(none("it is not open for reading and writing".to_owned()));
    }
    Ok(file)
}

fn no_descriptor(error: rustix::io::Errno) -> Fault {
    Fault::new(
        Code::OUT_OF_HOST_MEMORY,
        format!("no file descriptor: {error}"),
    )
}

/// The kind that an export asks for.
///
/// # Safety
/// `place` is NULL, or to a struct that begins with its size.
unsafe fn asked(place: *mut sys::otr_fd, what: &str) -> Result<(), Fault> {
    // SAFETY: this function's contract.
    let place = unsafe { params(place, "the place for the descriptor")? };
    check_kind(place.kind, what)
}

pub(super) unsafe extern "C" fn memory_export(
    driver: *mut sys::otr_driver,
    address: u64,
    place: *mut sys::otr_fd,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        unsafe { asked(place, "memory")? };
        for device in host.devices() {
            let Some(part) = device.memory.own_file(address)? else {
                continue;
            };
            let file = fcntl_dupfd_cloexec(part.pages.file(), 0).map_err(no_descriptor)?;
            // SAFETY: not NULL, and as large as the type.
            unsafe {
                ((*place).offset, (*place).size) = (part.offset, part.size);
                (*place).fd = file.into_raw_fd();
            }
            return Ok(());
        }
        Err(Fault::argument(format!(
            "{address:#x} is not an allocation of a device of this driver"
        )))
    })
}

pub(super) unsafe extern "C" fn memory_import(
    driver: *mut sys::otr_driver,
    device: u32,
    memory: *const sys::otr_fd,
    address: *mut u64,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let mapping = host.device(device)?.memory.mapping();
        writable(address)?;
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        let memory = unsafe { params(memory, "the descriptor")? };
        check_kind(memory.kind, "memory")?;
        let file = taken(memory.fd, "memory")?;
        let size = fstat(&file).map_err(no_descriptor)?.st_size as u64;
        if Semaphore::is_in(&file) {
            return Err(Fault::new(
                Code::INVALID_HANDLE,
                format!("the descriptor {} is a semaphore, and no memory", memory.fd),
            ));
        }
        let end = memory.offset.checked_add(memory.size);
        let whole = memory.offset.is_multiple_of(PAGE);
        if memory.size == 0 || !whole || end.is_none_or(|end| end > size) {
            return Err(Fault::argument(format!(
                "{} bytes at {} of a descriptor with {size}: at least 1, from a multiple of {PAGE} on, which lie within",
                memory.size, memory.offset
            )));
        }
        let part = Part {
            pages: Arc::new(Pages::of(file)),
            offset: memory.offset,
            size: memory.size,
        };
        let mapped = mapping.import(part)?;
        // SAFETY: not NULL, so writable.
        unsafe { give(address, mapped) }
    })
}

/// What was imported by descriptor and by handle is mapped, and given back, in the same way.
pub(super) use super::ipc::memory_close;

pub(super) unsafe extern "C" fn semaphore_create(
    driver: *mut sys::otr_driver,
    device: u32,
    given: *const sys::otr_semaphore_params,
    place: *mut *mut sys::otr_drv_semaphore,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        host.device(device)?;
        writable(place)?;
        let (initial, flags) = match given.is_null() {
            true => (0, 0),
            false => {
                // SAFETY: R1: a struct of the size that stands in it.
                let given = unsafe { params(given, "the parameters of the semaphore")? };
                (given.initial, given.flags)
            }
        };
        if flags != 0 {
            return Err(Fault::argument(format!(
                "semaphore flags {flags:#x}; none are known"
            )));
        }
        let made = Semaphore::new(initial)?;
        // SAFETY: not NULL, so writable.
        unsafe { give(place, Named::handle(&host, device, made)) }
    })
}

pub(super) unsafe extern "C" fn semaphore_import(
    driver: *mut sys::otr_driver,
    device: u32,
    fd: *const sys::otr_fd,
    place: *mut *mut sys::otr_drv_semaphore,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        host.device(device)?;
        writable(place)?;
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        let fd = unsafe { params(fd, "the descriptor")? };
        check_kind(fd.kind, "a semaphore")?;
        let found = Semaphore::of(taken(fd.fd, "a semaphore")?)?.ok_or_else(|| {
            Fault::new(
                Code::INVALID_HANDLE,
                format!("the descriptor {} is no semaphore of this driver", fd.fd),
            )
        })?;
        // SAFETY: not NULL, so writable.
        unsafe { give(place, Named::handle(&host, device, found)) }
    })
}

pub(super) unsafe extern "C" fn semaphore_destroy(handle: *mut sys::otr_drv_semaphore) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a semaphore that the host destroys, so it is NULL or live.
        let named = unsafe { semaphore(handle)? };
        named.host.semaphores.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: boxed in `Named::handle`, and given back by the host; commands hold the semaphore itself.
        drop(unsafe { Box::from_raw(handle.cast::<Named>()) });
        Ok(())
    })
}

pub(super) unsafe extern "C" fn semaphore_export(
    handle: *mut sys::otr_drv_semaphore,
    place: *mut sys::otr_fd,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a semaphore that the host destroys, so it is NULL or live.
        let named = unsafe { semaphore(handle)? };
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        unsafe { asked(place, "a semaphore")? };
        let file = named.semaphore.descriptor().map_err(no_descriptor)?;
        // SAFETY: not NULL, and as large as the type.
        unsafe {
            ((*place).offset, (*place).size) = (0, 0);
            (*place).fd = file.into_raw_fd();
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn signal(
    on: *mut sys::otr_queue,
    of: *mut sys::otr_drv_semaphore,
    value: u64,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a queue or a semaphore that the host destroys, so each is NULL or live.
        let (queue, named) = unsafe { both(on, of)? };
        let semaphore = Arc::clone(&named.semaphore);
        queue.mark(Command::Reach { semaphore, value })?;
        // Another process cannot flush this queue (R61).
        queue.worker().wake(queue);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn wait(
    on: *mut sys::otr_queue,
    of: *mut sys::otr_drv_semaphore,
    value: u64,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a queue or a semaphore that the host destroys, so each is NULL or live.
        let (queue, named) = unsafe { both(on, of)? };
        named.semaphore.queue_wait(&named.host, queue, value)
    })
}
