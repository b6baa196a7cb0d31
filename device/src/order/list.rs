//! The list of a queue that holds: what is kept until the host calls before it have been made, in order.
//!
//! A list is run by whoever waits for it, which saves the way to another thread and back. It is run by a thread of the
//! driver's where somebody asked for progress without waiting, and from a certain length on. One thread runs it at a
//! time. Nothing is locked over a call of the lane.
//!
//! A submission that finds the list open goes to the lane by itself. It may race with one that closes the list: the two
//! are concurrent then, and either order is right. So a submission costs one load and counts nothing.
//!
//! A call that the lane refuses says nothing of the work. Its item stays where it is, until somebody tries again.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::sync::{AtomicBool, Condvar, Guard, Mutex, Ordering, mutex};

/// A list of this length is run without anybody asking for it.
const START: usize = 16;
/// Beyond this length a submission is slowed down, but never stopped: what keeps the list long may be a host call
/// that waits for this very thread (R17).
const LIMIT: usize = 16384;
const SLOW_DOWN: Duration = Duration::from_millis(1);
/// Between two tries of what the lane refuses.
const PAUSE: Duration = Duration::from_millis(1);

/// Something for a thread of the driver's to run.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The driver below a list. All functions may be called from several threads at the same time.
pub(crate) trait Lane: Send + Sync + Sized + 'static {
    /// A command that is kept until it may run.
    type Command: Send;
    /// A host call.
    type Call: Send;
    /// A place behind what the lane was given.
    type Mark: Send + Sync;
    /// The failure of work.
    type Failure: Clone + Send + Sync;
    /// Why a call was refused, which says nothing of the work.
    type Refusal;

    /// Gives the lane a command.
    ///
    /// # Errors
    /// The command is refused, which is its failure: it was submitted long ago.
    fn issue(&self, command: Self::Command) -> Result<(), Self::Failure>;

    /// Makes a host call, once.
    ///
    /// # Errors
    /// Its outcome.
    fn call(&self, call: Self::Call, upstream: Option<&Self::Failure>)
    -> Result<(), Self::Failure>;

    /// Waits for all that the lane was given. Never called by two threads at the same time.
    ///
    /// # Errors
    /// All of it has ended, and some has failed; or the wait was refused.
    fn drain(&self) -> Result<(), Trouble<Self>>;

    /// Puts a mark behind all that the lane was given.
    ///
    /// # Errors
    /// The lane refuses it.
    fn mark(&self, mark: &Self::Mark) -> Result<(), Self::Refusal>;

    /// Lets what the lane is given next start behind a mark of any lane.
    ///
    /// # Errors
    /// The work before the mark has failed, where that is known already; or the lane refuses it.
    fn join(&self, mark: &Self::Mark) -> Result<(), Trouble<Self>>;

    /// Starts what the lane was given.
    fn flush(&self);

    /// Has a thread run something, which it may do as soon as this is called.
    fn start(&self, job: Job);
}

/// Why something was not done.
pub(crate) enum Trouble<L: Lane> {
    Failed(L::Failure),
    Refused(L::Refusal),
}

/// A point behind the work of a list, or of a lane.
pub(crate) struct Point<L: Lane> {
    /// The list that has to come to it, and its place there.
    order: Weak<Order<L>>,
    place: u64,
    mark: L::Mark,
    /// The failure of the queue at this point, once the list has come to it.
    reached: OnceLock<Option<L::Failure>>,
}

impl<L: Lane> Point<L> {
    /// A point that no list has to come to: its mark stands where it should.
    pub(crate) fn marked(mark: L::Mark) -> Self {
        Self {
            order: Weak::new(),
            place: 0,
            mark,
            reached: OnceLock::from(None),
        }
    }

    pub(crate) fn mark(&self) -> &L::Mark {
        &self.mark
    }

    pub(crate) fn into_mark(self) -> L::Mark {
        self.mark
    }

    /// The failure of the queue there, once the list has come to it. The mark is in its place then.
    pub(crate) fn reached(&self) -> Option<Option<&L::Failure>> {
        self.reached.get().map(Option::as_ref)
    }

    /// Has the list come to it, without waiting.
    pub(crate) fn ask(&self) {
        if let Some(order) = self.order.upgrade() {
            order.ask();
        }
    }

    /// Waits until the list has come to it.
    ///
    /// # Errors
    /// What the lane refuses.
    pub(crate) fn wait(&self) -> Result<(), L::Refusal> {
        // A list that is gone was run to its end.
        let order = self.order.upgrade();
        order.map_or(Ok(()), |order| order.wait(self.place))
    }
}

/// Something that a queue was given while it held.
enum Item<L: Lane> {
    Command(L::Command),
    Call(L::Call),
    Wait(Arc<Point<L>>),
    Mark(Arc<Point<L>>),
}

/// The outcome of one step through a list.
enum Step<L: Lane> {
    Done(Option<L::Failure>),
    /// The item stays until another list has come to a place.
    Behind(Item<L>, Arc<Order<L>>, u64),
    Refused(Item<L>, L::Refusal),
}

