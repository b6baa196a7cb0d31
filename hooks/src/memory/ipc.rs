//! Memory that processes share: a process exports an allocation as a text, and another process imports the text as
//! memory of its own.
//!
//! The exporter owns the memory, keeps it until all importers have closed it, and the processes order their work (R43,
//! R44). A text of another driver is an error, and so is a text that was changed on its way: a checksum keeps sizes, offset
//! and handles together, and what the driver imports has to be as large as the text says.

use std::fmt::Write as _;

use outrigger_allocator::Backing;
use outrigger_device::{Code, IpcHandle, Physical};

use crate::memory::PointerInfo;
use crate::memory::imports::{Import, Mapped};
use crate::{Device, Error, Result, timelines};

/// The first word of a text: its kind and its version.
const MAGIC: &str = "otr-memory-1";

/// An exported allocation: the contents of a text.
#[derive(Debug, PartialEq, Eq)]
struct Exported {
    driver: String,
    /// The bytes of the allocation, and its offset in the memory that the handles name.
    size: u64,
    offset: u64,
    /// `Ok`: pieces of physical memory, one behind the other, with their bytes. `Err`: one allocation.
    handles: Result<Vec<(u64, IpcHandle)>, IpcHandle>,
}

impl Exported {
    fn to_text(&self) -> String {
        let Self {
            driver,
            size,
            offset,
            handles,
        } = self;
        let mut text = format!("{MAGIC} {driver} {size} {offset}");
        let mut add = |bytes: u64, handle: &IpcHandle| {
            // Writing to a string cannot fail.
            let _ = write!(text, " {bytes}:");
            for byte in handle.0 {
                let _ = write!(text, "{byte:02x}");
            }
        };
        match handles {
            Ok(pieces) => pieces
                .iter()
                .for_each(|(bytes, handle)| add(*bytes, handle)),
            Err(allocation) => add(0, allocation),
        }
        let sum = checksum(&text);
        // Writing to a string cannot fail.
        let _ = write!(text, " {sum:016x}");
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let (text, sum) = text.rsplit_once(' ')?;
        if sum != format!("{:016x}", checksum(text)) {
            return None;
        }
        let mut words = text.split(' ');
        if words.next()? != MAGIC {
            return None;
        }
        let driver = words.next()?.to_owned();
        let size: u64 = words.next()?.parse().ok()?;
        let offset: u64 = words.next()?.parse().ok()?;
        let mut pieces = Vec::new();
        for word in words {
            let (bytes, digits) = word.split_once(':')?;
            pieces.push((bytes.parse().ok()?, parse_handle(digits)?));
        }
        let all = pieces
            .iter()
            .try_fold(0_u64, |sum, (bytes, _)| sum.checked_add(*bytes))?;
        let handles = match pieces[..] {
            [(0, allocation)] => Err(allocation),
            _ => Ok(pieces),
        };
        let end = size.checked_add(offset)?;
        let fits = handles.is_err() || end <= all;
        (size > 0 && fits).then_some(Self {
            driver,
            size,
            offset,
            handles,
        })
    }
}

/// The refusal of memory that is not what the text says.
#[cold]
fn other_size(said: u64, found: u64) -> Error {
    Error::new(
        Code::INVALID_HANDLE,
        format!("the text says {said} bytes of memory, and the driver has imported {found}"),
    )
}

