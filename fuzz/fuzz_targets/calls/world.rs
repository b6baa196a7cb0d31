//! The objects that a sequence of calls has made, and the host functions that it passed to the library.
//! It must never leave anything for the next sequence: libFuzzer runs millions in one process.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or statics, or with what the \
              contract says is checked"
)]

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outrigger_ffi::*;

use super::{made, outcome};

/// Memory of the host that copies may use.
pub(crate) const HOST_BYTES: u64 = 1 << 16;

struct HostMemory(UnsafeCell<[u8; HOST_BYTES as usize]>);

// SAFETY: only the library touches it, through the pointer; what the bytes are does not matter.
unsafe impl Sync for HostMemory {}

static HOST: HostMemory = HostMemory(UnsafeCell::new([0; HOST_BYTES as usize]));

/// The address of that memory.
pub(crate) fn host_buffer() -> u64 {
    HOST.0.get() as u64
}

/// Device memory that is in use.
pub(crate) struct Block {
    pub(crate) device: u32,
    pub(crate) address: u64,
}

/// Everything that was made.
pub(crate) struct World {
    /// All handles that were handed out, of all kinds, destroyed or not.
    pub(crate) handles: Vec<u64>,
    /// Memory in use.
    pub(crate) blocks: Vec<Block>,
    /// Addresses that were freed.
    pub(crate) stale: Vec<u64>,
    /// Addresses within graphs.
    pub(crate) graph_memory: Vec<u64>,
    /// Whether something was captured: its memory goes with it, whatever else was said.
    pub(crate) captures: bool,
}

static CALLS: AtomicU64 = AtomicU64::new(0);
static ACCEPTED: AtomicU64 = AtomicU64::new(0);
static DESTROYED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn count_node(_user: *mut c_void, _bias: i64, upstream: i32) -> i32 {
    CALLS.fetch_add(1, Ordering::Relaxed);
    upstream
}

unsafe extern "C" fn quiet_call(_user: *mut c_void, upstream: i32) -> i32 {
    DESTROYED.fetch_add(1, Ordering::Relaxed);
    upstream
}

unsafe extern "C" fn uncounted_call(_user: *mut c_void, upstream: i32) -> i32 {
    upstream
}

unsafe extern "C" fn failing_call(_user: *mut c_void, _upstream: i32) -> i32 {
    DESTROYED.fetch_add(1, Ordering::Relaxed);
    outrigger_device::Code::EXECUTION.0
}

unsafe extern "C" fn count_destroy(_user: *mut c_void) {
    DESTROYED.fetch_add(1, Ordering::Relaxed);
}

impl World {
    /// A world with a stream of each device, and both default streams.
    pub(crate) fn new() -> Self {
        static START: Once = Once::new();
        START.call_once(|| {
            // SAFETY: libFuzzer runs one input at a time, and no other thread has been started.
            unsafe { std::env::set_var("OUTRIGGER_DRIVER", "host?memory=64M") };
        });
        let mut handles = Vec::new();
        for device in [0, 1] {
            handles.extend(made(|out| unsafe { otr_stream_default(device, out) }));
            handles.extend(made(|out| unsafe { otr_stream_create(device, 0, out) }));
        }
        Self {
            handles,
            blocks: Vec::new(),
            stale: Vec::new(),
            graph_memory: Vec::new(),
            captures: false,
        }
    }

    /// Gives one block back.
    pub(crate) fn free(&mut self, which: u8) {
        if self.blocks.is_empty() {
            return;
        }
        let index = usize::from(which) % self.blocks.len();
        let block = self.blocks.swap_remove(index);
        let freed = outcome(unsafe { otr_memory_free(block.device, block.address) }, None);
        assert!(
            freed.is_some() || self.captures,
            "memory in use cannot be freed"
        );
        self.stale.push(block.address);
    }

    /// Submits a function of the host, of one of three kinds.
    pub(crate) fn host_function(&self, stream: u64, kind: u8) {
        // A captured call runs at every replay, and is not given back: it is not counted.
        let status = match kind % 3 {
            0 | 1 if self.captures => {
                let status = unsafe { otr_host_call(stream, Some(uncounted_call), null_mut()) };
                outcome(status, None);
                return;
            }
            0 => unsafe { otr_host_call(stream, Some(quiet_call), null_mut()) },
            1 => unsafe { otr_host_call(stream, Some(failing_call), null_mut()) },
            _ => {
                let node = otr_host_node_t {
                    struct_size: size_of::<otr_host_node_t>(),
                    next: std::ptr::null(),
                    function: Some(count_node),
                    user: null_mut(),
                    destroy: Some(count_destroy),
                    label: std::ptr::null(),
                    reads: std::ptr::null(),
                    writes: std::ptr::null(),
                    read_count: 0,
                    write_count: 0,
                    cost_ns: 0,
                    reserved: 0,
                };
                unsafe { otr_host_node(stream, &node) }
            }
        };
        if outcome(status, None).is_some() {
            ACCEPTED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for everything, as far as captures let it.
    pub(crate) fn settle(&self) {
        for device in [0, 1] {
            outcome(unsafe { otr_device_synchronize(device) }, None);
        }
        if self.captures {
            // A wait for the device is refused on a thread that captures.
            for &handle in &self.handles {
                outcome(unsafe { otr_stream_synchronize(handle) }, None);
            }
        }
    }

    /// Gives everything back, and checks that nothing is in use.
    pub(crate) fn give_back(mut self) {
        for &handle in &self.handles {
            // A capture that goes on would keep its memory.
            if made(|out| unsafe { otr_capture_end(handle, out) })
                .is_some_and(|graph| outcome(unsafe { otr_graph_destroy(graph) }, None).is_none())
            {
                panic!("a graph that was just captured cannot be destroyed");
            }
        }
        self.settle();
        while !self.blocks.is_empty() {
            self.free(0);
        }
        for &handle in &self.handles {
            outcome(unsafe { otr_graph_exec_destroy(handle) }, None);
            outcome(unsafe { otr_graph_destroy(handle) }, None);
            outcome(unsafe { otr_pool_destroy(handle) }, None);
            outcome(unsafe { otr_event_destroy(handle) }, None);
            outcome(unsafe { otr_generator_destroy(handle) }, None);
            outcome(unsafe { otr_stream_destroy(handle) }, None);
        }
        self.settle();
        self.settle(); // a failure of the first is cleared
        // Memory of work in flight goes when the work has ended, on other threads.
        let deadline = Instant::now() + Duration::from_secs(5);
        while let Err(left) = nothing_left() {
            assert!(Instant::now() < deadline, "{left}");
            std::thread::sleep(Duration::from_millis(1));
            self.settle();
        }
        ACCEPTED.store(0, Ordering::Relaxed);
        DESTROYED.store(0, Ordering::Relaxed);
    }
}

/// The things that are still in use though all were given back.
fn nothing_left() -> Result<(), String> {
    for device in [0, 1] {
        let mut stats: otr_memory_stats_t = unsafe { std::mem::zeroed() };
        stats.struct_size = size_of::<otr_memory_stats_t>();
        outcome(unsafe { otr_memory_stats(device, &mut stats) }, None);
        if stats.allocated_bytes.current != 0 {
            return Err(format!(
                "device {device}: {} bytes are in use",
                stats.allocated_bytes.current
            ));
        }
    }
    let (accepted, destroyed) = (
        ACCEPTED.load(Ordering::Relaxed),
        DESTROYED.load(Ordering::Relaxed),
    );
    if accepted != destroyed {
        return Err(format!(
            "of {accepted} functions of the host {destroyed} were given back"
        ));
    }
    Ok(())
}
