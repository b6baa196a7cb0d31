//! Queues over hardware that is made of a vector: it runs what it was given when it is flushed or waited for.

mod slow;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_contract as c;
use parking_lot::Mutex;

use super::{HostCall, Lane, Marker, Queue, Step};
use crate::origin::{Label, Origin};
use crate::{Fault, Pool, Progress, Result};

/// The value of a command that fails when it is issued.
const BROKEN: u64 = u64::MAX;

#[derive(Default)]
struct Hardware {
    given: Vec<u64>,
    done: usize,
    log: Vec<u64>,
}

impl Hardware {
    fn run(&mut self) {
        let given = self.given[self.done..].iter().filter(|value| **value > 0);
        self.log.extend(given);
        self.done = self.given.len();
    }
}

#[derive(Clone, Default)]
struct Vectors(Arc<Mutex<Hardware>>);

struct Place(Vectors, usize);

impl Marker for Place {
    fn is_done(&self) -> Result<bool> {
        Ok(self.0.0.lock().done >= self.1)
    }

    fn wait(&self) -> Result {
        self.0.0.lock().run();
        Ok(())
    }
}

impl Lane for Vectors {
    type Command = u64;
    type Marker = Place;

    fn issue(&self, command: u64, _: Origin) -> Result {
        if command == BROKEN {
            return Err(Fault::new(c::OTR_ERR_EXECUTION, "it is broken"));
        }
        self.0.lock().given.push(command);
        Ok(())
    }

    fn mark(&self, _: bool) -> Result<Place> {
        let mut hardware = self.0.lock();
        hardware.given.push(0);
        Ok(Place(self.clone(), hardware.given.len()))
    }

    fn join(&self, _: &Place) -> Result<bool> {
        Ok(false)
    }

    fn flush(&self) -> Result {
        self.0.lock().run();
        Ok(())
    }

    fn finish(&self) -> Result {
        self.flush()
    }
}

struct Bench {
    lane: Vectors,
    queue: Arc<Queue<Vectors>>,
    pool: Pool,
}

impl Bench {
    fn new() -> Self {
        let (lane, pool) = (Vectors::default(), Pool::default());
        let queue = Queue::new(lane.clone(), &pool);
        Self { lane, queue, pool }
    }

    fn submit(&self, value: u64) {
        let submitted = (self.queue).submit(
            Label::NONE,
            |lane, origin| lane.issue(value, origin),
            |_| Ok(value),
        );
        submitted.unwrap();
    }

    /// A host call that does something with `upstream` and answers a code. It is called once.
    fn call(&self, flags: u32, body: impl FnOnce(i32) -> i32 + Send + 'static) {
        type Body = Box<dyn FnOnce(i32) -> i32 + Send>;
        unsafe extern "C" fn run(user: *mut c_void, upstream: i32) -> i32 {
            // SAFETY: the box that was leaked below, which is called once (R27).
            let body = unsafe { Box::from_raw(user.cast::<Body>()) };
            body(upstream)
        }
        let body: Body = Box::new(body);
        let user = Box::into_raw(Box::new(body)).cast();
        self.queue.host_call(Some(run), user, flags).unwrap();
    }

    /// A host call that notes `value`, and `upstream` times 1000.
    fn note(&self, value: u64) {
        let lane = self.lane.clone();
        self.call(0, move |upstream| {
            lane.0.lock().log.push(value + 1000 * upstream as u64);
            upstream
        });
    }

    fn log(&self) -> Vec<u64> {
        self.lane.0.lock().log.clone()
    }
}

/// The label and the number of the command that an outcome is of.
fn place(fault: &Fault) -> (String, u64) {
    assert!(fault.is_outcome(), "{fault:?}");
    let origin = fault.origin().expect("a command has failed");
    (origin.label().into_owned(), origin.number())
}

