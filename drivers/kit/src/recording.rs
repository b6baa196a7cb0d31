//! Recordings (R31 to R33): queues that keep their commands instead of running them, which queues belong together, and
//! what each command comes behind. It is the same for any hardware: nothing of it is touched before a recording has ended.
//!
//! A queue can only wait for what was recorded before, so the order of the calls respects all waits.
//!
//! A recording is locked before the recorder of a queue, never after.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_contract as c;
use parking_lot::Mutex;

use crate::{Fault, Result};

/// A command of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept<C> {
    /// The command.
    pub command: C,
    /// The commands that it comes behind, by their numbers, and so behind all that these come behind.
    pub after: Vec<u32>,
}

/// A queue's part: whether it records, and into what.
pub struct Recorder<C> {
    device: u32,
    is_active: AtomicBool,
    recording: Mutex<Option<Arc<Recording<C>>>>,
}

/// Commands that are being recorded.
struct Recording<C> {
    is_over: AtomicBool,
    state: Mutex<State<C>>,
}

struct State<C> {
    commands: Vec<Kept<C>>,
    /// The queue that began is the first one.
    members: Vec<Member<C>>,
}

/// A queue of a recording.
struct Member<C> {
    /// `None` once it was destroyed.
    recorder: Option<Arc<Recorder<C>>>,
    /// The numbers of the commands that the next command of the queue comes behind.
    front: Vec<u32>,
}

/// The point of a recording that an event stands for.
struct Mark<C> {
    recording: Arc<Recording<C>>,
    front: Vec<u32>,
}

/// An event's part: where it stands, if it was recorded last on a queue that records.
pub struct Marked<C> {
    is_set: AtomicBool,
    mark: Mutex<Option<Arc<Mark<C>>>>,
}

impl<C> Recorder<C> {
    /// For a queue of a device. All queues of a recording are of one device.
    pub fn new(device: u32) -> Arc<Self> {
        Arc::new(Self {
            device,
            is_active: AtomicBool::new(false),
            recording: Mutex::new(None),
        })
    }

    /// Whether the queue records.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Refuses a call that a recording queue does not take.
    ///
    /// # Errors
    /// `OTR_ERR_CAPTURE`, if the queue records.
    #[inline]
    pub fn refuse(&self, what: &str) -> Result {
        if self.is_active() {
            return Err(refusal(what));
        }
        Ok(())
    }

    /// Begins a recording.
    ///
    /// # Errors
    /// `OTR_ERR_CAPTURE`, if the queue records already.
    pub fn begin(self: &Arc<Self>) -> Result {
        let first = Member {
            recorder: Some(Arc::clone(self)),
            front: Vec::new(),
        };
        let recording = Arc::new(Recording {
            is_over: AtomicBool::new(false),
            state: Mutex::new(State {
                commands: Vec::new(),
                members: vec![first],
            }),
        });
        if self.enter(&recording) {
            Ok(())
        } else {
            Err(refusal("record_begin"))
        }
    }

    /// Ends a recording, and gives its commands in the order of their calls.
    ///
    /// # Errors
    /// `OTR_ERR_INVALID_ARGUMENT`: the queue has not begun one, which goes on; or not all of its work was joined, and it
    /// is lost.
    pub fn end(&self) -> Result<Vec<Kept<C>>> {
        let Some(recording) = self.current() else {
            return Err(Fault::argument(
                "the queue does not record: a recording begins with record_begin",
            ));
        };
        let mut state = recording.state.lock();
        if state.place(self) != Some(0) {
            return Err(Fault::argument(
                "the queue has only joined the recording: it ends on the queue where it began",
            ));
        }
        let unjoined = state.unjoined();
        let is_whole = state.members.iter().all(|one| one.recorder.is_some());
        let commands = recording.finish(&mut state);
        match (is_whole, unjoined) {
            (true, 0) => Ok(commands),
            (true, count) => Err(Fault::argument(format!(
                "the recording queue does not wait for {count} commands of queues that joined: let it wait for an event \
                 behind them"
            ))),
            (false, _) => Err(Fault::argument(
                "a queue that had joined the recording was destroyed",
            )),
        }
    }

    /// Keeps a command, or gives it back if the queue does not record any more.
    ///
    /// # Errors
    /// The command.
    pub fn keep(&self, command: C) -> Result<(), C> {
        let Some(recording) = self.current() else {
            return Err(command);
        };
        let mut state = recording.state.lock();
        let Some(own) = state.place(self) else {
            return Err(command);
        };
        let number = state.commands.len() as u32;
        let after = std::mem::replace(&mut state.members[own].front, vec![number]);
        state.commands.push(Kept { command, after });
        Ok(())
    }

