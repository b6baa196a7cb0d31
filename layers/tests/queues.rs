//! `validate` and queues: a correct host or driver is never blamed, even if another thread is about to
//! get a failure, or if a handle is used again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use outrigger_device::{Code, Driver, Queue, sys};
use outrigger_layers::validate::{Finding, Sink, validate};
use outrigger_layers::{Layer, Next, layered};

fn host() -> Driver {
    Driver::open(&"host?devices=1&memory=64M".parse().unwrap()).unwrap()
}

fn validated(driver: Driver) -> (Driver, Arc<Mutex<Vec<Finding>>>) {
    let findings = Arc::<Mutex<Vec<Finding>>>::default();
    let into = Arc::clone(&findings);
    let sink: Sink = Arc::new(move |finding| into.lock().unwrap().push(finding.clone()));
    let layer = validate(&driver, sink).unwrap();
    (layered(driver, layer).unwrap(), findings)
}

/// Returns from a synchronize only when it is let go, with what the driver has answered by then.
struct Slow(Mutex<mpsc::Receiver<()>>, mpsc::SyncSender<()>);

impl Layer for Slow {
    unsafe fn queue_synchronize(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        outcome: *mut sys::otr_outcome,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.queue_synchronize(queue, outcome) };
        self.1.send(()).unwrap();
        let _ = self.0.lock().unwrap().recv_timeout(Duration::from_secs(60));
        code
    }
}

#[test]
fn a_failure_that_another_thread_takes_is_not_lost() {
    let (go, wait) = mpsc::channel();
    let (reached, there) = mpsc::sync_channel(1);
    let slow = layered(host(), Slow(Mutex::new(wait), reached)).unwrap();
    let (driver, findings) = validated(slow);
    let queue = driver.queue_create(0, 0).unwrap();
    queue.host_call(|_| Err(Code::EXECUTION)).unwrap();
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| queue.synchronize().unwrap_err().code());
        there.recv().unwrap();
        // The driver has told of the failure, and the other thread does not know yet.
        assert!(queue.query().unwrap());
        go.send(()).unwrap();
        assert_eq!(taken.join().unwrap(), Code::EXECUTION);
    });
    assert_eq!(*findings.lock().unwrap(), []);
}

#[test]
fn work_of_a_queue_is_not_that_of_a_later_one_with_its_handle() {
    let (driver, findings) = validated(host());
    let memory = driver.memory_alloc(0, 4096).unwrap();
    let first: Vec<_> = (0..16)
        .map(|_| driver.queue_create(0, 0).unwrap())
        .collect();
    let fill = |queue: &Queue| {
        // SAFETY: the memory lives until the events have been waited for.
        unsafe { queue.fill(memory, 4096, &[1]).unwrap() };
        let event = driver.event_create(0, false).unwrap();
        event.record(queue).unwrap();
        event
    };
    let ends: Vec<_> = first.iter().map(fill).collect();
    drop(first);
    // The events tell that the work has ended; the queues are not asked.
    ends.iter().for_each(|event| event.synchronize().unwrap());
    drop(ends);
    // Some have handles of those, and none comes to an end.
    let later: Vec<_> = (0..32)
        .map(|_| driver.queue_create(0, 0).unwrap())
        .collect();
    let open = Arc::new(AtomicBool::new(false));
    for queue in &later {
        let (open, late) = (Arc::clone(&open), Instant::now() + Duration::from_secs(60));
        let gate = move |upstream| {
            while !open.load(Ordering::Acquire) && Instant::now() < late {
                std::thread::sleep(Duration::from_millis(1));
            }
            upstream
        };
        queue.host_call(gate).unwrap();
    }
    // SAFETY: nobody uses it.
    let freed = unsafe { driver.memory_free(memory) };
    open.store(true, Ordering::Release);
    later.iter().for_each(|queue| queue.synchronize().unwrap());
    freed.unwrap();
    assert_eq!(*findings.lock().unwrap(), []);
}

#[test]
fn work_is_over_where_what_comes_after_it_is() {
    let (driver, findings) = validated(host());
    let [first, second, third] = [0, 1, 2].map(|_| driver.queue_create(0, 0).unwrap());
    let memory = driver.memory_alloc(0, 4096).unwrap();
    let then = |from: &Queue, to: &Queue| {
        let event = driver.event_create(0, false).unwrap();
        event.record(from).unwrap();
        to.wait_event(&event).unwrap();
    };
    // SAFETY: the memory lives until the last event has been waited for.
    unsafe { first.fill(memory, 4096, &[1]).unwrap() };
    then(&first, &second);
    then(&second, &third);
    let end = driver.event_create(0, false).unwrap();
    end.record(&third).unwrap();
    // Later work of the first queue has nothing to do with the memory.
    let (open, gate) = mpsc::channel::<()>();
    first
        .host_call(move |upstream| {
            let _ = gate.recv_timeout(Duration::from_secs(60));
            upstream
        })
        .unwrap();
    end.synchronize().unwrap();
    // SAFETY: its only use lies before the event, by way of two others.
    unsafe { driver.memory_free(memory).unwrap() };
    assert_eq!(*findings.lock().unwrap(), []);
    let late = driver.memory_alloc(0, 4096).unwrap();
    // SAFETY: the memory is freed too early on purpose; the layer does not let that through.
    unsafe {
        first.fill(late, 4096, &[1]).unwrap();
        then(&second, &third);
        driver.memory_free(late).unwrap_err();
    }
    let found = findings.lock().unwrap().clone();
    assert!(found.iter().any(|one| one.rule == "R12"), "{found:?}");
    open.send(()).unwrap();
    first.synchronize().unwrap();
    // SAFETY: nobody uses it any more.
    unsafe { driver.memory_free(late).unwrap() };
}
