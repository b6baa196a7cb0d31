//! Snapshots of memory, as PyTorch writes them and as Outrigger writes them with the same names: what
//! is held now, and the latest events.
//!
//! The history begins somewhere in the life of the program. Some memory is freed in it or held now, but
//! was not allocated in it. This memory was there before; it gets operation 0. This module must never
//! need a field that only one of the writers has.

mod form;

use std::collections::HashMap;

use anyhow::{bail, ensure};

use super::story::{Block, Story, Teller};
pub(super) use form::Snapshot;
use form::{Entry, Segment};

/// Blocks are multiples of this in PyTorch's allocators, whose histories have only the bytes asked for.
const ROUNDING: u64 = 512;

/// The story of one device.
///
/// # Errors
/// The snapshot has nothing of this device.
pub(super) fn tell(snapshot: Snapshot, device: u32) -> anyhow::Result<Story> {
    let segments: Vec<Segment> = snapshot
        .segments
        .into_iter()
        .filter(|segment| segment.device.0 == u64::from(device))
        .collect();
    let entries = snapshot
        .device_traces
        .into_iter()
        .nth(device as usize)
        .unwrap_or_default();
    if segments.is_empty() && entries.is_empty() {
        bail!("holds nothing of device {device}: choose another with --device");
    }
    ensure!(
        entries.len() < u32::MAX as usize,
        "has more events than a page can show"
    );
    let mut telling = Telling {
        teller: Teller::new(),
        held: HashMap::new(),
    };
    telling.before(&segments, &entries);
    let first = entries.first().map_or(0, |entry| entry.time_us);
    for entry in &entries {
        telling.teller.operation();
        telling
            .teller
            .time(u64::try_from(entry.time_us - first).unwrap_or(0));
        telling.entry(entry);
    }
    let mut about = vec![("device".to_owned(), device.to_string())];
    if entries.is_empty() {
        about.push((
            "history".to_owned(),
            "none: it was not recorded before the snapshot".to_owned(),
        ));
    }
    for (name, setting) in snapshot.allocator_settings {
        about.extend(setting.0.map(|value| (name, value)));
    }
    Ok(telling.teller.end(String::new(), about))
}

struct Telling {
    teller: Teller,
    /// Rounded size and pool of blocks that are held at the end, by address and bytes asked for: more than the
    /// history knows.
    held: HashMap<(u64, u64), (u64, u32)>,
}

impl Telling {
    /// Tells what was there before the first entry.
    fn before(&mut self, segments: &[Segment], entries: &[Entry]) {
        let mut known = Ranges::default();
        let mut older: Vec<(u64, u64, u64, (u64, u64))> = Vec::new(); // extents: from, to, stream, pool
        let mut live: HashMap<u64, ()> = HashMap::new(); // blocks that the history allocates
        let mut old_blocks: Vec<&Entry> = Vec::new();
        let mut old_addresses: HashMap<u64, bool> = HashMap::new(); // and whether they are held still
        for entry in entries {
            let (from, to) = (entry.addr, entry.addr.saturating_add(entry.size));
            match entry.action.as_str() {
                "segment_alloc" | "segment_map" => known.add(from, to),
                "segment_free" | "segment_unmap" => {
                    for (from, to) in known.missing(from, to) {
                        older.push((from, to, entry.stream.0, entry.pool()));
                    }
                    known.remove(from, to);
                }
                "alloc" => {
                    live.insert(entry.addr, ());
                }
                "free_requested" | "free" if !live.contains_key(&entry.addr) => {
                    let was_there = old_addresses.insert(entry.addr, true);
                    old_blocks.extend(was_there.is_none().then_some(entry));
                }
                "free_completed" => {
                    let new = live.remove(&entry.addr).is_some();
                    if !new && old_addresses.insert(entry.addr, false).is_none() {
                        old_blocks.push(entry);
                    }
                }
                _ => {}
            }
        }
        for segment in segments {
            let to = segment.address.saturating_add(segment.total_size);
            for (from, to) in known.missing(segment.address, to) {
                older.push((from, to, segment.stream.0, segment.pool()));
            }
        }
        older.sort_unstable();
        for (from, to, stream, pool) in older {
            let stream = self.teller.streams.number(stream);
            let pool = self.pool(pool);
            self.teller.map(from, to - from, stream, pool);
        }
        for entry in old_blocks {
            self.alloc(entry);
        }
        for segment in segments {
            let pool = self.pool(segment.pool());
            let mut next = segment.address;
            for block in &segment.blocks {
                let address = block.address.unwrap_or(next);
                next = address.saturating_add(block.size);
                if !block.state.starts_with("active") {
                    continue;
                }
                let requested = block.requested_size.unwrap_or(block.size).min(block.size);
                self.held.insert((address, requested), (block.size, pool));
                if live.contains_key(&address) || old_addresses.get(&address) == Some(&true) {
                    continue; // the history tells of it
                }
                let label = block.label.clone().or_else(|| block.frames.0.clone());
                let label = self.teller.labels.number(label.unwrap_or_default());
                let stream = self.teller.streams.number(segment.stream.0);
                self.teller.alloc(Block {
                    address,
                    size: block.size,
                    requested,
                    label,
                    stream,
                    pool,
                });
                if block.state != "active_allocated" {
                    self.teller.freed(address);
                }
            }
        }
    }

