//! The figures of the report: what was measured, taken together over the traces, next to the peers and the
//! bars. It judges nothing that has no bar, and leaves out what was not measured.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Value, json};

use crate::calls::{Calls, Costs};
use crate::subjects::{Measured, Name};
use crate::trace::Trace;

/// The direction in which a figure is better.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Lower,
    Higher,
}

/// The bar of a figure: a limit of its own, or one relative to a peer.
struct Bar {
    limit: f64,
    peer: Option<Name>,
}

/// One line of the report.
pub(crate) struct Metric {
    name: String,
    unit: &'static str,
    better: Better,
    outrigger: Option<f64>,
    peers: Vec<(Name, f64)>,
    bars: Vec<Bar>,
}

/// A trace and what was measured of everybody on it, Outrigger first.
pub(crate) struct Row<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) measured: Vec<(Name, Measured)>,
}

impl Row<'_> {
    /// The figures of one of them.
    pub(crate) fn of(&self, name: Name) -> Option<&Measured> {
        let found = self.measured.iter().find(|(other, _)| *other == name)?;
        Some(&found.1)
    }
}

type Count = fn(&Calls) -> u64;
type Figure<'a> = &'a dyn Fn(&Trace, &Measured) -> Option<f64>;

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MIN, f64::max)
}

fn sum(values: &[f64]) -> f64 {
    values.iter().sum()
}

/// All metrics of these rows.
pub(crate) fn metrics(rows: &[Row<'_>], costs: &Costs) -> Vec<Metric> {
    let all = Maker { rows };
    let frag = |trace: &Trace, measured: &Measured| {
        let outcome = measured.outcome.filter(|outcome| outcome.fits)?;
        Some(outcome.fragmentation(trace))
    };
    let capacity = |trace: &Trace, measured: &Measured| {
        let (bytes, _) = measured.smallest?;
        Some(bytes as f64 / trace.peak as f64)
    };
    let stall = |_: &Trace, measured: &Measured| {
        let outcome = measured.outcome.filter(|o| o.calls != Calls::default())?;
        Some(costs.stall_ms(&outcome.calls))
    };
    let stall_short = |_: &Trace, measured: &Measured| {
        let (_, outcome) = measured.smallest?;
        (outcome.calls != Calls::default()).then(|| costs.stall_ms(&outcome.calls))
    };
    let steady = |trace: &Trace, measured: &Measured| {
        let outcome = measured.outcome.filter(|o| o.calls != Calls::default())?;
        let calls = outcome.late_calls_per_gib(trace)?;
        trace.is_training.then_some(calls)
    };
    let overhead = |_: &Trace, measured: &Measured| {
        let bookkeeping = measured.bookkeeping?;
        Some(bookkeeping.bytes as f64 / bookkeeping.blocks as f64)
    };

    let mut list = vec![
        all.over("frag_mean", "%", &frag, mean).at_most(3.0),
        all.over("frag_max", "%", &frag, most).at_most(10.0),
    ];
    list.extend(all.each("frag", "%", &frag));
    list.extend(rows.iter().filter_map(|row| against_expandable(row, &frag)));
    for (name, bound, bar) in [("fits_1.02", 1.02, 10.0 / 12.0), ("fits_1.05", 1.05, 1.0)] {
        let fits = |trace: &Trace, measured: &Measured| {
            // An allocator that was searched for and has no capacity fits nowhere.
            measured.outcome.or(measured.smallest.map(|(_, o)| o))?;
            let times = capacity(trace, measured)?;
            Some(f64::from(u8::from(times <= bound)))
        };
        list.push(all.over(name, "of traces", &fits, mean).at_least(bar));
    }
    list.extend(all.each("min_capacity", "x", &capacity));
    for threads in [0, 1] {
        let name = format!("pair_{}t", threads + 1);
        let pair = |_: &Trace, measured: &Measured| Some(measured.pair_ns[threads]?.median);
        let best = |_: &Trace, measured: &Measured| Some(measured.pair_ns[threads]?.best);
        list.push(
            all.over(&name, "ns", &pair, mean)
                .at_most_of(0.25, Name::TorchExpandable),
        );
        list.push(all.over(&format!("{name}_best"), "ns", &best, mean));
        list.extend(all.each(&name, "ns", &pair));
    }
    list.push(
        all.over("steady_calls", "per GiB", &steady, mean)
            .at_most(0.0),
    );
    list.extend(all.each("steady_calls", "per GiB", &steady));
    list.push(all.over("overhead", "bytes", &overhead, mean).at_most(64.0));
    list.extend(all.each("overhead", "bytes", &overhead));
    let counts: [(&str, Count); 5] = [
        ("calls", Calls::memory),
        ("maps", |calls| calls.maps),
        ("unmaps", |calls| calls.unmaps),
        ("host_waits", |calls| calls.waits),
        ("stream_waits", |calls| calls.orders),
    ];
    for (name, count) in counts {
        let figure = |_: &Trace, measured: &Measured| {
            let outcome = measured.outcome.filter(|o| o.calls != Calls::default())?;
            Some(count(&outcome.calls) as f64)
        };
        list.push(all.over(name, "", &figure, sum));
    }
    list.push(all.over("stall_mean", "ms", &stall, mean));
    for metric in all.each("stall", "ms", &stall) {
        list.push(metric.at_most_of(1.0, Name::TorchExpandable));
    }
    list.push(all.over("stall_at_min_mean", "ms", &stall_short, mean));
    list.extend(all.each("stall_at_min", "ms", &stall_short));
    list.retain(|metric| metric.outrigger.is_some());
    list
}

/// Percentage points above PyTorch's expandable segments: those of the library, or simulated ones in its
/// place.
fn against_expandable(row: &Row<'_>, frag: Figure<'_>) -> Option<Metric> {
    let of = |name| frag(row.trace, row.of(name)?);
    let expandable = of(Name::TorchExpandable).or_else(|| of(Name::Expandable))?;
    let metric = Metric {
        name: format!("frag_vs_expandable/{}", row.trace.name),
        unit: "points",
        better: Better::Lower,
        outrigger: Some(of(Name::Outrigger)? - expandable),
        peers: Vec::new(),
        bars: Vec::new(),
    };
    Some(metric.at_most(0.0))
}

struct Maker<'a> {
    rows: &'a [Row<'a>],
}

