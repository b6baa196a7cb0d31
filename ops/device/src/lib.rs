//! Operators for drivers that load code. A driver that takes OpenCL C or CUDA C gets the optional group `operators` of
//! the driver contract, made from the kernels in `kernels/`: [`with_kernels`] puts it into a copy of the driver's table.
//!
//! All handles but those of operators stay the driver's own, and so do all other entries: they cost what they did. The
//! driver's own operators come first; where it has none for a call, a kernel is compiled for it. So whatever stands
//! above (the door, graphs, the conformance suite) sees one driver with more operators.
//!
//! A kernel is made for element types, for an expression, and for the kind of layout, never for sizes: a text is
//! compiled once for all sizes, in `prepare`. A launch packs addresses and numbers, and compiles nothing.
//!
//! A driver that has no graphs of its own gets the group `graph` too (`graph.rs`): what a queue records are texts for the
//! most part, so that one program runs a graph of small kernels in one launch.
//!
//! The crate decides how an operator is computed on a device. It must never touch device memory itself, and never wait
//! for work.
//!
//! # Words
//!
//! - *Text*: a kernel in the dialect (`include/outrigger/dialect.h`), before it is specialized by definitions.
//! - *Work*: what a launch of an operator submits: one launch of a kernel, or several.
//! - *Unit*: a kernel of a text as a function of a program; *program*: a kernel that runs units, by a table.
//! - *Task*: a recorded command that a program runs; *plan*: the launches and commands that a graph becomes.
//! - *Words*: the numbers of a kernel's argument block behind the addresses, 8 bytes each.

mod call;
mod command;
mod device;
mod entries;
mod graph;
mod group;
mod kernel;
mod layout;
mod operators;
mod plan;
mod recording;
mod seen;
mod slots;
mod source;
mod tune;
mod unit;
mod work;

pub use group::with_kernels;
pub use tune::{Bench, question, tune, tuner};

/// The variable of the environment that turns the kernels off.
pub const VARIABLE: &str = "OUTRIGGER_DEVICE_OPERATORS";
