//! A trace in memory, ready for replay: small operations with dense numbers. It must never change what a
//! trace says: sizes, order and streams are those of the file.

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use outrigger_allocator::{StreamId, trace};

/// The streams of the simulated device. A trace may use half of them, since two threads replay it side by
/// side with streams of their own.
pub(crate) const STREAMS: usize = 8;

/// Steps of a trace that may warm up an allocator. A mark begins a step.
pub(crate) const WARM_UP_STEPS: u32 = 3;

/// One line of a trace. `id` counts from 0 and stands for one allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Allocates bytes for work on a stream.
    Alloc { id: u32, size: u64, stream: u16 },
    /// Frees what was allocated.
    Free { id: u32 },
    /// Announces a use on another stream.
    Record { id: u32, stream: u16 },
    /// The device is idle here; a step begins.
    Mark,
}

/// A trace and what is known of it before any replay.
pub(crate) struct Trace {
    /// The name of its file, without extensions.
    pub(crate) name: String,
    pub(crate) ops: Vec<Op>,
    /// Number of allocations.
    pub(crate) allocations: usize,
    /// Most bytes in use at a time, as asked for.
    pub(crate) peak: u64,
    /// Most allocations in use at a time.
    pub(crate) peak_count: usize,
    /// False if its steps are no repetitions of each other, as those of a decoder whose cache grows.
    pub(crate) is_training: bool,
}

impl Trace {
    /// Bytes allocated after the first steps, as asked for.
    pub(crate) fn late_bytes(&self) -> u64 {
        let mut marks = 0;
        let mut bytes = 0;
        for op in &self.ops {
            match *op {
                Op::Mark => marks += 1,
                Op::Alloc { size, .. } if marks > WARM_UP_STEPS => bytes += size,
                _ => {}
            }
        }
        bytes
    }
}

/// All traces of a folder, sorted by name: files `*.trace` and `*.trace.zst`.
///
/// # Errors
/// If the folder has none, or one cannot be read.
pub(crate) fn load_folder(folder: &Path) -> anyhow::Result<Vec<Trace>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("{} cannot be listed", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.to_string_lossy();
        if name.ends_with(".trace") || name.ends_with(".trace.zst") {
            files.push(path);
        }
    }
    files.sort();
    ensure!(
        !files.is_empty(),
        "{} has no files *.trace or *.trace.zst",
        folder.display()
    );
    files.into_iter().map(load).collect()
}

fn load(path: PathBuf) -> anyhow::Result<Trace> {
    let trace = read(&path).with_context(|| path.display().to_string())?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.split('.').next().unwrap_or_default().to_owned();
    let mut decodes = false;
    let mut ops = Vec::with_capacity(trace.ops.len());
    for op in &trace.ops {
        ops.push(match *op {
            trace::Op::Alloc { id, bytes, stream } => Op::Alloc {
                id: id as u32,
                size: bytes,
                stream: number(stream)?,
            },
            trace::Op::Free { id } => Op::Free { id: id as u32 },
            trace::Op::Record { id, stream } => Op::Record {
                id: id as u32,
                stream: number(stream)?,
            },
            trace::Op::Mark { text } => {
                decodes |= trace.text(text).starts_with("dec");
                Op::Mark
            }
            // Neither asks for memory.
            trace::Op::Label { .. } | trace::Op::OutOfMemory { .. } => continue,
        });
    }
    Ok(Trace {
        peak_count: peak_count(&ops),
        name,
        ops,
        allocations: trace.allocations,
        peak: trace.peak_requested(),
        is_training: !decodes,
    })
}

fn read(path: &Path) -> anyhow::Result<trace::Trace> {
    let file = BufReader::new(fs::File::open(path)?);
    if path.extension().is_some_and(|extension| extension == "zst") {
        let decoder = ruzstd::decoding::StreamingDecoder::new(file)?;
        return Ok(trace::Trace::load(BufReader::new(decoder))?);
    }
    Ok(trace::Trace::load(file)?)
}

fn number(stream: StreamId) -> anyhow::Result<u16> {
    ensure!(
        stream.0 < STREAMS as u64 / 2,
        "stream {}: streams are numbered from 0 to {}",
        stream.0,
        STREAMS / 2 - 1
    );
    Ok(stream.0 as u16)
}

fn peak_count(ops: &[Op]) -> usize {
    let (mut count, mut peak) = (0_usize, 0);
    for op in ops {
        match op {
            Op::Alloc { .. } => count += 1,
            Op::Free { .. } => count -= 1,
            Op::Record { .. } | Op::Mark => {}
        }
        peak = peak.max(count);
    }
    peak
}
