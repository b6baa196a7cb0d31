//! The driver's kernels for host functions. They are found without a lock, and kept for good.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use outrigger_device::{Code, Driver, Kernel};

use crate::failure::{Error, Result};
use crate::plan::KernelFn;

/// The slots of the first shelf, several for each host function of this crate. Shelf n has 2^n times as many.
const SLOTS: usize = 4096;

/// More shelves than any process has functions for.
const SHELVES: usize = 32;

/// The slots of a shelf that a function may be in. If all are taken, the function goes to the next shelf.
const PROBES: usize = 8;

/// The driver's kernels for host functions, which are made at first use and kept. A host may launch ever new functions,
/// so there is a series of hash tables, the shelves, each twice as large as the one before. A look-up takes no lock.
pub(super) struct Kernels([OnceLock<Box<[Slot]>>; SHELVES]);

/// A host function, and the driver's kernel for it.
type Slot = OnceLock<(usize, Option<Kernel>)>;

impl Kernels {
    pub(super) fn new() -> Self {
        Self([const { OnceLock::new() }; SHELVES])
    }

    /// The driver's kernel for `function`; `None` if the driver takes no host functions.
    #[inline]
    pub(super) fn get(
        &self,
        driver: &Driver,
        ordinal: u32,
        function: KernelFn,
    ) -> Result<Option<&Kernel>> {
        // Most functions are in their first place.
        if let Some(shelf) = self.0[0].get()
            && let Some((found, kernel)) = shelf[place(function, 0) & (SLOTS - 1)].get()
            && *found == function as usize
        {
            return Ok(kernel.as_ref());
        }
        self.search(driver, ordinal, function)
    }

    #[cold]
    fn search(&self, driver: &Driver, ordinal: u32, function: KernelFn) -> Result<Option<&Kernel>> {
        let key = function as usize;
        for (number, shelf) in self.0.iter().enumerate() {
            let shelf =
                shelf.get_or_init(|| (0..SLOTS << number).map(|_| OnceLock::new()).collect());
            for probe in 0..PROBES {
                let slot = &shelf[place(function, probe) & (shelf.len() - 1)];
                if slot.get().is_none() {
                    let kernel = driver.host_kernel(ordinal, function)?;
                    // Another thread may have set the slot first, for this function or another one.
                    let _ = slot.set((key, kernel));
                }
                if let Some((found, kernel)) = slot.get()
                    && *found == key
                {
                    return Ok(kernel.as_ref());
                }
            }
        }
        Err(Error::new(
            Code::OUT_OF_HOST_MEMORY,
            "the process has more host kernels than the table of kernels has room for",
        ))
    }
}

/// The place of a function in a shelf, before the remainder by the shelf's length is taken.
#[inline]
fn place(function: KernelFn, probe: usize) -> usize {
    (function as usize >> 4)
        .wrapping_mul(0x9e37_79b9)
        .wrapping_add(probe)
}

/// Stores its bias at the address in its argument block.
///
/// # Safety
/// `args` holds the address of an `AtomicI64` that is alive.
pub(super) unsafe extern "C" fn tell_bias(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: the block holds the address of an `AtomicI64` that is alive.
    let place = unsafe { &*(args.cast::<u64>().read_unaligned() as *const AtomicI64) };
    place.store(bias, Ordering::Release);
    Code::OK.0
}

/// Asks a device for its bias. `kernel` is the device's kernel for [`tell_bias`].
///
/// # Errors
/// What the driver reports.
pub(super) fn ask_bias(driver: &Driver, ordinal: u32, kernel: &Kernel) -> Result<i64> {
    // A queue of its own, because streams of the host may capture or have failed.
    let queue = driver.queue_create(ordinal, 0)?;
    let place = Arc::new(AtomicI64::new(0));
    let args = (Arc::as_ptr(&place) as u64).to_ne_bytes();
    // SAFETY: the block is what the kernel expects. The place outlives the launch, because the launch is waited for; if
    // the wait fails, the place is leaked.
    unsafe { queue.launch(kernel, &args, 0, c"bias") }?;
    if let Err(error) = queue.synchronize() {
        std::mem::forget(place);
        return Err(error.into());
    }
    Ok(place.load(Ordering::Acquire))
}
