//! Failures that OpenCL tells by the event of a command alone: a runtime may let `clFinish` and the marker behind a failed
//! command succeed. So a lane keeps the event of each command until it has seen how the command ended.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use outrigger_driver_kit::origin::Origin;
use outrigger_driver_kit::{Fault, Result};
use parking_lot::{Mutex, MutexGuard};

use crate::cl::{self, Cl};

/// From so many commands on, each new one has the oldest looked at. So memory grows only with what has not ended.
const MANY: usize = 256;

/// An event of OpenCL's.
pub(crate) struct Event {
    pub(crate) cl: &'static Cl,
    pub(crate) raw: cl::cl_event,
}

// SAFETY: OpenCL's events may be used by any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the reference that the call which made it has given.
        unsafe { (self.cl.clReleaseEvent)(self.raw) };
    }
}

impl Event {
    /// The status of the command, which is negative if that has failed; `None` if OpenCL does not say.
    pub(crate) fn status(&self) -> Option<cl::cl_int> {
        // SAFETY: a live event; the size is that of the place.
        cl::number(|size, to| unsafe {
            let what = cl::CL_EVENT_COMMAND_EXECUTION_STATUS;
            (self.cl.clGetEventInfo)(self.raw, what, size, to, std::ptr::null_mut())
        })
    }
}

/// The commands of a lane of which nobody has seen yet how they ended.
pub(crate) struct Unseen {
    cl: &'static Cl,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The commands in the order of the queue.
    commands: VecDeque<Command>,
    /// The number of commands before the oldest of them.
    seen: u64,
    stretch: Arc<Stretch>,
}

struct Command {
    event: Event,
    of: Of,
}

/// The origin of a command.
pub(crate) enum Of {
    Submission(Origin),
    /// A wait for a place in another queue, whose failure it hands on (R24).
    Wait(Place),
}

/// The work from one report of a failure to the next. It has the first failure, and the number of the command that failed.
type Stretch = OnceLock<(u64, Fault)>;

/// A place in a queue, with the failure of the work before it for as long as somebody knows the place (R23).
#[derive(Clone)]
pub(crate) struct Place {
    unseen: Arc<Unseen>,
    stretch: Arc<Stretch>,
    /// The number of commands before the place.
    count: u64,
}

impl Unseen {
    pub(crate) fn new(cl: &'static Cl) -> Arc<Self> {
        Arc::new(Self {
            cl,
            state: Mutex::default(),
        })
    }

    /// Puts a command into the queue by a function of OpenCL's, which is named and given a place for the event.
    #[inline]
    pub(crate) fn put(
        &self,
        of: Of,
        what: &str,
        enqueue: impl FnOnce(*mut cl::cl_event) -> cl::cl_int,
    ) -> Result {
        let mut raw = std::ptr::null_mut();
        cl::check(enqueue(&mut raw), what)?;
        let event = Event { cl: self.cl, raw };
        let mut state = self.state.lock();
        if state.commands.try_reserve(1).is_err() {
            // The command runs, but nobody will know how it ended.
            return Ok(());
        }
        state.commands.push_back(Command { event, of });
        if state.commands.len() > MANY {
            Self::look(&mut state, u64::MAX, 2);
        }
        Ok(())
    }

    /// The place behind all commands so far.
    pub(crate) fn place(self: &Arc<Self>) -> Place {
        let state = self.state.lock();
        Place {
            unseen: Arc::clone(self),
            stretch: Arc::clone(&state.stretch),
            count: state.seen + state.commands.len() as u64,
        }
    }

    /// Forgets what waits for other queues, which may wait for this one.
    pub(crate) fn forget_waits(&self) {
        let is_wait = |command: &Command| matches!(command.of, Of::Wait(_));
        self.state
            .lock()
            .commands
            .retain(|command| !is_wait(command));
    }

    /// Looks how the oldest of the first `count` commands have ended, at `most` so many, until one has not.
    fn look(state: &mut MutexGuard<'_, State>, count: u64, most: usize) {
        for _ in 0..most {
            let number = state.seen + 1;
            let Some(oldest) = state.commands.front() else {
                return;
            };
            // A command of which OpenCL does not say anything has not failed.
            let status = oldest.event.status().unwrap_or(cl::CL_COMPLETE);
            if number > count || status > cl::CL_COMPLETE {
                return;
            }
            let failed = || cl::fault(status, "a command failed").ended();
            let failure = match &oldest.of {
                Of::Submission(origin) => (status < 0).then(|| failed().of(*origin)),
                Of::Wait(place) => {
                    let place = place.clone();
                    // Without the lock: the other queue may look here.
                    let outcome = MutexGuard::unlocked(state, || place.outcome());
                    if state.seen + 1 != number {
                        // Another thread was faster.
                        continue;
                    }
                    let failure = outcome.err().map(Fault::elsewhere);
                    failure.or_else(|| (status < 0).then(failed))
                }
            };
            if let Some(failure) = failure {
                // The first one counts (R20).
                let _ = state.stretch.set((number, failure));
            }
            state.commands.pop_front();
            state.seen = number;
        }
    }
}

impl Place {
    /// The outcome of the work before the place, once the queue has reached it.
    ///
    /// # Errors
    /// The first failure of that work.
    pub(crate) fn outcome(&self) -> Result {
        Unseen::look(&mut self.unseen.state.lock(), self.count, usize::MAX);
        match self.failure() {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    /// Does what [`outcome`](Self::outcome) does, and clears the failure: later work is of a new stretch.
    ///
    /// # Errors
    /// The first failure of the work before it.
    pub(crate) fn report(&self) -> Result {
        self.outcome().inspect_err(|_| {
            let mut state = self.unseen.state.lock();
            if Arc::ptr_eq(&state.stretch, &self.stretch) {
                state.stretch = Arc::default();
            }
        })
    }

    /// The failure, as far as somebody has seen it.
    pub(crate) fn failure(&self) -> Option<&Fault> {
        let (number, failure) = self.stretch.get()?;
        (*number <= self.count).then_some(failure)
    }
}
