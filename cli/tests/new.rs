//! `outrigger new` as a vendor runs it: what it writes is the repository's example, builds, loads and passes, and what
//! cannot be written leaves nothing behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn outrigger() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command
        .env_remove("OUTRIGGER_DRIVER")
        .env_remove("OUTRIGGER_LAYERS");
    command
}

fn new(name: &str, to: &Path) -> Output {
    let mut command = outrigger();
    command.args(["new", name, "--to"]).arg(to);
    command.output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The output of a finished command, which has to have succeeded.
fn succeeded(output: Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
    assert!(output.status.success(), "{text}");
    text
}

/// Every file below a folder, by its path from there.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                found.insert(path.strip_prefix(folder).unwrap().to_owned(), bytes);
            }
        }
    }
    found
}

#[test]
fn the_example_is_what_is_written_for_its_name() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("example");
    succeeded(new("example", &folder));
    let mut written = files(&folder);
    for header in ["outrigger/base.h", "outrigger/driver.h"] {
        let bytes = written.remove(&Path::new("include").join(header));
        let own = std::fs::read(root().join("include").join(header)).unwrap();
        assert_eq!(bytes, Some(own), "{header}");
    }
    let mut example = files(&root().join("examples/driver-c"));
    // Files that .gitignore names are there if somebody has built the example where it lies.
    let made = |name: &str| name.ends_with(".so") || name.starts_with("report.");
    example.retain(|path, _| !made(&path.to_string_lossy()));
    assert_eq!(
        written.keys().collect::<Vec<_>>(),
        example.keys().collect::<Vec<_>>()
    );
    for (path, bytes) in &example {
        let file = path.display();
        assert_eq!(written[path], *bytes, "{file}");
        // Another name takes the place of the word wherever it stands.
        let text = String::from_utf8_lossy(bytes);
        for other in ["for example", "an example", "examples", "Example"] {
            assert!(!text.contains(other), "{file}: {other}");
        }
    }
}

#[test]
fn a_new_driver_builds_loads_and_passes_under_its_name() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("a folder");
    let told = succeeded(new("zeta_2", &folder));
    // A person pastes the commands as the output has them.
    let make = |what: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(what));
        let mut command = Command::new("sh");
        command.args(["-c", line.unwrap()]);
        command
            .env("CFLAGS", "-O1 -Werror")
            .env_remove("OUTRIGGER_LAYERS");
        succeeded(command.output().unwrap())
    };
    make("to build it:");
    let library = folder.join("liboutrigger_zeta_2.so");
    let mut info = outrigger();
    info.args(["info", "--driver"]).arg(&library);
    let shown = succeeded(info.output().unwrap());
    for part in ["zeta_2 1.0.0 by zeta_2", "zeta_2 device 0"] {
        assert!(shown.contains(part), "{part} is not in:\n{shown}");
    }
    let checked = make("to test its mandatory entries:");
    assert!(checked.contains("Nothing failed."), "{checked}");
}

#[test]
fn every_place_of_the_vendor_is_a_step_of_the_page() {
    let read =
        |file: &str| std::fs::read_to_string(root().join("examples/driver-c").join(file)).unwrap();
    let (device, page) = (read("device.h"), read("README.md"));
    let places = device.matches("/* ---- ").count();
    for step in 1..=places {
        assert!(device.contains(&format!("/* ---- {step}. ")), "step {step}");
        assert!(page.contains(&format!("\n| {step} | ")), "step {step}");
    }
    assert!(device.contains(&format!("step {}", places + 1)));
    // Each function of the device is named by its step.
    for line in device.lines().filter(|line| line.starts_with("static ")) {
        let (before, _) = line.split_once('(').unwrap();
        let function = before.split([' ', '*']).next_back().unwrap();
        assert!(page.contains(&format!("`{function}`")), "{function}");
    }
}

#[test]
fn a_name_that_cannot_be_one_is_refused_and_says_what_can() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("driver");
    let long = "a".repeat(33);
    for (name, says) in [
        ("Acme", "lower-case letters, digits and underscores"),
        ("acme-2", "lower-case letters, digits and underscores"),
        ("2acme", "a letter first"),
        ("", "a letter first"),
        ("../acme", "lower-case letters"),
        (long.as_str(), "at most 32"),
        ("host", "has a driver of this name"),
    ] {
        let output = new(name, &folder);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(
            stderr(&output).contains(says),
            "{name}: {}",
            stderr(&output)
        );
        assert!(!folder.exists(), "{name}");
    }
}

#[test]
fn what_is_there_stays_as_it_is() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("notes");
    std::fs::write(&file, "mine").unwrap();
    for (to, says) in [
        (scratch.path(), "is not empty"),
        (file.as_path(), "no folder"),
    ] {
        let output = new("zeta", to);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
    assert_eq!(files(scratch.path()).len(), 1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    // An empty folder is as good as none.
    let empty = scratch.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    succeeded(new("zeta", &empty));
    assert!(empty.join("driver.c").exists());
}

#[test]
fn nothing_is_left_of_what_could_not_be_written() {
    let scratch = tempfile::tempdir().unwrap();
    let empty = scratch.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for to in [scratch.path().join("driver"), empty.clone()] {
        // No file may become larger than 16 KiB, and driver.c is: some files are there when it fails.
        let mut command = Command::new("bash");
        command
            .args([
                "-c",
                "trap '' XFSZ; ulimit -f 16; exec \"$0\" new zeta --to \"$1\"",
            ])
            .arg(env!("CARGO_BIN_EXE_outrigger"))
            .arg(&to);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("driver.c cannot be written"),
            "{}",
            stderr(&output)
        );
    }
    let left: Vec<_> = std::fs::read_dir(scratch.path())
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(files(&empty).is_empty());
}
