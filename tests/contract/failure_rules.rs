//! R20, R23, R24 and R27: what a failed command does to its queue, to events, and to whoever waits.

use outrigger_device::{Code, Queue};
use outrigger_tests::Gate;

use crate::support::{Log, Memory, Target, block, event, fail, fill, note, queue, read, until};

crate::cases! {
    Nothing:
        r20_a_failure_skips_all_but_host_calls,
        r20_the_first_failure_is_reported_and_cleared,
        r20_a_query_reports_and_does_not_clear,
        r20_a_failed_queue_still_waits_before_its_host_calls,
        r23_an_event_keeps_its_failure,
        r23_an_event_before_the_failure_is_sound,
        r24_a_failed_event_fails_those_who_wait,
        r24_a_failure_goes_on_through_a_chain_of_queues,
        r27_the_outcome_of_a_host_call_is_its_code,
        r27_not_ready_is_no_outcome,
        r27_a_failed_host_call_is_called_once;
}

fn code_of(result: outrigger_device::Result<()>) -> Code {
    result.map_or_else(|error| error.code(), |()| Code::OK)
}

/// Notes the code that it is called with.
fn note_upstream(queue: &Queue, log: &Log) {
    let log = log.clone();
    queue
        .host_call(move |upstream| {
            log.push(upstream.map_or_else(|code| code.0 as u64, |()| 0));
            upstream
        })
        .unwrap();
}

fn r20_a_failure_skips_all_but_host_calls(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 64);
    let log = Log::default();
    fill(&queue, memory.address, 64, &[1]);
    note_upstream(&queue, &log);
    fail(&queue, Code::EXECUTION);
    fill(&queue, memory.address, 64, &[2]);
    note_upstream(&queue, &log);
    note_upstream(&queue, &log);
    assert_eq!(code_of(queue.synchronize()), Code::EXECUTION);
    assert_eq!(
        log.values(),
        [0, Code::EXECUTION.0 as u64, Code::EXECUTION.0 as u64]
    );
    assert_eq!(
        read(&queue, memory.address, 64),
        [1; 64],
        "the fill behind the failure was not executed"
    );
    note_upstream(&queue, &log);
    queue.synchronize().unwrap();
    assert_eq!(log.values().last(), Some(&0), "the queue takes work again");
}

fn r20_the_first_failure_is_reported_and_cleared(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    fail(&queue, Code::OUT_OF_RANGE);
    queue
        .host_call(|upstream| upstream.map_err(|_| Code::INTERNAL))
        .unwrap();
    fail(&queue, Code::EXECUTION);
    let error = queue.synchronize().unwrap_err();
    assert_eq!(error.code(), Code::OUT_OF_RANGE);
    assert!(!error.message().is_empty(), "R5: a failure has a text");
    queue.synchronize().unwrap();
    assert!(queue.query().unwrap());
}

fn r20_a_query_reports_and_does_not_clear(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    fail(&queue, Code::EXECUTION);
    queue.flush().unwrap();
    let mut answer = queue.query();
    until(|| {
        answer = queue.query();
        !matches!(answer, Ok(false))
    });
    assert_eq!(answer.unwrap_err().code(), Code::EXECUTION);
    assert_eq!(queue.query().unwrap_err().code(), Code::EXECUTION);
    assert_eq!(code_of(queue.synchronize()), Code::EXECUTION);
    assert!(queue.query().unwrap());
}

/// A host call that cleans up may free what the work before the event uses.
fn r20_a_failed_queue_still_waits_before_its_host_calls(target: &Target) {
    let driver = target.open();
    let (first, second) = (queue(&driver), queue(&driver));
    let (gate, log, event) = (Gate::new(), Log::default(), event(&driver));
    block(&first, &gate);
    note(&first, &log, 1);
    event.record(&first).unwrap();
    fail(&second, Code::EXECUTION);
    second.wait_event(&event).unwrap();
    note(&second, &log, 2);
    second.flush().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(5));
    gate.open();
    assert_eq!(code_of(second.synchronize()), Code::EXECUTION);
    assert_eq!(log.values(), [1, 2]);
}

