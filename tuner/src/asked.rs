//! Questions of a host, whose variants only a worker of the host's own can run.

use std::time::Duration;

use serde_json::Value;

use crate::{Known, Mode, Question, Tuner, Way, tried};

/// A question that a host asks.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The question.
    pub question: Question,
    /// The names of the variants. The first one is the default.
    pub candidates: Vec<String>,
    /// The time that a candidate may take, if it is not the usual one.
    pub limit: Option<Duration>,
    /// The command that starts the worker: the program, then its arguments. Without it nothing is measured.
    pub worker: Option<Vec<String>>,
    /// The task that the worker gets. Without it nothing is measured.
    pub task: Option<Value>,
    /// Whether what is not known is measured, also in [`Mode::Cached`].
    pub measure: bool,
    /// Whether it is measured though it is known, but for a pinned choice.
    pub again: bool,
}

/// The answer that a host gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number of a candidate.
    pub chosen: usize,
    /// The time of each candidate in nanoseconds; none for one that failed or was not measured.
    pub times: Vec<Option<u64>>,
}

impl Tuner {
    /// The variant that a host is to use.
    pub fn answer(&self, asked: &Asked) -> Answer {
        let Asked {
            question,
            candidates,
            ..
        } = asked;
        let default = Answer {
            chosen: 0,
            times: vec![None; candidates.len()],
        };
        if let Some(chosen) = tried(candidates) {
            return Answer { chosen, ..default };
        }
        if self.mode == Mode::Off || candidates.len() < 2 {
            return default;
        }
        let mut known = self.known(question, candidates);
        let may_measure = self.mode == Mode::On || asked.measure;
        if let (Some(command), Some(task)) = (&asked.worker, &asked.task)
            && (asked.again || may_measure && matches!(known, Known::Nothing))
        {
            let way = Way {
                command: Some(command),
                limit: asked.limit.unwrap_or(self.limit),
                again: asked.again,
            };
            known = self.measured(question, candidates, task, way);
        }
        let Known::Choice(choice) = &known else {
            return default;
        };
        Answer {
            chosen: known.place(candidates),
            times: candidates.iter().map(|name| choice.time(name)).collect(),
        }
    }
}
