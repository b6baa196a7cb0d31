//! Profiles of queues, on the driver `host`. There is one profile per process, so the tests take turns.

mod common;

use std::sync::{Mutex, MutexGuard};
use std::thread;

use common::{Gate, block, launch, log, logger, open, within_limit};
use outrigger_device::profile::{self, Clock, Stream, Work, WorkKind};
use outrigger_device::{Code, CopyKind, Driver, Queue};

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn stream(driver: &Driver, device: u32, id: u64) -> Queue {
    let mut queue = driver.queue_create(device, 0).unwrap();
    queue.profile_as(Stream { device, id });
    queue
}

fn names(works: &[Work]) -> Vec<&str> {
    works.iter().map(|work| work.name.as_ref()).collect()
}

#[test]
fn every_kind_of_work_is_told_with_times_in_the_order_of_the_queue() {
    within_limit(|| {
        let _turn = turn();
        for face in ["unified", "discrete"] {
            let driver = open(&format!("host?devices=1&memory=4M&face={face}"));
            let (queue, memory) = (stream(&driver, 0, 7), driver.memory_alloc(0, 4096).unwrap());
            let (log, kernel) = (log(), logger(&driver, 0));
            let mut host = [0u8; 4096];
            let at = host.as_mut_ptr() as u64;
            profile::start().unwrap();
            assert_eq!(profile::correlate(5), 0);
            // SAFETY: all ranges are live until the queue has been synchronized.
            unsafe {
                queue.fill(memory, 4096, &[1]).unwrap();
                launch(&queue, &kernel, log, 1, Code::OK);
                queue
                    .copy(at, memory, 4096, CopyKind::DeviceToHost)
                    .unwrap();
                queue.copy(memory, at, 64, CopyKind::HostToDevice).unwrap();
            }
            assert_eq!(profile::correlate(0), 5);
            queue.host_call(|upstream| upstream).unwrap();
            queue.synchronize().unwrap();
            let works = profile::stop().unwrap();
            // Nothing is noted any more.
            queue.host_call(|upstream| upstream).unwrap();
            queue.synchronize().unwrap();
            // SAFETY: all work has finished.
            unsafe { driver.memory_free(memory).unwrap() };

            let kinds: Vec<_> = works.iter().map(|work| work.kind).collect();
            use WorkKind::{Copy, Fill, HostCall, Kernel};
            assert_eq!(kinds, [Fill, Kernel, Copy, Copy, HostCall]);
            let bytes: Vec<_> = works.iter().map(|work| work.bytes).collect();
            assert_eq!(bytes, [4096, 0, 4096, 64, 0]);
            let correlations: Vec<_> = works.iter().map(|work| work.correlation).collect();
            assert_eq!(correlations, [5, 5, 5, 5, 0]);
            let mut last = 0;
            for work in &works {
                assert_eq!((work.stream.device, work.stream.id), (0, 7));
                assert_eq!((work.outcome, work.clock), (Code::OK, Clock::Device));
                assert!(work.submitted.0 <= work.submitted.1, "{work:?}");
                let (from, to) = work.ran.expect("it has run");
                assert!(
                    from >= last.max(work.submitted.0) && to >= from,
                    "{works:?}"
                );
                last = to;
            }
        }
    });
}

#[test]
fn what_has_not_finished_or_has_failed_has_no_times() {
    within_limit(|| {
        let _turn = turn();
        let driver = open("host?devices=1&memory=4M");
        let (held, failing) = (stream(&driver, 0, 1), stream(&driver, 0, 2));
        let gate = Gate::new();
        profile::start().unwrap();
        block(&held, gate);
        failing.host_call(|upstream| upstream).unwrap();
        failing.host_call(|_| Err(Code::EXECUTION)).unwrap();
        failing.host_call(|upstream| upstream).unwrap();
        assert_eq!(failing.synchronize().unwrap_err().code(), Code::EXECUTION);
        failing.host_call(|upstream| upstream).unwrap();
        failing.synchronize().unwrap();
        // Does not wait for the queue that is held.
        let works = profile::stop().unwrap();
        gate.open();
        held.synchronize().unwrap();

        let of = |id| {
            let all = works.iter().filter(move |work| work.stream.id == id);
            all.map(|work| (work.outcome, work.ran.is_some()))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(1), [(Code::NOT_READY, false)]);
        let failed = (Code::EXECUTION, false);
        assert_eq!(of(2), [(Code::OK, true), failed, failed, (Code::OK, true)]);
    });
}

#[test]
fn threads_and_profiles_that_come_and_go_lose_nothing_of_their_own() {
    within_limit(|| {
        let _turn = turn();
        let driver = open("host?devices=2&memory=4M");
        let queues: Vec<_> = (0..4)
            .map(|id| stream(&driver, id % 2, u64::from(id)))
            .collect();
        for round in 0..20 {
            profile::start().unwrap();
            thread::scope(|scope| {
                // Two threads share each queue.
                for thread in 0..8u64 {
                    let queue = &queues[(thread % 4) as usize];
                    scope.spawn(move || {
                        profile::correlate(thread + 1);
                        for _ in 0..100 {
                            queue.host_call(|upstream| upstream).unwrap();
                        }
                    });
                }
            });
            for queue in &queues {
                queue.synchronize().unwrap();
            }
            let works = profile::stop().unwrap();
            assert_eq!(works.len(), 800, "round {round}");
            for thread in 0..8u64 {
                let own = works.iter().filter(|work| work.correlation == thread + 1);
                assert_eq!(own.clone().count(), 100);
                assert!(own.clone().all(|work| work.stream.id == thread % 4));
            }
            for id in 0..4 {
                let mut spans: Vec<_> = works
                    .iter()
                    .filter(|work| work.stream.id == id)
                    .map(|work| work.ran.expect("it has run"))
                    .collect();
                spans.sort_unstable();
                assert!(
                    spans.is_sorted_by(|a, b| a.1 <= b.0),
                    "work of a queue overlaps"
                );
            }
        }
    });
}

#[test]
fn a_profile_has_a_begin_and_an_end() {
    within_limit(|| {
        let _turn = turn();
        assert_eq!(profile::stop().unwrap_err().code(), Code::INVALID_ARGUMENT);
        profile::start().unwrap();
        assert_eq!(profile::start().unwrap_err().code(), Code::BUSY);
        assert!(profile::stop().unwrap().is_empty());
    });
}

#[test]
fn a_queue_that_is_destroyed_leaves_its_work_in_the_profile() {
    within_limit(|| {
        let _turn = turn();
        let driver = open("host?devices=1&memory=4M");
        profile::start().unwrap();
        let queue = stream(&driver, 0, 1);
        queue
            .host_call_named(c"of a queue that is gone", |upstream| upstream)
            .unwrap();
        queue.synchronize().unwrap();
        drop(queue);
        // The queue of the runtime itself is not shown.
        let own = driver.queue_create(0, 0).unwrap();
        own.host_call(|upstream| upstream).unwrap();
        own.synchronize().unwrap();
        drop((own, driver));
        assert_eq!(
            names(&profile::stop().unwrap()),
            ["of a queue that is gone"]
        );
    });
}
