//! R7, R48, R49: what a driver checks before it takes a call.

use std::ptr::{null, null_mut};

use outrigger_device::NO_OUTCOME;

use super::super::raw::{Raw, call};
use super::exchanges::{receive, send};
use super::*;

tests! { "stream.collectives":
    /// An id has the size that the driver says, each is another one, and too little room is refused.
    ids: R4 R48, needs Collectives;
    /// Bytes that are no id are OTR_ERR_INVALID_HANDLE, and an id that was used OTR_ERR_NOT_FOUND.
    what_is_no_id: R48, needs Collectives;
    /// An id whose driver is closed is OTR_ERR_NOT_FOUND.
    an_id_of_a_closed_driver: R48, needs Collectives;
    /// A rank that has come before, one that is out of range, and another number of ranks are refused.
    wrong_ranks: R48, needs Collectives TwoDevices;
    /// Handles that are NULL and pointers that are NULL are refused.
    what_is_null: R4 R7, needs Collectives;
    /// A queue of another device or of another open driver is refused.
    the_wrong_queue: R7 R49, needs Collectives TwoDevices;
    /// A root, a peer, a type, a reduction and a direction that do not exist are refused.
    what_does_not_exist: R7 R49 R51, needs Collectives TwoDevices;
    /// A driver with a communicator is not closed.
    close_is_busy: R12 R54, needs Collectives;
}

fn ids(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let group = raw.collectives()?;
    let mut size = 77;
    let asked = call!(group, id, raw.handle(), null_mut(), &mut size);
    raw.takes(asked, "id with NULL")?;
    check!(
        (1..=Collectives::LARGEST_ID).contains(&size),
        "an id of {size} bytes"
    );
    let mut bytes = vec![0x5a; size as usize];
    let mut room = size - 1;
    let refused = call!(
        group,
        id,
        raw.handle(),
        bytes.as_mut_ptr().cast(),
        &mut room
    );
    raw.refuses(refused, Code::INVALID_ARGUMENT, "id with one byte too few")?;
    equal!(
        (room, &bytes[..]),
        (size - 1, &vec![0x5a; size as usize][..]),
        "what it was given"
    );
    let refused = call!(
        group,
        id,
        raw.handle(),
        bytes.as_mut_ptr().cast(),
        null_mut()
    );
    raw.refuses(refused, Code::INVALID_ARGUMENT, "id without a size")?;
    let refused = call!(group, id, null_mut(), bytes.as_mut_ptr().cast(), &mut size);
    raw.refuses(refused, Code::INVALID_HANDLE, "id of no driver")?;
    let collectives = super::group(raw.driver())?;
    check!(
        collectives.id()? != collectives.id()?,
        "two ids are not the same"
    );
    Ok(())
}

fn alone(id: &[u8]) -> CommParams<'_> {
    CommParams {
        id,
        rank_count: 1,
        rank: 0,
        timeout: Some(LONG),
    }
}

fn what_is_no_id(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let collectives = group(bench.driver())?;
    let id = collectives.id()?;
    for bytes in [
        vec![0; id.len()],
        vec![0xff; id.len()],
        pattern(id.len(), 3),
    ] {
        let answer = collectives.create(0, &alone(&bytes));
        answers!(
            answer,
            Code::INVALID_HANDLE,
            "create with bytes that are no id"
        );
        check!(
            answer.is_err_and(|e| !e.message().is_empty()),
            "R5: it has a text"
        );
    }
    answers!(
        collectives.create(0, &alone(&id[1..])),
        Code::INVALID_HANDLE,
        "a part of an id"
    );
    let comm = collectives.create(0, &alone(&id))?;
    answers!(
        collectives.create(0, &alone(&id)),
        Code::NOT_FOUND,
        "an id that was used"
    );
    drop(comm);
    answers!(
        collectives.create(0, &alone(&id)),
        Code::NOT_FOUND,
        "an id that was used before"
    );
    bench.finish()
}

fn an_id_of_a_closed_driver(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let id = {
        let other = context.open()?;
        group(&other)?.id()?
    };
    let answer = group(bench.driver())?.create(0, &alone(&id));
    answers!(
        answer,
        Code::NOT_FOUND,
        "create with an id whose driver is closed"
    );
    bench.finish()
}

