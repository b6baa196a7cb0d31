//! The plan of a graph's launch: runs of tasks become launches of persistent kernels, and a command that cannot be a
//! task stands between them.

use std::collections::HashMap;
use std::sync::Arc;

use outrigger_device::sys;

use crate::command::{Body, Command, Kept, Task};
use crate::device::Device;
use crate::kernel::Kernel;
use crate::source::Text;

/// A command that a launch of a graph submits.
pub(crate) enum Step {
    Part(Part),
    Command(Command),
}

/// A launch of a persistent kernel: a run of tasks.
pub(crate) struct Part {
    pub(crate) program: Arc<Kernel>,
    /// The places at which its table and its state begin, in bytes of the plan's words.
    pub(crate) table: u64,
    pub(crate) state: u64,
    tasks: u64,
    pub(crate) workers: u32,
}

impl Part {
    /// The words of a launch.
    pub(crate) fn words(&self) -> [u64; 2] {
        [self.tasks, u64::from(self.workers)]
    }
}

/// Steps, and what they find in the memory of the device.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// The states of all parts, which are zeros, and then their tables.
    pub(crate) words: Vec<u64>,
    /// The words of the states.
    pub(crate) states: usize,
}

/// A run of fewer tasks is submitted command by command.
const FEWEST: usize = 2;

/// The most pieces of a task for each worker: enough that they end at about the same time, and few enough that tickets cost
/// little.
const PIECES: u64 = 8;

/// The bytes that a group fills or copies.
pub(crate) const CHUNK: u64 = 1 << 16;

impl Plan {
    /// Plans the launches of some commands.
    pub(crate) fn of(body: &Body, device: &Device) -> Self {
        let mut making = Making {
            device,
            steps: Vec::new(),
            tables: Vec::new(),
            states: 0,
            run: Vec::new(),
        };
        making.add(body);
        let Making {
            mut steps,
            tables,
            states,
            ..
        } = making;
        let begin = states as u64 * 8;
        for step in &mut steps {
            if let Step::Part(part) = step {
                part.table += begin;
            }
        }
        let mut words = vec![0; states];
        words.extend(tables);
        Self {
            steps,
            words,
            states,
        }
    }
}

struct Making<'a> {
    device: &'a Device,
    steps: Vec<Step>,
    tables: Vec<u64>,
    states: usize,
    /// Tasks that may become a part, with the commands that they are made of.
    run: Vec<(Task, Kept)>,
}

