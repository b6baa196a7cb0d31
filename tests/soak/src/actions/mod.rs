//! The actions of threads, in groups: each file has a table of its actions with their weights. An
//! action makes one call, or a few that belong together. It keeps the rules that the contract leaves to
//! the host.

pub(crate) mod build;
pub(crate) mod capture;
pub(crate) mod chaos;
pub(crate) mod commands;
pub(crate) mod diagnostics;
pub(crate) mod events;
pub(crate) mod execs;
pub(crate) mod generators;
pub(crate) mod memory;
pub(crate) mod observers;
pub(crate) mod operators;
pub(crate) mod pinned;
pub(crate) mod pools;
pub(crate) mod pressure;
pub(crate) mod private;
pub(crate) mod profiles;
pub(crate) mod registrations;
pub(crate) mod runtime;
pub(crate) mod sharing;
pub(crate) mod streams;
pub(crate) mod together;
pub(crate) mod wrong;

use crate::actor::Actor;

/// Something that a thread does.
pub(crate) struct Action {
    /// The group, for `--only` and `--without`.
    pub(crate) group: &'static str,
    /// The weight with which it is picked, beside the others.
    pub(crate) weight: u32,
    pub(crate) act: fn(&mut Actor),
}

impl Action {
    /// Whether it submits work on memory of a pool that it does not hold: a graph keeps memory that was freed,
    /// and what a thread alone has may be of a pool that it used.
    pub(crate) fn uses_any_pool(&self) -> bool {
        matches!(self.group, "build" | "capture" | "graphs" | "private")
    }
}

const fn action(group: &'static str, weight: u32, act: fn(&mut Actor)) -> Action {
    Action { group, weight, act }
}

/// The tables of all groups.
pub(crate) const ACTIONS: &[&[Action]] = &[
    streams::ACTIONS,
    events::ACTIONS,
    memory::ACTIONS,
    pressure::ACTIONS,
    commands::ACTIONS,
    operators::ACTIONS,
    pinned::ACTIONS,
    pools::ACTIONS,
    generators::ACTIONS,
    chaos::ACTIONS,
    capture::ACTIONS,
    build::ACTIONS,
    execs::ACTIONS,
    observers::ACTIONS,
    registrations::ACTIONS,
    diagnostics::ACTIONS,
    runtime::ACTIONS,
    sharing::ACTIONS,
    together::ACTIONS,
    private::ACTIONS,
    profiles::ACTIONS,
    wrong::ACTIONS,
];
