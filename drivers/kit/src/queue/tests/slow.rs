//! Queues over hardware that finishes its commands when the test says so, and refuses calls.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_contract as c;
use parking_lot::{Condvar, Mutex};

use super::super::{HostCall, Lane, Marker, Queue, Step};
use crate::origin::{Label, Origin};
use crate::{Fault, Pool, Progress, Result};

#[derive(Default)]
struct Hardware {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    given: u64,
    done: u64,
    /// So many threads wait for commands.
    waiting: u32,
    /// The next of these calls are refused.
    refused: Vec<&'static str>,
    /// Another library owns the queue.
    adopted: bool,
    /// Whether that library has destroyed the queue: nobody may use it then.
    gone: bool,
    /// So often it was used all the same.
    misuses: u32,
    /// Called when a marker is asked next, which answers this then.
    asked: Option<Box<dyn FnOnce() -> Result<bool> + Send>>,
}

#[derive(Clone, Default)]
struct Line(Arc<Hardware>);

/// Behind so many commands.
struct Place(Line, u64);

impl Line {
    fn given(&self) -> u64 {
        self.0.state.lock().given
    }

    /// Lets the hardware refuse the next of each of these calls.
    fn refuse(&self, calls: &[&'static str]) {
        self.0.state.lock().refused.extend(calls);
    }

    fn take(&self, call: &str) -> Result {
        let state = &mut *self.0.state.lock();
        state.misuses += u32::from(state.gone && call != "wait");
        let refused = &mut state.refused;
        let Some(at) = refused.iter().position(|one| *one == call) else {
            return Ok(());
        };
        refused.remove(at);
        Err(Fault::host_memory("the hardware has no room for it"))
    }

    /// Does something, and lets the hardware work as soon as somebody waits for it.
    fn work_during<T>(&self, body: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut state = self.0.state.lock();
                while !over.load(Ordering::Relaxed) {
                    if state.waiting > 0 {
                        state.done = state.given;
                        self.0.changed.notify_all();
                    }
                    self.0.changed.wait(&mut state);
                }
            });
            let answer = body();
            let state = self.0.state.lock();
            over.store(true, Ordering::Relaxed);
            self.0.changed.notify_all();
            drop(state);
            answer
        })
    }

    /// Whether nobody waits for the hardware.
    fn is_left_alone(&self) -> bool {
        self.0.state.lock().waiting == 0
    }

    /// All that was given is done.
    fn complete(&self) {
        let mut state = self.0.state.lock();
        state.done = state.given;
        self.0.changed.notify_all();
    }
}

impl Marker for Place {
    fn is_done(&self) -> Result<bool> {
        let asked = self.0.0.state.lock().asked.take();
        if let Some(asked) = asked {
            return asked();
        }
        Ok(self.0.0.state.lock().done >= self.1)
    }

    fn wait(&self) -> Result {
        self.0.take("wait")?;
        let hardware = &*self.0.0;
        let mut state = hardware.state.lock();
        state.waiting += 1;
        hardware.changed.notify_all();
        while state.done < self.1 {
            hardware.changed.wait(&mut state);
        }
        state.waiting -= 1;
        Ok(())
    }
}

impl Lane for Line {
    type Command = ();
    type Marker = Place;

    fn issue(&self, (): (), _: Origin) -> Result {
        self.0.state.lock().given += 1;
        Ok(())
    }

    fn mark(&self, _: bool) -> Result<Place> {
        self.take("mark")?;
        Ok(Place(self.clone(), self.given()))
    }

    fn is_adopted(&self) -> bool {
        self.0.state.lock().adopted
    }

    fn join(&self, _: &Place) -> Result<bool> {
        self.take("join").map(|()| false)
    }

    fn flush(&self) -> Result {
        Ok(())
    }

    fn finish(&self) -> Result {
        self.take("finish")?;
        Place(self.clone(), self.given()).wait()
    }
}

/// The number of commands that were not done when a host call was made.
type Note = Arc<Mutex<Option<u64>>>;

struct Bench {
    line: Line,
    queue: Arc<Queue<Line>>,
    pool: Pool,
}

