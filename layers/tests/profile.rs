//! A profile over a driver without timestamps: the host measures.

use outrigger_device::profile::{self, Clock, Stream};
use outrigger_device::{Code, Driver};
use outrigger_layers::{Layer, layered};

struct NoClock;

impl Layer for NoClock {
    fn offers(&self, what: &str, below: bool) -> bool {
        below && what != "timing"
    }
}

#[test]
fn a_driver_without_timestamps_is_timed_by_the_host() {
    let host = Driver::open(&"host?devices=1&memory=4M".parse().unwrap()).unwrap();
    let driver = layered(host, NoClock).unwrap();
    let mut queue = driver.queue_create(0, 0).unwrap();
    queue.profile_as(Stream { device: 0, id: 3 });
    let memory = driver.memory_alloc(0, 1 << 20).unwrap();
    profile::start().unwrap();
    for value in 0..3 {
        // SAFETY: the range is live until the queue has been synchronized.
        unsafe { queue.fill(memory, 1 << 20, &[value]).unwrap() };
    }
    queue.host_call(|_| Err(Code::EXECUTION)).unwrap();
    assert_eq!(queue.synchronize().unwrap_err().code(), Code::EXECUTION);
    let works = profile::stop().unwrap();
    // SAFETY: all work has finished.
    unsafe { driver.memory_free(memory).unwrap() };

    assert_eq!(works.len(), 4);
    let mut last = 0;
    for fill in &works[..3] {
        assert_eq!((fill.clock, fill.outcome), (Clock::Host, Code::OK));
        let (from, to) = fill.ran.expect("it has run");
        assert!(from >= last.max(fill.submitted.0) && to > from, "{works:?}");
        last = to;
    }
    let failed = &works[3];
    assert_eq!((failed.outcome, failed.ran), (Code::EXECUTION, None));
}
