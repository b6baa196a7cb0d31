//! `outrigger conformance` and `outrigger verify` as a vendor runs them, on drivers that crash, hang
//! and lie. The suite's own tests check what its tests find; here we check what the command does with
//! their outcomes.
//!
//! These tests must never depend on hardware: they make the drivers themselves, from the C template.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The test that the faulty drivers are made for.
const VICTIM: &str = "core.null.fill_pattern";

/// Builds the template with a fault, and gives the specification of the driver.
fn faulty(fault: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let library = scratch(&format!("liboutrigger_{}.so", fault.to_lowercase()));
    let status = Command::new("cc")
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fPIC",
            "-pthread",
            "-shared",
        ])
        // Stays loaded when it is closed, so that it can do harm at the very end.
        .args(["-fvisibility=hidden", "-Wl,-z,nodelete"])
        .arg(format!("-DFAULT={fault}"))
        .arg("-I")
        .arg(root.join("include"))
        .arg("-I")
        .arg(root.join("examples/driver-c"))
        .arg("-o")
        .arg(&library)
        .arg(root.join("cli/tests/drivers/faulty.c"))
        .status()
        .expect("there is a C compiler `cc`");
    assert!(status.success());
    library.display().to_string()
}

/// A file of this process in the folder that Cargo gives tests.
fn scratch(name: &str) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("conf-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

fn outrigger(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args(arguments);
    command
        .env_remove("OUTRIGGER_DRIVER")
        .env_remove("OUTRIGGER_LAYERS");
    command
}

/// A finished run of the suite.
struct Run {
    output: Output,
    report: PathBuf,
}

impl Run {
    /// Runs the tests of NULL arguments and a few others on a driver.
    fn of(name: &str, driver: &str, more: &[&str]) -> Self {
        let report = scratch(&format!("{name}.json"));
        let output = outrigger(&["conformance", "--driver", driver, "--seed", "7"])
            .args(["--filter", "core.null.*fill*", "--filter", "core.open"])
            .arg("--json")
            .arg(&report)
            .args(more)
            .output()
            .unwrap();
        Self { output, report }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
            + &String::from_utf8_lossy(&self.output.stderr)
    }

    fn json(&self) -> Value {
        let text =
            std::fs::read_to_string(&self.report).unwrap_or_else(|_| panic!("{}", self.text()));
        serde_json::from_str(&text).unwrap()
    }

    /// The record of a test.
    fn record(&self, id: &str) -> Value {
        let json = self.json();
        let records = json["records"].as_array().unwrap();
        let found = records.iter().find(|sealed| sealed["record"]["id"] == id);
        found.unwrap_or_else(|| panic!("{id} has no record"))["record"].clone()
    }
}

fn verify(report: &Path) -> (i32, String) {
    let output = outrigger(&["verify"]).arg(report).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), text)
}

#[test]
fn what_happens_to_one_test_costs_one_test() {
    for (fault, status, says) in [
        ("ABORTS", "crash", "SIGABRT"),
        ("ABORTS_LATE", "crash", "after the test itself had ended"),
        ("EXITS", "crash", "exit status 0"),
        ("PRINTS", "fail", "R6"),
        ("LOSES_DEVICE", "device-lost", "DEVICE_LOST"),
        ("HANGS", "timeout", "killed after"),
    ] {
        let factor = if fault == "HANGS" { "0.1" } else { "1" };
        let run = Run::of(fault, &faulty(fault), &["--limit-factor", factor]);
        assert_eq!(run.output.status.code(), Some(1), "{fault}: {}", run.text());
        let victim = run.record(VICTIM);
        assert_eq!(victim["status"], status, "{fault}: {victim}");
        let message = victim["failure"]["message"].as_str().unwrap();
        assert!(message.contains(says), "{fault}: {message}");
        let totals = &run.json()["totals"];
        let planned = run.json()["head"]["planned"].as_array().unwrap().len();
        assert_eq!(totals[status], 1, "{fault}: {totals}");
        assert_eq!(totals["pass"], planned - 1, "{fault}: {}", run.text());
        let (code, text) = verify(&run.report);
        assert_eq!(
            code, 1,
            "it is whole, and says that the driver is not conformant: {text}"
        );
        assert!(text.contains("whole and unaltered"), "{text}");
        // A person sees what failed first and how to see it again, with nothing behind it but the totals.
        let shown = String::from_utf8_lossy(&run.output.stdout).into_owned();
        let (_, last) = shown.rsplit_once("first failure\n").unwrap();
        assert!(last.lines().count() < 30, "{shown}");
        let again = format!("--seed 7 --filter {VICTIM}");
        assert!(shown.contains(&again), "{shown}");
    }
}