impl Bench {
    fn new() -> Self {
        let (line, pool) = (Line::default(), Pool::default());
        let queue = Queue::new(line.clone(), &pool);
        Self { line, queue, pool }
    }

    fn submit(&self) {
        let submitted = (self.queue).submit(
            Label::NONE,
            |lane, origin| lane.issue((), origin),
            |_| Ok(()),
        );
        submitted.unwrap();
    }

    /// A host call that does nothing.
    fn call(&self) {
        unsafe extern "C" fn nothing(_: *mut c_void, _: i32) -> i32 {
            0
        }
        let user = std::ptr::null_mut();
        self.queue.host_call(Some(nothing), user, 0).unwrap();
    }

    /// A host call that notes how many commands of a line are not done.
    fn note(&self, line: &Line, note: &Note) {
        let note = Box::new((line.clone(), note.clone()));
        unsafe extern "C" fn look(user: *mut c_void, _: i32) -> i32 {
            // SAFETY: the box of above, which is called once (R27).
            let note = unsafe { Box::from_raw(user.cast::<(Line, Note)>()) };
            let (line, note) = *note;
            let mut state = line.0.state.lock();
            *note.lock() = Some(state.given - state.done);
            state.done = state.given;
            line.0.changed.notify_all();
            0
        }
        let user = Box::into_raw(note).cast();
        self.queue.host_call(Some(look), user, 0).unwrap();
    }

    /// Synchronizes, and lets the hardware work as soon as somebody waits for it.
    fn synchronize(&self) -> Result {
        self.line.work_during(|| self.queue.synchronize())
    }

    /// Asks until the list has been run, which a query starts.
    fn until_given(&self, count: u64) {
        while self.line.given() < count {
            let _ = self.queue.query();
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_query_between_two_submissions_takes_no_later_one_for_finished() {
    let bench = Bench::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Each is stopped in the middle of a query now and then.
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _ = bench.queue.query();
                    std::thread::yield_now();
                }
            });
        }
        let mut early = 0;
        for round in 1..=50 {
            bench.call();
            bench.submit();
            bench.until_given(round);
            early += u32::from(matches!(bench.queue.query(), Ok(Progress::Done)));
            bench.line.complete();
            bench.queue.synchronize().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(early, 0, "it said Done while the command was not done");
    });
    bench.pool.finish();
}

#[test]
fn a_host_call_behind_a_failure_comes_behind_what_was_submitted_before_it() {
    let bench = Bench::new();
    // A list is run, which leaves the hardware idle.
    bench.call();
    bench.queue.synchronize().unwrap();
    bench.submit();
    let queue = Arc::clone(&bench.queue);
    bench.line.0.state.lock().asked = Some(Box::new(move || {
        // As another thread does meanwhile.
        (queue.submit(
            Label::NONE,
            |lane, origin| lane.issue((), origin),
            |_| Ok(()),
        ))
        .unwrap();
        Err(Fault::new(c::OTR_ERR_EXECUTION, "a command failed").ended())
    }));
    let failed = bench.queue.query().unwrap_err();
    assert_eq!(failed.code(), c::OTR_ERR_EXECUTION);
    let note = Note::default();
    bench.note(&bench.line, &note);
    assert_eq!(
        bench.synchronize().unwrap_err().code(),
        c::OTR_ERR_EXECUTION
    );
    assert_eq!(*note.lock(), Some(0), "no command is on the hardware");
}

#[test]
fn a_device_that_is_lost_gives_no_outcome_and_fails_nothing() {
    let bench = Bench::new();
    bench.submit();
    let point = bench.queue.point(false).unwrap();
    let questions: [&dyn Fn() -> Result<Progress>; 2] =
        [&|| bench.queue.query(), &|| point.query()];
    for ask in questions {
        bench.line.0.state.lock().asked = Some(Box::new(|| {
            Err(Fault::new(c::OTR_ERR_DEVICE_LOST, "it is lost"))
        }));
        let lost = ask().unwrap_err();
        assert!(lost.code() == c::OTR_ERR_DEVICE_LOST && !lost.is_outcome());
    }
    bench.line.complete();
    bench.queue.synchronize().unwrap();
}

