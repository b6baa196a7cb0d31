//! Loading broken drivers: each is refused with a text that says what is wrong and what would be right,
//! and the process stays usable. The tests check the text that a person reads.

use std::path::{Path, PathBuf};

use libloading::Library;
use outrigger_device::{Code, CopyKind, Driver, Error, Outcome, load};
use outrigger_tests::{broken_driver, broken_drivers, c_driver, within_limit};

/// The refusal of the last candidate, and the whole report as people see it.
fn refusal(specs: &str, search_path: &[PathBuf]) -> (Code, String, String) {
    let (drivers, report) = load(specs, search_path);
    assert!(drivers.is_empty(), "taken: {report}");
    match &report
        .candidates
        .last()
        .expect("no silently empty list")
        .outcome
    {
        Outcome::Refused { code, reason } => (*code, reason.clone(), report.to_string()),
        Outcome::Taken { .. } => panic!("taken: {report}"),
    }
}

/// Checks that a defect is refused with a code and a text that contains each of `words`, and that the
/// process can still use a sound driver.
fn refused(defect: &str, code: Code, words: &[&str]) {
    let path = broken_driver(defect);
    let (found, reason, report) = refusal(&path.display().to_string(), &[]);
    assert_eq!(found, code, "{reason}");
    for word in words {
        assert!(reason.contains(word), "`{word}` is missing in: {reason}");
    }
    assert!(
        report.contains(defect) && report.contains(&reason),
        "the report names the file: {report}"
    );
    use_driver(&Driver::open(&c_driver().display().to_string().parse().unwrap()).unwrap()).unwrap();
}

/// One use of every mandatory entry; gives up at the first error.
fn use_driver(driver: &Driver) -> Result<(), Error> {
    driver.properties(0)?;
    let address = driver.memory_alloc(0, 256)?;
    let result = use_queue(driver, address);
    // SAFETY: the queue has been synchronized, or nothing was submitted to it.
    let freed = unsafe { driver.memory_free(address) };
    result.and(freed)
}

fn use_queue(driver: &Driver, address: u64) -> Result<(), Error> {
    let queue = driver.queue_create(0, 0)?;
    let event = driver.event_create(0, false)?;
    let mut back = [0u8; 4];
    let mut work = || -> Result<(), Error> {
        // SAFETY: both ends outlive the wait below.
        unsafe {
            queue.fill(address, 256, &[1, 2, 3, 4])?;
            queue.copy(back.as_mut_ptr() as u64, address, 4, CopyKind::DeviceToHost)?;
        }
        queue.host_call(|upstream| upstream)?;
        event.record(&queue)?;
        queue.wait_event(&event)?;
        queue.query()?;
        event.query()?;
        event.synchronize()
    };
    let result = work();
    // Also after a failed submission: what was submitted before it may still run.
    let end = queue.synchronize();
    if end.is_err() {
        queue.synchronize()?;
    }
    result.and(end)?;
    assert_eq!(back, [1, 2, 3, 4]);
    Ok(())
}

#[test]
fn a_wrong_path_is_named() {
    let (code, reason, report) = refusal("/no/such/driver.so", &[]);
    assert_eq!(code, Code::NOT_FOUND);
    assert!(
        reason.contains("no such file") && report.contains("/no/such/driver.so"),
        "{report}"
    );
    let (_, reason, _) = refusal(&format!("{}/", broken_drivers().display()), &[]);
    assert!(reason.contains("directory"), "{reason}");
}

#[test]
fn a_name_that_is_nowhere_lists_where_it_was_looked_for() {
    let (code, _, report) = refusal("nowhere", &["/one/folder".into(), "/another".into()]);
    assert_eq!(code, Code::NOT_FOUND);
    for text in [
        "/one/folder/liboutrigger_nowhere.so",
        "/another/liboutrigger_nowhere.so",
        "OUTRIGGER_DRIVER_PATH",
        "host",
    ] {
        assert!(report.contains(text), "`{text}` is missing in: {report}");
    }
}

#[test]
fn a_name_is_found_on_the_search_path() {
    let folder = c_driver().parent().unwrap().to_owned();
    let (drivers, report) = load("example?devices=3", &["/none".into(), folder]);
    assert_eq!(drivers.len(), 1, "{report}");
    assert_eq!(
        (drivers[0].name(), drivers[0].device_count()),
        ("example", 3)
    );
    assert!(
        report.to_string().contains("3 devices, contract 1.0"),
        "{report}"
    );
}

