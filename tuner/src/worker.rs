//! The worker process as its parent sees it. Requests and replies are lines of JSON; a reply has a mark in front, because
//! a driver or a compiler may print in the worker.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Starter;

/// Begins a line with a reply.
pub(crate) const MARK: &str = "outrigger-tune ";

/// What is to be measured.
#[derive(Serialize, Deserialize)]
pub(crate) struct Request {
    /// Of who asks: the same candidate of another version may be something else.
    pub(crate) version: String,
    pub(crate) candidate: String,
    pub(crate) task: Value,
}

/// The version of this library.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The time of a candidate in nanoseconds, or why it failed.
pub(crate) type Reply = Result<u64, String>;

/// How a measurement ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Time(u64),
    Failed(String),
    /// There is no process that could measure.
    NoWorker(String),
}

/// The worker process, if it runs.
#[derive(Default)]
pub(crate) struct Worker {
    running: Option<Running>,
}

struct Running {
    child: Child,
    requests: ChildStdin,
    replies: Receiver<String>,
}

impl Worker {
    /// Measures a candidate, in a new process if none runs. A process that crashed, or took too long and was ended, has
    /// failed the candidate.
    pub(crate) fn measure(
        &mut self,
        starter: &Starter,
        limit: Duration,
        candidate: &str,
        task: &Value,
    ) -> Outcome {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => match starter().and_then(Running::start) {
                Ok(running) => running,
                Err(reason) => return Outcome::NoWorker(reason),
            },
        };
        match running.ask(limit, candidate, task) {
            Ok(reply) => {
                self.running = Some(running);
                match reply {
                    Ok(time) => Outcome::Time(time),
                    Err(reason) => Outcome::Failed(reason),
                }
            }
            // The process ends with `running`.
            Err(reason) => Outcome::Failed(reason),
        }
    }
}

impl Running {
    fn start(mut command: Command) -> Result<Self, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let started = command.spawn();
        let mut child = started.map_err(|error| format!("{program} cannot be started: {error}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, output) = pipes.ok_or("a process without pipes")?;
        let (sender, replies) = channel();
        let reader = move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(reply) = line.strip_prefix(MARK)
                    && sender.send(reply.to_owned()).is_err()
                {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("otr-tune".to_owned())
            .spawn(reader);
        let running = Self {
            child,
            requests,
            replies,
        };
        thread.map_err(|error| format!("no thread reads what the worker says: {error}"))?;
        Ok(running)
    }

    /// The reply of the process, or why there is none.
    fn ask(&mut self, limit: Duration, candidate: &str, task: &Value) -> Result<Reply, String> {
        let request = Request {
            version: VERSION.to_owned(),
            candidate: candidate.to_owned(),
            task: task.clone(),
        };
        let line = serde_json::to_string(&request).map_err(|error| error.to_string())?;
        let end = Instant::now() + limit;
        // A process that has ended is found out by its reply.
        let _ = writeln!(self.requests, "{line}").and_then(|()| self.requests.flush());
        match self
            .replies
            .recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            Ok(reply) => serde_json::from_str(&reply)
                .map_err(|error| format!("the worker's reply makes no sense: {error}")),
            Err(RecvTimeoutError::Timeout) => Err(format!("it took longer than {limit:?}")),
            Err(RecvTimeoutError::Disconnected) => Err(match self.child.wait() {
                Ok(status) => format!("the worker ended: {status}"),
                Err(error) => format!("the worker ended: {error}"),
            }),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error says that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
