//! `validate` and events that several threads record and query at the same time: a correct driver is
//! never blamed for an answer that another thread has changed meanwhile.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use outrigger_device::{Code, Driver, Queue, sys};
use outrigger_layers::validate::{Finding, Sink, validate};
use outrigger_layers::{Layer, Next, layered};

const LATE: Duration = Duration::from_secs(60);

type Findings = Arc<Mutex<Vec<Finding>>>;

fn validated(beneath: impl Layer) -> (Driver, Findings) {
    let driver = Driver::open(&"host?devices=1&memory=64M".parse().unwrap()).unwrap();
    let driver = layered(driver, beneath).unwrap();
    let findings = Findings::default();
    let into = Arc::clone(&findings);
    let sink: Sink = Arc::new(move |finding| into.lock().unwrap().push(finding.clone()));
    let layer = validate(&driver, sink).unwrap();
    (layered(driver, layer).unwrap(), findings)
}

/// Stops the first call of one entry until it is let go: a query before the driver has it, all else afterwards.
struct Held {
    entry: &'static str,
    stopped: AtomicBool,
    reached: mpsc::SyncSender<()>,
    go: Mutex<mpsc::Receiver<()>>,
}

impl Held {
    fn stop(&self, entry: &str) {
        if self.entry == entry && !self.stopped.swap(true, Ordering::AcqRel) {
            self.reached.send(()).unwrap();
            let _ = self.go.lock().unwrap().recv_timeout(LATE);
        }
    }
}

impl Layer for Held {
    unsafe fn event_query(
        &self,
        next: &Next,
        event: *mut sys::otr_drv_event,
        outcome: *mut sys::otr_outcome,
    ) -> i32 {
        self.stop("event_query");
        // SAFETY: R7: the host's own arguments, handed on.
        unsafe { next.event_query(event, outcome) }
    }

    unsafe fn event_record(
        &self,
        next: &Next,
        event: *mut sys::otr_drv_event,
        queue: *mut sys::otr_queue,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.event_record(event, queue) };
        self.stop("event_record");
        code
    }

    unsafe fn queue_wait_event(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        event: *mut sys::otr_drv_event,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.queue_wait_event(queue, event) };
        self.stop("queue_wait_event");
        code
    }
}

/// A driver that stops an entry, its findings, how to know that it has stopped, and how to let it go.
fn held(entry: &'static str) -> (Driver, Findings, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel();
    let (reached, there) = mpsc::sync_channel(1);
    let go_on = Mutex::new(wait);
    let (driver, findings) = validated(Held {
        entry,
        stopped: AtomicBool::new(false),
        reached,
        go: go_on,
    });
    (driver, findings, there, go)
}

/// Has the driver's queue wait until something comes through the gate.
fn block(queue: &Queue, gate: mpsc::Receiver<()>) {
    let wait = move |_| drop(gate.recv_timeout(LATE));
    queue.callback(wait).unwrap();
}

#[test]
fn a_query_may_see_a_record_that_came_after_its_beginning() {
    let (driver, findings, there, go) = held("event_query");
    let [first, second] = [0, 1].map(|_| driver.queue_create(0, 0).unwrap());
    let event = driver.event_create(0, false).unwrap();
    let (open, gate) = mpsc::channel::<()>();
    block(&first, gate);
    event.record(&first).unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| event.query().unwrap());
        there.recv().unwrap();
        event.record(&second).unwrap();
        second.synchronize().unwrap();
        go.send(()).unwrap();
        assert!(asked.join().unwrap());
    });
    assert_eq!(*findings.lock().unwrap(), []);
    open.send(()).unwrap();
    first.synchronize().unwrap();
}

unsafe extern "C" fn fail(_: *const c_void, _: u32, _: i64) -> i32 {
    Code::EXECUTION.0
}

#[test]
fn a_query_may_see_a_record_that_has_not_returned() {
    let (driver, findings, there, go) = held("event_record");
    let fails = driver.host_kernel(0, fail).unwrap().unwrap();
    let queue = driver.queue_create(0, 0).unwrap();
    let event = driver.event_create(0, false).unwrap();
    // SAFETY: the kernel uses nothing.
    unsafe { queue.launch(&fails, &[], 0, c"fails") }.unwrap();
    std::thread::scope(|scope| {
        let recorded = scope.spawn(|| event.record(&queue));
        there.recv().unwrap();
        let answer = event.synchronize().unwrap_err().code();
        assert_eq!(answer, Code::EXECUTION);
        go.send(()).unwrap();
        recorded.join().unwrap().unwrap();
    });
    queue.synchronize().unwrap_err();
    assert_eq!(*findings.lock().unwrap(), []);
}

