//! Random programs of several queues, events, copies, fills, host calls and failures, against a model
//! that runs them one command after the other (R16, R20 to R24). A failing program is shrunk.
//!
//! Each queue works on its own memory, and events order the only memory that all of them share; so the
//! outcome does not depend on the order in which the driver runs what is not ordered.

use outrigger_device::{Code, CopyKind, Event, Queue};
use outrigger_tests::Gate;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::support::{Log, Memory, Target, block, event, fail, fill, queue, read};

crate::cases! {
    Nothing: r16_r20_r24_random_programs_match_the_model;
}

const QUEUES: usize = 3;
const EVENTS: usize = 4;
/// Bytes of each queue's memory; blocks of 16 are what commands move.
const SIZE: usize = 128;

#[derive(Clone, Debug)]
enum Command {
    Fill {
        queue: usize,
        block: usize,
        value: u8,
    },
    Copy {
        queue: usize,
        to: usize,
        from: usize,
    },
    /// Copies a block of another queue's memory, once all that the other queue did is waited for.
    Fetch {
        queue: usize,
        other: usize,
        block: usize,
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
}

fn command() -> impl Strategy<Value = Command> {
    let queue = 0..QUEUES;
    let event = 0..EVENTS;
    let block = 0..SIZE / 16;
    prop_oneof![
        4 => (queue.clone(), block.clone(), any::<u8>()).prop_map(|(queue, block, value)| Command::Fill { queue, block, value }),
        4 => (queue.clone(), block.clone(), block.clone()).prop_map(|(queue, to, from)| Command::Copy { queue, to, from }),
        3 => (queue.clone(), queue.clone(), block, event.clone())
            .prop_map(|(queue, other, block, event)| Command::Fetch { queue, other, block, event }),
        3 => queue.clone().prop_map(|queue| Command::Call { queue }),
        1 => (queue.clone(), 11..13).prop_map(|(queue, code)| Command::Fail { queue, code }),
        3 => (queue.clone(), event.clone()).prop_map(|(queue, event)| Command::Record { queue, event }),
        3 => (queue.clone(), event.clone()).prop_map(|(queue, event)| Command::Wait { queue, event }),
        1 => queue.prop_map(|queue| Command::Synchronize { queue }),
        1 => event.prop_map(|event| Command::SynchronizeEvent { event }),
    ]
}

/// What the program does by the rules. `None` is no failure.
struct Model {
    memory: [[u8; SIZE]; QUEUES],
    failure: [Option<i32>; QUEUES],
    events: [Option<i32>; EVENTS],
    /// The codes that host calls of each queue were called with.
    calls: [Vec<u64>; QUEUES],
}

/// The driver's side.
struct Machine {
    queues: Vec<Queue>,
    events: Vec<Event>,
    memory: Vec<Memory>,
    calls: Vec<Log>,
}

impl Machine {
    fn call(&self, queue: usize) {
        let log = self.calls[queue].clone();
        self.queues[queue]
            .host_call(move |upstream| {
                log.push(upstream.map_or_else(|code| code.0 as u64, |()| 0));
                upstream
            })
            .unwrap();
    }

    fn copy(&self, queue: usize, to: u64, from: u64) {
        if to != from {
            // SAFETY: blocks of live memory, whose users are ordered by queues and events.
            unsafe { self.queues[queue].copy(to, from, 16, CopyKind::DeviceToDevice) }.unwrap();
        }
    }

