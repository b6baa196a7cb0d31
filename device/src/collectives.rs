//! Communicators of a driver: ranks on devices of one or many processes that work together. This module owns
//! them and reports their errors; what ranks there are, and how they find one another, is the caller's.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use outrigger_locks::{Mutex, Rank};

use crate::fork::{forked, refuse_fork};
use crate::held::{Command, HeldPoint, Mark};
use crate::profile::{What, WorkKind};
use crate::table::{entry, hole};
use crate::{Code, DType, Driver, Error, Queue, RawDriver, Result, sys};

/// How the elements of all ranks become one. Any number is valid; a driver refuses what it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reduction(pub u32);

impl Reduction {
    /// The sum.
    pub const SUM: Self = Self(sys::OTR_REDUCE_SUM);
    /// The product.
    pub const PROD: Self = Self(sys::OTR_REDUCE_PROD);
    /// The least one.
    pub const MIN: Self = Self(sys::OTR_REDUCE_MIN);
    /// The greatest one.
    pub const MAX: Self = Self(sys::OTR_REDUCE_MAX);
    /// The sum, divided by the number of ranks.
    pub const AVG: Self = Self(sys::OTR_REDUCE_AVG);
}

/// Elements of all ranks that are combined.
#[derive(Clone, Copy, Debug)]
pub struct Elements {
    /// Where those of this rank are.
    pub send: u64,
    /// Where the result goes.
    pub receive: u64,
    /// How many.
    pub count: u64,
    /// Of which type.
    pub dtype: DType,
    /// How they are combined.
    pub reduction: Reduction,
}

/// How a rank joins a communicator.
#[derive(Clone, Copy, Debug)]
pub struct CommParams<'a> {
    /// What [`Collectives::id`] gave, in any process.
    pub id: &'a [u8],
    /// How many ranks there are.
    pub rank_count: u32,
    /// Which one this is, from 0.
    pub rank: u32,
    /// How long ranks wait for one another; `None` leaves it to the driver.
    pub timeout: Option<Duration>,
}

impl Driver {
    /// The driver's communicators; `None` if it has none.
    pub fn collectives(&self) -> Option<Collectives<'_>> {
        self.table().collectives.as_ref().map(|group| Collectives {
            driver: self,
            group,
        })
    }
}

/// What a driver does with communicators.
#[derive(Clone, Copy, Debug)]
pub struct Collectives<'a> {
    driver: &'a Driver,
    group: &'a sys::otr_collective_api,
}

// SAFETY: R8: every function may be called from any thread. The table is a copy that is never written.
unsafe impl Send for Collectives<'_> {}
// SAFETY: as above.
unsafe impl Sync for Collectives<'_> {}

