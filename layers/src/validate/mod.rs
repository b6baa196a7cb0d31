//! The layer `validate`: checks the rules of the contract on both sides while a host and a driver work
//! together, and names the rule that was broken, and by whom.
//!
//! The layer sees calls, answers and host calls; it never sees what device work does. So every finding
//! is a broken rule, but a rule can be broken without a finding. A call of the host that would be
//! undefined is refused.

mod books;
mod calls;
mod events;
mod finding;
mod rules;
mod threads;

pub use finding::{Finding, Side, Sink, to_file, to_tracing};
pub use rules::validate;
