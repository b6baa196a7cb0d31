//! Profiles: what streams were given, by whom, and when it ran. It must cost one load where no profile runs, and never
//! wait for work.
//!
//! A command is timed by two events of the driver around it. Where the driver has no timestamps, a host call behind the
//! command takes the host's time instead, and the command begins where the one before it ended, or when it was submitted.
//! A profile is of the queues that have a [`Stream`]: those of the runtime itself may record graphs, where an event
//! has no time.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use outrigger_locks::{Mutex, Rank};

use crate::{Code, Driver, Error, Event, Queue, Result, sys};

/// What kind of work a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A kernel.
    Kernel,
    /// An operator of the driver.
    Operator,
    /// A copy.
    Copy,
    /// A fill.
    Fill,
    /// A function of the host.
    HostCall,
    /// A graph of the driver, as a whole.
    Graph,
    /// Work that several devices do together.
    Collective,
}

/// Whose clock has measured when a command ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The device's.
    Device,
    /// The host's, when the command was submitted and when a host call behind it ran.
    Host,
}

/// One command. Times are nanoseconds of the host's clock since 1970; those of a device are converted to it.
#[derive(Clone, Debug)]
pub struct Work {
    /// The kind.
    pub kind: WorkKind,
    /// The name: of the kernel or the operator, or what the command does.
    pub name: Cow<'static, str>,
    /// How many bytes are moved or written; 0 for other kinds.
    pub bytes: u64,
    /// The stream that was given the command.
    pub stream: Stream,
    /// The thread that submitted it, by the number of the operating system.
    pub thread: u64,
    /// What the thread had [chosen](correlate).
    pub correlation: u64,
    /// Begin and end of the submission.
    pub submitted: (u64, u64),
    /// Begin and end of the work; `None` unless it has finished without a failure.
    pub ran: Option<(u64, u64)>,
    /// Whose clock has measured it.
    pub clock: Clock,
    /// `NOT_READY` if the work had not finished when the profile ended; the failure of its stream.
    pub outcome: Code,
}

/// Which stream a queue is, in the numbers of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The device.
    pub device: u32,
    /// The stream.
    pub id: u64,
}

/// What is known of a command when it is submitted.
pub(crate) struct What {
    pub(crate) kind: WorkKind,
    pub(crate) name: Cow<'static, str>,
    pub(crate) bytes: u64,
}

impl What {
    pub(crate) fn new(kind: WorkKind, name: impl Into<Cow<'static, str>>, bytes: u64) -> Self {
        let name = name.into();
        Self { kind, name, bytes }
    }
}

/// The number of the profile that runs; 0: none.
static RUNNING: AtomicU64 = AtomicU64::new(0);
/// The queues that were used in the profile that runs. Who starts or stops a profile has it locked.
static LANES: Mutex<Vec<Arc<Lane>>> = Mutex::new(Rank::ProfiledQueues, Vec::new());

thread_local! {
    static CORRELATION: Cell<u64> = const { Cell::new(0) };
}

/// Starts a profile: from now on it is noted what streams are given.
///
/// # Errors
/// `BUSY` if a profile runs already.
pub fn start() -> Result<()> {
    static STARTED: AtomicU64 = AtomicU64::new(0);
    let mut lanes = LANES.lock();
    if is_on() {
        return Err(Error::new(
            Code::BUSY,
            "a profile runs already: there is one per process, so stop it first",
        ));
    }
    lanes.clear();
    let number = STARTED.fetch_add(1, Ordering::Relaxed) + 1;
    RUNNING.store(number, Ordering::Release);
    Ok(())
}

/// Ends the profile, and returns what its streams were given, in the order of submission. Does not wait: what has not
/// finished is told as such.
///
/// # Errors
/// `INVALID_ARGUMENT` if no profile runs.
pub fn stop() -> Result<Vec<Work>> {
    let (number, lanes) = {
        let mut lanes = LANES.lock();
        (
            RUNNING.swap(0, Ordering::AcqRel),
            std::mem::take(&mut *lanes),
        )
    };
    if number == 0 {
        return Err(Error::new(
            Code::INVALID_ARGUMENT,
            "no profile runs: start one first",
        ));
    }
    let mut all = Vec::new();
    for lane in lanes {
        lane.end(number, &mut all);
    }
    all.sort_by_key(|work| work.submitted);
    Ok(all)
}

/// Chooses the number that the commands of this thread are told with from now on, and returns the one before. Every
/// thread starts with 0.
pub fn correlate(id: u64) -> u64 {
    CORRELATION.replace(id)
}

/// Whether a profile runs.
#[inline]
pub(crate) fn is_on() -> bool {
    RUNNING.load(Ordering::Relaxed) != 0
}

/// The host's clock.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// A queue as profiles see it.
#[derive(Debug)]
pub(crate) struct Lane {
    stream: Stream,
    /// A turn: what two threads submit at a time would else lie between each other's events.
    commands: Mutex<Commands>,
}

