//! Communicators: work that devices of one or many processes do together.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use outrigger_device::sys::otr_transfer_t;
use outrigger_device::{Elements, Reduction};
use outrigger_hooks as hooks;
use outrigger_hooks::{Collective, DType, Result};

use crate::guard::{Out, sized, slice, string, text, unused};
use crate::{otr_communicator_t, otr_stream_t};

/// The place of a rank in a communicator that it joins.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct otr_communicator_params_t {
    /// sizeof(otr_communicator_params_t)
    pub struct_size: usize,
    /// NULL
    pub next: *const c_void,
    /// The id that otr_communicator_id gave, in any process.
    pub id: *const c_char,
    /// The number of ranks.
    pub rank_count: u32,
    /// The number of this rank, from 0.
    pub rank: u32,
    /// Milliseconds that ranks wait for one another; 0: the driver's choice, some minutes.
    pub timeout_ms: u64,
}

fn submit(
    stream: otr_stream_t,
    communicator: otr_communicator_t,
    what: &Collective<'_>,
) -> Result<()> {
    let communicator = hooks::communicator(communicator)?;
    // SAFETY: H22, H23: the host keeps the memory as the contract says; the ranges are checked.
    unsafe { hooks::stream(stream)?.collective(&communicator, what) }
}

fn elements(send: u64, receive: u64, count: u64, dtype: u32, reduction: u32) -> Elements {
    Elements {
        send,
        receive,
        count,
        dtype: DType(dtype),
        reduction: Reduction(reduction),
    }
}

api! {
    /// Makes an id for one communicator, a text that the host takes to all ranks, and frees with
    /// otr_string_free. It is good as long as this process runs. OTR_ERR_UNSUPPORTED for a device whose driver
    /// has no communicators.
    fn otr_communicator_id(device: u32, id: *mut *mut c_char) {
        let out = Out::new(id, "id")?;
        out.set(string(hooks::runtime()?.device(device)?.communicator_id()?));
        Ok(())
    }

    /// Joins a communicator as a rank on a device, and waits until all ranks have come: ranks of one process join
    /// on a thread each, and have a device each. OTR_ERR_PEER_LOST if they do not come within the timeout;
    /// OTR_ERR_INVALID_ARGUMENT for a text that is no id of the driver, a rank that has come before, and another
    /// number of ranks; OTR_ERR_NOT_FOUND for an id that was used, or whose process has ended.
    fn otr_communicator_create(
        device: u32,
        params: *const otr_communicator_params_t,
        communicator: *mut otr_communicator_t,
    ) {
        let out = Out::new(communicator, "communicator")?;
        let device = hooks::runtime()?.device(device)?;
        let params = sized(params, "params")?;
        unused(params.next, 0, "params")?;
        let id = text(params.id, "params->id")?;
        let timeout = (params.timeout_ms > 0).then(|| Duration::from_millis(params.timeout_ms));
        out.set(device.join_communicator(id, params.rank_count, params.rank, timeout)?.id());
        Ok(())
    }

    /// Destroys a communicator without waiting. Work that was submitted still runs; other ranks that need more
    /// of this one get OTR_ERR_PEER_LOST.
    fn otr_communicator_destroy(communicator: otr_communicator_t) {
        hooks::destroy_communicator(communicator)
    }

    /// Makes a communicator fail, on every rank, and returns at once. Its work that waits, and all later calls,
    /// fail: with OTR_ERR_CANCELLED here, and with OTR_ERR_PEER_LOST on the other ranks.
    fn otr_communicator_abort(communicator: otr_communicator_t) {
        hooks::communicator(communicator)?.abort()
    }

    /// Succeeds, or fails with why the communicator has failed: OTR_ERR_PEER_LOST if a rank has ended, failed, or
    /// not come to a call within the timeout. Never waits.
    fn otr_communicator_query(communicator: otr_communicator_t) {
        hooks::communicator(communicator)?.query()
    }

    /// Gives every rank the combined elements of all ranks, in stream order: `count` of them. `receive` may be
    /// `send`. All ranks make the same calls, in the same order. The call returns at once; a rank that does not
    /// come fails the stream with OTR_ERR_PEER_LOST. `reduction` is OTR_REDUCE_*. OTR_ERR_UNSUPPORTED for a type
    /// or a reduction that the driver has not; OTR_ERR_CAPTURE on a stream that captures.
    fn otr_all_reduce(
        stream: otr_stream_t,
        communicator: otr_communicator_t,
        send: u64,
        receive: u64,
        count: u64,
        dtype: u32,
        reduction: u32,
    ) {
        let what = elements(send, receive, count, dtype, reduction);
        submit(stream, communicator, &Collective::AllReduce(what))
    }

    /// As otr_all_reduce, but gives them to the root alone. `receive` is ignored on the other ranks.
    fn otr_reduce(
        stream: otr_stream_t,
        communicator: otr_communicator_t,
        send: u64,
        receive: u64,
        count: u64,
        dtype: u32,
        reduction: u32,
        root: u32,
    ) {
        let what = elements(send, receive, count, dtype, reduction);
        submit(stream, communicator, &Collective::Reduce(what, root))
    }

    /// As otr_all_reduce, but gives each rank a share of `count` elements: `send` has as many for all ranks, in
    /// their order. `receive` may be the own share of `send`.
    fn otr_reduce_scatter(
        stream: otr_stream_t,
        communicator: otr_communicator_t,
        send: u64,
        receive: u64,
        count: u64,
        dtype: u32,
        reduction: u32,
    ) {
        let what = elements(send, receive, count, dtype, reduction);
        submit(stream, communicator, &Collective::ReduceScatter(what))
    }

    /// Gives all ranks `size` bytes of the root, in stream order, under the terms of otr_all_reduce.
    fn otr_broadcast(
        stream: otr_stream_t,
        communicator: otr_communicator_t,
        address: u64,
        size: u64,
        root: u32,
    ) {
        let what = Collective::Broadcast { address, size, root };
        submit(stream, communicator, &what)
    }

    /// Gives all ranks `size` bytes of each rank, one part behind the other in the order of the ranks, in stream
    /// order, under the terms of otr_all_reduce. `send` may be the own part of `receive`.
    fn otr_all_gather(
        stream: otr_stream_t,
        communicator: otr_communicator_t,
        send: u64,
        receive: u64,
        size: u64,
    ) {
        let what = Collective::AllGather { send, receive, size };
        submit(stream, communicator, &what)
    }

    /// Sends bytes to ranks and receives bytes from ranks, in stream order. All transfers of a call go on side by
    /// side, and only the ranks that they name wait for one another. What one rank sends another arrives in the
    /// order of their calls. OTR_ERR_UNSUPPORTED if the driver cannot.
    fn otr_exchange(
        stream: otr_stream_t,
        communicator: otr_communicator_t,
        transfers: *const otr_transfer_t,
        count: u32,
    ) {
        let transfers = slice(transfers, count as usize, "transfers")?;
        submit(stream, communicator, &Collective::Exchange(transfers))
    }
}