#[test]
fn of_records_that_cross_nobody_knows_the_last() {
    let (driver, findings, there, go) = held("event_record");
    let [first, second] = [0, 1].map(|_| driver.queue_create(0, 0).unwrap());
    let event = driver.event_create(0, false).unwrap();
    let (open, gate) = mpsc::channel::<()>();
    block(&first, gate);
    std::thread::scope(|scope| {
        let early = scope.spawn(|| event.record(&first));
        there.recv().unwrap();
        // The driver has the first record, which returns last.
        event.record(&second).unwrap();
        go.send(()).unwrap();
        early.join().unwrap().unwrap();
    });
    event.synchronize().unwrap();
    assert_eq!(*findings.lock().unwrap(), []);
    open.send(()).unwrap();
    first.synchronize().unwrap();
}

#[test]
fn a_wait_is_for_the_record_that_the_driver_saw() {
    let (driver, findings, there, go) = held("queue_wait_event");
    let [first, second, third] = [0, 1, 2].map(|_| driver.queue_create(0, 0).unwrap());
    let event = driver.event_create(0, false).unwrap();
    event.record(&first).unwrap();
    let (open, gate) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let waited = scope.spawn(|| third.wait_event(&event));
        there.recv().unwrap();
        block(&second, gate);
        event.record(&second).unwrap();
        go.send(()).unwrap();
        waited.join().unwrap().unwrap();
    });
    // The sender is gone, so it waits for nothing.
    block(&third, mpsc::channel().1);
    third.synchronize().unwrap();
    assert_eq!(*findings.lock().unwrap(), []);
    open.send(()).unwrap();
    second.synchronize().unwrap();
}

/// Makes it likely that a host call crosses a record: a clock that is read while the record is under way, which
/// keeps other threads from the books, is let go by the host call.
struct Crossing(Arc<Moments>);

#[derive(Default)]
struct Moments {
    recorded: AtomicBool,
    clock: AtomicBool,
    called: AtomicBool,
    called_first: AtomicBool,
}

fn until(late: Duration, done: &AtomicBool) {
    let late = Instant::now() + late;
    while !done.load(Ordering::Acquire) && Instant::now() < late {
        std::thread::yield_now();
    }
}

impl Layer for Crossing {
    unsafe fn event_record(
        &self,
        next: &Next,
        event: *mut sys::otr_drv_event,
        queue: *mut sys::otr_queue,
    ) -> i32 {
        let called = self.0.called.load(Ordering::Acquire);
        self.0.called_first.store(called, Ordering::Release);
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.event_record(event, queue) };
        self.0.recorded.store(true, Ordering::Release);
        until(LATE, &self.0.clock);
        code
    }

    unsafe fn host_call(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        host_call: *const sys::otr_host_call,
    ) -> i32 {
        self.0.called.store(true, Ordering::Release);
        // SAFETY: R27: the function is called exactly once, with what was given for it.
        unsafe { next.host_call(queue, host_call) }
    }

    unsafe fn device_time(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        nanoseconds: *mut u64,
    ) -> i32 {
        self.0.clock.store(true, Ordering::Release);
        until(Duration::from_millis(2), &self.0.called);
        // SAFETY: R7: the host's own arguments, handed on.
        unsafe { next.device_time(driver, device, nanoseconds) }
    }
}

#[test]
fn an_event_does_not_wait_for_host_calls_that_came_after_it() {
    let moments = Arc::<Moments>::default();
    let (driver, findings) = validated(Crossing(Arc::clone(&moments)));
    let queue = driver.queue_create(0, 0).unwrap();
    let event = driver.event_create(0, false).unwrap();
    for _ in 0..40 {
        for moment in [&moments.recorded, &moments.clock, &moments.called] {
            moment.store(false, Ordering::Release);
        }
        let (open, gate) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                until(LATE, &moments.recorded);
                block(&queue, gate);
            });
            scope.spawn(|| {
                until(LATE, &moments.recorded);
                while !moments.called.load(Ordering::Acquire) {
                    driver.device_time_ns(0).unwrap();
                }
            });
            event.record(&queue).unwrap();
            assert!(!moments.called_first.load(Ordering::Acquire));
            event.synchronize().unwrap();
            open.send(()).unwrap();
        });
        queue.synchronize().unwrap();
        if !findings.lock().unwrap().is_empty() {
            break;
        }
    }
    assert_eq!(*findings.lock().unwrap(), []);
}
