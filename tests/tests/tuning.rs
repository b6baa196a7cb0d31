//! Variants of a host's code, chosen through the C ABI. The host is this test in another process, so that each has an
//! environment of its own; the worker is a script of `sh`.

#![expect(
    clippy::print_stdout,
    reason = "a host that a test starts prints what it was told"
)]

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null;

use outrigger::ffi::*;
use outrigger_store::{Settings, Store};
use outrigger_tuner::{Choice, Mode, Tuner};
use serde_json::{Value, json};

/// Names the file with what a host is to ask.
const ROLE: &str = "OUTRIGGER_TEST_ASK";

/// Begins a line with what a host was told.
const MARK: &str = "told ";

/// A worker. It notes the word of its command and the candidate in the file that is its first argument.
/// A candidate that hangs does so in a process that the worker has started.
const WORKER: &str = r#"
while read -r line; do
  name=${line#*'"candidate":"'}
  name=${name%%'"'*}
  case $line in *'"task":{"of":"'*) ;; *) name=no_task ;; esac
  echo "$2 $name" >> "$1"
  case $name in
    fast) reply='{"Ok":10}' ;;
    almost) reply='{"Ok":98}' ;;
    huge) reply='{"Ok":190172619316593316}' ;;
    zero) reply='{"Ok":0}' ;;
    nonsense) reply='{"Ok":"soon"}' ;;
    refuse) reply='{"Err":"it does not compile"}' ;;
    mode) reply='{"Err":"it may measure"}'; [ "$OUTRIGGER_TUNE" = cached ] && reply='{"Ok":20}' ;;
    crash) kill -ABRT $$ ;;
    hang) sleep 1000 & echo $! > "$1.hang"; wait ;;
    gone) exit 0 ;;
    *) reply='{"Ok":100}' ;;
  esac
  printf 'a word of a library without an end\noutrigger-tune %s\n' "$reply"
  [ "$name" = leave ] && exit 0
done
"#;

/// A host: asks what the file says, line by line, and prints what it was told. Nothing in the process that runs the tests.
#[test]
fn role() {
    let Some(path) = std::env::var_os(ROLE) else {
        return;
    };
    let text = std::fs::read_to_string(path).unwrap();
    println!();
    // SAFETY: takes nothing. It starts the log.
    outcome(unsafe { otr_runtime_init() }).unwrap();
    let asked: Vec<Value> = serde_json::from_str(&text).unwrap();
    std::thread::scope(|scope| {
        for asked in &asked {
            let ask = move || println!("{MARK}{}", ask(asked));
            if asked["thread"] == json!(true) {
                scope.spawn(ask);
            } else {
                ask();
            }
        }
    });
}

fn texts(value: &Value) -> Vec<CString> {
    let texts = value.as_array().into_iter().flatten();
    texts
        .map(|text| CString::new(text.as_str().unwrap()).unwrap())
        .collect()
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

/// The answer of the call: the number of the chosen candidate, and the times.
fn ask(asked: &Value) -> Value {
    let candidates = texts(&asked["candidates"]);
    let candidates = pointers(&candidates);
    let worker = texts(&asked["worker"]);
    let mut worker = pointers(&worker);
    worker.push(null());
    let sizes = CString::new(asked["sizes"].as_str().unwrap()).unwrap();
    let mut params = params();
    params.flags = asked["flags"].as_u64().unwrap_or(0) as u32;
    params.sizes = sizes.as_ptr();
    params.candidates = candidates.as_ptr();
    params.candidate_count = candidates.len() as u32;
    params.limit_ms = asked["limit"].as_u64().unwrap_or(0) as u32;
    if asked["worker"].is_array() {
        params.worker = worker.as_ptr();
    }
    if asked["task"] == json!(false) {
        params.task = null();
    }
    let (mut chosen, mut times) = (99, vec![99; candidates.len()]);
    // SAFETY: all of it outlives the call, and there are as many times as candidates.
    let status = unsafe { otr_tune_choose(0, &params, &mut chosen, times.as_mut_ptr()) };
    match outcome(status) {
        Ok(()) => json!({"chosen": chosen, "times": times}),
        Err((code, text)) => json!({"code": code, "text": text}),
    }
}

/// A question that is right, about one variant.
fn params() -> otr_tune_params_t {
    struct One([*const c_char; 1]);
    // SAFETY: it points to a constant.
    unsafe impl Sync for One {}
    static ONE: One = One([c"one".as_ptr()]);
    otr_tune_params_t {
        struct_size: size_of::<otr_tune_params_t>(),
        next: null(),
        flags: 0,
        reserved: 0,
        operation: c"test.mm".as_ptr(),
        sizes: c"m".as_ptr(),
        dtype: c"f32".as_ptr(),
        code: c"1".as_ptr(),
        candidates: ONE.0.as_ptr(),
        candidate_count: 1,
        limit_ms: 0,
        worker: null(),
        task: c"{\"of\": \"the test\"}".as_ptr(),
    }
}

fn outcome(status: *mut otr_status_t) -> Result<(), (i32, String)> {
    if status.is_null() {
        return Ok(());
    }
    // SAFETY: a status that was just handed out, and is freed once.
    unsafe {
        let text = CStr::from_ptr(otr_status_message(status)).to_str().unwrap();
        let said = (otr_status_code(status), text.to_owned());
        otr_status_free(status);
        Err(said)
    }
}

/// A folder with a store and what workers note.
struct Bench(PathBuf);

impl Bench {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tuning-{name}"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("worker.sh"), WORKER).unwrap();
        Self(folder)
    }

    /// A question about candidates, which the worker `word` may measure.
    fn asked(&self, sizes: &str, candidates: &[&str], flags: u32, word: &str) -> Value {
        let path = |name: &str| self.0.join(name).to_str().unwrap().to_owned();
        let worker = ["sh", &path("worker.sh"), &path("log"), word];
        json!({"sizes": sizes, "candidates": candidates, "flags": flags, "worker": worker})
    }

    /// The answers to a host that asks one question after the other, and all that it has written.
    fn host(&self, mode: &str, asked: &[Value]) -> (Vec<Value>, String) {
        let path = self.0.join("asked");
        std::fs::write(&path, serde_json::to_string(asked).unwrap()).unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tuning::role", "--nocapture"])
            .env(ROLE, path)
            .env("OUTRIGGER_TUNE", mode)
            .env("OUTRIGGER_CACHE", self.0.join("store"))
            .env("OUTRIGGER_DRIVER", "host")
            .env("OUTRIGGER_LOG", "outrigger::tune=info")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}\n{log}");
        let told = text.lines().filter_map(|line| line.strip_prefix(MARK));
        let told: Vec<Value> = told
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(told.len(), asked.len(), "{text}\n{log}");
        (told, log)
    }

    /// The measurements so far: words of workers, and candidates.
    fn measured(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.0.join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The store as `outrigger tune` sees it.
    fn tuner(&self) -> Tuner {
        let store = Store::open(Settings::at(self.0.join("store")));
        Tuner::new(store, Mode::Off, Box::new(|| Err("no worker".to_owned())))
    }

    fn choices(&self) -> Vec<Choice> {
        self.tuner().choices().unwrap()
    }
}

