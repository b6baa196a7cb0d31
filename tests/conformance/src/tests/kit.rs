//! The common part of the tests of the driver contract: a driver whose memory is given back at the end, host memory for
//! copies, and short calls for what a queue does. This module does not decide whether a driver is right, except for
//! what is left behind.
//!
//! A test that fails does not free its memory: its work may still run, and its process ends anyway.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outrigger_device::{Code, CopyKind, Driver, Event, Queue};

use crate::verdict::{answers, check, equal};
use crate::{Context, Failure, Gate, Verdict};

/// An open driver, and what a test took of its memory.
pub(super) struct Bench {
    driver: Driver,
    before: Vec<Option<(u64, u64)>>,
    memory: Mutex<Vec<u64>>,
}

impl Deref for Bench {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.driver
    }
}

impl Bench {
    /// Opens the driver under test and notes how much memory is free.
    #[track_caller]
    pub(super) fn new(context: &Context) -> Verdict<Self> {
        Self::of(context.open()?)
    }

    /// The bench over a driver that is open.
    #[track_caller]
    pub(super) fn of(driver: Driver) -> Verdict<Self> {
        let before = free(&driver)?;
        Ok(Self {
            driver,
            before,
            memory: Mutex::default(),
        })
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    fn taken(&self) -> MutexGuard<'_, Vec<u64>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of device 0.
    #[track_caller]
    pub(super) fn memory(&self, size: u64) -> Verdict<u64> {
        self.memory_on(0, size)
    }

    /// Memory of a device.
    #[track_caller]
    pub(super) fn memory_on(&self, device: u32, size: u64) -> Verdict<u64> {
        let address = self.driver.memory_alloc(device, size)?;
        self.keep(address);
        Ok(address)
    }

    /// Memory that is freed at the end.
    pub(super) fn keep(&self, address: u64) {
        self.taken().push(address);
    }

    /// Frees memory before the end.
    #[track_caller]
    pub(super) fn give_back(&self, address: u64) -> Verdict {
        self.taken().retain(|kept| *kept != address);
        // SAFETY: the test has waited for the work that uses it.
        unsafe { self.driver.memory_free(address) }?;
        Ok(())
    }

    /// A queue of device 0.
    #[track_caller]
    pub(super) fn queue(&self) -> Verdict<Queue> {
        self.queue_on(0)
    }

    /// A queue of a device.
    #[track_caller]
    pub(super) fn queue_on(&self, device: u32) -> Verdict<Queue> {
        Ok(self.driver.queue_create(device, 0)?)
    }

    /// Queues of device 0, as many as `count` says.
    #[track_caller]
    pub(super) fn queues(&self, count: usize) -> Verdict<Vec<Queue>> {
        (0..count).map(|_| self.queue()).collect()
    }

    /// An event of device 0.
    #[track_caller]
    pub(super) fn event(&self) -> Verdict<Event> {
        Ok(self.driver.event_create(0, false)?)
    }

    /// Frees all memory, whose work has been waited for, and checks that as much is free as before.
    #[track_caller]
    pub(super) fn finish(self) -> Verdict {
        for address in std::mem::take(&mut *self.taken()) {
            // SAFETY: the test has waited for its work.
            unsafe { self.driver.memory_free(address) }?;
        }
        equal!(
            free(&self.driver)?,
            self.before,
            "free and total bytes of each device after all was given back"
        );
        Ok(())
    }
}

/// Free and total bytes of each device, where the driver tells.
#[track_caller]
pub(super) fn free(driver: &Driver) -> Verdict<Vec<Option<(u64, u64)>>> {
    let devices = 0..driver.device_count();
    Ok(devices
        .map(|device| driver.memory_info(device))
        .collect::<Result<_, _>>()?)
}

/// A part of the memory of device 0, or less where one allocation cannot be as large.
#[track_caller]
pub(super) fn part(bench: &Bench, parts: u64) -> Verdict<u64> {
    let properties = bench.properties(0)?;
    let most = match properties.largest_allocation {
        0 => properties.total_memory,
        most => most,
    };
    Ok(most.min(properties.total_memory / parts))
}

/// Host memory that copies use. It is never given back, since a failing test does not wait for them.
#[derive(Clone, Copy)]
pub(super) struct HostBytes {
    start: *mut u8,
    size: usize,
}

// SAFETY: plain memory that lives as long as the process; each test orders who uses it.
unsafe impl Send for HostBytes {}
// SAFETY: as above.
unsafe impl Sync for HostBytes {}

impl HostBytes {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let bytes = Vec::leak(bytes);
        Self {
            start: bytes.as_mut_ptr(),
            size: bytes.len(),
        }
    }

    /// A block of bytes of one value.
    pub(super) fn of(size: usize, value: u8) -> Self {
        Self::new(vec![value; size])
    }

    /// The address of a byte.
    pub(super) fn at(self, offset: usize) -> u64 {
        self.start as u64 + offset as u64
    }

    /// The bytes that the block holds, once nothing writes to it.
    pub(super) fn get(self) -> Vec<u8> {
        // SAFETY: leaked above; no work writes to it now, as the caller sees to.
        unsafe { std::slice::from_raw_parts(self.start, self.size) }.to_vec()
    }

