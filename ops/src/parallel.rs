//! Work sharing: one loop over a range, in a thread pool that a host lends or in a pool of this crate.
//!
//! A framework lends its pool with [`set`], so that two pools never compete for the cores. The pool of this crate is
//! made when it is first needed. A range that is no longer than its grain runs on the calling thread and touches no
//! pool. The caller always takes part, and can finish alone: it never waits for a thread that has not begun.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use outrigger_device::foreign_call;

mod pool;

/// The body of a loop, for a part of its range.
pub type Body = extern "C" fn(context: *mut c_void, begin: i64, end: i64);

/// Runs `body` over all of `begin..end`, in parts of at least `grain` (the last one may be shorter), on any threads.
/// Returns when all parts have run.
pub type ParallelFor =
    extern "C" fn(begin: i64, end: i64, grain: i64, body: Body, context: *mut c_void);

/// The executor that a host has lent; NULL for the pool of this crate.
static LENT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// The number of threads to use, the caller included; 0 until the number of cores was asked for.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Uses a host's executor from now on, or with `None` the pool of this crate again.
pub fn set(executor: Option<ParallelFor>) {
    let pointer = executor.map_or(std::ptr::null_mut(), |function| function as *mut ());
    LENT.store(pointer, Ordering::Release);
}

/// Sets how many threads a loop may use, the caller included; 0 for the number of cores of this process. A lent
/// executor decides itself how many threads it uses, but is not used if this is 1.
pub fn set_threads(count: usize) {
    THREADS.store(count, Ordering::Relaxed);
}

/// The number of threads that a loop may use: the number that was set, or that of the cores of this process.
pub fn threads() -> usize {
    match THREADS.load(Ordering::Relaxed) {
        0 => {
            let count = std::thread::available_parallelism().map_or(1, |count| count.get());
            THREADS.store(count, Ordering::Relaxed);
            count
        }
        count => count,
    }
}

/// Runs `body` over parts of `begin..end` that together cover it once, on several threads if that pays. No part but the
/// last is shorter than `grain`. The number of threads decides where the parts lie, so results must not depend on that.
#[inline]
pub fn for_range(begin: i64, end: i64, grain: i64, body: &(dyn Fn(i64, i64) + Sync)) {
    if begin >= end {
        return;
    }
    if end - begin <= grain.max(1) || threads() == 1 {
        body(begin, end);
    } else {
        share(begin, end, grain.max(1), body);
    }
}

#[cold]
fn share(begin: i64, end: i64, grain: i64, body: &(dyn Fn(i64, i64) + Sync)) {
    let lent = LENT.load(Ordering::Acquire);
    if lent.is_null() {
        pool::run(begin, end, grain, body);
        return;
    }
    // SAFETY: `set` stores NULL or a function pointer of this type, and nothing else.
    let executor = unsafe { std::mem::transmute::<*mut (), ParallelFor>(lent) };
    let executor = executor as unsafe extern "C" fn(i64, i64, i64, Body, *mut c_void);
    let mut body = body;
    let context = (&raw mut body).cast::<c_void>();
    // SAFETY: the context points to `body`, which lives until the executor returns, after all parts have run.
    unsafe { foreign_call!(executor, begin, end, grain, call_body as Body, context) };
}

extern "C" fn call_body(context: *mut c_void, begin: i64, end: i64) {
    // SAFETY: `share` passed the address of its `&dyn Fn`, which outlives the executor's call. Parts only read it.
    let body = unsafe { *context.cast::<&(dyn Fn(i64, i64) + Sync)>() };
    body(begin, end);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU8, AtomicUsize};

    fn covers_once(length: i64, grain: i64) {
        let seen: Vec<AtomicU8> = (0..length).map(|_| AtomicU8::new(0)).collect();
        for_range(0, length, grain, &|begin, end| {
            assert!(begin < end, "an empty part");
            for index in begin..end {
                seen[index as usize].fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn every_index_is_visited_once() {
        for (length, grain) in [
            (0, 1),
            (1, 1),
            (10, 1),
            (1000, 7),
            (100_000, 1000),
            (5, 100),
        ] {
            covers_once(length, grain);
        }
    }

    #[test]
    fn loops_nest_and_overlap() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let total = AtomicUsize::new(0);
                    for_range(0, 64, 1, &|begin, end| {
                        for _ in begin..end {
                            for_range(0, 100, 10, &|b, e| {
                                total.fetch_add((e - b) as usize, Ordering::Relaxed);
                            });
                        }
                    });
                    assert_eq!(total.into_inner(), 6400);
                });
            }
        });
    }

    #[test]
    fn a_lent_executor_is_used_and_given_back() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn lent(begin: i64, end: i64, _: i64, body: Body, context: *mut c_void) {
            CALLS.fetch_add(1, Ordering::Relaxed);
            let middle = (begin + end) / 2;
            body(context, middle, end);
            body(context, begin, middle);
        }
        set(Some(lent));
        set_threads(2);
        covers_once(100, 1);
        set(None);
        assert!(CALLS.load(Ordering::Relaxed) >= 1);
    }
}
