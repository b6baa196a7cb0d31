//! Shows the progress of a run: on a terminal a bar with counts and the time left, elsewhere a plain
//! line now and then. It names failures when they occur. It writes nothing else.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use outrigger_conformance::Test;
use outrigger_conformance::record::{Record, Totals};
use outrigger_conformance::report::Head;
use outrigger_conformance::runner::Watcher;

/// The time from one plain line about the run to the next.
const PLAIN_PERIOD: Duration = Duration::from_secs(10);

/// Shows a run.
pub(super) struct Progress {
    journal: PathBuf,
    terminal: bool,
    bar: ProgressBar,
    state: Mutex<State>,
}

struct State {
    started: Instant,
    /// When the last plain line was written.
    told: Instant,
    planned: u32,
    /// Tests that a run before this one did.
    before: u32,
}

impl Progress {
    pub(super) fn new(journal: &Path) -> Self {
        let now = Instant::now();
        Self {
            journal: journal.to_owned(),
            terminal: std::io::stderr().is_terminal(),
            bar: ProgressBar::new(0),
            state: Mutex::new(State {
                started: now,
                told: now,
                planned: 0,
                before: 0,
            }),
        }
    }

    fn line(&self, text: &str) {
        if self.terminal {
            self.bar.println(text);
        } else {
            // Nobody could be told that stderr is closed.
            let _ = writeln!(std::io::stderr().lock(), "{text}");
        }
    }
}

impl Watcher for Progress {
    fn begun(&self, head: &Head, done: &Totals) {
        let driver = &head.driver;
        self.line(&format!(
            "testing {} {} ({}) with {} of {} tests, seed {}; journal: {}",
            driver.name,
            driver.version,
            driver.spec,
            head.planned.len(),
            head.suite.tests,
            head.seed,
            self.journal.display()
        ));
        if done.all() > 0 {
            self.line(&format!("going on behind {} tests: {done}", done.all()));
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.planned = head.planned.len() as u32;
        state.before = done.all();
        drop(state);
        if self.terminal {
            self.bar.set_length(head.planned.len() as u64);
            self.bar.set_position(u64::from(done.all()));
            self.bar.reset_eta();
            let style = ProgressStyle::with_template(
                "{bar:30} {pos}/{len}, about {eta} left  {prefix}  {wide_msg}",
            );
            self.bar
                .set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            self.bar.enable_steady_tick(Duration::from_millis(200));
        }
    }

    fn started(&self, test: &Test) {
        self.bar.set_message(test.id);
    }

    fn ended(&self, record: &Record, totals: &Totals) {
        if record.status.is_failure() {
            self.line(&format!(
                "{}: {}: {}",
                record.status,
                record.id,
                record.brief()
            ));
        }
        if self.terminal {
            self.bar.set_position(u64::from(totals.all()));
            self.bar.set_prefix(totals.to_string());
            if totals.all() as u64 == self.bar.length().unwrap_or(0) {
                self.bar.finish_and_clear();
            }
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.told.elapsed() < PLAIN_PERIOD {
            return;
        }
        state.told = Instant::now();
        let (done, planned) = (totals.all(), state.planned);
        let here = f64::from((done - state.before).max(1));
        let left = state.started.elapsed().as_secs_f64() / here * f64::from(planned - done);
        drop(state);
        self.line(&format!(
            "{done} of {planned}: {totals}; about {left:.0} s left"
        ));
    }
}
