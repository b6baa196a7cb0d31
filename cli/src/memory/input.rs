//! Tells traces and snapshots apart by their contents, and reads them.
//!
//! A file is never trusted: nothing in it is run, and an error names what is wrong.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, bail};
use outrigger_allocator::trace::Trace;

use super::pickle;
use super::snapshot::Snapshot;

/// The contents of a file.
pub(super) enum Input {
    /// The requests of a program.
    Trace(Trace),
    /// The memory that an allocator held, and perhaps its events before.
    Snapshot(Box<Snapshot>),
}

const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A pickle since protocol 2 begins with this and the number of the protocol.
const PICKLE: u8 = 0x80;

/// Reads a file of any kind that [`Input`] knows, compressed by zstd or not.
///
/// # Errors
/// It cannot be read, is of no such kind, or is wrong.
pub(super) fn read(path: &Path) -> anyhow::Result<Input> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("{name} cannot be opened"))?;
    let mut plain = BufReader::with_capacity(1 << 18, file);
    let head = plain
        .fill_buf()
        .with_context(|| format!("{name} cannot be read"))?;
    if head.starts_with(&ZSTD) {
        let decoder = ruzstd::decoding::StreamingDecoder::new(plain)
            .with_context(|| format!("{name} cannot be decompressed"))?;
        parse(BufReader::with_capacity(1 << 18, decoder)).with_context(|| name.to_string())
    } else {
        parse(plain).with_context(|| name.to_string())
    }
}

fn parse(mut input: impl BufRead) -> anyhow::Result<Input> {
    let head = input.fill_buf()?;
    match head.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => bail!("is empty"),
        Some(b'{' | b'[') => {
            // Whole in memory: serde_json reads a slice several times faster than a stream.
            let mut text = Vec::new();
            input.read_to_end(&mut text)?;
            let snapshot = serde_json::from_slice(&text).context("is no snapshot of memory")?;
            Ok(Input::Snapshot(Box::new(snapshot)))
        }
        Some(&PICKLE) => {
            let mut bytes = Vec::new();
            input.read_to_end(&mut bytes)?;
            let snapshot =
                pickle::from_slice(&bytes).context("is a pickle, but not a snapshot of memory")?;
            Ok(Input::Snapshot(Box::new(snapshot)))
        }
        Some(b'#' | b'a' | b'm') => Ok(Input::Trace(Trace::load(input)?)),
        Some(_) => bail!(
            "is neither a trace (text that begins with `# alloctrace v1`, also compressed by zstd) \
             nor a snapshot (JSON, or a pickle)"
        ),
    }
}
