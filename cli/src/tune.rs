//! `outrigger tune`: the variants of kernels that were chosen for this machine, and the worker that measures them.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use outrigger_device::Driver;
use outrigger_device_ops::Bench;
use outrigger_tuner::{Choice, Tuner};

/// The options of `outrigger tune`. Without any, the choices are shown.
#[derive(Args)]
pub(crate) struct Options {
    /// The operator and the sizes to measure, as `matmul 512x512x512:f32` (rows, columns, depth) or
    /// `convolution 4x64x32x32,128x64x3x3:f32` (input, weight). Several sizes may follow
    #[arg(value_names = ["OPERATOR", "SIZES"])]
    what: Vec<String>,
    /// The driver: a name or a path, with options as in opencl?platform=0
    #[arg(long, env = "OUTRIGGER_DRIVER", default_value = "host")]
    driver: String,
    /// The number of the device within the driver
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Measures also what is known, but for what is pinned
    #[arg(long)]
    again: bool,
    /// Prints JSON, which --pin reads
    #[arg(long)]
    json: bool,
    /// Keeps the choices of a file, as --json prints them. They are not measured again
    #[arg(long, value_name = "FILE", conflicts_with_all = ["what", "forget"])]
    pin: Option<PathBuf>,
    /// Removes all choices, also those that are pinned
    #[arg(long, conflicts_with = "what")]
    forget: bool,
    /// Measures what comes in on standard input
    #[arg(long, hide = true, exclusive = true)]
    worker: bool,
}

/// # Errors
/// What makes no sense, or cannot be measured, read or kept.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if options.worker {
        let mut bench = Bench::default();
        return Ok(outrigger_tuner::serve(|task| bench.measure(task))?);
    }
    // This program is the worker.
    let beside = || outrigger_device::own_directory().into_iter().collect();
    let tuner = Tuner::of_process(beside)?;
    if let Some(path) = &options.pin {
        tuner.pin(&read(path)?)?;
    }
    if options.forget {
        tuner.forget(&tuner.choices()?);
    }
    let choices = match &options.what[..] {
        [] => tuner.choices()?,
        [operator, sizes @ ..] => {
            anyhow::ensure!(!sizes.is_empty(), "`{operator}` has no sizes behind it");
            let mut choices = Vec::new();
            for sizes in sizes {
                let driver = Driver::open(&options.driver.parse()?)?;
                let what = [operator.as_str(), sizes.as_str()];
                choices.push(outrigger_device_ops::tune(
                    driver,
                    options.device,
                    what,
                    options.again,
                )?);
            }
            choices
        }
    };
    let text = if options.json {
        serde_json::to_string_pretty(&choices)? + "\n"
    } else {
        table(&choices)
    };
    // A reader that has closed the output does not want the rest.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<Choice>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("{} cannot be read", path.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is no list of choices, as --json prints it",
            path.display()
        )
    })
}

fn table(choices: &[Choice]) -> String {
    if choices.is_empty() {
        return "nothing was chosen so far: all kernels are the default variants\n".to_owned();
    }
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header([
        "operator", "sizes", "type", "chosen", "time", "others", "device",
    ]);
    for choice in choices {
        let time = |time: Option<u64>| match time {
            Some(time) => format!("{:.1} us", time as f64 / 1e3),
            None => "failed".to_owned(),
        };
        let others = choice
            .measured
            .iter()
            .filter(|(name, _)| **name != choice.chosen);
        let others = others
            .map(|(_, one)| time(*one))
            .collect::<Vec<_>>()
            .join(", ");
        let own = choice.measured.get(&choice.chosen);
        let pinned = if choice.pinned { " (pinned)" } else { "" };
        let question = &choice.question;
        table.add_row([
            question.operator.clone(),
            question.class.clone(),
            question.dtype.clone(),
            format!("{}{pinned}", choice.chosen),
            own.map_or_else(String::new, |own| time(*own)),
            others,
            format!("{} of {}", question.device, question.driver),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt() + "\n"
}
