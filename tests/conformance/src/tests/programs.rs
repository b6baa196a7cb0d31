//! Random programs of several queues, events, copies, fills, host calls and failures, against a model
//! that runs one command after another. A program that fails is made as small as possible while it
//! still fails.
//!
//! Each queue works on its own memory, and events order the only memory that all queues share. So the
//! outcome does not depend on the order of commands that are not ordered.

use outrigger_device::{Code, CopyKind, Event, Queue};
use proptest::prelude::*;

use super::kit::{Bench, HostBytes, Log, block, copy, fail, fill, note_upstream, read, within};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Gate, Verdict};

tests! { "stream.program":
    /// Random programs of fills and copies on three queues match the model.
    of_fills_and_copies: R16 R17, limit 120, run |c| programs(c, &Mix { failures: false, events: false, gate: false });
    /// Random programs with events match the model.
    with_events: R16 R21 R24, limit 120, run |c| programs(c, &Mix { failures: false, events: true, gate: false });
    /// Random programs with failures match the model.
    with_failures: R16 R20, limit 120, run |c| programs(c, &Mix { failures: true, events: false, gate: false });
    /// Random programs with events and failures match the model.
    with_events_and_failures: R16 R20 R21 R23 R24, limit 120, run |c| programs(c, &Mix { failures: true, events: true, gate: false });
    /// Random programs that are submitted before any of it can run match the model.
    behind_a_gate: R16 R17 R20 R21 R23 R24, limit 120, run |c| programs(c, &Mix { failures: true, events: true, gate: true });
    /// Random sequences of allocations and frees match a model: no overlap, no loss, no other byte.
    of_allocations: R13 R14 R29, limit 120, run allocations;
}

const QUEUES: usize = 3;
const EVENTS: usize = 4;
/// Bytes of a block, which is what commands move.
const BLOCK: usize = 48;
/// Blocks of each queue's memory, on the device and on the host.
const BLOCKS: usize = 6;
const SIZE: usize = BLOCK * BLOCKS;

/// The ingredients that a program may have.
struct Mix {
    failures: bool,
    events: bool,
    /// Whether all queues are held back until the program first waits.
    gate: bool,
}

#[derive(Clone, Debug)]
enum Command {
    Fill {
        queue: usize,
        at: usize,
        value: u8,
    },
    /// Between blocks of the device and of the host, each way.
    Copy {
        queue: usize,
        to: (bool, usize),
        from: (bool, usize),
    },
    /// Copies a block of another queue's memory, once all that the other queue did is waited for.
    Fetch {
        queue: usize,
        other: usize,
        at: usize,
        event: usize,
    },
    Call {
        queue: usize,
    },
    Fail {
        queue: usize,
        code: i32,
    },
    Record {
        queue: usize,
        event: usize,
    },
    Wait {
        queue: usize,
        event: usize,
    },
    Synchronize {
        queue: usize,
    },
    SynchronizeEvent {
        event: usize,
    },
    /// The event is destroyed and made anew.
    Renew {
        event: usize,
    },
}

fn command(mix: &Mix) -> impl Strategy<Value = Command> + use<> {
    let (queue, event, at) = (0..QUEUES, 0..EVENTS, 0..BLOCKS);
    let place = (any::<bool>(), at.clone());
    let (failures, events) = (u32::from(mix.failures), u32::from(mix.events));
    prop_oneof![
        4 => (queue.clone(), at.clone(), any::<u8>()).prop_map(|(queue, at, value)| Command::Fill { queue, at, value }),
        6 => (queue.clone(), place.clone(), place).prop_map(|(queue, to, from)| Command::Copy { queue, to, from }),
        3 => queue.clone().prop_map(|queue| Command::Call { queue }),
        1 => queue.clone().prop_map(|queue| Command::Synchronize { queue }),
        failures => (queue.clone(), 11..14).prop_map(|(queue, code)| Command::Fail { queue, code }),
        3 * events => (queue.clone(), queue.clone(), at, event.clone()).prop_map(|(queue, other, at, event)| Command::Fetch { queue, other, at, event }),
        3 * events => (queue.clone(), event.clone()).prop_map(|(queue, event)| Command::Record { queue, event }),
        3 * events => (queue, event.clone()).prop_map(|(queue, event)| Command::Wait { queue, event }),
        events => event.clone().prop_map(|event| Command::SynchronizeEvent { event }),
        events => event.prop_map(|event| Command::Renew { event }),
    ]
}

/// The effects of the program by the rules. `None` is no failure.
struct Model {
    /// The memory of each queue: device memory, then host memory.
    memory: Vec<[Vec<u8>; 2]>,
    failure: [Option<i32>; QUEUES],
    events: [Option<i32>; EVENTS],
    /// The codes that host calls of each queue were called with.
    calls: [Vec<u64>; QUEUES],
}

