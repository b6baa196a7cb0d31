//! Pools that sleep. The memory in use of a pool is copied to the host, and the device gets the pool's memory back.
//! Later the memory returns to the same addresses with the same contents.
//!
//! If a call fails, of the driver or of the allocator, the pool is left either asleep or awake. Memory goes back only
//! after all streams of all devices were waited for, because submitted work may use it.

use outrigger_allocator::{PoolAllocError, PoolId};
use outrigger_device::{Code, CopyKind, Queue};

use crate::memory::pool_refused;
use crate::memory::sleeping::{Contents, Sleep};
use crate::{Device, Error, Pool, Result, timelines};

impl Pool {
    /// Puts the pool to sleep: copies its memory in use to the host, and gives its memory back to the device. Returns
    /// the number of bytes that the device got back; 0 if the pool sleeps already. Waits for all work of all devices.
    /// Nobody may submit work on the pool's memory during the call, nor instantiate or replay a graph that uses it.
    /// Afterwards, until [`wake`](Self::wake), allocations from the pool fail, and so do copies, operators and replays
    /// that use its memory, and graphs of the driver over it are not made. Its memory can still be freed.
    ///
    /// # Errors
    /// `UNSUPPORTED` on a driver without virtual memory; `CAPTURE` while a capture uses the pool; `BUSY` while another
    /// thread allocates from it, puts it to sleep or wakes it; `OUT_OF_HOST_MEMORY`; what the driver reports. In all of
    /// these cases the pool is as it was.
    pub fn sleep(&self) -> Result<u64> {
        Sleeper::of(self).sleep()
    }

    /// Brings the pool's memory back to its addresses, with its contents. A pool that is awake stays awake.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, after caches were given back and observers of pressure were asked; what the driver reports.
    /// Then the pool still sleeps, and its contents are kept. `BUSY` while another thread puts it to sleep or wakes it.
    pub fn wake(&self) -> Result<()> {
        Sleeper::of(self).wake()
    }

    /// The bytes that the device got back while the pool sleeps; `None` if the pool is awake. A pool that is falling
    /// asleep or waking counts as asleep.
    pub fn asleep(&self) -> Option<u64> {
        self.device().sleeping().bytes_of(self.memory().pool())
    }
}

/// A pool that is being put to sleep or woken.
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
    /// The work of [`Pool::sleep`].
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
        // The pool's state is not locked here, because all work is waited for. From here on each submission checks the
        // pool's memory.
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

    /// Copies the pool's memory in use to the host, and gives the pool's memory back to the device.
    fn page_out(&self) -> Result<Contents> {
        let allocator = self.device.allocator();
        if self.device.captures().of_pool(self.pool).is_some() {
            return Err(Error::new(
                Code::CAPTURE,
                format!("pool {}: a graph is being recorded into it", self.pool),
            ));
        }
        let used = allocator.pool_suspend(self.pool).map_err(pool_refused)?;
        let saved = timelines::wait_for_all().and_then(|()| save(self.device, &used));
        let paged_out = saved.and_then(|ranges| {
            let bytes = allocator.pool_page_out(self.pool).map_err(pool_refused)?;
            Ok(Contents { ranges, bytes })
        });
        if paged_out.is_err() {
            allocator.pool_resume(self.pool).map_err(pool_refused)?;
        }
        paged_out
    }

    /// The work of [`Pool::wake`].
    fn wake(&self) -> Result<()> {
        let sleeping = self.device.sleeping();
        let saved = sleeping.change(|pools| {
            let (bytes, saved) = match pools.remove(&self.pool) {
                None => return Ok(None),
                Some(Sleep::Changing { bytes }) => (bytes, Err(self.changing())),
                Some(Sleep::Asleep(contents)) => (contents.bytes, Ok(Some(contents))),
            };
            pools.insert(self.pool, Sleep::Changing { bytes });
            saved
        });
        let Some(saved) = saved? else {
            return Ok(());
        };
        // The pool's state is not locked here: observers may be asked to release memory.
        let outcome = self.page_in(&saved);
        sleeping.change(|pools| match outcome {
            Ok(()) => pools.remove(&self.pool),
            Err(_) => pools.insert(self.pool, Sleep::Asleep(saved)),
        });
        outcome
    }

    /// Takes the pool's memory from the device again, and copies its contents back.
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
            // All contents are still on the host. If copies may still be writing, the memory stays mapped until the
            // pool is woken again.
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

/// Wakes a pool that ends while its memory is still in use or held. If that fails, uses of the memory stay refused.
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

/// Copies ranges of device memory to the host.
fn save(device: &Device, used: &[(u64, u64)]) -> Result<Vec<(u64, Box<[u8]>)>> {
    let mut ranges = Vec::new();
    for &(address, size) in used {
        let mut bytes = Vec::new();
        let room = usize::try_from(size).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(room).map_err(|_| {
            let text =
                format!("the host has no {size} bytes of memory for a pool that is put to sleep");
            Error::new(Code::OUT_OF_HOST_MEMORY, text)
        })?;
        bytes.resize(room, 0);
        ranges.push((address, bytes.into_boxed_slice()));
    }
    let copied = copy(device, |queue| {
        for (address, bytes) in &mut ranges {
            let host = bytes.as_mut_ptr() as u64;
            // SAFETY: the range is mapped, and no submitted work uses it. The buffer has as many bytes, and is kept or
            // leaked until the copy has finished (R26).
            unsafe { queue.copy(host, *address, bytes.len() as u64, CopyKind::DeviceToHost) }?;
        }
        Ok(())
    });
    match copied {
        Ok(()) => Ok(ranges),
        Err(failure) => {
            if failure.running {
                // A copy may still write to the buffers, so they are leaked: nobody else may get that memory.
                std::mem::forget(ranges);
            }
            Err(failure.error)
        }
    }
}

/// Copies ranges back to the device.
fn restore(device: &Device, ranges: &[(u64, Box<[u8]>)]) -> Result<(), Failure> {
    copy(device, |queue| {
        for (address, bytes) in ranges {
            let host = bytes.as_ptr() as u64;
            // SAFETY: the range is mapped again, and nothing uses it yet. The buffer is kept until the copy has
            // finished (R26): if the copy may still run, the pool goes on to sleep, and keeps its contents.
            unsafe { queue.copy(*address, host, bytes.len() as u64, CopyKind::HostToDevice) }?;
        }
        Ok(())
    })
}

/// A failure of the copies that save or restore a pool.
struct Failure {
    error: Error,
    /// Whether copies may still be running, because waiting for the driver failed.
    running: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let running = false;
        Self { error, running }
    }
}

/// Submits copies and waits for them. They have a queue of their own, because streams of the host may capture or have
/// failed.
fn copy(
    device: &Device,
    submit: impl FnOnce(&Queue) -> outrigger_device::Result<()>,
) -> Result<(), Failure> {
    let queue = device.driver().queue_create(device.ordinal(), 0);
    let queue = queue.map_err(Error::from)?;
    let submitted = submit(&queue);
    // The driver is waited for also after a failure, because the copies that were submitted before it use the buffers.
    let (finished, over) = queue.finish();
    submitted.and(finished).map_err(|error| Failure {
        error: error.into(),
        running: !over,
    })
}
