//! The layer `validate`: checks the rules of the contract on both sides while a host and a driver work
//! together, and names the rule that was broken, and by whom.
//!
//! It sees calls, answers and host calls, never what device work does. What it reports is broken; what it does
//! not report may be broken all the same. Of host misuse it refuses what would be undefined.

mod books;
mod calls;
mod events;
mod finding;
mod rules;
mod threads;

pub use finding::{Finding, Side, Sink, to_file, to_tracing};
pub use rules::validate;
