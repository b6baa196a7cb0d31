//! Recordings: which queues keep their commands instead of submitting them, what was kept, and what each command waits for
//! (R31 to R33).
//!
//! A recording has one list of commands, in the order of the calls. A queue can only wait for what was recorded before,
//! so this order respects all waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use outrigger_device::{Code, sys};
use parking_lot::{Mutex, MutexGuard};

use crate::call::{Refusal, Result};
use crate::command::{Body, Command, Kept};
use crate::entries::Calls;
use crate::graph::Gone;
use crate::unit::Unit;

/// The recordings of a driver, and what they need to know of its objects.
pub(crate) struct Recorder {
    /// The entries of the driver.
    pub(crate) calls: Calls,
    /// Queues that record, events that were recorded last in a recording, and places of destroyed graphs.
    busy: AtomicUsize,
    /// The number of queues that were destroyed.
    destroyed: AtomicU64,
    /// Whether a launch of a graph was more than one submission to the driver.
    split: AtomicBool,
    /// The places that destroyed graphs have left.
    pub(crate) gone: Gone,
    table: Mutex<Table>,
}

/// By the handles of the driver, as numbers.
#[derive(Default)]
pub(crate) struct Table {
    /// The device of each queue.
    pub(crate) queues: HashMap<usize, u32>,
    /// The text of each module that has one which can be a part of programs.
    pub(crate) modules: HashMap<usize, Arc<str>>,
    pub(crate) kernels: HashMap<usize, KnownKernel>,
    /// The recording that each queue belongs to, and its place there.
    recording: HashMap<usize, (u64, usize)>,
    /// Points of recordings. One whose recording is over counts as never recorded.
    points: HashMap<usize, Point>,
    recordings: HashMap<u64, Recording>,
    /// The number of the next recording.
    next: u64,
}

/// A kernel of a module.
pub(crate) struct KnownKernel {
    pub(crate) module: usize,
    pub(crate) unit: Option<Arc<Unit>>,
}

/// Commands that are being recorded.
#[derive(Default)]
struct Recording {
    device: u32,
    commands: Vec<Kept>,
    /// The queue that began is the first one.
    members: Vec<Member>,
}

/// A queue of a recording.
#[derive(Default)]
struct Member {
    /// `None` once it was destroyed.
    queue: Option<usize>,
    /// The numbers of its own commands.
    own: Vec<u32>,
    /// The number of commands of each member, by its place, that lie before the next command of this queue.
    seen: Vec<usize>,
    /// The commands that the next one waits for besides the last one of this queue.
    waits: Vec<u32>,
}

/// A point of a recording: what an event stands for.
#[derive(Clone)]
struct Point {
    recording: u64,
    seen: Vec<usize>,
}

/// The answer of a recording to a call.
pub(crate) enum Answer {
    /// The call is the driver's.
    Pass,
    /// The call is done.
    Done,
}

impl Recorder {
    pub(crate) fn new(calls: Calls) -> Self {
        Self {
            calls,
            busy: AtomicUsize::new(0),
            destroyed: AtomicU64::new(0),
            split: AtomicBool::new(false),
            gone: Gone::default(),
            table: Mutex::default(),
        }
    }

    /// Whether no queue records, no event is a point of a recording, and nothing of a destroyed graph is left.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
    }

    /// No call of the driver is made under this lock.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Does something with the table, and counts anew.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut Table) -> R) -> R {
        let mut table = self.table.lock();
        let result = change(&mut table);
        let busy = table.recording.len() + table.points.len() + self.gone.count();
        self.busy.store(busy, Ordering::Relaxed);
        result
    }

    /// Gives back what destroyed graphs have left and no launch uses any more.
    pub(crate) fn sweep(&self) {
        self.gone.sweep(self);
        self.with(|_| ());
    }

    /// The number of queues that were destroyed so far. The handle of a queue may come again afterwards.
    pub(crate) fn destroyed(&self) -> u64 {
        self.destroyed.load(Ordering::Relaxed)
    }

    /// Notes that a launch of a graph is more than one submission.
    pub(crate) fn set_split(&self) {
        self.split.store(true, Ordering::Relaxed);
    }

    /// Whether one was.
    pub(crate) fn has_split(&self) -> bool {
        self.split.load(Ordering::Relaxed)
    }

    /// Forgets a queue that is destroyed.
    pub(crate) fn forget_queue(&self, queue: *mut sys::otr_queue) {
        self.with(|table| table.forget_queue(queue.addr()));
        self.destroyed.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps a command of a queue that records.
    pub(crate) fn keep(&self, queue: *mut sys::otr_queue, command: Command) -> Result<()> {
        self.table.lock().keep(queue.addr(), command)
    }
}

