//! The conformance suite: tests of the driver contract and of the host contract, the runner, and the
//! reports.
//!
//! A test is a function with a stable id. It names the numbered rules of `driver.h` (`R..`) or
//! `outrigger.h` (`H..`) that it checks. It must never rely on what the contract does not promise, and
//! never see the state of another test: each runs in its own process.

#![cfg_attr(
    test,
    expect(dead_code, reason = "most tests of the suite are left out there")
)]

mod child;
mod context;
pub mod expect;
pub mod identity;
mod journal;
mod junit;
mod need;
mod page;
mod process;
pub mod record;
pub mod report;
pub mod rules;
pub mod runner;
mod seal;
pub mod select;
mod support;
mod suspects;
mod test;
mod tests;
mod verdict;
pub mod verify;

pub use child::{HELPER_COMMAND, TEST_COMMAND, run_helper, run_test};
pub use context::{Context, Figure};
pub use need::Need;
pub use support::Gate;
pub use suspects::Suspect;
pub use test::{Helper, Test, Tier, all, find, helper};
pub use tests::use_library;
pub use verdict::{Failure, Verdict};
