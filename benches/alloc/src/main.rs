//! `outrigger-bench-alloc`: runs recorded traces through Outrigger's allocator over a simulated device, and
//! through other allocators, and tells how much memory each wastes and what it costs. Started by
//! `cargo xtask bench alloc`. Parses the command line and puts the parts together, nothing else.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to a person"
)]

mod calls;
mod checked;
mod crates;
mod device;
mod memory;
mod metered;
mod metrics;
mod outrigger;
mod overhead;
mod policies;
mod replay;
mod subjects;
mod table;
mod timing;
mod torch;
mod trace;
mod watch;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Parser;
use outrigger_allocator::Config;
use serde_json::{Value, json};

use crate::calls::Costs;
use crate::device::{Kind, UNLIMITED};
use crate::metrics::{Metric, Row};
use crate::subjects::{Name, PEERS, Plan};
use crate::trace::Trace;

#[global_allocator]
static COUNTER: overhead::Counter = overhead::Counter;

/// Replays recorded traces through allocators, and compares them.
#[derive(Parser)]
#[command(name = "outrigger-bench-alloc")]
struct Options {
    /// Folder of traces, `*.trace` or `*.trace.zst`
    #[arg(long, value_name = "DIR")]
    traces: PathBuf,
    /// Only traces whose names contain one of these, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    trace: Vec<String>,
    /// Bytes of the simulated device, or `search` for an unlimited one and the smallest that each trace fits
    #[arg(long, default_value = "search", value_name = "BYTES|search")]
    capacity: String,
    /// Operations after which an event has passed
    #[arg(long, default_value_t = 200, value_name = "OPS")]
    lag: u64,
    /// A device without virtual memory
    #[arg(long)]
    segments: bool,
    /// The allocator's options, as in OUTRIGGER_ALLOC
    #[arg(long, default_value = "", value_name = "OPTIONS")]
    config: String,
    /// Replays that a time is the median of; 0 measures no times
    #[arg(long, default_value_t = 11, value_name = "COUNT")]
    repetitions: usize,
    /// No peers
    #[arg(long)]
    alone: bool,
    /// Tell how memory is used when most of it is held
    #[arg(long)]
    explain: bool,
    /// Only these metrics, separated by commas: whole names, or what stands before the trace
    #[arg(long, value_delimiter = ',', value_name = "METRICS")]
    only: Vec<String>,
    /// Also write the metrics to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program that runs PyTorch's own allocator
    #[arg(long, value_name = "FILE", conflicts_with = "torch_missing")]
    torch: Option<PathBuf>,
    /// Reason why there is no such program
    #[arg(long, default_value = "no program was named", value_name = "REASON")]
    torch_missing: String,
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
    let plan = plan(options, &config)?;
    let mut traces = trace::load_folder(&options.traces)?;
    if !options.trace.is_empty() {
        traces.retain(|trace| options.trace.iter().any(|name| trace.name.contains(name)));
        ensure!(!traces.is_empty(), "no trace has such a name");
    }

    let mut missing = BTreeMap::new();
    let rows: Vec<Row<'_>> = traces
        .iter()
        .map(|trace| measure(trace, options, plan, &mut missing))
        .collect();
    show(&rows, options);
    let mut metrics = metrics::metrics(&rows, &options.costs);
    if !options.only.is_empty() {
        metrics.retain(|metric| options.only.iter().any(|name| metric.is_called(name)));
        ensure!(!metrics.is_empty(), "there are no such metrics");
    }
    report(options, &metrics, &missing)?;
    let wrong = rows.iter().flat_map(|row| &row.measured);
    let wrong = wrong.filter(|(_, measured)| measured.complaints().next().is_some());
    let wrong = wrong.count();
    ensure!(
        wrong == 0,
        "{wrong} traces were replayed wrongly: see the lines below the table"
    );
    Ok(())
}

fn plan<'a>(options: &Options, config: &'a Config) -> anyhow::Result<Plan<'a>> {
    let asked = |prefix: &str| {
        options.only.is_empty() || options.only.iter().any(|name| name.starts_with(prefix))
    };
    let searched = options.capacity == "search";
    let capacity = if searched {
        UNLIMITED
    } else {
        let bytes = options.capacity.parse();
        bytes.context("--capacity is a number of bytes, or `search`")?
    };
    Ok(Plan {
        kind: Kind {
            capacity,
            lag: options.lag,
            virtual_memory: !options.segments,
            checked: false,
        },
        config,
        search: searched
            && ["fits", "min_capacity", "stall_at_min"]
                .into_iter()
                .any(asked),
        repetitions: if asked("pair") {
            options.repetitions
        } else {
            0
        },
    })
}

fn measure<'a>(
    trace: &'a Trace,
    options: &Options,
    plan: Plan<'_>,
    missing: &mut BTreeMap<&'static str, String>,
) -> Row<'a> {
    // The tables come when all is measured, which takes minutes: until then somebody may watch this.
    eprintln!("measuring {}", trace.name);
    let mut measured = vec![(Name::Outrigger, subjects::outrigger(trace, plan))];
    let torch = options.torch.as_deref().ok_or(&*options.torch_missing);
    for name in PEERS.into_iter().filter(|_| !options.alone) {
        match subjects::peer(name, trace, plan, torch) {
            Ok(peer) => measured.push((name, peer)),
            Err(error) => {
                missing.insert(name.text(), format!("{error:#}"));
                measured.push((name, subjects::Measured::default()));
            }
        }
    }
    Row { trace, measured }
}

/// The table of replays, and below it what was found wrong and what was asked to be explained.
fn show(rows: &[Row<'_>], options: &Options) {
    let mut replays = table::Replays::new();
    for row in rows {
        for (name, measured) in &row.measured {
            if matches!(
                name,
                Name::Outrigger | Name::TorchDefault | Name::TorchExpandable
            ) {
                replays.add(*name, row.trace, measured, &options.costs);
            }
        }
    }
    replays.print();
    for row in rows {
        for (_, measured) in &row.measured {
            table::complain(row.trace, measured);
        }
        if let Some(measured) = row.of(Name::Outrigger).filter(|_| options.explain) {
            table::explain(row.trace, measured);
        }
    }
}

fn report(
    options: &Options,
    metrics: &[Metric],
    missing: &BTreeMap<&'static str, String>,
) -> anyhow::Result<()> {
    println!();
    println!("{}", metrics::table(metrics));
    for (name, reason) in missing {
        println!("    {name} is missing: {reason}");
    }
    let mut versions = BTreeMap::new();
    if let Some(program) = &options.torch
        && let Ok(version) = torch::Torch::version(program)
    {
        println!("    torch_default, torch_expandable: {version}");
        versions.insert("torch_default", version.clone());
        versions.insert("torch_expandable", version);
    }
    if let Some(file) = &options.json {
        let (missing, versions) = (json!(missing), json!(versions));
        let list: Vec<Value> = metrics
            .iter()
            .map(|metric| metric.to_json(&missing, &versions))
            .collect();
        fs::write(file, serde_json::to_string_pretty(&list)? + "\n")
            .with_context(|| format!("{} cannot be written", file.display()))?;
    }
    Ok(())
}
