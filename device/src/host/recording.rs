//! Recordings: which queues keep their commands instead of running them, and how their work is joined
//! again (R31 to R33).
//!
//! A recording has one list of commands, in the order of the calls. A queue can only wait for what was
//! recorded before, so this order respects all waits. The waits of each queue are counted only to find
//! out at the end whether all work was joined.
//!
//! A recording is locked before the recorder of a queue, never after.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::command::Command;
use super::fault::Fault;
use super::graph::Body;
use super::queue::Queue;
use crate::Code;

/// A queue's part: whether it records, and into what.
#[derive(Default)]
pub(super) struct Recorder {
    active: AtomicBool,
    recording: Mutex<Option<Arc<Recording>>>,
}

/// Commands that are being recorded.
pub(super) struct Recording {
    over: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    body: Body,
    /// The queue that began is the first one.
    members: Vec<Member>,
}

/// A queue of a recording.
struct Member {
    /// `None` once it was destroyed.
    queue: Option<&'static Queue>,
    /// How many commands of each member, by its place, lie before what this queue is given next.
    seen: Vec<usize>,
}

/// A point of a recording: what an event stands for.
#[derive(Clone)]
pub(super) struct Mark {
    recording: Arc<Recording>,
    seen: Vec<usize>,
}

/// The mark of an event, if it was recorded last on a queue that records.
#[derive(Default)]
pub(super) struct Marked {
    set: AtomicBool,
    mark: Mutex<Option<Mark>>,
}

impl Recorder {
    /// Whether the queue records.
    #[inline]
    pub(super) fn active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    fn current(&self) -> Option<Arc<Recording>> {
        self.recording.lock().clone()
    }

    /// `false` if the queue records already.
    fn enter(&self, recording: &Arc<Recording>) -> bool {
        let mut current = self.recording.lock();
        if current.is_some() {
            return false;
        }
        *current = Some(Arc::clone(recording));
        self.active.store(true, Ordering::Relaxed);
        true
    }

    fn leave(&self) {
        *self.recording.lock() = None;
        self.active.store(false, Ordering::Relaxed);
    }

    /// Refuses a call that a recording queue does not accept.
    #[inline]
    pub(super) fn refuse(&self, what: &str) -> Result<(), Fault> {
        if self.active() {
            return Err(refusal(what));
        }
        Ok(())
    }

    /// Keeps a command, unless the queue no longer records: `false` then.
    #[cold]
    pub(super) fn keep(&self, queue: &Queue, command: Command, args: &[u8]) -> bool {
        let kept = self.with_member(queue, |body, own, seen| {
            body.push(command, args);
            seen[own] += 1;
        });
        kept.is_some()
    }

    /// The point after all that the queue was given, if it records.
    #[cold]
    pub(super) fn mark(&self, queue: &Queue) -> Option<Mark> {
        let recording = self.current()?;
        let seen = self.with_member(queue, |_, _, seen| seen.clone())?;
        Some(Mark { recording, seen })
    }

    fn with_member<R>(
        &self,
        queue: &Queue,
        with: impl FnOnce(&mut Body, usize, &mut Vec<usize>) -> R,
    ) -> Option<R> {
        let recording = self.current()?;
        let mut state = recording.state.lock();
        let state = &mut *state;
        let own = state.place(queue)?;
        Some(with(&mut state.body, own, &mut state.members[own].seen))
    }

    /// Gives up the recording of a queue that is destroyed.
    #[cold]
    pub(super) fn abandon(&self, queue: &Queue) {
        let Some(recording) = self.current() else {
            return;
        };
        let mut state = recording.state.lock();
        match state.place(queue) {
            Some(0) => drop(recording.finish(&mut state)),
            Some(own) => {
                state.members[own].queue = None;
                self.leave();
            }
            None => {}
        }
    }
}

impl State {
    /// The place of a queue among the members.
    fn place(&self, queue: &Queue) -> Option<usize> {
        let mut members = self.members.iter();
        members.position(|member| member.queue.is_some_and(|one| std::ptr::eq(one, queue)))
    }

    fn add(&mut self, queue: &'static Queue) -> usize {
        let own = self.members.len();
        let seen = vec![0; own + 1];
        self.members.push(Member {
            queue: Some(queue),
            seen,
        });
        own
    }

