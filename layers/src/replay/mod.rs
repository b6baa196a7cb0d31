//! Replays recordings of calls on any driver, compares the results, and shrinks recordings that fail.
//!
//! Calls run one after another on one thread, in the order in which they began. The player has its own
//! host memory: a copy from host memory reads the recorded bytes. The result of a copy to host memory
//! is compared at the moment when the recorded host could first know that it had arrived. A host call
//! returns the recorded outcome.

mod arguments;
mod compare;
mod player;
mod recording;
mod shrink;

pub use compare::{Difference, DifferenceKind, compare, compare_runs};
pub use player::{CallResult, ReplayOptions, Run, replay};
pub use recording::{Recording, Step};
pub use shrink::shrink;
