//! The memory API of the C++ bridge: pools, labels, limits, statistics, snapshots and traces.
//!
//! Objects that stand for something of one thread end it when they are destroyed there; it must never
//! end what another thread has begun.

use std::path::Path;
use std::thread::{self, ThreadId};

use outrigger_hooks as hooks;

use crate::bridge::{Buffer, Guarded, MemoryUse, Result, Stream};

/// A pool, whose handle is given up with its object.
pub(crate) struct Pool(Guarded<hooks::Ref<hooks::Pool>>);

/// The use of a pool by a thread; C++ may destroy it on another one.
pub(crate) struct PoolUse {
    pool: u64,
    thread: Guarded<ThreadId>,
}

/// A label of a thread; C++ may destroy it on another one.
pub(crate) struct Label(Guarded<ThreadId>);

pub(crate) fn create_pool(device: u32) -> Result<Box<Pool>> {
    let pool = hooks::create_pool(device)?;
    Ok(Box::new(Pool(Guarded::new(pool))))
}

impl Pool {
    pub(crate) fn allocate(&self, size: u64, stream: &Stream) -> Result<Box<Buffer>> {
        let pool = self.0.get()?;
        let device = pool.device();
        let address = device.alloc_from(pool, size, stream.id())?;
        Ok(Box::new(Buffer {
            device: Guarded::new(device),
            address,
            size,
        }))
    }

    pub(crate) fn memory_use(&self) -> Result<MemoryUse> {
        let stats = self.0.get()?.stats();
        Ok(MemoryUse {
            allocated: stats.allocated,
            reserved: stats.reserved,
            peak_allocated: stats.allocated_peak,
        })
    }

    pub(crate) fn sleep(&self) -> Result<u64> {
        self.0.get()?.sleep()
    }

    pub(crate) fn wake(&self) -> Result<()> {
        self.0.get()?.wake()
    }

    pub(crate) fn use_on_this_thread(&self) -> Result<Box<PoolUse>> {
        let pool = self.0.get()?.id();
        hooks::begin_pool_use(pool, 0)?;
        Ok(Box::new(PoolUse {
            pool,
            thread: Guarded::new(thread::current().id()),
        }))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Ok(pool) = self.0.get() {
            let _ = hooks::destroy_pool(pool.id());
        }
    }
}

impl Drop for PoolUse {
    fn drop(&mut self) {
        // On another thread, or out of order, the use lasts as long as its thread.
        if is_this_thread(&self.thread) {
            let _ = hooks::end_pool_use(self.pool);
        }
    }
}

/// Whether it is the calling thread; never in a forked child.
fn is_this_thread(thread: &Guarded<ThreadId>) -> bool {
    thread.get().is_ok_and(|id| *id == thread::current().id())
}

pub(crate) fn label_on_this_thread(name: &str) -> Result<Box<Label>> {
    hooks::refuse_fork()?;
    hooks::push_label(name);
    Ok(Box::new(Label(Guarded::new(thread::current().id()))))
}

impl Drop for Label {
    fn drop(&mut self) {
        // On another thread the label lasts as long as its thread.
        if is_this_thread(&self.0) {
            let _ = hooks::pop_label();
        }
    }
}

fn device(index: u32) -> Result<&'static hooks::Device> {
    hooks::runtime()?.device(index)
}

pub(crate) fn empty_cache(index: u32) -> Result<u64> {
    Ok(device(index)?.empty_cache())
}

pub(crate) fn set_memory_limit(index: u32, bytes: u64) -> Result<()> {
    device(index)?.set_memory_limit(bytes);
    Ok(())
}

pub(crate) fn memory_stats(index: u32) -> Result<String> {
    Ok(device(index)?.memory_stats_json())
}

pub(crate) fn memory_snapshot(index: u32) -> Result<String> {
    hooks::snapshot_json(Some(index))
}

pub(crate) fn record_memory_history(index: u32, entries: u64) -> Result<()> {
    let device = device(index)?;
    if entries == 0 {
        device.stop_memory_history();
    } else {
        device.start_memory_history(hooks::HistoryOptions {
            entries: usize::try_from(entries).unwrap_or(usize::MAX),
            ..hooks::HistoryOptions::default()
        });
    }
    Ok(())
}

pub(crate) fn start_memory_trace(index: u32, path: &str) -> Result<()> {
    device(index)?.start_memory_trace(Path::new(path))
}

pub(crate) fn stop_memory_trace(index: u32) -> Result<()> {
    device(index)?.stop_memory_trace()
}