impl Collectives<'_> {
    /// The most bytes of an id.
    pub const LARGEST_ID: u64 = 8192;

    /// Makes an id for one communicator, which all of its ranks are given.
    ///
    /// # Errors
    /// What the driver answers; `INTERNAL` if it wants more than the contract allows.
    pub fn id(&self) -> Result<Vec<u8>> {
        refuse_fork()?;
        let id = entry!(self.group, id);
        let mut size = 0;
        // SAFETY: the driver is open, and the size lives through the call.
        let code = unsafe { id(self.driver.handle(), std::ptr::null_mut(), &mut size) };
        self.driver.check(code)?;
        if size == 0 || size > Self::LARGEST_ID {
            return Err(Error::new(
                Code::INTERNAL,
                format!(
                    "the driver's ids have {size} bytes, not 1 to {}",
                    Self::LARGEST_ID
                ),
            ));
        }
        let mut bytes = vec![0; size as usize];
        // SAFETY: the driver is open; there is room for as many bytes as `size` says.
        let code = unsafe { id(self.driver.handle(), bytes.as_mut_ptr().cast(), &mut size) };
        self.driver.check(code)?;
        bytes.truncate(size as usize);
        Ok(bytes)
    }

    /// Joins a communicator as a rank on a device, and waits for all other ranks.
    ///
    /// # Errors
    /// `PEER_LOST` if not all have come in time; `INVALID_ARGUMENT` for a rank that has come before, and
    /// where ranks disagree on their number; `INVALID_HANDLE` for an id that is none, and `NOT_FOUND` for
    /// one that is not good any more; what else the driver answers.
    pub fn create(&self, device: u32, params: &CommParams<'_>) -> Result<Comm> {
        refuse_fork()?;
        self.driver.open_device(device)?;
        let create = entry!(self.group, create);
        let raw = sys::otr_comm_params {
            struct_size: size_of::<sys::otr_comm_params>(),
            next: std::ptr::null(),
            id: params.id.as_ptr().cast(),
            id_size: params.id.len() as u64,
            rank_count: params.rank_count,
            rank: params.rank,
            // 0 would be the driver's choice.
            timeout_ms: params.timeout.map_or(0, |limit| {
                u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1)
            }),
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver is open; the structs and the id live through the call.
        let code = unsafe { create(self.driver.handle(), device, &raw, &mut handle) };
        self.driver.check(code)?;
        match NonNull::new(handle) {
            Some(handle) => Ok(Comm {
                joined: Arc::new(Joined {
                    handle,
                    raw: Arc::clone(self.driver.shared()),
                }),
                last: Mutex::new(Rank::HeldCollective, None),
                device,
                rank_count: params.rank_count,
                rank: params.rank,
                driver: self.driver.clone(),
            }),
            None => Err(Error::new(
                Code::INTERNAL,
                "the driver gave NULL for a communicator",
            )),
        }
    }

    /// Whether [`Comm::exchange`] can be used.
    pub fn can_exchange(&self) -> bool {
        self.group.exchange.is_some()
    }
}

/// One rank of a communicator. It is dropped after its last work has finished, or after
/// [`abort`](Self::abort).
pub struct Comm {
    joined: Arc<Joined>,
    /// Behind the last call that a queue has held.
    last: Mutex<Option<Arc<HeldPoint>>>,
    device: u32,
    rank_count: u32,
    rank: u32,
    // Declared last: the driver stays open until the communicator is destroyed.
    driver: Driver,
}

/// The driver's rank, which calls that queues hold keep.
struct Joined {
    handle: NonNull<sys::otr_drv_comm>,
    raw: Arc<RawDriver>,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Joined {}
// SAFETY: as above.
unsafe impl Sync for Joined {}

impl Comm {
    /// The number of ranks.
    pub fn rank_count(&self) -> u32 {
        self.rank_count
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The device of this rank.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Whether the communicator is in order.
    ///
    /// # Errors
    /// Why it has failed (R52); why there is no outcome.
    pub fn query(&self) -> Result<()> {
        let query = entry!(self.group()?, query);
        // SAFETY: the communicator is live, and the outcome lives through the call.
        self.driver
            .wait(|outcome| unsafe { query(self.raw(), outcome) })
    }

    /// Makes the communicator fail, on every rank. Returns at once.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn abort(&self) -> Result<()> {
        let abort = entry!(self.group()?, abort);
        // SAFETY: the communicator is live.
        self.driver.check(unsafe { abort(self.raw()) })
    }

    /// Gives every rank the combined elements of all.
    ///
    /// # Errors
    /// `UNSUPPORTED` for a type or a reduction that the driver has not; why the communicator has failed;
    /// what else the driver answers. What fails later is a failure of the queue.
    ///
    /// # Safety
    /// `count` elements are at `send` and at `receive` until the work has finished, and do not overlap
    /// unless both are the same (R50).
    pub unsafe fn all_reduce(&self, queue: &Queue, what: &Elements) -> Result<()> {
        let entry = entry!(self.before(queue)?, all_reduce);
        let (count, dtype) = (what.count, what.dtype.0);
        let (queued, comm, what) = (queue.raw(), self.raw(), *what);
        // SAFETY: queue and communicator are live; the memory is there until the work has finished.
        let submit = move || unsafe {
            entry(
                queued,
                comm,
                what.send,
                what.receive,
                count,
                dtype,
                what.reduction.0,
            )
        };
        self.submit(queue, "all_reduce", 0, submit)
    }

