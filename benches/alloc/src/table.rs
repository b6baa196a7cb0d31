//! The table of replays: what each trace made Outrigger, and PyTorch's own allocator, ask of the device. It
//! only prints.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::calls::Costs;
use crate::replay::Outcome;
use crate::subjects::{Measured, Name};
use crate::trace::Trace;

const COLUMNS: [&str; 20] = [
    "trace", "asked", "held", "frag%", "malloc", "free", "create", "destroy", "map", "access",
    "unmap", "waits", "order", "stall ms", "late", "min cap", "1t ns", "2t ns", "B/block",
    "checks",
];

/// The rows so far. They are printed together: widths follow from all of them.
pub(crate) struct Replays {
    table: Table,
}

impl Replays {
    /// The names of the columns, and no row.
    pub(crate) fn new() -> Self {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(COLUMNS);
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if at != 0 && at + 1 != COLUMNS.len() {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self { table }
    }

    /// Adds the row of an allocator on a trace, and the one at its smallest capacity.
    pub(crate) fn add(&mut self, name: Name, trace: &Trace, measured: &Measured, costs: &Costs) {
        let Some(outcome) = &measured.outcome else {
            return;
        };
        let first = match name {
            Name::Outrigger => trace.name.clone(),
            other => format!("  {}", other.text()),
        };
        let smallest = measured.smallest.map_or(String::new(), |(bytes, _)| {
            format!("{:.3}", bytes as f64 / trace.peak as f64)
        });
        let mut cells = vec![first];
        cells.extend(of_outcome(outcome, trace, costs));
        cells.push(smallest);
        for time in measured.pair_ns {
            cells.push(time.map_or(String::new(), |ns| format!("{:.0}", ns.median)));
        }
        cells.push(measured.bookkeeping.map_or(String::new(), |b| {
            format!("{:.0}", b.bytes as f64 / b.blocks as f64)
        }));
        let verdict = match name {
            _ if !outcome.fits => "OUT OF MEMORY",
            Name::Outrigger if measured.complaints().next().is_none() => "good",
            Name::Outrigger => "BAD",
            _ => "",
        };
        cells.push(verdict.to_owned());
        self.table.add_row(cells);
        if let Some((_, outcome)) = &measured.smallest {
            let mut cells = vec!["    at its min cap".to_owned()];
            cells.extend(of_outcome(outcome, trace, costs));
            self.table.add_row(cells);
        }
    }

    /// Prints all rows.
    pub(crate) fn print(&self) {
        println!("{}", self.table.trim_fmt());
    }
}

/// The problems of Outrigger on a trace: a line for each.
pub(crate) fn complain(trace: &Trace, measured: &Measured) {
    for complaint in measured.complaints() {
        println!("{}: {complaint}", trace.name);
    }
}

/// The bytes of bookkeeping, and the use of memory when most was held: a line for each size of object.
pub(crate) fn explain(trace: &Trace, measured: &Measured) {
    println!("{}", trace.name);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    if let Some(bookkeeping) = measured.bookkeeping {
        println!(
            "    bookkeeping takes {} bytes of the host for {} live blocks",
            bookkeeping.bytes, bookkeeping.blocks
        );
    }
    for checks in &measured.checks {
        let (operation, shares) = &checks.peak;
        println!("    most is held at operation {operation}, in MiB:");
        let mut table = Table::new();
        table.load_style(NOTHING).set_header([
            "objects",
            "size",
            "in use",
            "idle beside it",
            "idle in whole objects",
        ]);
        table.add_rows(shares.iter().map(|(size, share)| {
            [
                share.objects.to_string(),
                format!("{:.1}", mib(*size)),
                format!("{:.2}", mib(share.used)),
                format!("{:.2}", mib(share.idle_beside)),
                format!("{:.2}", mib(share.idle)),
            ]
        }));
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((if at == 0 { 4 } else { 0 }, 2));
            column.set_cell_alignment(CellAlignment::Right);
        }
        println!("{}", table.trim_fmt());
    }
}

fn of_outcome(outcome: &Outcome, trace: &Trace, costs: &Costs) -> Vec<String> {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let calls = &outcome.calls;
    let counts = [
        calls.allocs,
        calls.frees,
        calls.creates,
        calls.destroys,
        calls.maps,
        calls.accesses,
        calls.unmaps,
        calls.waits,
        calls.orders,
    ];
    let mut cells = vec![
        mib(trace.peak),
        mib(outcome.held),
        format!("{:.2}", outcome.fragmentation(trace)),
    ];
    cells.extend(counts.map(|count| count.to_string()));
    cells.push(format!("{:.2}", costs.stall_ms(calls)));
    let late = outcome.late_calls_per_gib(trace);
    cells.push(late.map_or("-".to_owned(), |late| format!("{late:.2}")));
    cells
}
