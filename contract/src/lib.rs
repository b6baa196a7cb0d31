//! The driver contract as Rust sees it: the types and numbers of `include/outrigger/driver.h`, and no behaviour. `params`
//! fills in structs that calls take.
//! Outrigger's side of the contract and drivers that are written in Rust use the same ones.

// Generated: formatted by its generator.
#[rustfmt::skip]
mod bindings;

pub mod params;

pub use bindings::*;
