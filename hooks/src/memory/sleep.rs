//! Pools that sleep: what is in use of a pool moves to the host, its memory goes back to the device, and
//! later comes back to the same addresses with the same contents.
//!
//! Whatever fails, at whichever call of the driver, leaves a pool asleep or awake. It must never give
//! memory back that submitted work may still use: all streams of all devices are waited for.

use std::sync::atomic::Ordering;

use outrigger_allocator::{PoolAllocError, PoolError};
use outrigger_device::{Code, CopyKind, Queue};

use super::Fence;
use crate::graph::{Pool, PoolRef};
use crate::{Device, Error, Result, runtime};

/// Whether a pool sleeps.
#[derive(Debug)]
pub(crate) enum Sleep {
    Awake,
    /// A thread puts it to sleep, or wakes it; bytes that the device had got back before.
    Changing {
        bytes: u64,
    },
    Asleep(Contents),
}

/// What a pool that sleeps has held.
#[derive(Debug)]
pub(crate) struct Contents {
    ranges: Vec<(u64, Box<[u8]>)>,
    /// Bytes that the device has got back.
    bytes: u64,
}

impl Pool {
    /// Puts the pool to sleep, and gives the bytes that the device has got back: what is in use of it
    /// moves to memory of the host. Waits for all work of all devices; nobody may submit work on the
    /// pool's memory during the call, be it by replays. Then, until [`wake`](Self::wake), allocations from the
    /// pool fail, and so do replays of graphs, copies and operators that use its memory; frees go on. A pool that
    /// sleeps already gives 0.
    ///
    /// # Errors
    /// `UNSUPPORTED` on a driver without virtual memory; `CAPTURE` while a graph is recorded into the
    /// pool; `BUSY` while another thread allocates from it, puts it to sleep or wakes it;
    /// `OUT_OF_HOST_MEMORY`; what the driver reports. Then the pool is as it was.
    pub fn sleep(&self) -> Result<u64> {
        self.memory().sleep()
    }

    /// Brings the pool's memory back to its addresses, with what it has held. A pool that is awake stays
    /// so.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, after caches were given back and observers of pressure were asked; what the driver
    /// reports. Then the pool still sleeps, and nothing of what it has held is lost. `BUSY` while another
    /// thread puts it to sleep or wakes it.
    pub fn wake(&self) -> Result<()> {
        self.memory().wake()
    }

    /// Bytes that the device has got back while the pool sleeps; `None` if it is awake. A pool that falls asleep or
    /// wakes counts as asleep.
    pub fn asleep(&self) -> Option<u64> {
        self.memory().asleep()
    }
}

impl PoolRef {
    /// See [`Pool::sleep`].
    fn sleep(&self) -> Result<u64> {
        {
            let mut state = self.sleep_state().lock();
            match *state {
                Sleep::Awake => *state = Sleep::Changing { bytes: 0 },
                Sleep::Changing { .. } => return Err(self.changing()),
                Sleep::Asleep(_) => return Ok(0),
            }
        }
        // Without the lock: all work is waited for.
        let paged_out = self.page_out();
        let (state, outcome) = match paged_out {
            Ok(contents) => {
                let bytes = contents.bytes;
                (Sleep::Asleep(contents), Ok(bytes))
            }
            Err(error) => (Sleep::Awake, Err(error)),
        };
        *self.sleep_state().lock() = state;
        outcome
    }

