//! Names of what replays may change, bindings of other memory and numbers to them, and updates from another graph. A
//! binding holds its memory until another binding takes its place and the replays that used it have finished.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_device::Code;
use outrigger_ops::{Call, Scalar, numbers, packed};

use super::{ExecState, GraphExec, Shown, threads};
use crate::data::{Command, GraphData, NamedThing, Work};
use crate::graph::Graph;
use crate::memory::Device;
use crate::program::{Patch, Program};
use crate::{Error, Result};

/// A named buffer, scalar or argument.
#[derive(Clone, Debug)]
pub(super) struct Bindable {
    pub(super) name: String,
    pub(super) what: NamedThing,
    /// The base of the allocation that is bound in place of the recorded one. It is held.
    pub(super) bound: Option<u64>,
    /// The number that is bound in place of the recorded one.
    pub(super) scalar: Option<Scalar>,
    /// The bytes that are bound in place of the recorded argument.
    pub(super) bytes: Option<Box<[u8]>>,
}

pub(super) fn slot_ranges(slots: &[Bindable]) -> Vec<(u64, u64)> {
    let range = |slot: &Bindable| match slot.what {
        NamedThing::Buffer { address, size } => (address, size),
        NamedThing::Scalar { .. } | NamedThing::Argument { .. } => (0, 0),
    };
    slots.iter().map(range).collect()
}

/// Refuses a named buffer that a node uses at addresses which are not known: those cannot be changed.
pub(super) fn check_slots(data: &GraphData, slots: &[Bindable]) -> Result<()> {
    for slot in slots {
        let NamedThing::Buffer { address, size } = slot.what else {
            continue;
        };
        for (id, node) in data
            .graph
            .nodes()
            .filter(|(_, node)| node.spec.command.fixed)
        {
            let uses = data.graph.accesses(node).iter().any(|access| {
                let buffer = data.graph.buffers()[access.buffer as usize];
                buffer.address < address + size && address < buffer.address + buffer.size
            });
            if uses {
                return Err(Error::new(
                    Code::UNSUPPORTED,
                    format!(
                        "'{}' cannot be bound: node {id} ({}) uses it at an address that a replay cannot change; \
                         copy into the recorded buffer instead",
                        slot.name, node.spec.label
                    ),
                ));
            }
        }
    }
    let mut bodies = data.store.bodies.iter().flat_map(|one| &one.graphs);
    bodies.try_for_each(|body| check_slots(body, slots))
}

/// The thing that a name stands for in a graph of the same shape: the buffer at the places where the addresses of the
/// old one were recorded. `None` if the addresses at these places are not of one buffer.
fn moved(slot: &Bindable, from: &GraphData, to: &GraphData) -> Option<NamedThing> {
    let NamedThing::Buffer { address, size } = slot.what else {
        return Some(slot.what);
    };
    let pairs = from.store.addresses.iter().zip(&to.store.addresses);
    let mut places = pairs
        .filter(|(old, _)| old.address.wrapping_sub(address) < size)
        .map(|(old, new)| new.address.wrapping_sub(old.address - address));
    let Some(first) = places.next() else {
        return Some(slot.what);
    };
    places
        .all(|place| place == first)
        .then_some(NamedThing::Buffer {
            address: first,
            size,
        })
}

pub(super) fn slots_of(data: &GraphData) -> Vec<Bindable> {
    data.names
        .iter()
        .map(|one| Bindable {
            name: one.name.clone(),
            what: one.what,
            bound: None,
            scalar: None,
            bytes: None,
        })
        .collect()
}

/// The distance between a buffer and the recorded one is a multiple of this, so that kernels find the same alignment.
const ALIGNMENT: u64 = 16;

impl GraphExec {
    /// The slot of a name.
    ///
    /// # Errors
    /// `NOT_FOUND` that lists the names that exist.
    pub fn slot(&self, name: &str) -> Result<u32> {
        let shown = self.shown.lock();
        let place = shown.names.iter().position(|one| one == name);
        place.map(|index| index as u32).ok_or_else(|| {
            Error::new(
                Code::NOT_FOUND,
                format!(
                    "the graph has no name '{name}'; it has: {}",
                    shown.names.join(", ")
                ),
            )
        })
    }

