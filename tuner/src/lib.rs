//! The project's one tuner. Code that exists in several variants asks it which one to use: [`Tuner::choose`] gives the
//! choice that is kept in the store, or measures the candidates once if it may.
//!
//! Candidates are measured in a worker process, one after the other, so that one that crashes, hangs or corrupts memory harms
//! nobody. It has failed then, and the next one gets a new worker. The worker of the library's own kernels is the command
//! `outrigger tune --worker`, which calls [`serve`]. A host that asks ([`Tuner::answer`]) brings the command of its own.
//!
//! The crate never knows what it measures: a candidate is a name, and a task is JSON that the worker understands. It
//! must never measure in the process that asks, and never fail a call: who asks gets the default variant at worst.
//!
//! # Words
//!
//! - *Question*: a kernel, a class of sizes and a device, for which one variant is the best.
//! - *Candidate*: the name of a variant. The first one of a list is the default.
//! - *Choice*: the answer to a question, measured or pinned by a person.
//! - *Task*: what the worker has to run to measure the candidates of a question.

#![forbid(unsafe_code)]

mod asked;
mod choice;
mod mode;
mod serve;
mod worker;

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_locks::{Mutex, Rank};
use outrigger_store::Store;
use serde_json::Value;

pub use asked::{Answer, Asked};
pub use choice::{Choice, Question, hash};
pub use mode::{MODE_VARIABLE, Mode, WORKER_VARIABLE};
pub use serve::{serve, trying};
use worker::{Outcome, Workers};

/// The time that a candidate may take, with the compilation of its code.
const LIMIT: Duration = Duration::from_secs(30);

/// A function that makes the command which starts a worker, or says why there is none.
pub type Starter = Box<dyn Fn() -> Result<Command, String> + Send + Sync>;

/// Gives the choices, over a store.
pub struct Tuner {
    store: Store,
    mode: Mode,
    starter: Starter,
    limit: Duration,
    /// The answers of this process. A question is looked up on the disk once.
    known: Mutex<HashMap<Question, Known>>,
    /// Whether it was said that something cannot be measured.
    said: AtomicBool,
    /// The thread that measures holds the workers, and others wait, so that two candidates never run at a time.
    workers: Mutex<Workers>,
}

/// The state of a question in this process.
#[derive(Clone, Debug)]
enum Known {
    /// No choice was kept when the store was read.
    Nothing,
    /// The question was measured, and nothing can be chosen.
    Failed,
    Choice(Arc<Choice>),
}

impl Known {
    /// Whether it says anything about these candidates.
    fn fits(&self, candidates: &[String]) -> bool {
        match self {
            Self::Nothing | Self::Failed => true,
            Self::Choice(choice) => candidates.contains(&choice.chosen),
        }
    }

    /// The chosen candidate; the default if there is no choice.
    fn place(&self, candidates: &[String]) -> usize {
        let Self::Choice(choice) = self else { return 0 };
        let place = candidates.iter().position(|one| *one == choice.chosen);
        place.unwrap_or(0)
    }
}

/// The conditions under which candidates are measured.
#[derive(Clone, Copy)]
struct Way<'a> {
    /// The command that starts the worker, if a host brings it.
    command: Option<&'a [String]>,
    /// The time that a candidate may take.
    limit: Duration,
    /// Whether to measure also if there is a choice, but for a pinned one.
    again: bool,
}

/// The reason why a setting makes no sense, or the error of the disk.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Problem(pub(crate) String);

impl Tuner {
    /// A tuner over a store, whose worker `starter` starts.
    pub fn new(store: Store, mode: Mode, starter: Starter) -> Self {
        Self {
            store,
            mode,
            starter,
            limit: LIMIT,
            said: AtomicBool::new(false),
            known: Mutex::new(Rank::TunedChoices, HashMap::new()),
            workers: Mutex::new(Rank::Tuning, Workers::default()),
        }
    }

