//! Statistics of memory as one flat JSON object, under the names of PyTorch's `memory_stats`.

use serde_json::{Map, Value};

use outrigger_allocator::{Stat, Stats};

/// Adds a statistic as `name.class.current` and so on.
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

/// Statistics as a JSON object. The names are those of PyTorch's `memory_stats`, and some more.
pub(crate) fn json(stats: &Stats) -> String {
    let mut to = Map::new();
    for (class, of) in [
        ("all", &stats.all),
        ("small_pool", &stats.small),
        ("large_pool", &stats.large),
    ] {
        for (name, value) in [
            ("allocation", &of.allocations),
            ("segment", &of.segments),
            ("active", &of.active),
            ("inactive_split", &of.inactive_split),
            ("allocated_bytes", &of.allocated_bytes),
            ("reserved_bytes", &of.reserved_bytes),
            ("active_bytes", &of.active_bytes),
            ("inactive_split_bytes", &of.inactive_split_bytes),
            ("requested_bytes", &of.requested_bytes),
        ] {
            stat(&mut to, name, class, value);
        }
    }
    for (name, number) in [
        ("num_device_alloc", stats.device_allocs),
        ("num_device_free", stats.device_frees),
        ("num_alloc_retries", stats.alloc_retries),
        ("num_ooms", stats.ooms),
        ("num_sync_all_streams", stats.sync_all_streams),
        ("num_maps", stats.maps),
        ("num_unmaps", stats.unmaps),
        ("num_views", stats.views),
        ("num_view_reuses", stats.view_reuses),
        ("num_stream_waits", stats.stream_waits),
        ("num_host_waits", stats.host_waits),
    ] {
        to.insert(name.to_owned(), number.into());
    }
    Value::Object(to).to_string()
}