    /// Binds other memory in place of a named buffer, for later replays. The memory is kept alive until another binding
    /// takes its place. Address 0 binds the recorded memory again.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown slot or that of a scalar; `INVALID_ARGUMENT` if the buffer's size does not fit into
    /// the live allocation behind `address`, or the alignment differs.
    pub fn bind(&self, slot: u32, address: u64) -> Result<()> {
        let (unbound, last, outcome) = self.bind_in_turn(slot, address)?;
        if let Some(base) = unbound {
            unbind(self.device, last, base);
        }
        outcome
    }

    /// Returns the base of the allocation to unhold after the turn, the last stream that may use it, and the outcome.
    fn bind_in_turn(
        &self,
        slot: u32,
        address: u64,
    ) -> Result<(Option<u64>, Option<u64>, Result<()>)> {
        let mut state = self.turn.lock();
        let state = &mut *state;
        let Some(Bindable {
            what:
                NamedThing::Buffer {
                    address: recorded,
                    size,
                },
            bound,
            name,
            ..
        }) = state.slots.get_mut(slot as usize)
        else {
            return Err(no_slot(slot, "buffer"));
        };
        let recorded = *recorded;
        if address == 0 {
            let old = bound.take();
            state.push_pending(Patch {
                target: u64::from(slot),
                first: recorded,
                second: 0,
            });
            return Ok((old, state.last, Ok(())));
        }
        let device = self.device;
        let check = || device.check_range(&format_args!("buffer for '{name}'"), address, *size);
        check()?;
        if address.abs_diff(recorded) % ALIGNMENT != 0 {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "the buffer for '{name}' at {address:#x} is not aligned like the recorded one at \
                     {recorded:#x}: their distance must be a multiple of {ALIGNMENT}"
                ),
            ));
        }
        let base = device.hold(address)?;
        // Another thread may have freed what was checked, and another block may be there now. What is held stays.
        if let Err(error) = check() {
            return Ok((Some(base), state.last, Err(error)));
        }
        let old = bound.replace(base);
        state.push_pending(Patch {
            target: u64::from(slot),
            first: address,
            second: 0,
        });
        Ok((old, state.last, Ok(())))
    }

    /// Binds another number in place of a named scalar, for later replays.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown slot or that of a buffer; `INVALID_ARGUMENT` if the element type cannot hold the number;
    /// `UNSUPPORTED` if the operator has no kernel for the number, or another kernel than was recorded.
    pub fn bind_scalar(&self, slot: u32, value: Scalar) -> Result<()> {
        let mut state = self.turn.lock();
        let state = &mut *state;
        let Some(&Bindable {
            what: NamedThing::Scalar { node: id, index },
            ..
        }) = state.slots.get(slot as usize)
        else {
            return Err(no_slot(slot, "scalar"));
        };
        let missing = || Error::new(Code::INTERNAL, "a named node is missing");
        let data = Arc::clone(&state.data);
        let node = data.graph.node(id).ok_or_else(missing)?;
        let command = &node.spec.command;
        let call = command.call.ok_or_else(missing)?;
        let mut scalars = call.with(&data.store.calls, |_, call| call.scalars.to_vec());
        for one in &state.slots {
            if let (NamedThing::Scalar { node, index }, Some(value)) = (one.what, one.scalar)
                && node == id
            {
                scalars[index as usize] = value;
            }
        }
        scalars[index as usize] = value;
        call.with(&data.store.calls, |operator, call| {
            let scalars = &scalars;
            numbers::check(operator, &Call { scalars, ..*call })
        })?;
        let old = state.slots[slot as usize].scalar.replace(value);
        if let Work::Operator(..) = command.work {
            // The driver's block has the number as it is.
            let tensors = call.with(&data.store.calls, |_, call| {
                call.inputs.len() + call.outputs.len()
            });
            let words = packed::scalar_words(tensors, index as usize);
            for (word, first) in words.into_iter().zip(packed::scalar_as_words(value)) {
                state.push_pending(Patch {
                    target: Patch::WORD | u64::from(command.words.start + word),
                    first,
                    second: 0,
                });
            }
            return Ok(());
        }
        let planned = call.with(&data.store.calls, |operator, call| {
            let scalars = &scalars;
            outrigger_ops::plan(operator, &Call { scalars, ..*call })
        });
        let same = planned.ok().filter(|plan| {
            matches!(command.work, Work::Kernel(kernel) if std::ptr::fn_addr_eq(kernel, plan.kernel))
                && plan.args().len() == command.size as usize
        });
        let Some(plan) = same else {
            state.slots[slot as usize].scalar = old;
            return Err(Error::new(
                Code::UNSUPPORTED,
                format!(
                    "{} runs another kernel with {value:?} than with the recorded number: capture it anew",
                    node.spec.label
                ),
            ));
        };
        let addresses = |word: u32| data.store.addresses.iter().any(|one| one.word == word);
        let (first, recorded) = (command.words.start, &data.store.words);
        for (word, bytes) in (first..).zip(plan.args().as_chunks::<8>().0) {
            // A word is also sent if an earlier replay may have changed it, so that a number can go back to the
            // recorded one.
            let value = u64::from_ne_bytes(*bytes);
            let target = Patch::WORD | u64::from(word);
            let sent = state
                .pending
                .iter()
                .any(|(_, patch)| patch.target == target);
            let changed = value != recorded[word as usize] || sent || state.submissions > 0;
            if changed && !addresses(word) && !state.drawn(word) {
                state.push_pending(Patch {
                    target,
                    first: value,
                    second: 0,
                });
            }
        }
        Ok(())
    }

    /// Binds another value in place of a named argument of a kernel, for later replays.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown slot or one that is no argument; `INVALID_ARGUMENT` if the value has not as many bytes
    /// as the recorded one.
    pub fn bind_argument(&self, slot: u32, value: &[u8]) -> Result<()> {
        let mut state = self.turn.lock();
        let state = &mut *state;
        let Some(Bindable {
            what: NamedThing::Argument { first, size },
            bytes,
            name,
            ..
        }) = state.slots.get_mut(slot as usize)
        else {
            return Err(no_slot(slot, "argument"));
        };
        if value.len() != *size as usize {
            let text = format!(
                "a value of {} bytes for '{name}', which has {size}",
                value.len()
            );
            return Err(Error::new(Code::INVALID_ARGUMENT, text));
        }
        *bytes = Some(value.into());
        let (first, end) = (*first, *first + *size);
        for word in first / 8..end.div_ceil(8) {
            let patch = Patch {
                target: Patch::WORD | u64::from(word),
                first: state.word_of_arguments(word),
                second: 0,
            };
            state.push_pending(patch);
        }
        Ok(())
    }

    /// Takes the nodes of another graph of the same shape: the same kinds, operators and edges, with other addresses
    /// and numbers. Bindings go back to what that graph recorded.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that names the first node that differs. Nothing has changed then.
    pub fn update(&self, graph: &Graph) -> Result<()> {
        let (unbound, last) = self.take_over(graph.data()?)?;
        for base in unbound {
            unbind(self.device, last, base);
        }
        self.device.sweep_retired();
        Ok(())
    }

    /// Replaces the graph that is replayed. Returns the bases of what was bound, and the last stream that may use it.
    fn take_over(&self, data: Arc<GraphData>) -> Result<(Vec<u64>, Option<u64>)> {
        let mut state = self.turn.lock();
        let state = &mut *state;
        let differ = |what: String| {
            Error::new(
                Code::INVALID_ARGUMENT,
                format!("the graph is not of the same shape: {what}; instantiate it instead"),
            )
        };
        if data.resources.device.index() != self.device.index() {
            return Err(differ("it is of another device".to_owned()));
        }
        state
            .data
            .graph
            .same_shape(&data.graph, same_command)
            .map_err(|difference| differ(difference.to_string()))?;
        let slots = if data.names.is_empty() {
            let moved = |slot: &Bindable| {
                let what = moved(slot, &state.data, &data).ok_or_else(|| {
                    differ(format!(
                        "the addresses of '{}' are not in one buffer there: name its buffers",
                        slot.name
                    ))
                })?;
                Ok(Bindable {
                    name: slot.name.clone(),
                    what,
                    bound: None,
                    scalar: None,
                    bytes: None,
                })
            };
            let slots = state.slots.iter().map(moved);
            slots.collect::<Result<Vec<_>>>()?
        } else {
            let slots = slots_of(&data);
            let names = |slots: &[Bindable]| -> Vec<String> {
                slots.iter().map(|slot| slot.name.clone()).collect()
            };
            if names(&slots) != names(&state.slots) {
                return Err(differ(format!(
                    "its names are {:?}, not {:?}",
                    names(&slots),
                    names(&state.slots)
                )));
            }
            slots
        };
        check_slots(&data, &slots)?;
        let threads = threads(self.serial || self.mode.by_node());
        let same = state.data.graph.same_use(&data.graph);
        let schedule = if same {
            Arc::clone(&state.schedule)
        } else {
            Arc::new(data.graph.schedule(threads))
        };
        let like = same.then_some(&*state.program);
        let program = Program::new(&data, &schedule, threads, &slot_ranges(&slots), like)?;
        program.applied.store(state.submissions, Ordering::Relaxed);
        if let Some(native) = &mut state.native {
            // SAFETY: nobody else has the program yet; the exec keeps it from here on.
            unsafe { native.renew(self.device, &program, state.last) }?;
        }
        *self.shown.lock() = Shown::new(&data, &schedule, &slots);
        let bound = std::mem::replace(&mut state.slots, slots).into_iter();
        let bound = bound.filter_map(|old| old.bound).collect();
        state.pending.clear();
        state.gates = data.gates().into();
        state.schedule = schedule;
        let old = (
            std::mem::replace(&mut state.program, Arc::new(program)),
            std::mem::replace(&mut state.data, data),
        );
        self.device.retire(state.last, Box::new(old));
        Ok((bound, state.last))
    }
}

