//! The virtual memory of a device: reserved ranges, physical objects, and which object is mapped where.
//! It keeps the books and lets the system map; it never touches the contents of memory.
//!
//! Objects are parts of the device's file, so one object can be mapped at several addresses. The
//! granularity is 2 MiB, a huge page. Smaller objects could not have huge pages. They would also use up
//! the mappings of the process: the kernel allows some 65,000 (`vm.max_map_count`), which at 64 KiB
//! each are 4 GiB. Mapped objects may use half of these mappings, which at 2 MiB each are 64 GiB.

mod state;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::fault::Fault;
use super::memory::Quota;
use super::pages::{HUGE, Pages, Part, clear};
use super::ranges::Ranges;
use crate::Code;
use state::{MAPPED, Mapped, State, count};

/// What sizes and addresses are multiples of, in bytes.
pub(super) const GRANULARITY: u64 = HUGE;

/// The virtual memory of one device.
#[derive(Debug)]
pub(super) struct Mapping {
    /// The device addresses that are given out.
    region: Range<u64>,
    /// What is added to a device address to reach its bytes.
    bias: i64,
    /// The file of the device's own objects.
    pages: Arc<Pages>,
    quota: Arc<Quota>,
    state: Mutex<State>,
}

/// What is left of a device's virtual memory.
pub(super) struct Left {
    pub(super) ranges: usize,
    pub(super) objects: usize,
    pub(super) imports: usize,
}

impl Mapping {
    /// The virtual memory of device `index`, over a range of addresses and a range of a file.
    pub(super) fn new(
        index: u32,
        region: Range<u64>,
        bias: i64,
        offsets: Range<u64>,
        pages: Arc<Pages>,
        quota: Arc<Quota>,
    ) -> Self {
        let state = State {
            reserved: Ranges::new(region.start, region.end - region.start),
            mapped: BTreeMap::new(),
            objects: HashMap::new(),
            offsets: Ranges::new(offsets.start, offsets.end - offsets.start),
            // Objects of all devices have different numbers, none of them 0.
            next: (u64::from(index) + 1) << 40,
            imports: HashMap::new(),
        };
        Self {
            region,
            bias,
            pages,
            quota,
            state: Mutex::new(state),
        }
    }

    /// Whether an address is one to map at.
    pub(super) fn has_address(&self, address: u64) -> bool {
        self.region.contains(&address)
    }

    /// Whether an object is one of this device's.
    pub(super) fn has_object(&self, object: u64) -> bool {
        let state = self.state.lock();
        state.objects.get(&object).is_some_and(|object| object.live)
    }

    /// What the host has not given back.
    pub(super) fn left(&self) -> Left {
        let state = self.state.lock();
        Left {
            ranges: state.reserved.count() - state.imports.len(),
            objects: state.objects.values().filter(|o| o.live).count(),
            imports: state.imports.len(),
        }
    }

    pub(super) fn reserve(&self, size: u64, alignment: u64) -> Result<u64, Fault> {
        whole("the size", size)?;
        let alignment = match alignment {
            0 => GRANULARITY,
            power if power.is_power_of_two() && power >= GRANULARITY => power,
            other => {
                return Err(Fault::argument(format!(
                    "an alignment of {other} bytes: expected 0, or a power of two of at least the \
                     granularity of {GRANULARITY}"
                )));
            }
        };
        let mut state = self.state.lock();
        state.reserve(size, alignment)
    }

    pub(super) fn release(&self, address: u64, size: u64) -> Result<(), Fault> {
        let mut state = self.state.lock();
        match state.reserved.size(address) {
            Some(reserved) if reserved == size => {}
            Some(reserved) => {
                return Err(Fault::argument(format!(
                    "release of {size} bytes at {address:#x}, where {reserved} were reserved"
                )));
            }
            None => {
                return Err(Fault::argument(format!(
                    "{address:#x} is not the start of a reserved range"
                )));
            }
        }
        let mapped = state.mapped.range(address..address + size).count();
        if mapped > 0 {
            return Err(Fault::new(
                Code::BUSY,
                format!(
                    "{mapped} objects are mapped in the {size} bytes at {address:#x}: unmap them first"
                ),
            ));
        }
        state.release(address);
        Ok(())
    }

