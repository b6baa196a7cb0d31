//! The modules of the command line that read snapshots, as they stand there, by links: it is no library.

#![allow(dead_code, unreachable_pub, reason = "only the readers are used here")]

mod pickle;
mod snapshot;
mod story;
mod tape;

/// Reads as `outrigger memory` does; whether it was a snapshot that makes sense.
pub(crate) fn read(bytes: &[u8]) -> bool {
    // What pickles of protocol 2 and above begin with; no JSON does.
    let read = if bytes.first() == Some(&0x80) {
        pickle::from_slice::<snapshot::Snapshot>(bytes).ok()
    } else {
        serde_json::from_slice(bytes).ok()
    };
    read.is_some_and(|snapshot| snapshot::tell(snapshot, 0).is_ok())
}