impl ExecState {
    fn push_pending(&mut self, patch: Patch) {
        self.pending.retain(|(_, old)| old.target != patch.target);
        self.pending.push((self.submissions + 1, patch));
    }

    /// A word as it was recorded, but for the arguments in it that are bound.
    fn word_of_arguments(&self, word: u32) -> u64 {
        let mut bytes = self.data.store.words[word as usize].to_ne_bytes();
        for slot in &self.slots {
            if let (NamedThing::Argument { first, .. }, Some(value)) = (slot.what, &slot.bytes) {
                for (at, byte) in (first..).zip(value) {
                    if at / 8 == word {
                        bytes[at as usize % 8] = *byte;
                    }
                }
            }
        }
        u64::from_ne_bytes(bytes)
    }

    /// Whether a word is written by replays for a generator.
    fn drawn(&self, word: u32) -> bool {
        let mut draws = self.data.store.draws.iter();
        draws.any(|draw| draw.seed == word || draw.offset == word)
    }
}

#[cold]
fn no_slot(slot: u32, wanted: &str) -> Error {
    Error::new(
        Code::NOT_FOUND,
        format!("slot {slot} is not that of a named {wanted}"),
    )
}

/// Lets a bound buffer go: the work of replays so far may still use it.
pub(super) fn unbind(device: &dyn Device, last: Option<u64>, base: u64) {
    if let Some(stream) = last {
        device.record_stream(base, stream);
    }
    device.unhold(base);
}

#[inline]
fn same_command(a: &Command, b: &Command) -> Result<(), String> {
    let same = match (&a.work, &b.work) {
        (Work::None, Work::None) => true,
        (Work::Kernel(a), Work::Kernel(b)) => std::ptr::fn_addr_eq(*a, *b),
        (Work::Operator(a, _), Work::Operator(b, _)) => Arc::ptr_eq(a, b),
        (Work::Device(a), Work::Device(b)) => a == b,
        (Work::Conditional(a), Work::Conditional(b)) => a == b,
        _ => false,
    };
    if same && a.size == b.size && a.words == b.words {
        Ok(())
    } else {
        Err("it runs another kernel, or one with other arguments".to_owned())
    }
}
