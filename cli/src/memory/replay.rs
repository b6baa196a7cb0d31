//! Replays a trace through the real allocator over a simulated device, and records the events.
//!
//! A request that fails is a mark in the picture, not an error: users want to see how a program runs
//! out of memory. The replay must never make a request that is not in the trace.

use std::collections::HashMap;

use anyhow::{Context, bail};
use clap::Args;
use outrigger_allocator::trace::{Op, Trace};
use outrigger_allocator::{Allocator, Config};

use super::device::{Change, SimulatedDevice};
use super::story::{Block, Story, Teller};

/// The device and the allocator that a trace is replayed with.
#[derive(Args)]
pub(super) struct Simulation {
    /// The size of the simulated device, as 80GiB or 512MiB [default: unlimited]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Replay of traces")]
    capacity: Option<u64>,
    /// The allocator's options, as in OUTRIGGER_ALLOC
    #[arg(
        long,
        value_name = "OPTION:VALUE,...",
        default_value = "",
        help_heading = "Replay of traces"
    )]
    config: String,
    /// Operations that the work of a stream takes on the simulated device
    #[arg(
        long,
        value_name = "OPERATIONS",
        default_value_t = 200,
        help_heading = "Replay of traces"
    )]
    lag: u64,
    /// The simulated device has no virtual memory: the allocator takes whole segments
    #[arg(long, help_heading = "Replay of traces")]
    no_virtual_memory: bool,
}

/// The capacity of an unlimited device: more than any trace asks for, little enough that sums of it fit.
const UNLIMITED: u64 = 1 << 56;

/// `80GiB` and the like; a number without a unit is bytes.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" | "K" => 10,
        "MiB" | "M" => 20,
        "GiB" | "G" => 30,
        "TiB" | "T" => 40,
        unit => return Err(format!("{unit} is not a unit: use KiB, MiB, GiB or TiB")),
    };
    let number: u64 = digits
        .trim()
        .parse()
        .map_err(|_| format!("{digits:?} is no whole number"))?;
    let bytes = number.checked_mul(1 << unit);
    bytes
        .filter(|&bytes| bytes <= UNLIMITED)
        .ok_or_else(|| "more than any device has".to_owned())
}

/// The story of a trace.
///
/// # Errors
/// The allocator's options are wrong, or the trace has too many operations for a page.
pub(super) fn tell(trace: &Trace, options: &Simulation) -> anyhow::Result<Story> {
    let config = Config::parse(&options.config).context("--config")?;
    let capacity = options.capacity.unwrap_or(UNLIMITED);
    let mut replay = Replay::new(
        trace,
        SimulatedDevice::new(capacity, options.lag, !options.no_virtual_memory),
        config,
    );
    for (index, op) in trace.ops.iter().enumerate() {
        if !replay.teller.operation() {
            bail!("has more operations than a page can show");
        }
        replay.step(trace, index as u64 + 1, op);
    }
    let (waits, orders) = replay.allocator.backend().waits();
    let stats = replay.allocator.stats();
    let mut about: Vec<(String, String)> = trace
        .header
        .split(';')
        .filter_map(|field| {
            let field = field.trim();
            let (name, value) = field.split_once('=').unwrap_or(("", field));
            let wanted = !field.is_empty() && !matches!(name, "name" | "ops");
            (wanted && !field.starts_with("alloctrace") && !field.starts_with("ops:"))
                .then(|| (name.to_owned(), value.to_owned()))
        })
        .collect();
    if let Some(capacity) = options.capacity {
        about.push(("capacity".to_owned(), capacity.to_string()));
    }
    if !options.config.is_empty() {
        about.push(("allocator".to_owned(), options.config.clone()));
    }
    about.push(("waits of the host".to_owned(), waits.to_string()));
    about.push(("waits between streams".to_owned(), orders.to_string()));
    about.push((
        "calls for memory".to_owned(),
        (stats.device_allocs + stats.device_frees).to_string(),
    ));
    let title = trace.header_field("name").unwrap_or_default().to_owned();
    Ok(replay.teller.end(title, about))
}

struct Replay {
    allocator: Allocator<SimulatedDevice>,
    teller: Teller,
    addresses: Vec<Option<u64>>, // of allocations that were served
    changes: Vec<Change>,
    places: HashMap<u64, u64>, // of memory that is mapped, in the picture
    label: u32,
}

impl Replay {
    fn new(trace: &Trace, device: SimulatedDevice, config: Config) -> Self {
        Self {
            allocator: Allocator::new(device, config),
            teller: Teller::new(),
            addresses: vec![None; trace.allocations],
            changes: Vec::new(),
            places: HashMap::new(),
            label: 0,
        }
    }

    fn step(&mut self, trace: &Trace, now: u64, op: &Op) {
        let idle = matches!(op, Op::Mark { .. });
        self.allocator.backend().advance(now, idle);
        match *op {
            Op::Alloc { id, bytes, stream } => {
                let served = self.allocator.alloc(bytes, stream);
                self.tell_changes();
                let stream = self.teller.streams.number(stream.0);
                match served {
                    Ok(found) => {
                        self.addresses[id as usize] = Some(found.address);
                        self.teller.alloc(Block {
                            address: found.address,
                            size: found.size,
                            requested: bytes,
                            label: self.label,
                            stream,
                            pool: 0,
                        });
                    }
                    Err(_) => self.teller.failure(bytes, stream),
                }
            }
            Op::Free { id } => {
                if let Some(address) = self.addresses[id as usize].take()
                    && self.allocator.free(address).is_ok()
                {
                    self.teller.done(address);
                }
                self.tell_changes();
            }
            Op::Record { id, stream } => {
                if let Some(address) = self.addresses[id as usize] {
                    // The block is in use, which is all that this can fail for.
                    let _ = self.allocator.record_stream(address, stream);
                }
            }
            Op::Mark { text } => self.teller.mark(trace.text(text)),
            Op::Label { text } => {
                self.label = self.teller.labels.number(trace.text(text).to_owned())
            }
            // The trace's own allocator was out of memory; this one need not be.
            Op::OutOfMemory { bytes, stream } => {
                let stream = self.teller.streams.number(stream.0);
                self.teller.failure(bytes, stream);
            }
        }
    }

    fn tell_changes(&mut self) {
        self.allocator.backend().take_changes(&mut self.changes);
        for change in self.changes.drain(..) {
            match change {
                Change::Segment { address, size } => {
                    self.teller.map(address, size, 0, 0);
                }
                Change::Gone { address, size } => self.teller.unmap(address, size),
                // Memory has its place from where it is mapped first; elsewhere it is seen again.
                Change::Map {
                    address,
                    size,
                    physical,
                } => match self.places.get(&physical) {
                    Some(&place) => self.teller.view(address, size, place),
                    None => {
                        let place = self.teller.map(address, size, 0, 0);
                        self.places.insert(physical, place);
                    }
                },
                Change::Destroyed { physical } => {
                    self.places.remove(&physical);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
