//! The tuner over a worker that is this test itself, with the role that [`ROLE`] names.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use outrigger_store::{Settings, Store};
use outrigger_tuner::{Choice, Mode, Question, Starter, Tuner, hash, serve};
use serde_json::{Value, json};

const ROLE: &str = "OUTRIGGER_TEST_TUNE";

/// The work of the started processes; the test does nothing in the process that runs the tests.
#[test]
fn role() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let tuner = Tuner::new(Store::open(Settings::off("a worker")), Mode::On, nobody());
    serve(|task| {
        let candidates: Vec<String> = serde_json::from_value(task["candidates"].clone()).unwrap();
        let chosen = tuner.choose(&question("m"), &candidates, || None);
        let name = candidates[chosen].as_str();
        match (name, note(task, name)) {
            ("late", 0) => Ok(200),
            ("late", _) => Ok(9),
            ("soon", 0) => Ok(92),
            ("soon", _) => Ok(80),
            ("once", 0) => Ok(10),
            ("once", _) => Err("it works once".to_owned()),
            (other, _) => of(other),
        }
    })
    .unwrap();
}

/// The time that a candidate takes, at any time the same.
fn of(name: &str) -> Result<u64, String> {
    match name {
        "fast" => Ok(10),
        "almost" => Ok(99),
        "far" => Ok(120),
        "crash" => std::process::abort(),
        "hang" => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        "refuse" => Err("it does not compile".to_owned()),
        number => Ok(number.parse().unwrap_or(100)),
    }
}

/// Notes what was measured in a file that the task names. Returns how often that was there.
fn note(task: &Value, name: &str) -> usize {
    use std::io::Write;
    let path = task["log"].as_str().unwrap();
    let before = std::fs::read_to_string(path).unwrap_or_default();
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path);
    writeln!(file.unwrap(), "{name}").unwrap();
    before.lines().filter(|line| *line == name).count()
}

/// The measurements of candidates among which `fast` is the best: each once, then `fast` and the default once more.
fn and_again<'a>(all: &[&'a str]) -> Vec<&'a str> {
    [all, &[all[0], "fast"]].concat()
}

fn nobody() -> Starter {
    Box::new(|| Err("there is no worker here".to_owned()))
}

fn worker() -> Starter {
    Box::new(|| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "role", "--nocapture"])
            .env(ROLE, "worker");
        Ok(command)
    })
}

fn question(class: &str) -> Question {
    Question {
        driver: "test 1.0".to_owned(),
        device: "a device".to_owned(),
        operator: "matmul".to_owned(),
        class: class.to_owned(),
        dtype: "f32".to_owned(),
        code: hash(&["code"]),
        version: "1".to_owned(),
    }
}

