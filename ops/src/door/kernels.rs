//! The driver's kernels for host functions: found without a lock, and kept for good.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use outrigger_device::{Code, Driver, Kernel};

use crate::failure::{Error, Result};
use crate::plan::KernelFn;

/// Slots of the first shelf, several for each of our own host functions. Shelf n has 2^n times as many.
const SLOTS: usize = 4096;

/// More than any process has functions for.
const SHELVES: usize = 32;

/// A function may stand in so many slots of a shelf: where all are taken it goes to the next shelf.
const PROBES: usize = 8;

/// The driver's kernels for host functions, made at first use and kept: a host may launch ever new ones.
/// Looking one up takes no lock.
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
        // Mostly the first place has it.
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
                    // Another thread may have been faster, with this function or another one.
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
            "there are more host kernels than can be told apart",
        ))
    }
}

/// Where a function is looked for in a shelf, before the shelf's length is applied.
#[inline]
fn place(function: KernelFn, probe: usize) -> usize {
    (function as usize >> 4)
        .wrapping_mul(0x9e37_79b9)
        .wrapping_add(probe)
}

/// Writes its bias where its block says.
///
/// # Safety
/// `args` holds the address of an `AtomicI64` that is alive.
pub(super) unsafe extern "C" fn tell_bias(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: the block is one of `ask_bias`, which keeps the place alive.
    let place = unsafe { &*(args.cast::<u64>().read_unaligned() as *const AtomicI64) };
    place.store(bias, Ordering::Release);
    Code::OK.0
}

/// Has a device tell its bias; `kernel` is its kernel for [`tell_bias`].
///
/// # Errors
/// What the driver reports.
pub(super) fn ask_bias(driver: &Driver, ordinal: u32, kernel: &Kernel) -> Result<i64> {
    // A queue of its own: streams of the host may capture, or have failed.
    let queue = driver.queue_create(ordinal, 0)?;
    let place = Arc::new(AtomicI64::new(0));
    let args = (Arc::as_ptr(&place) as u64).to_ne_bytes();
    // SAFETY: the block is what the kernel expects, and the place outlives the launch: it is waited for, or the
    // place is never given back.
    unsafe { queue.launch(kernel, &args, 0, c"bias") }?;
    if let Err(error) = queue.synchronize() {
        std::mem::forget(place);
        return Err(error.into());
    }
    Ok(place.load(Ordering::Acquire))
}
