//! Runs the tests of a selection, several at a time, and keeps the journal. It never opens the driver in
//! its own process.

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::expect::{Expectations, Expected};
use crate::identity::Suite;
use crate::journal::{BadJournal, Journal};
use crate::process::Launch;
use crate::record::{Record, Status, Totals};
use crate::report::{FORMAT, Head, Report, Sealed};
use crate::select::{BadPattern, Selection};
use crate::{Test, Tier};

/// The run that is to be made: the tests, and how they run.
#[derive(Debug)]
pub struct Plan {
    /// The program that runs tests by [`TEST_COMMAND`](crate::TEST_COMMAND): usually the running one.
    pub program: PathBuf,
    /// The driver as it is asked for.
    pub driver: String,
    /// The tests that run.
    pub selection: Selection,
    /// The seed of all choices.
    pub seed: u64,
    /// The number of tests that run at a time; at least one does.
    pub jobs: usize,
    /// By how much the limits in time are stretched, for simulators and slow machines; above 0.
    pub limit_factor: f64,
    /// The failures that are known.
    pub expectations: Expectations,
    /// Ends the run after so many failures. Its report lacks the rest, and is refused by `verify`.
    pub max_failures: Option<u32>,
}

/// Hears of the tests of a run.
pub trait Watcher: Sync {
    /// The run knows what it is going to do; `done` tests are there from before.
    fn begun(&self, head: &Head, done: &Totals);
    /// A test has started.
    fn started(&self, test: &Test);
    /// A test has ended; `totals` counts it.
    fn ended(&self, record: &Record, totals: &Totals);
}

/// A run that could not be made or finished.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The driver cannot be opened, so that there is nothing to test.
    #[error("the driver {spec} cannot be tested: {reason}")]
    Driver {
        /// The driver as it was asked for.
        spec: String,
        /// The reason why the driver cannot be opened.
        reason: String,
    },
    /// The selection is none.
    #[error(transparent)]
    Selection(#[from] BadPattern),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] BadJournal),
    /// The run that is to go on was another one.
    #[error("this run cannot go on: {0}; start a new one without --resume")]
    Other(String),
    /// No process can be started.
    #[error("the process of a test cannot be started: {0}")]
    Process(#[from] std::io::Error),
}

impl Plan {
    /// Runs all of it, and keeps a journal in a new file.
    ///
    /// # Errors
    /// What kept it from running; never a failed test.
    pub fn run(self, journal: &Path, watcher: &dyn Watcher) -> Result<Report, RunError> {
        let head = self.head()?;
        let journal = Journal::create(journal, &head)?;
        self.finish(head, journal, Vec::new(), watcher)
    }

    fn head(&self) -> Result<Head, RunError> {
        let planned = self.selection.tests()?;
        let launch = self.launch();
        let driver = launch.describe().map_err(|reason| RunError::Driver {
            spec: self.driver.clone(),
            reason,
        })?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Head {
            format: FORMAT.to_owned(),
            run: format!("{:032x}", fastrand::u128(..)),
            started: since.map_or(0, |since| since.as_secs()),
            suite: Suite::current(),
            driver,
            host: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            layers: std::env::var("OUTRIGGER_LAYERS")
                .ok()
                .filter(|layers| !layers.is_empty()),
            seed: self.seed,
            limit_factor: self.limit_factor,
            selection: self.selection.clone(),
            planned: planned.iter().map(|test| test.id.to_owned()).collect(),
        })
    }

    fn launch(&self) -> Launch {
        Launch {
            program: self.program.clone(),
            spec: self.driver.clone(),
            seed: self.seed,
            limit_factor: self.limit_factor,
        }
    }

    fn finish(
        self,
        head: Head,
        journal: Journal,
        records: Vec<Sealed>,
        watcher: &dyn Watcher,
    ) -> Result<Report, RunError> {
        let totals = Totals::of(records.iter().map(|sealed| &sealed.record));
        watcher.begun(&head, &totals);
        let done: HashSet<&str> = records.iter().map(|s| s.record.id.as_str()).collect();
        let left = self.selection.tests()?.into_iter();
        let left = left.filter(|test| !done.contains(test.id));
        // Figures are taken when nothing else runs.
        let (figures, rest): (Vec<_>, Vec<_>) = left.partition(|test| test.tier() == Tier::Perf);
        drop(done);
        let state = State {
            queue: Mutex::new(VecDeque::new()),
            kept: Mutex::new(Kept {
                journal,
                records,
                totals,
                enough: false,
                error: None,
            }),
            launch: self.launch(),
            expectations: &self.expectations,
            max_failures: self.max_failures,
            watcher,
        };
        state.run(rest, self.jobs.max(1));
        if !lock(&state.kept).enough {
            state.run(figures, 1);
        }
        let kept = state
            .kept
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        match kept.error {
            Some(error) => Err(error),
            None => Ok(Report::new(head, kept.records)),
        }
    }
}