struct List<L: Lane> {
    items: VecDeque<Item<L>>,
    /// The number of items that were put in, and the number of those that are done.
    taken: u64,
    done: u64,
    /// A thread runs the list.
    running: bool,
    /// A thread of the driver's will run it to its end.
    called: bool,
    /// The first failure that nobody has cleared, with the place where it happened.
    failure: Option<(u64, L::Failure)>,
    /// The last failure that was reported, with its place, and how many were.
    reported: Option<(u64, L::Failure)>,
    reports: u64,
}

/// When somebody began to wait for a queue.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    end: u64,
    reports: u64,
}

impl Begun {
    /// The place of what was put in last.
    pub(crate) fn end(self) -> u64 {
        self.end
    }
}

/// The order of a queue.
pub(crate) struct Order<L: Lane> {
    lane: L,
    closed: AtomicBool,
    list: Mutex<List<L>>,
    /// For those who wait for the list.
    progress: Condvar,
}

impl<L: Lane> Order<L> {
    pub(crate) fn new(lane: L) -> Arc<Self> {
        Arc::new(Self {
            lane,
            closed: AtomicBool::new(false),
            list: mutex(List {
                items: VecDeque::new(),
                taken: 0,
                done: 0,
                running: false,
                called: false,
                failure: None,
                reported: None,
                reports: 0,
            }),
            progress: Condvar::new(),
        })
    }

    #[inline]
    pub(crate) fn lane(&self) -> &L {
        &self.lane
    }

