//! The layer `validate`: it reports nothing while host and driver keep the rules; when one of them
//! breaks a rule that it can see, it names the rule.

mod wrong;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use outrigger_device::{Code, CopyKind, DType, Driver, NO_OUTCOME, sys};
use outrigger_layers::validate::{Finding, Side, Sink, validate};
use outrigger_layers::{Layer, Next, layered};
use wrong::{Wrong, WrongDriver};

type Findings = Arc<Mutex<Vec<Finding>>>;

fn host() -> Driver {
    let text = "host?devices=1&memory=64M&virtual_memory=on&graphs=native&face=discrete";
    Driver::open(&text.parse().unwrap()).unwrap()
}

fn validated(driver: Driver) -> (Driver, Findings) {
    let findings = Findings::default();
    let into = Arc::clone(&findings);
    let sink: Sink = Arc::new(move |finding| into.lock().unwrap().push(finding.clone()));
    let layer = validate(&driver, sink).unwrap();
    (layered(driver, layer).unwrap(), findings)
}

fn rules(findings: &Findings) -> Vec<(Side, &'static str)> {
    let mut rules: Vec<_> = findings
        .lock()
        .unwrap()
        .iter()
        .map(|f| (f.side, f.rule))
        .collect();
    rules.dedup();
    rules
}

/// Everything that a host does and that is right, over a driver.
fn right_host(driver: &Driver) {
    let queue = driver.queue_create(0, 0).unwrap();
    let other = driver.queue_create(0, 0).unwrap();
    let event = driver.event_create(0, true).unwrap();
    let memory = driver.memory_alloc(0, 4096).unwrap();
    let pinned = driver.pinned().unwrap();
    let staging = pinned.alloc(64).unwrap();
    let vm = driver.virtual_memory().unwrap();
    let size = vm.granularity(0).unwrap();
    let range = vm.reserve(0, 4 * size, 0).unwrap();
    let physical: Vec<_> = (0..2).map(|_| vm.create(0, size).unwrap()).collect();
    let counter = Arc::new(AtomicU64::new(0));
    let count = |upstream: Result<(), Code>, counter: &AtomicU64| {
        counter.fetch_add(1, Ordering::Relaxed);
        upstream
    };
    assert!(event.query().unwrap());
    // SAFETY: all memory lives until the queues were synchronized.
    unsafe {
        vm.map(range, &physical).unwrap();
        for _ in 0..20 {
            queue.fill(memory, 4096, &[1, 2]).unwrap();
            queue
                .copy(range + size - 32, memory, 64, CopyKind::DeviceToDevice)
                .unwrap();
            let counter = Arc::clone(&counter);
            queue
                .host_call(move |upstream| count(upstream, &counter))
                .unwrap();
            event.record(&queue).unwrap();
            other.wait_event(&event).unwrap();
        }
        let counter = Arc::clone(&counter);
        other
            .host_call(move |upstream| count(upstream, &counter))
            .unwrap();
        other
            .copy(staging as u64, range + size, 64, CopyKind::DeviceToHost)
            .unwrap();
        let graphs = driver.native_graphs().unwrap();
        graphs.record_begin(&queue).unwrap();
        queue.fill(memory, 16, &[7]).unwrap();
        queue.host_call(|upstream| upstream).unwrap();
        assert_eq!(queue.query().unwrap_err().code(), Code::CAPTURE);
        let graph = graphs.record_end(&queue).unwrap();
        queue.launch_graph(&graph).unwrap();
        queue.launch_graph(&graph).unwrap();
        other.synchronize().unwrap();
        event.synchronize().unwrap();
        queue.host_call(|_| Err(Code::EXECUTION)).unwrap();
        queue.host_call(|upstream| upstream).unwrap();
        event.record(&queue).unwrap();
        assert_eq!(event.synchronize().unwrap_err().code(), Code::EXECUTION);
        assert_eq!(queue.synchronize().unwrap_err().code(), Code::EXECUTION);
        queue.synchronize().unwrap();
        queue.copy(0, 0, 0, CopyKind::DeviceToDevice).unwrap();
        assert!(driver.memory_alloc(0, 1 << 40).is_err());
        vm.unmap(range, 2 * size).unwrap();
        for physical in physical {
            vm.destroy(physical).unwrap();
        }
        vm.release(range, 4 * size).unwrap();
        pinned.free(staging).unwrap();
        driver.memory_free(memory).unwrap();
    }
    driver.device_time_ns(0).unwrap();
    assert_eq!(counter.load(Ordering::Relaxed), 21);
}