/// Waits until something is so, for a while.
fn until(body: impl Fn() -> bool) {
    for _ in 0..5000 {
        if body() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it has not happened");
}

#[test]
fn commands_go_straight_to_the_hardware_and_host_calls_keep_the_order() {
    let bench = Bench::new();
    bench.submit(1);
    assert_eq!(
        bench.lane.0.lock().given,
        [1],
        "it is in the hardware at once"
    );
    bench.note(2);
    bench.submit(3);
    assert_eq!(bench.log(), [], "nobody asked");
    bench.note(4);
    bench.submit(5);
    bench.queue.synchronize().unwrap();
    assert_eq!(bench.log(), [1, 2, 3, 4, 5]);
    let given = bench.lane.0.lock().given.len();
    bench.submit(6);
    assert_eq!(
        bench.lane.0.lock().given.len(),
        given + 1,
        "the gate is open again"
    );
    bench.pool.finish();
}

#[test]
fn a_failure_skips_what_is_behind_it_until_it_is_reported() {
    let bench = Bench::new();
    bench.call(0, |_| c::OTR_ERR_OUT_OF_RANGE);
    bench.submit(1);
    bench.note(2);
    let point = bench.queue.point(false).unwrap();
    until(|| !matches!(bench.queue.query(), Ok(Progress::NotReady)));
    let fault = bench.queue.query().unwrap_err();
    assert_eq!(fault.code(), c::OTR_ERR_OUT_OF_RANGE);
    assert_eq!(place(&fault), (String::new(), 1));
    let fault = bench.queue.synchronize().unwrap_err();
    assert_eq!(fault.code(), c::OTR_ERR_OUT_OF_RANGE);
    bench.queue.synchronize().unwrap();
    bench.submit(3);
    bench.queue.synchronize().unwrap();
    assert_eq!(bench.log(), [2 + 1000 * c::OTR_ERR_OUT_OF_RANGE as u64, 3]);
    // The point keeps it (R23), and hands it on (R24).
    assert!(point.query().is_err() && point.synchronize().is_err());
    let other = Bench::new();
    other.queue.wait_for(&point).unwrap();
    let fault = other.queue.synchronize().unwrap_err();
    assert!(fault.message().contains("waited for"), "{fault:?}");
    bench.pool.finish();
    other.pool.finish();
}

#[test]
fn a_host_call_that_cannot_fail_has_no_outcome() {
    let bench = Bench::new();
    bench.call(c::OTR_HOST_CALL_CANNOT_FAIL, |_| c::OTR_ERR_EXECUTION);
    bench.submit(1);
    bench.queue.synchronize().unwrap();
    assert_eq!(bench.log(), [1]);
    for (function, flags) in [(None, 0), (Some(never as super::HostFn), 2)] {
        let refused = bench.queue.host_call(function, std::ptr::null_mut(), flags);
        assert_eq!(refused.unwrap_err().code(), c::OTR_ERR_INVALID_ARGUMENT);
    }
    assert_eq!(bench.queue.query().unwrap(), Progress::Done);
}

unsafe extern "C" fn never(_: *mut c_void, _: i32) -> i32 {
    std::process::abort()
}

#[test]
fn a_command_that_the_hardware_refuses_late_fails_the_queue() {
    let bench = Bench::new();
    bench.note(1);
    // SAFETY: a constant.
    let label = unsafe { Label::new(c"broken".as_ptr()) };
    let direct = |_: &Vectors, _| unreachable!();
    let deferred = |_: &Vectors| Ok(BROKEN);
    bench.queue.submit(label, direct, deferred).unwrap();
    bench.submit(2);
    let fault = bench.queue.synchronize().unwrap_err();
    assert_eq!(fault.message(), "it is broken");
    assert_eq!(place(&fault), ("broken".to_owned(), 2));
    assert_eq!(bench.log(), [1]);
    // One that is refused at once was never submitted.
    let refused = (bench.queue).submit(
        Label::NONE,
        |lane, origin| lane.issue(BROKEN, origin),
        |_| Ok(BROKEN),
    );
    assert!(refused.is_err());
    bench.queue.synchronize().unwrap();
}

#[test]
fn a_command_that_the_hardware_refuses_half_way_is_submitted_and_has_failed() {
    let bench = Bench::new();
    bench.submit(1);
    let half = |lane: &Vectors, origin| {
        lane.issue(2, origin)?;
        lane.issue(BROKEN, origin).map_err(Fault::begun)
    };
    // SAFETY: a constant.
    let label = unsafe { Label::new(c"half".as_ptr()) };
    (bench.queue.submit(label, half, |_| unreachable!())).unwrap();
    bench.submit(3);
    bench.note(4);
    let fault = bench.queue.synchronize().unwrap_err();
    assert_eq!(place(&fault), ("half".to_owned(), 2));
    assert_eq!(bench.log(), [1, 2, 4 + 1000 * fault.code() as u64]);
    bench.submit(5);
    bench.queue.synchronize().unwrap();
}

#[test]
fn progress_comes_by_itself_once_somebody_asked() {
    let bench = Bench::new();
    bench.note(1);
    bench.queue.flush().unwrap();
    until(|| bench.log() == [1]);
    // And without asking once there is much to do.
    for value in 2..40 {
        bench.note(value);
    }
    until(|| bench.log().len() >= 16);
    bench.queue.synchronize().unwrap();
    assert_eq!(bench.log(), (1..40).collect::<Vec<_>>());
    bench.pool.finish();
}

#[test]
fn a_thread_that_comes_too_late_leaves_direct_commands_alone() {
    let bench = Bench::new();
    bench.note(1);
    bench.queue.synchronize().unwrap();
    bench.submit(2);
    // As a thread of the pool does whose list another thread has run.
    (bench.queue.run(&mut bench.queue.list.lock(), u64::MAX)).unwrap();
    let count = bench.queue.gate.count();
    assert!(!bench.queue.is_known_to_have_finished(count));
    assert_eq!(bench.log(), [1], "the command is in the hardware");
}

#[test]
fn a_wait_for_a_point_that_a_list_has_to_come_to() {
    let (first, second) = (Bench::new(), Bench::new());
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    first.call(0, move |_| {
        until(|| gate.load(Ordering::Acquire));
        c::OTR_OK
    });
    let point = first.queue.point(false).unwrap();
    second.queue.wait_for(&point).unwrap();
    second.note(7);
    second.queue.flush().unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(point.query().unwrap(), Progress::NotReady);
    assert_eq!(second.log(), []);
    open.store(true, Ordering::Release);
    second.queue.synchronize().unwrap();
    assert_eq!(second.log(), [7]);
    assert_eq!(point.query().unwrap(), Progress::Done);
    first.pool.finish();
    second.pool.finish();
}

#[test]
fn a_destroyed_queue_finishes_its_work() {
    let Bench { lane, queue, pool } = Bench::new();
    let bench = Bench {
        lane: lane.clone(),
        queue,
        pool: pool.clone(),
    };
    let started = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&started);
    bench.call(0, move |_| {
        std::thread::sleep(Duration::from_millis(20));
        seen.store(true, Ordering::Release);
        c::OTR_OK
    });
    bench.submit(1);
    bench.queue.retire();
    pool.finish();
    assert!(started.load(Ordering::Acquire));
    assert_eq!(lane.0.lock().log, [1]);
}

