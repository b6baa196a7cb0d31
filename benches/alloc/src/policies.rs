//! Simulated peers: what other allocators would hold, by the rules that their documentation and sources
//! tell. They stand in where the original cannot be had, and search capacities faster than it could. They
//! must never be timed: they count bytes, and are written to be read.

mod bfc;
mod blocks;
mod torch;

pub(crate) use bfc::Bfc;
pub(crate) use torch::Torch;

/// Memory of a device, in bytes, and the trace's time.
struct Device {
    capacity: u64,
    used: u64,
    peak: u64,
    next_address: u64,
    now: u64,
    idle: u64,
    lag: u64,
}

/// Addresses of two regions are never neighbours.
const GAP: u64 = 1 << 21;

impl Device {
    fn new(capacity: u64, lag: u64) -> Self {
        Self {
            capacity,
            used: 0,
            peak: 0,
            next_address: GAP,
            now: 0,
            idle: 0,
            lag,
        }
    }

    /// Whether an event of this operation has passed.
    fn has_passed(&self, at: u64) -> bool {
        self.now >= at + self.lag || at < self.idle
    }

    fn reserve(&mut self, size: u64) -> u64 {
        let address = self.next_address;
        self.next_address += size.next_multiple_of(GAP) + GAP;
        address
    }

    fn take(&mut self, size: u64) -> bool {
        if size > self.capacity - self.used {
            return false;
        }
        self.used += size;
        self.peak = self.peak.max(self.used);
        true
    }

    fn give(&mut self, size: u64) {
        self.used -= size;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::replay::{Subject, replay};
    use crate::trace::{Trace, load_folder};

    const CAPACITY: u64 = 1 << 40;

    fn traces() -> Vec<Trace> {
        load_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces")).unwrap()
    }

    fn held_mib(trace: &Trace, subject: &mut impl Subject) -> u64 {
        let outcome = replay(trace, subject);
        assert!(outcome.fits);
        outcome.held >> 20
    }

    /// The bytes that libc10_cuda of PyTorch 2.15.0 itself held on these traces, in MiB, by both of its policies: one
    /// trace with two streams and `record_stream`, one with blocks of all sizes.
    #[test]
    fn simulated_pytorch_holds_what_pytorch_does() {
        let real = [
            ("p04_lstm_cpu", 1280, 1028),
            ("p06_prefetch_2thread_cpu", 526, 462),
            ("p08_fsdp13b_2s_meta", 32828, 30622),
        ];
        let traces = traces();
        for (name, default, expandable) in real {
            let trace = traces.iter().find(|trace| trace.name == name).unwrap();
            let simulated =
                [false, true].map(|policy| held_mib(trace, &mut Torch::new(CAPACITY, 200, policy)));
            assert_eq!(simulated, [default, expandable], "{name}");
        }
    }

    #[test]
    fn regions_of_bfc_double() {
        let mut bfc = Bfc::new(CAPACITY, 200);
        // 2 MiB, then 4 for what does not fit, then 16 for what needs it: none is split off for the first.
        for size in [1 << 20, 3 << 20, 9 << 20] {
            bfc.alloc(size, 0).unwrap();
        }
        assert_eq!(bfc.peak() >> 20, 2 + 4 + 16);
    }

    #[test]
    fn what_is_short_of_memory_gives_back_and_tries_again() {
        let mut torch = Torch::new(64 << 20, 200, false);
        let block = torch.alloc(40 << 20, 0).unwrap();
        torch.record(block, 1);
        torch.free(block);
        // The event has not passed, but may be waited for.
        assert!(torch.alloc(50 << 20, 0).is_some());
        assert!(torch.alloc(50 << 20, 0).is_none());
    }
}
