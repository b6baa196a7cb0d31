//! Queues that keep the contract over a hardware queue.
//!
//! The answer of a host call decides whether later commands run at all (R20, R27), and no hardware queue can wait for
//! that. So a queue has a gate. While it is open, commands go straight to the hardware. A host call closes it:
//! it and all behind it are kept in a list, in order. The gate opens again when the list has been run and
//! nothing in it has failed.
//!
//! Others may use the hardware queue, too (R55, R56). From then on, what was counted says nothing of what has finished:
//! the hardware is asked.
//!
//! A list is run by whoever waits for the queue, which saves the way to another thread and back. It is run by a
//! thread of the pool where somebody asked for progress without waiting (R18), and from a certain length on. One
//! thread runs it at a time. Commands are never run in a callback of the hardware's library, and no thread waits while
//! it holds a lock.
//!
//! Work is over when the hardware says so. A call that it refuses says nothing of the work: a question is asked again, and
//! an item of the list that needs the hardware idle stays where it is, until somebody tries again.

mod lane;
mod list;
mod point;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outrigger_contract as c;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::failure::Failure;
use crate::fault::panicked;
use crate::gate::{Gate, Pass};
use crate::origin::{Label, Origin};
use crate::pool::Leftover;
use crate::{Fault, Pool, Progress, Result};

use list::{List, Stepped};

pub use lane::{HostCall, HostFn, Lane, Marker, Step};
pub(crate) use list::Item;
pub use point::Point;

/// A list of this length is run without anybody asking for it.
const START: usize = 16;
/// Beyond this length a submission is slowed down, but never stopped: what keeps the list long may be a host call
/// that waits for this very thread (R17).
const LIMIT: usize = 16384;
const SLOW_DOWN: Duration = Duration::from_millis(1);
/// Between two tries of what the hardware refuses.
const PAUSE: Duration = Duration::from_millis(1);

/// The newest marker behind direct commands.
struct Tail<L: Lane> {
    /// The number of submissions before the marker.
    count: u64,
    marker: Option<Arc<L::Marker>>,
}

/// A queue of the driver.
pub struct Queue<L: Lane> {
    lane: L,
    id: u64,
    /// Others put work into the hardware queue too, which is not counted here.
    shared: AtomicBool,
    gate: Gate,
    /// So many submissions have finished.
    finished: AtomicU64,
    /// So many of them were timestamps, which have no number.
    stamps: AtomicU64,
    tail: Mutex<Tail<L>>,
    list: Mutex<List<L>>,
    /// For those who wait for the list.
    progress: Condvar,
    pool: Pool,
}

/// Runs what takes the place of a hardware call, and lets no panic out: the list would stay as if run for ever.
fn contained<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(panicked(payload)))
}

/// Whether work is over, by what the hardware was asked. A question that it refuses says nothing (R19, R20).
fn is_over(told: Result<bool>) -> Result<bool> {
    match told {
        Err(fault) if !fault.is_end() => Ok(false),
        told => told,
    }
}