    /// Lets later commands come behind a point of a running recording, which the queue joins if it does not record. The
    /// answer is false if the event is no such point.
    ///
    /// # Errors
    /// `OTR_ERR_CAPTURE`, if the queue is of another recording; `OTR_ERR_UNSUPPORTED`, if it is of another device.
    pub fn wait(self: &Arc<Self>, event: &Marked<C>) -> Result<bool> {
        let Some(mark) = event.live() else {
            return Ok(false);
        };
        let mut state = mark.recording.state.lock();
        let home = state.members.first().and_then(|one| one.recorder.as_ref());
        let Some(home) = home.map(|first| first.device) else {
            // The recording has ended meanwhile.
            return Ok(false);
        };
        let own = match state.place(self) {
            Some(own) => own,
            None if home != self.device => {
                return Err(Fault::unsupported(format!(
                    "a queue of device {} cannot join a recording of device {home}",
                    self.device
                )));
            }
            None if self.enter(&mark.recording) => {
                state.members.push(Member {
                    recorder: Some(Arc::clone(self)),
                    front: Vec::new(),
                });
                state.members.len() - 1
            }
            None => {
                return Err(Fault::new(
                    c::OTR_ERR_CAPTURE,
                    "the event is a point of another recording than that of the queue",
                ));
            }
        };
        let front = &mut state.members[own].front;
        for number in &mark.front {
            if !front.contains(number) {
                front.push(*number);
            }
        }
        Ok(true)
    }

    /// Gives up the recording of a queue that is destroyed.
    pub fn give_up(&self) {
        let Some(recording) = self.current() else {
            return;
        };
        let mut state = recording.state.lock();
        match state.place(self) {
            Some(0) => drop(recording.finish(&mut state)),
            Some(own) => {
                state.members[own].recorder = None;
                self.leave();
            }
            None => {}
        }
    }

    fn current(&self) -> Option<Arc<Recording<C>>> {
        self.recording.lock().clone()
    }

    /// `false` if the queue records already.
    fn enter(&self, recording: &Arc<Recording<C>>) -> bool {
        let mut current = self.recording.lock();
        if current.is_some() {
            return false;
        }
        *current = Some(Arc::clone(recording));
        self.is_active.store(true, Ordering::Relaxed);
        true
    }

    fn leave(&self) {
        *self.recording.lock() = None;
        self.is_active.store(false, Ordering::Relaxed);
    }
}

impl<C> State<C> {
    /// The place of a queue among the members.
    fn place(&self, recorder: &Recorder<C>) -> Option<usize> {
        let is_it = |one: &Arc<Recorder<C>>| std::ptr::eq(Arc::as_ptr(one), recorder);
        let mut members = self.members.iter();
        members.position(|member| member.recorder.as_ref().is_some_and(is_it))
    }

    /// The number of commands that the first queue does not come behind.
    fn unjoined(&self) -> usize {
        let mut reached = vec![false; self.commands.len()];
        for number in &self.members[0].front {
            reached[*number as usize] = true;
        }
        for (number, kept) in self.commands.iter().enumerate().rev() {
            if reached[number] {
                for before in &kept.after {
                    reached[*before as usize] = true;
                }
            }
        }
        reached.iter().filter(|reached| !**reached).count()
    }
}

impl<C> Recording<C> {
    /// Ends the recording: its queues take work again. Gives what was recorded.
    fn finish(&self, state: &mut State<C>) -> Vec<Kept<C>> {
        self.is_over.store(true, Ordering::Release);
        for member in std::mem::take(&mut state.members) {
            if let Some(recorder) = member.recorder {
                recorder.leave();
            }
        }
        std::mem::take(&mut state.commands)
    }
}

impl<C> Default for Marked<C> {
    fn default() -> Self {
        Self {
            is_set: AtomicBool::new(false),
            mark: Mutex::new(None),
        }
    }
}

impl<C> Marked<C> {
    /// Moves the event to the end of what a queue has recorded. The answer is false if the queue does not record: the
    /// event is then no point of a recording any more.
    pub fn record(&self, recorder: &Recorder<C>) -> bool {
        if !recorder.is_active() && !self.is_set.load(Ordering::Relaxed) {
            return false;
        }
        let mark = recorder.current().and_then(|recording| {
            let state = recording.state.lock();
            let own = state.place(recorder)?;
            let front = state.members[own].front.clone();
            drop(state);
            Some(Arc::new(Mark { recording, front }))
        });
        let is_set = mark.is_some();
        let old = {
            let mut place = self.mark.lock();
            self.is_set.store(is_set, Ordering::Relaxed);
            std::mem::replace(&mut *place, mark)
        };
        // Outside of the lock: it may be the last that keeps a recording.
        drop(old);
        is_set
    }

