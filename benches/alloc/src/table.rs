//! The table of replays: what each trace made Outrigger, and PyTorch's own allocator, ask of the device. It
//! only prints.

use crate::calls::Costs;
use crate::replay::Outcome;
use crate::subjects::{Measured, Name};
use crate::trace::Trace;

const COLUMNS: [(&str, usize); 19] = [
    ("trace", 26),
    ("asked", 9),
    ("held", 9),
    ("frag%", 7),
    ("malloc", 7),
    ("free", 6),
    ("create", 7),
    ("destroy", 8),
    ("map", 7),
    ("access", 7),
    ("unmap", 6),
    ("waits", 6),
    ("order", 6),
    ("stall ms", 9),
    ("late", 7),
    ("min cap", 8),
    ("1t ns", 7),
    ("2t ns", 7),
    ("B/block", 8),
];

/// The names of the columns.
pub(crate) fn head() {
    let cells: Vec<String> = COLUMNS.iter().map(|(name, _)| (*name).to_owned()).collect();
    print(&cells, "checks");
}

fn print(cells: &[String], end: &str) {
    let mut text = String::new();
    for (at, (cell, (_, width))) in cells.iter().zip(&COLUMNS).enumerate() {
        text += &if at == 0 {
            format!("{cell:<width$}")
        } else {
            format!("{cell:>width$}")
        };
    }
    println!("{text}  {end}");
}

/// One line for an allocator on a trace, and one for each thing that was found wrong.
pub(crate) fn row(name: Name, trace: &Trace, measured: &Measured, costs: &Costs) {
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
    print(&cells, verdict);
    for complaint in measured.complaints() {
        println!("    {complaint}");
    }
    if let Some((_, outcome)) = &measured.smallest {
        let mut cells = vec!["    at its min cap".to_owned()];
        cells.extend(of_outcome(outcome, trace, costs));
        print(&cells, "");
    }
}

/// What bookkeeping took, and how memory was used when most was held: a line for each size of object.
pub(crate) fn explain(measured: &Measured) {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    if let Some(bookkeeping) = measured.bookkeeping {
        println!(
            "    bookkeeping takes {} bytes of the host for {} live blocks",
            bookkeeping.bytes, bookkeeping.blocks
        );
    }
    for checks in &measured.checks {
        let (operation, shares) = &checks.peak;
        println!("    most is held at operation {operation}:");
        for (size, share) in shares {
            println!(
                "    {:>5} objects of {:>8.1} MiB: {:>9.2} MiB in use, {:>8.2} idle beside it, {:>8.2} idle in whole objects",
                share.objects,
                mib(*size),
                mib(share.used),
                mib(share.idle_beside),
                mib(share.idle)
            );
        }
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