    /// Moves what is in use of the pool to the host.
    fn page_out(&self) -> Result<Contents> {
        let device = self.device();
        if device.captures().of_pool(self.pool()).is_some() {
            return Err(Error::new(
                Code::CAPTURE,
                format!("pool {}: a graph is being recorded into it", self.pool()),
            ));
        }
        let used = device.allocator().pool_suspend(self.pool());
        let used = used.map_err(refused)?;
        // From here on whoever submits looks whether what they use is there.
        let asleep = &device.allocator().backend().asleep;
        asleep.fetch_add(1, Ordering::SeqCst);
        let saved = wait_for_all().and_then(|()| save(device, &used));
        let paged_out = saved.and_then(|ranges| {
            let bytes = device.allocator().pool_page_out(self.pool());
            let bytes = bytes.map_err(refused)?;
            Ok(Contents { ranges, bytes })
        });
        if paged_out.is_err() {
            asleep.fetch_sub(1, Ordering::SeqCst);
            let resumed = device.allocator().pool_resume(self.pool());
            resumed.map_err(refused)?;
        }
        paged_out
    }

    /// See [`Pool::wake`].
    fn wake(&self) -> Result<()> {
        let saved = {
            let mut state = self.sleep_state().lock();
            let bytes = match &*state {
                Sleep::Awake => return Ok(()),
                Sleep::Changing { .. } => return Err(self.changing()),
                Sleep::Asleep(contents) => contents.bytes,
            };
            match std::mem::replace(&mut *state, Sleep::Changing { bytes }) {
                Sleep::Asleep(contents) => contents,
                Sleep::Awake | Sleep::Changing { .. } => unreachable!("looked at just now"),
            }
        };
        // Without the lock: observers may be asked to release memory.
        let outcome = self.page_in(&saved);
        *self.sleep_state().lock() = match outcome {
            Ok(()) => Sleep::Awake,
            Err(_) => Sleep::Asleep(saved),
        };
        outcome
    }

    /// Brings the pool's memory back, with what it has held.
    fn page_in(&self, saved: &Contents) -> Result<()> {
        let (device, pool) = (self.device(), self.pool());
        device
            .allocator()
            .pool_page_in(pool)
            .map_err(|error| match error {
                PoolAllocError::Alloc(error) => device.alloc_failed(error),
                PoolAllocError::Pool(error) => refused(error),
            })?;
        if let Err(failure) = restore(device, &saved.ranges) {
            // What was restored so far is still on the host. Memory that copies may still write to stays
            // mapped, until the pool is woken after all.
            if !failure.running {
                device.allocator().pool_page_out(pool).map_err(refused)?;
            }
            return Err(failure.error);
        }
        device.allocator().pool_resume(pool).map_err(refused)?;
        let asleep = &device.allocator().backend().asleep;
        asleep.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    #[cold]
    fn changing(&self) -> Error {
        Error::new(
            Code::BUSY,
            format!(
                "pool {}: another thread puts it to sleep or wakes it",
                self.pool()
            ),
        )
    }

    /// See [`Pool::asleep`].
    pub(crate) fn asleep(&self) -> Option<u64> {
        match &*self.sleep_state().lock() {
            Sleep::Awake => None,
            Sleep::Changing { bytes } => Some(*bytes),
            Sleep::Asleep(contents) => Some(contents.bytes),
        }
    }

    /// The end of a pool: what somebody still uses or keeps of it must be there. What cannot be had goes on to be
    /// refused.
    pub(crate) fn end_sleep(&self) {
        let state = std::mem::replace(&mut *self.sleep_state().lock(), Sleep::Awake);
        let Sleep::Asleep(contents) = state else {
            return;
        };
        let allocator = self.device().allocator();
        if !allocator.pool_is_used(self.pool()) {
            allocator.backend().asleep.fetch_sub(1, Ordering::SeqCst);
        } else if let Err(error) = self.page_in(&contents) {
            tracing::error!(target: "outrigger::memory", %error, pool = %self.pool(), "memory of a pool that slept is lost");
        }
    }
}

impl Device {
    /// Whether any pool of the device sleeps: asked before addresses are looked up.
    #[inline]
    pub(crate) fn any_asleep(&self) -> bool {
        self.allocator().backend().asleep.load(Ordering::Relaxed) != 0
    }