/// A hash that finds changes by accident (FNV-1a, 64 bits).
fn checksum(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

fn parse_handle(digits: &str) -> Option<IpcHandle> {
    let digits = digits.as_bytes();
    let mut bytes = [0; IpcHandle::SIZE];
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |of: u8| char::from(of).to_digit(16);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(IpcHandle(bytes))
}

impl Device {
    /// Exports the allocation that contains an address of this device, as a text for [`Device::import_memory`] in other
    /// processes. The caller keeps the allocation until they have closed it. They see its contents after the work that
    /// writes them has finished.
    ///
    /// # Errors
    /// `NOT_FOUND` if the address is in no live allocation; `UNSUPPORTED` if the driver shares no memory, and for memory that
    /// was imported.
    pub fn export_memory(&self, address: u64) -> Result<String> {
        let (block, backing) = self
            .allocator()
            .backing(address)
            .ok_or_else(|| self.not_exported(address))?;
        let ipc = self.driver().ipc().ok_or_else(|| self.shares_nothing())?;
        let (start, handles) = match backing {
            Backing::Segment { address } => (address, Err(ipc.memory_export(address)?)),
            Backing::Pieces { address, pieces } => {
                let export = |(physical, bytes): &(outrigger_allocator::Physical, u64)| {
                    let physical = Physical::from_raw(physical.0)
                        .ok_or_else(|| Error::new(Code::INTERNAL, "0 is no physical memory"))?;
                    // SAFETY: the allocator has the object mapped under a block in use, which the caller does not free
                    // meanwhile.
                    let handle = unsafe { ipc.physical_export(physical) }?;
                    Ok((*bytes, handle))
                };
                let handles: Result<Vec<_>> = pieces.iter().map(export).collect();
                (address, Ok(handles?))
            }
        };
        let exported = Exported {
            driver: self.driver().name().replace(' ', "_"),
            size: block.size,
            offset: block.base - start,
            handles,
        };
        Ok(exported.to_text())
    }

    /// Imports an allocation that another process exported, and returns its address on this device and its bytes. It
    /// can be used as any memory here, but not in a capture. [`close_memory`](Self::close_memory) gives it back.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for a text of another driver, and for one that is no export; `NOT_FOUND` if the exporter has
    /// freed the memory; `UNSUPPORTED` if the driver shares no memory, or not with the exporting process.
    pub fn import_memory(&self, text: &str) -> Result<(u64, u64)> {
        let exported = Exported::parse(text).ok_or_else(|| {
            Error::new(
                Code::INVALID_HANDLE,
                format!(
                    "the text of {} bytes is not an export of memory: it has to be the text that the export \
                     gave, unchanged",
                    text.len()
                ),
            )
        })?;
        let ours = self.driver().name().replace(' ', "_");
        if exported.driver != ours {
            return Err(Error::new(
                Code::INVALID_HANDLE,
                format!(
                    "memory of the driver {} cannot be memory of device {}, whose driver is {ours}",
                    exported.driver,
                    self.index()
                ),
            ));
        }
        let mapped = match exported.handles {
            Ok(pieces) => self.import_pieces(&pieces)?,
            Err(allocation) => {
                let ipc = self.driver().ipc().ok_or_else(|| self.shares_nothing())?;
                let found = ipc.memory_import(self.ordinal(), &allocation)?;
                let end = exported.offset.checked_add(exported.size);
                if end.is_none_or(|end| end > found.size) {
                    // SAFETY: imported just now, and nothing uses it.
                    unsafe { ipc.memory_close(found.address) }?;
                    return Err(other_size(exported.size, found.size));
                }
                Mapped::Allocation(found.address)
            }
        };
        let start = match mapped {
            Mapped::Allocation(address) | Mapped::Pieces { address, .. } => address,
        };
        let (base, size) = (start + exported.offset, exported.size);
        self.imports().insert(base, Import { size, mapped });
        Ok((base, size))
    }

    fn import_pieces(&self, pieces: &[(u64, IpcHandle)]) -> Result<Mapped> {
        let ipc = self.driver().ipc().ok_or_else(|| self.shares_nothing())?;
        let memory = self
            .driver()
            .virtual_memory()
            .ok_or_else(|| self.shares_nothing())?;
        let mut physical = Vec::new();
        let size = pieces.iter().map(|(bytes, _)| bytes).sum();
        let mapped = pieces
            .iter()
            .try_for_each(|(bytes, handle)| {
                let (object, found) = ipc.physical_import(self.ordinal(), handle)?;
                physical.push(object);
                if found == *bytes {
                    Ok(())
                } else {
                    Err(other_size(*bytes, found))
                }
            })
            .and_then(|()| Ok(memory.reserve(self.ordinal(), size, 0)?))
            .and_then(|address| {
                // SAFETY: R39: the objects were imported just now, and the range was reserved for them.
                let mapped = unsafe { memory.map(address, &physical) };
                mapped
                    .inspect_err(|_| {
                        // The caller gets the error of `map`.
                        let _ = memory.release(address, size);
                    })
                    .map(|()| address)
                    .map_err(Error::from)
            });
        match mapped {
            Ok(address) => Ok(Mapped::Pieces {
                address,
                size,
                physical,
            }),
            Err(error) => {
                for piece in physical {
                    // SAFETY: the object was imported just now, and is not mapped. The caller gets the first error.
                    let _ = unsafe { memory.destroy(piece) };
                }
                Err(error)
            }
        }
    }

    /// Closes imported memory at its address. Waits first for the work of all devices, which may use the memory. A
    /// failure of that work is reported to whoever waits for its stream.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if nothing was imported at the address; why work is not known to be over, after which the
    /// memory is still there and may be closed again; what the driver reports.
    pub fn close_memory(&self, address: u64) -> Result<()> {
        let import = self.imports().remove(address).ok_or_else(|| {
            Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "no memory was imported at {address:#x} on device {}: close takes the address that \
                     the import gave",
                    self.index()
                ),
            )
        })?;
        // From here on no call can name the memory.
        if let Err(error) = timelines::wait_for_all() {
            self.imports().insert(address, import);
            return Err(error);
        }
        let closed = match import.mapped {
            Mapped::Allocation(base) => {
                let ipc = self.driver().ipc().ok_or_else(|| self.shares_nothing())?;
                // SAFETY: all work was waited for, and `imports` has the address no more.
                unsafe { ipc.memory_close(base) }
            }
            Mapped::Pieces {
                address,
                size,
                physical,
            } => {
                let memory = self
                    .driver()
                    .virtual_memory()
                    .ok_or_else(|| self.shares_nothing())?;
                // SAFETY: R40: all work was waited for, and `imports` has the range no more.
                unsafe { memory.unmap(address, size) }
                    .and_then(|()| memory.release(address, size))
                    .and_then(|()| {
                        physical.into_iter().try_for_each(|piece| {
                            // SAFETY: the object was imported, and is mapped nowhere any more.
                            unsafe { memory.destroy(piece) }
                        })
                    })
            }
        };
        Ok(closed?)
    }

    #[cold]
    fn not_exported(&self, address: u64) -> Error {
        if self.imports().around(address).is_none() {
            return self.nowhere(address);
        }
        Error::new(
            Code::UNSUPPORTED,
            format!(
                "the memory at {address:#x} was imported: only the process that allocated it exports it"
            ),
        )
    }

    #[cold]
    fn shares_nothing(&self) -> Error {
        Error::new(
            Code::UNSUPPORTED,
            format!(
                "the driver {} of device {} does not share memory with other processes",
                self.driver().name(),
                self.index()
            ),
        )
    }

    /// The allocation around an address in imported memory.
    pub(crate) fn imported_info(&self, address: u64) -> Option<PointerInfo> {
        let (base, size) = self.imports().around(address)?;
        Some(PointerInfo {
            base,
            size,
            requested: size,
            stream: self.default_stream().id(),
            pool: 0,
            pool_number: 0,
            label: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_back_and_damaged_ones_refused() {
        let handle = |first| {
            let mut bytes = [0x5a; IpcHandle::SIZE];
            bytes[0] = first;
            IpcHandle(bytes)
        };
        let exported = Exported {
            driver: "acme".to_owned(),
            size: 700,
            offset: 300,
            handles: Ok(vec![(600, handle(1)), (400, handle(0xff))]),
        };
        let text = exported.to_text();
        assert_eq!(Exported::parse(&text).as_ref(), Some(&exported));
        let allocation = Exported {
            handles: Err(handle(7)),
            ..exported
        };
        let whole = allocation.to_text();
        assert_eq!(Exported::parse(&whole), Some(allocation));
        // Each digit and each letter counts.
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            let other = if &whole[at..=at] == "1" { "2" } else { "1" };
            changed.replace_range(at..=at, other);
            assert_eq!(Exported::parse(&changed), None, "{changed}");
        }
        for damaged in ["", "otr-memory-1", &text[1..], &text[..text.len() - 1]] {
            assert_eq!(Exported::parse(damaged), None, "{damaged}");
        }
        // Parts that do not fit together are refused with the right checksum too.
        let body = text.rsplit_once(' ').unwrap().0;
        let signed = |body: &str| format!("{body} {:016x}", checksum(body));
        assert_eq!(signed(body), text);
        for damaged in [
            "",
            "otr-memory-1",
            "otr-memory-1 acme 700 300",
            &body.replace(" 700 ", " 701 "),
            &body.replace(" 700 ", " 0 "),
            &body.replace("600:", "18446744073709551615:"),
            &body.replace("ff5a", "fg5a"),
            &body.replace(" 300 ", " -1 "),
        ] {
            assert_eq!(Exported::parse(&signed(damaged)), None, "{damaged}");
        }
    }
}
