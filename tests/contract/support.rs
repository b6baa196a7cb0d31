//! What the contract tests share: the drivers under test, and short ways to say what a queue does.
//! Memory is checked by copying it back, so that each test runs on memory that the host cannot see.

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_device::{Code, CopyKind, Driver, Error, Event, Queue};
use outrigger_tests::Gate;

/// A driver under test.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) name: String,
    spec: String,
}

impl Target {
    pub(crate) fn new(name: &str, spec: &str) -> Self {
        Self {
            name: name.to_owned(),
            spec: spec.to_owned(),
        }
    }

    pub(crate) fn try_open(&self) -> Result<Driver, Error> {
        Driver::open(&self.spec.parse()?)
    }

    /// Opens the driver anew: no test sees the state of another.
    pub(crate) fn open(&self) -> Driver {
        self.try_open().unwrap()
    }

    /// How the driver is asked for.
    pub(crate) fn spec(&self) -> &str {
        &self.spec
    }

    /// The file, where the driver is one.
    pub(crate) fn library(&self) -> Option<PathBuf> {
        let path = self.spec.split('?').next().unwrap();
        path.contains('/').then(|| PathBuf::from(path))
    }
}

/// What was called, in the order of the calls.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u64>>>);

impl Log {
    pub(crate) fn push(&self, value: u64) {
        self.0.lock().unwrap().push(value);
    }

    pub(crate) fn values(&self) -> Vec<u64> {
        self.0.lock().unwrap().clone()
    }
}

/// Notes a value in queue order; its outcome is what it is called with.
pub(crate) fn note(queue: &Queue, log: &Log, value: u64) {
    let log = log.clone();
    queue
        .host_call(move |upstream| {
            log.push(value);
            upstream
        })
        .unwrap();
}

/// Holds the queue back until the gate opens.
pub(crate) fn block(queue: &Queue, gate: &Gate) {
    let wait = gate.waiter();
    queue
        .host_call(move |upstream| {
            wait();
            upstream
        })
        .unwrap();
}

/// A command that fails.
pub(crate) fn fail(queue: &Queue, code: Code) {
    queue.host_call(move |_| Err(code)).unwrap();
}

pub(crate) fn queue(driver: &Driver) -> Queue {
    driver.queue_create(0, 0).unwrap()
}

pub(crate) fn event(driver: &Driver) -> Event {
    driver.event_create(0, false).unwrap()
}

/// Device memory that frees itself, once the queues that used it were waited for (R12).
pub(crate) struct Memory {
    driver: Driver,
    pub(crate) address: u64,
}

impl Memory {
    pub(crate) fn new(driver: &Driver, device: u32, size: u64) -> Self {
        Self {
            driver: driver.clone(),
            address: driver.memory_alloc(device, size).unwrap(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: each test waits for its queues before its memory goes out of scope.
        let freed = unsafe { self.driver.memory_free(self.address) };
        assert!(freed.is_ok() || std::thread::panicking(), "{freed:?}");
    }
}

/// Writes bytes to a device address, in queue order. They are kept until the copy has finished (R26).
pub(crate) fn write(queue: &Queue, address: u64, bytes: &[u8]) {
    let kept = bytes.to_vec();
    // SAFETY: the host call behind the copy owns the bytes; the address is the test's.
    unsafe {
        queue.copy(
            address,
            kept.as_ptr() as u64,
            kept.len() as u64,
            CopyKind::HostToDevice,
        )
    }
    .unwrap();
    queue
        .host_call(move |upstream| {
            drop(kept);
            upstream
        })
        .unwrap();
}

/// Waits, and then gives the bytes at a device address.
pub(crate) fn read(queue: &Queue, address: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; size];
    // SAFETY: `bytes` outlives the copy, which is waited for.
    unsafe {
        queue.copy(
            bytes.as_mut_ptr() as u64,
            address,
            size as u64,
            CopyKind::DeviceToHost,
        )
    }
    .unwrap();
    queue.synchronize().unwrap();
    bytes
}

pub(crate) fn fill(queue: &Queue, address: u64, size: u64, pattern: &[u8]) {
    // SAFETY: the range is the test's own memory.
    unsafe { queue.fill(address, size, pattern) }.unwrap();
}

/// Waits until something holds; the limit in time of the test ends it otherwise.
pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// The kernel of the launch tests: adds a number to the counter at a host address.
pub(crate) unsafe extern "C" fn count_kernel(args: *const c_void, size: u32, _bias: i64) -> i32 {
    if size as usize != size_of::<[u64; 2]>() {
        return Code::INVALID_ARGUMENT.0;
    }
    // SAFETY: the block was copied from a pair of address and number, and the counter is live.
    unsafe {
        let [counter, step] = args.cast::<[u64; 2]>().read_unaligned();
        *(counter as *mut u64) += step;
    }
    Code::OK.0
}
