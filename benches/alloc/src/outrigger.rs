//! Outrigger's allocator over the simulated device, as a subject of replays. It must use nothing but the
//! allocator's public face.

use outrigger_allocator::{Allocator, Config, StreamId};

use crate::calls::Calls;
use crate::device::{Device, Kind};
use crate::replay::Subject;

/// The allocator that everything here is about.
pub(crate) struct Outrigger(pub(crate) Allocator<Device>);

impl Outrigger {
    pub(crate) fn new(kind: Kind, config: &Config) -> Self {
        Self(Allocator::new(Device::new(kind), config.clone()))
    }
}

impl Subject for Outrigger {
    fn tick(&mut self, now: u64) {
        self.0.backend().tick(now);
    }

    fn alloc(&mut self, size: u64, stream: u16) -> Option<u64> {
        let found = self.0.alloc(size, StreamId(stream.into())).ok()?;
        Some(found.address)
    }

    fn free(&mut self, memory: u64) {
        // A trace frees what it has allocated, once: `Checked` sees it if that fails.
        let _ = self.0.free(memory);
    }

    fn record(&mut self, memory: u64, stream: u16) {
        let _ = self.0.record_stream(memory, StreamId(stream.into()));
    }

    fn idle(&mut self) {
        self.0.backend().finish();
    }

    fn peak(&self) -> u64 {
        self.0.backend().peak()
    }

    fn calls(&self) -> Calls {
        self.0.backend().calls()
    }
}
