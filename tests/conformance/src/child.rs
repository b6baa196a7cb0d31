//! The process of one test: what it tells the runner, and how it ends. Only this process opens drivers
//! for tests.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::identity::DriverFacts;
use crate::verdict::place;
use crate::{Context, Failure, Figure, Need, Test, Verdict, helper};

/// The hidden command of the program by which a test is run: `--driver SPEC --seed N [ID]`. Without an id
/// it describes the driver.
pub const TEST_COMMAND: &str = "conformance-test";

/// The hidden command by which a test starts a second process: `--driver SPEC --seed N NAME`.
pub const HELPER_COMMAND: &str = "conformance-helper";

/// A line from the process of a test to the runner.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Message {
    /// The step that is tried next.
    Step(String),
    /// A remark for the report.
    Note(String),
    /// A measured number.
    Figure(Figure),
    /// The facts that the driver tells of itself.
    Driver(Box<DriverFacts>),
    /// The end. Nothing follows, and the process exits with 0.
    End(End),
}

/// The end of a test that ended by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    Pass,
    Fail(Failure),
    /// The driver does not declare these.
    Unsupported(Vec<Need>),
}

/// The places where threads panicked, with the texts.
static PANICS: Mutex<Vec<Failure>> = Mutex::new(Vec::new());

/// Runs one test in this process, or describes the driver where `id` is `None`. Standard input is the
/// socket on which the runner listens.
///
/// # Errors
/// If standard input is no such socket, or there is no test of this id.
pub fn run_test(id: Option<&str>, spec: &str, seed: u64) -> std::io::Result<()> {
    let runner = std::io::stdin().as_fd().try_clone_to_owned()?;
    // Without the signal, this process would outlive a runner that was killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // A crash is looked for here and costs a test; nobody looks at its core.
    rustix::process::setrlimit(
        rustix::process::Resource::Core,
        rustix::process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )?;
    keep_panics();
    let test = match id {
        None => None,
        Some(id) => Some(
            crate::test::find(id)
                .ok_or_else(|| std::io::Error::other(format!("there is no test `{id}`")))?,
        ),
    };
    let seed = id.map_or(seed, |id| seed_of(seed, id));
    let context = Context::new(spec, seed, Box::new(UnixStream::from(runner)));
    match test {
        Some(test) => {
            let end = run(test, &context);
            context.say(&Message::End(end));
        }
        None => context.say(&match DriverFacts::read(spec) {
            Ok(facts) => Message::Driver(Box::new(facts)),
            Err(failure) => Message::End(End::Fail(failure)),
        }),
    }
    Ok(())
}

/// The seed of a test in a run with a seed.
fn seed_of(seed: u64, id: &str) -> u64 {
    // FNV-1a: any function of both that never changes will do.
    let start = seed ^ 0xcbf2_9ce4_8422_2325;
    id.bytes().fold(start, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn run(test: &Test, context: &Context) -> End {
    match missing(test, context) {
        Ok(missing) if missing.is_empty() => match guarded(test.run, context) {
            Ok(()) => End::Pass,
            Err(failure) => End::Fail(failure),
        },
        Ok(missing) => End::Unsupported(missing),
        Err(failure) => End::Fail(failure),
    }
}

/// Does the work of a helper.
///
/// # Errors
/// That there is no such helper, or what it says.
pub fn run_helper(name: &str, spec: &str, seed: u64) -> Verdict {
    let Some(helper) = helper(name) else {
        return Err(Failure::new(format!("there is no helper `{name}`")));
    };
    (helper.run)(&Context::new(spec, seed, Box::new(std::io::sink())))
}

/// The capabilities that a test needs and the driver does not declare.
fn missing(test: &Test, context: &Context) -> Verdict<Vec<Need>> {
    if test.needs.is_empty() {
        return Ok(Vec::new());
    }
    let driver = context.open()?;
    let missing = test.needs.iter().copied();
    Ok(missing
        .filter(|need| !context.has(&driver, *need))
        .collect())
}

/// Runs a test; a panic in it, or in a thread that it started, is a failure with its text.
fn guarded(run: fn(&Context) -> Verdict, context: &Context) -> Verdict {
    // Nothing of the test is looked at after it panicked.
    let outcome = catch_unwind(AssertUnwindSafe(|| run(context)));
    let first = PANICS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .first()
        .cloned();
    match (outcome, first) {
        (Ok(Err(failure)), _) => Err(failure),
        (_, Some(panic)) => Err(panic),
        (Ok(Ok(())), None) => Ok(()),
        (Err(_), None) => Err(Failure::new("it panicked")),
    }
}

/// Keeps the text and the place of each panic instead of printing it.
fn keep_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("without a text");
        let mut failure = Failure::new(format!("it panicked: {text}"));
        failure.place = panic.location().map(place).unwrap_or_default();
        PANICS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(failure);
    }));
}
