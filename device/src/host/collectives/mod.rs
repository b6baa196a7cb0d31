//! The entries of the table `collectives`. They make the cheap checks (R7) and turn device addresses into
//! host pointers. Ranks meet in memory that their processes share; a rank waits on the thread that runs
//! its queue, asleep, so that other queues go on.

mod call;
mod comm;
mod reduce;
mod region;

use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::driver::{Host, give, writable};
use super::event::queue;
use super::exports::{Handle, Kind};
use super::fault::{Fault, done, tell};
use super::queue::Queue;
use super::submit::on_device;
use crate::{Code, DType, sys};
pub(super) use call::Call;
use call::{Elements, Work};
use comm::Comm;
use reduce::{Reduction, reducer};
use region::Region;

pub(super) unsafe extern "C" fn id(
    driver: *mut sys::otr_driver,
    bytes: *mut c_void,
    size: *mut u64,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        writable(size)?;
        let needed = size_of::<Handle>() as u64;
        if !bytes.is_null() {
            // SAFETY: not NULL, so readable.
            let room = unsafe { size.read() };
            if room < needed {
                return Err(Fault::argument(format!(
                    "an id of {needed} bytes in {room}"
                )));
            }
            let id = new_id(&host)?;
            // SAFETY: not NULL, so `room` bytes may be written.
            unsafe { bytes.cast::<Handle>().write_unaligned(id) };
        }
        // SAFETY: not NULL, so writable.
        unsafe { give(size, needed) }
    })
}

fn new_id(host: &Host) -> Result<Handle, Fault> {
    static NAMES: AtomicU64 = AtomicU64::new(1);
    let part = Region::file().map_err(|error| {
        Fault::new(
            Code::OUT_OF_HOST_MEMORY,
            format!("no memory for a communicator: {error}"),
        )
    })?;
    let name = NAMES.fetch_add(1, Ordering::Relaxed);
    let id = host.exports.export((Kind::Communicator, name), &part)?;
    host.ids.lock().insert(id, (name, part));
    Ok(id)
}

pub(super) unsafe extern "C" fn create(
    driver: *mut sys::otr_driver,
    device: u32,
    params: *const sys::otr_comm_params,
    place: *mut *mut sys::otr_drv_comm,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        host.device(device)?;
        writable(place)?;
        // SAFETY: NULL or a struct of at least the size that stands in it.
        let Some(params) = (unsafe { params.as_ref() }) else {
            return Err(Fault::null("the parameters", Code::INVALID_ARGUMENT));
        };
        sized(
            params.struct_size,
            offset_of!(sys::otr_comm_params, timeout_ms) + size_of::<u64>(),
        )?;
        if params.id.is_null() {
            return Err(Fault::null("the id", Code::INVALID_ARGUMENT));
        }
        if params.id_size != size_of::<Handle>() as u64 {
            return Err(Fault::new(
                Code::INVALID_HANDLE,
                format!(
                    "an id of {} bytes; those of the host driver have {}",
                    params.id_size,
                    size_of::<Handle>()
                ),
            ));
        }
        // SAFETY: not NULL, so `id_size` bytes.
        let id = unsafe { params.id.cast::<Handle>().read_unaligned() };
        let timeout = match params.timeout_ms {
            0 => None,
            // A year is as good as more.
            limit => Some(Duration::from_millis(limit.min(366 * 86_400_000))),
        };
        let ranks = (params.rank_count, params.rank);
        let comm = Arc::new(Comm::join(&host, device, &id, ranks, timeout)?);
        // SAFETY: not NULL, so writable.
        unsafe { give(place, Arc::into_raw(comm).cast_mut().cast()) }
    })
}

pub(super) unsafe extern "C" fn destroy(handle: *mut sys::otr_drv_comm) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a communicator that the host destroys, so it is NULL or live.
        let comm = unsafe { Comm::from_handle(handle)? };
        comm.leave();
        // Commands that are left hold it still.
        drop(std::mem::ManuallyDrop::into_inner(comm));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn abort(handle: *mut sys::otr_drv_comm) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a communicator that the host destroys, so it is NULL or live.
        unsafe { Comm::from_handle(handle)? }.abort();
        Ok(())
    })
}

