//! The chain of hashes over a run. The first link is the hash of the run's head; the link of each
//! record is the hash of the link before it and of the record. A record that was cut off, changed,
//! moved or taken from another run no longer fits. The chain shows what happened to a file; it does not
//! prove who made it.

use serde::Serialize;
use sha2::{Digest, Sha256};

/// A link of the chain, as 64 hexadecimal digits.
pub(crate) type Link = String;

/// The link of a run's head.
pub(crate) fn head(head: &impl Serialize) -> Link {
    link("outrigger-conformance", head)
}

/// The link of what follows `before`.
pub(crate) fn link(before: &str, value: &impl Serialize) -> Link {
    // Fields are written in the order in which the struct declares them, so that the same value always
    // gives the same bytes.
    let bytes = serde_json::to_vec(value).expect("plain structs with text keys become JSON");
    let mut hash = Sha256::new();
    hash.update(before.as_bytes());
    hash.update([0]);
    hash.update(bytes);
    hex(&hash.finalize())
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
