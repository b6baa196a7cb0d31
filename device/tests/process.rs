//! What needs a process of its own: faults of a host access to discrete memory and to what is not
//! mapped, calls in a forked child, and devices without privileges. Each test starts this program again for its own dangerous part.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use common::open;
use outrigger_device::{Code, CopyKind, forked};

const PART: &str = "OTR_TEST_PART";

/// Whether this process was started by `alone` for this part.
fn is(part: &str) -> bool {
    std::env::var(PART).is_ok_and(|value| value == part)
}

/// Runs the test of this name again, in a process of its own, where `is(part)` holds. A sanitizer, where
/// there is one, leaves the signal of a fault alone.
fn alone(test: &str, part: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1"])
        .env(PART, part)
        .env("ASAN_OPTIONS", "handle_segv=0 detect_leaks=0")
        .env("TSAN_OPTIONS", "handle_segv=0")
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
fn a_touch_of_what_is_not_mapped_faults() {
    let test = "a_touch_of_what_is_not_mapped_faults";
    if !is("unmapped") {
        assert_eq!(alone(test, "unmapped").signal(), Some(libc::SIGSEGV));
        return;
    }
    let driver = open("host?devices=1&memory=8M&face=unified&virtual_memory=on");
    let memory = driver.virtual_memory().unwrap();
    let granule = memory.granularity(0).unwrap();
    let object = memory.create(0, granule).unwrap();
    let range = memory.reserve(0, granule, 0).unwrap();
    // SAFETY: a live object; what is mapped on the unified face is memory of the host. After the unmap
    // this process is here to die.
    unsafe {
        memory.map(range, &[object]).unwrap();
        (range as *mut u8).write_volatile(1);
        if (range as *mut u8).read_volatile() != 1 {
            std::process::exit(7);
        }
        memory.unmap(range, granule).unwrap();
        (range as *mut u8).write_volatile(1);
    }
}

/// Gives up the right to mount, on this thread and for good.
fn drop_privileges() {
    #[repr(C)]
    struct Header(u32, i32);
    // Version 3 of the call, this thread; then no capability of any of the three sets, in two words.
    let (header, none) = (Header(0x2008_0522, 0), [[0u32; 3]; 2]);
    // SAFETY: both point to what this version of the call reads.
    let code = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const none) };
    assert_eq!(code, 0);
}

#[test]
fn a_process_without_privileges_has_virtual_memory_where_it_asks_for_it() {
    let test = "a_process_without_privileges_has_virtual_memory_where_it_asks_for_it";
    if !is("unprivileged") {
        assert_eq!(alone(test, "unprivileged").code(), Some(7));
        return;
    }
    drop_privileges();
    let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .is_ok_and(|setting| !setting.contains("[never]") && !setting.contains("[deny]"));
    let auto = open("host?devices=1&memory=8M&face=unified");
    assert_eq!(auto.virtual_memory().is_some(), huge);
    // Allocations are memory of the process alone then, and nobody else's.
    let address = auto.memory_alloc(0, 4096).unwrap();
    let exported = auto.ipc().unwrap().memory_export(address);
    assert_eq!(exported.is_ok(), huge, "{exported:?}");
    if let Err(error) = exported {
        assert_eq!(error.code(), Code::UNSUPPORTED);
        assert!(error.message().contains("face=discrete"), "{error}");
    }
    for face in ["unified", "discrete"] {
        let driver = open(&format!(
            "host?devices=1&memory=8M&face={face}&virtual_memory=on"
        ));
        let (memory, queue) = (
            driver.virtual_memory().unwrap(),
            driver.queue_create(0, 0).unwrap(),
        );
        let granule = memory.granularity(0).unwrap();
        let object = memory.create(0, granule).unwrap();
        let range = memory.reserve(0, 2 * granule, 0).unwrap();
        let mut back = [0u8; 8];
        // SAFETY: a live object, unmapped after the work there; `back` outlives its copy.
        unsafe {
            memory.map(range, &[object, object]).unwrap();
            queue.fill(range, granule, &[5]).unwrap();
            let (to, from) = (back.as_mut_ptr() as u64, range + 2 * granule - 8);
            queue.copy(to, from, 8, CopyKind::DeviceToHost).unwrap();
            queue.synchronize().unwrap();
            memory.unmap(range, 2 * granule).unwrap();
            driver.ipc().unwrap().physical_export(object).unwrap();
            memory.destroy(object).unwrap();
        }
        memory.release(range, 2 * granule).unwrap();
        assert_eq!(back, [5; 8]);
    }
    std::process::exit(7);
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