pub(super) unsafe extern "C" fn query(
    handle: *mut sys::otr_drv_comm,
    outcome: *mut sys::otr_outcome,
) -> i32 {
    // SAFETY: R1: the outcome is NULL, or that of version 1.0 or later. R8: no call uses a communicator that the host destroys, so it is NULL
    // or live.
    unsafe { tell(outcome, || Comm::from_handle(handle)?.outcome()) }
}

fn sized(size: usize, needed: usize) -> Result<(), Fault> {
    if size >= needed {
        return Ok(());
    }
    Err(Fault::argument(format!(
        "a struct of {size} bytes; version 1.0 has {needed}"
    )))
}

/// The queue and the rank of one call.
struct Target {
    queue: &'static Queue,
    comm: std::mem::ManuallyDrop<Arc<Comm>>,
}

impl Target {
    /// # Safety
    /// As of [`queue`] and [`Comm::from_handle`].
    unsafe fn new(on: *mut sys::otr_queue, of: *mut sys::otr_drv_comm) -> Result<Self, Fault> {
        // SAFETY: this function's contract.
        let (queue, comm) = unsafe { (queue(on)?, Comm::from_handle(of)?) };
        comm.check_queue(queue)?;
        Ok(Self { queue, comm })
    }

    fn ranks(&self) -> u64 {
        self.comm.region.ranks.into()
    }

    fn root(&self, root: u32) -> Result<(), Fault> {
        if root < self.comm.region.ranks {
            return Ok(());
        }
        Err(Fault::argument(format!(
            "rank {root} of a communicator of {}",
            self.comm.region.ranks
        )))
    }

    /// The host pointer to `count` times `size` bytes.
    fn memory(&self, what: &str, address: u64, count: u64, size: u64) -> Result<u64, Fault> {
        let bytes = count
            .checked_mul(size)
            .ok_or_else(|| Fault::argument(format!("the {what} of {count} times {size} bytes")))?;
        on_device(self.queue.device(), what, address, bytes)
    }

    fn submit(&self, work: Work, count: u64) -> Result<(), Fault> {
        self.comm.check()?;
        // R50: nothing to do, and so nobody to wait for.
        if count == 0 {
            return Ok(());
        }
        self.comm.submit(self.queue, work)
    }

    /// What is combined, of `sent` and `received` times `count` elements.
    #[allow(
        clippy::too_many_arguments,
        reason = "the arguments are those of the contract"
    )]
    fn elements(
        &self,
        (send, sent): (u64, u64),
        (receive, received): (u64, u64),
        count: u64,
        dtype: u32,
        reduction: u32,
    ) -> Result<Elements, Fault> {
        let kind = DType(dtype);
        let size = kind
            .size()
            .ok_or_else(|| Fault::argument(format!("dtype {dtype} is none of OTR_DTYPE_*")))?
            as u64;
        let reduction = Reduction::new(reduction).ok_or_else(|| {
            Fault::argument(format!("reduction {reduction} is none of OTR_REDUCE_*"))
        })?;
        let reduce = reducer(kind).ok_or_else(|| {
            Fault::new(
                Code::UNSUPPORTED,
                format!("a reduction of {kind}: this driver has integers, f16, bf16, f32 and f64"),
            )
        })?;
        let times = |ranks: u64| count.saturating_mul(ranks);
        Ok(Elements {
            send: self.memory("source", send, times(sent), size)?,
            receive: self.memory("destination", receive, times(received), size)?,
            count,
            size,
            dtype,
            reduction,
            reduce,
        })
    }
}

pub(super) unsafe extern "C" fn all_reduce(
    on: *mut sys::otr_queue,
    of: *mut sys::otr_drv_comm,
    send: u64,
    receive: u64,
    count: u64,
    dtype: u32,
    reduction: u32,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses what the host destroys, so both are NULL or live.
        let target = unsafe { Target::new(on, of)? };
        let one = target.elements((send, 1), (receive, 1), count, dtype, reduction)?;
        target.submit(Work::AllReduce(one), count)
    })
}

