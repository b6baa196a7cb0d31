//! Operators: their names, the host kernels, and the door through which a call reaches a driver.
//!
//! A call of an operator is planned, and then run. Planning checks the operands, chooses a kernel and packs its
//! arguments into a block. It is on the path of every operator, so it neither allocates nor compares strings. Running
//! happens later, in stream order, on a thread of the driver's choice. A kernel does not repeat the checks of the plan.
//! What only shows at run time, such as an index out of bounds, is its result code.
//!
//! `docs/operators.md` has the names, operands, scalars and dtypes of all operators.
//!
//! `door` asks the driver first: for its own operator, then for the launch of a host kernel.
//!
//! The crate allocates no device memory and prints nothing. Kernels do not panic.
//!
//! # Words
//!
//! - *Plan*: a call that is ready to run: a kernel with its *argument block*, in short *block*, which the kernel reads.
//! - *Bias*: what a kernel adds to a device address to reach its bytes; 0 where the host sees the memory.
//! - *Class*: the type that a kernel computes in, which is often wider than the element type.
//! - *Signature*: the name, dtypes, sizes, strides and arguments of a call: what a driver is asked about.
//! - *Door*: the way from this crate to a device.

mod arguments;
mod attention;
mod bounds;
mod call;
pub mod catalog;
mod cells;
mod compose;
mod convert;
mod convolution;
mod copy;
mod cursor;
mod divergence;
mod door;
mod elementwise;
mod embedding;
mod error;
mod failure;
mod generate;
mod geometry;
pub mod guard;
mod index;
mod isa;
mod lanes;
mod linear;
mod loss;
mod math;
mod matmul;
mod memory;
mod narrow;
mod norm;
pub mod numbers;
mod optimizer;
pub mod packed;
pub mod parallel;
mod pick;
mod plain;
mod plan;
mod pooling;
mod reduce;
mod registry;
mod resampling;
mod rows;
mod sampling;
mod scatter;
mod shard;
mod sorting;
mod statistics;

pub use call::{Argument, Call, Scalar, Tensor, Value};
pub use compose::{Composition, Part};
pub use door::{Door, Prepared, with_raw};
pub use error::PlanError;
pub use failure::{Error, FailedOperator, Result, refused};
pub use outrigger_device::{Code, DType};
pub use plan::{KernelFn, Plan};
pub use registry::{OperatorId, check, plan};
pub use shard::{SHARDS, shard};
