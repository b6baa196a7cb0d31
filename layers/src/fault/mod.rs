//! The layer `fault`: the driver fails where it is told to, in a call or in its work. A correct driver may have each
//! of these faults, except a silent torn copy. So what breaks above the layer is a defect above the layer.

mod spec;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outrigger_device::{Code, params, sys};
use parking_lot::Mutex;

pub use spec::{FaultSpec, Rule, What, When};

use crate::entry::{Gate, Gated, Handles};
use crate::{Entry, Layer, Next, fail};

/// The layer of a specification.
pub fn fault(spec: &FaultSpec) -> impl Layer + use<> {
    let (torn, rules) = spec
        .rules
        .iter()
        .partition(|rule| matches!(rule.what, What::Torn(_)));
    Gated {
        gate: Calls::new(rules, spec.seed),
        layer: Limits {
            torn: Calls::new(torn, spec.seed),
            above: spec.above.unwrap_or(u64::MAX),
            total: spec.total.unwrap_or(u64::MAX),
            used: Mutex::default(),
        },
    }
}

/// Counts calls, and finds the rule that is due.
struct Calls {
    rules: Vec<Rule>,
    counts: Vec<AtomicU64>,
    all: AtomicU64,
    seed: u64,
    lost: AtomicBool,
}

impl Calls {
    fn new(rules: Vec<Rule>, seed: u64) -> Self {
        Self {
            rules,
            counts: Entry::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            all: AtomicU64::new(0),
            seed,
            lost: AtomicBool::new(false),
        }
    }

    /// The fault of this call of an entry, and the number of the call among those of the entry.
    fn due(&self, entry: Entry) -> Option<(What, u64)> {
        let count = self.counts[entry as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let all = self.all.fetch_add(1, Ordering::Relaxed) + 1;
        let due = |rule: &&Rule| {
            let number = match rule.entry {
                Some(other) if other != entry => return false,
                Some(_) => count,
                None => all,
            };
            // Of any entry, those that cannot fail in this way are left out.
            if matches!(rule.what, What::Work(_) | What::Delay(_)) && !entry.submits() {
                return false;
            }
            match rule.when {
                When::At(n) => number == n,
                When::From(n) => number >= n,
                When::Percent(percent) => {
                    mix(self.seed ^ mix(entry as u64) ^ number) % 100 < u64::from(percent)
                }
            }
        };
        let rule = self.rules.iter().find(due)?;
        Some((rule.what, count))
    }
}

/// A number that depends on all bits of another: the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Gate for Calls {
    type Pass<'gate> = ();

    fn pass(&self, next: &Next, entry: Entry, handles: Handles<'_>) -> Result<(), i32> {
        // Entries that give something back succeed, so that a host can clean up.
        if self.lost.load(Ordering::Relaxed) && !entry.gives_back() {
            return Err(lost());
        }
        let Some((what, count)) = self.due(entry) else {
            return Ok(());
        };
        match what {
            What::Call(code) => Err(fail(
                code,
                format!(
                    "call {count} of {} fails: this fault was requested",
                    entry.name()
                ),
            )),
            What::Lost => {
                self.lost.store(true, Ordering::Relaxed);
                if entry.gives_back() {
                    Ok(())
                } else {
                    Err(lost())
                }
            }
            What::Work(code) => ahead(next, handles.queue, failing, code.0 as usize),
            What::Delay(time) => ahead(next, handles.queue, delay, time as usize),
            What::Torn(_) => Ok(()),
        }
    }
}

#[cold]
fn lost() -> i32 {
    fail(
        Code::DEVICE_LOST,
        "the device is lost: this fault was requested",
    )
}

/// Puts a host call into a queue, ahead of the work that the fault is for.
fn ahead(
    next: &Next,
    queue: *mut sys::otr_queue,
    function: unsafe extern "C" fn(*mut c_void, i32) -> i32,
    user: usize,
) -> Result<(), i32> {
    // SAFETY: the queue of a call that goes on now, and a function that takes any number for `user`.
    let code = unsafe {
        let user = std::ptr::without_provenance_mut(user);
        next.host_call(queue, &params::host_call(Some(function), user, 0))
    };
    if code == Code::OK.0 {
        Ok(())
    } else {
        Err(code)
    }
}

