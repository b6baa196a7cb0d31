//! Communicators through the C ABI: ranks are devices of this process, on a thread each while they join.

use std::ffi::{CString, c_char};
use std::ptr::null;

use crate::tests::host::bindings::*;
use outrigger_device::{Code, DType, sys};

use super::{
    Refused, begin, download, end, event, fill, made, otr, refused, start, string, tried, upload,
};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Failure, Need, Verdict};

tests! { "host-abi.communicators":
    /// All calls give every rank what the ranks have together, in the order of their streams.
    ranks_work_together: H18 H22, needs Collectives TwoDevices;
    /// A communicator of one rank serves on every driver that has the group.
    one_rank_alone: H18 H22, needs Collectives;
    /// Bytes go from rank to rank by `otr_exchange`, also to the own rank.
    an_exchange: H18 H22, needs Collectives CollectivesExchange;
    /// A rank that was aborted, and one that is missing, are failures of the streams, and the streams go on.
    a_rank_that_is_lost: H2 H19, needs Collectives TwoDevices;
    /// Memory that a call names is freed before it has run, and not used again meanwhile.
    memory_that_was_freed: H23, needs Collectives TwoDevices;
    /// Wrong ids, ranks, streams, ranges, types and reductions are refused with a text, and change nothing.
    wrong_calls: H2 H4 H22, needs Collectives;
    /// A call on a stream that captures is refused, and the end of the capture reports it.
    a_capture: H26, needs Collectives;
    /// A driver with or without communicators: an id is made, or that is OTR_ERR_UNSUPPORTED, and names the driver.
    supported_or_not: H2, absent Collectives;
    /// An exchange where the driver has none is OTR_ERR_UNSUPPORTED.
    exchanged_or_not: H2, absent CollectivesExchange;
}

const COUNT: usize = 20_000;
const SIZE: u64 = 4 * COUNT as u64;
const SUM: u32 = sys::OTR_REDUCE_SUM;
const F32: u32 = DType::F32.0;
/// Milliseconds that ranks wait for one another.
const LIMIT: u64 = 20_000;

fn new_id() -> Verdict<CString> {
    Ok(CString::new(string(|out| otr!(communicator_id, 0, out))?)?)
}

fn join(device: u32, id: *const c_char, count: u32, rank: u32) -> Result<u64, Refused> {
    let params = otr_communicator_params_t {
        struct_size: size_of::<otr_communicator_params_t>(),
        next: null(),
        id,
        rank_count: count,
        rank,
        timeout_ms: LIMIT,
    };
    tried(|out| otr!(communicator_create, device, &params, out))
}

/// One rank, with a stream of its device.
struct Rank {
    number: u32,
    communicator: u64,
    stream: u64,
}

impl Rank {
    fn memory(&self, size: u64) -> Verdict<u64> {
        made(|out| otr!(memory_alloc, self.number, size, self.stream, out))
    }

    /// Memory of its own number, from 1, as f32.
    fn own(&self, size: u64) -> Verdict<u64> {
        let memory = self.memory(size)?;
        fill(self.stream, memory, size, &self.value().to_ne_bytes())?;
        Ok(memory)
    }

    fn value(&self) -> f32 {
        (self.number + 1) as f32
    }

    fn all_reduce(&self, send: u64, receive: u64, count: u64) -> Result<(), Refused> {
        let (stream, comm) = (self.stream, self.communicator);
        otr!(all_reduce, stream, comm, send, receive, count, F32, SUM)
    }

    fn floats(&self, memory: u64) -> Verdict<Vec<f32>> {
        download(self.stream, memory, COUNT)
    }
}