impl Making<'_> {
    fn add(&mut self, body: &Body) {
        // The place of each command in the run, if it is one of the run's.
        let mut places = HashMap::new();
        for (number, kept) in (0_u32..).zip(&body.commands) {
            match task(&kept.command, self.device) {
                Some(task) if groups(&task) <= self.most() => {
                    let waits = kept
                        .waits
                        .iter()
                        .filter_map(|other| places.get(other).copied())
                        .collect();
                    places.insert(number, self.run.len() as u32);
                    self.run.push((
                        task,
                        Kept {
                            command: kept.command.clone(),
                            waits,
                        },
                    ));
                }
                _ => {
                    // All in front of it is finished when what comes behind begins.
                    places.clear();
                    self.end_run();
                    match &kept.command {
                        Command::Graph(inner) => self.add(inner),
                        other => self.steps.push(Step::Command(other.clone())),
                    }
                }
            }
        }
        self.end_run();
    }

    /// The most groups of a task: a kernel with more of them is bound by its work. The driver shares that out among
    /// threads that sleep when there is none, not among workers that wait for each other.
    fn most(&self) -> u64 {
        PIECES * u64::from(self.device.units().max(1))
    }

    /// Makes a part of the run, or steps if it is too short or its program does not compile.
    fn end_run(&mut self) {
        let run = std::mem::take(&mut self.run);
        let mut units: Vec<_> = run.iter().map(|(task, _)| Arc::clone(&task.unit)).collect();
        units.sort_unstable();
        units.dedup();
        let program = (run.len() >= FEWEST)
            .then(|| self.device.program(&units))
            .flatten();
        let Some(program) = program else {
            let commands = run.into_iter().map(|(_, kept)| Step::Command(kept.command));
            self.steps.extend(commands);
            return;
        };
        let workers = width(&run).min(u64::from(self.device.units().max(1)));
        let table = self.tables.len();
        let mut records = Vec::with_capacity((run.len() + 1) * RECORD);
        let mut rest = Vec::new();
        let behind = (run.len() + 1) * RECORD;
        let mut tickets = 0;
        for (task, kept) in &run {
            let unit = units.binary_search(&task.unit).unwrap_or_default() as u64;
            let groups = groups(task);
            let arguments = (behind + rest.len()) as u64;
            rest.extend(&task.words);
            let waits = (behind + rest.len()) as u64;
            rest.push(kept.waits.len() as u64);
            rest.extend(kept.waits.iter().map(|other| u64::from(*other)));
            let grid = task.grid.map(u64::from);
            records.extend([
                unit, tickets, groups, grid[0], grid[1], grid[2], arguments, waits,
            ]);
            tickets += groups.min(workers * PIECES);
        }
        records.extend([0, tickets, 0, 0, 0, 0, 0, 0]);
        self.tables.extend(records);
        self.tables.extend(rest);
        let part = Part {
            program,
            table: table as u64 * 8,
            state: self.states as u64 * 8,
            tasks: run.len() as u64,
            workers: workers as u32,
        };
        // Two counters of all tasks, and one of each; two of them are a word.
        self.states += (run.len() + 2).div_ceil(2);
        self.steps.push(Step::Part(part));
    }
}

/// The words of a task in a table (kernels/tasks.c).
const RECORD: usize = 8;

fn groups(task: &Task) -> u64 {
    task.grid
        .iter()
        .fold(1, |all, one| all.saturating_mul(u64::from(*one)))
}

/// The number of groups that may run at a time: those of the widest level.
fn width(run: &[(Task, Kept)]) -> u64 {
    let mut levels: Vec<usize> = Vec::with_capacity(run.len());
    let mut widths: Vec<u64> = Vec::new();
    for (task, kept) in run {
        let before = kept
            .waits
            .iter()
            .filter_map(|other| levels.get(*other as usize));
        let level = before.max().map_or(0, |level| level + 1);
        if level == widths.len() {
            widths.push(0);
        }
        widths[level] = widths[level].saturating_add(groups(task));
        levels.push(level);
    }
    widths.into_iter().max().unwrap_or(1)
}

/// A command as a task, if it can be one.
fn task(command: &Command, device: &Device) -> Option<Task> {
    let moved = |text, addresses: &[u64], size: u64, more: &[u64]| {
        let wide = addresses
            .iter()
            .chain([&size])
            .all(|one| one.is_multiple_of(8));
        let words = [addresses, &[size, u64::from(wide)], more].concat();
        let groups = u32::try_from(size.div_ceil(CHUNK).max(1)).ok()?;
        Some(Task {
            unit: device.unit(text)?,
            grid: [groups, 1, 1],
            words,
        })
    };
    match command {
        Command::Launch(launch) => launch.task(),
        Command::Fill {
            to, size, pattern, ..
        } => {
            let (low, high) = pattern.split_at(8);
            let word = |half: &[u8]| {
                half.iter()
                    .rev()
                    .fold(0_u64, |word, byte| word << 8 | u64::from(*byte))
            };
            moved(Text::Fill, &[*to], *size, &[word(low), word(high)])
        }
        Command::Copy {
            to,
            from,
            size,
            kind,
        } if *kind == sys::OTR_COPY_DEVICE_TO_DEVICE => {
            moved(Text::Move, &[*to, *from], *size, &[])
        }
        _ => None,
    }
}
