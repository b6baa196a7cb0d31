//! `outrigger ops`: where each operator runs on a device, for each element type.
//!
//! The driver and the host kernels are asked with a small call of each operator. Work must never be submitted.

use std::io::Write as _;

use anyhow::Context as _;
use clap::Args;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use outrigger_device::{DType, Driver, default_search_path};
use outrigger_device_ops::with_kernels;
use outrigger_layers::Stack;
use outrigger_ops::catalog::samples::Sample;
use outrigger_ops::{Door, OperatorId, plan};
use serde_json::{Map, Value, json};
use tracing_subscriber::EnvFilter;

/// The options of `outrigger ops`.
#[derive(Args)]
pub(crate) struct Options {
    /// The driver: a name or a path, with options as in host?devices=1
    #[arg(long, env = "OUTRIGGER_DRIVER", default_value = "host")]
    driver: String,
    /// The number of the device within the driver
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Prints JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// The element types of the columns.
const DTYPES: [DType; 12] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U8,
    DType::BOOL,
    DType::C64,
    DType::C128,
];

/// The part of the system that runs an operator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// The driver has it.
    Driver,
    /// The driver has its parts, or its queue does it.
    Parts,
    /// A host kernel, on a device that is the CPU.
    Device,
    /// A host kernel, on another device.
    HostKernel,
    /// Nowhere but in the framework, if it can.
    Framework,
}

impl Where {
    const ALL: [Self; 5] = [
        Self::Driver,
        Self::Parts,
        Self::Device,
        Self::HostKernel,
        Self::Framework,
    ];

    /// The letter of the table, the word of the JSON, and what it means.
    fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Driver => ("D", "driver", "an operator of the driver"),
            Self::Parts => (
                "P",
                "parts",
                "on the device, made of other operators or commands of the driver",
            ),
            Self::Device => ("d", "device", "a host kernel; the device is the CPU"),
            Self::HostKernel => (
                "h",
                "host_kernel",
                "a host kernel on the CPU, over the device's memory",
            ),
            Self::Framework => (
                "\u{b7}",
                "framework",
                "only the framework's own kernel, on the CPU",
            ),
        }
    }
}

fn ask(door: &Door, id: OperatorId, dtype: DType) -> anyhow::Result<Where> {
    let Some(sample) = Sample::new(id, dtype) else {
        return Ok(Where::Framework);
    };
    sample.with(|call| {
        if door.offers(id) && door.find(id, call).ok().flatten().is_some() {
            return Ok(Where::Driver);
        }
        if door.compose(id, call).ok().flatten().is_some() {
            return Ok(Where::Parts);
        }
        if plan(id, call).is_err() || !door.runs_host_kernels()? {
            return Ok(Where::Framework);
        }
        Ok(if door.is_cpu() {
            Where::Device
        } else {
            Where::HostKernel
        })
    })
}

/// Logs to standard error what `OUTRIGGER_LOG` asks for, such as the kernels that the device's compiler refuses.
fn log() -> anyhow::Result<()> {
    let directives = std::env::var("OUTRIGGER_LOG").unwrap_or_default();
    if directives.is_empty() {
        return Ok(());
    }
    let filter = EnvFilter::try_new(&directives);
    let filter = filter.with_context(|| format!("OUTRIGGER_LOG={directives}"))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter);
    let subscriber = subscriber.with_writer(std::io::stderr);
    subscriber.try_init().map_err(anyhow::Error::from_boxed)
}

/// Tells where each operator runs.
///
/// # Errors
/// The driver cannot be opened, or has no such device. `OUTRIGGER_LAYERS` or `OUTRIGGER_LOG` makes no sense.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    log()?;
    let (drivers, report) = outrigger_device::load(&options.driver, &default_search_path());
    let driver = drivers.into_iter().next();
    let driver = driver.with_context(|| format!("no driver could be opened\n{report}"))?;
    let driver = Stack::from_environment()?.apply(with_kernels(driver)?)?;
    let door = Door::new(&driver, options.device, &driver.properties(options.device)?)?;
    let mut rows = Vec::new();
    for id in OperatorId::all() {
        let places = DTYPES.map(|dtype| ask(&door, id, dtype));
        let places: Vec<Where> = places.into_iter().collect::<anyhow::Result<_>>()?;
        rows.push((id.name().to_string_lossy().into_owned(), places));
    }
    let others = others(&driver, options.device)?;
    let text = if options.json {
        let text = json!({
            "driver": driver.name(),
            "device": options.device,
            "operators": rows.iter().map(as_json).collect::<Vec<_>>(),
            "others": others,
        });
        format!("{text:#}\n")
    } else {
        table(&rows, &others)
    };
    // A reader that has closed the output does not want the rest.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(())
}

/// The driver's operators by schema names, which are asked for with what a framework calls them with.
fn others(driver: &Driver, device: u32) -> anyhow::Result<Vec<String>> {
    let Some(operators) = driver.operators() else {
        return Ok(Vec::new());
    };
    let names = operators.names(device)?.into_iter();
    let others = names.filter(|name| OperatorId::find(name).is_some_and(|id| id.entry().is_none()));
    let mut others: Vec<String> = others
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    others.sort();
    Ok(others)
}

fn as_json((name, places): &(String, Vec<Where>)) -> Value {
    let cells = DTYPES.iter().zip(places);
    let cells = cells.map(|(dtype, place)| (dtype.name().to_owned(), place.words().1.into()));
    json!({"name": name, "places": cells.collect::<Map<_, _>>()})
}

fn table(rows: &[(String, Vec<Where>)], others: &[String]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    let head = DTYPES.iter().map(|dtype| dtype.name().to_owned());
    table.set_header(std::iter::once("operator".to_owned()).chain(head));
    for (name, places) in rows {
        let cells = places.iter().map(|place| place.words().0.to_owned());
        table.add_row(std::iter::once(name.clone()).chain(cells));
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if at > 0 {
            column.set_cell_alignment(CellAlignment::Center);
        }
    }
    let mut text = table.trim_fmt() + "\n\n";
    for place in Where::ALL {
        let is_here = |(_, places): &&(String, Vec<Where>)| places.contains(&place);
        let count = rows.iter().filter(is_here).count();
        if count > 0 {
            let (letter, _, meaning) = place.words();
            text += &format!("{letter}  {meaning} ({count} operators)\n");
        }
    }
    if !others.is_empty() {
        text += &format!("\nand by schema name: {}\n", others.join(", "));
    }
    text
}