impl Table {
    /// The device of a queue.
    pub(crate) fn device(&self, queue: usize) -> Result<u32> {
        self.queues.get(&queue).copied().ok_or_else(|| {
            Refusal::new(
                Code::INVALID_HANDLE,
                "the queue is NULL, or none of this driver",
            )
        })
    }

    /// Whether a queue records.
    pub(crate) fn records(&self, queue: usize) -> bool {
        self.recording.contains_key(&queue)
    }

    /// Refuses a call that a recording queue does not accept.
    pub(crate) fn refuse_queue(&self, queue: usize, what: &str) -> Result<()> {
        if self.records(queue) {
            return Err(capture(format!(
                "{what} on a queue that records: its work runs only when the graph is launched"
            )));
        }
        Ok(())
    }

    /// Refuses a call that looks at a point of a running recording. `Done` says that the event counts as never recorded.
    pub(crate) fn look(&self, event: usize, what: &str) -> Result<Answer> {
        match self.points.get(&event) {
            None => Ok(Answer::Pass),
            Some(point) if self.recordings.contains_key(&point.recording) => Err(capture(format!(
                "{what} of an event that is a point of a recording: recorded work does not run"
            ))),
            Some(_) => Ok(Answer::Done),
        }
    }

    /// Begins a recording.
    pub(crate) fn begin(&mut self, queue: usize) -> Result<()> {
        let device = self.device(queue)?;
        self.refuse_queue(queue, "the begin of a recording")?;
        let number = self.next;
        self.next += 1;
        let mut recording = Recording {
            device,
            ..Recording::default()
        };
        recording.add(queue);
        self.recordings.insert(number, recording);
        self.recording.insert(queue, (number, 0));
        Ok(())
    }

    /// Ends a recording, and gives its commands and its device.
    pub(crate) fn end(&mut self, queue: usize) -> Result<(Body, u32)> {
        self.device(queue)?;
        let Some(&(number, place)) = self.recording.get(&queue) else {
            return Err(argument(
                "the queue does not record: a recording begins with record_begin",
            ));
        };
        if place != 0 {
            return Err(argument(
                "the queue has only joined the recording: it ends on the queue where it began",
            ));
        }
        let Some(recording) = self.give_up(number) else {
            return Err(argument("the recording is lost"));
        };
        match recording.unjoined() {
            0 => Ok((
                Body {
                    commands: recording.commands,
                },
                recording.device,
            )),
            count => Err(argument(format!(
                "{count} queues that joined the recording were not joined again: let the recording queue wait for an event \
                 behind their work"
            ))),
        }
    }

    /// Ends a recording: its queues take work again.
    fn give_up(&mut self, number: u64) -> Option<Recording> {
        self.recording.retain(|_, (of, _)| *of != number);
        self.recordings.remove(&number)
    }

    /// Keeps a command of a queue that records.
    fn keep(&mut self, queue: usize, command: Command) -> Result<()> {
        let place = self.recording.get(&queue).copied();
        let found = place.and_then(|(number, own)| Some((self.recordings.get_mut(&number)?, own)));
        let Some((recording, own)) = found else {
            return Err(Refusal::new(Code::INTERNAL, "the queue does not record"));
        };
        let number = recording.commands.len() as u32;
        let member = &mut recording.members[own];
        let mut waits = std::mem::take(&mut member.waits);
        waits.extend(member.own.last());
        member.own.push(number);
        member.seen[own] += 1;
        recording.commands.push(Kept {
            command,
            waits: waits.into(),
        });
        Ok(())
    }

    /// Makes an event the point of a recording behind all that a queue was given.
    pub(crate) fn mark(&mut self, event: usize, queue: usize) {
        let place = self.recording.get(&queue);
        let found =
            place.and_then(|&(number, own)| Some((number, self.recordings.get(&number)?, own)));
        if let Some((recording, found, own)) = found {
            let seen = found.members[own].seen.clone();
            self.points.insert(event, Point { recording, seen });
        }
    }

    /// The event was recorded elsewhere, or is destroyed.
    pub(crate) fn unmark(&mut self, event: usize) {
        self.points.remove(&event);
    }