    /// Makes an object and gives its number.
    pub(super) fn create(&self, size: u64) -> Result<u64, Fault> {
        whole("the size", size)?;
        self.quota.charge(size)?;
        let mut state = self.state.lock();
        let Some(offset) = state.offsets.take(size, GRANULARITY) else {
            self.quota.give(size);
            return Err(Fault::new(
                Code::OUT_OF_MEMORY,
                format!(
                    "{size} bytes were asked for; the largest hole in the device's file has {}",
                    state.offsets.largest()
                ),
            ));
        };
        let part = Part {
            pages: Arc::clone(&self.pages),
            offset,
            size,
        };
        Ok(state.add(part, true))
    }

    /// Makes an object of another process's memory and gives its number.
    pub(super) fn adopt(&self, part: Part) -> u64 {
        self.state.lock().add(part, false)
    }

    /// Takes the number of an object back.
    pub(super) fn destroy(&self, number: u64) -> Result<(), Fault> {
        let mut state = self.state.lock();
        state.object(number)?.live = false;
        self.end(&mut state, number);
        Ok(())
    }

    /// The part of the device's file that an object of its own is.
    pub(super) fn part(&self, number: u64) -> Result<Part, Fault> {
        let mut state = self.state.lock();
        let object = state.object(number)?;
        if !object.own {
            return Err(Fault::new(
                Code::UNSUPPORTED,
                "this object was imported: the process that created it exports it",
            ));
        }
        Ok(object.part.clone())
    }

    /// Maps whole objects one behind the other.
    pub(super) fn map(&self, address: u64, numbers: &[u64]) -> Result<(), Fault> {
        let mut state = self.state.lock();
        if !address.is_multiple_of(GRANULARITY) {
            return Err(Fault::argument(format!(
                "the address {address:#x} is not a multiple of the granularity of {GRANULARITY} bytes"
            )));
        }
        self.map_at(&mut state, address, numbers)
    }

    fn map_at(&self, state: &mut State, address: u64, numbers: &[u64]) -> Result<(), Fault> {
        let mut size = 0u64;
        // Parts of one file that follow each other are one mapping.
        let mut runs: Vec<Part> = Vec::new();
        for &number in numbers {
            let part = &state.object(number)?.part;
            size = size.saturating_add(part.size);
            match runs.last_mut() {
                Some(run)
                    if Arc::ptr_eq(&run.pages, &part.pages)
                        && run.offset + run.size == part.offset =>
                {
                    run.size += part.size;
                }
                _ => runs.push(part.clone()),
            }
        }
        if !state.reserved.within(address, size) {
            return Err(Fault::argument(format!(
                "{size} bytes at {address:#x} do not lie in one reserved range"
            )));
        }
        let before = state.mapped.range(..address + size).next_back();
        if let Some((at, there)) = before.filter(|(at, there)| *at + there.size > address) {
            return Err(Fault::argument(format!(
                "an object of {} bytes is mapped at {at:#x}, within the {size} bytes at {address:#x}",
                there.size
            )));
        }
        count(numbers.len())?;
        let start = address.wrapping_add_signed(self.bias);
        let mut end = start;
        for run in runs {
            // SAFETY: nothing is mapped in this part of a reservation, as was just seen under the lock.
            let mapped = unsafe { run.pages.map(end, run.size, run.offset) };
            end += run.size;
            if let Err(error) = mapped {
                // What failed may have left a hole. SAFETY: as above; nobody was told of these mappings.
                if let Err(error) = unsafe { clear(start, end - start) } {
                    tracing::warn!(target: "outrigger::device", %error, "a mapping was not undone");
                }
                MAPPED.fetch_sub(numbers.len(), Ordering::Relaxed);
                return Err(Fault::new(
                    Code::OUT_OF_HOST_MEMORY,
                    format!("{} of {size} bytes could not be mapped: {error}", run.size),
                ));
            }
        }
        let mut at = address;
        for &number in numbers {
            let object = state.object(number)?;
            object.mappings += 1;
            let mapped = Mapped {
                object: number,
                size: object.part.size,
            };
            state.mapped.insert(at, mapped);
            at += mapped.size;
        }
        Ok(())
    }

