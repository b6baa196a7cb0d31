//! The captures in progress on a device. A free of a capture's memory looks here, and so does a wait for the whole
//! device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use outrigger_locks::{Mutex, Rank};

use super::{Capture, CaptureMode, error};
use crate::Result;

/// The captures in progress on a device.
#[derive(Debug)]
pub struct Captures {
    count: AtomicU64,
    list: Mutex<Vec<Arc<Capture>>>,
}

impl Default for Captures {
    fn default() -> Self {
        Self {
            count: AtomicU64::new(0),
            list: Mutex::new(Rank::Captures, Vec::new()),
        }
    }
}

impl Captures {
    /// Whether there are any captures. Cheap: asked on hot paths.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    pub(super) fn add(&self, capture: &Arc<Capture>) {
        let mut list = self.list.lock();
        list.push(Arc::clone(capture));
        self.count.store(list.len() as u64, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, capture: &Arc<Capture>) {
        let mut list = self.list.lock();
        list.retain(|one| !Arc::ptr_eq(one, capture));
        self.count.store(list.len() as u64, Ordering::Relaxed);
    }

    /// The capture that takes its memory from a pool.
    pub fn of_pool(&self, pool: outrigger_allocator::PoolId) -> Option<Arc<Capture>> {
        let list = self.list.lock();
        list.iter().find(|one| one.pool().pool() == pool).cloned()
    }

    /// Refuses to wait for the whole device on a thread that records, unless its capture is relaxed.
    pub fn refuse_wait(&self, what: &str) -> Result<()> {
        let list = self.list.lock().clone();
        let here = thread::current().id();
        for capture in list.iter().filter(|one| one.mode != CaptureMode::Relaxed) {
            let mut state = capture.state.lock();
            if state.threads.contains(&here) {
                let error = error(format!(
                    "{what} on a thread that records a capture: recorded work does not run, so it \
                     cannot be waited for; move the call out of the capture, or capture in relaxed mode"
                ));
                state.failed.get_or_insert_with(|| error.clone());
                return Err(error);
            }
        }
        Ok(())
    }
}