    /// Orders later work of a queue behind an event, if either belongs to a recording. `outcome` is what the driver says of
    /// the event.
    pub(crate) fn wait(&mut self, queue: usize, event: usize, is_well: bool) -> Result<Answer> {
        let device = self.device(queue)?;
        let recording = self.recording.get(&queue).copied();
        let point = self.points.get(&event).cloned();
        let Some(point) = point else {
            return match (recording, is_well) {
                (None, _) => Ok(Answer::Pass),
                (Some(_), true) => Ok(Answer::Done),
                (Some(_), false) => Err(capture(
                    "a recording queue waits for an event outside of the recording, which was not reached without a failure",
                )),
            };
        };
        let Some(found) = self.recordings.get_mut(&point.recording) else {
            // The event counts as never recorded.
            return Ok(Answer::Done);
        };
        let own = match recording {
            Some((number, own)) if number == point.recording => own,
            Some(_) => {
                return Err(capture(
                    "the event is a point of another recording than that of the queue",
                ));
            }
            None if device != found.device => {
                return Err(Refusal::new(
                    Code::UNSUPPORTED,
                    "a queue of another device cannot join the recording",
                ));
            }
            None => {
                let own = found.add(queue);
                self.recording.insert(queue, (point.recording, own));
                own
            }
        };
        found.wait(own, &point.seen);
        Ok(Answer::Done)
    }

    /// Forgets a queue that is destroyed, and gives its recording up.
    fn forget_queue(&mut self, queue: usize) {
        self.queues.remove(&queue);
        match self.recording.remove(&queue) {
            Some((number, 0)) => drop(self.give_up(number)),
            Some((number, own)) => {
                if let Some(recording) = self.recordings.get_mut(&number) {
                    recording.members[own].queue = None;
                }
            }
            None => {}
        }
    }
}

impl Recording {
    fn add(&mut self, queue: usize) -> usize {
        let own = self.members.len();
        self.members.push(Member {
            queue: Some(queue),
            seen: vec![0; own + 1],
            ..Member::default()
        });
        own
    }

    /// Lets a member wait for a point.
    fn wait(&mut self, own: usize, point: &[usize]) {
        let mut member = std::mem::take(&mut self.members[own]);
        member.seen.resize(member.seen.len().max(point.len()), 0);
        for (place, &count) in point.iter().enumerate() {
            if count > member.seen[place] {
                member.seen[place] = count;
                member.waits.extend(self.members[place].own.get(count - 1));
            }
        }
        self.members[own] = member;
    }

    /// The number of queues that have work for which the first queue does not wait, or that were destroyed.
    fn unjoined(&self) -> usize {
        let seen = |place: usize| self.members[0].seen.get(place).copied().unwrap_or(0);
        let open = |&place: &usize| {
            let member = &self.members[place];
            member.queue.is_none() || seen(place) < member.own.len()
        };
        (1..self.members.len()).filter(open).count()
    }
}

#[cold]
fn capture(text: impl Into<String>) -> Refusal {
    Refusal::new(Code::CAPTURE, text)
}

#[cold]
fn argument(text: impl Into<String>) -> Refusal {
    Refusal::new(Code::INVALID_ARGUMENT, text)
}

#[cfg(test)]
mod tests {
    use super::{Answer, Table};
    use crate::command::Command;

    const FIRST: usize = 64;
    const SECOND: usize = 128;

    /// Two queues of a device, of which the first records.
    fn recording() -> Table {
        let mut table = Table::default();
        table.queues.extend([(FIRST, 0), (SECOND, 0)]);
        assert!(table.begin(FIRST).is_ok());
        table
    }

    fn keep(table: &mut Table, queue: usize) {
        let copy = outrigger_device::params::copy(64, 128, 8, 3);
        let command = Command::copy(Some(&copy)).unwrap();
        table.keep(queue, command).unwrap();
    }

    /// Lets a queue wait for what another one was given.
    fn wait(table: &mut Table, queue: usize, other: usize) {
        let event = 7;
        table.mark(event, other);
        assert!(matches!(table.wait(queue, event, true), Ok(Answer::Done)));
        table.unmark(event);
    }

    #[test]
    fn a_command_waits_for_its_queue_and_for_points_of_others() {
        let mut table = recording();
        keep(&mut table, FIRST);
        wait(&mut table, SECOND, FIRST);
        keep(&mut table, SECOND);
        keep(&mut table, FIRST);
        keep(&mut table, SECOND);
        wait(&mut table, FIRST, SECOND);
        wait(&mut table, FIRST, SECOND);
        keep(&mut table, FIRST);
        keep(&mut table, FIRST);
        let (body, device) = table.end(FIRST).unwrap();
        let waits: Vec<_> = body.commands.iter().map(|one| one.waits.to_vec()).collect();
        assert_eq!(
            waits,
            [vec![], vec![0], vec![0], vec![1], vec![3, 2], vec![4]]
        );
        assert_eq!(device, 0);
        assert!(!table.records(FIRST) && !table.records(SECOND));
    }

    #[test]
    fn a_queue_of_another_device_does_not_join() {
        let mut table = recording();
        table.queues.insert(SECOND, 1);
        table.mark(7, FIRST);
        let refusal = table.wait(SECOND, 7, true).err().unwrap();
        assert_eq!(refusal.code, outrigger_device::Code::UNSUPPORTED);
        assert!(!table.records(SECOND));
    }
}
