//! The list of a queue: what is kept until it may run, in order.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{HostCall, Lane, Point, Step};
use crate::Fault;
use crate::failure::Failure;
use crate::origin::Origin;

/// An item of a list.
pub(crate) enum Item<L: Lane> {
    Command(L::Command, Origin),
    HostCall(HostCall, u64),
    /// One submission.
    Row(Vec<Step<L>>, u64),
    Wait(Arc<Point<L>>),
    Mark(Arc<Point<L>>),
}

/// The outcome of one step through the list.
pub(super) struct Stepped<L: Lane> {
    pub(super) failure: Option<Arc<Failure>>,
    /// The rest of the item, if the hardware refused a call that has to come first.
    pub(super) left: Option<(Item<L>, Fault)>,
}

impl<L: Lane> Stepped<L> {
    pub(super) fn done(failure: Option<Arc<Failure>>) -> Self {
        Self {
            failure,
            left: None,
        }
    }

    pub(super) fn refused(item: Item<L>, fault: Fault) -> Self {
        Self {
            failure: None,
            left: Some((item, fault)),
        }
    }
}

/// The items that wait, and the count of those that are done.
pub(super) struct List<L: Lane> {
    pub(super) items: VecDeque<Item<L>>,
    /// The number of items that were put in, and the number of those that are done.
    pub(super) taken: u64,
    pub(super) done: u64,
    /// Up to here somebody asked for progress.
    pub(super) wanted: u64,
    /// A thread runs the list.
    pub(super) running: bool,
    /// A thread of the pool is on its way to do so.
    pub(super) called: bool,
    /// Nothing was put into the hardware queue since it was last waited for.
    pub(super) drained: bool,
    /// The first failure that no `queue_synchronize` has reported (R20), with the item that it happened at.
    pub(super) failure: Option<(u64, Arc<Failure>)>,
}
