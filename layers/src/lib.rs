//! Layers stand between Outrigger and a driver, with a driver's table on both sides. A layer sees every
//! call, and may answer it, change it or pass it on.
//!
//! This crate makes a driver of a [`Layer`] ([`layered`]). Libraries that export such a driver use
//! [`open_with`]. A driver without a layer runs none of this code.

#![forbid(unsafe_op_in_unsafe_fn)]

mod collective;
mod entries;
mod entry;
mod failure;
pub mod fault;
mod handle;
mod layer;
pub mod record;
pub mod replay;
mod stack;
mod table;
mod thunks;
pub mod trace;
pub mod validate;

pub use entry::Entry;
pub use failure::fail;
pub use layer::{Layer, Next};
pub use stack::{LAYERS_VARIABLE, Stack};
pub use table::{LayerTable, OpenFn, layered, open_with};