#[test]
fn threads_submit_and_wait_at_the_same_time() {
    let bench = Bench::new();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let bench = &bench;
            scope.spawn(move || {
                for round in 0..200 {
                    bench.submit(1 + round + 1000 * thread);
                    if round % 7 == 0 {
                        bench.note(500 + round + 1000 * thread);
                    }
                    match round % 5 {
                        0 => bench.queue.synchronize().unwrap(),
                        1 => drop(bench.queue.query().unwrap()),
                        _ => {}
                    }
                }
            });
        }
    });
    bench.queue.synchronize().unwrap();
    let log = bench.log();
    for thread in 0..4 {
        let own = log.iter().filter(|value| **value / 1000 == thread);
        let commands: Vec<_> = own.clone().filter(|value| **value % 1000 <= 200).collect();
        assert!(commands.is_sorted() && commands.len() == 200);
        assert_eq!(own.count(), 229);
    }
    bench.pool.finish();
}

#[test]
fn a_row_is_one_submission_and_a_failure_in_it_skips_the_rest() {
    unsafe extern "C" fn call(user: *mut c_void, upstream: i32) -> i32 {
        // SAFETY: the hardware of the test, which outlives its queue.
        let hardware = unsafe { &*user.cast::<Mutex<Hardware>>() };
        hardware.lock().log.push(100 + 1000 * upstream as u64);
        upstream
    }
    let bench = Bench::new();
    let user = Arc::as_ptr(&bench.lane.0).cast_mut().cast();
    let row = |second: u64| {
        let call = || Step::HostCall(HostCall::new(Some(call), user, 0).unwrap());
        let (first, last) = (Step::Command(1), Step::Command(3));
        vec![first, call(), Step::Command(second), last, call()]
    };
    bench.queue.submit_row(row(2)).unwrap();
    bench.queue.synchronize().unwrap();
    assert_eq!(bench.log(), [1, 100, 2, 3, 100]);
    bench.queue.submit_row(row(BROKEN)).unwrap();
    bench.submit(4);
    let fault = bench.queue.synchronize().unwrap_err();
    assert_eq!(place(&fault).1, 2);
    let upstream = 100 + 1000 * c::OTR_ERR_EXECUTION as u64;
    assert_eq!(bench.log()[5..], [1, 100, upstream]);
    // Behind a failure that is older, all of it is skipped but for the calls.
    bench.call(0, |_| c::OTR_ERR_CANCELLED);
    bench.queue.submit_row(row(2)).unwrap();
    let fault = bench.queue.synchronize().unwrap_err();
    assert_eq!(fault.code(), c::OTR_ERR_CANCELLED);
    let upstream = 100 + 1000 * c::OTR_ERR_CANCELLED as u64;
    assert_eq!(bench.log()[8..], [upstream, upstream]);
    assert!(HostCall::new(None, user, 0).is_err() && HostCall::new(Some(call), user, 2).is_err());
}