    /// Gives the root the combined elements of all ranks.
    ///
    /// # Errors
    /// As of [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// As of [`all_reduce`](Self::all_reduce); `receive` is ignored on all ranks but the root.
    pub unsafe fn reduce(&self, queue: &Queue, what: &Elements, root: u32) -> Result<()> {
        let entry = entry!(self.before(queue)?, reduce);
        let (count, dtype) = (what.count, what.dtype.0);
        let (queued, comm, what) = (queue.raw(), self.raw(), *what);
        // SAFETY: queue and communicator are live; the memory is there until the work has finished.
        let submit = move || unsafe {
            entry(
                queued,
                comm,
                what.send,
                what.receive,
                count,
                dtype,
                what.reduction.0,
                root,
            )
        };
        self.submit(queue, "reduce", 0, submit)
    }

    /// Gives each rank its share of the combined elements of all: `count` for each.
    ///
    /// # Errors
    /// As of [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// `count` elements for each rank are at `send`, and `count` at `receive`, until the work has finished.
    /// They do not overlap, unless `receive` is this rank's share of `send`.
    pub unsafe fn reduce_scatter(&self, queue: &Queue, what: &Elements) -> Result<()> {
        let entry = entry!(self.before(queue)?, reduce_scatter);
        let (count, dtype) = (what.count, what.dtype.0);
        let (queued, comm, what) = (queue.raw(), self.raw(), *what);
        // SAFETY: queue and communicator are live; the memory is there until the work has finished.
        let submit = move || unsafe {
            entry(
                queued,
                comm,
                what.send,
                what.receive,
                count,
                dtype,
                what.reduction.0,
            )
        };
        self.submit(queue, "reduce_scatter", 0, submit)
    }

    /// Gives all ranks the bytes of the root.
    ///
    /// # Errors
    /// As of [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// `size` bytes are at `address` until the work has finished.
    pub unsafe fn broadcast(
        &self,
        queue: &Queue,
        address: u64,
        size: u64,
        root: u32,
    ) -> Result<()> {
        let broadcast = entry!(self.before(queue)?, broadcast);
        let (queued, comm) = (queue.raw(), self.raw());
        // SAFETY: queue and communicator are live; the memory is there until the work has finished.
        let submit = move || unsafe { broadcast(queued, comm, address, size, root) };
        self.submit(queue, "broadcast", size, submit)
    }

    /// Gives all ranks the bytes of all: `size` of each.
    ///
    /// # Errors
    /// As of [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// `size` bytes are at `send`, and `size` for each rank at `receive`, until the work has finished. They
    /// do not overlap, unless `send` is this rank's part of `receive`.
    pub unsafe fn all_gather(
        &self,
        queue: &Queue,
        send: u64,
        receive: u64,
        size: u64,
    ) -> Result<()> {
        let gather = entry!(self.before(queue)?, all_gather);
        let (queued, comm) = (queue.raw(), self.raw());
        // SAFETY: queue and communicator are live; the memory is there until the work has finished.
        let submit = move || unsafe { gather(queued, comm, send, receive, size) };
        self.submit(queue, "all_gather", size, submit)
    }