    fn address(&self, queue: usize, block: usize) -> u64 {
        self.memory[queue].address + block as u64 * 16
    }
}

fn code(result: outrigger_device::Result<()>) -> Option<i32> {
    result.err().map(|error| error.code().0)
}

fn step(machine: &Machine, model: &mut Model, command: &Command) -> Result<(), TestCaseError> {
    match *command {
        Command::Fill {
            queue,
            block,
            value,
        } => {
            fill(
                &machine.queues[queue],
                machine.address(queue, block),
                16,
                &[value],
            );
            if model.failure[queue].is_none() {
                model.memory[queue][block * 16..][..16].fill(value);
            }
        }
        Command::Copy { queue, to, from } => {
            machine.copy(
                queue,
                machine.address(queue, to),
                machine.address(queue, from),
            );
            if model.failure[queue].is_none() {
                model.memory[queue].copy_within(from * 16..(from + 1) * 16, to * 16);
            }
        }
        Command::Fetch {
            queue,
            other,
            block,
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
            machine.copy(
                queue,
                machine.address(queue, block),
                machine.address(other, block),
            );
            if model.failure[queue].is_none() {
                let bytes = model.memory[other];
                model.memory[queue][block * 16..][..16].copy_from_slice(&bytes[block * 16..][..16]);
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
            machine.call(queue);
            model.calls[queue].push(model.failure[queue].unwrap_or(0) as u64);
        }
        Command::Fail { queue, code } => {
            fail(&machine.queues[queue], Code(code));
            model.failure[queue].get_or_insert(code);
        }
        Command::Record { queue, event } => {
            machine.events[event]
                .record(&machine.queues[queue])
                .unwrap();
            model.events[event] = model.failure[queue];
        }
        Command::Wait { queue, event } => {
            machine.queues[queue]
                .wait_event(&machine.events[event])
                .unwrap();
            if model.failure[queue].is_none() {
                model.failure[queue] = model.events[event];
            }
        }
        Command::Synchronize { queue } => {
            prop_assert_eq!(
                code(machine.queues[queue].synchronize()),
                model.failure[queue].take()
            );
            prop_assert_eq!(&machine.calls[queue].values(), &model.calls[queue]);
        }
        Command::SynchronizeEvent { event } => {
            prop_assert_eq!(
                code(machine.events[event].synchronize()),
                model.events[event]
            );
        }
    }
    Ok(())
}

fn r16_r20_r24_random_programs_match_the_model(target: &Target) {
    let driver = target.open();
    let config = Config {
        cases: 150,
        failure_persistence: None,
        ..Config::default()
    };
    let programs = (prop::collection::vec(command(), 1..80), any::<bool>());
    let result = TestRunner::new(config).run(&programs, |(commands, behind_a_gate)| {
        let machine = Machine {
            queues: (0..QUEUES).map(|_| queue(&driver)).collect(),
            events: (0..EVENTS).map(|_| event(&driver)).collect(),
            memory: (0..QUEUES)
                .map(|_| Memory::new(&driver, 0, SIZE as u64))
                .collect(),
            calls: vec![Log::default(); QUEUES]
                .iter()
                .map(|_| Log::default())
                .collect(),
        };
        let mut model = Model {
            memory: [[0; SIZE]; QUEUES],
            failure: [None; QUEUES],
            events: [None; EVENTS],
            calls: Default::default(),
        };
        for (queue, memory) in machine.queues.iter().zip(&machine.memory) {
            fill(queue, memory.address, SIZE as u64, &[0]);
        }
        // Half of the programs are submitted as far as they go before any of it can run.
        let gate = Gate::new();
        if behind_a_gate {
            machine.queues.iter().for_each(|queue| block(queue, &gate));
        }
        let waits = |c: &Command| {
            matches!(
                c,
                Command::Synchronize { .. } | Command::SynchronizeEvent { .. }
            )
        };
        let outcome = commands.iter().try_for_each(|command| {
            if waits(command) {
                gate.open();
            }
            step(&machine, &mut model, command)
        });
        gate.open();
        // Whatever happened, the work is over before the memory goes.
        let ends: Vec<_> = machine
            .queues
            .iter()
            .map(|queue| code(queue.synchronize()))
            .collect();
        outcome?;
        for (queue, end) in ends.into_iter().enumerate() {
            prop_assert_eq!(end, model.failure[queue], "queue {}", queue);
            prop_assert_eq!(
                &machine.calls[queue].values(),
                &model.calls[queue],
                "queue {}",
                queue
            );
            let bytes = read(&machine.queues[queue], machine.memory[queue].address, SIZE);
            prop_assert_eq!(
                &bytes[..],
                &model.memory[queue][..],
                "memory of queue {}",
                queue
            );
        }
        for (event, expected) in machine.events.iter().zip(model.events) {
            prop_assert_eq!(code(event.synchronize()), expected);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