    /// The same with another limit for the time of a candidate.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The variant for a question: a number in `candidates`. `task` is asked for if they are to be measured; `None`: the
    /// worker could not run it. A question with fewer than two candidates is none.
    pub fn choose(
        &self,
        question: &Question,
        candidates: &[String],
        task: impl FnOnce() -> Option<Value>,
    ) -> usize {
        if let Some(place) = tried(candidates) {
            return place;
        }
        if self.mode == Mode::Off || candidates.len() < 2 {
            return 0;
        }
        let mut known = self.known(question, candidates);
        if matches!(known, Known::Nothing)
            && self.mode == Mode::On
            && let Some(task) = task()
        {
            known = self.measured(question, candidates, &task, self.way(false));
        }
        known.place(candidates)
    }

    /// Measures all candidates of a question, and keeps the choice, if there is none yet; `again`: if there is no pinned one.
    ///
    /// # Errors
    /// That the worker cannot be started, or why each candidate failed.
    pub fn measure(
        &self,
        question: &Question,
        candidates: &[String],
        task: &Value,
        again: bool,
    ) -> Result<Choice, Problem> {
        let choice = self.measure_by(question, candidates, task, self.way(again))?;
        Ok(Arc::unwrap_or_clone(choice))
    }

    fn measure_by(
        &self,
        question: &Question,
        candidates: &[String],
        task: &Value,
        way: Way<'_>,
    ) -> Result<Arc<Choice>, Problem> {
        let mut workers = self.workers.lock();
        // The thread that held the workers may have measured the same.
        let before = self.known.lock().get(question).cloned();
        match before.filter(|known| !way.again && known.fits(candidates)) {
            Some(Known::Choice(choice)) => return Ok(choice),
            Some(Known::Failed) => return Err(Problem("it has failed before".to_owned())),
            Some(Known::Nothing) | None => {}
        }
        let kept = self.stored(question, candidates);
        let choice = match kept.filter(|choice| !way.again || choice.pinned) {
            Some(choice) => Ok(Arc::new(choice)),
            None => self.run(&mut workers, question, candidates, task, way),
        };
        let known = match &choice {
            Ok(choice) => Known::Choice(Arc::clone(choice)),
            Err(_) => Known::Failed,
        };
        self.known.lock().insert(question.clone(), known);
        choice
    }

    fn run(
        &self,
        workers: &mut Workers,
        question: &Question,
        candidates: &[String],
        task: &Value,
        way: Way<'_>,
    ) -> Result<Arc<Choice>, Problem> {
        let (mut choice, mut reasons) = (Choice::new(question.clone()), Vec::new());
        let worker = workers.of(way.command);
        let mut measure = |name: &String| match worker.measure(&self.starter, way.limit, name, task)
        {
            Outcome::Time(time) => Ok(Some(time)),
            Outcome::NoWorker(reason) => {
                Err(Problem(format!("the worker cannot be started: {reason}")))
            }
            Outcome::Failed(reason) => {
                tracing::warn!(target: "outrigger::tune", %question, candidate = name, reason, "a candidate failed");
                reasons.push(format!("{name}: {reason}"));
                Ok(None)
            }
        };
        for name in candidates {
            choice.measured.insert(name.clone(), measure(name)?);
        }
        let undecided = choice.undecided(candidates);
        if undecided.len() > 1 {
            // Compilers or other work may have run beside one of them.
            for name in undecided {
                let both = choice.time(name).zip(measure(name)?);
                let time = both.map(|(before, now)| before.min(now));
                choice.measured.insert(name.clone(), time);
            }
        }
        let Some(best) = choice.best(candidates) else {
            return Err(Problem(format!(
                "every candidate failed: {}",
                reasons.join("; ")
            )));
        };
        choice.chosen = best.clone();
        tracing::info!(target: "outrigger::tune", %question, chosen = choice.chosen,
            measured = ?choice.measured, "candidates were measured");
        self.keep(&choice);
        Ok(Arc::new(choice))
    }

