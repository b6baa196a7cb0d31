//! One process for one test: starts it, reads its messages, and ends it with all processes that it
//! started. Whatever the driver does there, the runner continues.

use std::io::{PipeReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::child::{End, Message, TEST_COMMAND};
use crate::identity::DriverFacts;
use crate::record::{Record, Status};
use crate::{Failure, Test};

/// The bytes that are kept of what a process printed.
const KEPT_OUTPUT: usize = 8 << 10;

/// The time that a process may take to end once it closed its side, and its output to arrive.
const GRACE: Duration = Duration::from_secs(5);

/// The time that a driver may take to open and to describe itself.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(120);

/// The way in which the processes of a run are started.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// The program that knows the commands of [`child`](crate::child).
    pub(crate) program: PathBuf,
    /// The driver as it is asked for.
    pub(crate) spec: String,
    /// The seed of the run.
    pub(crate) seed: u64,
    /// By how much limits are stretched.
    pub(crate) limit_factor: f64,
}

/// The messages of a process, and how it ended.
struct Ended {
    messages: Vec<Message>,
    /// `None` if it was killed because its time was up.
    status: Option<ExitStatus>,
    output: String,
    elapsed: Duration,
}

impl Launch {
    /// Runs one test and writes down what became of it.
    ///
    /// # Errors
    /// If no process can be started.
    pub(crate) fn test(&self, test: &Test) -> std::io::Result<Record> {
        let limit = test.limit().mul_f64(self.limit_factor);
        Ok(record(test, limit, self.run(Some(test.id), limit)?))
    }

    /// Asks the driver what it says of itself.
    ///
    /// # Errors
    /// Why there is no answer, as a text for people.
    pub(crate) fn describe(&self) -> Result<DriverFacts, String> {
        let ended = self
            .run(None, DESCRIBE_LIMIT.mul_f64(self.limit_factor.max(1.0)))
            .map_err(|error| format!("no process can be started: {error}"))?;
        for message in ended.messages {
            match message {
                Message::Driver(facts) => return Ok(*facts),
                Message::End(End::Fail(failure)) => return Err(failure.message),
                _ => {}
            }
        }
        let how = match ended.status {
            Some(status) => format!("its process ended ({})", describe_status(status)),
            None => "it did not answer in time".to_owned(),
        };
        Err(format!("{how}\n{}", ended.output).trim_end().to_owned())
    }

    fn run(&self, id: Option<&str>, limit: Duration) -> std::io::Result<Ended> {
        let started = Instant::now();
        let (ours, theirs) = UnixStream::pair()?;
        let (output, writer) = std::io::pipe()?;
        let mut command = Command::new(&self.program);
        command
            .args([TEST_COMMAND, "--driver", &self.spec])
            .args(["--seed", &self.seed.to_string()])
            .args(id)
            .stdin(OwnedFd::from(theirs))
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .process_group(0);
        let mut process = command.spawn()?;
        // The command still holds the other ends of the pipe and the socket.
        drop(command);
        let output = collect(output);
        let deadline = started + limit;
        let messages = listen(ours, deadline);
        let status = match &messages {
            (_, true) => exit_of(&mut process, deadline.max(Instant::now() + GRACE)),
            (_, false) => None,
        };
        kill(&process);
        // Reaps it; it is dead or dying.
        process.wait()?;
        let elapsed = started.elapsed();
        Ok(Ended {
            messages: messages.0,
            status,
            output: output.recv_timeout(GRACE).unwrap_or_default(),
            elapsed,
        })
    }
}

/// Reads messages until the other side closes; false if the time was up before.
fn listen(mut stream: UnixStream, deadline: Instant) -> (Vec<Message>, bool) {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    let closed = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            break false;
        }
        match stream.read(&mut chunk) {
            Ok(0) => break true,
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) => match error.kind() {
                std::io::ErrorKind::Interrupted
                | std::io::ErrorKind::WouldBlock
                | std::io::ErrorKind::TimedOut => {}
                // The process died with bytes unread.
                _ => break true,
            },
        }
    };
    let lines = bytes.split(|byte| *byte == b'\n');
    let messages = lines.filter_map(|line| serde_json::from_slice(line).ok());
    (messages.collect(), closed)
}

