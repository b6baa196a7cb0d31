//! Events of other processes. An event is exported as a *board*: a page that the processes share. On it
//! the exporter writes how often the event was recorded, which of these points have passed, and with
//! which outcome. The importer only reads it.
//!
//! A command in the exporter's queue passes a point. An importer's queue waits for a point by a host
//! call on a separate queue, which blocks one thread until the point has passed or the exporter has
//! ended.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::futex;

use super::command::Command;
use super::driver::Host;
use super::exports::{self, Handle, Kind};
use super::fault::Fault;
use super::pages::{Pages, Part};
use super::point::Point;
use super::queue::Queue;
use crate::Code;

/// Points of an event that are open at a time.
const POINTS: u64 = 128;

/// How long a waiter sleeps before it looks whether the exporter is there still.
const LOOK: Duration = Duration::from_millis(100);

/// What the processes share; all zero at the beginning.
#[repr(C)]
struct Words {
    /// How often the event was recorded: the number of its newest point.
    recorded: AtomicU64,
    /// Grows with every point that passes; waiters sleep on it.
    passed: AtomicU32,
    reserved: u32,
    /// The point `n` is at `n % POINTS`.
    points: [Slot; POINTS as usize],
}

#[repr(C)]
struct Slot {
    /// The point that has passed here last.
    number: AtomicU64,
    code: AtomicU32,
    reserved: u32,
}

/// A mapped board.
#[derive(Debug)]
pub(super) struct Board(NonNull<Words>);

// SAFETY: the words are atomic, and mapped as long as this lives.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size, and nobody has a reference into it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Words>()) };
    }
}

impl Board {
    const SIZE: u64 = size_of::<Words>() as u64;

    fn map(part: &Part, access: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses, of a file that has so many bytes.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                size_of::<Words>(),
                access,
                MapFlags::SHARED,
                part.pages.file(),
                part.offset,
            )
        }?;
        NonNull::new(start.cast()).map(Self).ok_or(Errno::FAULT)
    }

    fn words(&self) -> &Words {
        // SAFETY: mapped until this is dropped, and made of atomics of which any value is one.
        unsafe { self.0.as_ref() }
    }

    fn slot(&self, point: u64) -> &Slot {
        &self.words().points[(point % POINTS) as usize]
    }

    /// The newest point; 0 if the event was never recorded.
    fn newest(&self) -> u64 {
        self.words().recorded.load(Ordering::Acquire)
    }

    /// The outcome of a point; `None` if it has not passed. The point 0 means "never recorded", and has
    /// passed without a failure. For a point so old that its place was used again, this is the outcome
    /// of the newer one.
    fn outcome(&self, point: u64) -> Option<Code> {
        let slot = self.slot(point);
        (slot.number.load(Ordering::Acquire) >= point)
            .then(|| Code(slot.code.load(Ordering::Relaxed) as i32))
    }

    /// Notes that a point has passed, and wakes those who wait.
    pub(super) fn pass(&self, point: u64, code: Code) {
        let slot = self.slot(point);
        slot.code.store(code.0 as u32, Ordering::Relaxed);
        slot.number.store(point, Ordering::Release);
        let passed = &self.words().passed;
        passed.fetch_add(1, Ordering::Release);
        // Not private: the sleepers are other processes. Where it fails they look by themselves.
        let _ = futex::wake(passed, futex::Flags::empty(), u32::MAX >> 1);
    }
}

/// The exporter's side of an exported event.
#[derive(Debug)]
pub(super) struct Exported {
    board: Arc<Board>,
    /// The file of the board, which importers find by its descriptor.
    part: Part,
    /// Its name in the ledger.
    name: u64,
    recording: Mutex<()>,
}

impl Exported {
    pub(super) fn new() -> Result<Self, Fault> {
        static NAMES: AtomicU64 = AtomicU64::new(1);
        let refused = |error: Errno| {
            Fault::new(
                Code::OUT_OF_HOST_MEMORY,
                format!("no page for an event of other processes: {error}"),
            )
        };
        let part = Part {
            pages: Arc::new(Pages::small(Board::SIZE).map_err(refused)?),
            offset: 0,
            size: Board::SIZE,
        };
        let board = Board::map(&part, ProtFlags::READ | ProtFlags::WRITE).map_err(refused)?;
        Ok(Self {
            board: Arc::new(board),
            part,
            name: NAMES.fetch_add(1, Ordering::Relaxed),
            recording: Mutex::new(()),
        })
    }

    /// The handle that leads to it.
    pub(super) fn handle(&self, host: &Host) -> Result<Handle, Fault> {
        host.exports.export((Kind::Event, self.name), &self.part)
    }

    /// Makes the handle invalid. Open points still pass.
    pub(super) fn forget(&self, host: &Host) {
        host.exports.forget(Kind::Event, self.name);
    }

    /// Whether a record is under way.
    pub(super) fn is_recording(&self) -> bool {
        self.recording.is_locked()
    }

    /// Whether no record has reached the importers yet.
    pub(super) fn is_blank(&self) -> bool {
        self.board.newest() == 0
    }

    /// Records the event: its next point is behind all work of a queue so far.
    pub(super) fn record(&self, at: &Point<Queue>, queue: &'static Queue) -> Result<(), Fault> {
        let _recording = self.recording.lock();
        let place = self.signal(queue)?;
        at.write(queue, || place);
        Ok(())
    }

    /// Shows the importers a point that was recorded before the export.
    pub(super) fn follow(&self, host: &Arc<Host>, at: &Point<Queue>) -> Result<(), Fault> {
        let _recording = self.recording.lock();
        let Some((queue, place)) = at.read() else {
            return Ok(());
        };
        relayed(host, |relay| {
            relay.wait_for(queue, place)?;
            self.signal(relay).map(drop)
        })
    }

