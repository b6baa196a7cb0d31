//! `outrigger replay` as a user runs it: on the same driver, on another driver, and down to the
//! smallest recording that still fails.
//!
//! The driver that fails is the built-in one with faults: every copy moves half of its bytes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use outrigger_device::{CopyKind, Driver};
use outrigger_layers::layered;
use outrigger_layers::record::record;

/// A folder that goes when it is dropped.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new(name: &str) -> Self {
        let folder = format!("otr-replay-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Records a program with 40 fills and as many copies to the host.
fn recording(path: &Path) {
    let host = Driver::open(&"host?devices=1&memory=16M".parse().unwrap()).unwrap();
    let layer = record(path, &host).unwrap();
    let driver = layered(host, layer).unwrap();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 256).unwrap();
    let mut back = [0u8; 256];
    for value in 0..40 {
        // SAFETY: both live until the queue was synchronized.
        unsafe {
            queue.fill(memory, 256, &[value]).unwrap();
            let target = back.as_mut_ptr() as u64;
            queue
                .copy(target, memory, 256, CopyKind::DeviceToHost)
                .unwrap();
        }
        queue.synchronize().unwrap();
        assert_eq!(back, [value; 256]);
    }
    // SAFETY: all work has finished.
    unsafe { driver.memory_free(memory) }.unwrap();
}

fn replay(file: &Path, layers: &str, arguments: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["replay", "--driver", "host?memory=16M"])
        .arg(file)
        .args(arguments)
        .env("OUTRIGGER_LAYERS", layers)
        .output()
        .expect("the command line starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output, text)
}

#[test]
fn a_recording_is_compared_and_shrunk() {
    let folder = TempFolder::new("shrink");
    let (file, small) = (folder.0.join("all.rec"), folder.0.join("small.rec"));
    recording(&file);
    let (output, text) = replay(&file, "", &[]);
    assert!(
        output.status.success() && text.contains("the same as the recording"),
        "{text}"
    );

    let torn = "fault:copy@1..=torn:OK";
    let (output, text) = replay(&file, torn, &[]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("128 of 256 bytes differ; byte 128 is"),
        "{text}"
    );

    let out = small.to_str().unwrap();
    let (_, text) = replay(&file, torn, &["--shrink", out]);
    assert!(text.contains("calls became 4 in"), "{text}");
    for entry in ["device_open", "queue_create", "memory_alloc", "copy"] {
        assert!(text.contains(entry), "{text}");
    }
    let (output, text) = replay(&small, torn, &["--against", "host"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("differs from host"), "{text}");
    let (output, text) = replay(&small, "", &["--against", "host"]);
    assert!(output.status.success(), "{text}");
    let (output, text) = replay(&file, "", &["--shrink", out]);
    assert!(
        !output.status.success() && text.contains("nothing to shrink"),
        "{text}"
    );
}

#[test]
fn a_shrink_keeps_the_failure_that_it_began_with() {
    const MOST: u64 = 12 << 20; // of the 16 MiB of the driver
    let folder = TempFolder::new("kinds");
    let (file, small) = (folder.0.join("all.rec"), folder.0.join("small.rec"));
    let host = Driver::open(&"host?devices=1&memory=16M".parse().unwrap()).unwrap();
    let layer = record(&file, &host).unwrap();
    let driver = layered(host, layer).unwrap();
    let queue = driver.queue_create(0, 0).unwrap();
    let first = driver.memory_alloc(0, MOST).unwrap();
    // SAFETY: no work uses it.
    unsafe { driver.memory_free(first) }.unwrap();
    let second = driver.memory_alloc(0, MOST).unwrap();
    let mut back = [0u8; 256];
    // SAFETY: both live until the queue was synchronized.
    unsafe {
        queue.fill(second, 256, &[7]).unwrap();
        let target = back.as_mut_ptr() as u64;
        queue
            .copy(target, second, 256, CopyKind::DeviceToHost)
            .unwrap();
    }
    queue.synchronize().unwrap();
    // SAFETY: all work has finished.
    unsafe { driver.memory_free(second) }.unwrap();
    drop((queue, driver));
    // Without the first free alone, the second allocation fails: that is another failure than that of the copy.
    let torn = "fault:copy@1..=torn:OK";
    let (_, text) = replay(&file, torn, &["--shrink", small.to_str().unwrap()]);
    assert!(
        text.contains("the bytes of a call of copy differ"),
        "{text}"
    );
    let (_, text) = replay(&small, torn, &["--against", "host"]);
    assert!(text.contains("bytes differ"), "{text}");
}

#[test]
fn what_is_no_recording_is_refused_with_a_reason() {
    let folder = TempFolder::new("refused");
    let file = folder.0.join("file.rec");
    recording(&file);
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let (output, text) = replay(&file, "", &[]);
    assert!(
        !output.status.success() && text.contains("is damaged"),
        "{text}"
    );
    std::fs::write(&file, "text").unwrap();
    let (_, text) = replay(&file, "", &[]);
    assert!(text.contains("no recording of calls"), "{text}");
    let (_, text) = replay(&file, "faulty", &[]);
    assert!(text.contains("no recording of calls"), "{text}");
    recording(&file);
    let (output, text) = replay(&file, "faulty", &[]);
    assert!(
        !output.status.success() && text.contains("OUTRIGGER_LAYERS"),
        "{text}"
    );
}
