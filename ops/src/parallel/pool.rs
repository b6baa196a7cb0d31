//! The executor of this crate, over a rayon pool. Threads claim parts from a counter.
//!
//! Helpers are asked, but not waited for: a helper that wakes late finds nothing to claim. A thread borrows the body
//! only while it holds a claimed part, and the caller leaves after all parts are done.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};

/// Parts for each thread: enough to even out uneven cores, few enough to keep claims cheap.
const PARTS_PER_THREAD: i64 = 4;

/// The number of times that a caller looks before it sleeps while helpers finish their last parts.
const SPINS: u32 = 2_000;

struct Job {
    body: *const (dyn Fn(i64, i64) + Sync),
    begin: i64,
    end: i64,
    part: i64,
    parts: i64,
    next: AtomicI64,
    left: AtomicI64,
    done: Mutex<()>,
    finished: Condvar,
}

// SAFETY: all fields but `body` are `Sync`. `body` points to a `Sync` closure. Only the holder of a claimed part
// follows it, before that part is counted as done, and `run` keeps the closure alive until all parts are done.
unsafe impl Send for Job {}
// SAFETY: the reasons for `Send`: `body` is `Sync`, and alive while anybody follows it.
unsafe impl Sync for Job {}

impl Job {
    /// Claims and runs parts until none is left.
    fn work(&self) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.parts {
                return;
            }
            let begin = self.begin + part * self.part;
            let end = self.end.min(begin + self.part);
            // SAFETY: this part is claimed and not done yet, so `run` has not returned.
            let body = unsafe { &*self.body };
            let _done = Done(self);
            body(begin, end);
        }
    }
}

/// Counts a part as done, also if its body unwinds. Otherwise the caller would wait forever.
struct Done<'a>(&'a Job);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        if self.0.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _guard = self.0.done.lock();
            self.0.finished.notify_all();
        }
    }
}

/// Waits for all parts, also if the caller's own part unwinds, because helpers still borrow the body. A caller that
/// unwinds claims the parts that nobody has begun, so that nobody begins them.
struct Wait<'a>(&'a Job);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            while self.0.next.fetch_add(1, Ordering::Relaxed) < self.0.parts {
                drop(Done(self.0));
            }
        }
        for _ in 0..SPINS {
            if self.0.left.load(Ordering::Acquire) == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.0.done.lock();
        while self.0.left.load(Ordering::Acquire) != 0 {
            self.0.finished.wait(&mut guard);
        }
    }
}

/// The helpers: one fewer than the cores, because the caller works too. `None` if threads cannot be made.
fn helpers() -> Option<&'static rayon::ThreadPool> {
    static POOL: OnceLock<Option<rayon::ThreadPool>> = OnceLock::new();
    POOL.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
        rayon::ThreadPoolBuilder::new()
            .num_threads(cores.max(2) - 1)
            .thread_name(|index| format!("otr-ops-{index}"))
            .build()
            .inspect_err(|error| tracing::warn!(%error, "kernels run on one thread"))
            .ok()
    })
    .as_ref()
}

/// Runs `body` over parts of `begin..end`, each at least `grain` long except the last.
pub(super) fn run(begin: i64, end: i64, grain: i64, body: &(dyn Fn(i64, i64) + Sync)) {
    let length = end - begin;
    let threads = super::threads() as i64;
    let part = grain.max((length + threads * PARTS_PER_THREAD - 1) / (threads * PARTS_PER_THREAD));
    let parts = (length + part - 1) / part;
    let wanted = (threads.min(parts) - 1) as usize;
    let pool = if wanted == 0 { None } else { helpers() };
    let Some(pool) = pool else {
        body(begin, end);
        return;
    };
    // SAFETY: only the lifetime changes. The pointer is followed only as `Job` says, and this function returns or
    // unwinds only after the last part is done (`Wait`).
    let body = unsafe {
        std::mem::transmute::<&(dyn Fn(i64, i64) + Sync), &'static (dyn Fn(i64, i64) + Sync)>(body)
    };
    let job = Arc::new(Job {
        body,
        begin,
        end,
        part,
        parts,
        next: AtomicI64::new(0),
        left: AtomicI64::new(parts),
        done: Mutex::new(()),
        finished: Condvar::new(),
    });
    for _ in 0..wanted.min(pool.current_num_threads()) {
        let job = Arc::clone(&job);
        pool.spawn(move || job.work());
    }
    let wait = Wait(&job);
    job.work();
    drop(wait);
}
