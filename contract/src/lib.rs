//! The driver contract as Rust sees it: the types and numbers of `include/outrigger/driver.h`. `params` fills in structs that
//! calls take, and `chain` finds a record of a chain.
//! Outrigger's side of the contract and drivers that are written in Rust use the same ones.

// Generated: formatted by its generator.
#[rustfmt::skip]
mod bindings;
mod chain;

pub mod params;

pub use bindings::*;
pub use chain::find_record;
