//! The pools of a device that sleep, and their contents. `sleep` puts pools to sleep and wakes them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_allocator::PoolId;
use outrigger_locks::{Mutex, Rank};

/// The pools of a device that are not awake.
pub(crate) struct Sleeping {
    /// The number of entries. Asked on hot paths.
    count: AtomicUsize,
    pools: Mutex<HashMap<PoolId, Sleep>>,
}

/// The state of a pool that is not awake.
#[derive(Debug)]
pub(crate) enum Sleep {
    /// A thread is putting the pool to sleep or waking it. `bytes` is what the device had got back before.
    Changing { bytes: u64 },
    /// The pool sleeps.
    Asleep(Contents),
}

/// The contents of a pool that sleeps.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) ranges: Vec<(u64, Box<[u8]>)>,
    /// The bytes that the device got back.
    pub(crate) bytes: u64,
}

impl Default for Sleeping {
    fn default() -> Self {
        Self {
            count: AtomicUsize::new(0),
            pools: Mutex::new(Rank::PoolSleep, HashMap::new()),
        }
    }
}

impl Sleeping {
    /// Whether any pool sleeps. Asked before addresses are looked up.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// The bytes of a pool that the device got back; `None` if the pool is awake.
    pub(crate) fn bytes_of(&self, pool: PoolId) -> Option<u64> {
        match self.pools.lock().get(&pool)? {
            Sleep::Changing { bytes } => Some(*bytes),
            Sleep::Asleep(contents) => Some(contents.bytes),
        }
    }

    /// Changes the states of pools.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut HashMap<PoolId, Sleep>) -> R) -> R {
        let mut pools = self.pools.lock();
        let result = change(&mut pools);
        self.count.store(pools.len(), Ordering::SeqCst);
        result
    }
}
