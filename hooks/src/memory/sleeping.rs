//! Which pools of a device sleep, and what they have held. How a pool falls asleep and wakes is `sleep`'s.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_allocator::PoolId;
use outrigger_locks::{Mutex, Rank};

/// The pools of a device that are not awake.
pub(crate) struct Sleeping {
    /// How many: asked on hot paths.
    count: AtomicUsize,
    pools: Mutex<HashMap<PoolId, Sleep>>,
}

/// How far a pool is that is not awake.
#[derive(Debug)]
pub(crate) enum Sleep {
    /// A thread puts it to sleep, or wakes it; bytes that the device had got back before.
    Changing { bytes: u64 },
    /// It sleeps.
    Asleep(Contents),
}

/// What a pool that sleeps has held.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) ranges: Vec<(u64, Box<[u8]>)>,
    /// Bytes that the device has got back.
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
    /// Whether there are any: asked before addresses are looked up.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Bytes that the device has got back of a pool; `None` if it is awake.
    pub(crate) fn bytes_of(&self, pool: PoolId) -> Option<u64> {
        match self.pools.lock().get(&pool)? {
            Sleep::Changing { bytes } => Some(*bytes),
            Sleep::Asleep(contents) => Some(contents.bytes),
        }
    }

    /// Changes what is known of the pools.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut HashMap<PoolId, Sleep>) -> R) -> R {
        let mut pools = self.pools.lock();
        let result = change(&mut pools);
        self.count.store(pools.len(), Ordering::SeqCst);
        result
    }
}
