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

/// The outcome of a replay.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::WARM_UP_STEPS;

    fn trace(ops: Vec<Op>) -> Trace {
        let allocations = ops.iter().filter(|op| matches!(op, Op::Alloc { .. }));
        Trace {
            name: "test".to_owned(),
            allocations: allocations.count(),
            peak: 10,
            peak_count: 1,
            is_training: true,
            ops,
        }
    }

    /// Each allocation costs a call of the device.
    #[derive(Default)]
    struct Costly(Calls);

    impl Subject for Costly {
        fn tick(&mut self, _: u64) {}
        fn alloc(&mut self, _: u64, _: u16) -> Option<u64> {
            self.0.allocs += 1;
            Some(0)
        }
        fn free(&mut self, _: u64) {}
        fn record(&mut self, _: u64, _: u16) {}
        fn idle(&mut self) {}
        fn peak(&self) -> u64 {
            20
        }
        fn calls(&self) -> Calls {
            self.0
        }
    }

    #[test]
    fn calls_count_as_late_after_the_steps_that_warm_up() {
        let mut ops = Vec::new();
        for id in 0..WARM_UP_STEPS + 2 {
            ops.push(Op::Mark);
            let (size, stream) = (1 << 29, 0);
            ops.push(Op::Alloc { id, size, stream });
            ops.push(Op::Free { id });
        }
        let trace = trace(ops);
        let outcome = replay(&trace, &mut Costly::default());
        assert_eq!(outcome.calls.allocs, u64::from(WARM_UP_STEPS) + 2);
        assert_eq!(outcome.late_calls.allocs, 2);
        assert_eq!(outcome.late_calls_per_gib(&trace), Some(2.0));
        assert_eq!(outcome.fragmentation(&trace), 50.0);
    }

    #[test]
    fn the_smallest_capacity_is_found_between_what_fails_and_what_fits() {
        let trace = trace(Vec::new());
        let needs = |bytes: u64| {
            move |capacity| Outcome {
                fits: capacity >= bytes,
                ..Outcome::default()
            }
        };
        let found = |bytes| smallest_capacity(&trace, 4, 100, needs(bytes)).map(|(size, _)| size);
        assert_eq!(found(57), Some(60));
        assert_eq!(found(0), Some(12), "no less than the trace asks for");
        assert_eq!(found(100), Some(100));
        assert_eq!(found(1000), None);
    }
}