fn wrong_ranks(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let collectives = group(bench.driver())?;
    let id = collectives.id()?;
    let rank = |rank_count, rank| CommParams {
        id: &id,
        rank_count,
        rank,
        timeout: Some(LONG),
    };
    for (count, number) in [(0, 0), (1, 1), (2, 2), (2, u32::MAX)] {
        let answer = collectives.create(0, &rank(count, number));
        answers!(answer, Code::INVALID_ARGUMENT, "rank {number} of {count}");
    }
    std::thread::scope(|scope| -> Verdict {
        let first = scope.spawn(|| collectives.create(0, &rank(2, 0)));
        // The first rank may come at any time; until then the calls below would wait for it.
        std::thread::sleep(Duration::from_millis(200));
        let again = collectives.create(1, &rank(2, 0));
        answers!(again, Code::INVALID_ARGUMENT, "a rank that has come before");
        let other = collectives.create(1, &rank(3, 1));
        answers!(other, Code::INVALID_ARGUMENT, "another number of ranks");
        let second = collectives.create(1, &rank(2, 1));
        let first = first
            .join()
            .map_err(|_| Failure::new("a thread of the test panicked"))?;
        answers!(first, Code::OK, "the first rank, after what was refused");
        answers!(second, Code::OK, "the second rank");
        Ok(())
    })?;
    bench.finish()
}

fn what_is_null(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let group = raw.collectives()?;
    let id = super::group(raw.driver())?.id()?;
    let mut params = sys::otr_comm_params {
        struct_size: size_of::<sys::otr_comm_params>(),
        next: std::ptr::null(),
        id: id.as_ptr().cast(),
        id_size: id.len() as u64,
        rank_count: 1,
        rank: 0,
        timeout_ms: 20_000,
    };
    let untouched = 0x51 as *mut sys::otr_drv_comm;
    let mut comm = untouched;
    let (invalid, handle) = (Code::INVALID_ARGUMENT, Code::INVALID_HANDLE);
    let answer = call!(group, create, null_mut(), 0, &params, &mut comm);
    raw.refuses(answer, handle, "create of no driver")?;
    let answer = call!(group, create, raw.handle(), 9999, &params, &mut comm);
    raw.refuses(answer, Code::INVALID_DEVICE, "create on no device")?;
    let answer = call!(group, create, raw.handle(), 0, null(), &mut comm);
    raw.refuses(answer, invalid, "create without parameters")?;
    let answer = call!(group, create, raw.handle(), 0, &params, null_mut());
    raw.refuses(answer, invalid, "create without a place")?;
    params.id = null();
    let answer = call!(group, create, raw.handle(), 0, &params, &mut comm);
    raw.refuses(answer, invalid, "create without an id")?;
    equal!(comm, untouched, "R4: the place of calls that failed");
    params.id = id.as_ptr().cast();
    let answer = call!(group, create, raw.handle(), 0, &params, &mut comm);
    raw.takes(answer, "create")?;

    let (queue, none) = (raw.queue()?, null_mut());
    for (answer, what) in [
        (call!(group, destroy, none), "destroy"),
        (call!(group, abort, none), "abort"),
        (call!(group, query, none, &mut { NO_OUTCOME }), "query"),
        (
            call!(group, broadcast, null_mut(), comm, 0, 0, 0),
            "broadcast on no queue",
        ),
        (
            call!(group, broadcast, queue, none, 0, 0, 0),
            "broadcast of no rank",
        ),
        (
            call!(group, all_gather, queue, none, 0, 0, 0),
            "all_gather of no rank",
        ),
        (
            call!(group, all_reduce, queue, none, 0, 0, 0, 12, 1),
            "all_reduce of no rank",
        ),
        (
            call!(group, reduce, queue, none, 0, 0, 0, 12, 1, 0),
            "reduce of no rank",
        ),
        (
            call!(group, reduce_scatter, queue, none, 0, 0, 0, 12, 1),
            "reduce_scatter of no rank",
        ),
    ] {
        answers!(answer, handle, "{what}");
    }
    for (answer, what) in [
        (
            call!(group, broadcast, queue, comm, 0, 8, 0),
            "broadcast at 0",
        ),
        (
            call!(group, all_gather, queue, comm, 0, 0, 8),
            "all_gather at 0",
        ),
        (
            call!(group, all_reduce, queue, comm, 0, 0, 8, 12, 1),
            "all_reduce at 0",
        ),
        (
            call!(group, reduce_scatter, queue, comm, 0, 0, 8, 12, 1),
            "reduce_scatter at 0",
        ),
    ] {
        answers!(answer, invalid, "{what}");
    }
    if group.exchange.is_some() {
        let answer = call!(group, exchange, queue, comm, null());
        raw.refuses(answer, invalid, "exchange of nothing")?;
    }
    raw.synchronize(queue)?;
    let mut outcome = NO_OUTCOME;
    let answer = call!(group, query, comm, &mut outcome);
    raw.takes(answer, "query of the communicator afterwards")?;
    answers!(outcome.code, Code::OK, "the communicator afterwards");
    let answer = call!(group, query, comm, null_mut());
    raw.refuses(answer, invalid, "query without a place for the outcome")?;
    raw.destroy(queue, null_mut())?;
    raw.takes(call!(group, destroy, comm), "destroy")
}