#[test]
fn nothing_is_found_where_both_sides_keep_the_rules() {
    let (driver, findings) = validated(host());
    right_host(&driver);
    drop(driver);
    assert_eq!(*findings.lock().unwrap(), []);
}

#[test]
fn many_host_calls_may_wait_behind_one() {
    let (driver, findings) = validated(host());
    let queue = driver.queue_create(0, 0).unwrap();
    let (open, gate) = mpsc::channel::<()>();
    queue
        .host_call(move |upstream| {
            let _ = gate.recv_timeout(Duration::from_secs(60));
            upstream
        })
        .unwrap();
    queue.flush().unwrap();
    // More than are kept after they ran.
    for _ in 0..5000 {
        queue.host_call(|upstream| upstream).unwrap();
    }
    open.send(()).unwrap();
    queue.synchronize().unwrap();
    drop((queue, driver));
    assert_eq!(*findings.lock().unwrap(), []);
}

#[test]
fn a_graph_uses_its_memory_when_it_is_launched() {
    let (driver, findings) = validated(host());
    let graphs = driver.native_graphs().unwrap();
    let (queue, other) = (
        driver.queue_create(0, 0).unwrap(),
        driver.queue_create(0, 0).unwrap(),
    );
    let event = driver.event_create(0, false).unwrap();
    let memory: Vec<u64> = (0..3)
        .map(|_| driver.memory_alloc(0, 4096).unwrap())
        .collect();
    // SAFETY: memory is freed when no work uses it, and what would be too early is refused.
    unsafe {
        graphs.record_begin(&queue).unwrap();
        queue.fill(memory[0], 4096, &[1]).unwrap();
        queue.fill(memory[1], 4096, &[1]).unwrap();
        // Commands of other queues meanwhile are no part of the graph.
        other.fill(memory[2], 4096, &[1]).unwrap();
        event.record(&other).unwrap();
        event.synchronize().unwrap();
        driver.memory_free(memory[2]).unwrap();
        let graph = graphs.record_end(&queue).unwrap();
        // Recorded work has not run.
        driver.memory_free(memory[1]).unwrap();
        graphs.record_begin(&queue).unwrap();
        queue.fill(memory[0], 4096, &[2]).unwrap();
        let rest = graphs.record_end(&queue).unwrap();
        drop(graph);
        assert_eq!(rules(&findings), []);
        let (open, gate) = mpsc::channel::<()>();
        let wait = move |upstream| {
            let _ = gate.recv_timeout(Duration::from_secs(60));
            upstream
        };
        other.host_call(wait).unwrap();
        other.launch_graph(&rest).unwrap();
        let refused = driver.memory_free(memory[0]).unwrap_err();
        assert_eq!(refused.code(), Code::BUSY, "{refused}");
        open.send(()).unwrap();
        other.synchronize().unwrap();
        driver.memory_free(memory[0]).unwrap();
    }
    drop((event, queue, other));
    assert_eq!(rules(&findings), [(Side::Host, "R12")]);
}