fn told(chosen: u32, times: &[u64]) -> Value {
    json!({"chosen": chosen, "times": times})
}

const ALL: &[&str] = &["default", "fast", "slow"];
const TIMES: &[u64] = &[100, 10, 100];

/// The measurements of a worker that measures all: the default and the best once more.
fn measured_all(worker: &str) -> Vec<String> {
    let all = [ALL, &["default", "fast"]].concat();
    all.iter().map(|name| format!("{worker} {name}")).collect()
}

#[test]
fn the_fastest_is_chosen_once_and_the_next_process_needs_no_worker() {
    let bench = Bench::new("fastest");
    let mut asked = bench.asked("m", ALL, OTR_TUNE_MEASURE, "w");
    let twice = [asked.clone(), asked.clone()];
    let (answers, log) = bench.host("cached", &twice);
    assert_eq!(answers, [told(1, TIMES), told(1, TIMES)]);
    assert!(log.contains("candidates were measured"), "{log}");
    assert_eq!(bench.measured(), measured_all("w"));
    asked["worker"] = Value::Null;
    for mode in ["cached", "on"] {
        assert_eq!(bench.host(mode, &[asked.clone()]).0, [told(1, TIMES)]);
    }
    assert_eq!(bench.host("off", &[asked]).0, [told(0, &[0; 3])]);
    let [choice] = &bench.choices()[..] else {
        panic!("one choice is expected");
    };
    let question = &choice.question;
    let texts = [&question.operator, &question.class, &question.dtype];
    assert_eq!(texts, ["test.mm", "m", "f32"]);
    assert_eq!(
        [&question.code, &question.version],
        ["1", env!("CARGO_PKG_VERSION")]
    );
    assert!(question.driver.starts_with("host ") && !question.device.is_empty());
}

#[test]
fn it_is_measured_where_the_user_or_the_flags_allow_it() {
    let bench = Bench::new("modes");
    let nothing = told(0, &[0; 3]);
    for (mode, flags) in [
        ("cached", 0),
        ("off", OTR_TUNE_MEASURE),
        ("off", OTR_TUNE_AGAIN),
    ] {
        let (answers, _) = bench.host(mode, &[bench.asked("m", ALL, flags, "w")]);
        assert_eq!(answers[0], nothing, "{mode}");
    }
    let (mut no_worker, mut no_task) = (
        bench.asked("m", ALL, OTR_TUNE_AGAIN, "w"),
        bench.asked("m", ALL, OTR_TUNE_AGAIN, "w"),
    );
    no_worker["worker"] = Value::Null;
    no_task["task"] = json!(false);
    let one = bench.asked("m", &["one"], OTR_TUNE_AGAIN, "w");
    let asked = [no_worker, no_task, one, bench.asked("m", ALL, 0, "w")];
    let (answers, _) = bench.host("on", &asked);
    assert_eq!(answers[..2], [nothing.clone(), nothing]);
    assert_eq!(answers[2..], [told(0, &[0]), told(1, TIMES)]);
    assert_eq!(bench.measured(), measured_all("w"));
}