/// The driver's side.
struct Machine<'a> {
    bench: &'a Bench,
    queues: Vec<Queue>,
    events: Vec<Event>,
    device: Vec<u64>,
    host: Vec<HostBytes>,
    calls: Vec<Log>,
}

impl Machine<'_> {
    fn address(&self, queue: usize, (host, block): (bool, usize)) -> u64 {
        if host {
            self.host[queue].at(block * BLOCK)
        } else {
            self.device[queue] + (block * BLOCK) as u64
        }
    }
}

fn code(result: outrigger_device::Result<()>) -> Option<i32> {
    result.err().map(|error| error.code().0)
}

fn step(machine: &mut Machine<'_>, model: &mut Model, command: &Command) -> Verdict {
    match *command {
        Command::Fill { queue, at, value } => {
            let address = machine.address(queue, (false, at));
            fill(
                &machine.queues[queue],
                address,
                BLOCK as u64,
                &[value, !value],
            )?;
            if model.failure[queue].is_none() {
                let bytes = [value, !value].repeat(BLOCK / 2);
                model.memory[queue][0][at * BLOCK..][..BLOCK].copy_from_slice(&bytes);
            }
        }
        Command::Copy { queue, to, from } => {
            if to == from {
                return Ok(());
            }
            let kind = match (to.0, from.0) {
                (true, true) => CopyKind::HostToHost,
                (true, false) => CopyKind::DeviceToHost,
                (false, true) => CopyKind::HostToDevice,
                (false, false) => CopyKind::DeviceToDevice,
            };
            let (dst, src) = (machine.address(queue, to), machine.address(queue, from));
            copy(&machine.queues[queue], dst, src, BLOCK as u64, kind)?;
            if model.failure[queue].is_none() {
                let memory = &mut model.memory[queue];
                let bytes = memory[usize::from(from.0)][from.1 * BLOCK..][..BLOCK].to_vec();
                memory[usize::from(to.0)][to.1 * BLOCK..][..BLOCK].copy_from_slice(&bytes);
            }
        }
        Command::Fetch {
            queue,
            other,
            at,
            event,
        } => {
            if queue == other {
                return Ok(());
            }
            // The other queue's work first, then the copy, then the other queue's later work.
            step(
                machine,
                model,
                &Command::Record {
                    queue: other,
                    event,
                },
            )?;
            step(machine, model, &Command::Wait { queue, event })?;
            let (dst, src) = (
                machine.address(queue, (false, at)),
                machine.address(other, (false, at)),
            );
            within(&machine.queues[queue], dst, src, BLOCK as u64)?;
            if model.failure[queue].is_none() {
                let bytes = model.memory[other][0][at * BLOCK..][..BLOCK].to_vec();
                model.memory[queue][0][at * BLOCK..][..BLOCK].copy_from_slice(&bytes);
            }
            step(machine, model, &Command::Record { queue, event })?;
            step(
                machine,
                model,
                &Command::Wait {
                    queue: other,
                    event,
                },
            )?;
        }
        Command::Call { queue } => {
            note_upstream(&machine.queues[queue], &machine.calls[queue])?;
            model.calls[queue].push(model.failure[queue].unwrap_or(0) as u64);
        }
        Command::Fail { queue, code } => {
            fail(&machine.queues[queue], Code(code))?;
            model.failure[queue].get_or_insert(code);
        }
        Command::Record { queue, event } => {
            machine.events[event].record(&machine.queues[queue])?;
            model.events[event] = model.failure[queue];
        }
        Command::Wait { queue, event } => {
            machine.queues[queue].wait_event(&machine.events[event])?;
            if model.failure[queue].is_none() {
                model.failure[queue] = model.events[event];
            }
        }
        Command::Synchronize { queue } => {
            let found = code(machine.queues[queue].synchronize());
            equal!(
                found,
                model.failure[queue].take(),
                "queue_synchronize of queue {queue}"
            );
            equal!(
                machine.calls[queue].values(),
                model.calls[queue],
                "calls of queue {queue}"
            );
        }
        Command::SynchronizeEvent { event } => {
            let found = code(machine.events[event].synchronize());
            equal!(
                found,
                model.events[event],
                "event_synchronize of event {event}"
            );
        }
        Command::Renew { event } => {
            machine.events[event] = machine.bench.event()?;
            model.events[event] = None;
        }
    }
    Ok(())
}