#[test]
fn a_thread_that_could_not_be_started_is_started_when_somebody_asks_again() {
    let bench = Bench::new();
    bench.pool.refuse_threads(true);
    bench.call();
    bench.submit();
    let refused = bench.queue.flush().unwrap_err();
    assert_eq!(refused.code(), c::OTR_ERR_OUT_OF_HOST_MEMORY);
    assert!(!bench.queue.list.lock().called, "no thread is on its way");
    bench.pool.refuse_threads(false);
    bench.until_given(1);
    bench.line.complete();
    bench.queue.synchronize().unwrap();
    bench.pool.finish();
}

fn is_refusal(answer: Result) -> bool {
    answer.unwrap_err().code() == c::OTR_ERR_OUT_OF_HOST_MEMORY
}

#[test]
fn a_point_is_not_reached_where_the_hardware_refuses_its_marker() {
    let bench = Bench::new();
    bench.call();
    bench.submit();
    let point = bench.queue.point(false).unwrap();
    bench.line.refuse(&["mark"]);
    bench.queue.flush().unwrap();
    // The thread that runs the list waits for the hardware in place of the marker.
    while bench.line.is_left_alone() {
        assert_eq!(point.query().unwrap(), Progress::NotReady);
        assert_eq!(bench.queue.query().unwrap(), Progress::NotReady);
    }
    bench.line.complete();
    point.synchronize().unwrap();
    bench.queue.synchronize().unwrap();
    // A wait for the point refuses nothing either.
    bench.call();
    bench.submit();
    let point = bench.queue.point(false).unwrap();
    bench.line.refuse(&["mark", "finish"]);
    assert!(is_refusal(bench.queue.synchronize()) && point.marked().is_none());
    bench.synchronize().unwrap();
    assert_eq!(point.query().unwrap(), Progress::Done);
    bench.pool.finish();
}

#[test]
fn a_timestamp_that_the_hardware_refuses_fails_when_the_work_has_finished() {
    let bench = Bench::new();
    bench.call();
    bench.submit();
    let point = bench.queue.point(true).unwrap();
    bench.line.refuse(&["mark"]);
    assert!(is_refusal(bench.synchronize()));
    assert!(is_refusal(point.synchronize()));
    bench.queue.synchronize().unwrap();
}

#[test]
fn a_question_that_the_hardware_refuses_is_not_answered() {
    let bench = Bench::new();
    bench.submit();
    let point = bench.queue.point(false).unwrap();
    let refuse = || {
        let refused = || Err(Fault::host_memory("the hardware has no room for it"));
        bench.line.0.state.lock().asked = Some(Box::new(refused));
    };
    refuse();
    assert_eq!(point.query().unwrap(), Progress::NotReady);
    refuse();
    assert_eq!(bench.queue.query().unwrap(), Progress::NotReady);
    bench.submit();
    bench.line.refuse(&["mark"]);
    assert_eq!(bench.queue.query().unwrap(), Progress::NotReady);
    bench.line.refuse(&["finish", "wait"]);
    assert!(is_refusal(bench.queue.synchronize()) && is_refusal(point.synchronize()));
    bench.line.complete();
    assert_eq!(bench.queue.query().unwrap(), Progress::Done);
}

#[test]
fn a_host_call_is_not_made_where_the_hardware_refuses_to_be_waited_for() {
    let bench = Bench::new();
    let notes = [Note::default(), Note::default()];
    bench.submit();
    bench.note(&bench.line, &notes[0]);
    bench.line.refuse(&["finish"]);
    assert!(is_refusal(bench.queue.synchronize()));
    assert_eq!(*notes[0].lock(), None);
    bench.synchronize().unwrap();
    assert_eq!(*notes[0].lock(), Some(0));
    // A thread of the pool tries again by itself.
    bench.submit();
    bench.note(&bench.line, &notes[1]);
    bench.line.refuse(&["finish"; 3]);
    bench.queue.flush().unwrap();
    bench.line.work_during(|| {
        while notes[1].lock().is_none() {
            std::thread::yield_now();
        }
    });
    assert_eq!(*notes[1].lock(), Some(0));
    // So does that of a queue that is destroyed.
    let note = Note::default();
    bench.submit();
    bench.note(&bench.line, &note);
    let Bench { line, queue, pool } = bench;
    line.refuse(&["finish"; 3]);
    queue.retire();
    line.work_during(|| pool.finish());
    assert_eq!(*note.lock(), Some(0));
}