#[test]
fn a_driver_that_cannot_be_opened_fails_with_its_reason() {
    let run = Run::of("open", &faulty("ABORTS_AT_OPEN"), &[]);
    assert_eq!(run.output.status.code(), Some(1));
    assert!(run.text().contains("SIGABRT"), "{}", run.text());
    let run = Run::of("nobody", "nobody", &[]);
    assert_eq!(run.output.status.code(), Some(1));
    assert!(
        run.text().contains("liboutrigger_nobody.so"),
        "{}",
        run.text()
    );
}

#[test]
fn a_wrong_use_is_told_from_a_failure() {
    for wrong in [
        &["--filter", "core.nosuch"][..],
        &["--tier", "cores"],
        &["--expect", "no-such-file.toml"],
        &["--resume", "no-such-file.jsonl"],
        &["--limit-factor", "0"],
    ] {
        let output = outrigger(&["conformance"]).args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn expectations_cover_known_failures_and_only_those() {
    let driver = faulty("LOSES_DEVICE");
    let expect = scratch("expect.toml");
    let entry = |test: &str, status: &str, expires: &str| {
        let text = format!(
            "[[expect]]\ntest = \"{test}\"\nstatus = \"{status}\"\nreason = \"erratum 7\"\nexpires = {expires}\n"
        );
        std::fs::write(&expect, text).unwrap();
    };
    let run = |strict: bool| {
        let mut more = vec!["--expect", expect.to_str().unwrap()];
        if strict {
            more.push("--verify-xfail");
        }
        Run::of("expected", &driver, &more)
    };
    let outcome =
        |run: &Run, id: &str| (run.output.status.code(), run.record(id)["status"].clone());

    entry(VICTIM, "xfail", "9999-12-31");
    let expected = run(true);
    assert_eq!(outcome(&expected, VICTIM), (Some(0), "xfail".into()));
    assert_eq!(verify(&expected.report).0, 0);
    // An exception leaves a trace: this is no conformance.
    assert_eq!(expected.json()["conclusion"], "partial");

    entry(VICTIM, "waived", "9999-12-31");
    assert_eq!(outcome(&run(true), VICTIM), (Some(0), "waived".into()));

    entry(VICTIM, "xfail", "2020-01-01");
    assert_eq!(
        outcome(&run(false), VICTIM),
        (Some(1), "device-lost".into())
    );

    entry("core.open.without_options", "xfail", "9999-12-31");
    let unexpected = run(true);
    assert_eq!(outcome(&unexpected, "core.open.without_options").1, "xpass");
    assert!(
        unexpected.text().contains("unexpected pass"),
        "{}",
        unexpected.text()
    );
    assert_eq!(unexpected.output.status.code(), Some(1));
}

#[test]
fn an_altered_cut_or_mixed_report_is_refused() {
    let run = Run::of("sound", "host?memory=64M", &[]);
    assert_eq!(run.output.status.code(), Some(0), "{}", run.text());
    let sound = std::fs::read_to_string(&run.report).unwrap();
    assert_eq!(verify(&run.report).0, 0);
    let other = Run::of("other", "host?memory=64M", &[]);
    let other = std::fs::read_to_string(&other.report).unwrap();
    let line = |text: &str, number: usize| {
        let records = text.lines().filter(|line| line.starts_with("{\"record\""));
        records.map(str::to_owned).nth(number).unwrap()
    };
    let same_test = {
        let id = line(&sound, 2).split('"').nth(5).unwrap().to_owned();
        let found = other
            .lines()
            .find(|line| line.contains(&format!("\"id\":\"{id}\"")));
        found.unwrap().trim_end_matches(',').to_owned()
    };
    let second = line(&sound, 1);
    for (what, altered) in [
        ("cut in the middle", sound[..sound.len() / 2].to_owned()),
        (
            "a record taken out",
            sound.replace(&second, "").replace(",\n,", ",\n"),
        ),
        (
            "a record taken twice",
            sound.replace(&second, &format!("{second}\n,{second}")),
        ),
        (
            "a time changed",
            sound.replacen("\"micros\":", "\"micros\":1", 1),
        ),
        (
            "an outcome changed",
            sound.replacen("\"status\":\"pass\"", "\"status\":\"xpass\"", 1),
        ),
        (
            "a count changed",
            sound.replacen("\"fail\":0", "\"fail\":1", 1),
        ),
        (
            "a conclusion changed",
            sound.replacen("\"partial\"", "\"conformant\"", 1),
        ),
        (
            "the driver's hash changed",
            sound.replacen("\"file_sha256\":\"", "\"file_sha256\":\"0", 1),
        ),
        (
            "the selection changed",
            sound.replacen("\"filters\":[\"core.null.*fill*\",", "\"filters\":[", 1),
        ),
        (
            "a field more",
            sound.replacen("{\n\"head\"", "{\n\"note\": 1, \"head\"", 1),
        ),
        (
            "a field twice",
            sound.replacen(
                "{\n\"head\"",
                "{\n\"conclusion\": \"conformant\", \"head\"",
                1,
            ),
        ),
        (
            "a record of another run",
            sound.replacen(line(&sound, 2).trim_end_matches(','), &same_test, 1),
        ),
    ] {
        assert_ne!(sound, altered, "{what}: nothing was altered");
        let file = scratch("altered.json");
        std::fs::write(&file, altered).unwrap();
        let (code, text) = verify(&file);
        assert_eq!(code, 1, "{what}: {text}");
        assert!(text.starts_with("refused: "), "{what}: {text}");
    }
    // The driver's file is checked, too, if asked for.
    let checked = outrigger(&["verify", "--driver", env!("CARGO_BIN_EXE_outrigger")])
        .arg(&run.report)
        .output();
    assert!(checked.unwrap().status.success());
    let checked = outrigger(&["verify", "--driver"])
        .args([&run.report, &run.report])
        .output();
    assert_eq!(checked.unwrap().status.code(), Some(1));
}

/// The text that a person sees who runs the suite in a terminal.
fn at_a_terminal(arguments: &[&str]) -> String {
    let words = [&[env!("CARGO_BIN_EXE_outrigger"), "conformance"], arguments].concat();
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    // `script` gives the command a terminal, and passes on what the command writes there.
    let output = Command::new("script")
        .args([
            "--quiet",
            "--return",
            "--command",
            &quoted.join(" "),
            "/dev/null",
        ])
        .env_remove("OUTRIGGER_DRIVER")
        .env_remove("OUTRIGGER_LAYERS")
        .stdin(Stdio::null())
        .output()
        .expect("there is `script` of util-linux");
    String::from_utf8_lossy(&output.stdout).replace('\r', "")
}

#[test]
fn a_person_is_told_what_to_do_next_and_a_log_is_not() {
    let host = ["--driver", "host?memory=64M", "--seed", "7"];
    let with = |more: &[&str]| at_a_terminal(&[&host[..], more].concat());
    let program = env!("CARGO_BIN_EXE_outrigger");
    let again = format!("  {program} conformance --driver 'host?memory=64M'");

    // A part of a tier is followed by the tier, a tier by the next one.
    let text = with(&["--filter", "stream.pressure.fills"]);
    assert!(
        text.ends_with(&format!("next: the tier stream\n{again} --tier stream\n")),
        "{text}"
    );
    let expect = scratch("none.toml");
    std::fs::write(&expect, "").unwrap();
    let expect = expect.to_str().unwrap();
    let text = with(&["--tier", "core", "--expect", expect]);
    let told = format!("next: the tier stream\n{again} --tier stream --expect {expect}\n");
    assert!(text.ends_with(&told), "{text}");

    let driver = faulty("LOSES_DEVICE");
    let failing = [
        "--driver",
        driver.as_str(),
        "--seed",
        "7",
        "--filter",
        "core.null.*fill*",
    ];
    let text = at_a_terminal(&failing);
    let (_, told) = text.split_once("\nnext: ").expect(&text);
    for part in [
        format!("{program} conformance --driver {driver} --seed 7 --filter {VICTIM}\n"),
        format!("gdb --args {program} conformance-test --driver {driver} --seed 7 {VICTIM}\n"),
    ] {
        assert!(told.contains(&part), "{part} is not in: {told}");
    }

    // Redirected output holds results alone.
    let output = outrigger(&["conformance"]).args(failing).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("next: "));
    assert!(!String::from_utf8_lossy(&output.stderr).contains("next: "));
}

/// The processes of tests of a driver that live now.
fn processes(driver: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let commands = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    commands
        .filter(|command| {
            let command = String::from_utf8_lossy(command);
            command.contains("conformance-test") && command.contains(driver)
        })
        .count()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_run_goes_on_and_ends_as_if_nothing_had_been() {
    let driver = faulty("HANGS");
    let journal = scratch("journal.jsonl");
    let lines = || {
        std::fs::read_to_string(&journal)
            .unwrap_or_default()
            .lines()
            .count()
    };
    // Two at a time: one hangs, the other goes on until it has nothing left.
    let mut run = outrigger(&["conformance", "--driver", &driver, "--jobs", "2"])
        .args(["--filter", "core.null.*fill*", "--filter", "core.open"])
        .args(["--limit-factor", "0.2", "--journal"])
        .arg(&journal)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("some tests have ended", || lines() > 5);
    until("one test hangs", || processes(&driver) > 0);
    run.kill().unwrap();
    run.wait().unwrap();
    until("no process is left behind", || processes(&driver) == 0);
    // As if the machine had gone down in the middle of a line.
    let mut text = std::fs::read_to_string(&journal).unwrap();
    let before = text.clone();
    text.push_str("{\"record\":{\"id\":\"core.op");
    std::fs::write(&journal, text).unwrap();

    // With a driver of other bytes it is refused; it would be a mixed run.
    let kept = std::fs::read(&driver).unwrap();
    std::fs::write(&driver, [kept.as_slice(), b"x"].concat()).unwrap();
    let resume = |report: &Path| {
        outrigger(&["conformance", "--jobs", "2", "--resume"])
            .arg(&journal)
            .arg("--json")
            .arg(report)
            .output()
            .unwrap()
    };
    let report = scratch("resumed.json");
    let refused = resume(&report);
    assert_eq!(refused.status.code(), Some(2));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("its file has changed"), "{text}");
    std::fs::write(&driver, kept).unwrap();

    let output = resume(&report);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("going on behind"), "{text}");
    let (_, said) = verify(&report);
    assert!(said.contains("whole and unaltered"), "{said}");
    let resumed = std::fs::read_to_string(&report).unwrap();
    for line in before.lines().skip(1) {
        assert!(
            resumed.contains(line),
            "a record of the killed run is missing: {line}"
        );
    }
}
