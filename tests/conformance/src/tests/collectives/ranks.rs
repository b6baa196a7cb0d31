//! The common part of the tests of communicators: ranks with a queue, and short calls for what they do.

use std::time::Duration;

use outrigger_device::{Code, Collectives, Comm, CommParams, Driver, Elements, Error, Queue, sys};

use super::super::kit::{Bench, read, write};
use crate::verdict::answers;
use crate::{Context, Failure, Verdict};

/// The time that ranks wait where all of them come.
pub(super) const LONG: Duration = Duration::from_secs(20);

/// The number of ranks: one for each device, up to four.
pub(super) fn ranks_of(driver: &Driver) -> u32 {
    driver.device_count().min(4)
}

pub(super) fn group(driver: &Driver) -> Verdict<Collectives<'_>> {
    driver
        .collectives()
        .ok_or_else(|| Failure::new("the driver has the table collectives"))
}

/// One rank, with a queue.
pub(super) struct Rank<'a> {
    pub(super) bench: &'a Bench,
    pub(super) comm: Comm,
    pub(super) queue: Queue,
}

impl<'a> Rank<'a> {
    #[track_caller]
    pub(super) fn new(bench: &'a Bench, comm: Comm) -> Verdict<Self> {
        let queue = bench.queue_on(comm.device())?;
        Ok(Self { bench, comm, queue })
    }

    pub(super) fn number(&self) -> u32 {
        self.comm.rank()
    }

    #[track_caller]
    pub(super) fn memory(&self, size: u64) -> Verdict<u64> {
        self.bench.memory_on(self.comm.device(), size)
    }

    /// Memory that holds these bytes.
    #[track_caller]
    pub(super) fn holding(&self, bytes: &[u8]) -> Verdict<u64> {
        let memory = self.memory(bytes.len() as u64)?;
        write(&self.queue, memory, bytes)?;
        Ok(memory)
    }

    #[track_caller]
    pub(super) fn read(&self, memory: u64, size: usize) -> Verdict<Vec<u8>> {
        read(&self.queue, memory, size)
    }

    #[track_caller]
    pub(super) fn all_reduce(&self, what: &Elements) -> Verdict {
        self.taken(|| {
            // SAFETY: the test's own memory, which is freed after the work.
            unsafe { self.comm.all_reduce(&self.queue, what) }
        })
    }

    #[track_caller]
    pub(super) fn reduce(&self, what: &Elements, root: u32) -> Verdict {
        self.taken(|| {
            // SAFETY: as above.
            unsafe { self.comm.reduce(&self.queue, what, root) }
        })
    }

    #[track_caller]
    pub(super) fn reduce_scatter(&self, what: &Elements) -> Verdict {
        self.taken(|| {
            // SAFETY: as above.
            unsafe { self.comm.reduce_scatter(&self.queue, what) }
        })
    }

    #[track_caller]
    pub(super) fn broadcast(&self, memory: u64, size: u64, root: u32) -> Verdict {
        self.taken(|| {
            // SAFETY: as above.
            unsafe { self.comm.broadcast(&self.queue, memory, size, root) }
        })
    }

    #[track_caller]
    pub(super) fn all_gather(&self, send: u64, receive: u64, size: u64) -> Verdict {
        self.taken(|| {
            // SAFETY: as above.
            unsafe { self.comm.all_gather(&self.queue, send, receive, size) }
        })
    }

    #[track_caller]
    pub(super) fn exchange(&self, transfers: &[sys::otr_transfer]) -> Verdict {
        self.taken(|| {
            // SAFETY: as above.
            unsafe { self.comm.exchange(&self.queue, transfers) }
        })
    }

    #[track_caller]
    fn taken(&self, call: impl FnOnce() -> Result<(), Error>) -> Verdict {
        answers!(call(), Code::OK, "a call of rank {}", self.number());
        Ok(())
    }
}

/// Ranks on the first devices, joined by a thread each.
#[track_caller]
pub(super) fn world(bench: &Bench, count: u32, timeout: Duration) -> Verdict<Vec<Rank<'_>>> {
    let id = group(bench.driver())?.id()?;
    let joined = std::thread::scope(|scope| {
        let id = &id;
        let threads: Vec<_> = (0..count)
            .map(|rank| scope.spawn(move || join(bench.driver(), id, count, rank, timeout)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.collect::<Result<Vec<_>, _>>()
    });
    let joined = joined.map_err(|_| Failure::new("a thread of the test panicked"))?;
    let mut ranks = Vec::new();
    for comm in joined {
        ranks.push(Rank::new(bench, comm?)?);
    }
    Ok(ranks)
}

/// Joins as a rank on the device of its number.
#[track_caller]
pub(super) fn join(
    driver: &Driver,
    id: &[u8],
    count: u32,
    rank: u32,
    timeout: Duration,
) -> Verdict<Comm> {
    let params = CommParams {
        id,
        rank_count: count,
        rank,
        timeout: Some(timeout),
    };
    Ok(group(driver)?.create(rank, &params)?)
}

/// A driver with a rank on each device.
pub(super) fn with_world(context: &Context, test: impl FnOnce(&[Rank<'_>]) -> Verdict) -> Verdict {
    let bench = Bench::new(context)?;
    let ranks = world(&bench, ranks_of(bench.driver()), LONG)?;
    test(&ranks)?;
    for rank in &ranks {
        answers!(
            rank.queue.synchronize(),
            Code::OK,
            "the queue of rank {}",
            rank.number()
        );
        answers!(
            rank.comm.query(),
            Code::OK,
            "the communicator of rank {}",
            rank.number()
        );
    }
    drop(ranks);
    bench.finish()
}
