//! One rank of a communicator: how it comes, whose turn it is among its calls, and why it failed. What its
//! calls do is in `call`.

use std::ffi::c_char;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::super::command::{Command, Outcome};
use super::super::driver::Host;
use super::super::exports::{Handle, Kind};
use super::super::fault::Fault;
use super::super::queue::Queue;
use super::call::{Call, Work};
use super::region::{Failed, RANKS, Refusal, Region, Why};
use crate::{Code, sys};

/// How long ranks wait for one another if the host does not say.
const TIMEOUT: Duration = Duration::from_secs(300);
/// How often a call that is not on turn looks whether the communicator has failed.
const LOOK: Duration = Duration::from_millis(50);

/// One rank.
pub(in super::super) struct Comm {
    host: Arc<Host>,
    pub(super) device: u32,
    pub(super) region: Region,
    timeout: Duration,
    /// How many calls were submitted. Held over the submission, so that calls have the order of their
    /// numbers.
    submitted: Mutex<u64>,
    turn: Mutex<Turn>,
    turned: Condvar,
}

/// Which call is on turn, and how far the rank is with the others. All ranks have the same numbers in
/// calls that they make together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    call: u64,
    /// Of calls that all ranks make.
    pub(super) shared: u64,
    pub(super) meetings: u64,
    pub(super) rounds: u64,
}

impl Comm {
    /// Comes as a rank, and waits for the others.
    pub(super) fn join(
        host: &Arc<Host>,
        device: u32,
        id: &Handle,
        (ranks, rank): (u32, u32),
        timeout: Option<Duration>,
    ) -> Result<Self, Fault> {
        if ranks == 0 || ranks > RANKS || rank >= ranks {
            return Err(Fault::argument(format!(
                "rank {rank} of {ranks}: ranks are numbered from 0, and a communicator of this driver has 1 to \
                 {RANKS}"
            )));
        }
        let part = host.exports.import(Kind::Communicator, id)?;
        if !Region::is_file(&part) {
            return Err(Fault::new(
                Code::NOT_FOUND,
                "what this id leads to is another file by now: its driver was closed",
            ));
        }
        let mut region = Region::join(&part, ranks, rank).map_err(|refusal| match refusal {
            Refusal::Count(known) => Fault::argument(format!(
                "a communicator of {ranks} ranks, which another rank says has {known}"
            )),
            Refusal::Taken => Fault::argument(format!("rank {rank} has come before")),
            Refusal::System(error) => Fault::new(
                Code::OUT_OF_HOST_MEMORY,
                format!("the memory of a communicator could not be mapped: {error}"),
            ),
        })?;
        let timeout = timeout.unwrap_or(TIMEOUT);
        let gathered = region.gather(Instant::now() + timeout);
        // All have come, or nobody waits any more.
        if let Some((name, _)) = host.ids.lock().remove(id) {
            host.exports.forget(Kind::Communicator, name);
        }
        gathered.map_err(|failed| fault(failed, rank))?;
        host.communicators.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            host: Arc::clone(host),
            device,
            region,
            timeout,
            submitted: Mutex::new(0),
            turn: Mutex::default(),
            turned: Condvar::new(),
        })
    }

    /// The communicator behind a handle, without taking it over.
    ///
    /// # Safety
    /// `handle` is NULL or came from `create` and was not destroyed.
    pub(super) unsafe fn from_handle(
        handle: *mut sys::otr_drv_comm,
    ) -> Result<ManuallyDrop<Arc<Self>>, Fault> {
        if handle.is_null() {
            return Err(Fault::null("the communicator", Code::INVALID_HANDLE));
        }
        // SAFETY: made by `Arc::into_raw` in `create`; never dropped here.
        Ok(ManuallyDrop::new(unsafe {
            Arc::from_raw(handle.cast::<Self>())
        }))
    }

    /// Whether a queue may have calls of this rank.
    pub(super) fn check_queue(&self, queue: &Queue) -> Result<(), Fault> {
        if !queue.is_of(&self.host) {
            return Err(Fault::new(
                Code::INVALID_HANDLE,
                "the communicator and the queue are of two open drivers: both have to be of one",
            ));
        }
        if queue.device().index != self.device {
            return Err(Fault::new(
                Code::INVALID_DEVICE,
                format!(
                    "a queue of device {} for a rank on device {}",
                    queue.device().index,
                    self.device
                ),
            ));
        }
        if queue.recorder().active() {
            return Err(Fault::new(
                Code::UNSUPPORTED,
                "work of a communicator cannot be recorded: submit it before or after",
            ));
        }
        Ok(())
    }

    /// Refuses a call of a communicator that has failed.
    pub(super) fn check(&self) -> Result<(), Fault> {
        match self.region.failed() {
            None => Ok(()),
            Some(failed) => Err(fault(failed, self.region.rank)),
        }
    }

    /// Whether the communicator is in order, and else why it has failed, as an outcome.
    pub(super) fn outcome(&self) -> Result<Code, Fault> {
        let Some(failed) = self.region.failed() else {
            return Ok(Code::OK);
        };
        let rank = self.region.rank;
        let text = text(failed, rank);
        Err(Fault::of_work(code(failed, rank), text, String::new(), 0))
    }

    pub(super) fn abort(&self) {
        self.region.fail(Why::Aborted, self.region.rank);
        self.turned.notify_all();
    }

    /// Takes no more part. What is left of its work fails.
    pub(super) fn leave(&self) {
        self.region.leave();
        self.host.communicators.fetch_sub(1, Ordering::Relaxed);
    }

    /// Submits work of this rank.
    pub(super) fn submit(self: &Arc<Self>, queue: &'static Queue, work: Work) -> Result<(), Fault> {
        let mut submitted = self.submitted.lock();
        let call = Call {
            comm: Arc::clone(self),
            number: *submitted,
            work,
        };
        queue.submit(Command::Collective {
            call: Arc::new(call),
        })?;
        *submitted += 1;
        Ok(())
    }
}

