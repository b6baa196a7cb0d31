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
//! This crate decides how an operator is computed on a device. It must never touch device memory itself, and never wait
//! for work.
//!
//! # Words
//!
//! - *Text*: a kernel in the dialect (`include/outrigger/dialect.h`), before it is specialized by definitions.
//! - *Work*: what a launch of an operator submits: one launch of a kernel, or several.
//! - *Words*: the numbers of a kernel's argument block behind the addresses, 8 bytes each.

mod call;
mod device;
mod group;
mod kernel;
mod layout;
mod operators;
mod slots;
mod source;
mod tune;
mod work;

pub use group::with_kernels;
pub use tune::{Bench, tune};

/// The variable of the environment that turns the kernels off.
pub const VARIABLE: &str = "OUTRIGGER_DEVICE_OPERATORS";
