//! The list of a queue: what is kept until it may run, in order.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{HostCall, Lane, Point, Step};
use crate::Fault;
use crate::failure::Failure;
use crate::origin::Origin;

/// What is kept in a list.
pub(crate) enum Item<L: Lane> {
    Command(L::Command, Origin),
    HostCall(HostCall, u64),
    /// One submission.
    Row(Vec<Step<L>>, u64),
    Wait(Arc<Point<L>>),
    Mark(Arc<Point<L>>),
}

/// How far the list came with an item.
pub(super) struct Stepped<L: Lane> {
    pub(super) failure: Option<Arc<Failure>>,
    /// What is left of the item, if the hardware refused a call that has to come first.
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

/// What waits, and how far it came.
pub(super) struct List<L: Lane> {
    pub(super) items: VecDeque<Item<L>>,
    /// How many items were put in, and how many of them are done.
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