impl Call {
    /// Does the work when its turn has come.
    ///
    /// # Safety
    /// As of [`Command::run`].
    pub(in super::super) unsafe fn run(&self, upstream: Code) -> Outcome {
        let (comm, label) = (&*self.comm, self.work.label());
        let rank = comm.region.rank;
        if upstream != Code::OK {
            // It is not executed (R20), so nobody may wait for it.
            comm.region.fail(Why::Upstream, rank);
        }
        let until = Instant::now() + comm.timeout;
        let done = comm.on_turn(self.number, until).and_then(|mut turn| {
            // SAFETY: this function's contract.
            let done = unsafe { self.work.run(&comm.region, &mut turn, until) };
            turn.call += 1;
            *comm.turn.lock() = turn;
            comm.turned.notify_all();
            done
        });
        let code = done.map_or_else(|failed| code(failed, rank), |()| Code::OK);
        Outcome { code, label }
    }
}

impl Comm {
    /// Waits until all calls before this one have finished.
    fn on_turn(&self, number: u64, until: Instant) -> Result<Turn, Failed> {
        let mut turn = self.turn.lock();
        loop {
            if let Some(failed) = self.region.failed() {
                return Err(failed);
            }
            if turn.call == number {
                return Ok(*turn);
            }
            if Instant::now() >= until {
                return Err(self.region.fail(Why::Late, self.region.rank));
            }
            self.turned.wait_for(&mut turn, LOOK);
        }
    }
}

/// What a failure is to a rank.
fn code(failed: Failed, rank: u32) -> Code {
    match failed.why {
        Why::Differs => Code::INVALID_ARGUMENT,
        Why::Aborted if failed.rank == rank => Code::CANCELLED,
        _ => Code::PEER_LOST,
    }
}

fn fault(failed: Failed, rank: u32) -> Fault {
    Fault::new(code(failed, rank), text(failed, rank))
}

fn text(failed: Failed, rank: u32) -> String {
    let what = match failed.why {
        Why::Aborted => "was aborted",
        Why::Upstream => "could not take part, since its queue had failed",
        Why::Ended => "has ended, or was destroyed, while others needed it",
        Why::Late => "did not come in time",
        Why::Differs => "came with another call, or another size, than the others",
    };
    let this = if failed.rank == rank {
        ", this one,"
    } else {
        ""
    };
    format!(
        "the communicator has failed: rank {}{this} {what}; make a new one of the ranks that are left",
        failed.rank
    )
}

/// The name of a call for failures.
pub(super) type Label = *const c_char;
