//! Memory, events and communicators of other processes: handles, which are plain bytes, and the files to which they
//! lead. This module never maps anything, and never trusts a handle: the exporter's ledger must contain
//! the same bytes.
//!
//! A handle names the exporting process and two files that this process has open: the ledger, and the
//! memory, the board of the event or the region of the communicator. The ledger holds a copy of each valid handle, with its random
//! token. An import reads the copy through `/proc`, which processes of the same user may do, and
//! accepts the handle if both are equal. The handle of freed memory is no longer in the ledger. A
//! process that has ended has no files. If another process has its number now, that process has no
//! ledger with this token.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, fstat, memfd_create, open};
use rustix::io::{Errno, pread, pwrite};
use rustix::rand::{GetRandomFlags, getrandom};

use super::fault::Fault;
use super::pages::{Pages, Part};
use crate::Code;

/// The bytes of a handle.
pub(super) type Handle = [u8; SIZE];
const SIZE: usize = crate::sys::OTR_IPC_HANDLE_BYTES;

/// Begins each handle.
const MAGIC: &[u8; 8] = b"otr-host";

/// What a handle is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// An allocation, by its address.
    Memory = 1,
    /// A physical object, by its number.
    Physical = 2,
    /// An event, by its number.
    Event = 3,
    /// A communicator that its ranks have not all joined, by its number.
    Communicator = 4,
}

/// What a handle says.
#[derive(Clone, Copy)]
struct Fields {
    kind: u32,
    process: i32,
    ledger: i32,
    file: i32,
    /// Which copy in the ledger.
    slot: u32,
    offset: u64,
    size: u64,
    token: [u8; 16],
}

impl Fields {
    fn pack(&self) -> Handle {
        let mut handle = [0; SIZE];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            handle[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(MAGIC);
        put(&self.kind.to_ne_bytes());
        put(&self.process.to_ne_bytes());
        put(&self.ledger.to_ne_bytes());
        put(&self.file.to_ne_bytes());
        put(&self.slot.to_ne_bytes());
        put(&[0; 4]);
        put(&self.offset.to_ne_bytes());
        put(&self.size.to_ne_bytes());
        put(&self.token);
        handle
    }

    fn unpack(handle: &Handle) -> Option<Self> {
        let mut at = 0;
        let mut take = |count: usize| {
            at += count;
            &handle[at - count..at]
        };
        if take(8) != MAGIC {
            return None;
        }
        Some(Self {
            kind: u32::from_ne_bytes(take(4).try_into().ok()?),
            process: i32::from_ne_bytes(take(4).try_into().ok()?),
            ledger: i32::from_ne_bytes(take(4).try_into().ok()?),
            file: i32::from_ne_bytes(take(4).try_into().ok()?),
            slot: {
                let slot = u32::from_ne_bytes(take(4).try_into().ok()?);
                take(4);
                slot
            },
            offset: u64::from_ne_bytes(take(8).try_into().ok()?),
            size: u64::from_ne_bytes(take(8).try_into().ok()?),
            token: take(16).try_into().ok()?,
        })
    }
}

/// The process that a handle names, which may be any number where it is none.
pub(super) fn process(handle: &Handle) -> Option<i32> {
    Fields::unpack(handle).map(|fields| fields.process)
}

/// What one open driver has exported, and the files of others that it has open.
#[derive(Debug, Default)]
pub(super) struct Exports {
    ledger: Mutex<Ledger>,
    /// By device and inode, so that the many parts of one file take one descriptor.
    files: Mutex<HashMap<(u64, u64), Weak<Pages>>>,
}

#[derive(Debug, Default)]
struct Ledger {
    /// Made with the first handle.
    file: Option<OwnedFd>,
    slots: u32,
    free: Vec<u32>,
    /// What is exported: by kind, and address or number.
    handles: HashMap<(Kind, u64), (u32, Handle)>,
}

impl Exports {
    /// The handle of a part of a file, known here by `kind` and `name`; the same for each call.
    pub(super) fn export(&self, (kind, name): (Kind, u64), part: &Part) -> Result<Handle, Fault> {
        let refused = |error: Errno| {
            Fault::new(
                Code::OUT_OF_HOST_MEMORY,
                format!("no handle could be made: {error}"),
            )
        };
        let mut ledger = self.ledger.lock();
        if let Some((_, handle)) = ledger.handles.get(&(kind, name)) {
            return Ok(*handle);
        }
        let file = match ledger.file.take() {
            Some(file) => file,
            None => memfd_create("outrigger-exports", MemfdFlags::CLOEXEC).map_err(refused)?,
        };
        let file = ledger.file.insert(file).as_raw_fd();
        let mut token = [0; 16];
        // Not for fewer bytes than this: the kernel gives up to 256 at once.
        getrandom(&mut token, GetRandomFlags::empty()).map_err(refused)?;
        let slot = ledger.free.last().copied().unwrap_or(ledger.slots);
        let fields = Fields {
            kind: kind as u32,
            process: rustix::process::getpid().as_raw_nonzero().get(),
            ledger: file,
            file: part.pages.file().as_raw_fd(),
            slot,
            offset: part.offset,
            size: part.size,
            token,
        };
        let handle = fields.pack();
        ledger.write(slot, &handle).map_err(refused)?;
        if ledger.free.pop().is_none() {
            ledger.slots += 1;
        }
        ledger.handles.insert((kind, name), (slot, handle));
        Ok(handle)
    }

