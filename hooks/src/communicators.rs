//! Communicators: ranks on devices of one or many processes that work together, in the order of a stream. The driver
//! does the work; a driver without communicators is a clear error, and nothing stands in for it here.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use outrigger_device::sys::otr_transfer_t;
use outrigger_device::{Code, Collectives, Comm, CommParams, Elements};
use outrigger_handles::{Kind, Ref, Table};

use crate::{Device, Error, Result, Stream};

static COMMUNICATORS: Table<Communicator> = Table::new(Kind::Communicator);

/// One rank of a communicator.
#[derive(Debug)]
pub struct Communicator {
    id: u64,
    device: &'static Device,
    comm: Arc<Comm>,
}

impl Device {
    fn collectives(&self) -> Result<Collectives<'_>> {
        self.driver().collectives().ok_or_else(|| {
            let text = format!(
                "device {} has no communicators: its driver {} has no table `collectives`",
                self.index(),
                self.driver().name()
            );
            Error::new(Code::UNSUPPORTED, text)
        })
    }

    /// Makes an id for one communicator, which all of its ranks are given: a text, which begins with the name of the
    /// driver.
    ///
    /// # Errors
    /// `UNSUPPORTED` for a driver without communicators; what else the driver reports.
    pub fn communicator_id(&self) -> Result<String> {
        let bytes = self.collectives()?.id()?;
        let mut text = format!("{}:", self.driver().name());
        for byte in bytes {
            // A string takes all that is written.
            let _ = write!(text, "{byte:02x}");
        }
        Ok(text)
    }

    /// Joins a communicator as a rank on this device, and waits for all other ranks.
    ///
    /// # Errors
    /// `UNSUPPORTED` for a driver without communicators; `INVALID_ARGUMENT` for a text that is no id of this driver, a
    /// rank that has come before or is out of range, and another number of ranks; `NOT_FOUND` for an id that is not
    /// good any more; `PEER_LOST` if not all ranks come in time; what else the driver reports.
    pub fn join_communicator(
        &'static self,
        id: &str,
        rank_count: u32,
        rank: u32,
        timeout: Option<Duration>,
    ) -> Result<Ref<Communicator>> {
        let collectives = self.collectives()?;
        let bytes = bytes_of(id, self.driver().name())?;
        let params = CommParams {
            id: &bytes,
            rank_count,
            rank,
            timeout,
        };
        let comm = collectives.create(self.ordinal(), &params);
        let comm = comm.map_err(|error| match error.code() {
            // To the host an id is a text and no handle.
            Code::INVALID_HANDLE => Error::new(Code::INVALID_ARGUMENT, error.message().to_owned()),
            _ => error.into(),
        })?;
        let communicator = COMMUNICATORS.insert(|id| Communicator {
            id,
            device: self,
            comm: Arc::new(comm),
        })?;
        Ok(communicator)
    }
}

/// The bytes of an id.
fn bytes_of(id: &str, driver: &str) -> Result<Vec<u8>> {
    let wrong = |what: String| Err(Error::new(Code::INVALID_ARGUMENT, what));
    let Some((name, digits)) = id.split_once(':') else {
        return wrong(
            "the id of a communicator is a text that otr_communicator_id gave".to_owned(),
        );
    };
    if name != driver {
        return wrong(format!(
            "an id of the driver `{name}` for a device of the driver {driver}: all ranks are of one driver"
        ));
    }
    let pair = |at: usize| {
        digits
            .get(at..at + 2)
            .and_then(|two| u8::from_str_radix(two, 16).ok())
    };
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(pair).collect();
    match bytes {
        Some(bytes) if !bytes.is_empty() => Ok(bytes),
        _ => wrong("the id of a communicator was changed: its digits are no bytes".to_owned()),
    }
}

impl Communicator {
    /// The id in the C ABI.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the communicator is in order.
    ///
    /// # Errors
    /// Why it has failed: `PEER_LOST`, `CANCELLED` after [`abort`](Self::abort), or what else the driver reports.
    pub fn query(&self) -> Result<()> {
        Ok(self.comm.query()?)
    }

    /// Makes the communicator fail, on every rank. Returns at once.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn abort(&self) -> Result<()> {
        Ok(self.comm.abort()?)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // R54: its commands may be running, on any stream.
        self.device
            .retire_behind_all(Box::new(Arc::clone(&self.comm)));
    }
}