impl<L: Lane> Queue<L> {
    /// A queue over a lane, whose list is run by threads of `pool`.
    pub fn new(lane: L, pool: &Pool) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            lane,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            shared: AtomicBool::new(false),
            gate: Gate::default(),
            finished: AtomicU64::new(0),
            stamps: AtomicU64::new(0),
            tail: Mutex::new(Tail {
                count: 0,
                marker: None,
            }),
            list: Mutex::new(List {
                items: VecDeque::new(),
                taken: 0,
                done: 0,
                wanted: 0,
                running: false,
                called: false,
                drained: false,
                failure: None,
            }),
            progress: Condvar::new(),
            pool: pool.clone(),
        })
    }

    /// The hardware queue.
    #[inline]
    pub fn lane(&self) -> &L {
        &self.lane
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Submits a command: by `direct`, which puts it into the hardware queue, or else as what `deferred` makes of it,
    /// which is checked as well and holds copies of all that the call was given (R30).
    ///
    /// A command that `direct` has [begun](Fault::begun) is submitted, and has failed (R20).
    ///
    /// # Errors
    /// What `direct` or `deferred` answers otherwise; nothing was submitted then (R4).
    #[inline]
    pub fn submit(
        self: &Arc<Self>,
        label: Label,
        direct: impl FnOnce(&L, Origin) -> Result,
        deferred: impl FnOnce(&L) -> Result<L::Command>,
    ) -> Result {
        match self.gate.enter() {
            Some(pass) => {
                let number = pass.before() + 1 - self.stamps.load(Ordering::Relaxed);
                let origin = Origin::new(label, number);
                if let Err(fault) = direct(&self.lane, origin) {
                    return self.refused(pass, fault, origin);
                }
                pass.submitted();
                Ok(())
            }
            None => self.submit_later(label, deferred),
        }
    }

    #[cold]
    fn refused(&self, pass: Pass<'_>, fault: Fault, origin: Origin) -> Result {
        if !fault.is_begun() {
            return Err(fault);
        }
        pass.submitted();
        self.fail(fault.of(origin));
        Ok(())
    }

    #[cold]
    fn submit_later(
        self: &Arc<Self>,
        label: Label,
        deferred: impl FnOnce(&L) -> Result<L::Command>,
    ) -> Result {
        let command = deferred(&self.lane)?;
        self.keep(|number| Item::Command(command, Origin::new(label, number)))
    }

    /// Submits a host call; `flags` are `OTR_HOST_CALL_*`.
    ///
    /// # Errors
    /// `OTR_ERR_INVALID_ARGUMENT` for NULL or an unknown flag, `OTR_ERR_OUT_OF_HOST_MEMORY`.
    pub fn host_call(
        self: &Arc<Self>,
        function: Option<HostFn>,
        user: *mut c_void,
        flags: u32,
    ) -> Result {
        let call = HostCall::new(function, user, flags)?;
        self.keep(|number| Item::HostCall(call, number))
    }

    /// Submits several steps as one submission: a failure of one skips those behind it, but for host calls.
    ///
    /// # Errors
    /// `OTR_ERR_OUT_OF_HOST_MEMORY`.
    pub fn submit_row(self: &Arc<Self>, steps: Vec<Step<L>>) -> Result {
        self.keep(|number| Item::Row(steps, number))
    }

    /// Lets later work start behind a point (R24).
    ///
    /// # Errors
    /// What the hardware answers, `OTR_ERR_OUT_OF_HOST_MEMORY`.
    pub fn wait_for(self: &Arc<Self>, point: &Arc<Point<L>>) -> Result {
        let other = point.queue();
        if let Some((marker, None)) = point.marked() {
            let Some(marker) = marker else {
                return Ok(());
            };
            match marker.is_done() {
                Ok(true) => return Ok(()),
                // A failure is handed on, also where the queue has reported it since.
                Err(fault) if fault.is_end() => {}
                // Commands in one hardware queue are in order there.
                _ if Arc::ptr_eq(self, other) => return Ok(()),
                _ => {}
            }
            other.lane.flush()?;
            if let Some(pass) = self.gate.enter()
                && self.lane.join(marker)?
            {
                // Counted: what comes behind it has not finished before it.
                pass.submitted();
                return Ok(());
            }
        } else if !Arc::ptr_eq(self, other) {
            other.flush()?;
        }
        let point = Arc::clone(point);
        self.keep(|_| Item::Wait(point))
    }

    /// Makes a point behind all that was submitted (R21).
    pub(crate) fn point(self: &Arc<Self>, timed: bool) -> Result<Arc<Point<L>>> {
        if !timed && let Some(count) = self.gate.count_if_open() {
            let marker = self.tail(count)?;
            return Ok(Arc::new(Point::behind(self, false, count, marker)));
        }
        if timed
            && self.lane.has_timestamps()
            && let Some(pass) = self.gate.enter()
        {
            let count = pass.before();
            let marker = Arc::new(self.lane.mark(true)?);
            // A thread that waits for the queue waits for the timestamp too.
            self.stamps.fetch_add(1, Ordering::Relaxed);
            pass.submitted();
            return Ok(Arc::new(Point::behind(self, true, count, Some(marker))));
        }
        let point = Arc::new(Point::ahead(self, timed));
        self.keep(|_| Item::Mark(Arc::clone(&point)))?;
        Ok(point)
    }

    /// A marker behind the first `count` submissions, which are in the hardware queue; `None` if they have finished.
    fn tail(&self, count: u64) -> Result<Option<Arc<L::Marker>>> {
        if self.is_known_to_have_finished(count) {
            return Ok(None);
        }
        let mut tail = self.tail.lock();
        if tail.count >= count
            && !self.is_shared()
            && let Some(marker) = &tail.marker
        {
            return Ok(Some(Arc::clone(marker)));
        }
        let marker = Arc::new(self.lane.mark(false)?);
        *tail = Tail {
            count,
            marker: Some(Arc::clone(&marker)),
        };
        Ok(Some(marker))
    }

    /// A marker of the list is the newest one, unless there is one behind more.
    fn note_tail(&self, count: u64, marker: &Arc<L::Marker>) {
        let mut tail = self.tail.lock();
        if tail.count <= count {
            *tail = Tail {
                count,
                marker: Some(Arc::clone(marker)),
            };
        }
    }

    /// The newest marker has failed with the work before it. What comes next is marked anew.
    #[cold]
    fn forget_tail(&self) {
        self.tail.lock().marker = None;
    }

    /// Puts an item into the list, and gives points their place in it.
    fn keep(self: &Arc<Self>, item: impl FnOnce(u64) -> Item<L>) -> Result {
        let mut list = self.list.lock();
        if list.items.try_reserve(1).is_err() {
            return Err(Fault::host_memory("no host memory left for a command"));
        }
        self.close(&mut list);
        list.taken += 1;
        let before = self.gate.count();
        let item = item(before + 1 - self.stamps.load(Ordering::Relaxed));
        if let Item::Mark(point) = &item {
            point.place_at(list.taken, before);
            self.stamps
                .fetch_add(u64::from(point.is_timed()), Ordering::Relaxed);
        }
        if !matches!(&item, Item::Mark(point) if !point.is_timed()) {
            self.gate.count_one();
        }
        list.items.push_back(item);
        let length = list.items.len();
        if length >= START && !list.running && !list.called {
            list.wanted = list.taken;
            // The item is in. If there is no thread, the next one who asks runs the list.
            let _ = self.call_a_thread(&mut list);
        }
        drop(list);
        if length > LIMIT {
            std::thread::sleep(SLOW_DOWN);
        }
        Ok(())
    }

    /// Has the list run by a thread of the pool.
    fn call_a_thread(self: &Arc<Self>, list: &mut List<L>) -> Result {
        let queue = Arc::clone(self);
        let called = self.pool.run(move || {
            let mut list = queue.list.lock();
            // The caller need not ask again (R18): what the hardware refuses now it may take later.
            while !list.running && queue.run(&mut list, u64::MAX).is_err() {
                MutexGuard::unlocked(&mut list, || std::thread::sleep(PAUSE));
            }
            list.called = false;
            drop(list);
            // A caller that asks for progress asks for that of the hardware too.
            let _ = contained(|| queue.lane.flush());
        });
        list.called = called.is_ok();
        called
    }

    /// Starts what was submitted (R18).
    ///
    /// # Errors
    /// What the hardware answers, `OTR_ERR_OUT_OF_HOST_MEMORY` if there is no thread left.
    pub fn flush(self: &Arc<Self>) -> Result {
        let flushed = self.lane.flush();
        if self.gate.is_open() {
            return flushed;
        }
        let mut list = self.list.lock();
        list.wanted = list.taken;
        // A thread that runs the list sees `wanted` at its end.
        if !list.items.is_empty() && !list.running && !list.called {
            self.call_a_thread(&mut list)?;
        }
        flushed
    }

    /// The flush of a question. Where it fails, the work has not ended (R20), and the next question tries again.
    fn ask(self: &Arc<Self>) {
        let _ = self.flush();
    }

    /// Runs or awaits the list until `end` items of it are done. Afterwards nobody else has to.
    ///
    /// # Errors
    /// What the hardware answers that refuses what an item needs. The list stays as it is.
    pub(crate) fn await_list(self: &Arc<Self>, end: u64) -> Result {
        let mut list = self.list.lock();
        while list.done < end {
            if list.running {
                self.progress.wait(&mut list);
            } else {
                self.run(&mut list, end)?;
            }
        }
        Ok(())
    }

    /// Runs items until `end` of them are done. Nobody else runs the list.
    fn run(self: &Arc<Self>, list: &mut MutexGuard<'_, List<L>>, end: u64) -> Result {
        // Somebody else was faster, and the gate may be open: all that follows is about a closed one.
        if list.items.is_empty() {
            return Ok(());
        }
        let mut outcome = Ok(());
        list.running = true;
        MutexGuard::unlocked(list, || self.gate.wait_until_empty());
        while list.done < end
            && let Some(item) = list.items.pop_front()
        {
            let upstream = list
                .failure
                .as_ref()
                .map(|(_, failure)| Arc::clone(failure));
            let mut drained = list.drained;
            let stepped =
                MutexGuard::unlocked(list, || self.step(item, upstream.as_ref(), &mut drained));
            list.drained = drained;
            if let Some(failure) = stepped.failure
                && list.failure.is_none()
            {
                list.failure = Some((list.done + 1, failure));
            }
            if let Some((item, fault)) = stepped.left {
                list.items.push_front(item);
                outcome = Err(fault);
                break;
            }
            list.done += 1;
            self.progress.notify_all();
        }
        list.running = false;
        if list.items.is_empty() && list.drained {
            // The gate is closed, so that nothing but the list was submitted.
            self.has_finished(self.gate.count());
        }
        self.open_if_sound(list);
        if !list.items.is_empty() && list.wanted > list.done && !list.called {
            // If there is no thread, the next one who asks tries again.
            let _ = self.call_a_thread(list);
        }
        self.progress.notify_all();
        outcome
    }

    /// So many submissions have finished.
    pub(crate) fn has_finished(&self, count: u64) {
        self.finished.fetch_max(count, Ordering::AcqRel);
    }

    pub(crate) fn is_known_to_have_finished(&self, count: u64) -> bool {
        !self.is_shared() && self.finished.load(Ordering::Acquire) >= count
    }

    fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }

    /// From now on others use the hardware queue, too: what was counted tells nothing of their work (R55).
    pub fn begin_sharing(&self) {
        self.shared.store(true, Ordering::Release);
    }

    /// Brings all that was submitted into the hardware queue, behind which others put their work (R55).
    ///
    /// # Errors
    /// `OTR_ERR_CANCELLED`, if the queue has failed; what the hardware answers.
    pub fn settle(self: &Arc<Self>) -> Result {
        let end = self.list.lock().taken;
        self.await_list(end)?;
        if self.list.lock().failure.is_some() {
            return Err(Fault::new(c::OTR_ERR_CANCELLED, "the queue has failed"));
        }
        self.lane.flush()
    }

    /// From here on the list takes what is submitted. What went straight to the hardware may not have finished.
    fn close(&self, list: &mut List<L>) {
        if let Some(count) = self.gate.close() {
            list.drained = self.is_known_to_have_finished(count);
        }
    }

    fn open_if_sound(&self, list: &List<L>) {
        if list.items.is_empty() && !list.running && list.failure.is_none() {
            self.gate.open();
        }
    }

    /// Waits until the hardware is idle, unless `drained` says that it is.
    fn drain(&self, drained: &mut bool) -> Result {
        // Commands that others have put in are not counted, so the hardware is asked.
        if *drained && !self.is_shared() {
            return Ok(());
        }
        let finished = contained(|| self.lane.finish());
        *drained = finished.as_ref().map_or_else(Fault::is_end, |()| true);
        finished
    }

    /// Does what an item says, and gives the failure that it is. `drained` says whether the hardware is idle.
    fn step(
        self: &Arc<Self>,
        item: Item<L>,
        upstream: Option<&Arc<Failure>>,
        drained: &mut bool,
    ) -> Stepped<L> {
        let failure = |fault| Some(Arc::new(Failure::new(fault, self.id)));
        Stepped::done(match item {
            Item::Command(command, origin) => {
                if upstream.is_some() {
                    return Stepped::done(None);
                }
                *drained = false;
                let issued = contained(|| self.lane.issue(command, origin));
                issued.map_or_else(|fault| failure(fault.of(origin)), |()| None)
            }
            Item::HostCall(call, number) => {
                let before = match self.drain(drained) {
                    Ok(()) => None,
                    Err(fault) if fault.is_end() => failure(fault),
                    Err(fault) => return Stepped::refused(item, fault),
                };
                let code = upstream.or(before.as_ref()).map_or(c::OTR_OK, |f| f.code());
                // SAFETY: R27: called once, in the order of the queue, with the pointer of its submission.
                let answer = unsafe { (call.function)(call.user, code) };
                let own = if call.cannot_fail { c::OTR_OK } else { answer };
                let own = || Failure::of_host_call(own, number, self.id).map(Arc::new);
                before.or_else(own)
            }
            Item::Row(steps, number) => {
                let mut own = None;
                let mut steps = steps.into_iter();
                while let Some(step) = steps.next() {
                    let item = match step {
                        Step::Command(command) => {
                            Item::Command(command, Origin::new(Label::NONE, number))
                        }
                        Step::HostCall(call) => Item::HostCall(call, number),
                    };
                    let stepped = self.step(item, upstream.or(own.as_ref()), drained);
                    own = own.or(stepped.failure);
                    if let Some((Item::HostCall(call, _), fault)) = stepped.left {
                        let rest = std::iter::once(Step::HostCall(call)).chain(steps);
                        return Stepped {
                            failure: own,
                            left: Some((Item::Row(rest.collect(), number), fault)),
                        };
                    }
                }
                own
            }
            Item::Wait(ref point) => {
                if let Err(fault) = point.queue().await_list(point.place()) {
                    return Stepped::refused(item, fault);
                }
                let (marker, failed) = point.marked().unwrap_or_default();
                *drained = false;
                // A failed queue waits too: host calls behind it may free what the point guards.
                let waited = marker.map_or(Ok(()), |marker| {
                    let joined = contained(|| {
                        point.queue().lane.flush()?;
                        self.lane.join(marker)
                    });
                    // A point that the hardware cannot wait for is waited for here.
                    if matches!(joined, Ok(true)) {
                        return Ok(());
                    }
                    contained(|| marker.wait())
                });
                match (failed, waited) {
                    (_, Err(fault)) if !fault.is_end() => return Stepped::refused(item, fault),
                    (Some(failed), _) => Some(Arc::clone(failed)),
                    (None, Err(fault)) => Some(Arc::new(Failure::new(fault, point.queue().id))),
                    (None, Ok(())) => None,
                }
            }
            Item::Mark(ref point) => {
                let timed = point.is_timed();
                let (marker, failed) = if *drained && !timed && !self.is_shared() {
                    (None, None)
                } else {
                    match contained(|| self.lane.mark(timed)) {
                        Ok(marker) => {
                            *drained &= !timed;
                            (Some(Arc::new(marker)), None)
                        }
                        // A point without a marker is reached when the hardware is idle. It has no time.
                        Err(refusal) => match self.drain(drained) {
                            Ok(()) if timed => (None, failure(refusal)),
                            Ok(()) => (None, None),
                            Err(fault) if fault.is_end() => (None, failure(fault)),
                            Err(fault) => return Stepped::refused(item, fault),
                        },
                    }
                };
                if let Some(marker) = &marker {
                    self.note_tail(point.count() + u64::from(timed), marker);
                }
                let failed = upstream.map(Arc::clone).or(failed);
                point.reach(marker, failed.clone());
                failed
            }
        })
    }

    /// The number of submissions, and the failure of the queue; `None` if some of them are still in the list.
    fn issued(&self) -> Option<(u64, Option<Arc<Failure>>)> {
        if let Some(count) = self.gate.count_if_open() {
            return Some((count, None));
        }
        // Nothing is put into the list meanwhile.
        let list = self.list.lock();
        let failure = list.failure.as_ref();
        (list.done == list.taken).then(|| {
            let failure = failure.map(|(_, failure)| Arc::clone(failure));
            (self.gate.count(), failure)
        })
    }

    /// Whether a marker of the lane was reached.
    ///
    /// # Errors
    /// The failure of the work before it, which has ended.
    fn is_reached(&self, marker: &L::Marker) -> Result<bool> {
        let flushed = self.lane.flush();
        is_over(match marker.is_done() {
            Ok(false) => flushed.map(|()| false),
            told => told,
        })
    }

    /// Whether all that was submitted has finished (R19, R20).
    ///
    /// # Errors
    /// The failure of the queue, once all has finished; that the device is lost.
    pub fn query(self: &Arc<Self>) -> Result<Progress> {
        let Some((count, failure)) = self.issued() else {
            self.ask();
            return Ok(Progress::NotReady);
        };
        let told = match self.tail(count) {
            Ok(None) => Ok(true),
            Ok(Some(marker)) => self.is_reached(&marker).inspect(|is_reached| {
                if *is_reached {
                    self.has_finished(count);
                }
            }),
            Err(refusal) => is_over(Err(refusal)),
        };
        match told {
            Ok(true) => {}
            Ok(false) => return Ok(Progress::NotReady),
            Err(lost) if !lost.is_outcome() => return Err(lost),
            Err(fault) => return Err(self.fail(fault).fault(self.id)),
        }
        match failure {
            Some(failure) => Err(failure.fault(self.id)),
            None => Ok(Progress::Done),
        }
    }

    /// Notes a failure of what went straight to the hardware, which holds until it is reported.
    #[cold]
    fn fail(&self, fault: Fault) -> Arc<Failure> {
        let mut list = self.list.lock();
        self.close(&mut list);
        let at = list.done;
        let new = || (at, Arc::new(Failure::new(fault, self.id)));
        Arc::clone(&list.failure.get_or_insert_with(new).1)
    }

    /// Waits for all that was submitted, and clears the failure that it reports (R20).
    ///
    /// # Errors
    /// The failure of the queue; what the hardware answers that refuses the wait, which clears nothing.
    #[inline]
    pub fn synchronize(self: &Arc<Self>) -> Result {
        if let Some(count) = self.gate.count_if_open() {
            if self.is_known_to_have_finished(count) {
                return Ok(());
            }
            let finished = self.lane.finish();
            match &finished {
                Ok(()) => self.has_finished(count),
                Err(fault) if fault.is_end() => self.forget_tail(),
                Err(_) => {}
            }
            return finished;
        }
        self.synchronize_list()
    }

    #[cold]
    fn synchronize_list(self: &Arc<Self>) -> Result {
        let (end, count) = {
            let list = self.list.lock();
            (list.taken, self.gate.count())
        };
        self.await_list(end)?;
        let finished = self.lane.finish();
        if finished.as_ref().is_err_and(|fault| !fault.is_outcome()) {
            return finished;
        }
        let is_idle = finished.is_ok();
        let mut list = self.list.lock();
        // A failure behind the end belongs to who waits for that.
        let failure = list.failure.as_ref().filter(|(at, _)| *at <= end);
        let outcome = match failure.map(|(_, failure)| failure.fault(self.id)) {
            // Only what is reported as an outcome is cleared.
            Some(lost) if !lost.is_outcome() => return Err(lost),
            Some(fault) => {
                list.failure = None;
                Err(fault)
            }
            None => finished,
        };
        self.open_if_sound(&list);
        drop(list);
        if is_idle {
            self.has_finished(count);
        }
        if outcome.is_err() {
            self.forget_tail();
        }
        outcome
    }

    /// Lets the queue end by itself: its work still runs, its host calls are called, and [`Pool::finish`] waits for
    /// both (R11, R12).
    pub fn retire(self: Arc<Self>) {
        let end = {
            let list = self.list.lock();
            (list.done < list.taken).then_some(list.taken)
        };
        let Some(end) = end else {
            self.leave();
            return;
        };
        let pool = self.pool.clone();
        pool.run_some_time(move || {
            while self.await_list(end).is_err() {
                std::thread::sleep(PAUSE);
            }
            self.leave();
        });
    }

    /// Leaves what the hardware has not finished to `Pool::finish`. Failures are nobody's any more.
    fn leave(self: Arc<Self>) {
        let Some((count, _)) = self.issued() else {
            return;
        };
        let marker = match contained(|| self.last(count)) {
            Ok(Some(marker)) => {
                let told = self.is_reached(&marker);
                if !matches!(told, Ok(false)) {
                    return;
                }
                Some(marker)
            }
            Err(fault) if !fault.is_end() => None,
            _ => return,
        };
        let pool = self.pool.clone();
        pool.leave(Left {
            queue: self,
            marker,
        });
    }

    /// A marker behind the first `count` submissions, which are all; `None` if they have finished.
    fn last(&self, count: u64) -> Result<Option<Arc<L::Marker>>> {
        if self.lane.is_adopted() {
            // The adopted queue may be gone if somebody can know that its work has finished: by a wait or an event.
            if self.finished.load(Ordering::Acquire) >= count {
                return Ok(None);
            }
            let tail = self.tail.lock();
            if tail.count >= count && tail.marker.is_some() {
                return Ok(tail.marker.clone());
            }
        }
        self.tail(count)
    }
}

/// A queue that was destroyed before the hardware had finished its work.
struct Left<L: Lane> {
    queue: Arc<Queue<L>>,
    /// Behind the work, unless the hardware refused it.
    marker: Option<Arc<L::Marker>>,
}

impl<L: Lane> Leftover for Left<L> {
    fn is_done(&self) -> bool {
        match &self.marker {
            Some(marker) => !matches!(is_over(marker.is_done()), Ok(false)),
            None => !matches!(self.queue.query(), Ok(Progress::NotReady)),
        }
    }

    fn wait(&self) {
        let wait = || match &self.marker {
            Some(marker) => marker.wait(),
            None => self.queue.lane.finish(),
        };
        // A failure is nobody's any more.
        while wait().is_err_and(|fault| !fault.is_end()) {
            std::thread::sleep(PAUSE);
        }
    }
}
