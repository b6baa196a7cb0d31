//! Parts that drivers in Rust share, so that they are written once. A driver adds what its hardware does.
//!
//! - [`entries!`] declares the functions of the table, each with a guard that no panic and no error passes, and
//!   [`outcomes!`] those that ask or wait for work (R19).
//! - [`Fault`] is a failed call, or the outcome of work; [`last_error`] is the entry of this name (R5).
//! - [`handle`] gives out objects as handles, and finds NULL and foreign ones (R7).
//! - [`given`] reads and writes structs of the host by their `struct_size` (R1), and walks chains (R3).
//! - [`options`] parses what `open` is given.
//! - [`allocations`] knows which addresses are live, and counts them (R7, R13, R29).
//! - [`table`] holds the table and answers `otr_driver_get_api` (R2).
//! - [`queue`] and [`event`] keep the order and the failures of work around host calls (R16 to R24, R27), over any
//!   hardware queue that is a [`Lane`](queue::Lane).
//! - [`recording`] knows what queues record, and what each command comes behind (R31 to R33).
//!
//! The rules R1 to R63 are those of `include/outrigger/driver.h`. This crate knows no hardware, and nothing of
//! Outrigger but the contract.

pub mod allocations;
mod entry;
pub mod event;
pub mod failure;
mod fault;
mod gate;
pub mod given;
pub mod handle;
pub mod options;
pub mod origin;
mod outcome;
mod pool;
pub mod queue;
pub mod recording;
pub mod table;

pub use fault::{Fault, Progress, Result, Sequence, guard, last_error};
pub use outcome::{Outcome, tell};
pub use outrigger_contract as contract;
pub use pool::Pool;
