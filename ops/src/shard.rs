//! Numbers of threads, for tables of which each thread has its own.

use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_locks::{Mutex, Rank};

/// The most threads that have a number at a time.
pub const SHARDS: usize = 64;

/// Numbers of threads that have ended.
static FREE: Mutex<Vec<usize>> = Mutex::new(Rank::Shards, Vec::new());

/// The number of a thread, until it ends.
struct Own(Option<usize>);

impl Own {
    fn take() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = FREE.lock().pop();
        let number = number.unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        Self(Some(number).filter(|&number| number < SHARDS))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        FREE.lock().extend(self.0);
    }
}

/// The number of the calling thread, less than [`SHARDS`], which no other thread has meanwhile. `None` if as many
/// threads have one, or at the end of the thread. What one thread did under a number happened before what the next
/// thread does under it.
#[inline]
pub fn shard() -> Option<usize> {
    thread_local! {
        static OWN: Own = Own::take();
    }
    OWN.try_with(|own| own.0).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_threads_have_one_number_and_numbers_come_back() {
        let mut seen = std::collections::HashSet::new();
        for _ in 0..40 {
            let barrier = std::sync::Barrier::new(8);
            let one = || {
                let number = shard();
                barrier.wait();
                number
            };
            let numbers: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
                threads.into_iter().map(|one| one.join().unwrap()).collect()
            });
            let mut different: Vec<_> = numbers.iter().flatten().collect();
            different.sort();
            different.dedup();
            assert_eq!(different.len(), 8, "{numbers:?}");
            seen.extend(numbers);
        }
        assert!(
            seen.len() < SHARDS,
            "numbers of threads that have ended are used again"
        );
    }
}
