//! The table of all traces. It only prints.

use crate::calls::Costs;
use crate::replay::Outcome;
use crate::trace::Trace;

/// What was measured of one trace.
pub(crate) struct Row<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) outcome: Outcome,
    /// The smallest capacity in bytes, and what happens there.
    pub(crate) smallest: Option<(u64, Outcome)>,
    pub(crate) searched: bool,
    /// Nanoseconds per pair on one and on two threads.
    pub(crate) times: Option<[Option<f64>; 2]>,
    pub(crate) complaints: Vec<String>,
}

/// The names of the columns.
pub(crate) fn head() {
    println!(
        "{:<26}{:>9}{:>9}{:>7} {:>6}{:>6}{:>6}{:>6}{:>6}{:>6}{:>6}{:>6}{:>6}{:>9}{:>7}{:>8}{:>8}  checks",
        "trace",
        "asked",
        "held",
        "frag%",
        "alloc",
        "free",
        "create",
        "destr",
        "maps",
        "range",
        "unmap",
        "waits",
        "order",
        "stall ms",
        "late",
        "min cap",
        "1t 2t ns"
    );
}

impl Row<'_> {
    /// One line, and one for each complaint.
    pub(crate) fn print(&self, costs: &Costs) {
        let calls = &self.outcome.calls;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let smallest = match (&self.smallest, self.searched) {
            (Some((capacity, _)), _) => format!("{:.3}", *capacity as f64 / self.trace.peak as f64),
            (None, true) => "none".to_owned(),
            (None, false) => String::new(),
        };
        let times: Vec<String> = self
            .times
            .iter()
            .flatten()
            .map(|time| time.map_or("-".to_owned(), |ns| format!("{ns:.0}")))
            .collect();
        let late = if self.outcome.late_bytes == 0 {
            "-".to_owned()
        } else {
            let gib = self.outcome.late_bytes as f64 / f64::from(1 << 30);
            format!("{:.2}", self.outcome.late_calls.memory() as f64 / gib)
        };
        println!(
            "{:<26}{:>9.1}{:>9.1}{:>7.2} {:>6}{:>6}{:>6}{:>6}{:>6}{:>6}{:>6}{:>6}{:>6}{:>9.2}{:>7}{:>8}{:>8}  {}",
            self.trace.name,
            mib(self.trace.peak),
            mib(self.outcome.held),
            self.outcome.fragmentation(self.trace),
            calls.allocs,
            calls.frees,
            calls.creates,
            calls.destroys,
            calls.maps,
            calls.accesses,
            calls.unmaps,
            calls.waits,
            calls.orders,
            costs.stall_ms(calls),
            late,
            smallest,
            times.join(" "),
            if !self.outcome.fits {
                "OUT OF MEMORY"
            } else if self.complaints.is_empty() {
                "good"
            } else {
                "BAD"
            }
        );
        for complaint in &self.complaints {
            println!("    {complaint}");
        }
    }
}

/// The means and the worst.
pub(crate) fn summary(rows: &[Row<'_>], costs: &Costs) {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let most = |values: &[f64]| values.iter().copied().fold(f64::MIN, f64::max);
    let frag: Vec<f64> = rows
        .iter()
        .map(|row| row.outcome.fragmentation(row.trace))
        .collect();
    let stalls: Vec<f64> = rows
        .iter()
        .map(|row| costs.stall_ms(&row.outcome.calls))
        .collect();
    print!(
        "frag mean {:.2} % worst {:.2} %; stall mean {:.2} ms",
        mean(&frag),
        most(&frag),
        mean(&stalls)
    );
    for threads in 0..2 {
        let times: Vec<f64> = rows.iter().filter_map(|row| row.times?[threads]).collect();
        if !times.is_empty() {
            print!("; {}t {:.1} ns", threads + 1, mean(&times));
        }
    }
    if rows.iter().any(|row| row.searched) {
        for bound in [1.02, 1.05] {
            let fitting = rows.iter().filter(|row| {
                let smallest = row.smallest.as_ref();
                smallest.is_some_and(|(bytes, _)| *bytes as f64 <= bound * row.trace.peak as f64)
            });
            print!("; within {bound}x {} of {}", fitting.count(), rows.len());
        }
    }
    println!();
}