/// The work that a call of a communicator does.
#[derive(Clone, Copy, Debug)]
pub enum Collective<'a> {
    /// Gives every rank the combined elements of all.
    AllReduce(Elements),
    /// Gives the root the combined elements of all.
    Reduce(Elements, u32),
    /// Gives each rank its share of the combined elements of all: `count` for each.
    ReduceScatter(Elements),
    /// Gives all ranks the bytes of the root.
    Broadcast {
        /// The device address of the bytes, which the call reads on the root and writes on the others.
        address: u64,
        /// The number of bytes.
        size: u64,
        /// The rank that has them.
        root: u32,
    },
    /// Gives all ranks the bytes of all.
    AllGather {
        /// The device address of the bytes of this rank.
        send: u64,
        /// The device address at which the bytes of all ranks arrive, in the order of the ranks.
        receive: u64,
        /// The number of bytes of each rank.
        size: u64,
    },
    /// Sends to ranks, and receives from ranks.
    Exchange(&'a [otr_transfer_t]),
}

impl Collective<'_> {
    /// The memory that the call reads or writes on a rank: a name, an address and bytes of each range.
    fn ranges(&self, comm: &Comm) -> Vec<(&'static str, u64, u64)> {
        let ranks = u64::from(comm.rank_count());
        let elements = |one: &Elements, sent: u64, received: u64| {
            let size = one.dtype.size().unwrap_or(1) as u64;
            let bytes = |ranks: u64| one.count.saturating_mul(size).saturating_mul(ranks);
            vec![
                ("source", one.send, bytes(sent)),
                ("destination", one.receive, bytes(received)),
            ]
        };
        match *self {
            Self::AllReduce(ref one) => elements(one, 1, 1),
            Self::Reduce(ref one, root) => elements(one, 1, u64::from(root == comm.rank())),
            Self::ReduceScatter(ref one) => elements(one, ranks, 1),
            Self::Broadcast { address, size, .. } => vec![("memory", address, size)],
            Self::AllGather {
                send,
                receive,
                size,
            } => vec![
                ("source", send, size),
                ("destination", receive, size.saturating_mul(ranks)),
            ],
            Self::Exchange(transfers) => {
                let range = |one: &otr_transfer_t| ("memory of a transfer", one.address, one.size);
                transfers.iter().map(range).collect()
            }
        }
    }
}

impl Stream {
    /// Submits a call of a communicator, and returns at once. All ranks make the same calls in the same order.
    ///
    /// # Safety
    /// The contract of [`Stream::fill`] for all ranges. What is sent and what is received do not overlap, unless the
    /// driver contract says that the call works in place (R50).
    ///
    /// # Errors
    /// `INVALID_DEVICE` for a communicator of another device; `INVALID_ARGUMENT` for a range that is not in a live
    /// allocation, and for a root, type or reduction that does not exist; `UNSUPPORTED` for a type or a reduction that
    /// the driver has not; `CAPTURE` while the stream captures; why the communicator has failed.
    pub unsafe fn collective(&self, on: &Communicator, what: &Collective<'_>) -> Result<()> {
        let checked = self.check_collective(on, what);
        checked.map_err(|error| self.not_recorded(error.on_stream(self.id())))?;
        let (comm, queue) = (&on.comm, self.queue());
        // SAFETY: the ranges were checked, and the allocator reuses them only in stream order (H23). This function's
        // contract: they live until the work has finished.
        let outcome = unsafe {
            match what {
                Collective::AllReduce(one) => comm.all_reduce(queue, one),
                Collective::Reduce(one, root) => comm.reduce(queue, one, *root),
                Collective::ReduceScatter(one) => comm.reduce_scatter(queue, one),
                Collective::Broadcast {
                    address,
                    size,
                    root,
                } => comm.broadcast(queue, *address, *size, *root),
                Collective::AllGather {
                    send,
                    receive,
                    size,
                } => comm.all_gather(queue, *send, *receive, *size),
                Collective::Exchange(transfers) => comm.exchange(queue, transfers),
            }
        };
        outcome.map_err(|error| self.failed(error))
    }

    fn check_collective(&self, on: &Communicator, what: &Collective<'_>) -> Result<()> {
        let (own, other) = (self.device().index(), on.device.index());
        if own != other {
            let text = format!("a communicator on device {other} and a stream of device {own}");
            return Err(Error::new(Code::INVALID_DEVICE, text));
        }
        for (name, address, size) in what.ranges(&on.comm) {
            self.device().check_range(name, address, size)?;
        }
        if self.is_capturing() {
            return Err(Error::new(
                Code::CAPTURE,
                "work with other ranks cannot be captured: submit it before or after",
            ));
        }
        Ok(())
    }
}

/// The communicator with this id.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live communicator.
pub fn communicator(id: u64) -> Result<Ref<Communicator>> {
    Ok(COMMUNICATORS.get(id)?)
}

/// Destroys a communicator without waiting. Work that was submitted still runs.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live communicator.
pub fn destroy_communicator(id: u64) -> Result<()> {
    let found = COMMUNICATORS.remove(id)?;
    let device = found.device;
    drop(found);
    device.sweep_retired();
    Ok(())
}
