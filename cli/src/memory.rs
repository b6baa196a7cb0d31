//! `outrigger memory FILE`: makes a page for a browser from a trace or a snapshot. The page needs no
//! network.
//!
//! A file is read into a *story*: what was allocated, mapped and freed, in order. A trace has no
//! addresses, so it is first replayed through the real allocator over a simulated device. The page is
//! made only from the story. This code must never touch a real device.

mod device;
mod input;
mod page;
mod pickle;
mod replay;
mod snapshot;
mod story;
mod tape;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use input::Input;
use story::{Figures, Story};

/// The options of `outrigger memory`.
#[derive(Args)]
pub(crate) struct Options {
    /// A trace of allocations (text, also compressed by zstd), or a snapshot: JSON, or a pickle as
    /// PyTorch writes it
    file: PathBuf,
    /// The page [default: FILE with the ending .html, in the current folder]
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Opens the page in the browser
    #[arg(long)]
    open: bool,
    /// The device of a snapshot to draw
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    device: u32,
    #[command(flatten)]
    replay: replay::Simulation,
}

/// Makes the page.
///
/// # Errors
/// The file cannot be read, is neither a trace nor a snapshot, or the page cannot be written.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let name = options.file.display();
    let told = match input::read(&options.file)? {
        Input::Trace(trace) => replay::tell(&trace, &options.replay),
        Input::Snapshot(snapshot) => snapshot::tell(*snapshot, options.device),
    };
    let mut story = told.with_context(|| name.to_string())?;
    if story.title.is_empty() {
        story.title = stem(&options.file);
    }
    let output = match &options.output {
        Some(output) => output.clone(),
        None => PathBuf::from(format!("{}.html", stem(&options.file))),
    };
    let page = page::render(&story)?;
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(&output)?);
        file.write_all(page.as_bytes())?;
        file.flush()
    };
    write().with_context(|| format!("{} cannot be written", output.display()))?;
    let mut out = std::io::stdout().lock();
    let summary = summary(&story, &output, page.len());
    // A reader that has closed the output does not want the summary.
    let _ = out.write_all(summary.as_bytes());
    if options.open {
        open(&output)?;
    }
    Ok(())
}

/// The name of a file without folder and without the endings that this command knows.
fn stem(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let mut stem = name.as_ref();
    for ending in [".zst", ".trace", ".json", ".pickle", ".pkl"] {
        stem = stem.strip_suffix(ending).unwrap_or(stem);
    }
    if stem.is_empty() { "memory" } else { stem }.to_owned()
}

fn summary(story: &Story, output: &Path, bytes: usize) -> String {
    let Figures {
        peak_requested,
        peak_reserved,
        ..
    } = story.figures();
    let mut text = format!(
        "{}: {} operations, {} allocations, peak requested {}, peak reserved {}",
        story.title,
        story.ops,
        story.blocks.len(),
        mebibytes(peak_requested),
        mebibytes(peak_reserved),
    );
    if !story.failures.is_empty() {
        text += &format!(", {} requests failed", story.failures.len());
    }
    text + &format!("\n{} ({})\n", output.display(), mebibytes(bytes as u64))
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

/// Opens the page with the desktop's program for pages.
fn open(page: &Path) -> anyhow::Result<()> {
    let page = fs::canonicalize(page)?;
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let status = std::process::Command::new(program)
        .arg(&page)
        .status()
        .with_context(|| format!("`{program}` cannot be started: open {}", page.display()))?;
    if !status.success() {
        bail!("`{program}` found no browser: open {}", page.display());
    }
    Ok(())
}