#[allow(
    clippy::too_many_arguments,
    reason = "the arguments are those of the contract"
)]
pub(super) unsafe extern "C" fn reduce(
    on: *mut sys::otr_queue,
    of: *mut sys::otr_drv_comm,
    send: u64,
    receive: u64,
    count: u64,
    dtype: u32,
    reduction: u32,
    root: u32,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses what the host destroys, so both are NULL or live.
        let target = unsafe { Target::new(on, of)? };
        target.root(root)?;
        let received = u64::from(target.comm.region.rank == root);
        let one = target.elements((send, 1), (receive, received), count, dtype, reduction)?;
        target.submit(Work::Reduce(one, root), count)
    })
}

pub(super) unsafe extern "C" fn reduce_scatter(
    on: *mut sys::otr_queue,
    of: *mut sys::otr_drv_comm,
    send: u64,
    receive: u64,
    count: u64,
    dtype: u32,
    reduction: u32,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses what the host destroys, so both are NULL or live.
        let target = unsafe { Target::new(on, of)? };
        let sent = target.ranks();
        let one = target.elements((send, sent), (receive, 1), count, dtype, reduction)?;
        target.submit(Work::ReduceScatter(one), count)
    })
}

pub(super) unsafe extern "C" fn broadcast(
    on: *mut sys::otr_queue,
    of: *mut sys::otr_drv_comm,
    address: u64,
    size: u64,
    root: u32,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses what the host destroys, so both are NULL or live.
        let target = unsafe { Target::new(on, of)? };
        target.root(root)?;
        let address = target.memory("memory", address, 1, size)?;
        let work = Work::Broadcast {
            address,
            size,
            root,
        };
        target.submit(work, size)
    })
}

pub(super) unsafe extern "C" fn all_gather(
    on: *mut sys::otr_queue,
    of: *mut sys::otr_drv_comm,
    send: u64,
    receive: u64,
    size: u64,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses what the host destroys, so both are NULL or live.
        let target = unsafe { Target::new(on, of)? };
        let work = Work::AllGather {
            send: target.memory("source", send, 1, size)?,
            receive: target.memory("destination", receive, target.ranks(), size)?,
            size,
        };
        target.submit(work, size)
    })
}

pub(super) unsafe extern "C" fn exchange(
    on: *mut sys::otr_queue,
    of: *mut sys::otr_drv_comm,
    exchange: *const sys::otr_exchange,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses what the host destroys, so both are NULL or live.
        let target = unsafe { Target::new(on, of)? };
        // SAFETY: NULL or a struct of at least the size that stands in it.
        let Some(exchange) = (unsafe { exchange.as_ref() }) else {
            return Err(Fault::null("the exchange", Code::INVALID_ARGUMENT));
        };
        sized(
            exchange.struct_size,
            offset_of!(sys::otr_exchange, count) + size_of::<u32>(),
        )?;
        let count = exchange.count as usize;
        if exchange.transfers.is_null() && count > 0 {
            return Err(Fault::null("the transfers", Code::INVALID_ARGUMENT));
        }
        let transfers = match count {
            0 => &[][..],
            // SAFETY: not NULL, so `count` of them.
            _ => unsafe { std::slice::from_raw_parts(exchange.transfers, count) },
        };
        let mut work = Vec::with_capacity(count);
        for one in transfers {
            target.root(one.peer)?;
            let what = match one.direction {
                sys::OTR_TRANSFER_SEND => "source",
                sys::OTR_TRANSFER_RECEIVE => "destination",
                other => {
                    return Err(Fault::argument(format!(
                        "direction {other} is none of OTR_TRANSFER_*"
                    )));
                }
            };
            let address = target.memory(what, one.address, 1, one.size)?;
            if one.size > 0 {
                work.push(sys::otr_transfer { address, ..*one });
            }
        }
        let count = work.len() as u64;
        target.submit(Work::Exchange(work.into_boxed_slice()), count)
    })
}