    /// Puts the next point into a queue, and gives its place there. Under the lock.
    fn signal(&self, queue: &'static Queue) -> Result<u64, Fault> {
        let board = &self.board;
        let number = board.newest() + 1;
        if number > POINTS && board.outcome(number - POINTS).is_none() {
            return Err(Fault::new(
                Code::OUT_OF_HOST_MEMORY,
                format!("{POINTS} points of an event of other processes have not passed yet"),
            ));
        }
        let place = queue.mark(Command::Signal {
            board: Arc::clone(board),
            number,
        })?;
        board.words().recorded.store(number, Ordering::Release);
        // An importer cannot flush this queue (R18).
        queue.worker().wake(queue);
        Ok(place)
    }
}

/// Does something on a queue that is made for it and given up at once; what was submitted still runs.
pub(super) fn relayed<T>(
    host: &Arc<Host>,
    submit: impl FnOnce(&'static Queue) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let device = host.any_device()?;
    let relay = Queue::create(host, device)?;
    device.queues.fetch_add(1, Ordering::Relaxed);
    let submitted = submit(relay);
    relay.worker().wake(relay);
    relay.destroy()?;
    submitted
}

/// An event of another process, or of this one by way of a handle.
#[derive(Debug)]
pub(super) struct Imported(Arc<Source>);

#[derive(Debug)]
struct Source {
    board: Board,
    /// The process that records it.
    owner: OwnedFd,
}

impl Imported {
    pub(super) fn new(host: &Host, handle: &Handle) -> Result<Self, Fault> {
        // Before the handle is checked, so that it is good for this very process.
        let owner = exports::process(handle)
            .and_then(Pid::from_raw)
            .and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
        let part = host.exports.import(Kind::Event, handle)?;
        let gone = |why: &str| {
            Fault::new(
                Code::NOT_FOUND,
                format!("the exporting process of the event cannot be watched: {why}"),
            )
        };
        if part.size != Board::SIZE {
            return Err(gone("its file is another one"));
        }
        let board = Board::map(&part, ProtFlags::READ).map_err(|error| gone(&error.to_string()))?;
        let owner = owner.ok_or_else(|| gone("it is not there"))?;
        Ok(Self(Arc::new(Source { board, owner })))
    }

    /// The state of the newest point.
    pub(super) fn query(&self) -> Result<Code, Fault> {
        self.0.query(self.0.board.newest())
    }

    /// Waits for the newest point.
    pub(super) fn synchronize(&self) -> Result<(), Fault> {
        let point = self.0.board.newest();
        self.0.wait(point);
        self.0.query(point).map(drop)
    }

    /// Makes later work of a queue start after the newest point.
    pub(super) fn queue_wait(&self, host: &Arc<Host>, queue: &'static Queue) -> Result<(), Fault> {
        let point = self.0.board.newest();
        if matches!(self.0.query(point), Ok(Code::OK)) {
            return Ok(());
        }
        if queue.recorder().active() {
            return Err(Fault::new(
                Code::CAPTURE,
                "a wait for an event of another process cannot be recorded: wait before the recording begins",
            ));
        }
        let user = Box::into_raw(Box::new((Arc::clone(&self.0), point)));
        relayed(host, |relay| {
            let submitted = relay.submit(Command::HostCall {
                function: wait,
                user: user.cast(),
                can_fail: true,
            });
            if submitted.is_err() {
                // SAFETY: boxed above, and nobody will be called with it.
                drop(unsafe { Box::from_raw(user) });
            }
            submitted?;
            queue.wait_for(relay, relay.tail())
        })
    }
}

/// Blocks until a point has passed.
unsafe extern "C" fn wait(user: *mut c_void, _upstream: i32) -> i32 {
    // SAFETY: boxed in `queue_wait` for this call, which is made once.
    let (source, point) = *unsafe { Box::from_raw(user.cast::<(Arc<Source>, u64)>()) };
    source.wait(point).0
}

impl Source {
    fn query(&self, point: u64) -> Result<Code, Fault> {
        let code = match self.outcome(point) {
            None => return Ok(Code::NOT_READY),
            Some(Code::OK) => return Ok(Code::OK),
            Some(code) => code,
        };
        let text = match code {
            Code::CANCELLED => {
                "the process that recorded the event has ended, or has given up its work"
            }
            _ => "the work before the event has failed in the process that recorded it",
        };
        // Which command it was, the other process does not tell.
        let text = format!("{text} (code {})", code.0);
        Err(Fault::of_work(code, text, String::new(), 0))
    }

    /// How a point has passed, or that it never will.
    fn outcome(&self, point: u64) -> Option<Code> {
        let ended = self.ended();
        // Read after the owner was looked for: what it said before its end counts.
        self.board
            .outcome(point)
            .or(ended.then_some(Code::CANCELLED))
    }

    /// Whether the process that records the event has ended.
    fn ended(&self) -> bool {
        let mut owner = [PollFd::new(&self.owner, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut owner, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    fn wait(&self, point: u64) -> Code {
        loop {
            let passed = &self.board.words().passed;
            let before = passed.load(Ordering::Acquire);
            if let Some(code) = self.outcome(point) {
                return code;
            }
            let limit = futex::Timespec {
                tv_sec: 0,
                tv_nsec: LOOK.subsec_nanos().into(),
            };
            // Whatever ends the sleep, the board says what is so.
            let _ = futex::wait(passed, futex::Flags::empty(), before, Some(&limit));
        }
    }
}
