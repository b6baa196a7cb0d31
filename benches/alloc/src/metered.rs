//! The bytes of the host's memory that the allocator's bookkeeping takes for each live block. The replay is one of its
//! own, since counting is not free. The count must never count what the simulated device or the replay need. All that
//! the allocator has is counted, tables that do not grow with the blocks included.

use outrigger_allocator::Config;

use crate::calls::Calls;
use crate::device::Kind;
use crate::outrigger::Outrigger;
use crate::overhead::{bytes, counted};
use crate::replay::{Subject, replay};
use crate::trace::Trace;

/// Bookkeeping at the moment with the most live blocks.
#[derive(Clone, Copy)]
pub(crate) struct Bookkeeping {
    /// Bytes from the host.
    pub(crate) bytes: u64,
    /// Live blocks.
    pub(crate) blocks: usize,
}

/// Replays a trace and counts.
pub(crate) fn bookkeeping(trace: &Trace, kind: Kind, config: &Config) -> Bookkeeping {
    let before = bytes();
    let mut metered = Metered {
        inner: counted(true, || Outrigger::new(kind, config)),
        before,
        live: 0,
        most: Bookkeeping {
            bytes: 0,
            blocks: 0,
        },
    };
    replay(trace, &mut metered);
    let most = metered.most;
    counted(true, || drop(metered));
    most
}

struct Metered {
    inner: Outrigger,
    before: i64,
    live: usize,
    most: Bookkeeping,
}

impl Subject for Metered {
    fn tick(&mut self, now: u64) {
        self.inner.tick(now);
    }

    fn alloc(&mut self, size: u64, stream: u16) -> Option<u64> {
        let found = counted(true, || self.inner.alloc(size, stream))?;
        self.live += 1;
        if self.live > self.most.blocks {
            self.most = Bookkeeping {
                bytes: u64::try_from(bytes() - self.before).unwrap_or(0),
                blocks: self.live,
            };
        }
        Some(found)
    }

    fn free(&mut self, memory: u64) {
        self.live -= 1;
        counted(true, || self.inner.free(memory));
    }

    fn record(&mut self, memory: u64, stream: u16) {
        counted(true, || self.inner.record(memory, stream));
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