/// Waits for the end of a process that has closed its side.
fn exit_of(process: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    let mut pause = Duration::from_micros(50);
    loop {
        match process.try_wait() {
            Ok(None) if Instant::now() < deadline => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
}

/// Ends a process and all that it started.
fn kill(process: &Child) {
    if let Some(group) = i32::try_from(process.id()).ok().and_then(Pid::from_raw) {
        // Nothing is left of it where all have ended.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Reads all that a process prints on a thread of its own, and keeps the end of it.
fn collect(mut pipe: PipeReader) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let (mut kept, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = pipe.read(&mut chunk) {
            kept.extend_from_slice(&chunk[..count]);
            if kept.len() > 2 * KEPT_OUTPUT {
                kept.drain(..kept.len() - KEPT_OUTPUT);
            }
        }
        kept.drain(..kept.len().saturating_sub(KEPT_OUTPUT));
        // Nobody listens any more where the process left others behind that outlived it.
        let _ = sender.send(String::from_utf8_lossy(&kept).trim_end().to_owned());
    });
    receiver
}

/// Turns what a process said and how it ended into a record.
fn record(test: &Test, limit: Duration, ended: Ended) -> Record {
    let mut record = Record {
        id: test.id.to_owned(),
        status: Status::Crash,
        micros: ended.elapsed.as_micros() as u64,
        failure: None,
        step: None,
        missing: Vec::new(),
        notes: Vec::new(),
        figures: Vec::new(),
        output: (!ended.output.is_empty()).then_some(ended.output),
        exception: None,
    };
    let mut end = None;
    for message in ended.messages {
        match message {
            Message::Step(step) => record.step = Some(step),
            Message::Note(note) => record.notes.push(note),
            Message::Figure(figure) => record.figures.push(figure),
            Message::End(said) => end = Some(said),
            Message::Driver(_) => {}
        }
    }
    let well = ended.status.is_some_and(|status| status.success());
    let (status, failure) = match (end, ended.status) {
        // A failure explains what came after it.
        (Some(End::Fail(failure)), _) if failure.device_lost => (Status::DeviceLost, Some(failure)),
        (Some(End::Fail(failure)), _) => (Status::Fail, Some(failure)),
        (Some(End::Pass), _) if well => match &record.output {
            None => (Status::Pass, None),
            Some(_) if test.compiler_prints => (Status::Pass, None),
            Some(_) => (
                Status::Fail,
                Some(nowhere("the driver printed something, which R6 forbids")),
            ),
        },
        (Some(End::Unsupported(missing)), _) if well => {
            record.missing = missing;
            (Status::Unsupported, None)
        }
        (said, None) => {
            let after = said.map_or("", |_| " after the test itself had ended, while it closed");
            let text = format!("it was killed after {} s{after}", limit.as_secs());
            (Status::Timeout, Some(nowhere(text)))
        }
        (said, Some(status)) => {
            let after = said.map_or("", |_| " after the test itself had ended, while it closed");
            let text = format!("its process ended{after}: {}", describe_status(status));
            (Status::Crash, Some(nowhere(text)))
        }
    };
    if !matches!(status, Status::Crash | Status::Timeout) {
        record.step = None;
    }
    record.status = status;
    record.failure = failure;
    record
}

/// A failure that no line of the suite found.
fn nowhere(message: impl Into<String>) -> Failure {
    Failure {
        place: String::new(),
        ..Failure::new(message)
    }
}

fn describe_status(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}{}", signal_name(signal)),
        None => format!("exit status {}", status.code().unwrap_or_default()),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGKILL => " (SIGKILL)",
        libc::SIGPIPE => " (SIGPIPE)",
        libc::SIGTERM => " (SIGTERM)",
        libc::SIGTRAP => " (SIGTRAP)",
        _ => "",
    }
}
