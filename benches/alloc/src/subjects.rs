//! Everybody who is measured, and what is measured of each: one column of the report. A peer that cannot be
//! measured is missing with a reason; it must never stop the others.

use std::path::Path;

use anyhow::Context;
use outrigger_allocator::Config;

use crate::checked::{self, Checks};
use crate::crates::{Arena, Mimalloc, Offsets, Rlsf};
use crate::device::{GRANULARITY, Kind, UNLIMITED};
use crate::metered::{self, Bookkeeping};
use crate::outrigger::Outrigger;
use crate::policies;
use crate::replay::{Outcome, Subject, replay, smallest_capacity};
use crate::timing::{self, PairNs, Shared};
use crate::torch::Torch;
use crate::trace::Trace;

/// The things to measure.
#[derive(Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) kind: Kind,
    pub(crate) config: &'a Config,
    /// Search the smallest capacity.
    pub(crate) search: bool,
    /// Replays that a time is the median of; 0 measures no times.
    pub(crate) repetitions: usize,
}

/// The figures of one allocator on one trace; a figure that does not apply is `None`.
#[derive(Default)]
pub(crate) struct Measured {
    /// On the device of the plan.
    pub(crate) outcome: Option<Outcome>,
    /// Bytes of the smallest device on which the trace succeeds, and what comes of it there.
    pub(crate) smallest: Option<(u64, Outcome)>,
    /// Nanoseconds per pair on one thread and on two.
    pub(crate) pair_ns: [Option<PairNs>; 2],
    pub(crate) bookkeeping: Option<Bookkeeping>,
    /// The findings of checked replays: at the capacity of the plan, and at the smallest one.
    pub(crate) checks: Vec<Checks>,
}

impl Measured {
    /// Everything that was found wrong.
    pub(crate) fn complaints(&self) -> impl Iterator<Item = &str> {
        let all = self.checks.iter().flat_map(|checks| &checks.complaints);
        all.map(String::as_str)
    }
}

/// An allocator that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Outrigger,
    /// PyTorch's own library.
    TorchDefault,
    TorchExpandable,
    /// Simulated.
    Default,
    Expandable,
    Bfc,
    Mimalloc,
    OffsetAllocator,
    Rlsf,
}

/// All peers, in the order of the report.
pub(crate) const PEERS: [Name; 8] = [
    Name::TorchDefault,
    Name::TorchExpandable,
    Name::Default,
    Name::Expandable,
    Name::Bfc,
    Name::Mimalloc,
    Name::OffsetAllocator,
    Name::Rlsf,
];

impl Name {
    /// The name in tables and JSON.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Outrigger => "outrigger",
            Self::TorchDefault => "torch_default",
            Self::TorchExpandable => "torch_expandable",
            Self::Default => "sim_default",
            Self::Expandable => "sim_expandable",
            Self::Bfc => "sim_bfc",
            Self::Mimalloc => "mimalloc",
            Self::OffsetAllocator => "offset_allocator",
            Self::Rlsf => "rlsf",
        }
    }
}

/// Measures Outrigger.
pub(crate) fn outrigger(trace: &Trace, plan: Plan<'_>) -> Measured {
    let Plan { kind, config, .. } = plan;
    let mut measured = replays(trace, plan, |capacity| {
        Outrigger::new(Kind { capacity, ..kind }, config)
    });
    measured.pair_ns = times(trace, plan, || {
        let kind = Kind {
            lag: 0,
            capacity: UNLIMITED,
            ..kind
        };
        Some(Outrigger::new(kind, config).0)
    });
    measured.bookkeeping = Some(metered::bookkeeping(trace, kind, config));
    measured.checks.push(checked::check(trace, kind, config));
    if let Some((capacity, _)) = measured.smallest {
        // Memory is moved most where it is short.
        let kind = Kind { capacity, ..kind };
        measured.checks.push(checked::check(trace, kind, config));
    }
    measured
}