    /// Fills a part of it with a value, while nothing uses it.
    pub(super) fn fill(self, at: usize, size: usize, value: u8) {
        assert!(at + size <= self.size, "the part lies within");
        // SAFETY: leaked above, and within its size; no work uses it now, as the caller sees to.
        unsafe { self.start.add(at).write_bytes(value, size) };
    }

    /// Overwrites it, while nothing uses it.
    pub(super) fn set(self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.size, "as many bytes as there are");
        // SAFETY: leaked above, as long as `bytes`; no work uses it now, as the caller sees to.
        unsafe {
            self.start
                .copy_from_nonoverlapping(bytes.as_ptr(), self.size)
        };
    }
}

/// The calls that were made, in their order.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u64>>>);

impl Log {
    pub(super) fn push(&self, value: u64) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(value);
    }

    pub(super) fn values(&self) -> Vec<u64> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Notes a value in queue order.
#[track_caller]
pub(super) fn note(queue: &Queue, log: &Log, value: u64) -> Verdict {
    let log = log.clone();
    queue.callback(move |_| log.push(value))?;
    Ok(())
}

/// Notes the code that it is called with.
#[track_caller]
pub(super) fn note_upstream(queue: &Queue, log: &Log) -> Verdict {
    let log = log.clone();
    queue.callback(move |upstream| {
        log.push(upstream.map_or_else(|code| code.0 as u32 as u64, |()| 0));
    })?;
    Ok(())
}

/// Holds the queue back until the gate opens.
#[track_caller]
pub(super) fn block(queue: &Queue, gate: &Gate) -> Verdict {
    let wait = gate.waiter();
    queue.callback(move |_| wait())?;
    Ok(())
}

/// A command that fails.
#[track_caller]
pub(super) fn fail(queue: &Queue, code: Code) -> Verdict {
    queue.host_call(move |_| Err(code))?;
    Ok(())
}

/// Takes this long, in queue order.
#[track_caller]
pub(super) fn delay(queue: &Queue, time: Duration) -> Verdict {
    queue.callback(move |_| std::thread::sleep(time))?;
    Ok(())
}

#[track_caller]
pub(super) fn fill(queue: &Queue, address: u64, size: u64, pattern: &[u8]) -> Verdict {
    // SAFETY: the range is the test's own memory, which is freed after the work.
    unsafe { queue.fill(address, size, pattern) }?;
    Ok(())
}

#[track_caller]
pub(super) fn copy(queue: &Queue, dst: u64, src: u64, size: u64, kind: CopyKind) -> Verdict {
    // SAFETY: both ranges are the test's own memory, which is freed after the work, and are apart.
    unsafe { queue.copy(dst, src, size, kind) }?;
    Ok(())
}

/// Copies within a device.
#[track_caller]
pub(super) fn within(queue: &Queue, dst: u64, src: u64, size: u64) -> Verdict {
    copy(queue, dst, src, size, CopyKind::DeviceToDevice)
}

/// Writes bytes to a device address, in queue order.
#[track_caller]
pub(super) fn write(queue: &Queue, address: u64, bytes: &[u8]) -> Verdict {
    let kept = HostBytes::new(bytes.to_vec());
    copy(
        queue,
        address,
        kept.at(0),
        bytes.len() as u64,
        CopyKind::HostToDevice,
    )
}

/// Waits, and then gives the bytes at a device address.
#[track_caller]
pub(super) fn read(queue: &Queue, address: u64, size: usize) -> Verdict<Vec<u8>> {
    let bytes = HostBytes::of(size, 0xee);
    copy(
        queue,
        bytes.at(0),
        address,
        size as u64,
        CopyKind::DeviceToHost,
    )?;
    queue.synchronize()?;
    Ok(bytes.get())
}

/// Checks that all of a range has one value.
#[track_caller]
pub(super) fn holds(queue: &Queue, address: u64, size: usize, value: u8, what: &str) -> Verdict {
    equal!(read(queue, address, size)?, vec![value; size], "{what}");
    Ok(())
}

/// Bytes that differ from their neighbours, and with the seed.
pub(super) fn pattern(size: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| rng.u8(..)).take(size).collect()
}

/// Waits until something holds; the test's limit ends it otherwise.
pub(super) fn until(mut holds: impl FnMut() -> Verdict<bool>) -> Verdict {
    while !holds()? {
        std::thread::sleep(Duration::from_micros(300));
    }
    Ok(())
}

/// The queue's first failure is this one, and the queue takes work again.
#[track_caller]
pub(super) fn fails_once(queue: &Queue, code: Code, what: &str) -> Verdict {
    let failed = queue.synchronize();
    answers!(failed, code, "{what}");
    check!(
        failed.is_err_and(|error| error.is_outcome()),
        "R19: {what}: the failure of work is an outcome, and none of the call"
    );
    answers!(
        queue.synchronize(),
        Code::OK,
        "{what}, once it was reported"
    );
    Ok(())
}

/// Runs threads, and gives the first failure of any.
pub(super) fn threads(count: usize, work: impl Fn(usize) -> Verdict + Sync) -> Verdict {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|i| scope.spawn(move || work(i))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Failure::new("a thread of the test panicked")))
        })
    })
}