/// A file that starts like an ELF library of another machine.
fn elf(name: &str, class: u8, machine: u16, length: usize) -> PathBuf {
    let mut bytes = [0u8; 64];
    bytes[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1, 0]);
    bytes[16..18].copy_from_slice(&3u16.to_le_bytes());
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, &bytes[..length]).unwrap();
    path
}

#[test]
fn another_architecture_is_named_with_ours() {
    let (other, number) = if cfg!(target_arch = "aarch64") {
        ("x86-64", 62)
    } else {
        ("AArch64", 183)
    };
    let (code, reason, _) = refusal(&elf("foreign.so", 2, number, 64).display().to_string(), &[]);
    assert_eq!(code, Code::LOAD);
    let ours = if cfg!(target_arch = "aarch64") {
        "AArch64"
    } else {
        "x86-64"
    };
    assert!(
        reason.contains(&format!("built for {other}")) && reason.contains(ours),
        "{reason}"
    );
    let (_, reason, _) = refusal(&elf("narrow.so", 1, 3, 64).display().to_string(), &[]);
    assert!(reason.contains("32 bit"), "{reason}");
}

#[test]
fn a_file_that_is_no_library_is_named() {
    let (_, reason, _) = refusal(&elf("cut.so", 2, 62, 10).display().to_string(), &[]);
    assert!(reason.contains("cut off"), "{reason}");
    let text = Path::new(env!("CARGO_TARGET_TMPDIR")).join("text.so");
    std::fs::write(&text, "#!/bin/sh\n").unwrap();
    let (_, reason, _) = refusal(&text.display().to_string(), &[]);
    assert!(reason.contains("not an ELF file"), "{reason}");
    std::fs::write(&text, "").unwrap();
    assert!(
        refusal(&text.display().to_string(), &[])
            .1
            .contains("empty")
    );
}

#[test]
fn a_library_without_the_symbol_is_named() {
    refused(
        "no_symbol",
        Code::LOAD,
        &["`otr_driver_get_api`", "OTR_DRIVER_EXPORT"],
    );
}

#[test]
fn a_get_api_that_fails_or_gives_nothing_is_named() {
    refused(
        "get_api_fails",
        Code::INTERNAL,
        &["otr_driver_get_api failed", "1.0"],
    );
    refused("no_table", Code::LOAD, &["no table"]);
}

#[test]
fn another_major_is_refused_with_both_numbers() {
    refused("other_major", Code::VERSION, &["7.3", "1.0", "rebuild"]);
    refused(
        "refuses_our_major",
        Code::VERSION,
        &["2.5", "1.0", "rebuild"],
    );
}

#[test]
fn a_newer_minor_with_a_longer_table_is_taken() {
    let driver = Driver::open(
        &broken_driver("newer_minor")
            .display()
            .to_string()
            .parse()
            .unwrap(),
    )
    .unwrap();
    assert_eq!(driver.api_version(), (1, 42));
    use_driver(&driver).unwrap();
}

#[test]
fn a_truncated_table_names_its_first_missing_entry() {
    refused(
        "small_table",
        Code::LOAD,
        &["`event_query`", "of 5 missing"],
    );
    refused("tiny_table", Code::LOAD, &["8 bytes"]);
}

#[test]
fn null_entries_are_all_named() {
    refused(
        "null_entries",
        Code::LOAD,
        &[
            "`memory_free`",
            "`queue_synchronize`",
            "`host_call`",
            "mandatory",
        ],
    );
    refused("group_with_hole", Code::LOAD, &["timing", "`device_time`"]);
}

#[test]
fn a_driver_that_does_not_open_gives_its_own_reason() {
    refused(
        "open_fails",
        Code::DEVICE_LOST,
        &["no board answers in slot 3", "acme-reset"],
    );
    refused("open_without_driver", Code::LOAD, &["`open`", "NULL"]);
}

#[test]
fn a_driver_without_sound_devices_is_refused() {
    refused(
        "count_fails",
        Code::DEVICE_LOST,
        &["device_count", "the bus does not answer"],
    );
    refused("no_devices", Code::LOAD, &["no device"]);
    refused(
        "bad_alignment",
        Code::LOAD,
        &["address_alignment is 48", "R14"],
    );
    let path = broken_driver("properties_fail");
    let (code, reason, _) = refusal(&format!("{}?devices=2", path.display()), &[]);
    assert_eq!(code, Code::DEVICE_LOST);
    assert!(
        reason.contains("device 1") && reason.contains("fell off the bus"),
        "{reason}"
    );
}

