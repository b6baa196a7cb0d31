//! The pages behind a device's memory: a file without a name, which can be mapped at any number of
//! addresses, and the ranges of addresses to which its parts are mapped. This module calls the system
//! and keeps no books; the callers know who owns which part.
//!
//! Most kernels give shared memory small pages (`shmem_enabled` is `never` by default). Small pages
//! cost about a quarter of the bandwidth, and a first touch takes four times as long. A process that
//! may mount makes its own file system with huge pages; it is attached nowhere, and ends with the file.
//! Other processes get a memfd, which has huge pages if the administrator allows them for shared
//! memory.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, fallocate, ftruncate, memfd_create, openat,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// The size of a huge page, which parts of this size and more are aligned to.
pub(super) const HUGE: u64 = 2 << 20;

/// A file in memory. Its parts cost memory once they are touched.
#[derive(Debug)]
pub(super) struct Pages {
    file: OwnedFd,
}

impl Pages {
    /// A file of `size` bytes, all of them 0.
    pub(super) fn new(size: u64) -> Result<Self, Errno> {
        let file = if huge_pages() == Huge::Mounted {
            mounted()?
        } else {
            memfd_create("outrigger-device", MemfdFlags::CLOEXEC)?
        };
        ftruncate(&file, size)?;
        Ok(Self { file })
    }

    /// A file of so few bytes that no huge page is worth it, all of them 0.
    pub(super) fn small(size: u64) -> Result<Self, Errno> {
        let file = memfd_create("outrigger-shared", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, size)?;
        Ok(Self { file })
    }

    /// The pages of a file that another process made.
    pub(super) fn of(file: OwnedFd) -> Self {
        Self { file }
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Maps bytes of the file at an address, and replaces what is mapped there.
    ///
    /// # Safety
    /// The range belongs to the caller, and nobody uses what is mapped there.
    pub(super) unsafe fn map(&self, address: u64, size: u64, offset: u64) -> Result<(), Errno> {
        // SAFETY: the range belongs to the caller, and nobody uses what is mapped there.
        unsafe {
            mmap(
                address as *mut c_void,
                size as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED,
                &self.file,
                offset,
            )?;
        }
        if huge_pages() == Huge::Advised {
            // SAFETY: just mapped. A kernel without huge pages refuses, which is fine.
            let _ =
                unsafe { madvise(address as *mut c_void, size as usize, Advice::LinuxHugepage) };
        }
        Ok(())
    }

    /// Gives the memory of a part back; its bytes are 0 from then on. Memory that cannot be given back
    /// stays allocated; this wastes memory, but breaks nothing.
    pub(super) fn discard(&self, offset: u64, size: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = fallocate(&self.file, flags, offset, size) {
            tracing::debug!(target: "outrigger::device", %error, size, "pages were not given back");
        }
    }
}

/// A part of a file.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) pages: Arc<Pages>,
    /// Where it begins, in bytes.
    pub(super) offset: u64,
    /// In bytes.
    pub(super) size: u64,
}

/// How files in memory get huge pages here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Huge {
    /// They do not.
    Never,
    /// By advice, or always.
    Advised,
    /// In a file system that this process may mount.
    Mounted,
}

/// How files in memory get huge pages here; found out once.
pub(super) fn huge_pages() -> Huge {
    static ANSWER: OnceLock<Huge> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        let setting = setting.unwrap_or_default();
        if ["[advise]", "[always]", "[within_size]", "[force]"]
            .iter()
            .any(|value| setting.contains(value))
        {
            Huge::Advised
        } else if setting.contains("[never]") && mounted().is_ok() {
            Huge::Mounted
        } else {
            Huge::Never
        }
    })
}

/// A file in a file system of its own, which lives as long as the file.
fn mounted() -> Result<OwnedFd, Errno> {
    let system = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&system, "huge", "always")?;
    // No limit of its own: the device has one.
    fsconfig_set_string(&system, "size", "0")?;
    fsconfig_create(&system)?;
    let root = fsmount(
        &system,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?;
    openat(
        &root,
        ".",
        OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )
}

/// A range of addresses of this process, empty until something is mapped in it.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) size: u64,
}

impl Span {
    /// Reserves addresses, aligned for huge pages. A touch of them faults.
    pub(super) fn reserve(size: u64) -> Result<Self, Errno> {
        let length = size.checked_add(HUGE).ok_or(Errno::NOMEM)?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            mmap_anonymous(
                null_mut(),
                length as usize,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }? as u64;
        let aligned = start.next_multiple_of(HUGE);
        for (from, to) in [(start, aligned), (aligned + size, start + length)] {
            if from < to {
                // SAFETY: an end of the mapping above, which nobody else knows.
                let _ = unsafe { munmap(from as *mut c_void, (to - from) as usize) };
            }
        }
        Ok(Self {
            start: aligned,
            size,
        })
    }

    /// Puts memory of this process alone at the start of the span.
    pub(super) fn back(&self, size: u64) -> Result<(), Errno> {
        debug_assert!(size <= self.size, "a part of the span");
        // SAFETY: the range lies in this span, which is empty and which nobody else uses yet.
        unsafe { private(self.start, size) }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: reserved by this value, which its owner drops after the last use of the addresses.
        let _ = unsafe { munmap(self.start as *mut c_void, self.size as usize) };
    }
}

/// Puts memory of this process alone at an address, in place of what is mapped there.
///
/// # Safety
/// The range belongs to the caller, and nobody uses what is mapped there.
pub(super) unsafe fn private(address: u64, size: u64) -> Result<(), Errno> {
    let start = address as *mut c_void;
    // SAFETY: the range belongs to the caller, and nobody uses what is mapped there.
    unsafe {
        mmap_anonymous(
            start,
            size as usize,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
        )?;
        // Fewer faults and less page table; a kernel without huge pages refuses, which is fine.
        let _ = madvise(start, size as usize, Advice::LinuxHugepage);
    }
    Ok(())
}

/// Makes a range of a span empty again.
///
/// # Safety
/// The range belongs to the caller, and nobody uses what is mapped there.
pub(super) unsafe fn clear(address: u64, size: u64) -> Result<(), Errno> {
    // SAFETY: the range belongs to the caller, and nobody uses what is mapped there.
    unsafe {
        mmap_anonymous(
            address as *mut c_void,
            size as usize,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
        )
    }
    .map(drop)
}