    pub(super) fn unmap(&self, address: u64, size: u64) -> Result<(), Fault> {
        let mut state = self.state.lock();
        if state.imports.contains_key(&address) {
            return Err(Fault::argument(format!(
                "{address:#x} is an imported allocation: it is closed, not unmapped"
            )));
        }
        self.unmap_at(&mut state, address, size)
    }

    fn unmap_at(&self, state: &mut State, address: u64, size: u64) -> Result<(), Fault> {
        let bad = |what: &str, at: u64| {
            Fault::argument(format!(
                "{size} bytes at {address:#x} are unmapped, but {what} at {at:#x}: a range without gaps \
                 begins and ends where objects do"
            ))
        };
        let Some(end) = address.checked_add(size).filter(|_| size > 0) else {
            return Err(bad("there is no such range", address));
        };
        let mut at = address;
        for (&start, mapped) in state.mapped.range(address..end) {
            if start != at {
                break;
            }
            at += mapped.size;
        }
        match at.cmp(&end) {
            std::cmp::Ordering::Less => return Err(bad("no object begins", at)),
            std::cmp::Ordering::Greater => return Err(bad("the last object ends", at)),
            std::cmp::Ordering::Equal => {}
        }
        // SAFETY: mapped by `map`, and no work uses it (R40).
        unsafe { clear(address.wrapping_add_signed(self.bias), size) }.map_err(|error| {
            Fault::new(
                Code::OUT_OF_HOST_MEMORY,
                format!("{size} bytes at {address:#x} could not be unmapped: {error}"),
            )
        })?;
        let mut at = address;
        while at < end {
            let Some(mapped) = state.mapped.remove(&at) else {
                break;
            };
            at += mapped.size;
            MAPPED.fetch_sub(1, Ordering::Relaxed);
            if let Some(object) = state.objects.get_mut(&mapped.object) {
                object.mappings -= 1;
            }
            self.end(state, mapped.object);
        }
        Ok(())
    }

    /// Gives an object's memory back, if nobody can reach it any more.
    fn end(&self, state: &mut State, number: u64) {
        let Some(object) = state.objects.get(&number) else {
            return;
        };
        if object.live || object.mappings > 0 {
            return;
        }
        let (own, offset, size) = (object.own, object.part.offset, object.part.size);
        state.objects.remove(&number);
        if own {
            self.pages.discard(offset, size);
            state.offsets.remove(offset);
            state.offsets.free(offset, size);
            self.quota.give(size);
        }
    }

    /// Maps an allocation of another process at an address of its own.
    pub(super) fn import(&self, part: Part) -> Result<u64, Fault> {
        let size = part.size;
        let mut state = self.state.lock();
        let address = state.reserve(size.next_multiple_of(GRANULARITY), GRANULARITY)?;
        let object = state.add(part, false);
        let mapped = self.map_at(&mut state, address, &[object]);
        // It ends with its mapping.
        state.object(object)?.live = false;
        self.end(&mut state, object);
        if let Err(fault) = mapped {
            state.release(address);
            return Err(fault);
        }
        state.imports.insert(address, size);
        Ok(address)
    }

    /// Gives an imported allocation back.
    pub(super) fn close(&self, address: u64) -> Result<(), Fault> {
        let mut state = self.state.lock();
        let Some(&size) = state.imports.get(&address) else {
            return Err(Fault::argument(format!(
                "{address:#x} is not an imported allocation, or was closed before"
            )));
        };
        self.unmap_at(&mut state, address, size)?;
        state.imports.remove(&address);
        state.release(address);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.state.get_mut().mapped.len(), Ordering::Relaxed);
    }
}

/// Refuses what is not a whole number of granules.
fn whole(what: &str, bytes: u64) -> Result<(), Fault> {
    if bytes > 0 && bytes.is_multiple_of(GRANULARITY) {
        return Ok(());
    }
    Err(Fault::argument(format!(
        "{what} of {bytes} bytes is not a multiple of the granularity of {GRANULARITY}"
    )))
}

#[cfg(test)]
mod tests;
