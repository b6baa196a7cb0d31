//! Any bytes as a memory trace: the reader returns operations, or says which line is wrong. It never
//! panics, and the operations that it returns are consistent.

#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use outrigger_allocator::trace::{Op, Trace};

fuzz_target!(|data: &[u8]| {
    let Ok(trace) = Trace::load(data) else { return };
    let mut live = HashSet::new();
    for op in &trace.ops {
        match op {
            Op::Alloc { id, .. } => {
                assert!(*id < trace.allocations as u64, "an id beyond the count");
                assert!(live.insert(*id), "allocated twice");
            }
            Op::Free { id } => assert!(live.remove(id), "freed without being allocated"),
            Op::Record { id, .. } => assert!(live.contains(id), "used without being allocated"),
            Op::Mark { .. } | Op::Label { .. } | Op::OutOfMemory { .. } => {}
        }
    }
    trace.peak_requested();
});
