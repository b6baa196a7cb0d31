//! Replays recordings of calls on any driver, compares, and shrinks what fails.
//!
//! Calls run one after the other on one thread, in the order in which they began. Host memory is the player's
//! own: a copy from host memory reads the bytes that were recorded, and what a copy to host memory gave is
//! looked at when the recorded host could first know that it was there. A host call returns the outcome
//! that was recorded.

mod arguments;
mod compare;
mod player;
mod recording;
mod shrink;

pub use compare::{Difference, DifferenceKind, compare, compare_runs};
pub use player::{CallResult, ReplayOptions, Run, replay};
pub use recording::{Recording, Step};
pub use shrink::shrink;
