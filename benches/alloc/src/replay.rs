//! Runs a trace through an allocator, once, and tells what came of it. It must never treat one allocator
//! other than the next: all see the same operations at the same times.

use crate::calls::Calls;
use crate::trace::{Op, Trace, WARM_UP_STEPS};

/// An allocator that a trace is run through by one thread.
pub(crate) trait Subject {
    /// Operation `now`, counted from 1, comes next.
    fn tick(&mut self, now: u64);
    /// Memory for work on a stream, by whatever number the allocator knows it; `None` if there is none.
    fn alloc(&mut self, size: u64, stream: u16) -> Option<u64>;
    /// Takes it back.
    fn free(&mut self, memory: u64);
    /// Announces a use on another stream.
    fn record(&mut self, memory: u64, stream: u16);
    /// The device is idle now.
    fn idle(&mut self);
    /// Most bytes held from the device at a time.
    fn peak(&self) -> u64;
    /// Calls of the device so far.
    fn calls(&self) -> Calls;
}

/// What came of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Whether every allocation succeeded.
    pub(crate) fits: bool,
    /// Most bytes held from the device at a time.
    pub(crate) held: u64,
    /// All calls of the device.
    pub(crate) calls: Calls,
    /// Calls after the first steps.
    pub(crate) late_calls: Calls,
}

impl Outcome {
    /// Percent of what is held at most that is not what is asked for at most.
    pub(crate) fn fragmentation(&self, trace: &Trace) -> f64 {
        100.0 * (1.0 - trace.peak as f64 / self.held as f64)
    }

    /// Calls per GiB allocated that take, give or map memory after the first steps; `None` if the trace has
    /// no such steps.
    pub(crate) fn late_calls_per_gib(&self, trace: &Trace) -> Option<f64> {
        let gib = trace.late_bytes() as f64 / f64::from(1 << 30);
        (gib > 0.0).then(|| self.late_calls.memory() as f64 / gib)
    }
}

/// Replays the trace, up to its end or the first allocation that fails.
pub(crate) fn replay(trace: &Trace, subject: &mut impl Subject) -> Outcome {
    let mut memory = vec![0; trace.allocations];
    let mut streams = vec![0; trace.allocations];
    let mut marks = 0;
    let mut warm_up = Calls::default();
    let mut outcome = Outcome {
        fits: true,
        ..Outcome::default()
    };
    for (now, op) in (1..).zip(&trace.ops) {
        subject.tick(now);
        match *op {
            Op::Alloc { id, size, stream } => {
                let Some(found) = subject.alloc(size, stream) else {
                    outcome.fits = false;
                    break;
                };
                memory[id as usize] = found;
                streams[id as usize] = stream;
            }
            Op::Free { id } => subject.free(memory[id as usize]),
            Op::Record { id, stream } if stream == streams[id as usize] => {}
            Op::Record { id, stream } => subject.record(memory[id as usize], stream),
            Op::Mark => {
                subject.idle();
                marks += 1;
                if marks == WARM_UP_STEPS + 1 {
                    warm_up = subject.calls();
                }
            }
        }
    }
    outcome.held = subject.peak();
    outcome.calls = subject.calls();
    if marks > WARM_UP_STEPS {
        outcome.late_calls = outcome.calls - warm_up;
    }
    outcome
}

/// The smallest capacity, in bytes and a multiple of `unit`, on which the trace was found to succeed, and
/// what comes of it there. `run` replays it on a device of so many bytes; `held` is a capacity that it is
/// known to fit, if any.
pub(crate) fn smallest_capacity(
    trace: &Trace,
    unit: u64,
    known: u64,
    run: impl Fn(u64) -> Outcome,
) -> Option<(u64, Outcome)> {
    // The floor is tried itself; below it nothing can succeed.
    let floor = trace.peak.div_ceil(unit);
    let (mut fails, mut succeeds) = (floor.saturating_sub(1), known.div_ceil(unit).max(floor));
    let mut best = run(succeeds * unit);
    if !best.fits {
        return None;
    }
    let mut next = floor;
    while succeeds > fails + 1 {
        let outcome = run(next * unit);
        if outcome.fits {
            succeeds = next;
            best = outcome;
        } else {
            fails = next;
        }
        next = fails.midpoint(succeeds);
    }
    Some((succeeds * unit, best))
}