#[derive(Debug)]
struct Commands {
    /// The profile that all else here is of.
    profile: u64,
    /// The device's clock, when the profile first met the queue.
    begun: Option<Instant>,
    pending: VecDeque<(Work, Times)>,
    done: Vec<Work>,
    spare: Vec<Event>,
    /// Where the last command ended that the host's clock has measured.
    last: u64,
}

/// One moment on the clocks of host and device.
#[derive(Clone, Copy, Debug)]
struct Instant {
    host: u64,
    device: u64,
}

/// What tells when a command ran.
#[derive(Debug)]
enum Times {
    Device(Event, Event),
    Host(Arc<Ended>),
    Unknown,
}

/// When a host call behind a command ran; 0: not yet.
#[derive(Debug, Default)]
struct Ended {
    at: AtomicU64,
    upstream: AtomicI32,
}

impl Lane {
    pub(crate) fn new(stream: Stream) -> Self {
        let commands = Commands {
            profile: 0,
            begun: None,
            pending: VecDeque::new(),
            done: Vec::new(),
            spare: Vec::new(),
            last: 0,
        };
        Self {
            stream,
            commands: Mutex::new(Rank::ProfiledQueue, commands),
        }
    }

    /// Submits a command, and notes it.
    #[cold]
    #[inline(never)] // its arguments stay in registers where no profile runs
    pub(crate) fn submit(
        self: &Arc<Self>,
        queue: &Queue,
        what: What,
        command: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut commands = self.commands.lock();
        let profile = RUNNING.load(Ordering::Acquire);
        if profile == 0
            || (commands.profile != profile && !self.enter(&mut commands, profile, queue))
        {
            return command();
        }
        let begin = commands.point(queue);
        let from = now();
        let submitted = command();
        let to = now();
        if let Err(error) = submitted {
            commands.spare.extend(begin);
            return Err(error);
        }
        let times = match begin {
            Some(begin) => match commands.point(queue) {
                Some(end) => Times::Device(begin, end),
                None => Times::Unknown,
            },
            None if has_clock(queue.driver()) => Times::Unknown,
            None => mark(queue),
        };
        let work = Work {
            kind: what.kind,
            name: what.name,
            bytes: what.bytes,
            stream: self.stream,
            thread: rustix::thread::gettid().as_raw_nonzero().get() as u64,
            correlation: CORRELATION.get(),
            submitted: (from, to),
            ran: None,
            clock: match times {
                Times::Host(_) => Clock::Host,
                _ => Clock::Device,
            },
            outcome: Code::NOT_READY,
        };
        commands.pending.push_back((work, times));
        commands.harvest();
        Ok(())
    }

    /// Joins a profile; `false` if it has just ended.
    fn enter(self: &Arc<Self>, commands: &mut Commands, profile: u64, queue: &Queue) -> bool {
        let begun = look(queue.driver(), queue.device());
        let mut lanes = LANES.lock();
        if RUNNING.load(Ordering::Relaxed) != profile {
            return false;
        }
        lanes.push(Arc::clone(self));
        drop(lanes);
        *commands = Commands {
            profile,
            begun,
            pending: VecDeque::new(),
            done: Vec::new(),
            spare: std::mem::take(&mut commands.spare),
            last: 0,
        };
        true
    }

    /// Gives what was noted in a profile that has ended.
    fn end(&self, profile: u64, to: &mut Vec<Work>) {
        let mut commands = self.commands.lock();
        if commands.profile != profile {
            return;
        }
        commands.harvest();
        let left = std::mem::take(&mut commands.pending);
        let used = left.iter().find_map(|(_, times)| times.event());
        let event = used.or_else(|| commands.spare.first());
        let ended = event.and_then(|event| look(event.driver(), event.device()));
        let mut done = std::mem::take(&mut commands.done);
        done.extend(left.into_iter().map(|(work, _)| work));
        for work in &mut done {
            if let (Clock::Device, Some(ran)) = (work.clock, work.ran) {
                let from = convert(ran.0, commands.begun, ended);
                let to = convert(ran.1, commands.begun, ended);
                // Two clocks are compared with an error: nothing runs before it was submitted.
                work.ran = from.zip(to).map(|(from, to)| {
                    let from = from.max(work.submitted.0);
                    (from, to.max(from))
                });
            }
        }
        to.append(&mut done);
        commands.spare.clear();
        commands.profile = 0;
    }
}

impl Commands {
    /// An event with a time behind what the queue was given so far; `None` if there is none.
    fn point(&mut self, queue: &Queue) -> Option<Event> {
        if !has_clock(queue.driver()) {
            return None;
        }
        let event = match self.spare.pop() {
            Some(event) => event,
            None => queue.driver().event_create(queue.device(), true).ok()?,
        };
        event.record(queue).ok().map(|()| event)
    }

