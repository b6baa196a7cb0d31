//! A queue: submissions are stored, and the thread that waits for them runs them ("defer, then help").
//! A worker is woken only if perhaps no thread waits: see `worker`.
//!
//! A queue is a timeline. `submitted` and `completed` count commands from the beginning and never go
//! back, so a point of its work is a number, and an event a copy of it. Queues therefore live as long
//! as the process: a destroyed one is used again, and its counters go on. That is what makes an event
//! two words, without reference counts.
//!
//! One thread writes at a time (`producer`), one executes at a time (`executor`). A point is recorded
//! before it can be waited for, so that waits form no cycle. How the work gets done is in `drive`.

mod drive;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicPtr};

use crossbeam_utils::CachePadded;

use super::command::{Command, Launch, inside};
use super::driver::{Device, Host};
use super::event::forget_unnamed_failures;
use super::failure::Failures;
use super::fault::Fault;
use super::recording::Recorder;
use super::segment::{Reader, Spare, Writer, chain};
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Condvar, MODEL, Mutex, Ordering, TryLock};
use super::ticker;
use super::worker::Worker;
use crate::Code;
use drive::Errand;

/// Pending commands at which the worker is woken.
pub(super) const WAKE_BACKLOG: u64 = if MODEL { 4 } else { 256 };
/// Pending commands at which a submitter helps before it continues.
const HELP_BACKLOG: u64 = if MODEL { 4 } else { 1024 };
/// Estimated work, in nanoseconds, that must be pending already for a submission to wake the worker.
/// The submission itself does not count: a thread that submits one command and waits for it runs it
/// itself, and a wake-up would only cost time.
const WAKE_PENDING: u64 = 30_000;
/// A command of at least this estimated cost, in nanoseconds, wakes the worker at once. The wake-up
/// takes some microseconds, which do not matter then.
const WAKE_AT_ONCE: u64 = 500_000;

static POOL: parking_lot::Mutex<Vec<&'static Queue>> = parking_lot::Mutex::new(Vec::new());
/// All that were ever made, in use or not.
static ALL: parking_lot::Mutex<Vec<&'static Queue>> = parking_lot::Mutex::new(Vec::new());
static NUMBERS: Count = Count::new(1);

/// The most users of a queue. The lowest bits of a handle are the number of its user.
const USERS: usize = 64;
const _: () = assert!(align_of::<Queue>() >= USERS);

/// A number on which no cooperation between threads depends.
type Count = std::sync::atomic::AtomicU64;

/// An in-order queue of a host device.
pub(super) struct Queue {
    producer: CachePadded<Mutex<Producer>>,
    /// Commands that were submitted; written under `producer`.
    submitted: CachePadded<AtomicU64>,
    /// The value of `submitted` at which the next submitter checks the backlog. A hint.
    look_at: AtomicU64,
    /// The value of `completed` when a submitter helped without success.
    stuck_at: AtomicU64,
    recorder: Recorder,
    /// Commands that have finished; written under `executor`.
    completed: CachePadded<AtomicU64>,
    executor: CachePadded<TryLock<Reader>>,
    spare: Spare,
    failures: Failures,
    /// Looks at points of it, and waits of queues for such points, that are not over.
    awaited: AtomicU64,
    /// The lowest point that a parked thread waits for; `u64::MAX` if there is none.
    wanted: AtomicU64,
    /// Threads that wait and are about to execute themselves.
    takers: AtomicU32,
    /// Whether the worker has left work behind for one of them.
    left: AtomicBool,
    parking: Mutex<()>,
    parked: Condvar,
    worker: Worker,
    /// What was submitted when the ticker last looked.
    pub(super) ticked: Count,
    life: Life,
}

/// What of a queue has not finished: the commands behind `completed`, up to `submitted`.
#[derive(Clone, Copy)]
struct Backlog {
    completed: u64,
    submitted: u64,
}

impl Backlog {
    fn pending(self) -> u64 {
        self.submitted - self.completed
    }
}

/// The present owner of the queue. It is set before the handle is given out, and valid until the queue
/// is released, after its last command has finished.
struct Life {
    number: Count,
    device: AtomicPtr<Device>,
    bias: AtomicI64,
    index: std::sync::atomic::AtomicU32,
    /// The owner's address, to be compared without the lock; never followed.
    home: AtomicPtr<Host>,
    owner: parking_lot::Mutex<Option<Arc<Host>>>,
    /// Handles of the host to it, a bit for each: more than one if it was adopted (R56).
    users: Count,
}

