//! The worker process as its parent sees it. Requests and replies are lines of JSON; a reply has a mark in front, because
//! a driver or a compiler may print in the worker.

use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{MODE_VARIABLE, Starter};

/// Begins a line with a reply.
pub(crate) const MARK: &str = "outrigger-tune ";

/// The time between two looks at a worker that says nothing.
const LOOK: Duration = Duration::from_millis(100);

/// A request to measure.
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

/// The end of a measurement.
#[derive(Debug)]
pub(crate) enum Outcome {
    Time(u64),
    Failed(String),
    /// There is no process that could measure.
    NoWorker(String),
}

/// Workers that are kept running, so that one of each host and the library's own need not be started again and again.
const KEPT: usize = 4;

/// The mode of the tuner in a worker of a host: nothing is measured within a measurement.
const MODE_IN_WORKERS: &str = "cached";

/// The workers, the one that was used last at the end.
#[derive(Default)]
pub(crate) struct Workers(Vec<Worker>);

impl Workers {
    /// The worker of a command; without one, the library's own.
    pub(crate) fn of(&mut self, command: Option<&[String]>) -> &mut Worker {
        let place = self
            .0
            .iter()
            .position(|worker| worker.command.as_deref() == command);
        let worker = match place {
            Some(place) => self.0.remove(place),
            None => Worker {
                command: command.map(<[String]>::to_vec),
                running: None,
            },
        };
        if self.0.len() == KEPT {
            self.0.remove(0);
        }
        self.0.push(worker);
        let last = self.0.len() - 1;
        &mut self.0[last]
    }
}

/// The worker process of a command, if it runs.
pub(crate) struct Worker {
    command: Option<Vec<String>>,
    running: Option<Running>,
}

struct Running {
    child: Child,
    requests: UnixStream,
    replies: Receiver<String>,
    is_reaped: bool,
}

/// The reason why there is no reply.
enum Silence {
    /// The process has ended by itself and says that all is well: it had nothing to do for long.
    Left,
    Failed(String),
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
        if let Some(mut running) = self.running.take() {
            match running.ask(limit, candidate, task) {
                Ok(reply) => return self.replied(running, reply),
                Err(Silence::Left) => {}
                Err(Silence::Failed(reason)) => return Outcome::Failed(reason),
            }
        }
        let mut running = match self.start(starter) {
            Ok(running) => running,
            Err(reason) => return Outcome::NoWorker(reason),
        };
        match running.ask(limit, candidate, task) {
            Ok(reply) => self.replied(running, reply),
            Err(Silence::Failed(reason)) => Outcome::Failed(reason),
            Err(Silence::Left) => Outcome::Failed("the worker ended without a reply".to_owned()),
        }
    }

    fn replied(&mut self, running: Running, reply: Reply) -> Outcome {
        self.running = Some(running);
        match reply {
            Ok(time) => Outcome::Time(time),
            Err(reason) => Outcome::Failed(reason),
        }
    }

    fn start(&self, starter: &Starter) -> Result<Running, String> {
        let Some((program, arguments)) =
            self.command.as_ref().and_then(|words| words.split_first())
        else {
            return Running::start(starter()?);
        };
        let mut command = Command::new(program);
        command.args(arguments).env(MODE_VARIABLE, MODE_IN_WORKERS);
        Running::start(command)
    }
}

impl Running {
    fn start(mut command: Command) -> Result<Self, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        // Not a pipe: a write to a pipe of a process that has ended may end this one, by a signal.
        let (requests, input) = UnixStream::pair().map_err(|error| error.to_string())?;
        command
            .stdin(OwnedFd::from(input))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // So that it is ended with all that it has started.
            .process_group(0);
        let started = command.spawn();
        let mut child = started.map_err(|error| format!("{program} cannot be started: {error}"))?;
        // The command has the other end of the requests.
        drop(command);
        let output = child.stdout.take();
        let (sender, replies) = channel();
        let running = Self {
            child,
            requests,
            replies,
            is_reaped: false,
        };
        let output = output.ok_or("a process without pipes")?;
        let reader = move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if let Some(reply) = line.strip_prefix(MARK.as_bytes())
                    && sender
                        .send(String::from_utf8_lossy(reply).into_owned())
                        .is_err()
                {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("otr-tune".to_owned())
            .spawn(reader);
        thread.map_err(|error| format!("no thread reads what the worker says: {error}"))?;
        Ok(running)
    }

    /// The reply of the process, or why there is none.
    fn ask(&mut self, limit: Duration, candidate: &str, task: &Value) -> Result<Reply, Silence> {
        let request = Request {
            version: VERSION.to_owned(),
            candidate: candidate.to_owned(),
            task: task.clone(),
        };
        let line = serde_json::to_string(&request);
        let line = line.map_err(|error| Silence::Failed(error.to_string()))? + "\n";
        let end = Instant::now() + limit;
        // A line that nobody has asked for is no reply to this request.
        while self.replies.try_recv().is_ok() {}
        // A process that has ended, or reads nothing, is found out by its reply.
        self.write(line.as_bytes(), end);
        let reply = self.reply(end, limit)?;
        let read = serde_json::from_str(&reply).map_err(|error| error.to_string());
        let read = match read {
            Ok(Ok(0)) => Err("a time of 0 ns".to_owned()),
            read => read,
        };
        read.map_err(|error| Silence::Failed(format!("the worker's reply makes no sense: {error}")))
    }

    /// Writes until the process does not take any more.
    fn write(&self, mut bytes: &[u8], end: Instant) {
        while !bytes.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.requests.set_write_timeout(Some(left)).is_err() {
                return;
            }
            match rustix::net::send(&self.requests, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// The next reply. A process may have started others that keep its output open, so its end is looked for too.
    fn reply(&mut self, end: Instant, limit: Duration) -> Result<String, Silence> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.replies.recv_timeout(left.min(LOOK)) {
                Ok(reply) => return Ok(reply),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(left.min(LOOK) / 10),
            }
            if self.has_ended() {
                // Lines that the process has written before may be on their way.
                if let Ok(reply) = self.replies.recv_timeout(LOOK) {
                    return Ok(reply);
                }
                return Err(match self.end() {
                    Ok(status) if status.success() => Silence::Left,
                    Ok(status) => Silence::Failed(format!("the worker ended: {status}")),
                    Err(error) => Silence::Failed(format!("the worker ended: {error}")),
                });
            }
            if left.is_zero() {
                return Err(Silence::Failed(format!("it took longer than {limit:?}")));
            }
        }
    }

    fn id(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Whether the process has ended. Its id stays its own until [`Self::end`].
    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let waited = self.id().map(|id| waitid(WaitId::Pid(id), options));
        !matches!(waited, Some(Ok(None)))
    }

    /// Ends the process, and all that it has started, if it runs.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if !self.is_reaped {
            self.is_reaped = true;
            // An error says that nothing of it runs.
            let _ = self.id().map(|id| kill_process_group(id, Signal::KILL));
            let _ = self.child.kill();
        }
        self.child.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
