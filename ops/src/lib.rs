//! Operators: their names, the native host kernels, and the door through which a call reaches a driver.
//!
//! An operator call is planned and then run. Planning checks the operands, picks a kernel and packs
//! its arguments; it is on the path of every operator and neither allocates nor compares strings.
//! Running happens later, in stream order, wherever the driver executes host functions. A kernel
//! checks nothing that the plan has checked; what only shows at run time (an index out of bounds) is
//! its result code.
//!
//! Names, operands, scalars and dtypes of all operators stand in `docs/operators.md`.
//!
//! `door` asks the driver first: for its own operator, then for the launch of a host kernel.
//!
//! This crate must never allocate device memory or print. Kernels must not panic.

mod bounds;
mod call;
mod convert;
mod copy;
mod cursor;
mod door;
mod elementwise;
mod error;
mod failure;
mod generate;
mod geometry;
mod index;
mod isa;
mod lanes;
mod loss;
mod math;
mod matmul;
mod memory;
mod norm;
mod optimizer;
pub mod parallel;
mod plan;
mod reduce;
mod registry;
mod rows;

pub use bounds::check;
pub use call::{Call, Scalar, Tensor};
pub use door::{Door, DriverCall, Prepared};
pub use error::PlanError;
pub use failure::{Error, FailedOperator, Result, refused};
pub use outrigger_device::{Code, DType};
pub use plan::{KernelFn, Plan};
pub use registry::{OperatorId, plan};
