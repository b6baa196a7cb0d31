//! Queues over hardware that finishes its commands when the test says so.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_contract as c;
use parking_lot::{Condvar, Mutex};

use super::super::{Lane, Marker, Queue};
use crate::failure::Label;
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

    fn issue(&self, (): ()) -> Result {
        self.0.state.lock().given += 1;
        Ok(())
    }

    fn mark(&self, _: bool) -> Result<Place> {
        Ok(Place(self.clone(), self.given()))
    }

    fn join(&self, _: &Place) -> Result<bool> {
        Ok(false)
    }

    fn flush(&self) -> Result {
        Ok(())
    }

    fn finish(&self) -> Result {
        self.mark(false)?.wait()
    }
}

/// How many commands were not done when a host call was made.
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
        let submitted = (self.queue).submit(Label::NONE, |lane| lane.issue(()), |_| Ok(()));
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

    /// A host call that notes how many commands before it are not done.
    fn note(&self, note: &Note) {
        let note = Box::new((self.line.clone(), note.clone()));
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
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut state = self.line.0.state.lock();
                while !over.load(Ordering::Relaxed) {
                    if state.waiting > 0 {
                        state.done = state.given;
                        self.line.0.changed.notify_all();
                    }
                    self.line.0.changed.wait(&mut state);
                }
            });
            let answer = self.queue.synchronize();
            let state = self.line.0.state.lock();
            over.store(true, Ordering::Relaxed);
            self.line.0.changed.notify_all();
            drop(state);
            answer
        })
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
        // More threads than cores: each is stopped in the middle of a query now and then.
        for _ in 0..8 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _ = bench.queue.query();
                }
            });
        }
        let mut early = 0;
        for round in 1..=400 {
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
        (queue.submit(Label::NONE, |lane| lane.issue(()), |_| Ok(()))).unwrap();
        Err(Fault::new(c::OTR_ERR_EXECUTION, "a command failed"))
    }));
    let failed = bench.queue.query().unwrap_err();
    assert_eq!(failed.code(), c::OTR_ERR_EXECUTION);
    let note = Note::default();
    bench.note(&note);
    assert_eq!(
        bench.synchronize().unwrap_err().code(),
        c::OTR_ERR_EXECUTION
    );
    assert_eq!(*note.lock(), Some(0), "no command is on the hardware");
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