/// Goes on with a run that was killed, by its journal: with the same driver, seed and selection.
///
/// # Errors
/// If the journal is none, the suite or the driver are not those of the run, or as [`Plan::run`].
pub fn resume(
    program: PathBuf,
    jobs: usize,
    expectations: Expectations,
    max_failures: Option<u32>,
    journal: &Path,
    watcher: &dyn Watcher,
) -> Result<Report, RunError> {
    let (journal, head, records) = Journal::resume(journal)?;
    let plan = Plan {
        program,
        driver: head.driver.spec.clone(),
        selection: head.selection.clone(),
        seed: head.seed,
        jobs,
        limit_factor: head.limit_factor,
        expectations,
        max_failures,
    };
    let now = plan.head()?;
    if now.suite != head.suite {
        return Err(RunError::Other("the suite is another one".to_owned()));
    }
    if now.driver != head.driver {
        let what = match now.driver.file_sha256 == head.driver.file_sha256 {
            true => "it says something else of itself",
            false => "its file has changed",
        };
        return Err(RunError::Other(format!(
            "the driver is another one: {what}"
        )));
    }
    if now.layers != head.layers {
        return Err(RunError::Other(
            "OUTRIGGER_LAYERS is another one".to_owned(),
        ));
    }
    plan.finish(head, journal, records, watcher)
}

/// The state that the threads of a run share.
struct State<'a> {
    queue: Mutex<VecDeque<&'static Test>>,
    kept: Mutex<Kept>,
    launch: Launch,
    expectations: &'a Expectations,
    max_failures: Option<u32>,
    watcher: &'a dyn Watcher,
}

struct Kept {
    journal: Journal,
    records: Vec<Sealed>,
    totals: Totals,
    /// Whether there were as many failures as are looked for.
    enough: bool,
    /// The error that ended the run before its time.
    error: Option<RunError>,
}

impl State<'_> {
    fn run(&self, tests: Vec<&'static Test>, jobs: usize) {
        let jobs = jobs.min(tests.len());
        *lock(&self.queue) = tests.into();
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| self.work());
            }
        });
    }

    fn work(&self) {
        loop {
            let Some(test) = lock(&self.queue).pop_front() else {
                return;
            };
            self.watcher.started(test);
            let outcome = match self.expectations.of(test.id) {
                Some(exception) if exception.status == Expected::Waived && !exception.expired => {
                    Ok(waived(test))
                }
                _ => self.launch.test(test),
            };
            let mut kept = lock(&self.kept);
            let added = outcome.map_err(RunError::from).and_then(|mut record| {
                except(&mut record, self.expectations);
                Ok(kept.journal.add(record)?)
            });
            match added {
                Ok(sealed) => {
                    kept.totals.add(sealed.record.status);
                    self.watcher.ended(&sealed.record, &kept.totals);
                    kept.records.push(sealed);
                    if self
                        .max_failures
                        .is_some_and(|most| kept.totals.failures() >= most)
                    {
                        kept.enough = true;
                        lock(&self.queue).clear();
                    }
                }
                Err(error) => {
                    kept.error.get_or_insert(error);
                    lock(&self.queue).clear();
                    return;
                }
            }
        }
    }
}

/// Gives a record the outcome that the file of expectations makes of it. One that has expired changes
/// nothing, but is named.
fn except(record: &mut Record, expectations: &Expectations) {
    let Some(exception) = expectations.of(&record.id) else {
        return;
    };
    if !exception.expired && exception.status == Expected::Xfail {
        record.status = match record.status {
            Status::Pass => Status::Xpass,
            status if status.is_failure() => Status::Xfail,
            status => status,
        };
    }
    record.exception = Some(exception.clone());
}

fn waived(test: &Test) -> Record {
    Record {
        id: test.id.to_owned(),
        status: Status::Waived,
        micros: 0,
        failure: None,
        step: None,
        missing: Vec::new(),
        notes: Vec::new(),
        figures: Vec::new(),
        output: None,
        exception: None,
    }
}

/// A watcher that panicked has left nothing half done in here.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
