//! How the work of a queue is run. A thread that waits for a point runs the work up to this point
//! itself, and on other queues the work that must come before. If another thread is running the queue,
//! the waiting thread parks until that thread has reached the point.
//!
//! A thread never waits for an executor lock, and never holds two. It never runs past a wait whose
//! point has not passed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::super::command::{Command, Inside, Outcome, inside};
use super::super::failure::Failure;
use super::super::fault::Fault;
use super::super::segment::{Reader, Record};
use super::super::sync::{MODEL, Ordering, fence, spin_loop, yield_now};
use super::Queue;
use crate::Code;

/// Before a command of at least this estimated cost, parked threads are woken if their point has
/// passed.
const LONG_COMMAND: u64 = 2_000;
/// How long a submitter waits for a full queue that makes no progress before it continues: the command
/// at the head may be a host call that waits for this very thread.
const PATIENCE: Duration = Duration::from_millis(20);
/// How many times a waiting thread spins before it yields: about two microseconds.
const SPINS: u32 = if MODEL { 1 } else { 60 };
/// How long a waiting thread then yields before it parks. A later wake-up costs about as much.
const YIELDS: Duration = if MODEL {
    Duration::ZERO
} else {
    Duration::from_micros(50)
};

/// How far an attempt to execute came.
enum Step {
    Done,
    /// The next command waits for this point of another queue.
    Blocked(&'static Queue, u64),
    /// Another thread is executing.
    Busy,
    /// The next command may block, and the caller must not run it.
    Held,
    /// Another thread waits and goes on from here.
    Left,
}

/// Why a thread drives a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Errand {
    /// It needs the point, and runs everything before it.
    Wait,
    /// It is the worker. As `Wait`, but it leaves its queue when another thread waits: that thread runs
    /// the rest itself, and so notices the end at once.
    Work,
    /// It submits, and only helps. It runs no host call and no work with other ranks, because these may wait
    /// for what this thread does next. It gives up if nothing moves.
    Help,
}

impl Queue {
    /// Waits until the point has passed, and runs what must come before.
    #[inline]
    pub(super) fn reach(&'static self, point: u64) -> Result<(), Fault> {
        if self.passed(point) {
            return Ok(());
        }
        if inside() {
            return Err(would_deadlock());
        }
        self.drive(point, Errand::Wait);
        Ok(())
    }

    /// Whether the worker has left work to a waiting thread, and that thread has not handed it back.
    pub(in super::super) fn left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Leaves the queue to a waiting thread, if there still is one. That thread hands back the work
    /// that it does not need.
    #[cold]
    fn leave(&self) -> bool {
        self.left.store(true, Ordering::Relaxed);
        // With the fence in `take_over`: either this sees that nobody waits any more, or who waited sees
        // afterwards that something was left.
        fence(Ordering::SeqCst);
        let left = self.takers.load(Ordering::Relaxed) > 0;
        if !left {
            self.left.store(false, Ordering::Relaxed);
        }
        left
    }

    /// Wakes the worker if it has left more than the waiting thread needed.
    #[cold]
    fn hand_back(&'static self) {
        self.left.store(false, Ordering::Relaxed);
        if !self.idle() {
            self.worker.wake(self);
        }
    }

    /// Runs all work that was submitted so far, as the worker. `false` if another thread continues with
    /// it.
    pub(in super::super) fn run_pending(&'static self) -> bool {
        self.drive(self.tail(), Errand::Work)
    }