impl Maker<'_> {
    /// One metric that takes all traces together, of those that have a figure on each trace on which anybody
    /// has one.
    fn over(
        &self,
        name: &str,
        unit: &'static str,
        figure: Figure<'_>,
        together: fn(&[f64]) -> f64,
    ) -> Metric {
        let of = |row: &Row<'_>, name| figure(row.trace, row.of(name)?);
        let names = self.names();
        let applies = |row: &&Row<'_>| names.iter().any(|&name| of(row, name).is_some());
        let rows: Vec<_> = self.rows.iter().filter(applies).collect();
        let taken = |name| -> Option<f64> {
            let figures: Option<Vec<f64>> = rows.iter().map(|row| of(row, name)).collect();
            figures.filter(|f| !f.is_empty()).map(|f| together(&f))
        };
        Metric::new(name.to_owned(), unit, &names, taken)
    }

    /// One metric for each trace.
    fn each(&self, name: &str, unit: &'static str, figure: Figure<'_>) -> Vec<Metric> {
        let make = |row: &Row<'_>| {
            let of = |name| figure(row.trace, row.of(name)?);
            Metric::new(
                format!("{name}/{}", row.trace.name),
                unit,
                &self.names(),
                of,
            )
        };
        self.rows.iter().map(make).collect()
    }

    fn names(&self) -> Vec<Name> {
        let first = self.rows.first().map(|row| row.measured.as_slice());
        first.unwrap_or_default().iter().map(|(n, _)| *n).collect()
    }
}