    /// Whether work goes straight to the lane.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // Acquire: what the list has given the lane comes before what this thread gives it.
        !self.closed.load(Ordering::Acquire)
    }

    /// Keeps a command. Returns its place, for who has to wait for it.
    pub(crate) fn keep(self: &Arc<Self>, command: L::Command) -> u64 {
        self.put(|_| Item::Command(command))
    }

    /// Keeps a host call: from now on the queue holds.
    pub(crate) fn keep_call(self: &Arc<Self>, call: L::Call) -> u64 {
        self.put(|_| Item::Call(call))
    }

    /// Lets later work start behind a point. If that has failed, the queue fails.
    pub(crate) fn keep_wait(self: &Arc<Self>, point: Arc<Point<L>>) -> u64 {
        self.put(|_| Item::Wait(point))
    }

    /// A point behind all that the queue was given, where the list puts the mark.
    pub(crate) fn keep_mark(self: &Arc<Self>, mark: L::Mark) -> (u64, Arc<Point<L>>) {
        let mut kept = None;
        let place = self.put(|place| {
            let point = Arc::new(Point {
                order: Arc::downgrade(self),
                place,
                mark,
                reached: OnceLock::new(),
            });
            Item::Mark(Arc::clone(kept.insert(point)))
        });
        match kept {
            Some(point) => (place, point),
            None => unreachable!("`put` makes the item"),
        }
    }

    fn put(self: &Arc<Self>, item: impl FnOnce(u64) -> Item<L>) -> u64 {
        let mut list = self.list.lock();
        self.closed.store(true, Ordering::Release);
        list.taken += 1;
        let place = list.taken;
        list.items.push_back(item(place));
        let length = list.items.len();
        if length >= START {
            self.call_a_thread(list);
        } else {
            drop(list);
        }
        if length > LIMIT {
            std::thread::sleep(SLOW_DOWN);
        }
        place
    }

    /// Has a thread run what is in the list.
    pub(crate) fn ask(self: &Arc<Self>) {
        self.call_a_thread(self.list.lock());
    }

    fn call_a_thread(self: &Arc<Self>, mut list: Guard<'_, List<L>>) {
        if list.called || list.done == list.taken {
            return;
        }
        list.called = true;
        drop(list);
        let order = Arc::clone(self);
        self.lane.start(Box::new(move || order.run_all()));
    }

    /// Runs the list to its end, which others may move on meanwhile.
    fn run_all(self: Arc<Self>) {
        loop {
            let end = {
                let mut list = self.list.lock();
                if list.done == list.taken {
                    list.called = false;
                    break;
                }
                list.taken
            };
            // Whoever asked need not ask again (R18): what the lane refuses now it may take later.
            if self.wait(end).is_err() {
                std::thread::sleep(PAUSE);
            }
        }
        // What is in the lane makes progress, too.
        self.lane.flush();
    }

    /// The place of what was put in last.
    pub(crate) fn end(&self) -> u64 {
        self.list.lock().taken
    }

    /// Whether all up to a place is done.
    pub(crate) fn is_done(&self, place: u64) -> bool {
        self.list.lock().done >= place
    }

    /// Runs or awaits the list until all up to a place is done.
    ///
    /// # Errors
    /// What the lane refuses. The list stays as it is.
    pub(crate) fn wait(self: &Arc<Self>, place: u64) -> Result<(), L::Refusal> {
        // Lists that have to come to a place before the one in front of them can go on. A chain of queues that wait for
        // each other may be long, so it is no recursion.
        let mut chain = vec![(Arc::clone(self), place)];
        while let Some((order, place)) = chain.last() {
            match order.advance(*place)? {
                Some(behind) => chain.push(behind),
                None => drop(chain.pop()),
            }
        }
        Ok(())
    }

    /// The same, but where another list has to come to a place first, that one is returned.
    fn advance(&self, place: u64) -> Result<Option<(Arc<Self>, u64)>, L::Refusal> {
        let mut list = self.list.lock();
        while list.done < place {
            if !list.running {
                return self.run(list, place);
            }
            self.progress.wait(&mut list);
        }
        Ok(None)
    }

    /// Runs items up to a place. Nobody else runs the list.
    fn run<'a>(
        &'a self,
        mut list: Guard<'a, List<L>>,
        place: u64,
    ) -> Result<Option<(Arc<Self>, u64)>, L::Refusal> {
        let mut stopped = Ok(None);
        list.running = true;
        while list.done < place
            && let Some(item) = list.items.pop_front()
        {
            let upstream = list.failure.as_ref().map(|(_, failure)| failure.clone());
            drop(list);
            let step = self.step(item, upstream.as_ref());
            list = self.list.lock();
            let item = match step {
                Step::Done(failure) => {
                    list.done += 1;
                    let at = list.done;
                    if let Some(failure) = failure {
                        list.failure.get_or_insert((at, failure));
                    }
                    self.progress.notify_all();
                    continue;
                }
                Step::Behind(item, order, place) => {
                    stopped = Ok(Some((order, place)));
                    item
                }
                Step::Refused(item, refusal) => {
                    stopped = Err(refusal);
                    item
                }
            };
            list.items.push_front(item);
            break;
        }
        list.running = false;
        self.open_if_sound(&list);
        self.progress.notify_all();
        stopped
    }

    fn open_if_sound(&self, list: &List<L>) {
        if list.done == list.taken && list.failure.is_none() {
            self.closed.store(false, Ordering::Release);
        }
    }

    /// Does what an item says, and gives the failure that it is.
    fn step(&self, item: Item<L>, upstream: Option<&L::Failure>) -> Step<L> {
        match item {
            Item::Command(command) => Step::Done(match upstream {
                Some(_) => None,
                None => self.lane.issue(command).err(),
            }),
            Item::Call(call) => {
                // What has raced with the host calls before this one is in the lane, too.
                let before = match self.lane.drain() {
                    Ok(()) => None,
                    Err(Trouble::Failed(failure)) => Some(failure),
                    Err(Trouble::Refused(refusal)) => {
                        return Step::Refused(Item::Call(call), refusal);
                    }
                };
                let outcome = self.lane.call(call, upstream.or(before.as_ref()));
                Step::Done(before.or(outcome.err()))
            }
            Item::Wait(point) => {
                let Some(failure) = point.reached() else {
                    if let Some(order) = point.order.upgrade() {
                        let place = point.place;
                        return Step::Behind(Item::Wait(point), order, place);
                    }
                    // Its list is gone, and was run to its end.
                    return self.step(Item::Wait(point), upstream);
                };
                let failure = failure.cloned();
                // A failed queue waits too: host calls behind it may free what the point guards.
                match self.lane.join(&point.mark) {
                    Ok(()) => Step::Done(failure),
                    Err(Trouble::Failed(other)) => Step::Done(failure.or(Some(other))),
                    Err(Trouble::Refused(refusal)) => Step::Refused(Item::Wait(point), refusal),
                }
            }
            Item::Mark(point) => match self.lane.mark(&point.mark) {
                Ok(()) => {
                    let _ = point.reached.set(upstream.cloned());
                    Step::Done(None)
                }
                Err(refusal) => Step::Refused(Item::Mark(point), refusal),
            },
        }
    }

    /// The failure of the queue; `None` while there is something in the list.
    pub(crate) fn standing(&self) -> Option<Option<L::Failure>> {
        let list = self.list.lock();
        let failure = list.failure.as_ref().map(|(_, failure)| failure.clone());
        (list.done == list.taken).then_some(failure)
    }

    /// Begins a wait for all that was put in.
    pub(crate) fn begin(&self) -> Begun {
        let list = self.list.lock();
        Begun {
            end: list.taken,
            reports: list.reports,
        }
    }

    /// The failure of the queue for who has waited for it, which is cleared if `clears` says so: the first one of the list,
    /// or else what the lane has told. A later one belongs to who waits for that. Who waited while somebody else was
    /// told of it is told, too.
    pub(crate) fn report(
        &self,
        begun: Begun,
        told: Option<L::Failure>,
        clears: impl FnOnce(&L::Failure) -> bool,
    ) -> Option<L::Failure> {
        let mut list = self.list.lock();
        let own = list.failure.clone().filter(|(at, _)| *at <= begun.end);
        let is_own = own.is_some();
        let Some((at, failure)) = own.or(told.map(|told| (begun.end, told))) else {
            let reported = list.reported.as_ref().filter(|(at, _)| *at <= begun.end);
            let reported = reported.map(|(_, failure)| failure.clone());
            return reported.filter(|_| list.reports != begun.reports);
        };
        if clears(&failure) {
            if is_own {
                list.failure = None;
                self.open_if_sound(&list);
            }
            list.reports += 1;
            list.reported = Some((at, failure.clone()));
        }
        Some(failure)
    }
}