/// Measures a peer. `torch` is the program that runs PyTorch's allocator, or why there is none.
///
/// # Errors
/// If the peer cannot be measured.
pub(crate) fn peer(
    name: Name,
    trace: &Trace,
    plan: Plan<'_>,
    torch: Result<&Path, &str>,
) -> anyhow::Result<Measured> {
    let lag = plan.kind.lag;
    let blocks = 2 * trace.peak_count;
    Ok(match name {
        Name::Outrigger => outrigger(trace, plan),
        Name::TorchDefault | Name::TorchExpandable => {
            let program = torch.map_err(|reason| anyhow::anyhow!("{reason}"))?;
            torch_library(trace, plan, program, name == Name::TorchExpandable)?
        }
        Name::Default => replays(trace, plan, |capacity| {
            policies::Torch::new(capacity, lag, false)
        }),
        Name::Expandable => replays(trace, plan, |capacity| {
            policies::Torch::new(capacity, lag, true)
        }),
        Name::Bfc => replays(trace, plan, |capacity| policies::Bfc::new(capacity, lag)),
        Name::Mimalloc => {
            // Mimalloc maps and unmaps large blocks each time, which takes long and is alike each time.
            let plan = Plan {
                repetitions: plan.repetitions.min(3),
                ..plan
            };
            Measured {
                pair_ns: times(trace, plan, || Some(Mimalloc)),
                ..Measured::default()
            }
        }
        Name::OffsetAllocator => {
            let smallest = plan.search.then(|| {
                // The peer has no growth of its own: any larger device is as good as an unlimited one.
                smallest_capacity(trace, GRANULARITY, 2 * trace.peak, |capacity| {
                    replay(trace, &mut Arena::new(capacity, trace.peak_count))
                })
            });
            Measured {
                pair_ns: times(trace, plan, || Some(Offsets::new(UNLIMITED, blocks))),
                smallest: smallest.flatten(),
                ..Measured::default()
            }
        }
        Name::Rlsf => {
            Rlsf::new().context("rlsf")?;
            Measured {
                pair_ns: times(trace, plan, || Rlsf::new().ok()),
                ..Measured::default()
            }
        }
    })
}

fn replays<S: Subject>(trace: &Trace, plan: Plan<'_>, make: impl Fn(u64) -> S) -> Measured {
    let run = |capacity| replay(trace, &mut make(capacity));
    let outcome = run(plan.kind.capacity);
    let smallest = (plan.search && outcome.fits)
        .then(|| smallest_capacity(trace, GRANULARITY, outcome.held, run));
    Measured {
        outcome: Some(outcome),
        smallest: smallest.flatten(),
        ..Measured::default()
    }
}

fn times<S: Shared>(
    trace: &Trace,
    plan: Plan<'_>,
    make: impl Fn() -> Option<S>,
) -> [Option<PairNs>; 2] {
    if plan.repetitions == 0 {
        return [None; 2];
    }
    [1, 2].map(|threads| timing::pair_ns(trace, &make()?, threads, plan.repetitions))
}

fn torch_library(
    trace: &Trace,
    plan: Plan<'_>,
    program: &Path,
    expandable: bool,
) -> anyhow::Result<Measured> {
    let torch = Torch::new(program, trace)?;
    let lag = plan.kind.lag;
    let outcome = torch.replay(expandable, plan.kind.capacity, lag)?;
    // The simulation searches, the library confirms.
    let simulated = replays(trace, plan, |capacity| {
        policies::Torch::new(capacity, lag, expandable)
    });
    let smallest = match simulated.smallest {
        None => None,
        Some((capacity, _)) => {
            let there = torch.replay(expandable, capacity, lag)?;
            there.fits.then_some((capacity, there))
        }
    };
    let mut pair_ns = [None; 2];
    if plan.repetitions > 0 {
        for (threads, ns) in (1..).zip(&mut pair_ns) {
            *ns = Some(torch.pair_ns(expandable, threads, plan.repetitions)?);
        }
    }
    Ok(Measured {
        outcome: Some(outcome),
        smallest,
        pair_ns,
        ..Measured::default()
    })
}