    /// Runs this queue up to a point, and the work of other queues that must come before. `false` if it
    /// did not reach the point; this cannot happen with `Wait`.
    pub(super) fn drive(&'static self, point: u64, errand: Errand) -> bool {
        let (mut queue, mut goal) = (self, point);
        // The queues that wait for the one at hand. Kept here and not on the stack: chains of waits
        // may be long.
        let mut waiting: Vec<(&'static Self, u64)> = Vec::new();
        loop {
            // A worker leaves its own queue only.
            let errand = if waiting.is_empty() || errand == Errand::Help {
                errand
            } else {
                Errand::Wait
            };
            match queue.advance(goal, errand) {
                Step::Done => {
                    if queue.left() {
                        queue.hand_back();
                    }
                    match waiting.pop() {
                        Some(last) => (queue, goal) = last,
                        None => return true,
                    }
                }
                Step::Blocked(other, value) => {
                    waiting.push((queue, goal));
                    (queue, goal) = (other, value);
                }
                Step::Busy => {
                    if !queue.park(goal, errand) {
                        return false;
                    }
                }
                Step::Held => {
                    queue.worker.wake(queue);
                    return false;
                }
                Step::Left => return false,
            }
        }
    }

    /// Runs this queue up to a point, unless another thread is executing it. That thread reaches the
    /// point, too.
    pub(super) fn try_drive(&'static self, point: u64) {
        // However far it came, whoever executes next goes on from there.
        let _ = self.advance(point, Errand::Help);
    }

    /// Waits while another thread executes: until the point has passed or that thread has stopped. A
    /// helper returns `false` if nothing has moved for as long as its patience lasts.
    fn park(&self, point: u64, errand: Errand) -> bool {
        let ready = || self.passed(point) || !self.executor.is_locked();
        if errand == Errand::Wait && self.take_over(ready) {
            return true;
        }
        let before = self.completed.load(Ordering::Relaxed);
        let mut parking = self.parking.lock();
        self.wanted.fetch_min(point, Ordering::Relaxed);
        // With the fence in `advance` (or `attend`): either this thread sees what the other has done,
        // or the other sees that somebody waits, and then needs the lock that is held here.
        fence(Ordering::SeqCst);
        if ready() {
            return true;
        }
        match errand {
            Errand::Wait | Errand::Work => {
                self.parked.wait(&mut parking);
                true
            }
            Errand::Help => {
                let over = self.parked.wait_for(&mut parking, PATIENCE).timed_out();
                !over || self.completed.load(Ordering::Relaxed) != before
            }
        }
    }

    /// Tries for a moment to take over from the thread that executes.
    fn take_over(&self, ready: impl Fn() -> bool) -> bool {
        self.takers.fetch_add(1, Ordering::Relaxed);
        let mut turns = 0;
        let mut since = None;
        let taken = loop {
            if ready() {
                break true;
            }
            if turns < SPINS {
                turns += 1;
                spin_loop();
            } else if since.get_or_insert_with(Instant::now).elapsed() < YIELDS {
                // The other thread, or the threads of its kernel, may need this core.
                yield_now();
            } else {
                break false;
            }
        };
        self.takers.fetch_sub(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // see `leave`
        taken
    }

    /// Wakes parked threads if `completed` has reached what one of them waits for.
    #[inline]
    fn attend(&self, completed: u64) {
        fence(Ordering::SeqCst);
        if completed >= self.wanted.load(Ordering::Relaxed) {
            self.wake_parked();
        }
    }

    #[cold]
    fn wake_parked(&self) {
        let _parking = self.parking.lock();
        self.wanted.store(u64::MAX, Ordering::Relaxed);
        self.parked.notify_all();
    }

    /// Tries to run the queue up to a point.
    #[inline]
    fn advance(&'static self, point: u64, errand: Errand) -> Step {
        if self.passed(point) {
            return Step::Done;
        }
        let Some(mut reader) = self.executor.try_lock() else {
            return Step::Busy;
        };
        let step = self.execute(&mut reader, point, errand);
        drop(reader);
        // Those who wait for later points go on by themselves now.
        fence(Ordering::SeqCst);
        if self.wanted.load(Ordering::Relaxed) != u64::MAX {
            self.wake_parked();
        }
        step
    }

    /// Runs commands up to a point, which is at most `tail`. The caller holds the executor lock.
    #[inline]
    fn execute(&'static self, reader: &mut Reader, point: u64, errand: Errand) -> Step {
        let _inside = Inside::enter();
        let traced = tracing::enabled!(target: "outrigger::device", tracing::Level::TRACE);
        // Only the holder of the lock writes it.
        let mut completed = self.completed.load(Ordering::Relaxed);
        while completed < point {
            let takers = errand == Errand::Work && self.takers.load(Ordering::Relaxed) > 0;
            if takers && self.leave() {
                return Step::Left;
            }
            // SAFETY: a point is a value of `submitted` that was acquired, by this thread or by one that
            // handed it over; fewer have completed.
            let record = unsafe { reader.peek(&self.spare) };
            // SAFETY: the record is initialised, and read by this thread only.
            let next = unsafe { &record.as_ref().command };
            let mut failure = None;
            if let Command::Wait { queue, value } = *next {
                if !queue.passed(value) {
                    return Step::Blocked(queue, value);
                }
                failure = queue.failures.at(value);
                queue.awaited.fetch_sub(1, Ordering::AcqRel);
            } else if errand == Errand::Help && next.may_block() {
                return Step::Held;
            } else if next.cost_ns() >= LONG_COMMAND {
                self.attend(completed);
            }
            let upstream = self
                .failures
                .upstream(completed + 1)
                .map_or(Code::OK, |failure| failure.code);
            // SAFETY: moved out once: the reader passes the record below, whatever the outcome.
            let command = unsafe { std::ptr::read(next) };
            let args = Record::args(record);
            // SAFETY: R16: it is this command's turn. R12, R26: its memory is valid until it has finished.
            let Outcome { code, label } = unsafe {
                if traced {
                    self.run_traced(command, args, upstream)
                } else {
                    command.run(args, upstream)
                }
            };
            // A host call that passes its upstream failure on is no failure of its own.
            if code != Code::OK && upstream == Code::OK {
                // SAFETY: the record's number stays in place; only its command was moved out.
                let submission = unsafe { (*record.as_ptr()).submission };
                failure = Some(Failure {
                    code,
                    label,
                    submission,
                    queue: self.number(),
                });
            }
            completed += 1;
            if let Some(failure) = failure {
                self.fail(completed, failure);
            }
            // SAFETY: this is the record that `peek` gave.
            unsafe { reader.pass() };
            self.completed.store(completed, Ordering::Release);
            if completed >= self.wanted.load(Ordering::Relaxed) {
                self.wake_parked();
            }
        }
        Step::Done
    }

    /// Notes the failure of the command at a point.
    #[cold]
    fn fail(&self, point: u64, mut failure: Failure) {
        if failure.code == Code::NOT_READY {
            // An answer to a query, not a failure: as an outcome it has no meaning.
            failure.code = Code::EXECUTION;
        }
        self.failures.add(point, failure);
    }

    /// Runs a command within a span.
    ///
    /// # Safety
    /// As of [`Command::run`].
    #[cold]
    unsafe fn run_traced(
        &self,
        command: Command,
        args: (*const u8, u32),
        upstream: Code,
    ) -> Outcome {
        // A listener that panics loses its span. Here it must not unwind: the command was moved out of
        // its record, which is not passed yet.
        let quietly = |span: &mut dyn FnMut()| drop(catch_unwind(AssertUnwindSafe(span)));
        let mut entered = None;
        quietly(&mut || {
            let span = tracing::trace_span!(
                target: "outrigger::device",
                "command",
                device = self.life.index.load(Ordering::Relaxed),
                queue = self.number(),
                label = command.label(),
            );
            entered = Some(span.entered());
        });
        // SAFETY: it is this command's turn, and its memory is valid until it has finished (R12, R26).
        let outcome = unsafe { command.run(args, upstream) };
        quietly(&mut || drop(entered.take()));
        outcome
    }
}

#[cold]
fn would_deadlock() -> Fault {
    Fault::new(
        Code::WOULD_DEADLOCK,
        "a host call or kernel waits for work that has not finished, which may be behind itself: wait \
         outside of it, or before it is submitted",
    )
}