/// A folder for a store, and for what workers note.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn store(&self) -> Store {
        Store::open(Settings::at(self.0.path().join("store")))
    }

    /// A tuner of another process: the folder is all that they share.
    fn tuner(&self, mode: Mode) -> Tuner {
        Tuner::new(self.store(), mode, worker())
    }

    fn log(&self) -> std::path::PathBuf {
        self.0.path().join("log")
    }

    fn task(&self, candidates: &[String]) -> Value {
        json!({"log": self.log(), "candidates": candidates})
    }

    /// The candidate that a tuner chooses for a class of sizes.
    fn choose(&self, tuner: &Tuner, class: &str, candidates: &[&str]) -> String {
        let candidates: Vec<String> = candidates.iter().map(|name| (*name).to_owned()).collect();
        let chosen = tuner.choose(&question(class), &candidates, || {
            Some(self.task(&candidates))
        });
        candidates[chosen].clone()
    }

    /// The candidates that were measured so far.
    fn measured(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn entries(&self) -> Vec<std::path::PathBuf> {
        let folder = std::fs::read_dir(self.0.path().join("store").join("tuned"));
        folder.unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

#[test]
fn the_fastest_is_chosen_once_and_used_by_the_next_process() {
    let bench = Bench::new();
    let all = ["default", "fast", "slow"];
    let tuner = bench.tuner(Mode::On);
    assert_eq!(bench.choose(&tuner, "m", &all), "fast");
    assert_eq!(bench.measured(), and_again(&all));
    assert_eq!(bench.choose(&tuner, "m", &all), "fast");
    for mode in [Mode::On, Mode::Cached] {
        assert_eq!(bench.choose(&bench.tuner(mode), "m", &all), "fast");
    }
    assert_eq!(
        bench.measured(),
        and_again(&all),
        "nothing was measured since"
    );
    let choices = bench.tuner(Mode::Off).choices().unwrap();
    let [choice] = &choices[..] else {
        panic!("{choices:?}");
    };
    assert_eq!(
        (&choice.question, choice.chosen.as_str()),
        (&question("m"), "fast")
    );
    assert_eq!(choice.measured["slow"], Some(100));
}

#[test]
fn off_and_cached_measure_nothing() {
    let bench = Bench::new();
    let all = ["default", "fast"];
    for mode in [Mode::Off, Mode::Cached] {
        assert_eq!(bench.choose(&bench.tuner(mode), "m", &all), "default");
    }
    assert!(bench.measured().is_empty());
    assert_eq!(bench.choose(&bench.tuner(Mode::On), "m", &all), "fast");
    assert_eq!(bench.choose(&bench.tuner(Mode::Off), "m", &all), "default");
    assert_eq!(
        bench.choose(&bench.tuner(Mode::Cached), "other", &all),
        "default"
    );
}

#[test]
fn a_candidate_that_crashes_or_refuses_has_failed_and_the_next_one_is_measured() {
    let bench = Bench::new();
    let all = ["default", "crash", "refuse", "fast", "slow"];
    assert_eq!(bench.choose(&bench.tuner(Mode::On), "m", &all), "fast");
    assert_eq!(bench.measured(), and_again(&all));
    let choices = bench.tuner(Mode::Off).choices().unwrap();
    let failed = choices[0]
        .measured
        .iter()
        .filter(|(_, time)| time.is_none());
    assert_eq!(
        failed.map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["crash", "refuse"]
    );
}

#[test]
fn a_candidate_that_hangs_has_failed_when_its_time_is_over() {
    let bench = Bench::new();
    let tuner = bench.tuner(Mode::On).with_limit(Duration::from_secs(4));
    let all = ["hang", "slow", "fast"];
    assert_eq!(bench.choose(&tuner, "m", &all), "fast");
    assert_eq!(bench.measured(), all);
}

#[test]
fn where_all_fail_the_default_is_used_and_nothing_is_kept() {
    let bench = Bench::new();
    let tuner = bench.tuner(Mode::On);
    let all = ["refuse", "crash"];
    for _ in 0..2 {
        assert_eq!(bench.choose(&tuner, "m", &all), "refuse");
    }
    assert_eq!(bench.measured(), all, "a process tries once");
    assert!(tuner.choices().unwrap().is_empty());
}

#[test]
fn the_default_stays_where_another_one_gains_little() {
    let bench = Bench::new();
    let tuner = bench.tuner(Mode::On);
    assert_eq!(bench.choose(&tuner, "m", &["default", "almost"]), "default");
    assert_eq!(bench.measured(), ["default", "almost"].repeat(2));
}

#[test]
fn a_default_that_was_slow_at_first_is_looked_at_again() {
    let bench = Bench::new();
    let all = ["late", "slow", "fast"];
    assert_eq!(bench.choose(&bench.tuner(Mode::On), "m", &all), "late");
    assert_eq!(bench.measured(), and_again(&all));
    let choices = bench.tuner(Mode::Off).choices().unwrap();
    assert_eq!(choices[0].measured["late"], Some(9));
    // One that fails the second time is not chosen.
    let all = ["default", "once", "almost"];
    assert_eq!(bench.choose(&bench.tuner(Mode::On), "n", &all), "default");
}

#[test]
fn those_that_are_near_to_the_best_are_looked_at_again() {
    let bench = Bench::new();
    // The default, and three of those that are near.
    let all = ["slow", "90", "far", "91", "soon", "92", "93"];
    assert_eq!(bench.choose(&bench.tuner(Mode::On), "m", &all), "soon");
    let again = ["slow", "90", "91", "soon"];
    assert_eq!(bench.measured(), [&all[..], &again].concat());
}

#[test]
fn without_a_worker_on_is_as_cached() {
    let bench = Bench::new();
    let all = ["default", "fast"];
    let tuner = Tuner::new(bench.store(), Mode::On, nobody());
    assert_eq!(bench.choose(&tuner, "m", &all), "default");
    assert_eq!(bench.choose(&bench.tuner(Mode::On), "m", &all), "fast");
    let tuner = Tuner::new(bench.store(), Mode::On, nobody());
    assert_eq!(bench.choose(&tuner, "m", &all), "fast");
    let missing: Starter = Box::new(|| Ok(Command::new("/nowhere/outrigger")));
    let tuner = Tuner::new(bench.store(), Mode::On, missing);
    assert_eq!(bench.choose(&tuner, "other", &all), "default");
}

#[test]
fn a_broken_entry_is_measured_anew() {
    let bench = Bench::new();
    let all = ["default", "fast"];
    assert_eq!(bench.choose(&bench.tuner(Mode::On), "m", &all), "fast");
    let [entry] = &bench.entries()[..] else {
        panic!("one entry is expected");
    };
    std::fs::write(entry, b"nonsense").unwrap();
    assert_eq!(
        bench.choose(&bench.tuner(Mode::Cached), "m", &all),
        "default"
    );
    assert_eq!(bench.choose(&bench.tuner(Mode::On), "m", &all), "fast");
    assert_eq!(bench.measured().len(), 2 * and_again(&all).len());
}

#[test]
fn whatever_the_best_variant_depends_on_makes_another_question() {
    let bench = Bench::new();
    let names: Vec<String> = ["default", "fast"].map(str::to_owned).to_vec();
    let tuner = bench.tuner(Mode::On);
    let base = question("m");
    tuner
        .measure(&base, &names, &bench.task(&names), false)
        .unwrap();
    let other = |change: &dyn Fn(&mut Question)| {
        let mut question = base.clone();
        change(&mut question);
        question
    };
    let cached = bench.tuner(Mode::Cached);
    assert_eq!(cached.choose(&base, &names, || None), 1);
    for question in [
        other(&|question| question.driver.push('1')),
        other(&|question| question.device.push('1')),
        other(&|question| question.operator.push('1')),
        other(&|question| question.class.push('1')),
        other(&|question| question.dtype.push('1')),
        other(&|question| question.code = hash(&["other code"])),
        other(&|question| question.version.push('1')),
    ] {
        assert_eq!(cached.choose(&question, &names, || None), 0, "{question:?}");
    }
    // An entry of another question would have been taken for a broken one.
    assert_eq!(bench.tuner(Mode::Cached).choose(&base, &names, || None), 1);
}

#[test]
fn choices_are_exported_and_pinned_in_another_store() {
    let (from, to) = (Bench::new(), Bench::new());
    let all = ["default", "fast"];
    assert_eq!(from.choose(&from.tuner(Mode::On), "m", &all), "fast");
    let text = serde_json::to_string(&from.tuner(Mode::Off).choices().unwrap()).unwrap();
    let choices: Vec<Choice> = serde_json::from_str(&text).unwrap();
    to.tuner(Mode::Off).pin(&choices).unwrap();
    let tuner = to.tuner(Mode::On);
    assert_eq!(to.choose(&tuner, "m", &all), "fast");
    let names: Vec<String> = all.map(str::to_owned).to_vec();
    let choice = tuner
        .measure(&question("m"), &names, &to.task(&names), true)
        .unwrap();
    assert!(
        choice.pinned && to.measured().is_empty(),
        "what is pinned is not measured"
    );
    tuner.forget(&tuner.choices().unwrap());
    assert!(tuner.choices().unwrap().is_empty());
    assert_eq!(to.choose(&tuner, "m", &all), "fast");
    assert_eq!(to.measured(), and_again(&all));
    let nowhere = Tuner::new(Store::open(Settings::off("for a test")), Mode::On, nobody());
    let problem = nowhere.pin(&choices).unwrap_err().to_string();
    assert_eq!(problem, "nothing can be kept: for a test");
}

#[test]
fn a_choice_that_is_no_candidate_is_ignored() {
    let bench = Bench::new();
    let gone = Choice {
        question: question("m"),
        chosen: "gone".to_owned(),
        pinned: true,
        measured: std::collections::BTreeMap::new(),
    };
    bench.tuner(Mode::Off).pin(&[gone]).unwrap();
    let all = ["default", "fast"];
    assert_eq!(
        bench.choose(&bench.tuner(Mode::Cached), "m", &all),
        "default"
    );
    assert_eq!(bench.choose(&bench.tuner(Mode::On), "m", &all), "fast");
}

#[test]
fn processes_that_tune_the_same_at_a_time_agree() {
    let bench = Bench::new();
    let all = ["default", "fast", "slow"];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for class in ["a", "b", "c"] {
                    assert_eq!(bench.choose(&bench.tuner(Mode::On), class, &all), "fast");
                }
            });
        }
    });
    assert_eq!(bench.tuner(Mode::Off).choices().unwrap().len(), 3);
    assert!(is_clean(&bench.0.path().join("store").join("tuned")));
}

fn is_clean(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name())
        .all(|name| name.len() == 64)
}
