//! Functions of the host that the library runs in stream order, and their data. They never call the
//! library (H16). They notice if they are called after their data was given back, twice at the same
//! time, or too often. Data that was handed out is not used again before its round has ended without a
//! failure.

use std::ffi::c_void;
use std::ptr::null;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};

use fastrand::Rng;
use outrigger_device::Code;
use outrigger_ffi::{otr_host_kernel_call_t, otr_host_node_t};

use crate::library::{Outcome, problem};
use crate::world::World;

const ALIVE: u32 = 1;
const DESTROYED: u32 = 2;

/// The data of one host function.
pub(crate) struct Guest {
    state: AtomicU32,
    running: AtomicU32,
    calls: AtomicU32,
    /// The most calls that are right.
    most: u32,
    /// The code that a call without an upstream failure returns.
    outcome: i32,
}

impl Guest {
    /// Whether it was given back.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.state.load(Ordering::Acquire) == DESTROYED
    }
}

unsafe extern "C" fn called(user: *mut c_void, _bias: i64, upstream: i32) -> i32 {
    // SAFETY: guests live as long as the process.
    let guest = unsafe { &*user.cast::<Guest>() };
    if guest.is_destroyed() {
        problem("a host function is called after its data was given back");
    }
    if guest.running.fetch_add(1, Ordering::AcqRel) != 0 {
        problem("a host function is called twice at a time, of one graph's replays (H28)");
    }
    if guest.calls.fetch_add(1, Ordering::AcqRel) >= guest.most {
        problem("a host function is called once more than it was submitted");
    }
    if guest.is_destroyed() {
        problem("the data of a host function is given back while it runs");
    }
    guest.running.fetch_sub(1, Ordering::AcqRel);
    if upstream == 0 {
        guest.outcome
    } else {
        upstream
    }
}

unsafe extern "C" fn destroyed(user: *mut c_void) {
    // SAFETY: guests live as long as the process.
    let guest = unsafe { &*user.cast::<Guest>() };
    if guest.running.load(Ordering::Acquire) != 0 {
        problem("the data of a host function is given back while it runs");
    }
    if guest.state.swap(DESTROYED, Ordering::AcqRel) == DESTROYED {
        problem("the data of a host function is given back twice");
    }
}

/// A host function that is called once, or by each replay of one graph; hands it to `take` as a node, with
/// the addresses that it reads.
pub(crate) fn host_node(
    world: &World,
    rng: &mut Rng,
    most: u32,
    reads: &[u64],
    take: impl FnOnce(&otr_host_node_t) -> Outcome,
) -> Outcome {
    let fails = rng.u32(..40) == 0;
    let guest: &'static Guest = Box::leak(Box::new(Guest {
        state: AtomicU32::new(ALIVE),
        running: AtomicU32::new(0),
        calls: AtomicU32::new(0),
        most,
        outcome: if fails { Code::EXECUTION.0 } else { 0 },
    }));
    let node = otr_host_node_t {
        struct_size: size_of::<otr_host_node_t>(),
        next: null(),
        function: Some(called),
        user: std::ptr::from_ref(guest).cast_mut().cast(),
        destroy: Some(destroyed),
        label: if rng.bool() {
            c"guest".as_ptr()
        } else {
            null()
        },
        reads: reads.as_ptr(),
        writes: null(),
        read_count: reads.len() as u32,
        write_count: 0,
        cost_ns: rng.u32(..20_000),
        reserved: 0,
    };
    let outcome = take(&node);
    if outcome.is_ok() {
        let mut guests = world.guests.lock().unwrap_or_else(PoisonError::into_inner);
        guests.push(guest);
    } else if guest.is_destroyed() {
        problem("the data of a host function is given back though the call failed");
    }
    outcome
}

/// A function of otr_host_call, which has no data to be given back.
pub(crate) unsafe extern "C" fn counted(_user: *mut c_void, upstream: i32) -> i32 {
    upstream
}

/// A function of otr_host_call that fails.
pub(crate) unsafe extern "C" fn failing(_user: *mut c_void, upstream: i32) -> i32 {
    if upstream == 0 {
        Code::EXECUTION.0
    } else {
        upstream
    }
}

/// The argument block of the kernel: adds to the first words of memory, one by one and indivisibly, so that
/// kernels of streams that nobody orders may meet there.
#[repr(C)]
pub(crate) struct Adds {
    pub(crate) address: u64,
    pub(crate) words: u64,
}

unsafe extern "C" fn adds(args: *const c_void, size: u32, bias: i64) -> i32 {
    if size as usize != size_of::<Adds>() {
        problem("a host kernel is given a block of another size");
        return Code::EXECUTION.0;
    }
    // SAFETY: the block is a copy of an `Adds`, at any alignment.
    let block = unsafe { args.cast::<Adds>().read_unaligned() };
    let first = block.address.wrapping_add_signed(bias) as *const AtomicU32;
    for word in 0..block.words as usize {
        // SAFETY: the words lie in memory that is kept alive until the kernel has run (H22), and whoever
        // else uses them meanwhile does so indivisibly.
        unsafe { &*first.add(word) }.fetch_add(1, Ordering::Relaxed);
    }
    0
}

/// Hands a kernel over `words` words of memory to `take`.
pub(crate) fn kernel<R>(
    rng: &mut Rng,
    address: u64,
    words: u64,
    take: impl FnOnce(&otr_host_kernel_call_t) -> R,
) -> R {
    const ADDRESS: [u32; 1] = [0];
    let block = Adds { address, words };
    // Without memory the block has no addresses.
    let addresses = u32::from(words > 0);
    take(&otr_host_kernel_call_t {
        struct_size: size_of::<otr_host_kernel_call_t>(),
        next: null(),
        function: Some(adds),
        args: (&raw const block).cast(),
        args_size: size_of::<Adds>() as u32,
        cost_ns: rng.u32(..20_000),
        label: if rng.bool() { c"adds".as_ptr() } else { null() },
        address_offsets: ADDRESS.as_ptr(),
        address_count: addresses,
        reserved: 0,
        address_ranges: std::ptr::null(),
    })
}