    /// Takes what has finished out of the commands that wait for it, so that few events are in use at a time.
    fn harvest(&mut self) {
        while let Some((mut work, times)) = self.pending.pop_front() {
            match times.read() {
                Ok(None) => {
                    self.pending.push_front((work, times));
                    return;
                }
                Ok(Some(ran)) => {
                    work.outcome = Code::OK;
                    work.ran = Some(match work.clock {
                        Clock::Device => ran,
                        Clock::Host => (self.last.max(work.submitted.0), ran.1),
                    });
                    if work.clock == Clock::Host {
                        self.last = ran.1;
                    }
                }
                Err(code) => work.outcome = code,
            }
            self.done.push(work);
            if let Times::Device(begin, end) = times {
                self.spare.extend([begin, end]);
            }
        }
    }
}

impl Times {
    fn event(&self) -> Option<&Event> {
        match self {
            Self::Device(_, end) => Some(end),
            _ => None,
        }
    }

    /// Begin and end on the clock that measures; `None` if the command has not finished.
    fn read(&self) -> Result<Option<(u64, u64)>, Code> {
        match self {
            Self::Device(begin, end) => {
                let Some(to) = end.time_ns().map_err(|error| error.code())? else {
                    return Ok(None);
                };
                let from = begin.time_ns().map_err(|error| error.code())?;
                Ok(from.map(|from| (from, to)))
            }
            Self::Host(ended) => match ended.at.load(Ordering::Acquire) {
                0 => Ok(None),
                at => match ended.upstream.load(Ordering::Relaxed) {
                    0 => Ok(Some((at, at))),
                    code => Err(Code(code)),
                },
            },
            Self::Unknown => Err(Code::UNSUPPORTED),
        }
    }
}

fn has_clock(driver: &Driver) -> bool {
    driver.table().timing.is_some()
}

/// A host call behind a command that takes the time.
fn mark(queue: &Queue) -> Times {
    let ended = Arc::new(Ended::default());
    let user = Arc::into_raw(Arc::clone(&ended)).cast_mut();
    let flags = sys::OTR_HOST_CALL_CANNOT_FAIL;
    // SAFETY: R27: `end` is called once with `user` on any thread, and does not unwind.
    let submitted = unsafe { queue.call_unprofiled(end, user.cast(), flags) };
    if submitted.is_err() {
        // SAFETY: R4: a failed submission has changed nothing, so the pointer is still ours.
        drop(unsafe { Arc::from_raw(user) });
        return Times::Unknown;
    }
    Times::Host(ended)
}

/// # Safety
/// `user` is an `Arc<Ended>`, which is used up.
unsafe extern "C" fn end(user: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: R27: called once, with what `Arc::into_raw` gave.
    let ended = unsafe { Arc::from_raw(user.cast::<Ended>()) };
    ended.upstream.store(upstream, Ordering::Relaxed);
    ended.at.store(now(), Ordering::Release);
    upstream
}

/// Looks at both clocks; `None` if the driver has none, or does not tell.
fn look(driver: &Driver, device: u32) -> Option<Instant> {
    // The look that took least time is the nearest to one moment.
    let mut best = None;
    for _ in 0..5 {
        let from = now();
        let device = driver.device_time_ns(device).ok()??;
        let to = now();
        let host = from + to.saturating_sub(from) / 2;
        let took = to.saturating_sub(from);
        if best.is_none_or(|(least, _)| took < least) {
            best = Some((took, Instant { host, device }));
        }
    }
    best.map(|(_, instant)| instant)
}

/// A time of the device on the host's clock, between two moments that both know.
fn convert(time: u64, begun: Option<Instant>, ended: Option<Instant>) -> Option<u64> {
    let begun = begun?;
    let since = i128::from(time) - i128::from(begun.device);
    let passed = match ended {
        Some(ended) if ended.device > begun.device => {
            let host = i128::from(ended.host) - i128::from(begun.host);
            since * host / i128::from(ended.device - begun.device)
        }
        _ => since,
    };
    u64::try_from(i128::from(begun.host) + passed).ok()
}

#[cfg(test)]
mod tests {
    use super::{Instant, convert};

    #[test]
    fn a_clock_of_another_speed_is_converted() {
        let begun = Some(Instant {
            host: 1_000,
            device: 50,
        });
        let ended = Some(Instant {
            host: 3_000,
            device: 1_050,
        });
        assert_eq!(convert(550, begun, ended), Some(2_000));
        // Work that was submitted before the first look, or that ends behind the last one.
        assert_eq!(convert(0, begun, ended), Some(900));
        assert_eq!(convert(1_100, begun, ended), Some(3_100));
        // Without a second look the clocks are taken to run at one speed.
        assert_eq!(convert(60, begun, None), Some(1_010));
        assert_eq!(convert(60, None, ended), None);
    }
}
