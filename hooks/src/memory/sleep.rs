//! Pools that sleep: what is in use of a pool moves to the host, its memory goes back to the device, and
//! later comes back to the same addresses with the same contents.
//!
//! Whatever fails, at whichever call of the driver, leaves a pool asleep or awake. It must never give
//! memory back that submitted work may still use: all streams of all devices are waited for.

use outrigger_allocator::{PoolAllocError, PoolId};
use outrigger_device::{Code, CopyKind, Queue};

use crate::memory::backend::Fence;
use crate::memory::pool_refused;
use crate::memory::sleeping::{Contents, Sleep};
use crate::{Device, Error, Pool, Result, timelines};

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
        Sleeper::of(self).sleep()
    }

    /// Brings the pool's memory back to its addresses, with what it has held. A pool that is awake stays
    /// so.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, after caches were given back and observers of pressure were asked; what the driver
    /// reports. Then the pool still sleeps, and nothing of what it has held is lost. `BUSY` while another
    /// thread puts it to sleep or wakes it.
    pub fn wake(&self) -> Result<()> {
        Sleeper::of(self).wake()
    }

    /// Bytes that the device has got back while the pool sleeps; `None` if it is awake. A pool that falls asleep or
    /// wakes counts as asleep.
    pub fn asleep(&self) -> Option<u64> {
        self.device().sleeping().bytes_of(self.memory().pool())
    }
}

/// A pool that is put to sleep or woken.
struct Sleeper<'a> {
    device: &'a Device,
    pool: PoolId,
}

impl Sleeper<'static> {
    fn of(pool: &Pool) -> Self {
        Self {
            device: pool.device(),
            pool: pool.memory().pool(),
        }
    }
}

impl Sleeper<'_> {
    /// See [`Pool::sleep`].
    fn sleep(&self) -> Result<u64> {
        let sleeping = self.device.sleeping();
        let begun = sleeping.change(|pools| match pools.get(&self.pool) {
            None => {
                pools.insert(self.pool, Sleep::Changing { bytes: 0 });
                Ok(true)
            }
            Some(Sleep::Changing { .. }) => Err(self.changing()),
            Some(Sleep::Asleep(_)) => Ok(false),
        });
        if !begun? {
            return Ok(0);
        }
        // Without the lock: all work is waited for. From here on whoever submits looks whether what they use is there.
        match self.page_out() {
            Ok(contents) => {
                let bytes = contents.bytes;
                sleeping.change(|pools| pools.insert(self.pool, Sleep::Asleep(contents)));
                Ok(bytes)
            }
            Err(error) => {
                sleeping.change(|pools| pools.remove(&self.pool));
                Err(error)
            }
        }
    }

    /// Moves what is in use of the pool to the host.
    fn page_out(&self) -> Result<Contents> {
        let allocator = self.device.allocator();
        if self.device.captures().of_pool(self.pool).is_some() {
            return Err(Error::new(
                Code::CAPTURE,
                format!("pool {}: a graph is being recorded into it", self.pool),
            ));
        }
        let used = allocator.pool_suspend(self.pool).map_err(pool_refused)?;
        let saved = wait_for_all().and_then(|()| save(self.device, &used));
        let paged_out = saved.and_then(|ranges| {
            let bytes = allocator.pool_page_out(self.pool).map_err(pool_refused)?;
            Ok(Contents { ranges, bytes })
        });
        if paged_out.is_err() {
            allocator.pool_resume(self.pool).map_err(pool_refused)?;
        }
        paged_out
    }

    /// See [`Pool::wake`].
    fn wake(&self) -> Result<()> {
        let sleeping = self.device.sleeping();
        let saved = sleeping.change(|pools| {
            let Some(state) = pools.get_mut(&self.pool) else {
                return Ok(None);
            };
            let bytes = match state {
                Sleep::Changing { .. } => return Err(self.changing()),
                Sleep::Asleep(contents) => contents.bytes,
            };
            match std::mem::replace(state, Sleep::Changing { bytes }) {
                Sleep::Asleep(contents) => Ok(Some(contents)),
                Sleep::Changing { .. } => unreachable!("looked at just now"),
            }
        });
        let Some(saved) = saved? else {
            return Ok(());
        };
        // Without the lock: observers may be asked to release memory.
        let outcome = self.page_in(&saved);
        sleeping.change(|pools| match outcome {
            Ok(()) => pools.remove(&self.pool),
            Err(_) => pools.insert(self.pool, Sleep::Asleep(saved)),
        });
        outcome
    }

    /// Brings the pool's memory back, with what it has held.
    fn page_in(&self, saved: &Contents) -> Result<()> {
        let (device, pool) = (self.device, self.pool);
        device
            .allocator()
            .pool_page_in(pool)
            .map_err(|error| match error {
                PoolAllocError::Alloc(error) => device.alloc_failed(error),
                PoolAllocError::Pool(error) => pool_refused(error),
            })?;
        if let Err(failure) = restore(device, &saved.ranges) {
            // What was restored so far is still on the host. Memory that copies may still write to stays
            // mapped, until the pool is woken after all.
            if !failure.running {
                device
                    .allocator()
                    .pool_page_out(pool)
                    .map_err(pool_refused)?;
            }
            return Err(failure.error);
        }
        device.allocator().pool_resume(pool).map_err(pool_refused)
    }

    #[cold]
    fn changing(&self) -> Error {
        Error::new(
            Code::BUSY,
            format!(
                "pool {}: another thread puts it to sleep or wakes it",
                self.pool
            ),
        )
    }
}

/// The end of a pool: what somebody still uses or keeps of it must be there. What cannot be had goes on to be refused.
pub(crate) fn end_sleep(device: &Device, pool: PoolId) {
    let sleeper = Sleeper { device, pool };
    if device.sleeping().bytes_of(pool).is_none() {
        return;
    }
    if !device.allocator().pool_is_used(pool) {
        device.sleeping().change(|pools| pools.remove(&pool));
    } else if let Err(error) = sleeper.wake() {
        tracing::error!(target: "outrigger::memory", %error, %pool, "memory of a pool that slept is lost");
    }
}

/// Waits for what all streams of all devices have been given. Failures of that work are for those who wait
/// for its streams.
fn wait_for_all() -> Result<()> {
    for fence in timelines::all_fences()? {
        Fence::Event(fence).wait()?;
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
