//! `outrigger info`: the drivers that can be opened, their devices, and why others were refused.
//!
//! No device is opened here: another program may need the memory that it takes.

use std::io::Write as _;

use anyhow::bail;
use clap::Args;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use outrigger_device::{DeviceProperties, Driver, default_search_path};
use outrigger_device_ops::with_kernels;
use outrigger_layers::Stack;

/// The options of `outrigger info`.
#[derive(Args)]
pub(crate) struct Options {
    /// Drivers, separated by commas: names or paths, with options as in host?devices=1
    #[arg(long, env = "OUTRIGGER_DRIVER", default_value = "host")]
    driver: String,
}

/// Tells of all drivers and devices.
///
/// # Errors
/// No driver could be opened; the message holds the reason of each. `OUTRIGGER_LAYERS` makes no sense.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (drivers, report) = outrigger_device::load(&options.driver, &default_search_path());
    if drivers.is_empty() {
        bail!("no driver could be opened\n{report}");
    }
    let mut table = Table::new();
    table.load_style(NOTHING);
    let layers = Stack::from_environment()?;
    if !layers.is_empty() {
        table.add_row(["layers".to_owned(), layers.to_string()]);
    }
    let mut number = 0;
    for driver in drivers {
        describe(&with_kernels(driver)?, &mut number, &mut table);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = table.trim_fmt() + "\n";
    for candidate in &report.candidates {
        if matches!(candidate.outcome, outrigger_device::Outcome::Refused { .. }) {
            text += &format!("{candidate}\n");
        }
    }
    // A reader that has closed the output does not want the rest.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(())
}

fn describe(driver: &Driver, number: &mut u32, table: &mut Table) {
    let (major, minor) = driver.api_version();
    let vendor = match driver.vendor() {
        "" => String::new(),
        vendor => format!(" by {vendor}"),
    };
    let mut line = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    line(
        "driver",
        format!(
            "{} {}{vendor}, contract {major}.{minor}",
            driver.name(),
            driver.version()
        ),
    );
    line("offers", offers(driver));
    for ordinal in 0..driver.device_count() {
        // Every ordinal below the count has properties.
        if let Ok(properties) = driver.properties(ordinal) {
            line(&format!("device {number}"), properties.name.clone());
            for (name, value) in rows(&properties) {
                line(&format!("  {name}"), value);
            }
        }
        *number += 1;
    }
}

/// The optional parts of the contract that the driver fills.
fn offers(driver: &Driver) -> String {
    let parts = [
        ("memory info", driver.as_raw().memory_info().is_some()),
        ("pinned memory", driver.pinned().is_some()),
        ("virtual memory", driver.virtual_memory().is_some()),
        ("shared memory", driver.ipc().is_some()),
        ("peer copies", driver.peer().is_some()),
        ("timestamps", driver.as_raw().timing().is_some()),
        ("operators", driver.operators().is_some()),
        ("graphs", driver.native_graphs().is_some()),
        ("collectives", driver.collectives().is_some()),
        ("native queues", driver.shares_native_queues()),
        ("file descriptors", driver.external().is_ok()),
    ];
    let named: Vec<&str> = parts
        .iter()
        .filter_map(|&(name, offered)| offered.then_some(name))
        .collect();
    if named.is_empty() {
        return "the mandatory part only".to_owned();
    }
    named.join(", ")
}

/// The properties of a device, as pairs of name and value.
fn rows(properties: &DeviceProperties) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if !properties.vendor.is_empty() {
        rows.push(("vendor", properties.vendor.clone()));
    }
    rows.push(("memory", gibibytes(properties.total_memory)));
    for (kind, bytes) in properties.memory.iter().enumerate().skip(1) {
        if *bytes > 0 {
            rows.push(("memory", format!("{} of kind {kind}", gibibytes(*bytes))));
        }
    }
    let visible = if properties.host_visible() {
        "are host pointers"
    } else {
        "mean nothing to the host"
    };
    rows.push((
        "addresses",
        format!(
            "{visible}; aligned to {} bytes",
            properties.address_alignment
        ),
    ));
    if properties.compute_units > 0 {
        rows.push(("units", properties.compute_units.to_string()));
    }
    let (urgent, least) = (properties.priority_highest, properties.priority_lowest);
    if urgent != least {
        rows.push(("priorities", format!("{urgent} (most urgent) to {least}")));
    }
    for (name, rate, unit) in [
        ("bandwidth", properties.peak_bytes_per_second, "GB/s"),
        ("f32", properties.peak_flops_f32, "GFLOP/s"),
        ("f16", properties.peak_flops_f16, "GFLOP/s"),
    ] {
        if rate > 0 {
            rows.push((name, format!("{:.1} {unit}", rate as f64 / 1e9)));
        }
    }
    if let Some(place) = properties.pci {
        rows.push(("pci", place.to_string()));
    }
    if let Some(node) = properties.numa_node {
        rows.push(("numa node", node.to_string()));
    }
    if properties.uuid != [0; 16] {
        let digits = properties.uuid.iter().map(|byte| format!("{byte:02x}"));
        rows.push(("uuid", digits.collect()));
    }
    rows
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}
