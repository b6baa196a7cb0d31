//! A table of calls: how each ended, and those that were never called or never failed: a call that nobody makes must
//! be seen.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use outrigger_device::Code;

use crate::library::{CODES, NAMES};

/// Entries that cannot fail, and why.
const NEVER_FAIL: [(&str, &str); 20] = [
    ("status_code", "returns no status"),
    ("status_new", "returns the status of the host"),
    ("status_message", "returns no status"),
    ("status_operator", "returns no status"),
    ("status_stream", "returns no status"),
    ("status_submission", "returns no status"),
    ("status_free", "returns no status"),
    ("string_free", "returns no status"),
    ("version", "returns no status"),
    (
        "fallback_reset",
        "has no arguments and no state that could forbid it",
    ),
    ("fallback_end", "counts; fails without a name only"),
    (
        "host_empty_cache",
        "has no arguments; a driver does not refuse to take memory back",
    ),
    ("host_reset_peak", "has no arguments"),
    ("host_reset_accumulated", "has no arguments"),
    ("host_set_limit", "takes any number"),
    ("memory_set_process_limit", "takes any number"),
    ("runtime_init", "fails before the first success only"),
    ("set_parallel_for", "takes any function, and none"),
    ("set_threads", "takes any number"),
    ("load_report", "fails without a place for the text only"),
];

/// Entries that need code for a device, which no driver of the soak compiles. They are called to fail only.
const NEVER_SUCCEED: [&str; 9] = [
    "graph_name_argument",
    "graph_bind_argument",
    "graph_add_kernel",
    "module_load",
    "module_query",
    "module_destroy",
    "kernel_get",
    "kernel_destroy",
    "kernel_launch",
];

/// Calls by entry and code.
pub(crate) type Tally = Vec<Vec<u64>>;

/// Adds what one scene has called.
pub(crate) fn add(sum: &mut Tally, other: &Tally) {
    sum.resize(NAMES.len(), vec![0; CODES]);
    for (sum, other) in sum.iter_mut().zip(other) {
        for (sum, other) in sum.iter_mut().zip(other) {
            *sum += other;
        }
    }
}

/// A line for each entry: how often it succeeded, and how often it failed with which code.
pub(crate) fn table(tally: &Tally) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["entry", "succeeded", "failed"]);
    for (name, calls) in NAMES.iter().zip(tally) {
        let failed = calls.iter().enumerate().skip(1);
        let failed: Vec<String> = failed
            .filter(|(_, times)| **times != 0)
            .map(|(code, times)| format!("{} {times}", Code(code as i32)))
            .collect();
        table.add_row([(*name).to_owned(), calls[0].to_string(), failed.join("  ")]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    if let Some(succeeded) = table.column_mut(1) {
        succeeded.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt() + "\n"
}

/// Entries that can succeed and never did, or that can fail and never did.
pub(crate) fn missing(tally: &Tally) -> Vec<String> {
    let mut missing = Vec::new();
    for (name, calls) in NAMES.iter().zip(tally) {
        if calls[0] == 0 && !NEVER_SUCCEED.contains(name) {
            missing.push(format!("{name} never succeeded"));
        }
        let can_fail = NEVER_FAIL.iter().all(|(entry, _)| entry != name);
        if can_fail && calls[1..].iter().sum::<u64>() == 0 {
            missing.push(format!("{name} never failed"));
        }
    }
    missing
}
