//! Queues over hardware that finishes its commands when the test says so.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

use super::super::{Lane, Marker, Queue};
use crate::failure::Label;
use crate::{Pool, Progress, Result};

#[derive(Default)]
struct Hardware {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    given: u64,
    done: u64,
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
        Ok(self.0.0.state.lock().done >= self.1)
    }

    fn wait(&self) -> Result {
        let hardware = &*self.0.0;
        let mut state = hardware.state.lock();
        while state.done < self.1 {
            hardware.changed.wait(&mut state);
        }
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