fn the_wrong_queue(context: &Context) -> Verdict {
    let (bench, other) = (Bench::new(context)?, Raw::open(context)?);
    let ranks = world(&bench, 2, LONG)?;
    let memory = ranks[0].holding(&[1; 64])?;
    // SAFETY: refused.
    let answer = unsafe { ranks[0].comm.broadcast(&ranks[1].queue, memory, 64, 0) };
    answers!(answer, Code::INVALID_DEVICE, "a queue of another device");
    let raw = Raw::of(bench.driver());
    let group = raw.collectives()?;
    let id = super::group(raw.driver())?.id()?;
    let params = sys::otr_comm_params {
        struct_size: size_of::<sys::otr_comm_params>(),
        next: std::ptr::null(),
        id: id.as_ptr().cast(),
        id_size: id.len() as u64,
        rank_count: 1,
        rank: 0,
        timeout_ms: 20_000,
    };
    let mut comm = null_mut();
    let answer = call!(group, create, raw.handle(), 0, &params, &mut comm);
    raw.takes(answer, "create")?;
    let foreign = other.queue()?;
    let answer = call!(group, broadcast, foreign, comm, memory, 64, 0);
    raw.refuses(
        answer,
        Code::INVALID_HANDLE,
        "a queue of another open driver",
    )?;
    other.destroy(foreign, null_mut())?;
    raw.takes(call!(group, destroy, comm), "destroy")?;
    drop(ranks);
    bench.finish()
}

fn what_does_not_exist(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        let invalid = Code::INVALID_ARGUMENT;
        let (rank, count) = (&ranks[0], ranks.len() as u32);
        let memory = rank.holding(&own_floats(rank, 64))?;
        let right = floats(memory, memory, 8);
        for root in [count, u32::MAX] {
            // SAFETY: refused.
            unsafe {
                answers!(
                    rank.comm.broadcast(&rank.queue, memory, 8, root),
                    invalid,
                    "root {root}"
                );
                answers!(
                    rank.comm.reduce(&rank.queue, &right, root),
                    invalid,
                    "root {root}"
                );
            }
        }
        for (dtype, reduction) in [
            (DType(0), right.reduction),
            (DType(9999), right.reduction),
            (right.dtype, Reduction(0)),
            (right.dtype, Reduction(99)),
        ] {
            let what = Elements {
                dtype,
                reduction,
                ..right
            };
            // SAFETY: refused.
            unsafe {
                answers!(
                    rank.comm.all_reduce(&rank.queue, &what),
                    invalid,
                    "{dtype:?}, {reduction:?}"
                );
                answers!(
                    rank.comm.reduce(&rank.queue, &what, 0),
                    invalid,
                    "{dtype:?}, {reduction:?}"
                );
                answers!(
                    rank.comm.reduce_scatter(&rank.queue, &what),
                    invalid,
                    "{dtype:?}, {reduction:?}"
                );
            }
        }
        // SAFETY: refused, since no memory is as large.
        unsafe {
            let what = Elements {
                count: u64::MAX / 2,
                ..right
            };
            answers!(
                rank.comm.all_reduce(&rank.queue, &what),
                invalid,
                "more than 64 bits count"
            );
            answers!(
                rank.comm.all_gather(&rank.queue, memory, memory, u64::MAX),
                invalid,
                "as many bytes"
            );
        }
        if group(rank.bench.driver())?.can_exchange() {
            let odd = sys::otr_transfer {
                direction: 7,
                ..send(memory, 8, 0)
            };
            for one in [send(memory, 8, count), receive(memory, 8, u32::MAX), odd] {
                // SAFETY: refused.
                let answer = unsafe { rank.comm.exchange(&rank.queue, &[one]) };
                answers!(answer, invalid, "a transfer {one:?}");
            }
        }
        // None of them was a call: the next one of each rank belongs to those of the others.
        for rank in ranks {
            let memory = rank.holding(&own_floats(rank, 8))?;
            rank.all_reduce(&floats(memory, memory, 8))?;
        }
        Ok(())
    })
}

fn close_is_busy(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let id = group(raw.driver())?.id()?;
    let comm = group(raw.driver())?.create(0, &alone(&id))?;
    let answer = call!(raw.api(), close, raw.handle());
    // A driver may refuse it; none may take a communicator away under its host.
    if answer == Code::OK.0 {
        return Err(Failure::new(
            "close with a communicator: expected OTR_ERR_BUSY",
        ));
    }
    raw.refuses(answer, Code::BUSY, "close with a communicator")?;
    answers!(comm.query(), Code::OK, "the communicator afterwards");
    Ok(())
}