struct Producer {
    writer: Writer,
    /// Submissions of the host since the queue was created. Failures are reported by this number.
    submissions: u64,
    /// Estimated cost of what was submitted since `counted`, in nanoseconds.
    cost: u64,
    /// `submitted` when the cost was last set to 0.
    counted: u64,
}

impl Queue {
    /// Makes a queue of a device, or takes one from the pool.
    pub(super) fn create(host: &Arc<Host>, device: &Device) -> Result<&'static Self, Fault> {
        let pooled = POOL.lock().pop();
        let queue = match pooled {
            Some(queue) => queue,
            None => {
                let made: &'static Self = Box::leak(Box::new(Self::new()?));
                ALL.lock().push(made);
                made
            }
        };
        if let Some((number, _)) = queue.failures.current() {
            queue.forgive(number);
        }
        queue.producer.lock().submissions = 0;
        let life = &queue.life;
        life.number
            .store(NUMBERS.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        life.device
            .store(std::ptr::from_ref(device).cast_mut(), Ordering::Relaxed);
        life.bias.store(device.memory.bias(), Ordering::Relaxed);
        life.index.store(device.index, Ordering::Relaxed);
        life.home
            .store(Arc::as_ptr(host).cast_mut(), Ordering::Relaxed);
        *life.owner.lock() = Some(Arc::clone(host));
        life.users.store(1, Ordering::Release);
        device.working.begin();
        queue.worker.begin();
        ticker::watch(queue);
        Ok(queue)
    }

    /// The address of the queue that a handle is of: below it stands the number of the user.
    #[inline]
    pub(super) fn address_of(handle: usize) -> usize {
        handle & !(USERS - 1)
    }

    /// The number of the user whose handle it is.
    pub(super) fn user_of(handle: usize) -> usize {
        handle & (USERS - 1)
    }

