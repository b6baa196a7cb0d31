//! Order around host calls that may fail, for all drivers.
//!
//! What a host call answers decides whether later commands run at all, and no hardware queue can wait for that. So a
//! queue holds from such a call on: the call and all that is submitted behind it are kept in a list, and the list gives
//! the driver what may run. When the list is empty and nothing has failed, submissions go straight to the driver again.

mod list;
mod sync;
#[cfg(test)]
mod tests;
mod threads;

pub(crate) use list::{Job, Lane, Order, Point, Trouble};
pub(crate) use threads::Threads;