    /// All choices of the store.
    ///
    /// # Errors
    /// What the system answers where the folder cannot be read.
    pub fn choices(&self) -> Result<Vec<Choice>, Problem> {
        let values = self.store.values(choice::KIND);
        let values =
            values.map_err(|error| Problem(format!("the store cannot be read: {error}")))?;
        let mut choices: Vec<_> = values
            .iter()
            .filter_map(|value| Choice::read(value))
            .collect();
        choices.sort_by(|a, b| a.question.cmp(&b.question));
        Ok(choices)
    }

    /// Keeps choices as a person wants them: they are not measured again.
    ///
    /// # Errors
    /// If the store does not keep one.
    pub fn pin(&self, choices: &[Choice]) -> Result<(), Problem> {
        for choice in choices {
            let pinned = Choice {
                pinned: true,
                ..choice.clone()
            };
            if !self.keep(&pinned) {
                let why = self.store.folder().err().unwrap_or("the disk refuses it");
                return Err(Problem(format!("nothing can be kept: {why}")));
            }
        }
        Ok(())
    }

    /// Removes choices, also pinned ones: their questions are open again.
    pub fn forget(&self, choices: &[Choice]) {
        for choice in choices {
            self.store.remove(&choice.question.key());
        }
        self.known.lock().clear();
    }

    /// The state of a question after a measurement that nobody waits to hear about.
    fn measured(
        &self,
        question: &Question,
        candidates: &[String],
        task: &Value,
        way: Way<'_>,
    ) -> Known {
        match self.measure_by(question, candidates, task, way) {
            Ok(choice) => Known::Choice(choice),
            Err(problem) => {
                if self.said.swap(true, Ordering::Relaxed) {
                    tracing::debug!(target: "outrigger::tune", %question, %problem, "nothing was chosen");
                } else {
                    tracing::warn!(target: "outrigger::tune", %question, %problem,
                        "nothing was chosen; the default is used");
                }
                Known::Failed
            }
        }
    }

    /// The way of the library's own kernels.
    fn way(&self, again: bool) -> Way<'_> {
        Way {
            command: None,
            limit: self.limit,
            again,
        }
    }

    /// The state of a question in this process, or in the store.
    fn known(&self, question: &Question, candidates: &[String]) -> Known {
        let in_memory = || {
            let known = self.known.lock().get(question).cloned();
            known.filter(|known| known.fits(candidates))
        };
        if let Some(known) = in_memory() {
            return known;
        }
        let stored = self.stored(question, candidates);
        let found = stored.map_or(Known::Nothing, |choice| Known::Choice(Arc::new(choice)));
        // A thread that measured meanwhile knows more.
        if let Some(known) = in_memory() {
            return known;
        }
        self.known.lock().insert(question.clone(), found.clone());
        found
    }

    fn keep(&self, choice: &Choice) -> bool {
        choice
            .write()
            .is_some_and(|value| self.store.put(&choice.question.key(), &value))
    }

    /// The choice that is kept, if it is one of the candidates.
    fn stored(&self, question: &Question, candidates: &[String]) -> Option<Choice> {
        let key = question.key();
        let value = self.store.get(&key)?;
        let choice = Choice::read(&value).filter(|choice| choice.question == *question);
        match choice {
            Some(choice) if candidates.contains(&choice.chosen) => {
                tracing::debug!(target: "outrigger::tune", %question, chosen = choice.chosen,
                    pinned = choice.pinned, "a choice is used");
                Some(choice)
            }
            Some(choice) => {
                tracing::warn!(target: "outrigger::tune", %question, chosen = choice.chosen,
                    "a choice is ignored: there is no such candidate");
                None
            }
            None => {
                tracing::warn!(target: "outrigger::tune", %question, "what is kept is no choice; it is removed");
                self.store.remove(&key);
                None
            }
        }
    }
}

/// The candidate that this thread tries, if it is a worker's.
fn tried(candidates: &[String]) -> Option<usize> {
    let name = serve::tried()?;
    let place = candidates.iter().position(|one| *one == name);
    Some(place.unwrap_or(0))
}

impl std::fmt::Debug for Tuner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tuner")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