fn r23_an_event_keeps_its_failure(target: &Target) {
    let driver = target.open();
    let (queue, event) = (queue(&driver), event(&driver));
    fail(&queue, Code::OUT_OF_RANGE);
    event.record(&queue).unwrap();
    assert_eq!(code_of(event.synchronize()), Code::OUT_OF_RANGE);
    assert_eq!(code_of(queue.synchronize()), Code::OUT_OF_RANGE);
    // The queue is sound again; the event remembers, until it is recorded again.
    for _ in 0..2 {
        assert_eq!(event.query().unwrap_err().code(), Code::OUT_OF_RANGE);
        assert_eq!(code_of(event.synchronize()), Code::OUT_OF_RANGE);
    }
    note(&queue, &Log::default(), 0);
    event.record(&queue).unwrap();
    event.synchronize().unwrap();
    assert!(event.query().unwrap());
}

fn r23_an_event_before_the_failure_is_sound(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let (before, behind, cleared) = (event(&driver), event(&driver), event(&driver));
    note(&queue, &Log::default(), 0);
    before.record(&queue).unwrap();
    fail(&queue, Code::EXECUTION);
    behind.record(&queue).unwrap();
    assert_eq!(code_of(behind.synchronize()), Code::EXECUTION);
    assert!(before.query().unwrap());
    assert_eq!(code_of(queue.synchronize()), Code::EXECUTION);
    cleared.record(&queue).unwrap();
    cleared.synchronize().unwrap();
}

fn r24_a_failed_event_fails_those_who_wait(target: &Target) {
    let driver = target.open();
    let (first, second) = (queue(&driver), queue(&driver));
    let memory = Memory::new(&driver, 0, 64);
    fill(&second, memory.address, 64, &[1]);
    let event = event(&driver);
    fail(&first, Code::OUT_OF_RANGE);
    event.record(&first).unwrap();
    second.wait_event(&event).unwrap();
    fill(&second, memory.address, 64, &[2]);
    assert_eq!(code_of(second.synchronize()), Code::OUT_OF_RANGE);
    assert_eq!(read(&second, memory.address, 64), [1; 64]);
    // Also when the failure is old and the first queue was cleared.
    assert_eq!(code_of(first.synchronize()), Code::OUT_OF_RANGE);
    second.wait_event(&event).unwrap();
    assert_eq!(code_of(second.synchronize()), Code::OUT_OF_RANGE);
    second.synchronize().unwrap();
}

fn r24_a_failure_goes_on_through_a_chain_of_queues(target: &Target) {
    let driver = target.open();
    let queues: Vec<_> = (0..20).map(|_| queue(&driver)).collect();
    let events: Vec<_> = (0..20).map(|_| event(&driver)).collect();
    let gate = Gate::new();
    block(&queues[0], &gate);
    fail(&queues[0], Code::OUT_OF_RANGE);
    for i in 0..20 {
        if i > 0 {
            queues[i].wait_event(&events[i - 1]).unwrap();
        }
        events[i].record(&queues[i]).unwrap();
    }
    gate.open();
    assert_eq!(code_of(events[19].synchronize()), Code::OUT_OF_RANGE);
    for queue in &queues {
        assert_eq!(code_of(queue.synchronize()), Code::OUT_OF_RANGE);
    }
}

fn r27_the_outcome_of_a_host_call_is_its_code(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    // Also a code of which this version knows nothing.
    for code in [
        Code::EXECUTION,
        Code::OUT_OF_MEMORY,
        Code::DEVICE_LOST,
        Code(1234),
        Code(-7),
    ] {
        fail(&queue, code);
        assert_eq!(code_of(queue.synchronize()), code);
    }
}

/// Below the wrappers, which do not let such a code through: a query could not tell it from "wait".
fn r27_not_ready_is_no_outcome(target: &Target) {
    unsafe extern "C" fn not_ready(_: *mut std::ffi::c_void, _: i32) -> i32 {
        Code::NOT_READY.0
    }
    let driver = target.open();
    let queue = queue(&driver);
    // SAFETY: the function takes nothing and does not unwind.
    unsafe { queue.host_call_raw(not_ready, std::ptr::null_mut()) }.unwrap();
    let code = code_of(queue.synchronize());
    assert!(code != Code::OK && code != Code::NOT_READY, "{code:?}");
}

fn r27_a_failed_host_call_is_called_once(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let log = Log::default();
    fail(&queue, Code::EXECUTION);
    for i in 0..50 {
        let log = log.clone();
        queue
            .host_call(move |_| {
                log.push(i);
                Err(Code::INTERNAL)
            })
            .unwrap();
    }
    assert_eq!(code_of(queue.synchronize()), Code::EXECUTION);
    assert_eq!(log.values(), (0..50).collect::<Vec<_>>());
}