    /// Refuses memory of a pool that sleeps. Only worth asking where some pool does.
    ///
    /// # Errors
    /// `BUSY` that names the pool.
    #[cold]
    pub(crate) fn check_awake(&self, address: u64) -> Result<()> {
        match self.allocator().lookup(address) {
            Some(block) if block.asleep => {
                let pool = block.pool.map_or(0, |pool| pool.get());
                Err(Error::new(
                    Code::BUSY,
                    format!(
                        "the memory at {address:#x} on device {} is of pool {pool}, which sleeps: wake it first",
                        self.index()
                    ),
                ))
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn refused(error: PoolError) -> Error {
    let code = match error {
        PoolError::NotMapped { .. } => Code::UNSUPPORTED,
        PoolError::Busy { .. } | PoolError::Asleep { .. } | PoolError::Awake { .. } => Code::BUSY,
        PoolError::Unknown { .. } | PoolError::Released { .. } => Code::INTERNAL,
    };
    Error::new(code, error.to_string())
}

/// Waits for what all streams of all devices have been given. Failures of that work are for those who wait
/// for its streams.
fn wait_for_all() -> Result<()> {
    for device in runtime()?.devices() {
        for fence in device.timelines().fences()? {
            Fence::Event(fence).wait()?;
        }
    }
    Ok(())
}

/// Copies ranges to the host.
fn save(device: &Device, used: &[(u64, u64)]) -> Result<Vec<(u64, Box<[u8]>)>> {
    let mut ranges = Vec::new();
    for &(address, size) in used {
        let mut bytes = Vec::new();
        let room = usize::try_from(size).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(room).map_err(|_| {
            let text =
                format!("{size} bytes of the host for a pool that is put to sleep cannot be had");
            Error::new(Code::OUT_OF_HOST_MEMORY, text)
        })?;
        bytes.resize(room, 0);
        ranges.push((address, bytes.into_boxed_slice()));
    }
    let copied = copy(device, |queue| {
        for (address, bytes) in &mut ranges {
            let host = bytes.as_mut_ptr() as u64;
            // SAFETY: the range is mapped, and no submitted work uses it; the buffer has as many bytes, is
            // nobody else's, and is kept until the copy has finished.
            unsafe { queue.copy(host, *address, bytes.len() as u64, CopyKind::DeviceToHost) }?;
        }
        Ok(())
    });
    match copied {
        Ok(()) => Ok(ranges),
        Err(failure) => {
            if failure.running {
                // Better lost than written to when it is another's.
                std::mem::forget(ranges);
            }
            Err(failure.error)
        }
    }
}

/// Copies ranges to the device.
fn restore(device: &Device, ranges: &[(u64, Box<[u8]>)]) -> Result<(), Failure> {
    copy(device, |queue| {
        for (address, bytes) in ranges {
            let host = bytes.as_ptr() as u64;
            // SAFETY: the range is mapped anew, and nobody uses it yet; the buffer is kept until the copy
            // has finished: while it may run, the pool sleeps on with what it holds.
            unsafe { queue.copy(*address, host, bytes.len() as u64, CopyKind::HostToDevice) }?;
        }
        Ok(())
    })
}

/// Why copies failed.
struct Failure {
    error: Error,
    /// Some of them may still be running: the driver could not be waited for.
    running: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let running = false;
        Self { error, running }
    }
}

/// Submits copies to a queue of their own, since streams of the host may capture or have failed, and waits.
fn copy(
    device: &Device,
    submit: impl FnOnce(&Queue) -> outrigger_device::Result<()>,
) -> Result<(), Failure> {
    let queue = device.driver().queue_create(device.ordinal(), 0);
    let queue = queue.map_err(Error::from)?;
    let submitted = submit(&queue);
    // Also after a failure: what was submitted before uses the buffers.
    let finished = queue.synchronize();
    let error = match submitted.and(finished) {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    // The wait may have failed for the work, which is over then, or by itself.
    let over = queue.synchronize().is_ok() || matches!(queue.query(), Ok(true));
    Err(Failure {
        error: error.into(),
        running: !over,
    })
}
