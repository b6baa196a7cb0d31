//! Events of a timeline in the trace event format, as Perfetto and Chrome read them. Times are nanoseconds; the format
//! has them in microseconds.
//!
//! This crate makes events. The maker of events decides where they are written: the layer `trace` writes a file, a
//! profile of a replay is a text.

use serde_json::{Value, json};

/// The place where something happens: a process of the timeline, and a thread of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    /// The number of the process.
    pub process: u64,
    /// The number of the thread.
    pub thread: u64,
}

/// The name of a process.
pub fn process_name(process: u64, name: &str) -> Value {
    json!({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})
}

/// The name of a thread.
pub fn thread_name(track: Track, name: &str) -> Value {
    json!({
        "ph": "M", "name": "thread_name", "pid": track.process, "tid": track.thread,
        "args": {"name": name},
    })
}

/// Something that took time.
pub fn slice(track: Track, kind: &str, name: &str, (from, to): (u64, u64), args: &Value) -> Value {
    // A nanosecond less: a reader that cuts fractions off would else see the next slice begin before the end of this
    // one, and slices that overlap are dropped.
    let nanoseconds = to.saturating_sub(from).saturating_sub(1);
    json!({
        "ph": "X", "cat": kind, "name": name, "pid": track.process, "tid": track.thread,
        "ts": microseconds(from), "dur": microseconds(nanoseconds), "args": args,
    })
}

/// An arrow out of the slice of this moment; `flow` is its number.
pub fn arrow_from(track: Track, kind: &str, flow: u64, at: u64) -> Value {
    json!({
        "ph": "s", "cat": kind, "name": kind, "id": flow, "pid": track.process,
        "tid": track.thread, "ts": microseconds(at),
    })
}

/// The end of an arrow in the slice of this moment.
pub fn arrow_to(track: Track, kind: &str, flow: u64, at: u64) -> Value {
    json!({
        "ph": "f", "bp": "e", "cat": kind, "name": kind, "id": flow, "pid": track.process,
        "tid": track.thread, "ts": microseconds(at),
    })
}

/// A number of bytes that changes over time.
pub fn counter(process: u64, name: &str, at: u64, bytes: u64) -> Value {
    json!({
        "ph": "C", "name": name, "pid": process, "ts": microseconds(at), "args": {"bytes": bytes},
    })
}

/// The end of a list of events, which says nothing.
pub fn end(process: u64) -> Value {
    json!({"ph": "M", "name": "end", "pid": process})
}

/// As the format has times. The quotient is the nearest number, which is written with its three digits.
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}
