//! The body of a graph: the commands that were recorded, and what they are made of. Kernels, fills, copies within the
//! device and copies of pinned memory are nodes of a graph of CUDA's. Products of cuBLASLt, which takes a stream, are
//! captured as nodes that are graphs. Three kinds of commands are not:
//!
//! - Host calls. CUDA's host nodes have no outcome, so that nothing could be skipped behind one that failed (R20); a lost
//!   context does not call them, and each has to be called once (R27); and CUDA may have one thread for all of them (R17).
//! - Copies of pageable memory and on the host, which go through the block of pinned memory that a stream has.
//! - Copies between devices, which take another way where one device does not reach the other.
//!
//! So a graph is a row of parts: a graph of CUDA's for all nodes between two commands of these kinds, and the commands.

use std::ops::Range;
use std::sync::Arc;

use outrigger_driver_kit::queue::HostCall;
use outrigger_driver_kit::recording::Kept;
use outrigger_driver_kit::{Fault, Result};

use crate::commands::{Copy, Fill, Way};
use crate::driver::Open;
use crate::launch::Launch;
use crate::nodes::{Node, Nodes, Work};
use crate::product::{self, Product};

/// A command that a queue has recorded.
pub(crate) enum Recorded {
    Leaf(Leaf),
    /// A launch of a graph, with the commands that it had then.
    Graph(Arc<Body>),
}

/// A command of a graph that is no launch of another one.
#[derive(Clone)]
pub(crate) enum Leaf {
    Copy(Copy),
    Fill(Fill),
    Launch(Arc<Launch>),
    HostCall(HostCall),
    Product(Arc<Product>, product::Launch),
}

/// The commands of a graph, and what they are made of.
pub(crate) struct Body {
    /// The commands as the contract numbers them.
    commands: Vec<Numbered>,
    leaves: Vec<Kept<Leaf>>,
    /// The place of each leaf.
    places: Vec<Place>,
    parts: Vec<Part>,
}

/// A command of the contract: one leaf, or those of a graph that was launched.
#[derive(Clone)]
struct Numbered {
    leaves: Range<usize>,
    is_graph: bool,
}

/// The place of a leaf: its part, and its nodes there.
struct Place {
    part: usize,
    nodes: Vec<Node>,
}

pub(crate) enum Part {
    Nodes(Nodes),
    Copy(Copy),
    Product(Arc<Product>, product::Launch),
    HostCall(HostCall),
}

/// The nodes or the part that a leaf has to become.
enum Task<'a> {
    Nodes(Vec<Work<'a>>),
    /// One node, or a part where cuBLASLt cannot be captured.
    Product(&'a Arc<Product>, &'a product::Launch),
    Part(Part),
}

impl Leaf {
    fn task(&self) -> Task<'_> {
        match self {
            Self::Copy(copy) if copy.size == 0 => Task::Nodes(Vec::new()),
            Self::Copy(copy) => match copy.way {
                Way::Within | Way::ToDevice { pinned: true } | Way::ToHost { pinned: true } => {
                    Task::Nodes(vec![Work::Copy(*copy)])
                }
                _ => Task::Part(Part::Copy(*copy)),
            },
            Self::Fill(fill) => Task::Nodes(fill.columns().map(Work::Fill).collect()),
            Self::Launch(launch) => Task::Nodes(vec![Work::Kernel(launch)]),
            Self::HostCall(call) => Task::Part(Part::HostCall(*call)),
            Self::Product(product, launch) => Task::Product(product, launch),
        }
    }

    /// Whether another command is the same but for its arguments (R35).
    fn is_alike(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Launch(one), Self::Launch(other)) => {
                one.function.0 == other.function.0 && one.block.len() == other.block.len()
            }
            (Self::HostCall(one), Self::HostCall(other)) => one.is_alike(other),
            (Self::Product(one, _), Self::Product(other, _)) => one.shape() == other.shape(),
            (Self::Copy(_), Self::Copy(_)) | (Self::Fill(_), Self::Fill(_)) => true,
            _ => false,
        }
    }
}

impl Body {
    /// The body of a recording of a device, whose context is entered.
    pub(crate) fn of(open: &Arc<Open>, device: u32, recorded: Vec<Kept<Recorded>>) -> Result<Self> {
        let (commands, leaves) = flat(recorded);
        Self::new(open, device, commands, leaves)
    }