    fn entry(&mut self, entry: &Entry) {
        match entry.action.as_str() {
            "alloc" => self.alloc(entry),
            "free_requested" => {
                self.teller.freed(entry.addr);
            }
            "free_completed" | "free" => {
                self.teller.done(entry.addr);
            }
            "segment_alloc" | "segment_map" => {
                let stream = self.teller.streams.number(entry.stream.0);
                let pool = self.pool(entry.pool());
                self.teller.map(entry.addr, entry.size, stream, pool);
            }
            "segment_free" | "segment_unmap" => self.teller.unmap(entry.addr, entry.size),
            "oom" => {
                let stream = self.teller.streams.number(entry.stream.0);
                self.teller.failure(entry.size, stream);
            }
            "snapshot" => self.teller.mark("snapshot"),
            _ => {} // a newer writer's; it moves no memory that is known here
        }
    }

    fn alloc(&mut self, entry: &Entry) {
        let requested = entry.requested_size.unwrap_or(entry.size);
        let pool = self.pool(entry.pool());
        // A writer that tells both sizes has rounded one of them itself.
        let rounded = match entry.requested_size {
            Some(_) => entry.size,
            None => entry.size.next_multiple_of(ROUNDING),
        };
        let held = self.held.get(&(entry.addr, requested));
        let &(size, pool) = held.unwrap_or(&(rounded, pool));
        let label = entry.label.clone().or_else(|| entry.frames.0.clone());
        let block = Block {
            address: entry.addr,
            size,
            requested: requested.min(size),
            label: self.teller.labels.number(label.unwrap_or_default()),
            stream: self.teller.streams.number(entry.stream.0),
            pool,
        };
        self.teller.alloc(block);
    }

    fn pool(&mut self, pool: (u64, u64)) -> u32 {
        let name = match pool {
            (0, 0) => String::new(),
            (0, number) | (number, 0) => number.to_string(),
            (high, low) => format!("{high}.{low}"),
        };
        self.teller.pools.number(name)
    }
}

/// A set of addresses.
#[derive(Default)]
struct Ranges {
    starts: std::collections::BTreeMap<u64, u64>, // from -> to; never overlapping
}

impl Ranges {
    fn add(&mut self, from: u64, to: u64) {
        if from < to {
            self.remove(from, to);
            self.starts.insert(from, to);
        }
    }

    fn remove(&mut self, from: u64, to: u64) {
        for (start, stop) in self.overlapping(from, to) {
            self.starts.remove(&start);
            if start < from {
                self.starts.insert(start, from);
            }
            if to < stop {
                self.starts.insert(to, stop);
            }
        }
    }

    /// The parts of a range that are not in the set.
    fn missing(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        let mut next = from;
        for (start, stop) in self.overlapping(from, to) {
            if next < start {
                parts.push((next, start));
            }
            next = next.max(stop);
        }
        if next < to {
            parts.push((next, to));
        }
        parts
    }

    /// The ranges of the set that touch this one, in order.
    fn overlapping(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut found: Vec<_> = self
            .starts
            .range(..to)
            .rev()
            .map(|(&start, &stop)| (start, stop))
            .take_while(|&(_, stop)| stop > from)
            .collect();
        found.reverse();
        found
    }
}

#[cfg(test)]
mod tests;