    /// Sends to ranks and receives from ranks.
    ///
    /// # Errors
    /// `UNSUPPORTED` where the driver has no such entry; as of [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// The memory of all transfers is there until the work has finished, and what is received overlaps
    /// nothing.
    pub unsafe fn exchange(&self, queue: &Queue, transfers: &[sys::otr_transfer]) -> Result<()> {
        let Some(exchange) = self.before(queue)?.exchange else {
            return Err(Error::new(
                Code::UNSUPPORTED,
                format!("the driver {} has no `exchange`", self.driver.name()),
            ));
        };
        let count = u32::try_from(transfers.len()).map_err(|_| {
            Error::new(
                Code::INVALID_ARGUMENT,
                "an exchange of more transfers than 32 bits can count",
            )
        })?;
        let (queued, comm) = (queue.raw(), self.raw());
        let submit = move |transfers: &[sys::otr_transfer]| {
            let raw = sys::otr_exchange {
                struct_size: size_of::<sys::otr_exchange>(),
                next: std::ptr::null(),
                transfers: transfers.as_ptr(),
                count,
                reserved: 0,
            };
            // SAFETY: queue and communicator are live, as is the struct; the memory is there until the work has
            // finished.
            unsafe { exchange(queued, comm, &raw) }
        };
        self.submit_kept(
            queue,
            ("exchange", 0),
            || submit(transfers),
            || {
                let (joined, transfers) = (Arc::clone(&self.joined), Box::<[_]>::from(transfers));
                Command::new(move || {
                    let _joined = &joined;
                    submit(&transfers)
                })
            },
        )
    }

    /// Submits a call that owns what it needs but for the communicator, which a queue that holds keeps.
    fn submit(
        &self,
        queue: &Queue,
        name: &'static str,
        bytes: u64,
        submit: impl FnOnce() -> i32 + Copy + 'static,
    ) -> Result<()> {
        self.submit_kept(queue, (name, bytes), submit, || {
            let joined = Arc::clone(&self.joined);
            Command::new(move || {
                let _joined = &joined;
                submit()
            })
        })
    }

    /// Submits a call behind those that other queues hold: the calls of a communicator run in their order on whatever
    /// queues they are (R49).
    fn submit_kept(
        &self,
        queue: &Queue,
        (name, bytes): (&'static str, u64),
        submit: impl FnOnce() -> i32,
        kept: impl FnOnce() -> Command,
    ) -> Result<()> {
        let last = self.last.lock().take();
        if let Some(last) = last.filter(|last| !matches!(last.reached(), Some(None))) {
            queue.wait_point(last);
        }
        queue.submit(
            move || What::new(WorkKind::Collective, name, bytes),
            submit,
            kept,
        )?;
        if !queue.order().is_open() {
            let mark = Mark::create(self.driver.shared(), self.device, false)?;
            let point = queue.keep_mark(mark);
            let before = self.last.lock().replace(point);
            drop(before);
        }
        Ok(())
    }

    fn raw(&self) -> *mut sys::otr_drv_comm {
        self.joined.handle.as_ptr()
    }

    fn group(&self) -> Result<&sys::otr_collective_api> {
        refuse_fork()?;
        let group = self.driver.table().collectives.as_ref();
        group.ok_or_else(|| hole("collectives"))
    }

    fn before(&self, queue: &Queue) -> Result<&sys::otr_collective_api> {
        if queue.driver().same_as(&self.driver) {
            return self.group();
        }
        Err(Error::new(
            Code::INVALID_HANDLE,
            format!(
                "a communicator of the driver {} with a queue of another open driver {}",
                self.driver.name(),
                queue.driver().name()
            ),
        ))
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let group = self.raw.table().collectives.as_ref();
        let Some(destroy) = group.and_then(|group| group.destroy) else {
            return;
        };
        // SAFETY: the handle is live and nobody else holds this value.
        if let Err(error) = self.raw.check(unsafe { destroy(self.handle.as_ptr()) }) {
            tracing::warn!(target: "outrigger::device", %error, "a communicator could not be destroyed");
        }
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comm")
            .field("driver", &self.driver.name())
            .field("rank", &self.rank)
            .field("rank_count", &self.rank_count)
            .finish()
    }
}
