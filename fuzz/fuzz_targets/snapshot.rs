//! Any bytes as a memory snapshot, pickled by PyTorch or in JSON: the reader of the command line
//! returns the story of a device, or says what is wrong. It never panics, and never runs the program of
//! a pickle.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// The modules of the command line that read snapshots, as they stand there: it is no library.
#[path = "../../cli/src/memory"]
#[allow(dead_code, unreachable_pub, reason = "only the readers are used here")]
mod memory {
    mod pickle;
    mod snapshot;
    mod story;
    mod tape;

    /// Reads as `outrigger memory` does; whether it was a snapshot that makes sense.
    pub(crate) fn read(bytes: &[u8]) -> bool {
        // Pickles of protocol 2 and above begin with this byte; no JSON does.
        let read = if bytes.first() == Some(&0x80) {
            pickle::from_slice::<snapshot::Snapshot>(bytes).ok()
        } else {
            serde_json::from_slice(bytes).ok()
        };
        read.is_some_and(|snapshot| snapshot::tell(snapshot, 0).is_ok())
    }
}

fuzz_target!(|data: &[u8]| {
    memory::read(data);
});