fn programs(context: &Context, mix: &Mix) -> Verdict {
    let bench = Bench::new(context)?;
    let device: Vec<u64> = (0..QUEUES)
        .map(|_| bench.memory(SIZE as u64))
        .collect::<Verdict<_>>()?;
    let host: Vec<HostBytes> = (0..QUEUES).map(|_| HostBytes::of(SIZE, 0)).collect();
    let commands = prop::collection::vec(command(mix), 1..90);
    context.property(120, commands, |commands| {
        let mut machine = Machine {
            queues: bench.queues(QUEUES)?,
            events: (0..EVENTS).map(|_| bench.event()).collect::<Verdict<_>>()?,
            device: device.clone(),
            host: host.clone(),
            calls: (0..QUEUES).map(|_| Log::default()).collect(),
            bench: &bench,
        };
        let mut model = Model {
            memory: vec![[vec![0; SIZE], vec![0; SIZE]]; QUEUES],
            failure: [None; QUEUES],
            events: [None; EVENTS],
            calls: Default::default(),
        };
        for queue in 0..QUEUES {
            machine.host[queue].set(&[0; SIZE]);
            fill(
                &machine.queues[queue],
                machine.device[queue],
                SIZE as u64,
                &[0],
            )?;
        }
        let gate = Gate::new();
        if mix.gate {
            machine
                .queues
                .iter()
                .try_for_each(|queue| block(queue, &gate))?;
        }
        let outcome = commands.iter().try_for_each(|command| {
            if matches!(
                command,
                Command::Synchronize { .. } | Command::SynchronizeEvent { .. }
            ) {
                gate.open();
            }
            step(&mut machine, &mut model, command)
        });
        gate.open();
        // The work is over before the memory is used again, whatever happened.
        let ends: Vec<_> = machine
            .queues
            .iter()
            .map(|queue| code(queue.synchronize()))
            .collect();
        outcome?;
        for (queue, end) in ends.into_iter().enumerate() {
            equal!(end, model.failure[queue], "how queue {queue} ended");
            equal!(
                machine.calls[queue].values(),
                model.calls[queue],
                "calls of queue {queue}"
            );
            let bytes = read(&machine.queues[queue], machine.device[queue], SIZE)?;
            equal!(
                bytes,
                model.memory[queue][0],
                "device memory of queue {queue}"
            );
            equal!(
                machine.host[queue].get(),
                model.memory[queue][1],
                "host memory of queue {queue}"
            );
        }
        for (event, expected) in machine.events.iter().zip(model.events) {
            equal!(code(event.synchronize()), expected, "an event, at the end");
        }
        Ok(())
    })?;
    bench.finish()
}

/// Allocations by size, and frees by index; each keeps its bytes until it goes.
fn allocations(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, total) = (bench.queue()?, bench.properties(0)?.total_memory);
    let alignment = u64::from(bench.properties(0)?.address_alignment);
    let turns = prop::collection::vec(
        (any::<bool>(), 1..total / 6, any::<prop::sample::Index>()),
        1..40,
    );
    context.property(60, turns, |turns| {
        let mut live: Vec<(u64, u64, u8)> = Vec::new();
        let outcome = turns
            .into_iter()
            .enumerate()
            .try_for_each(|(turn, (takes, size, index))| {
                if !takes && !live.is_empty() {
                    let (address, size, value) = live.swap_remove(index.index(live.len()));
                    for at in [0, size - 1] {
                        equal!(
                            read(&queue, address + at, 1)?,
                            [value],
                            "byte {at} of {size}, before it is freed"
                        );
                    }
                    // SAFETY: its work is over.
                    unsafe { bench.memory_free(address) }?;
                    return Ok(());
                }
                match bench.memory_alloc(0, size) {
                    Ok(address) => {
                        check!(address % alignment == 0, "{address:#x} is aligned");
                        for (other, length, _) in &live {
                            check!(
                                address + size <= *other || other + length <= address,
                                "{address:#x} overlaps with {other:#x}"
                            );
                        }
                        let value = turn as u8 + 1;
                        fill(&queue, address, 1, &[value])?;
                        fill(&queue, address + size - 1, 1, &[value])?;
                        live.push((address, size, value));
                    }
                    Err(error) => {
                        equal!(error.code(), Code::OUT_OF_MEMORY, "why memory is refused");
                        let used: u64 = live.iter().map(|(_, size, _)| size).sum();
                        check!(
                            used > total / 4,
                            "{size} bytes are refused although {used} of {total} are used"
                        );
                    }
                }
                Ok(())
            });
        queue.synchronize()?;
        for (address, ..) in live {
            // SAFETY: the work is over.
            unsafe { bench.memory_free(address) }?;
        }
        outcome
    })?;
    bench.finish()
}