impl Metric {
    fn new(
        name: String,
        unit: &'static str,
        names: &[Name],
        figure: impl Fn(Name) -> Option<f64>,
    ) -> Self {
        let peers = names.iter().filter(|name| **name != Name::Outrigger);
        Self {
            name,
            unit,
            better: Better::Lower,
            outrigger: figure(Name::Outrigger),
            peers: peers
                .filter_map(|&name| Some((name, figure(name)?)))
                .collect(),
            bars: Vec::new(),
        }
    }

    fn at_most(mut self, limit: f64) -> Self {
        self.bars.push(Bar { limit, peer: None });
        self
    }

    fn at_least(mut self, limit: f64) -> Self {
        self.better = Better::Higher;
        self.at_most(limit)
    }

    fn at_most_of(mut self, limit: f64, peer: Name) -> Self {
        let peer = Some(peer);
        self.bars.push(Bar { limit, peer });
        self
    }

    /// Whether the metric was asked for: by its whole name, or by what stands before the trace.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.name.split('/').next() == Some(name)
    }

    /// The form that all suites share.
    pub(crate) fn to_json(&self, missing: &Value, versions: &Value) -> Value {
        let peers: serde_json::Map<String, Value> = self
            .peers
            .iter()
            .map(|(name, figure)| (name.text().to_owned(), json!(figure)))
            .collect();
        let bars: Vec<Value> = self
            .bars
            .iter()
            .map(|bar| json!({"bar": self.demand(bar), "verdict": self.verdict(bar)}))
            .collect();
        json!({
            "suite": "alloc",
            "metric": self.name,
            "unit": self.unit,
            "outrigger": self.outrigger,
            "peers": peers,
            "better": if self.better == Better::Lower { "lower" } else { "higher" },
            "bars": bars,
            "missing": missing,
            "versions": versions,
        })
    }

    /// The row of the table.
    fn row(&self) -> [String; 5] {
        let peers: Vec<String> = self
            .peers
            .iter()
            .map(|(name, figure)| format!("{} {}", name.text(), number(*figure)))
            .collect();
        let bar = self.bars.first();
        let ours = self.outrigger.map_or("failed".to_owned(), |figure| {
            format!("{} {}", number(figure), self.unit)
        });
        [
            self.name.clone(),
            ours.trim_end().to_owned(),
            bar.map_or(String::new(), |bar| self.demand(bar)),
            bar.map_or("", |bar| self.verdict(bar)).to_owned(),
            peers.join("  "),
        ]
    }

    fn demand(&self, bar: &Bar) -> String {
        let side = match self.better {
            Better::Lower => "at most",
            Better::Higher => "at least",
        };
        match bar.peer {
            Some(peer) => format!("{side} {}x {}", number(bar.limit), peer.text()),
            None => format!("{side} {} {}", number(bar.limit), self.unit),
        }
    }

    fn verdict(&self, bar: &Bar) -> &'static str {
        let Some(ours) = self.outrigger else {
            return "MISSED";
        };
        let scale = match bar.peer {
            None => 1.0,
            Some(peer) => match self.peers.iter().find(|(name, _)| *name == peer) {
                Some((_, figure)) => *figure,
                None => return "unknown",
            },
        };
        let met = match self.better {
            Better::Lower => ours <= bar.limit * scale,
            Better::Higher => ours >= bar.limit * scale,
        };
        if met { "met" } else { "MISSED" }
    }
}

/// The table of metrics.
pub(crate) fn table(metrics: &[Metric]) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(["metric", "outrigger", "bar", "", "peers"])
        .add_rows(metrics.iter().map(Metric::row));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Four digits, however large or small.
fn number(value: f64) -> String {
    if value.abs() >= 1000.0 {
        return format!("{value:.0}");
    }
    let digits = if value.abs() >= 100.0 {
        1
    } else if value.abs() >= 10.0 {
        2
    } else {
        3
    };
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