#[test]
fn what_is_left_of_a_row_is_done_later_and_once() {
    unsafe extern "C" fn count(user: *mut c_void, upstream: i32) -> i32 {
        // SAFETY: the list of the test, which outlives its queue.
        unsafe { &*user.cast::<Mutex<Vec<i32>>>() }
            .lock()
            .push(upstream);
        upstream
    }
    let bench = Bench::new();
    let calls = Mutex::new(Vec::<i32>::new());
    let user = std::ptr::from_ref(&calls).cast_mut().cast();
    let call = || Step::HostCall(HostCall::new(Some(count), user, 0).unwrap());
    let row = vec![call(), Step::Command(()), call(), Step::Command(())];
    bench.queue.submit_row(row).unwrap();
    bench.line.refuse(&["finish"]);
    assert!(is_refusal(bench.queue.synchronize()));
    assert_eq!((calls.lock().len(), bench.line.given()), (1, 1));
    bench.synchronize().unwrap();
    assert_eq!((calls.lock().len(), bench.line.given()), (2, 2));
}

#[test]
fn a_queue_waits_for_a_point_though_the_hardware_refuses_to() {
    let (first, second) = (Bench::new(), Bench::new());
    let note = Note::default();
    first.submit();
    let point = first.queue.point(false).unwrap();
    second.call();
    second.queue.wait_for(&point).unwrap();
    second.note(&first.line, &note);
    second.line.refuse(&["join"]);
    first.line.refuse(&["wait"]);
    assert!(is_refusal(second.queue.synchronize()));
    assert_eq!(*note.lock(), None);
    second.line.refuse(&["join"]);
    (first.line)
        .work_during(|| second.queue.synchronize())
        .unwrap();
    assert_eq!(*note.lock(), Some(0));
}

#[test]
fn a_host_call_waits_for_what_others_have_put_in_behind_the_last_one() {
    unsafe extern "C" fn issue(user: *mut c_void, _: i32) -> i32 {
        // SAFETY: the lane of the test, which outlives its queue.
        let line = unsafe { &*user.cast::<Line>() };
        line.issue((), Origin::new(Label::NONE, 1)).unwrap();
        0
    }
    let bench = Bench::new();
    bench.queue.begin_sharing();
    let note = Note::default();
    let user = std::ptr::from_ref(&bench.line).cast_mut().cast();
    // As another library does, between two host calls.
    bench.queue.host_call(Some(issue), user, 0).unwrap();
    bench.note(&bench.line, &note);
    bench.synchronize().unwrap();
    assert_eq!(*note.lock(), Some(0));
}

#[test]
fn a_destroyed_queue_leaves_the_native_one_alone_once_its_work_has_finished() {
    unsafe extern "C" fn destroy(user: *mut c_void, _: i32) -> i32 {
        // SAFETY: the lane of the test, which outlives its queue.
        unsafe { &*user.cast::<Line>() }.0.state.lock().gone = true;
        0
    }
    // The owner knows by the last host call that all has finished.
    let bench = || {
        let bench = Bench::new();
        bench.line.0.state.lock().adopted = true;
        bench.queue.begin_sharing();
        bench
    };
    let Bench { line, queue, pool } = bench();
    let user = std::ptr::from_ref(&line).cast_mut().cast();
    queue.host_call(Some(destroy), user, 0).unwrap();
    queue.retire();
    pool.finish();
    assert_eq!(line.0.state.lock().misuses, 0);
    // By an event.
    let bench = bench();
    bench.call();
    bench.submit();
    let point = bench.queue.point(false).unwrap();
    let Bench { line, queue, pool } = bench;
    queue.retire();
    while point.marked().is_none() {
        std::thread::yield_now();
    }
    line.0.state.lock().gone = true;
    line.complete();
    point.synchronize().unwrap();
    pool.finish();
    drop(point);
    assert_eq!(line.0.state.lock().misuses, 0);
}
