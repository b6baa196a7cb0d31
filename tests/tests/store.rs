//! Values that a host keeps from process to process, through the C ABI. The host is this test program in other
//! processes, so that each has an environment of its own.

#![expect(
    clippy::print_stdout,
    reason = "a host that a test starts prints what it was told"
)]

use std::ffi::CStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;

use outrigger::ffi::*;
use outrigger::runtime::Code;

/// The variable with the tasks of a host: `put KEY VALUE` or `get KEY CAPACITY`, one after the other.
const ROLE: &str = "OUTRIGGER_TEST_STORE";

/// Begins a line with what a host was told.
const MARK: &str = "told ";

#[test]
fn role() {
    let Ok(text) = std::env::var(ROLE) else {
        return;
    };
    println!();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["put", key, value] => println!("{MARK}{}", put(key, value)),
            ["get", key, capacity] => println!("{MARK}{}", get(key, capacity.parse().unwrap())),
            _ => panic!("{line} is no task"),
        }
    }
}

fn put(key: &str, value: &str) -> String {
    let (size, mut kept) = (value.len() as u64, 99);
    // SAFETY: both texts have so many bytes, and outlive the call.
    let status = unsafe {
        let (key, key_size) = (key.as_ptr().cast(), key.len() as u64);
        otr_store_put(key, key_size, value.as_ptr().cast(), size, &mut kept)
    };
    said(status, || kept.to_string())
}

fn get(key: &str, capacity: usize) -> String {
    let (mut value, mut size) = (vec![b'.'; capacity], 99);
    let into = if capacity == 0 {
        null_mut()
    } else {
        value.as_mut_ptr().cast()
    };
    // SAFETY: there are `capacity` bytes at `into`, and the key has so many bytes; both outlive the call.
    let status = unsafe {
        let (key, key_size) = (key.as_ptr().cast(), key.len() as u64);
        otr_store_get(key, key_size, into, capacity as u64, &mut size)
    };
    said(status, || {
        format!("{size} {}", String::from_utf8(value).unwrap())
    })
}

/// A code, or what succeeded.
fn said(status: *mut otr_status_t, told: impl FnOnce() -> String) -> String {
    if status.is_null() {
        return told();
    }
    // SAFETY: a status that was just handed out, and is freed once.
    unsafe {
        let text = CStr::from_ptr(otr_status_message(status)).to_str().unwrap();
        let said = format!("{}: {text}", Code(otr_status_code(status)));
        otr_status_free(status);
        said
    }
}

/// The answers to a host that does one thing after the other, with a store there.
fn host(store: &str, tasks: &[&str]) -> Vec<String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::role", "--nocapture"])
        .env(ROLE, tasks.join("\n"))
        .env("OUTRIGGER_CACHE", store)
        .env("OUTRIGGER_DRIVER", "host")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{log}");
    let told = text.lines().filter_map(|line| line.strip_prefix(MARK));
    told.map(str::to_owned).collect()
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("store-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// The answer to a host that asks for a value that is not there.
fn none() -> String {
    format!(
        "{}: the store has no value for this key: otr_store_put keeps one",
        Code::NOT_FOUND
    )
}

#[test]
fn another_process_reads_what_was_kept_where_there_is_room() {
    let folder = folder("processes");
    let store = folder.to_str().unwrap();
    assert_eq!(
        host(store, &["get a 8", "put a first", "put a second", "put b "]),
        [&none(), "1", "1", "1"]
    );
    let told = host(
        store,
        &[
            "get a 8", "get a 6", "get a 5", "get a 0", "get b 0", "get c 8",
        ],
    );
    assert_eq!(
        told,
        ["6 second..", "6 second", "6 .....", "6 ", "0 ", &none()]
    );
}

#[test]
fn nothing_is_read_or_kept_where_others_may_write_or_the_store_is_off() {
    let folder = folder("others");
    let store = folder.to_str().unwrap();
    assert_eq!(host(store, &["put a code"]), ["1"]);
    for mode in [0o775, 0o757] {
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode)).unwrap();
        let told = host(store, &["get a 8", "put a other"]);
        assert_eq!(told, [&none(), "0"], "mode {mode:o}");
    }
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(host(store, &["get a 8"]), ["4 code...."]);
    assert_eq!(host("off", &["put a code", "get a 8"]), ["0", &none()]);
}

#[test]
fn a_store_that_is_named_wrongly_and_a_key_without_bytes_are_errors() {
    let told = host("relative", &["put a b", "get a 8"]);
    assert_eq!(told[0], told[1]);
    let wrong = format!(
        "{}: OUTRIGGER_CACHE is `relative`; give",
        Code::INVALID_ARGUMENT
    );
    assert!(told[0].starts_with(&wrong), "{told:?}");
    let told = host("off", &["put  b", "get  8"]);
    let wrong = format!("{}: key_size is 0: give", Code::INVALID_ARGUMENT);
    assert!(told.iter().all(|one| one.starts_with(&wrong)), "{told:?}");
}