#[test]
fn a_refused_driver_does_not_keep_the_next_one_away() {
    let specs = format!(
        "/no/such.so,{},host?devices=1",
        broken_driver("null_entries").display()
    );
    let (drivers, report) = load(&specs, &[]);
    assert_eq!((drivers.len(), report.candidates.len()), (1, 3), "{report}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["candidates"][1]["outcome"]["refused"]["code"], "LOAD");
    use_driver(&drivers[0]).unwrap();
}

#[test]
fn a_driver_that_does_not_close_stays_loaded() {
    let path = broken_driver("close_fails");
    let loaded = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.contains(path.to_str().unwrap())
    };
    let driver = Driver::open(&path.display().to_string().parse().unwrap()).unwrap();
    use_driver(&driver).unwrap();
    drop(driver);
    assert!(loaded(), "its threads may still run");
}

/// Every mandatory entry (but for `last_error`), failing at its first, second, ... call: the error names
/// it, nothing is left behind, and the driver works once it stops failing.
#[test]
fn a_failing_entry_is_reported_and_leaks_nothing() {
    const ENTRIES: [&str; 16] = [
        "open",
        "device_count",
        "device_properties",
        "device_open",
        "memory_alloc",
        "queue_create",
        "queue_query",
        "queue_synchronize",
        "queue_wait_event",
        "event_create",
        "event_record",
        "event_query",
        "event_synchronize",
        "copy",
        "fill",
        "host_call",
    ];
    within_limit(|| {
        let path = broken_driver("fails_on_demand");
        let spec = format!("{}?devices=2", path.display()).parse().unwrap();
        // SAFETY: one of our own test libraries; it is the same one that the loader opens.
        let library = unsafe { Library::new(&path) }.unwrap();
        // SAFETY: these are their types.
        let (fail_at, live) = unsafe {
            (
                *library
                    .get::<unsafe extern "C" fn(*const std::ffi::c_char, u32)>(c"fail_at")
                    .unwrap(),
                *library
                    .get::<unsafe extern "C" fn() -> i64>(c"live_objects")
                    .unwrap(),
            )
        };
        for entry in ENTRIES {
            let name = std::ffi::CString::new(entry).unwrap();
            let mut failures = 0;
            for passes in 0..8 {
                // SAFETY: a NUL-terminated string that lives through the call; no other thread uses it.
                unsafe { fail_at(name.as_ptr(), passes) };
                let result = Driver::open(&spec).and_then(|driver| {
                    let first = use_driver(&driver);
                    // The failure is over: now everything works, on the same driver.
                    if first.is_err() {
                        use_driver(&driver).expect(entry);
                    }
                    first.and_then(|()| use_driver(&driver))
                });
                // SAFETY: takes nothing.
                let left = unsafe { live() };
                assert_eq!(
                    left,
                    0,
                    "objects after {entry} failed at call {}",
                    passes + 1
                );
                match result {
                    Ok(()) => break,
                    Err(error) => {
                        failures += 1;
                        assert_eq!(error.code(), Code::DEVICE_LOST, "{error}");
                        assert!(
                            error
                                .message()
                                .contains(&format!("{entry} was made to fail")),
                            "{error}"
                        );
                    }
                }
            }
            assert!(failures >= 1, "{entry} was never called");
            // SAFETY: as above.
            unsafe { fail_at(c"".as_ptr(), 0) };
        }
        // An entry that takes away can only leave something behind: the failure is reported where there is a caller to
        // tell, and the next driver is not affected.
        for entry in ["memory_free", "queue_destroy", "event_destroy", "close"] {
            let name = std::ffi::CString::new(entry).unwrap();
            // SAFETY: as above.
            unsafe { fail_at(name.as_ptr(), 0) };
            let result = Driver::open(&spec).and_then(|driver| use_driver(&driver));
            match result {
                Ok(()) => assert_ne!(entry, "memory_free"),
                Err(error) => assert!(error.message().contains(entry), "{error}"),
            }
            use_driver(&Driver::open(&spec).unwrap()).expect(entry);
        }
    });
}
