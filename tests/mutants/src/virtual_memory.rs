//! Defects of virtual memory: ranges, objects and mappings.

use std::collections::{BTreeMap, HashMap};

use outrigger_device::{Code, params, sys};
use outrigger_layers::fail;
use parking_lot::Mutex;

use crate::mutant::{mutants, types::*};

/// Objects by handle, and what is mapped where.
#[derive(Default)]
struct Mapped {
    /// Device and size.
    objects: HashMap<usize, (u32, u64)>,
    /// The object at each address.
    places: BTreeMap<u64, usize>,
}

impl Mapped {
    /// Notes that objects were mapped one behind the other.
    ///
    /// # Safety
    /// There are as many handles as are counted.
    unsafe fn map(&mut self, params: &sys::otr_map_params) {
        let mut at = params.address;
        for index in 0..params.count as usize {
            // SAFETY: as many handles as are counted, of which this is one.
            let object = unsafe { *params.physical.add(index) }.expose_provenance();
            self.places.insert(at, object);
            at += self.objects.get(&object).map_or(0, |(_, size)| *size);
        }
    }

    /// The bytes from an address to the end of the object that is mapped there.
    fn left(&self, address: u64) -> Option<u64> {
        let (start, object) = self.places.range(..=address).next_back()?;
        let (_, size) = self.objects.get(object)?;
        (start + size).checked_sub(address).filter(|left| *left > 0)
    }

    fn unmap(&mut self, address: u64, size: u64) {
        self.places
            .retain(|at, _| *at < address || *at - address >= size);
    }
}

