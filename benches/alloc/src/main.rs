//! `outrigger-bench-alloc`: runs recorded traces through Outrigger's allocator over a simulated device, and
//! through other allocators, and tells how much memory each wastes and what it costs. Started by
//! `cargo xtask bench alloc`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to a person"
)]

mod calls;
mod checked;
mod device;
mod outrigger;
mod replay;
mod table;
mod timing;
mod trace;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use outrigger_allocator::Config;

use crate::calls::Costs;
use crate::device::{GRANULARITY, Kind, UNLIMITED};
use crate::outrigger::Outrigger;
use crate::replay::{Outcome, replay, smallest_capacity};
use crate::table::Row;
use crate::trace::Trace;

/// Replays recorded traces through allocators.
#[derive(Parser)]
#[command(name = "outrigger-bench-alloc")]
struct Options {
    /// Folder of traces, `*.trace` or `*.trace.zst`
    #[arg(long, value_name = "DIR")]
    traces: PathBuf,
    /// Only traces whose name contains one of these, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    trace: Vec<String>,
    /// Bytes of the simulated device; unlimited if not given
    #[arg(long, value_name = "BYTES")]
    capacity: Option<u64>,
    /// Also search the smallest capacity that each trace fits into
    #[arg(long)]
    search: bool,
    /// Operations after which an event has passed
    #[arg(long, default_value_t = 200, value_name = "OPS")]
    lag: u64,
    /// A device without virtual memory
    #[arg(long)]
    segments: bool,
    /// The allocator's options, as in OUTRIGGER_ALLOC
    #[arg(long, default_value = "", value_name = "OPTIONS")]
    config: String,
    /// Replays that the times of a pair are the median of; 0 measures no times
    #[arg(long, default_value_t = 5, value_name = "COUNT")]
    repetitions: usize,
    #[command(flatten)]
    costs: Costs,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    let config = Config::parse(&options.config)?;
    let mut traces = trace::load_folder(&options.traces)?;
    if !options.trace.is_empty() {
        traces.retain(|trace| options.trace.iter().any(|name| trace.name.contains(name)));
    }
    let kind = Kind {
        capacity: options.capacity.unwrap_or(UNLIMITED),
        lag: options.lag,
        virtual_memory: !options.segments,
        checked: false,
    };
    let mut rows = Vec::new();
    table::head();
    for trace in &traces {
        let row = measure(trace, options, kind, &config);
        row.print(&options.costs);
        rows.push(row);
    }
    table::summary(&rows, &options.costs);
    Ok(())
}

fn measure<'a>(trace: &'a Trace, options: &Options, kind: Kind, config: &Config) -> Row<'a> {
    let run = |capacity: u64| -> Outcome {
        let kind = Kind { capacity, ..kind };
        replay(trace, &mut Outrigger::new(kind, config))
    };
    let outcome = run(kind.capacity);
    let smallest = options
        .search
        .then(|| smallest_capacity(trace, GRANULARITY, outcome.held, run));
    let times = (options.repetitions > 0).then(|| {
        [1, 2].map(|threads| {
            let kind = Kind { lag: 0, ..kind };
            let allocator = Outrigger::new(kind, config).0;
            timing::pair_ns(trace, &allocator, threads, options.repetitions)
        })
    });
    Row {
        trace,
        outcome,
        smallest: smallest.flatten(),
        searched: options.search,
        times,
        complaints: checked::check(trace, kind, config),
    }
}
