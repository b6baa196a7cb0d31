//! Runs a trace with every use of memory checked: no two live blocks share bytes, no byte is handed out that
//! is not there or that another stream may still touch, everything is aligned, the allocator's accounting
//! agrees with the device's, and all comes back in the end. It must never change what is measured: it is a
//! replay of its own.

use std::collections::{BTreeMap, HashMap};

use outrigger_allocator::Config;

use crate::calls::Calls;
use crate::device::{Device, Kind, Share};
use crate::outrigger::Outrigger;
use crate::replay::{Subject, replay};
use crate::trace::{STREAMS, Trace};

/// Complaints that are told; one mistake makes many.
const MOST: usize = 5;

/// The findings of a checked replay.
#[derive(Default)]
pub(crate) struct Checks {
    /// Everything wrong, most of it left out if it is much.
    pub(crate) complaints: Vec<String>,
    /// The operation after which most was held, and how it was used then.
    pub(crate) peak: (u64, BTreeMap<u64, Share>),
}

/// Replays a trace and checks.
pub(crate) fn check(trace: &Trace, kind: Kind, config: &Config) -> Checks {
    let kind = Kind {
        checked: true,
        ..kind
    };
    let mut subject = Checked {
        inner: Outrigger::new(kind, config),
        blocks: HashMap::new(),
        rounding: config.rounding(),
        complaints: Vec::new(),
        now: 0,
        peak: (0, BTreeMap::new()),
        held: 0,
    };
    let outcome = replay(trace, &mut subject);
    let mut complaints = subject.complaints;
    let allocator = &subject.inner.0;
    if outcome.fits {
        let stats = allocator.stats();
        let device = allocator.backend();
        if stats.all.reserved_bytes.current != device.used() {
            complaints.push(format!(
                "the allocator counts {} bytes as reserved, the device {}",
                stats.all.reserved_bytes.current,
                device.used()
            ));
        }
        if stats.all.requested_bytes.peak != trace.peak {
            complaints.push(format!(
                "the allocator counts a peak of {} requested bytes, the trace has {}",
                stats.all.requested_bytes.peak, trace.peak
            ));
        }
        device.finish();
        allocator.empty_cache();
        complaints.extend(device.leftovers());
    }
    complaints.extend(allocator.backend().complaints());
    let more = complaints.len().saturating_sub(MOST);
    complaints.truncate(MOST);
    if more > 0 {
        complaints.push(format!("and {more} more"));
    }
    Checks {
        complaints,
        peak: subject.peak,
    }
}

struct Checked {
    inner: Outrigger,
    /// Bytes of each live block, and the streams that work on it.
    blocks: HashMap<u64, (u64, [bool; STREAMS])>,
    rounding: u64,
    complaints: Vec<String>,
    now: u64,
    peak: (u64, BTreeMap<u64, Share>),
    /// Most bytes held so far.
    held: u64,
}

impl Checked {
    fn device(&self) -> &Device {
        self.inner.0.backend()
    }
}

impl Subject for Checked {
    fn tick(&mut self, now: u64) {
        self.now = now;
        self.inner.tick(now);
    }

    fn alloc(&mut self, size: u64, stream: u16) -> Option<u64> {
        let address = self.inner.alloc(size, stream)?;
        let block = self.inner.0.lookup(address);
        let matches =
            block.is_some_and(|block| block.base == address && block.size >= size && !block.free);
        if !matches || !address.is_multiple_of(self.rounding) {
            self.complaints.push(format!(
                "{size} bytes are at {address:#x}, whose block is {block:?}"
            ));
        }
        let size = block.map_or(size, |block| block.size);
        self.device().begin_use(address, size, stream.into());
        let mut streams = [false; STREAMS];
        streams[usize::from(stream)] = true;
        self.blocks.insert(address, (size, streams));
        if self.device().peak() > self.held {
            self.held = self.device().peak();
            self.peak = (self.now, self.device().shares());
        }
        Some(address)
    }

    fn free(&mut self, memory: u64) {
        if let Some((size, streams)) = self.blocks.remove(&memory) {
            self.device().end_use(memory, size, &streams);
        }
        if let Err(error) = self.inner.0.free(memory) {
            self.complaints.push(error.to_string());
        }
    }

    fn record(&mut self, memory: u64, stream: u16) {
        if let Some((_, streams)) = self.blocks.get_mut(&memory) {
            streams[usize::from(stream)] = true;
        }
        self.inner.record(memory, stream);
    }

    fn idle(&mut self) {
        self.inner.idle();
    }

    fn peak(&self) -> u64 {
        self.inner.peak()
    }

    fn calls(&self) -> Calls {
        self.inner.calls()
    }
}