    /// Makes the handle of memory that is about to go worthless, if there is one.
    pub(super) fn forget(&self, kind: Kind, name: u64) {
        let mut ledger = self.ledger.lock();
        let Some((slot, _)) = ledger.handles.remove(&(kind, name)) else {
            return;
        };
        match ledger.write(slot, &[0; SIZE]) {
            Ok(()) => ledger.free.push(slot),
            // The slot is not used again. Its handle leads to bytes without a value (R44).
            Err(error) => {
                tracing::debug!(target: "outrigger::device", %error, "a handle was not taken back");
            }
        }
    }

    /// What a handle stands for.
    pub(super) fn import(&self, kind: Kind, handle: &Handle) -> Result<Part, Fault> {
        let fields = Fields::unpack(handle)
            .filter(|fields| fields.kind == kind as u32)
            .ok_or_else(|| {
                let what = match kind {
                    Kind::Memory => "an allocation",
                    Kind::Physical => "physical memory",
                    Kind::Event => "an event",
                    Kind::Communicator => "a communicator",
                };
                Fault::new(
                    Code::INVALID_HANDLE,
                    format!("these bytes are no handle of {what} of the host driver"),
                )
            })?;
        let gone = |why: String| {
            Fault::new(
                Code::NOT_FOUND,
                format!(
                    "what process {} exported, of {} bytes, is gone: {why}",
                    fields.process, fields.size
                ),
            )
        };
        let ledger = descriptor(fields.process, fields.ledger, OFlags::RDONLY).map_err(gone)?;
        let mut copy = [0; SIZE];
        let at = u64::from(fields.slot) * SIZE as u64;
        let read = pread(&ledger, &mut copy, at).map_err(|error| gone(error.to_string()))?;
        if read != SIZE || copy != *handle {
            return Err(gone("its owner has freed or destroyed it".to_owned()));
        }
        let file = descriptor(fields.process, fields.file, OFlags::RDWR).map_err(gone)?;
        let stat = fstat(&file).map_err(|error| gone(error.to_string()))?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if fields.size == 0
            || fields
                .offset
                .checked_add(fields.size)
                .is_none_or(|end| end > size)
        {
            return Err(gone("its file is another one".to_owned()));
        }
        let mut files = self.files.lock();
        files.retain(|_, pages| pages.strong_count() > 0);
        let known = files
            .get(&(stat.st_dev, stat.st_ino))
            .and_then(Weak::upgrade);
        let pages = known.unwrap_or_else(|| {
            let pages = Arc::new(Pages::of(file));
            files.insert((stat.st_dev, stat.st_ino), Arc::downgrade(&pages));
            pages
        });
        Ok(Part {
            pages,
            offset: fields.offset,
            size: fields.size,
        })
    }
}

impl Ledger {
    fn write(&self, slot: u32, handle: &Handle) -> Result<(), Errno> {
        let file = self.file.as_ref().ok_or(Errno::BADF)?;
        let written = pwrite(file.as_fd(), handle, u64::from(slot) * SIZE as u64)?;
        if written == SIZE {
            Ok(())
        } else {
            Err(Errno::NOSPC)
        }
    }
}

/// A file that a process has open, or why there is none.
fn descriptor(process: i32, number: i32, access: OFlags) -> Result<OwnedFd, String> {
    let path = format!("/proc/{process}/fd/{number}");
    // Should it be something else by now, then opening it neither waits nor takes a terminal.
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open(&path, flags, Mode::empty()).map_err(|error| format!("{path}: {error}"))?;
    let stat = fstat(&file).map_err(|error| format!("{path}: {error}"))?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
        Ok(file)
    } else {
        Err(format!("{path} is no file"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::pages::{Pages, Part};
    use super::{Exports, Kind, SIZE};
    use crate::Code;

    fn code(result: Result<impl Sized, super::Fault>) -> Code {
        match result {
            Ok(_) => Code::OK,
            Err(fault) => fault.code(),
        }
    }

    #[test]
    fn a_handle_is_good_until_it_is_forgotten_and_its_slot_has_a_new_owner() {
        let (exports, importer) = (Exports::default(), Exports::default());
        let part = Part {
            pages: Arc::new(Pages::new(1 << 20).unwrap()),
            offset: 4096,
            size: 8192,
        };
        let memory = (Kind::Memory, 77);
        let handle = exports.export(memory, &part).unwrap();
        assert_eq!(exports.export(memory, &part).unwrap(), handle);
        let imported = importer.import(Kind::Memory, &handle).unwrap();
        let again = importer.import(Kind::Memory, &handle).unwrap();
        assert!(Arc::ptr_eq(&imported.pages, &again.pages));
        assert_eq!((imported.offset, imported.size), (4096, 8192));

        assert_eq!(
            code(importer.import(Kind::Physical, &handle)),
            Code::INVALID_HANDLE
        );
        assert_eq!(
            code(importer.import(Kind::Memory, &[0; SIZE])),
            Code::INVALID_HANDLE
        );
        // One bit anywhere else makes it another handle, which is in no ledger.
        for bit in 12 * 8..SIZE * 8 {
            let mut other = handle;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                code(importer.import(Kind::Memory, &other)),
                Code::NOT_FOUND,
                "bit {bit}"
            );
        }

        exports.forget(Kind::Memory, 77);
        assert_eq!(
            code(importer.import(Kind::Memory, &handle)),
            Code::NOT_FOUND
        );
        let next = exports.export((Kind::Memory, 78), &part).unwrap();
        assert_ne!(next, handle);
        assert_eq!(
            code(importer.import(Kind::Memory, &handle)),
            Code::NOT_FOUND
        );
        assert_eq!(code(importer.import(Kind::Memory, &next)), Code::OK);
    }
}