    /// The number of queues that have work for which the first queue does not wait, or that were
    /// destroyed.
    fn unjoined(&self) -> usize {
        let seen = |member: &Member, place: usize| member.seen.get(place).copied().unwrap_or(0);
        let open = |&place: &usize| {
            let member = &self.members[place];
            member.queue.is_none() || seen(&self.members[0], place) < seen(member, place)
        };
        (1..self.members.len()).filter(open).count()
    }
}

impl Recording {
    /// Ends the recording: its queues take work again. Gives what was recorded.
    fn finish(&self, state: &mut State) -> State {
        self.over.store(true, Ordering::Release);
        let state = std::mem::take(state);
        for queue in state.members.iter().filter_map(|member| member.queue) {
            queue.recorder().leave();
        }
        state
    }
}

impl Mark {
    /// Whether the recording goes on.
    fn live(&self) -> bool {
        !self.recording.over.load(Ordering::Acquire)
    }

    /// Orders later work of the queue behind this point. A queue that does not record joins.
    #[cold]
    fn wait(&self, queue: &'static Queue) -> Result<(), Fault> {
        let mut state = self.recording.state.lock();
        if !self.live() {
            // It counts as never recorded.
            return Ok(());
        }
        let own = match state.place(queue) {
            Some(own) => own,
            None if queue.recorder().enter(&self.recording) => state.add(queue),
            None => {
                return Err(Fault::new(
                    Code::CAPTURE,
                    "the event is a point of another recording than that of the queue",
                ));
            }
        };
        let seen = &mut state.members[own].seen;
        seen.resize(seen.len().max(self.seen.len()), 0);
        for (seen, &other) in seen.iter_mut().zip(&self.seen) {
            *seen = other.max(*seen);
        }
        Ok(())
    }
}

impl Marked {
    /// Whether the event was recorded last in a recording.
    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.set.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, mark: Option<Mark>) {
        let mut place = self.mark.lock();
        self.set.store(mark.is_some(), Ordering::Relaxed);
        *place = mark;
    }

    /// Refuses a call that looks at a point of a running recording. If the recording is over, the event
    /// counts as never recorded.
    #[cold]
    pub(super) fn refuse(&self, what: &str) -> Result<(), Fault> {
        match &*self.mark.lock() {
            Some(mark) if mark.live() => Err(Fault::new(
                Code::CAPTURE,
                format!(
                    "{what} of an event that is a point of a recording: recorded work does not run"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Lets later work of a queue come after the point.
    #[cold]
    pub(super) fn wait(&self, queue: &'static Queue) -> Result<(), Fault> {
        let mark = self.mark.lock().clone();
        mark.map_or(Ok(()), |mark| mark.wait(queue))
    }
}

/// Begins a recording.
pub(super) fn begin(queue: &'static Queue) -> Result<(), Fault> {
    let mut state = State::default();
    state.add(queue);
    let recording = Arc::new(Recording {
        over: AtomicBool::new(false),
        state: Mutex::new(state),
    });
    if queue.recorder().enter(&recording) {
        Ok(())
    } else {
        Err(refusal("the begin of a recording"))
    }
}

/// Ends a recording, and gives its commands.
pub(super) fn end(queue: &'static Queue) -> Result<Body, Fault> {
    let recording = queue.recorder().current();
    let Some(recording) = recording else {
        return Err(Fault::argument(
            "the queue does not record: a recording begins with record_begin",
        ));
    };
    let mut state = recording.state.lock();
    if state.place(queue) != Some(0) {
        return Err(Fault::argument(
            "the queue has only joined the recording: it ends on the queue where it began",
        ));
    }
    let state = recording.finish(&mut state);
    match state.unjoined() {
        0 => Ok(state.body),
        count => Err(Fault::argument(format!(
            "{count} queues that joined the recording were not joined again: let the recording queue wait \
             for an event behind their work"
        ))),
    }
}

#[cold]
fn refusal(what: &str) -> Fault {
    Fault::new(
        Code::CAPTURE,
        format!("{what} on a queue that records: its work runs only when the graph is launched"),
    )
}