/// A rank on each of the first devices.
fn world(count: u32) -> Verdict<Vec<Rank>> {
    let id = new_id()?;
    let joined = std::thread::scope(|scope| {
        let id = &id;
        let threads: Vec<_> = (0..count)
            .map(|rank| scope.spawn(move || join(rank, id.as_ptr(), count, rank)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.collect::<Result<Vec<_>, _>>()
    });
    let joined = joined.map_err(|_| Failure::new("a thread of the test panicked"))?;
    let mut ranks = Vec::new();
    for (number, communicator) in (0..).zip(joined) {
        ranks.push(Rank {
            number,
            communicator: communicator?,
            stream: made(|out| otr!(stream_create, number, 0, out))?,
        });
    }
    Ok(ranks)
}

fn give_back(ranks: Vec<Rank>) -> Verdict {
    for rank in ranks {
        otr!(communicator_query, rank.communicator)?;
        otr!(stream_synchronize, rank.stream)?;
        otr!(communicator_destroy, rank.communicator)?;
        let again = otr!(communicator_destroy, rank.communicator);
        refused(
            again,
            Code::INVALID_HANDLE,
            "a communicator that was destroyed",
        )?;
        otr!(stream_destroy, rank.stream)?;
    }
    Ok(())
}

fn ranks_work_together(context: &Context) -> Verdict {
    start(context)?;
    calls(2)
}

fn one_rank_alone(context: &Context) -> Verdict {
    start(context)?;
    calls(1)
}

/// Every call, by so many ranks, one behind the other on a stream each.
fn calls(count: u32) -> Verdict {
    let ranks = world(count)?;
    let all = SIZE * u64::from(count);
    let mut places = Vec::new();
    for rank in &ranks {
        let (stream, comm) = (rank.stream, rank.communicator);
        let own = rank.own(SIZE)?;
        let (sum, root, copy) = (rank.memory(SIZE)?, rank.own(SIZE)?, rank.own(SIZE)?);
        let (share, gathered, wide) = (rank.memory(SIZE)?, rank.memory(all)?, rank.own(all)?);
        let elements = COUNT as u64;
        rank.all_reduce(own, sum, elements)?;
        otr!(
            reduce,
            stream,
            comm,
            own,
            root,
            elements,
            F32,
            SUM,
            count - 1
        )?;
        otr!(
            reduce_scatter,
            stream,
            comm,
            wide,
            share,
            elements,
            F32,
            SUM
        )?;
        otr!(broadcast, stream, comm, copy, SIZE, count - 1)?;
        otr!(all_gather, stream, comm, own, gathered, SIZE)?;
        places.push((sum, root, share, copy, gathered));
    }
    let total = (count * (count + 1) / 2) as f32;
    for (rank, (sum, root, share, copy, gathered)) in ranks.iter().zip(places) {
        let number = rank.number;
        equal!(
            rank.floats(sum)?,
            vec![total; COUNT],
            "all_reduce on rank {number}"
        );
        let kept = if number + 1 == count {
            total
        } else {
            rank.value()
        };
        equal!(
            rank.floats(root)?,
            vec![kept; COUNT],
            "reduce on rank {number}"
        );
        equal!(
            rank.floats(share)?,
            vec![total; COUNT],
            "reduce_scatter on rank {number}"
        );
        equal!(
            rank.floats(copy)?,
            vec![count as f32; COUNT],
            "broadcast on rank {number}"
        );
        for (part, place) in (1..=count).zip((gathered..).step_by(SIZE as usize)) {
            equal!(
                rank.floats(place)?,
                vec![part as f32; COUNT],
                "part {part} on rank {number}"
            );
        }
    }
    give_back(ranks)
}

fn an_exchange(context: &Context) -> Verdict {
    start(context)?;
    let ranks = world(1)?;
    let rank = &ranks[0];
    let (own, other) = (rank.own(SIZE)?, rank.memory(SIZE)?);
    let out = sys::otr_transfer {
        address: own,
        size: SIZE,
        peer: 0,
        direction: sys::OTR_TRANSFER_SEND,
    };
    let back = sys::otr_transfer {
        address: other,
        direction: sys::OTR_TRANSFER_RECEIVE,
        ..out
    };
    let list = [out, back];
    otr!(exchange, rank.stream, rank.communicator, list.as_ptr(), 2)?;
    equal!(
        rank.floats(other)?,
        vec![1.0; COUNT],
        "what a rank sent itself"
    );
    otr!(exchange, rank.stream, rank.communicator, null(), 0)?;
    let null_list = otr!(exchange, rank.stream, rank.communicator, null(), 2);
    refused(null_list, Code::INVALID_ARGUMENT, "transfers that are NULL")?;
    let beyond = [sys::otr_transfer {
        size: 1 << 40,
        ..out
    }];
    let beyond = otr!(exchange, rank.stream, rank.communicator, beyond.as_ptr(), 1);
    refused(
        beyond,
        Code::INVALID_ARGUMENT,
        "a transfer beyond its memory",
    )?;
    give_back(ranks)
}

fn a_rank_that_is_lost(context: &Context) -> Verdict {
    start(context)?;
    let ranks = world(2)?;
    let (first, second) = (&ranks[0], &ranks[1]);
    let memory = first.own(SIZE)?;
    first.all_reduce(memory, memory, COUNT as u64)?;
    otr!(communicator_query, first.communicator)?;
    otr!(communicator_abort, second.communicator)?;
    let lost = otr!(stream_synchronize, first.stream);
    let lost = refused(
        lost,
        Code::PEER_LOST,
        "a stream that waited for an aborted rank",
    )?;
    equal!(
        lost.stream,
        first.stream,
        "the stream that the failure names"
    );
    let why = otr!(communicator_query, first.communicator);
    refused(why, Code::PEER_LOST, "the communicator of the other rank")?;
    let own = otr!(communicator_query, second.communicator);
    refused(own, Code::CANCELLED, "the communicator that was aborted")?;
    let later = first.all_reduce(memory, memory, COUNT as u64);
    refused(later, Code::PEER_LOST, "a later call")?;
    // The stream takes work again, and a new communicator has nothing of the old one.
    fill(first.stream, memory, SIZE, &2f32.to_ne_bytes())?;
    equal!(
        first.floats(memory)?,
        vec![2.0; COUNT],
        "later work of the stream"
    );
    for rank in ranks {
        otr!(communicator_destroy, rank.communicator)?;
    }
    calls(2)
}

fn memory_that_was_freed(context: &Context) -> Verdict {
    start(context)?;
    let ranks = world(2)?;
    let (first, second) = (&ranks[0], &ranks[1]);
    let other = made(|out| otr!(stream_create, 0, 0, out))?;
    let (memory, result) = (first.own(SIZE)?, first.memory(SIZE)?);
    first.all_reduce(memory, result, COUNT as u64)?;
    // The call waits for the second rank, and its memory may not become somebody else's on another stream.
    otr!(memory_free, 0, memory)?;
    let mut others = Vec::new();
    for _ in 0..20 {
        let next = made(|out| otr!(memory_alloc, 0, SIZE, other, out))?;
        fill(other, next, SIZE, &9f32.to_ne_bytes())?;
        others.push(next);
    }
    otr!(stream_synchronize, other)?;
    let theirs = second.own(SIZE)?;
    second.all_reduce(theirs, theirs, COUNT as u64)?;
    equal!(first.floats(result)?, vec![3.0; COUNT], "the sums");
    equal!(
        second.floats(theirs)?,
        vec![3.0; COUNT],
        "the sums of the other rank"
    );
    for memory in others {
        otr!(memory_free, 0, memory)?;
    }
    give_back(ranks)
}

fn wrong_calls(context: &Context) -> Verdict {
    start(context)?;
    let invalid = Code::INVALID_ARGUMENT;
    for wrong in [c"", c"nonsense", c"nonsense:00", c"other:0123"] {
        refused(
            join(0, wrong.as_ptr(), 1, 0),
            invalid,
            "a text that is no id",
        )?;
    }
    let id = new_id()?;
    let half = CString::new(&id.to_bytes()[..id.to_bytes().len() - 1])?;
    refused(join(0, half.as_ptr(), 1, 0), invalid, "an id that was cut")?;
    refused(join(0, null(), 1, 0), invalid, "no id")?;
    refused(join(0, id.as_ptr(), 1, 1), invalid, "rank 1 of 1")?;
    refused(join(0, id.as_ptr(), 0, 0), invalid, "rank 0 of 0")?;
    refused(
        join(9999, id.as_ptr(), 1, 0),
        Code::INVALID_DEVICE,
        "a device that is not there",
    )?;
    refused(
        otr!(communicator_id, 9999, &mut std::ptr::null_mut()),
        Code::INVALID_DEVICE,
        "a device that is not there",
    )?;
    refused(
        otr!(communicator_create, 0, null(), &mut 0),
        invalid,
        "no parameters",
    )?;
    let communicator = join(0, id.as_ptr(), 1, 0)?;
    refused(
        join(0, id.as_ptr(), 1, 0),
        Code::NOT_FOUND,
        "an id that was used",
    )?;

    let stream = super::stream()?;
    let memory = super::alloc(64, stream)?;
    upload(stream, memory, &[1f32; 16])?;
    for (none, comm) in [(true, 0), (true, stream), (false, communicator)] {
        let on = if none { stream } else { memory };
        let calls = [
            otr!(all_reduce, on, comm, memory, memory, 8, F32, SUM),
            otr!(reduce, on, comm, memory, memory, 8, F32, SUM, 0),
            otr!(reduce_scatter, on, comm, memory, memory, 8, F32, SUM),
            otr!(broadcast, on, comm, memory, 8, 0),
            otr!(all_gather, on, comm, memory, memory, 8),
            otr!(exchange, on, comm, null(), 0),
        ];
        for call in calls {
            refused(call, Code::INVALID_HANDLE, "a handle that is none")?;
        }
    }
    for id in [0, stream] {
        refused(
            otr!(communicator_query, id),
            Code::INVALID_HANDLE,
            "a query of none",
        )?;
        refused(
            otr!(communicator_abort, id),
            Code::INVALID_HANDLE,
            "an abort of none",
        )?;
        refused(
            otr!(communicator_destroy, id),
            Code::INVALID_HANDLE,
            "a destroy of none",
        )?;
    }
    let comm = communicator;
    for (call, what) in [
        (
            otr!(all_reduce, stream, comm, memory, memory, 1 << 40, F32, SUM),
            "elements beyond",
        ),
        (
            otr!(all_reduce, stream, comm, memory, memory, 1 << 62, F32, SUM),
            "more than 64 bits",
        ),
        (
            otr!(all_reduce, stream, comm, memory, memory, 8, 999, SUM),
            "a type that is none",
        ),
        (
            otr!(all_reduce, stream, comm, memory, memory, 8, F32, 99),
            "a reduction that is none",
        ),
        (
            otr!(reduce, stream, comm, memory, memory, 8, F32, SUM, 1),
            "a root that is none",
        ),
        (
            otr!(
                reduce_scatter,
                stream,
                comm,
                memory,
                memory,
                1 << 40,
                F32,
                SUM
            ),
            "shares beyond",
        ),
        (
            otr!(broadcast, stream, comm, memory, 1 << 40, 0),
            "bytes beyond",
        ),
        (
            otr!(broadcast, stream, comm, memory, 8, 1),
            "a root that is none",
        ),
        (
            otr!(all_gather, stream, comm, memory, memory, 1 << 40),
            "parts beyond",
        ),
        (
            otr!(all_gather, stream, comm, 64, memory, 8),
            "memory of nobody",
        ),
    ] {
        refused(call, invalid, what)?;
    }
    otr!(communicator_query, comm)?;
    equal!(
        download::<f32>(stream, memory, 16)?,
        vec![1.0; 16],
        "the memory afterwards"
    );
    otr!(communicator_destroy, comm)?;
    Ok(())
}

fn a_capture(context: &Context) -> Verdict {
    start(context)?;
    let ranks = world(1)?;
    let rank = &ranks[0];
    let (memory, passed) = (rank.own(SIZE)?, event()?);
    otr!(event_record, passed, rank.stream)?;
    otr!(stream_synchronize, rank.stream)?;
    begin(rank.stream)?;
    let call = rank.all_reduce(memory, memory, COUNT as u64);
    refused(call, Code::CAPTURE, "a call on a stream that captures")?;
    check!(
        end(rank.stream).is_err(),
        "H26: the end reports the call that failed"
    );
    rank.all_reduce(memory, memory, COUNT as u64)?;
    equal!(
        rank.floats(memory)?,
        vec![1.0; COUNT],
        "the stream afterwards"
    );
    otr!(event_destroy, passed)?;
    give_back(ranks)
}

fn supported_or_not(context: &Context) -> Verdict {
    start(context)?;
    let driver = context.open()?;
    let name = driver.name();
    if context.has(&driver, Need::Collectives) {
        check!(
            new_id()?.to_str()?.starts_with(name),
            "an id names its driver"
        );
        return Ok(());
    }
    let answer = otr!(communicator_id, 0, &mut std::ptr::null_mut());
    let answer = refused(
        answer,
        Code::UNSUPPORTED,
        "an id of a driver without communicators",
    )?;
    check!(
        answer.text.contains(name),
        "the text names the driver: {}",
        answer.text
    );
    let answer = join(0, c"other:00".as_ptr(), 1, 0);
    refused(
        answer,
        Code::UNSUPPORTED,
        "a rank of a driver without communicators",
    )?;
    Ok(())
}

fn exchanged_or_not(context: &Context) -> Verdict {
    start(context)?;
    let driver = context.open()?;
    if !context.has(&driver, Need::Collectives) {
        return Ok(());
    }
    let ranks = world(1)?;
    let answer = otr!(exchange, ranks[0].stream, ranks[0].communicator, null(), 0);
    match context.has(&driver, Need::CollectivesExchange) {
        true => answer?,
        false => drop(refused(answer, Code::UNSUPPORTED, "an exchange")?),
    }
    give_back(ranks)
}