mutants! {
    /// The granularity is no power of two.
    granularity_odd [R37] (()) {
        virtual_granularity(self, next, driver, device, bytes) {
            let code = next.virtual_granularity(driver, device, bytes);
            if code == Code::OK.0 {
                *bytes *= 3;
            }
            code
        }
    }

    /// A range is not aligned as it was asked for.
    reserve_unaligned [R37] (Mutex<HashMap<u64, (u64, u64)>>) {
        virtual_reserve(self, next, driver, device, params, address) {
            let (mut step, size, alignment) = (0, params.size, params.alignment);
            if address.is_null() || next.virtual_granularity(driver, device, &mut step) != Code::OK.0
                || alignment <= step || !alignment.is_power_of_two() || size == 0 || !size.is_multiple_of(step)
            {
                return next.virtual_reserve(driver, device, params, address);
            }
            let longer = sys::otr_reserve_params { size: size + step, ..*params };
            let code = next.virtual_reserve(driver, device, &longer, address);
            if code == Code::OK.0 {
                self.state.lock().insert(*address + step, (*address, size + step));
                *address += step;
            }
            code
        }
        virtual_release(self, next, driver, address, size) {
            let whole = self.state.lock().get(&address).copied();
            match whole {
                Some((base, length)) if length > size => {
                    let code = next.virtual_release(driver, base, length);
                    if code == Code::OK.0 {
                        self.state.lock().remove(&address);
                    }
                    code
                }
                _ => next.virtual_release(driver, address, size),
            }
        }
    }

    /// The struct of a newer host, which is larger, is refused.
    reserve_of_newer_refused [R1] (()) {
        virtual_reserve(self, next, driver, device, params, address) {
            if params.struct_size > size_of::<sys::otr_reserve_params>() {
                return fail(Code::INVALID_ARGUMENT, "the struct is too large");
            }
            next.virtual_reserve(driver, device, params, address)
        }
    }

    /// A range in which something is mapped is released with success, and stays.
    release_of_mapped_taken [R37] (()) {
        virtual_release(self, next, driver, address, size) {
            match next.virtual_release(driver, address, size) {
                code if code == Code::BUSY.0 => Code::OK.0,
                code => code,
            }
        }
    }

    /// Mapped memory is freed by memory_free, with success.
    free_of_mapped_taken [R37] (Mutex<Mapped>) {
        virtual_create(self, next, driver, device, params, physical) {
            let code = next.virtual_create(driver, device, params, physical);
            if code == Code::OK.0 {
                self.state.lock().objects.insert((*physical).addr(), (device, params.size));
            }
            code
        }
        virtual_map(self, next, driver, params) {
            let code = next.virtual_map(driver, params);
            if code == Code::OK.0 {
                self.state.lock().map(params);
            }
            code
        }
        virtual_unmap(self, next, driver, address, size) {
            self.state.lock().unmap(address, size);
            next.virtual_unmap(driver, address, size)
        }
        memory_free(self, next, driver, address) {
            if self.state.lock().places.contains_key(&address) {
                return Code::OK.0;
            }
            next.memory_free(driver, address)
        }
    }

    /// Memory of objects that are gone stays taken.
    physical_leaks [R38] (()) {
        virtual_create(self, next, driver, device, params, physical) {
            let code = next.virtual_create(driver, device, params, physical);
            let mut lost = std::ptr::null_mut();
            if code == Code::OK.0 && next.virtual_create(driver, device, params, &mut lost) != Code::OK.0 {
                // No memory is left to lose.
                return code;
            }
            code
        }
    }

    /// An object takes no memory until it is mapped.
    create_takes_nothing [R38] (Mutex<u64>) {
        virtual_create(self, next, driver, device, params, physical) {
            let code = next.virtual_create(driver, device, params, physical);
            if code == Code::OK.0 {
                *self.state.lock() += params.size;
            }
            code
        }
        virtual_map(self, next, driver, params) {
            *self.state.lock() = 0;
            next.virtual_map(driver, params)
        }
        virtual_destroy(self, next, driver, physical) {
            *self.state.lock() = 0;
            next.virtual_destroy(driver, physical)
        }
        memory_info(self, next, driver, device, free, total) {
            let code = next.memory_info(driver, device, free, total);
            if code == Code::OK.0 {
                *free = (*free + *self.state.lock()).min(*total);
            }
            code
        }
    }

    /// Destroying an object that is mapped takes its contents away.
    destroy_empties_mapped [R38] (Mutex<Mapped>) {
        virtual_create(self, next, driver, device, params, physical) {
            let code = next.virtual_create(driver, device, params, physical);
            if code == Code::OK.0 {
                self.state.lock().objects.insert((*physical).addr(), (device, params.size));
            }
            code
        }
        virtual_map(self, next, driver, params) {
            let code = next.virtual_map(driver, params);
            if code == Code::OK.0 {
                self.state.lock().map(params);
            }
            code
        }
        virtual_unmap(self, next, driver, address, size) {
            self.state.lock().unmap(address, size);
            next.virtual_unmap(driver, address, size)
        }
        virtual_destroy(self, next, driver, physical) {
            let known = self.state.lock().objects.remove(&physical.addr());
            let Some((device, size)) = known else {
                return next.virtual_destroy(driver, physical);
            };
            let places: Vec<_> = self.state.lock().places.iter()
                .filter(|(_, object)| **object == physical.addr())
                .map(|(address, _)| *address)
                .collect();
            let mut other = std::ptr::null_mut();
            for address in places {
                if next.virtual_unmap(driver, address, size) == Code::OK.0
                    && next.virtual_create(driver, device, &params::memory(size), &mut other) == Code::OK.0
                {
                    next.virtual_map(driver, &params::map(address, &other, 1));
                    next.virtual_destroy(driver, other);
                }
            }
            next.virtual_destroy(driver, physical)
        }
    }

    /// A map that is refused leaves its first object mapped.
    map_leaves_half [R39] (()) {
        virtual_map(self, next, driver, params) {
            let code = next.virtual_map(driver, params);
            if code != Code::OK.0 && params.count > 1 && !params.physical.is_null() {
                next.virtual_map(driver, &sys::otr_map_params { count: 1, ..*params });
            }
            code
        }
    }

    /// A second address of an object reaches other bytes.
    aliases_do_not_alias [R39] (Mutex<Mapped>) {
        virtual_create(self, next, driver, device, params, physical) {
            let code = next.virtual_create(driver, device, params, physical);
            if code == Code::OK.0 {
                self.state.lock().objects.insert((*physical).addr(), (device, params.size));
            }
            code
        }
        virtual_map(self, next, driver, params) {
            let mut mapped = self.state.lock();
            let twice = (params.count == 1 && !params.physical.is_null())
                .then(|| (*params.physical).addr())
                .filter(|object| mapped.places.values().any(|other| other == object))
                .and_then(|object| mapped.objects.get(&object).copied());
            if let Some((device, size)) = twice {
                let mut other = std::ptr::null_mut();
                if next.virtual_create(driver, device, &params::memory(size), &mut other) == Code::OK.0 {
                    let code = next.virtual_map(driver, &params::map(params.address, &other, 1));
                    // The mapping keeps the memory until it ends.
                    next.virtual_destroy(driver, other);
                    return code;
                }
            }
            let code = next.virtual_map(driver, params);
            if code == Code::OK.0 {
                mapped.map(params);
            }
            code
        }
        virtual_unmap(self, next, driver, address, size) {
            self.state.lock().unmap(address, size);
            next.virtual_unmap(driver, address, size)
        }
    }

    /// Objects of one map are put in the other order.
    map_in_reverse [R39] (()) {
        virtual_map(self, next, driver, params) {
            if params.physical.is_null() {
                return next.virtual_map(driver, params);
            }
            let mut objects: Vec<*mut sys::otr_physical> =
                std::slice::from_raw_parts(params.physical, params.count as usize).to_vec();
            objects.reverse();
            next.virtual_map(driver, &sys::otr_map_params { physical: objects.as_ptr(), ..*params })
        }
    }

    /// An unmap of a part of an object is taken, and does nothing.
    unmap_of_a_part_taken [R40] (()) {
        virtual_unmap(self, next, driver, address, size) {
            match next.virtual_unmap(driver, address, size) {
                code if code == Code::INVALID_ARGUMENT.0 && size > 0 => Code::OK.0,
                code => code,
            }
        }
    }

    /// Only what one map has mapped can be unmapped at once.
    unmap_of_several_refused [R40] (Mutex<HashMap<u64, u64>>) {
        virtual_map(self, next, driver, params) {
            let code = next.virtual_map(driver, params);
            if code == Code::OK.0 {
                self.state.lock().insert(params.address, 0);
            }
            code
        }
        virtual_unmap(self, next, driver, address, size) {
            let mut maps = self.state.lock();
            let several = maps.keys().any(|at| *at > address && *at - address < size);
            if several {
                return fail(Code::INVALID_ARGUMENT, "the range is that of several maps");
            }
            maps.remove(&address);
            drop(maps);
            next.virtual_unmap(driver, address, size)
        }
    }

    /// A fill ends where the mapped object does in which it begins.
    fill_ends_with_the_object [R41] (Mutex<Mapped>) {
        virtual_create(self, next, driver, device, params, physical) {
            let code = next.virtual_create(driver, device, params, physical);
            if code == Code::OK.0 {
                self.state.lock().objects.insert((*physical).addr(), (device, params.size));
            }
            code
        }
        virtual_map(self, next, driver, params) {
            let code = next.virtual_map(driver, params);
            if code == Code::OK.0 {
                self.state.lock().map(params);
            }
            code
        }
        virtual_unmap(self, next, driver, address, size) {
            self.state.lock().unmap(address, size);
            next.virtual_unmap(driver, address, size)
        }
        fill(self, next, queue, fill) {
            let left = self.state.lock().left(fill.dst).unwrap_or(fill.size);
            let whole = left - left % u64::from(fill.pattern_size.max(1));
            next.fill(queue, &sys::otr_fill { size: fill.size.min(whole), ..*fill })
        }
    }
}
