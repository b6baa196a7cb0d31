//! What needs a process of its own: the fault of a host access to discrete memory, and calls in a
//! forked child. Each test starts this program again for its own dangerous part.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use common::open;
use outrigger_device::{Code, forked};

const PART: &str = "OTR_TEST_PART";

/// Whether this process was started by `alone` for this part.
fn is(part: &str) -> bool {
    std::env::var(PART).is_ok_and(|value| value == part)
}

/// Runs the test of this name again, in a process of its own, where `is(part)` holds.
fn alone(test: &str, part: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1"])
        .env(PART, part)
        .output()
        .unwrap()
        .status
}

#[test]
fn a_host_access_to_discrete_memory_faults() {
    for face in ["unified", "discrete"] {
        if is(face) {
            let driver = open(&format!("host?devices=1&memory=1M&face={face}"));
            let address = driver.memory_alloc(0, 64).unwrap();
            // SAFETY: valid on the unified face; on the discrete one this process is here to die.
            unsafe { (address as *mut u8).write_volatile(1) };
            std::process::exit(7);
        }
    }
    let test = "a_host_access_to_discrete_memory_faults";
    assert_eq!(alone(test, "unified").code(), Some(7));
    assert_eq!(alone(test, "discrete").signal(), Some(libc::SIGSEGV));
}

#[test]
fn a_forked_child_is_told_so_and_the_parent_goes_on() {
    let test = "a_forked_child_is_told_so_and_the_parent_goes_on";
    if !is("fork") {
        assert_eq!(alone(test, "fork").code(), Some(7));
        return;
    }
    let driver = open("host?devices=1&memory=1M");
    let queue = driver.queue_create(0, 0).unwrap();
    let event = driver.event_create(0, false).unwrap();
    assert!(!forked());
    // SAFETY: the child does what is tested here and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A child that panics would leave with success: only its one thread would end.
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let codes = [
                queue.synchronize().unwrap_err(),
                queue.host_call(|upstream| upstream).unwrap_err(),
                event.record(&queue).unwrap_err(),
                event.query().unwrap_err(),
                driver.memory_alloc(0, 64).unwrap_err(),
                driver.queue_create(0, 0).unwrap_err(),
            ];
            assert!(forked() && codes.iter().all(|error| error.code() == Code::FORKED));
            assert!(codes[0].message().contains("spawn"));
            let (drivers, report) = outrigger_device::load("host", &[]);
            assert!(drivers.is_empty() && report.to_string().contains("fork"));
            // Dropping must not wait for threads that are not in this process.
            drop((queue, event, driver));
        }))
        .is_ok();
        // SAFETY: ends the child without the handlers of the parent.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child was not told");
    queue.synchronize().unwrap();
    std::process::exit(7);
}
