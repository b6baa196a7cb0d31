//! The context of a test: the driver under test, random numbers with a seed, and ways to report more than pass or fail.

use std::cell::RefCell;
use std::fmt::Debug;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use outrigger_device::Driver;
use outrigger_device_ops::with_kernels;
use proptest::strategy::Strategy;
use proptest::test_runner::{
    Config, RngAlgorithm, RngSeed, TestCaseError, TestError, TestRng, TestRunner,
};
use serde::{Deserialize, Serialize};

use crate::child::{HELPER_COMMAND, Message};
use crate::{Failure, Need, Verdict};

/// A measured number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The name of what was measured.
    pub name: String,
    /// The number.
    pub value: f64,
    /// The unit of the number.
    pub unit: String,
    /// The most that the device declares to reach, in the same unit.
    pub peak: Option<f64>,
}

/// The context of a test, made once, in the process of the test.
pub struct Context {
    spec: String,
    seed: u64,
    /// The way to the runner, for all that is said.
    out: Mutex<Box<dyn Write + Send>>,
}

impl Context {
    pub(crate) fn new(spec: &str, seed: u64, out: Box<dyn Write + Send>) -> Self {
        Self {
            spec: spec.to_owned(),
            seed,
            out: Mutex::new(out),
        }
    }

    /// The driver under test, as it is asked for: `NAME?OPTIONS` or `PATH?OPTIONS`.
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// Opens the driver under test, with all of its devices. Each call gives an independent one.
    ///
    /// # Errors
    /// The loader's reason.
    #[track_caller]
    pub fn open(&self) -> Verdict<Driver> {
        self.open_with("")
    }

    /// Opens it with more options, as `"memory=1M"`, behind those of the specification.
    ///
    /// # Errors
    /// The loader's reason.
    #[track_caller]
    pub fn open_with(&self, options: &str) -> Verdict<Driver> {
        let joint = match (options, self.spec.contains('?')) {
            ("", _) => "",
            (_, true) => "&",
            (_, false) => "?",
        };
        let spec = format!("{}{joint}{options}", self.spec);
        let place = Failure::new(String::new()).place;
        let opened = spec
            .parse()
            .and_then(|spec| Driver::open(&spec))
            .and_then(with_kernels)
            .and_then(|driver| {
                (0..driver.device_count()).try_for_each(|device| driver.open_device(device))?;
                Ok(driver)
            });
        opened.map_err(|error| {
            let mut failure = Failure::from(error).context(format!("opening the driver {spec}"));
            failure.place = place;
            failure
        })
    }

    /// Whether the driver declares a capability.
    pub fn has(&self, driver: &Driver, need: Need) -> bool {
        need.declared(driver, &self.spec)
    }

    /// The seed of the test: that of the run and its id. The same seed makes the same choices.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Random numbers from the seed.
    pub fn rng(&self) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed)
    }

    /// Says what is tried next. The report shows it if the test then crashes or hangs.
    pub fn step(&self, what: impl Into<String>) {
        self.say(&Message::Step(what.into()));
    }

    /// Says something that is worth a line in the report also where the test passes.
    pub fn note(&self, what: impl Into<String>) {
        self.say(&Message::Note(what.into()));
    }

    /// Reports a measured number; `peak` is what the device declares, in the same unit.
    pub fn figure(&self, name: &str, value: f64, unit: &str, peak: Option<f64>) {
        self.say(&Message::Figure(Figure {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            peak: peak.filter(|peak| *peak > 0.0),
        }));
    }

    /// Checks a property for `cases` random values. A value that fails is made as small as it still
    /// fails, and the failure names it and the seed that makes it again.
    ///
    /// # Errors
    /// What the property said of the smallest value.
    pub fn property<S: Strategy>(
        &self,
        cases: u32,
        values: S,
        property: impl Fn(S::Value) -> Verdict,
    ) -> Verdict
    where
        S::Value: Debug,
    {
        let config = Config {
            cases,
            failure_persistence: None,
            rng_algorithm: RngAlgorithm::ChaCha,
            rng_seed: RngSeed::Fixed(self.seed),
            ..Config::default()
        };
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        // The runner keeps a text only; the place is that of the last failure, which is the smallest's.
        let last: RefCell<Option<Failure>> = RefCell::new(None);
        let outcome = TestRunner::new_with_rng(config, rng).run(&values, |value| {
            property(value).map_err(|failure| {
                let text = failure.message.clone();
                *last.borrow_mut() = Some(failure);
                TestCaseError::fail(text)
            })
        });
        match (outcome, last.into_inner()) {
            (Ok(()), _) => Ok(()),
            (Err(TestError::Fail(reason, value)), last) => {
                let text = format!(
                    "{reason}\nsmallest failing value (seed {}): {value:#?}",
                    self.seed
                );
                let mut failure = Failure::new(text);
                if let Some(last) = last {
                    failure.place = last.place;
                    failure.device_lost = last.device_lost;
                }
                Err(failure)
            }
            (Err(TestError::Abort(reason)), _) => Err(Failure::new(format!(
                "the property could not be tried: {reason}"
            ))),
        }
    }

    /// The command that starts a second process with the same driver, which does the work of the
    /// [`Helper`](crate::Helper) of this name. Its standard input and output are pipes.
    ///
    /// # Errors
    /// If this program's own file is not known.
    pub fn helper(&self, name: &str) -> Verdict<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([HELPER_COMMAND, "--driver", &self.spec])
            .args(["--seed", &self.seed.to_string(), name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Ok(command)
    }

    pub(crate) fn say(&self, message: &Message) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // A runner that is gone cannot be told anything; it has also asked the system to end this process.
        if let Ok(mut line) = serde_json::to_vec(message) {
            line.push(b'\n');
            let _ = out.write_all(&line).and_then(|()| out.flush());
        }
    }
}
