//! What the tests of this crate share: a driver at hand, kernels that leave a trace, and a limit in time
//! for everything. Each test file uses its own part of it.

#![allow(
    dead_code,
    reason = "every test file compiles its own copy and uses a part"
)]

use std::ffi::c_void;
use std::sync::mpsc;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use outrigger_device::{Code, Driver, Kernel, Queue};

/// Far longer than any test takes: a test that hangs fails instead.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a test on a thread of its own and fails if it takes too long.
pub(crate) fn within_limit(test: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = sender.send(());
    });
    match receiver.recv_timeout(LIMIT) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        _ => {
            if let Err(payload) = thread.join() {
                std::panic::resume_unwind(payload);
            }
        }
    }
}

pub(crate) fn open(spec: &str) -> Driver {
    Driver::open(&spec.parse().unwrap()).unwrap()
}

/// What was executed, in order.
#[derive(Default)]
pub(crate) struct Log(Mutex<Vec<u64>>);

impl Log {
    pub(crate) fn push(&self, value: u64) {
        self.0.lock().unwrap().push(value);
    }

    pub(crate) fn values(&self) -> Vec<u64> {
        self.0.lock().unwrap().clone()
    }
}

#[repr(C)]
struct Entry {
    log: *const Log,
    value: u64,
    outcome: i32,
}

unsafe extern "C" fn append(args: *const c_void, size: u32, _bias: i64) -> i32 {
    assert_eq!(size as usize, size_of::<Entry>());
    // SAFETY: launched by `launch` below with an entry, whose log outlives the test.
    let entry = unsafe { args.cast::<Entry>().read_unaligned() };
    // SAFETY: as above.
    unsafe { &*entry.log }.push(entry.value);
    entry.outcome
}

/// The kernel that notes a value and has a given outcome.
pub(crate) fn logger(driver: &Driver, device: u32) -> Kernel {
    driver.host_kernel(device, append).unwrap().unwrap()
}

/// Launches the logger.
pub(crate) fn launch(queue: &Queue, kernel: &Kernel, log: &'static Log, value: u64, outcome: Code) {
    let entry = Entry {
        log,
        value,
        outcome: outcome.0,
    };
    // SAFETY: an entry is plain data.
    let args = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(&entry).cast::<u8>(), size_of::<Entry>())
    };
    // SAFETY: what the kernel expects.
    unsafe { queue.launch(kernel, args, 100, c"logger") }.unwrap();
}

/// A log for the rest of the process.
pub(crate) fn log() -> &'static Log {
    Box::leak(Box::default())
}

/// A door that host calls wait behind until the test opens it.
#[derive(Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    pub(crate) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    pub(crate) fn pass(&self) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }
}

/// Lets all later work of a queue wait for the gate.
pub(crate) fn block(queue: &Queue, gate: &'static Gate) {
    queue
        .host_call(move |upstream| {
            gate.pass();
            upstream
        })
        .unwrap();
}

/// Waits until something holds; the limit in time of the test ends it otherwise.
pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::sleep(Duration::from_micros(200));
    }
}