unsafe extern "C" fn failing(user: *mut c_void, upstream: i32) -> i32 {
    match upstream {
        0 => user.addr() as i32,
        failure => failure,
    }
}

unsafe extern "C" fn delay(user: *mut c_void, upstream: i32) -> i32 {
    std::thread::sleep(Duration::from_millis(user.addr() as u64));
    upstream
}

/// Limits of memory, and copies that are torn.
struct Limits {
    torn: Calls,
    above: u64,
    total: u64,
    used: Mutex<Used>,
}

/// The bytes in use, and each piece of memory by address or handle.
#[derive(Default)]
struct Used {
    bytes: u64,
    pieces: HashMap<u64, u64>,
}

impl Limits {
    /// Takes memory, where the limits let it. `place` is where `take` writes its address or handle.
    ///
    /// # Safety
    /// `params` are NULL or readable, and `place` is NULL or readable and writable.
    unsafe fn take(
        &self,
        params: *const sys::otr_memory_params,
        place: *const u64,
        take: impl FnOnce() -> i32,
    ) -> i32 {
        // SAFETY: NULL or readable.
        let size = unsafe { params.as_ref() }.map_or(0, |params| params.size);
        if size > self.above {
            return out_of_memory(format!("{size} bytes, and no more than {}", self.above));
        }
        let mut used = self.used.lock();
        let sum = used.bytes.saturating_add(size);
        if sum > self.total {
            return out_of_memory(format!(
                "{size} bytes with {} in use, of {}",
                used.bytes, self.total
            ));
        }
        let code = take();
        if code == Code::OK.0 && !place.is_null() {
            used.bytes = sum;
            // SAFETY: the call succeeded, so the output that is not NULL was written.
            used.pieces.insert(unsafe { *place }, size);
        }
        code
    }

    fn give(&self, piece: u64, give: impl FnOnce() -> i32) -> i32 {
        let mut used = self.used.lock();
        let code = give();
        if code == Code::OK.0 {
            let size = used.pieces.remove(&piece).unwrap_or(0);
            used.bytes -= size;
        }
        code
    }
}

#[cold]
fn out_of_memory(text: String) -> i32 {
    fail(
        Code::OUT_OF_MEMORY,
        format!("{text}: this fault was requested"),
    )
}

impl Layer for Limits {
    unsafe fn memory_alloc(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_memory_params,
        address: *mut u64,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        unsafe {
            self.take(params, address, || {
                next.memory_alloc(driver, device, params, address)
            })
        }
    }

    unsafe fn memory_free(&self, next: &Next, driver: *mut sys::otr_driver, address: u64) -> i32 {
        // SAFETY: R12: the host frees memory only after its work; the call is handed on.
        self.give(address, || unsafe { next.memory_free(driver, address) })
    }

    unsafe fn virtual_create(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_memory_params,
        physical: *mut *mut sys::otr_physical,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; a handle is as wide as its number.
        unsafe {
            self.take(params, physical.cast(), || {
                next.virtual_create(driver, device, params, physical)
            })
        }
    }

    unsafe fn virtual_destroy(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        physical: *mut sys::otr_physical,
    ) -> i32 {
        // SAFETY: R8: the host destroys what no other call uses; the call is handed on.
        self.give(physical.addr() as u64, || unsafe {
            next.virtual_destroy(driver, physical)
        })
    }

    unsafe fn copy(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        copy: *const sys::otr_copy,
    ) -> i32 {
        let Some((What::Torn(code), _)) = self.torn.due(Entry::copy) else {
            // SAFETY: R26: both ranges stay valid until the copy has finished.
            return unsafe { next.copy(queue, copy) };
        };
        // SAFETY: R26: half of a range that stays valid until the copy has finished, or of each row.
        let torn = unsafe {
            match copy.as_ref() {
                Some(whole) => {
                    let half = sys::otr_copy {
                        struct_size: size_of::<sys::otr_copy>(),
                        size: whole.size / 2,
                        ..*whole
                    };
                    next.copy(queue, &half)
                }
                None => next.copy(queue, copy),
            }
        };
        if torn != Code::OK.0 || code == Code::OK {
            return torn;
        }
        match ahead(next, queue, failing, code.0 as usize) {
            Ok(()) => torn,
            Err(code) => code,
        }
    }
}

// Handles are counted by their numbers.
const _: () = assert!(size_of::<*mut c_void>() == size_of::<u64>());