    /// The number by which others name the queue (R55).
    pub(super) fn native(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// Adds a user to a queue, and gives its number.
    pub(super) fn share(
        host: &Arc<Host>,
        device: &Device,
        native: u64,
    ) -> Result<(&'static Self, usize), Fault> {
        let known = |queue: &&Self| queue.native() == native;
        let found = ALL.lock().iter().copied().find(known);
        let more = |users: u64| (users != 0 && users != u64::MAX).then_some(users | (users + 1));
        let shared = found.and_then(|queue| {
            let users = &queue.life.users;
            let before = users.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
            before
                .ok()
                .map(|users| (queue, users.trailing_ones() as usize))
        });
        let Some((queue, user)) = shared else {
            return Err(Fault::argument(format!(
                "{native:#x} is no queue of the driver host, or has {USERS} users: `handle` of a queue gives its number"
            )));
        };
        let refused = if !queue.is_of(host) {
            Fault::argument("the queue is one of another `open`, which has memory of its own")
        } else if queue.device().index != device.index {
            Fault::new(
                Code::INVALID_DEVICE,
                format!(
                    "the queue is one of device {}, not of device {}",
                    queue.device().index,
                    device.index
                ),
            )
        } else {
            return Ok((queue, user));
        };
        // It stays: somebody else uses it, or this was the last moment of it.
        let _ = queue.let_go(user);
        Err(refused)
    }

    /// Takes a user away. The last one gives the queue up.
    fn let_go(&'static self, user: usize) -> Result<(), Fault> {
        let mine = 1 << user;
        let before = self.life.users.fetch_and(!mine, Ordering::AcqRel);
        if before & mine != 0 && before != mine {
            return Ok(());
        }
        if before == mine {
            self.recorder.abandon(self);
            if self.worker.retire(self) {
                return Ok(());
            }
        }
        Err(Fault::new(
            Code::INVALID_HANDLE,
            "this queue was destroyed before",
        ))
    }

    /// Refuses to hand a queue to others that records, or that has failed.
    pub(super) fn refuse_failed(&self) -> Result<(), Fault> {
        self.recorder.refuse("the native queue")?;
        match self.failures.current() {
            None => Ok(()),
            Some(_) => Err(Fault::new(
                Code::CANCELLED,
                "the queue has failed, and takes work again after queue_synchronize",
            )),
        }
    }

    /// An idle queue that belongs to nobody.
    pub(super) fn new() -> Result<Self, Fault> {
        let (writer, reader, spare) = chain().ok_or_else(out_of_memory)?;
        Ok(Self {
            producer: CachePadded::new(Mutex::new(Producer {
                writer,
                submissions: 0,
                cost: 0,
                counted: 0,
            })),
            submitted: CachePadded::new(AtomicU64::new(0)),
            look_at: AtomicU64::new(WAKE_BACKLOG),
            stuck_at: AtomicU64::new(u64::MAX),
            recorder: Recorder::default(),
            completed: CachePadded::new(AtomicU64::new(0)),
            executor: CachePadded::new(TryLock::new(reader)),
            spare,
            failures: Failures::default(),
            awaited: AtomicU64::new(0),
            wanted: AtomicU64::new(u64::MAX),
            takers: AtomicU32::new(0),
            left: AtomicBool::new(false),
            parking: Mutex::new(()),
            parked: Condvar::new(),
            worker: Worker::default(),
            ticked: Count::new(0),
            life: Life {
                number: Count::new(0),
                device: AtomicPtr::default(),
                bias: AtomicI64::new(0),
                index: 0.into(),
                home: AtomicPtr::default(),
                owner: parking_lot::Mutex::new(None),
                users: Count::new(1),
            },
        })
    }

    /// Gives the queue up without waiting: what was submitted still runs.
    pub(super) fn destroy(&'static self) -> Result<(), Fault> {
        self.destroy_of(0)
    }

    /// The same by a user, if others use it; the last one gives it up.
    pub(super) fn destroy_of(&'static self, user: usize) -> Result<(), Fault> {
        // The owner keeps the device alive, whoever uses the queue afterwards.
        let owner = self.owner();
        let device = self.life.device.load(Ordering::Relaxed);
        self.let_go(user)?;
        if owner.is_some() {
            // SAFETY: a device of the owner.
            unsafe { &*device }.queues.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Hands a retired queue whose work has finished on to the pool. Called once for each life, by
    /// whoever moved the worker's phase to its end.
    pub(super) fn release(&'static self) {
        ticker::forget(self);
        let owner = self.life.owner.lock().take();
        let device = self.life.device.load(Ordering::Relaxed);
        POOL.lock().push(self);
        if owner.is_some() {
            // SAFETY: a device of the owner.
            unsafe { &*device }.working.end();
        }
    }

    pub(super) fn worker(&self) -> &Worker {
        &self.worker
    }

    #[inline]
    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The device of a live queue.
    #[inline]
    pub(super) fn device(&self) -> &Device {
        // SAFETY: set by `create` and kept alive by `owner`; only used while the host may use the
        // queue, which ends before the owner is let go.
        unsafe { &*self.life.device.load(Ordering::Relaxed) }
    }

    #[inline]
    pub(super) fn bias(&self) -> i64 {
        self.life.bias.load(Ordering::Relaxed)
    }

    /// Whether a live queue is one of this driver instance.
    #[inline]
    pub(super) fn is_of(&self, host: &Arc<Host>) -> bool {
        std::ptr::eq(self.life.home.load(Ordering::Relaxed), Arc::as_ptr(host))
    }

    /// The driver instance of a live queue.
    pub(super) fn owner(&self) -> Option<Arc<Host>> {
        self.life.owner.lock().clone()
    }

    /// The number of the queue, for messages and traces.
    pub(super) fn number(&self) -> u64 {
        self.life.number.load(Ordering::Relaxed)
    }

    /// The point after all that was submitted so far.
    #[inline]
    pub(super) fn tail(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// Whether the point has passed.
    #[inline]
    pub(super) fn passed(&self, point: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= point
    }

    /// Whether all that was submitted has finished.
    #[inline]
    pub(super) fn idle(&self) -> bool {
        self.passed(self.tail())
    }

    /// The unfinished work. Other threads submit and execute meanwhile, so the order of the two reads
    /// matters. A command completes after its submission was seen. So a thread that reads `completed`
    /// first, with Acquire, reads a `submitted` that is not smaller.
    fn backlog(&self) -> Backlog {
        let completed = self.completed.load(Ordering::Acquire);
        let submitted = self.tail();
        Backlog {
            completed,
            submitted,
        }
    }

    // ---- Submission ----------------------------------------------------------------------------

    /// Submits a command of the host, or keeps it where the queue records.
    #[inline]
    pub(super) fn submit(&'static self, command: Command) -> Result<(), Fault> {
        if self.recorder.active() && self.recorder.keep(self, command.clone(), &[]) {
            return Ok(());
        }
        let cost = command.cost_ns();
        self.push(cost, || command, &[], true).map(drop)
    }

    /// Submits a launch, or keeps it where the queue records. Its argument block is copied.
    #[inline]
    pub(super) fn submit_launch(&'static self, launch: Launch, args: &[u8]) -> Result<(), Fault> {
        if self.recorder.active() && self.recorder.keep(self, Command::Launch(launch), args) {
            return Ok(());
        }
        self.push(launch.cost_ns(), || Command::Launch(launch), args, true)
            .map(drop)
    }

    /// Submits a command that the host does not count, and gives the point after it.
    pub(super) fn mark(&'static self, command: Command) -> Result<u64, Fault> {
        self.push(0, || command, &[], false)
    }

    #[inline(always)] // so that a launch is made where it stays, see `Writer::push`
    fn push(
        &'static self,
        cost: u64,
        command: impl FnOnce() -> Command,
        args: &[u8],
        counted: bool,
    ) -> Result<u64, Fault> {
        if self.submitted.load(Ordering::Relaxed) >= self.look_at.load(Ordering::Relaxed) {
            self.relieve();
        }
        let mut producer = self.producer.lock();
        let submission = producer.submissions + 1;
        let number = if counted { submission } else { 0 };
        if !producer.writer.push(&self.spare, command, number, args) {
            return Err(out_of_memory());
        }
        if counted {
            producer.submissions = submission;
        }
        // Only this thread writes it: it holds the lock.
        let point = self.submitted.load(Ordering::Relaxed) + 1;
        self.submitted.store(point, Ordering::Release);
        let mut wake = cost >= WAKE_AT_ONCE;
        if producer.cost >= WAKE_PENDING {
            wake |= self.much_pending(&mut producer, point - 1);
        }
        producer.cost += cost.min(WAKE_AT_ONCE);
        drop(producer);
        if wake {
            self.worker.wake(self);
        }
        ticker::poke();
        Ok(point)
    }

    /// Whether so much estimated work is pending up to a point that a worker pays.
    #[cold]
    fn much_pending(&self, producer: &mut Producer, point: u64) -> bool {
        let completed = self.completed.load(Ordering::Relaxed);
        let done = completed.clamp(producer.counted, point);
        // Of what was counted, the share that has not finished.
        let share = producer.cost / (point - producer.counted).max(1);
        producer.cost = share * (point - done);
        producer.counted = done;
        let much = producer.cost >= WAKE_PENDING;
        if much {
            // The worker is told; from here on the next thirty microseconds are counted.
            producer.cost = 0;
            producer.counted = point;
        }
        much
    }

    /// Looks at the backlog before a submission: wakes the worker, and helps if that is not enough.
    #[cold]
    fn relieve(&'static self) {
        let backlog = self.backlog();
        let (pending, completed) = (backlog.pending(), backlog.completed);
        if pending < WAKE_BACKLOG {
            self.look_at
                .store(completed + WAKE_BACKLOG, Ordering::Relaxed);
            return;
        }
        self.worker.wake(self);
        // Where nothing has moved since the last time, waiting again would only cost the submitter.
        let stuck = self.stuck_at.load(Ordering::Relaxed) == completed;
        if pending >= HELP_BACKLOG && !stuck && !inside() {
            let helped = self.drive(backlog.submitted - HELP_BACKLOG / 2, Errand::Help);
            let now = if helped {
                u64::MAX
            } else {
                self.completed.load(Ordering::Relaxed)
            };
            self.stuck_at.store(now, Ordering::Relaxed);
        }
        self.look_at
            .store(backlog.submitted + WAKE_BACKLOG / 2, Ordering::Relaxed);
    }

    /// Makes later work start after a point of another queue, or of this one: such a point lies before
    /// anyway, but it may carry a failure that was cleared since (R23, R24).
    pub(super) fn wait_for(&'static self, other: &'static Self, point: u64) -> Result<(), Fault> {
        // A point that has passed well needs no command.
        if other.passed(point) && other.failures.at(point).is_none() {
            return Ok(());
        }
        if self.recorder.active() {
            return Err(Fault::new(
                Code::CAPTURE,
                "a wait for a point outside of the recording: wait for it before the recording begins",
            ));
        }
        other.awaited.fetch_add(1, Ordering::AcqRel);
        self.mark(Command::Wait {
            queue: other,
            value: point,
        })
        .inspect_err(|_| {
            other.awaited.fetch_sub(1, Ordering::AcqRel);
        })
        .map(drop)
    }

    /// Whether it ever had a failure.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.failures.were()
    }

    /// Lets somebody look at a point of it, if it is still `there`; no failure is forgotten meanwhile. While none has ever
    /// been, none can have been forgotten before.
    #[inline]
    pub(super) fn keep_failures_while<T>(
        &self,
        there: impl FnOnce() -> bool,
        look: impl FnOnce() -> T,
    ) -> Option<T> {
        self.awaited.fetch_add(1, Ordering::AcqRel);
        let seen = (!self.has_failed() || there()).then(look);
        self.awaited.fetch_sub(1, Ordering::AcqRel);
        seen
    }

    /// Forgets failures that were cleared, unless one of the `named` points or a wait names them.
    pub(super) fn forget_failures(&self, named: Vec<u64>) {
        // Read as a change is, so that who looks later sees where the events are now.
        if self.awaited.fetch_add(0, Ordering::AcqRel) == 0 {
            self.failures.forget(named);
        }
    }

    #[cfg(test)]
    fn failures_on_record(&self) -> usize {
        self.failures.on_record()
    }

    // ---- Waiting -------------------------------------------------------------------------------

    /// The state of a point: finished well, or not yet; a failure is an error.
    #[inline]
    pub(super) fn query(&'static self, point: u64) -> Result<Code, Fault> {
        if !self.passed(point) {
            // Whoever asks without waiting may never wait.
            self.worker.wake(self);
            return Ok(Code::NOT_READY);
        }
        match self.failures.at(point) {
            None => Ok(Code::OK),
            Some(failure) => Err(failure.fault(self.number())),
        }
    }

    /// The state of the queue, as `query` of the host: a cleared failure is none.
    #[inline]
    pub(super) fn query_all(&'static self) -> Result<Code, Fault> {
        self.recorder.refuse("a query")?;
        if !self.idle() {
            self.worker.wake(self);
            return Ok(Code::NOT_READY);
        }
        match self.failures.current() {
            None => Ok(Code::OK),
            Some((_, failure)) => Err(failure.fault(self.number())),
        }
    }

    /// Waits for a point, and gives the failure of the work before it.
    #[inline]
    pub(super) fn wait(&'static self, point: u64) -> Result<(), Fault> {
        self.reach(point)?;
        match self.failures.at(point) {
            None => Ok(()),
            Some(failure) => Err(failure.fault(self.number())),
        }
    }

    /// Waits for all that was submitted, reports the first failure since the last report, and clears
    /// it.
    #[inline]
    pub(super) fn synchronize(&'static self) -> Result<(), Fault> {
        self.recorder.refuse("a wait")?;
        // Taken first, so that each of several waiting threads learns of a failure that one clears.
        let mark = self.failures.mark();
        let point = self.tail();
        self.reach(point)?;
        if self.failures.none_since(mark) {
            Ok(())
        } else {
            self.report(mark, point)
        }
    }

    #[cold]
    fn report(&'static self, mark: usize, point: u64) -> Result<(), Fault> {
        let Some((number, failure)) = self.failures.since(mark, point) else {
            return Ok(());
        };
        self.forgive(number);
        Err(failure.fault(self.number()))
    }

    /// Clears a failure, if it is open: what is submitted from now on is executed again.
    fn forgive(&'static self, number: usize) {
        if self.failures.clear(number) {
            forget_unnamed_failures(self);
        }
        // A command that stands between: points before it may have failed, points behind it have not.
        // Without memory for it, an event that is recorded before the next submission has failed as well.
        if let Ok(point) = self.mark(Command::Nop) {
            self.try_drive(point);
        }
    }
}

#[cold]
fn out_of_memory() -> Fault {
    Fault::new(
        Code::OUT_OF_HOST_MEMORY,
        "no host memory for the commands of a queue",
    )
}