/// A time that becomes small where 97 percent of it are computed in 64 bits.
const HUGE: u64 = 190_172_619_316_593_316;

#[test]
fn a_candidate_that_fails_harms_no_other() {
    let bench = Bench::new("failures");
    let names = &[
        "slow", "crash", "refuse", "hang", "nonsense", "gone", "zero", "huge", "mode", "almost",
    ];
    let mut asked = bench.asked("m", names, 0, "w");
    asked["limit"] = json!(3000);
    // The default is the worst of all by far, and must not overflow into the best.
    let worst = bench.asked("n", &["huge", "fast"], 0, "w");
    let (answers, log) = bench.host("on", &[asked, worst]);
    let times = [100, 0, 0, 0, 0, 0, 0, HUGE, 20, 98];
    assert_eq!(answers, [told(8, &times), told(1, &[HUGE, 10])], "{log}");
    let hung = std::fs::read_to_string(bench.0.join("log.hang")).unwrap();
    let hung = std::fs::read(format!("/proc/{}/cmdline", hung.trim())).unwrap_or_default();
    assert!(hung.is_empty(), "what the worker had started runs on");
    for reason in [
        "signal: 6",
        "it does not compile",
        "longer than 3s",
        "makes no sense",
        "ended without a reply",
        "a time of 0 ns",
    ] {
        assert!(log.contains(reason), "no `{reason}` in {log}");
    }
}

#[test]
fn where_all_fail_it_is_the_default_with_one_warning() {
    let bench = Bench::new("all-fail");
    let failing = bench.asked("m", &["refuse", "crash"], OTR_TUNE_MEASURE, "w");
    let mut missing = bench.asked("n", ALL, OTR_TUNE_MEASURE, "w");
    missing["worker"] = json!(["/nowhere/worker"]);
    let (answers, log) = bench.host("cached", &[failing.clone(), failing, missing]);
    let nothing = told(0, &[0; 2]);
    assert_eq!(answers, [nothing.clone(), nothing, told(0, &[0; 3])]);
    assert_eq!(log.matches("nothing was chosen").count(), 1, "{log}");
    assert_eq!(
        bench.measured(),
        ["w refuse", "w crash"],
        "a process tries once"
    );
    assert_eq!(bench.choices(), []);
}

#[test]
fn a_worker_that_has_left_is_started_again() {
    let bench = Bench::new("left");
    // Each question ends with a worker that is gone.
    let asked: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|sizes| bench.asked(sizes, &["fast", "leave"], OTR_TUNE_MEASURE, "w"))
        .collect();
    let (answers, log) = bench.host("cached", &asked);
    assert_eq!(answers, vec![told(0, &[10, 100]); 3], "{log}");
    // A worker that leaves instead of a reply has failed when it has done so twice.
    let gone = bench.asked("d", &["slow", "gone", "fast"], OTR_TUNE_MEASURE, "w");
    assert_eq!(bench.host("cached", &[gone]).0, [told(2, &[100, 0, 10])]);
    let gone = bench.measured().into_iter().filter(|line| line == "w gone");
    assert_eq!(gone.count(), 2);
}

#[test]
fn a_choice_is_measured_again_unless_a_person_has_pinned_it() {
    let bench = Bench::new("again");
    let asked = |flags, word| bench.asked("m", ALL, flags, word);
    let (answers, _) = bench.host(
        "cached",
        &[asked(OTR_TUNE_MEASURE, "one"), asked(OTR_TUNE_AGAIN, "two")],
    );
    assert_eq!(answers, [told(1, TIMES), told(1, TIMES)]);
    let both = [measured_all("one"), measured_all("two")].concat();
    assert_eq!(bench.measured(), both);
    // The choice is pinned as a person does it with `outrigger tune --json` and `--pin`.
    let mut choices = bench.choices();
    choices[0].chosen = "slow".to_owned();
    bench.tuner().pin(&choices).unwrap();
    let (answers, _) = bench.host("on", &[asked(OTR_TUNE_AGAIN, "three"), asked(0, "three")]);
    assert_eq!(answers, [told(2, TIMES), told(2, TIMES)]);
    assert_eq!(bench.measured(), both);
    // A candidate that is gone is not chosen, whoever wanted it.
    let others = bench.asked("m", &["default", "fast"], OTR_TUNE_MEASURE, "four");
    assert_eq!(bench.host("cached", &[others]).0, [told(1, &[100, 10])]);
}

#[test]
fn hosts_that_ask_at_a_time_measure_one_after_the_other() {
    let bench = Bench::new("threads");
    let asked: Vec<_> = (0..4)
        .map(|number| {
            let sizes = if number % 2 == 0 { "same" } else { "other" };
            let mut asked = bench.asked(sizes, ALL, OTR_TUNE_MEASURE, "w");
            asked["thread"] = json!(true);
            asked
        })
        .collect();
    assert_eq!(bench.host("cached", &asked).0, vec![told(1, TIMES); 4]);
    let one = measured_all("w");
    assert_eq!(bench.measured(), [one.clone(), one].concat());
}
