//! Outrigger makes one accelerator, described by one small C driver, usable from every framework.
//!
//! The package is the shared library `liboutrigger.so`: the C ABI of `include/outrigger/outrigger.h`
//! and the C++ bridge. For Rust hosts it is the runtime itself, as [`runtime`]: the same that C and C++
//! hosts of the process see. It adds nothing to it, and must never do so.
//!
//! C++ has two faces. The bridge (`src/bridge.rs`) is for programs that Cargo builds together with Rust;
//! `include/outrigger/outrigger.hpp` is header only, for programs that are built against an installed library.
//!
//! # Memory, streams and copies
//!
//! Everything is done in the order of a stream, and submitting never waits. Memory is addressed by
//! numbers, as in C. The first call loads the drivers that `OUTRIGGER_DRIVER` names, or the built-in one.
//!
//! ```
//! use outrigger::runtime::{CopyKind, create_stream, destroy_stream, runtime};
//!
//! # fn main() -> outrigger::runtime::Result<()> {
//! let device = runtime()?.device(0)?;
//! let stream = create_stream(device.index(), 0)?;
//! let address = device.alloc(16, stream.id())?;
//!
//! // SAFETY: the memory was allocated on this stream.
//! unsafe { stream.fill(address, 16, &7u32.to_ne_bytes()) }?;
//! let mut seen = [0u32; 4];
//! // SAFETY: `seen` is neither moved nor read before the stream has been waited for.
//! unsafe { stream.copy(seen.as_mut_ptr() as u64, address, 16, CopyKind::DeviceToHost) }?;
//! stream.synchronize()?;
//! assert_eq!(seen, [7; 4]);
//!
//! device.free(address)?;
//! destroy_stream(stream.id())
//! # }
//! ```
//!
//! # Operators and graphs
//!
//! Operators (docs/operators.md) run in stream order. Where a stream captures they are recorded, and can be
//! replayed with other memory and other numbers.
//!
//! ```
//! use outrigger::runtime::ops::{Call, OperatorId, Scalar, Tensor};
//! use outrigger::runtime::{CaptureMode, CopyKind, DType, ExecFlags, create_stream, runtime};
//!
//! # fn main() -> outrigger::runtime::Result<()> {
//! let device = runtime()?.device(0)?;
//! let stream = create_stream(device.index(), 0)?;
//! let address = device.alloc(16, stream.id())?;
//! // SAFETY: the memory was allocated on this stream.
//! unsafe { stream.fill(address, 16, &1f32.to_ne_bytes()) }?;
//!
//! let x = Tensor::new(address, DType::F32, &[4], &[1]);
//! let add = OperatorId::find(c"add").expect("docs/operators.md has it");
//! stream.capture_begin(CaptureMode::ThreadLocal, None)?;
//! let call = Call { inputs: &[x], outputs: &[x], scalars: &[Scalar::F64(2.0), Scalar::F64(1.0)], ..Call::default() };
//! // SAFETY: the operands lie in live memory of the stream's device.
//! unsafe { stream.call(add, &call) }?; // x += 2
//! let graph = stream.capture_end()?;
//! graph.name_scalar("step", 0, 0)?;
//! let exec = graph.instantiate(ExecFlags::default())?;
//!
//! exec.replay(&stream)?;
//! exec.bind_scalar(exec.slot("step")?, Scalar::F64(10.0))?;
//! exec.replay(&stream)?;
//! let mut seen = [0f32; 4];
//! // SAFETY: `seen` is neither moved nor read before the stream has been waited for.
//! unsafe { stream.copy(seen.as_mut_ptr() as u64, address, 16, CopyKind::DeviceToHost) }?;
//! stream.synchronize()?;
//! assert_eq!(seen, [13.0; 4]);
//! # device.free(address)
//! # }
//! ```
//!
//! # Failures
//!
//! An error has a code, a text that says what would be right, and where work failed, the operator, the
//! stream and the number of the submission.
//!
//! ```
//! use outrigger::runtime::{Code, create_stream, destroy_stream};
//!
//! # fn main() -> outrigger::runtime::Result<()> {
//! let stream = create_stream(0, 0)?;
//! // SAFETY: it is refused.
//! let refused = unsafe { stream.fill(0x1234, 16, &[0]) }.expect_err("it is no address of the device");
//! assert_eq!(refused.code(), Code::INVALID_ARGUMENT);
//!
//! stream.host_call(|_upstream| Err(Code::EXECUTION))?;
//! let failed = stream.synchronize().expect_err("the work of the stream failed");
//! assert_eq!((failed.code(), failed.stream()), (Code::EXECUTION, Some(stream.id())));
//! stream.synchronize()?; // reported once: the stream takes work again
//! destroy_stream(stream.id())
//! # }
//! ```

#![deny(missing_docs)]

mod bridge;
mod bridge_graph;
mod bridge_memory;

/// The framework-neutral runtime.
pub use outrigger_hooks as runtime;

// The exports of the shared library live in this crate; naming it keeps them linked.
#[doc(hidden)]
pub use outrigger_ffi as ffi;
