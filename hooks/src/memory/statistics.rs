//! Statistics of memory under the names of PyTorch's `memory_stats`, flat, as JSON.

use serde_json::{Map, Value};

use outrigger_allocator::{Stat, Stats};

/// Puts a statistic under `name.class.current` and so on.
fn stat(to: &mut Map<String, Value>, name: &str, class: &str, value: &Stat) {
    let fields = [
        ("current", value.current),
        ("peak", value.peak),
        ("allocated", value.allocated),
        ("freed", value.freed),
    ];
    for (field, number) in fields {
        to.insert(format!("{name}.{class}.{field}"), number.into());
    }
}

/// Statistics as JSON: one object, whose names are those of PyTorch's `memory_stats`. `classes` are the
/// parts that are told apart beside `all`.
pub(crate) fn json(all: &Stats, classes: &[(&str, &Stats)]) -> String {
    let mut to = Map::new();
    let every = [("all", all)];
    for (class, stats) in every.iter().chain(classes) {
        for (name, value) in [
            ("allocation", &stats.allocations),
            ("segment", &stats.segments),
            ("active", &stats.active),
            ("inactive_split", &stats.inactive_split),
            ("allocated_bytes", &stats.allocated_bytes),
            ("reserved_bytes", &stats.reserved_bytes),
            ("active_bytes", &stats.active_bytes),
            ("inactive_split_bytes", &stats.inactive_split_bytes),
            ("requested_bytes", &stats.requested_bytes),
        ] {
            stat(&mut to, name, class, value);
        }
    }
    for (name, number) in [
        ("num_device_alloc", all.device_allocs),
        ("num_device_free", all.device_frees),
        ("num_alloc_retries", all.alloc_retries),
        ("num_ooms", all.ooms),
        ("num_sync_all_streams", all.sync_all_streams),
    ] {
        to.insert(name.to_owned(), number.into());
    }
    Value::Object(to).to_string()
}