    /// Refuses a call that looks at a point of a running recording.
    ///
    /// # Errors
    /// `OTR_ERR_CAPTURE`, if the event is one.
    #[inline]
    pub fn refuse(&self, what: &str) -> Result {
        if self.live().is_some() {
            return Err(Fault::new(
                c::OTR_ERR_CAPTURE,
                format!(
                    "{what} of an event that is a point of a recording: recorded work does not run"
                ),
            ));
        }
        Ok(())
    }

    /// The mark, if its recording goes on.
    #[inline]
    fn live(&self) -> Option<Arc<Mark<C>>> {
        if !self.is_set.load(Ordering::Relaxed) {
            return None;
        }
        let mark = self.mark.lock().clone();
        mark.filter(|mark| !mark.recording.is_over.load(Ordering::Acquire))
    }
}

#[cold]
fn refusal(what: &str) -> Fault {
    Fault::new(
        c::OTR_ERR_CAPTURE,
        format!("{what} on a queue that records: its work runs only when the graph is launched"),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outrigger_contract as c;

    use super::{Kept, Marked, Recorder};

    fn kept(commands: &[Kept<u32>]) -> Vec<(u32, &[u32])> {
        let pair = |one: &'_ Kept<u32>| one.command;
        let mut pairs = Vec::new();
        for one in commands {
            pairs.push((pair(one), &one.after[..]));
        }
        pairs
    }

    #[test]
    fn commands_come_behind_those_of_their_queue_and_what_it_waits_for() {
        let (first, second) = (Recorder::new(0), Recorder::new(0));
        let (forked, joined) = (Marked::default(), Marked::default());
        first.begin().unwrap();
        first.keep(10).unwrap();
        assert!(forked.record(&first));
        first.keep(11).unwrap();
        assert!(second.wait(&forked).unwrap() && second.is_active());
        second.keep(20).unwrap();
        assert!(joined.record(&second));
        assert!(first.wait(&joined).unwrap());
        // Twice is as good as once.
        assert!(first.wait(&joined).unwrap());
        first.keep(12).unwrap();
        let commands = first.end().unwrap();
        let expected: [(u32, &[u32]); 4] = [(10, &[]), (11, &[0]), (20, &[0]), (12, &[1, 2])];
        assert_eq!(kept(&commands), expected);
        assert!(!first.is_active() && !second.is_active());
        assert_eq!(second.keep(1), Err(1));
        // Events of the recording count as never recorded.
        assert!(!first.wait(&forked).unwrap());
        assert!(forked.refuse("event_query").is_ok());
    }

    #[test]
    fn what_is_not_joined_or_gone_fails_the_recording() {
        let fork = || {
            let (first, second, forked) =
                (Recorder::new(0), Recorder::new(0), Marked::<u32>::default());
            first.begin().unwrap();
            forked.record(&first);
            second.wait(&forked).unwrap();
            (first, second, forked)
        };
        let fails = |first: &Arc<Recorder<u32>>, why: &str| {
            let fault = first.end().unwrap_err();
            assert_eq!(fault.code(), c::OTR_ERR_INVALID_ARGUMENT);
            assert!(fault.text().contains(why), "{fault:?}");
        };
        let (first, second, early) = fork();
        second.keep(1).unwrap();
        early.record(&second);
        second.keep(2).unwrap();
        first.wait(&early).unwrap();
        fails(&second, "only joined");
        fails(&first, "for 1 commands");
        fails(&first, "does not record");
        assert!(!second.is_active());
        // A queue without work need not be joined, but must not go.
        let (first, _second, _) = fork();
        assert_eq!(first.end().unwrap().len(), 0);
        let (first, second, _) = fork();
        second.give_up();
        fails(&first, "destroyed");
        let (first, second, forked) = fork();
        first.give_up();
        assert!(!second.is_active() && forked.refuse("event_query").is_ok());
    }

    #[test]
    fn what_leads_out_of_a_recording_is_refused_and_it_goes_on() {
        let (first, other, far) = (Recorder::new(0), Recorder::new(0), Recorder::new(1));
        let point = Marked::default();
        first.begin().unwrap();
        other.begin().unwrap();
        point.record(&first);
        let capture = c::OTR_ERR_CAPTURE;
        assert_eq!(first.begin().unwrap_err().code(), capture);
        assert_eq!(first.refuse("queue_query").unwrap_err().code(), capture);
        assert_eq!(point.refuse("event_query").unwrap_err().code(), capture);
        assert_eq!(other.wait(&point).unwrap_err().code(), capture);
        let elsewhere = far.wait(&point).unwrap_err();
        assert_eq!(elsewhere.code(), c::OTR_ERR_UNSUPPORTED);
        assert!(!far.is_active());
        first.keep(7).unwrap();
        assert_eq!(first.end().unwrap().len(), 1);
        // Recorded elsewhere, the event is no point of a recording.
        assert!(!point.record(&first) && !other.wait(&point).unwrap());
    }
}
