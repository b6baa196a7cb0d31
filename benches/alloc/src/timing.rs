//! The cost of an allocation and its free, on one thread and on several that share an allocator. Each thread
//! runs the whole trace with streams of its own; threads are pinned and start each repetition together. It
//! must never time anything but the allocator: places for what is live stand ready, and a repetition before
//! the first that counts warms up.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use outrigger_allocator::{Allocator, Backend, StreamId};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::trace::{Op, STREAMS, Trace};

/// An allocator that threads share.
pub(crate) trait Shared: Sync {
    /// The value that the subject needs to free memory.
    type Memory: Copy + Default + Send;
    /// Allocates; `None` if there is no memory.
    fn alloc(&self, size: u64, stream: u16) -> Option<Self::Memory>;
    /// Frees.
    fn free(&self, memory: Self::Memory);
    /// Announces a use on another stream.
    fn record(&self, memory: Self::Memory, stream: u16);
}

impl<B: Backend> Shared for Allocator<B> {
    type Memory = u64;

    #[inline]
    fn alloc(&self, size: u64, stream: u16) -> Option<u64> {
        let found = Self::alloc(self, size, StreamId(stream.into())).ok()?;
        Some(found.address)
    }

    #[inline]
    fn free(&self, memory: u64) {
        let _ = Self::free(self, memory);
    }

    #[inline]
    fn record(&self, memory: u64, stream: u16) {
        let _ = self.record_stream(memory, StreamId(stream.into()));
    }
}

/// Nanoseconds per pair of a thread, from the start of all threads to the end of the last one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairNs {
    /// The median over the repetitions.
    pub(crate) median: f64,
    /// The shortest: what is left when nothing else wants the machine.
    pub(crate) best: f64,
}

/// Times the pairs of a trace. `None` if memory runs out.
pub(crate) fn pair_ns(
    trace: &Trace,
    allocator: &impl Shared,
    threads: usize,
    repetitions: usize,
) -> Option<PairNs> {
    let barrier = Barrier::new(threads);
    let mut times = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    pin(thread);
                    work(trace, allocator, thread, barrier, repetitions)
                })
            })
            .collect();
        let mut results = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_default());
        // All threads end a repetition together: the first one's times are everybody's.
        let first = results.next()?;
        results.all(|times| times.is_some()).then_some(first)?
    })?;
    times.sort_by(f64::total_cmp);
    Some(PairNs {
        median: times[times.len() / 2],
        best: times[0],
    })
}

/// Keeps this thread on one core. Where that is refused, the times are noisier and nothing else.
fn pin(thread: usize) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut set = CpuSet::new();
    set.set(thread % cores);
    let _ = sched_setaffinity(None, &set);
}

fn work<S: Shared>(
    trace: &Trace,
    allocator: &S,
    thread: usize,
    barrier: &Barrier,
    repetitions: usize,
) -> Option<Vec<f64>> {
    // The streams of the trace are kept apart for each thread.
    let base = (thread * STREAMS / 2) as u16;
    let mut memory = vec![S::Memory::default(); trace.allocations];
    let mut times = Vec::new();
    let mut fits = true;
    for repetition in 0..=repetitions {
        barrier.wait();
        let started = Instant::now();
        for op in &trace.ops {
            match *op {
                Op::Alloc { id, size, stream } => match allocator.alloc(size, base + stream) {
                    Some(found) => memory[id as usize] = found,
                    None => fits = false,
                },
                Op::Free { id } => allocator.free(memory[id as usize]),
                Op::Record { id, stream } => allocator.record(memory[id as usize], base + stream),
                Op::Mark => {}
            }
        }
        barrier.wait();
        if repetition > 0 {
            times.push(started.elapsed().as_nanos() as f64 / trace.allocations as f64);
        }
    }
    fits.then_some(times)
}