#[test]
fn work_of_every_kind_uses_its_memory() {
    let spec = "host?devices=1&memory=64M&graphs=native&operators=native";
    let (driver, findings) = validated(Driver::open(&spec.parse().unwrap()).unwrap());
    let (graphs, peer) = (driver.native_graphs().unwrap(), driver.peer().unwrap());
    let operators = driver.operators().unwrap();
    let queue = driver.queue_create(0, 0).unwrap();
    let (open, gate) = mpsc::channel::<()>();
    let wait = move |upstream| {
        let _ = gate.recv_timeout(Duration::from_secs(60));
        upstream
    };
    let memory: Vec<u64> = (0..8)
        .map(|_| driver.memory_alloc(0, 64).unwrap())
        .collect();
    let operand = |address: &u64| sys::otr_tensor {
        address: *address,
        dtype: DType::F32.0,
        rank: 1,
        sizes: [16].as_ptr(),
        strides: [1].as_ptr(),
    };
    let (inputs, output) = ([&memory[3], &memory[4]].map(operand), operand(&memory[5]));
    let alpha = sys::otr_scalar {
        dtype: DType::F64.0,
        reserved: 0,
        value: sys::otr_scalar__bindgen_ty_1 { f64_: 1.0 },
    };
    let call = sys::otr_operator_call {
        struct_size: size_of::<sys::otr_operator_call>(),
        next: std::ptr::null(),
        name: c"add".as_ptr(),
        inputs: inputs.as_ptr(),
        outputs: &output,
        scalars: &alpha,
        input_count: 2,
        output_count: 1,
        scalar_count: 1,
        flags: 0,
    };
    // SAFETY: memory is freed when no work uses it, and what would be too early is refused.
    unsafe {
        graphs.record_begin(&queue).unwrap();
        queue.fill(memory[0], 64, &[1]).unwrap();
        queue.fill(memory[1], 64, &[1]).unwrap();
        let graph = graphs.record_end(&queue).unwrap();
        graphs.record_begin(&queue).unwrap();
        queue.fill(memory[2], 64, &[1]).unwrap();
        let part = graphs.record_end(&queue).unwrap();
        graph.update_part(1, &part).unwrap();
        let (add, _) = operators.prepare(0, &call).unwrap().unwrap();
        queue.host_call(wait).unwrap();
        queue.launch_graph(&graph).unwrap();
        queue.launch_operator(&add, &call, 0).unwrap();
        peer.copy(&queue, (0, memory[6]), (0, memory[7]), 64)
            .unwrap();
        driver.memory_free(memory[1]).unwrap();
        assert_eq!(rules(&findings), [], "nothing uses what was replaced");
        let used: Vec<u64> = [0, 2, 3, 4, 5, 6, 7].map(|i| memory[i]).into();
        for &address in &used {
            let refused = driver.memory_free(address).unwrap_err();
            assert_eq!(refused.code(), Code::BUSY, "{refused}");
        }
        assert_eq!(findings.lock().unwrap().len(), used.len());
        open.send(()).unwrap();
        queue.synchronize().unwrap();
        for &address in &used {
            driver.memory_free(address).unwrap();
        }
    }
}

#[test]
fn misuse_by_the_host_is_named_and_refused() {
    let (driver, findings) = validated(host());
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 4096).unwrap();
    let mut found = Vec::new();
    let mut expect = |rule, code: Option<Code>, result: Result<(), outrigger_device::Error>| {
        if let Some(code) = code {
            let error = result.unwrap_err();
            assert_eq!(error.code(), code, "{error}");
            assert!(error.message().starts_with(rule), "{error}");
        }
        found.push((Side::Host, rule));
        assert_eq!(rules(&findings), found);
    };
    // SAFETY: all of this is refused before it can harm.
    unsafe {
        let invalid = Some(Code::INVALID_ARGUMENT);
        expect("R13", invalid, queue.fill(memory + 4000, 97, &[1]));
        let half = queue.copy(memory, memory + 32, 64, CopyKind::DeviceToDevice);
        expect("R26", invalid, half);
        // A gate keeps the fill from finishing.
        let (open, gate) = mpsc::channel::<()>();
        queue
            .host_call(move |upstream| {
                let _ = gate.recv_timeout(Duration::from_secs(60));
                upstream
            })
            .unwrap();
        queue.fill(memory, 4096, &[1]).unwrap();
        expect("R12", Some(Code::BUSY), driver.memory_free(memory));
        open.send(()).unwrap();
        queue.synchronize().unwrap();
        driver.memory_free(memory).unwrap();
    }
    // The host call outlives no driver: it is waited for below.
    let clone = driver.clone();
    let (tell, told) = mpsc::channel();
    queue
        .host_call(move |upstream| {
            let code = clone.memory_alloc(0, 64).unwrap_err().code();
            let _ = tell.send(code);
            upstream
        })
        .unwrap();
    queue.synchronize().unwrap();
    assert_eq!(told.recv().unwrap(), Code::WOULD_DEADLOCK);
    expect("R27", None, Ok(()));
    driver.memory_alloc(0, 128).unwrap();
    drop(queue);
    drop(driver);
    expect("R10", None, Ok(()));
    let leak = findings.lock().unwrap().last().unwrap().to_string();
    assert!(
        leak.starts_with("R10: host: memory") && leak.contains("128 bytes"),
        "{leak}"
    );
}