    fn new(
        open: &Arc<Open>,
        device: u32,
        commands: Vec<Numbered>,
        leaves: Vec<Kept<Leaf>>,
    ) -> Result<Self> {
        let (mut parts, mut places) = (Vec::new(), Vec::<Place>::new());
        // For each leaf, the part and the nodes there that others have to come behind.
        let mut ends: Vec<(usize, Vec<Node>)> = Vec::new();
        let mut nodes: Option<Nodes> = None;
        for leaf in &leaves {
            let mut behind = Vec::new();
            for before in &leaf.after {
                let (part, nodes) = &ends[*before as usize];
                // All of an earlier part has finished, and CUDA takes no node twice.
                if *part == parts.len() {
                    let new = nodes.iter().filter(|node| !behind.contains(*node));
                    behind.extend(new.copied().collect::<Vec<Node>>());
                }
            }
            let mut add = |works: &[Work<'_>]| {
                let graph = match &mut nodes {
                    Some(nodes) => nodes,
                    None => nodes.insert(Nodes::new(open, device)?),
                };
                let new = works.iter().map(|work| graph.add(work, &behind));
                new.collect::<Result<Vec<Node>>>()
            };
            let own = match leaf.command.task() {
                Task::Nodes(works) if works.is_empty() => {
                    ends.push((parts.len(), behind));
                    places.push(Place {
                        part: parts.len(),
                        nodes: Vec::new(),
                    });
                    continue;
                }
                Task::Nodes(works) => Ok(add(&works)?),
                Task::Product(product, launch) => add(&[Work::Product(product, launch)])
                    .map_err(|_| Part::Product(Arc::clone(product), *launch)),
                Task::Part(part) => Err(part),
            };
            let own = match own {
                Ok(own) => {
                    ends.push((parts.len(), own.clone()));
                    own
                }
                Err(part) => {
                    close(&mut parts, nodes.take())?;
                    ends.push((parts.len(), Vec::new()));
                    parts.push(part);
                    Vec::new()
                }
            };
            let part = ends.last().map_or(0, |(part, _)| *part);
            places.push(Place { part, nodes: own });
        }
        close(&mut parts, nodes)?;
        Ok(Self {
            commands,
            leaves,
            places,
            parts,
        })
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Gives the commands of `body` from number `first` on the arguments of another graph's, whose commands are the same
    /// (R35). With `whole` these are all commands of both, and come behind each other as in the other graph. The context
    /// of the device is entered.
    pub(crate) fn update(
        body: &mut Arc<Self>,
        (open, device): (&Arc<Open>, u32),
        first: usize,
        other: &Self,
        whole: bool,
    ) -> Result {
        body.check_same(first, other, whole)?;
        let start = (body.commands.get(first)).map_or(body.leaves.len(), |one| one.leaves.start);
        let range = start..start + other.leaves.len();
        // Launches that were not yet given to CUDA keep the commands that they had.
        if let Some(own) = Arc::get_mut(body)
            && own.set(range.clone(), other, whole)
        {
            return Ok(());
        }
        let mut leaves = body.leaves.clone();
        for (leaf, new) in leaves[range].iter_mut().zip(&other.leaves) {
            leaf.command = new.command.clone();
            if whole {
                leaf.after.clone_from(&new.after);
            }
        }
        *body = Arc::new(Self::new(open, device, body.commands.clone(), leaves)?);
        Ok(())
    }

    /// Refuses another graph whose commands differ from these, from number `first` on, in more than their arguments.
    fn check_same(&self, first: usize, other: &Self, whole: bool) -> Result {
        let own = self.commands.get(first..).unwrap_or_default();
        let (count, wanted) = (own.len(), other.commands.len());
        if count < wanted || whole && count > wanted {
            return Err(Fault::argument(format!(
                "the graph has {count} commands from number {first} on, and the other one {wanted}"
            )));
        }
        for (number, (one, new)) in own.iter().zip(&other.commands).enumerate() {
            let (one_leaves, new_leaves) = (
                &self.leaves[one.leaves.clone()],
                &other.leaves[new.leaves.clone()],
            );
            let mut pairs = one_leaves.iter().zip(new_leaves);
            if one.is_graph != new.is_graph
                || one_leaves.len() != new_leaves.len()
                || !pairs.all(|(one, new)| one.command.is_alike(&new.command))
            {
                return Err(Fault::argument(format!(
                    "command {} (from 0) of the graph is not of the kind or the kernel of command {number} of the other one",
                    first + number
                )));
            }
        }
        Ok(())
    }

    /// Gives leaves other arguments where they are. If that is not to be had, the answer is false, and all is as before.
    fn set(&mut self, range: Range<usize>, other: &Self, whole: bool) -> bool {
        let old = &self.leaves[range.clone()];
        let pairs = || old.iter().zip(&other.leaves).zip(range.clone());
        let fits = |((old, new), at): ((&Kept<Leaf>, &Kept<Leaf>), usize)| {
            let is_there = match (old.command.task(), new.command.task()) {
                (Task::Nodes(_), Task::Nodes(new)) => new.len() == self.places[at].nodes.len(),
                (Task::Product(..), Task::Product(..)) => true,
                (Task::Part(old), Task::Part(new)) => {
                    std::mem::discriminant(&old) == std::mem::discriminant(&new)
                }
                _ => false,
            };
            is_there && (!whole || old.after == new.after)
        };
        if !pairs().all(fits) {
            return false;
        }
        let mut done = 0;
        for ((_, new), at) in pairs() {
            if set_nodes(&mut self.parts, &self.places[at], &new.command).is_err() {
                break;
            }
            done += 1;
        }
        if done < other.leaves.len() {
            // The leaf that was refused may have several nodes, of which some were not.
            for ((old, _), at) in pairs().take(done + 1) {
                // CUDA took these very arguments before.
                let _ = set_nodes(&mut self.parts, &self.places[at], &old.command);
            }
            return false;
        }
        for (at, new) in range.zip(&other.leaves) {
            let place = &self.places[at];
            match new.command.task() {
                Task::Part(part) => self.parts[place.part] = part,
                Task::Product(product, launch) if place.nodes.is_empty() => {
                    self.parts[place.part] = Part::Product(Arc::clone(product), *launch);
                }
                _ => {}
            }
            self.leaves[at].command = new.command.clone();
        }
        true
    }
}

/// Gives the nodes of a leaf the arguments of a command that has as many; one of another kind has none.
fn set_nodes(parts: &mut [Part], place: &Place, command: &Leaf) -> Result {
    let works = match command.task() {
        Task::Nodes(works) => works,
        Task::Product(product, launch) => vec![Work::Product(product, launch)],
        Task::Part(_) => return Ok(()),
    };
    if let Some(Part::Nodes(graph)) = parts.get_mut(place.part) {
        for (node, work) in place.nodes.iter().zip(&works) {
            graph.set(*node, work)?;
        }
    }
    Ok(())
}

/// Ends a part of nodes.
fn close(parts: &mut Vec<Part>, nodes: Option<Nodes>) -> Result {
    if let Some(mut nodes) = nodes {
        nodes.instantiate()?;
        parts.push(Part::Nodes(nodes));
    }
    Ok(())
}

/// The leaves of a recording: launches of graphs become the commands of these.
fn flat(recorded: Vec<Kept<Recorded>>) -> (Vec<Numbered>, Vec<Kept<Leaf>>) {
    let mut leaves: Vec<Kept<Leaf>> = Vec::with_capacity(recorded.len());
    // For each command, the leaves that others have to come behind.
    let mut ends: Vec<Vec<u32>> = Vec::with_capacity(recorded.len());
    let mut commands = Vec::with_capacity(recorded.len());
    for Kept { command, after } in recorded {
        let start = leaves.len();
        let after: Vec<u32> = (after.iter())
            .flat_map(|before| ends[*before as usize].iter().copied())
            .collect();
        let is_graph = match command {
            Recorded::Leaf(command) => {
                ends.push(vec![start as u32]);
                leaves.push(Kept { command, after });
                false
            }
            Recorded::Graph(body) => {
                let moved = |number: &u32| number + start as u32;
                let mut is_last = vec![true; body.leaves.len()];
                for leaf in &body.leaves {
                    for before in &leaf.after {
                        is_last[*before as usize] = false;
                    }
                    let after = if leaf.after.is_empty() {
                        after.clone()
                    } else {
                        leaf.after.iter().map(moved).collect()
                    };
                    let command = leaf.command.clone();
                    leaves.push(Kept { command, after });
                }
                let last = (0..is_last.len()).filter(|number| is_last[*number]);
                let last: Vec<u32> = last.map(|number| (start + number) as u32).collect();
                ends.push(if last.is_empty() { after } else { last });
                true
            }
        };
        commands.push(Numbered {
            leaves: start..leaves.len(),
            is_graph,
        });
    }
    (commands, leaves)
}