/// Makes the calls of a host that meets all of these mistakes. Answers are as wrong as the driver is: none is looked at.
fn provoke(driver: &Driver, wrong: Wrong) {
    let queue = driver.queue_create(0, 0).unwrap();
    let other = driver.queue_create(0, 0).unwrap();
    let event = driver.event_create(0, false).unwrap();
    let _ = event.query();
    let _ = driver.memory_alloc(0, 1 << 40);
    let memory: Vec<_> = (0..2)
        .filter_map(|_| driver.memory_alloc(0, 4096).ok())
        .collect();
    let _ = driver.virtual_memory().unwrap().granularity(0);
    for _ in 0..2 {
        let _ = driver.device_time_ns(0);
    }
    // SAFETY: nothing is moved.
    unsafe {
        let _ = queue.copy(0, 0, 0, CopyKind::DeviceToDevice);
        let _ = queue.fill(memory[0], 6, &[1, 2, 3]);
    }
    // Work that is held back until answers were asked for.
    let (open, gate) = mpsc::channel::<()>();
    let held = queue.host_call(move |upstream| {
        let _ = gate.recv_timeout(Duration::from_secs(60));
        upstream
    });
    held.unwrap();
    event.record(&queue).unwrap();
    other.wait_event(&event).unwrap();
    let (tell, told) = mpsc::channel::<()>();
    other
        .host_call(move |upstream| {
            let _ = tell.send(());
            upstream
        })
        .unwrap();
    other.flush().unwrap();
    let _ = queue.query();
    let _ = event.query();
    if wrong == Wrong::IgnoredWait {
        told.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    open.send(()).unwrap();
    let _ = queue.synchronize();
    let _ = other.synchronize();
    // A failure, and what comes after it.
    let _ = queue.host_call(|_| Err(Code::EXECUTION));
    let _ = queue.host_call(|upstream| upstream);
    let _ = event.record(&queue);
    while event.query().is_ok_and(|done| !done) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = queue.synchronize();
    let graphs = driver.native_graphs().unwrap();
    graphs.record_begin(&queue).unwrap();
    let _ = queue.query();
    let _ = graphs.record_end(&queue);
    // SAFETY: all work has finished.
    unsafe {
        for address in memory {
            let _ = driver.memory_free(address);
        }
    }
}

#[test]
fn what_a_wrong_driver_breaks_is_named() {
    for (wrong, rule) in [
        (Wrong::OutputOnFailure, "R4"),
        (Wrong::OutcomeOnFailure, "R4"),
        (Wrong::UnreadyAnswer, "R19"),
        (Wrong::NoText, "R5"),
        (Wrong::Overlap, "R13"),
        (Wrong::Misaligned, "R14"),
        (Wrong::TooFar, "R1"),
        (Wrong::EarlyQuery, "R19"),
        (Wrong::EarlyEvent, "R21"),
        (Wrong::LostFailure, "R20"),
        (Wrong::OtherFailure, "R20"),
        (Wrong::EventWithoutFailure, "R23"),
        (Wrong::UnrecordedEvent, "R22"),
        (Wrong::TwoCalls, "R27"),
        (Wrong::FalseUpstream, "R20"),
        (Wrong::ReorderedCalls, "R16"),
        (Wrong::IgnoredWait, "R24"),
        (Wrong::ZeroCopy, "R25"),
        (Wrong::OddFill, "R28"),
        (Wrong::RecordingAnswers, "R33"),
        (Wrong::Granularity, "R37"),
        (Wrong::Backwards, "timing"),
    ] {
        let layer = WrongDriver::new(wrong);
        let armed = Arc::clone(&layer.armed);
        let below = layered(host(), layer).unwrap();
        // Not before: nobody else bears what is written behind a struct.
        armed.store(true, Ordering::Relaxed);
        let (driver, findings) = validated(below);
        provoke(&driver, wrong);
        let found = rules(&findings);
        assert!(
            found.contains(&(Side::Driver, rule)),
            "{wrong:?} should break {rule}, found {found:?}"
        );
    }
}

/// Keeps a query of an event from returning until it is told to go on.
struct HeldQuery {
    began: Mutex<mpsc::Sender<()>>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Layer for HeldQuery {
    unsafe fn event_query(
        &self,
        _: &Next,
        _: *mut sys::otr_drv_event,
        outcome: *mut sys::otr_outcome,
    ) -> i32 {
        self.began.lock().unwrap().send(()).unwrap();
        let _ = self
            .go_on
            .lock()
            .unwrap()
            .recv_timeout(Duration::from_secs(60));
        // SAFETY: the place of the call.
        unsafe { (*outcome).code = 0 };
        0
    }
}

#[test]
fn destroying_what_another_thread_uses_is_named_and_refused() {
    let ((began, has_begun), (go_on, gate)) = (mpsc::channel(), mpsc::channel());
    let layer = HeldQuery {
        began: Mutex::new(began),
        go_on: Mutex::new(gate),
    };
    let (driver, findings) = validated(layered(host(), layer).unwrap());
    let (api, handle) = driver.raw();
    let (query, destroy) = (api.event_query.unwrap(), api.event_destroy.unwrap());
    // SAFETY: the handle of the driver.
    let opened = unsafe { api.device_open.unwrap()(handle, 0, std::ptr::null()) };
    assert_eq!(opened, 0);
    let create = || {
        let mut event = std::ptr::null_mut();
        // SAFETY: the handle of the driver, and a place for the event.
        let code = unsafe { api.event_create.unwrap()(handle, 0, std::ptr::null(), &mut event) };
        assert_eq!(code, 0);
        event
    };
    let (used, other) = (create(), create());
    let address = used.expose_provenance();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let event = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: alive until this thread has ended, since its destruction is refused.
            assert_eq!(unsafe { query(event, &mut { NO_OUTCOME }) }, 0);
        });
        has_begun.recv().unwrap();
        // SAFETY: `other` is used by nobody; `used` is, which the layer refuses.
        let codes = unsafe { [destroy(other), destroy(used)] };
        go_on.send(()).unwrap();
        assert_eq!(codes, [0, Code::BUSY.0]);
    });
    // SAFETY: nobody uses it any more.
    assert_eq!(unsafe { destroy(used) }, 0);
    let found = findings
        .lock()
        .unwrap()
        .iter()
        .map(Finding::to_string)
        .collect::<Vec<_>>();
    assert_eq!(
        found,
        ["R8: host: event_destroy of an object that a call of event_query uses on another thread"]
    );
}

/// Calls host calls at once, on the thread that submits them.
struct CallsAtOnce;

impl Layer for CallsAtOnce {
    unsafe fn host_call(
        &self,
        _: &Next,
        _: *mut sys::otr_queue,
        call: *const sys::otr_host_call,
    ) -> i32 {
        // SAFETY: the host's function with its data, called once; a struct that is valid during the call.
        unsafe { (*call).function.unwrap()((*call).user, 0) };
        0
    }
}

#[test]
fn a_submission_that_waits_for_a_host_call_is_named() {
    let (driver, findings) = validated(layered(host(), CallsAtOnce).unwrap());
    let queue = driver.queue_create(0, 0).unwrap();
    queue.host_call(|upstream| upstream).unwrap();
    assert_eq!(rules(&findings), [(Side::Driver, "R17")]);
}
