//! R52, R54: what becomes of the others when a rank does not come.

use super::exchanges::{receive, send};
use super::*;

tests! { "stream.collectives":
    /// `create` fails with OTR_ERR_PEER_LOST if not all ranks come within the timeout.
    a_rank_that_never_joins: R48, needs Collectives TwoDevices;
    /// A rank that does not come to a call within the timeout is OTR_ERR_PEER_LOST for the others, and for itself
    /// when it comes.
    a_rank_that_is_late: R52, needs Collectives TwoDevices;
    /// `abort` ends a call that waits, with OTR_ERR_CANCELLED on its rank and OTR_ERR_PEER_LOST on the others.
    abort_ends_what_waits: R52 R54, needs Collectives TwoDevices;
    /// A rank whose queue has failed is OTR_ERR_PEER_LOST for the others.
    a_queue_that_has_failed: R20 R52, needs Collectives TwoDevices;
    /// A rank that was destroyed fails those that still need it.
    a_rank_that_was_destroyed: R52 R54, needs Collectives TwoDevices;
    /// A rank that was destroyed after its last call fails nobody.
    a_rank_that_has_finished: R52 R54, needs Collectives TwoDevices;
    /// The failure of a communicator stays, and a new one of the same devices works.
    a_failure_stays: R52, needs Collectives TwoDevices;
    /// Ranks that make different calls fail within the timeout.
    different_calls: R49 R52, needs Collectives TwoDevices;
    /// A transfer without its other side fails within the timeout.
    a_transfer_that_nobody_takes: R52 R53, needs Collectives CollectivesExchange TwoDevices;
    /// A failed call fails what is behind it in its queue, and no other queue.
    what_is_behind_a_failed_call: R20 R52, needs Collectives TwoDevices;
}

/// The time that ranks wait where not all of them come.
const SHORT: Duration = Duration::from_millis(300);

fn a_rank_that_never_joins(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let id = group(bench.driver())?.id()?;
    let params = CommParams {
        id: &id,
        rank_count: 2,
        rank: 0,
        timeout: Some(SHORT),
    };
    let answer = group(bench.driver())?.create(0, &params);
    answers!(
        answer,
        Code::PEER_LOST,
        "create, where one rank of two has come"
    );
    check!(
        answer.is_err_and(|e| !e.message().is_empty()),
        "R5: it has a text"
    );
    // The driver makes others.
    drop(world(&bench, 2, LONG)?);
    bench.finish()
}

/// A world in which every rank but the last makes a call.
fn without_the_last(
    context: &Context,
    timeout: Duration,
    then: impl FnOnce(&[Rank<'_>], u64) -> Verdict,
) -> Verdict {
    let bench = Bench::new(context)?;
    let ranks = world(&bench, ranks_of(bench.driver()), timeout)?;
    let mut last = 0;
    for rank in &ranks {
        last = rank.holding(&own_floats(rank, 8))?;
        if rank.number() + 1 < ranks.len() as u32 {
            rank.all_reduce(&floats(last, last, 8))?;
            rank.queue.flush()?;
        }
    }
    ranks[ranks.len() - 1].queue.synchronize()?;
    then(&ranks, last)?;
    drop(ranks);
    bench.finish()
}

/// The call of every rank but the last fails with a code.
fn others_fail(ranks: &[Rank<'_>], code: Code, what: &str) -> Verdict {
    for rank in &ranks[..ranks.len() - 1] {
        answers!(
            rank.queue.synchronize(),
            code,
            "{what}, on rank {}",
            rank.number()
        );
        let answer = rank.comm.query();
        answers!(answer, code, "{what}, asked of rank {}", rank.number());
        check!(
            answer.is_err_and(|e| !e.message().is_empty()),
            "R5: it has a text"
        );
    }
    Ok(())
}

fn a_rank_that_is_late(context: &Context) -> Verdict {
    without_the_last(context, SHORT, |ranks, memory| {
        others_fail(ranks, Code::PEER_LOST, "a rank that does not come")?;
        let last = &ranks[ranks.len() - 1];
        // SAFETY: the test's own memory.
        let answer = unsafe {
            last.comm
                .all_reduce(&last.queue, &floats(memory, memory, 8))
        };
        answers!(
            answer,
            Code::PEER_LOST,
            "the call of the rank that comes too late"
        );
        answers!(
            last.queue.synchronize(),
            Code::OK,
            "its queue, which has no failed work"
        );
        equal!(last.read(memory, 32)?, own_floats(last, 8), "its memory");
        Ok(())
    })
}

fn abort_ends_what_waits(context: &Context) -> Verdict {
    without_the_last(context, LONG, |ranks, memory| {
        ranks[0].comm.abort()?;
        for rank in &ranks[..ranks.len() - 1] {
            let code = if rank.number() == 0 {
                Code::CANCELLED
            } else {
                Code::PEER_LOST
            };
            answers!(
                rank.queue.synchronize(),
                code,
                "the call that waits on rank {}",
                rank.number()
            );
        }
        let last = &ranks[ranks.len() - 1];
        // SAFETY: the test's own memory.
        let answer = unsafe { last.comm.broadcast(&last.queue, memory, 8, 0) };
        answers!(answer, Code::PEER_LOST, "a later call of another rank");
        answers!(
            last.comm.query(),
            Code::PEER_LOST,
            "the communicator of another rank"
        );
        answers!(
            ranks[0].comm.query(),
            Code::CANCELLED,
            "the communicator of the aborted rank"
        );
        ranks[0].comm.abort()?;
        Ok(())
    })
}

fn a_queue_that_has_failed(context: &Context) -> Verdict {
    without_the_last(context, LONG, |ranks, memory| {
        let last = &ranks[ranks.len() - 1];
        super::super::kit::fail(&last.queue, Code::OUT_OF_RANGE)?;
        last.all_reduce(&floats(memory, memory, 8))?;
        answers!(
            last.queue.synchronize(),
            Code::OUT_OF_RANGE,
            "the first failure of the queue"
        );
        others_fail(ranks, Code::PEER_LOST, "a rank whose queue had failed")
    })
}

fn a_rank_that_was_destroyed(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let mut ranks = world(&bench, ranks_of(bench.driver()), LONG)?;
    let last = ranks.pop();
    let mut calls = Vec::new();
    for rank in &ranks {
        let memory = rank.holding(&own_floats(rank, 8))?;
        rank.all_reduce(&floats(memory, memory, 8))?;
        rank.queue.flush()?;
        calls.push(memory);
    }
    drop(last);
    for rank in &ranks {
        answers!(
            rank.queue.synchronize(),
            Code::PEER_LOST,
            "a call that needs it"
        );
        answers!(rank.comm.query(), Code::PEER_LOST, "the communicator");
    }
    drop(ranks);
    bench.finish()
}

fn a_rank_that_has_finished(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let mut ranks = world(&bench, ranks_of(bench.driver()), LONG)?;
    // Rank 0 shows its bytes, and needs nothing of the others.
    const SIZE: usize = 700_000;
    let mut places = Vec::new();
    for rank in &ranks {
        let memory = rank.holding(&own_bytes(rank.number(), SIZE))?;
        rank.broadcast(memory, SIZE as u64, 0)?;
        places.push(memory);
    }
    ranks[0].queue.synchronize()?;
    drop(ranks.remove(0));
    for (rank, place) in ranks.iter().zip(&places[1..]) {
        equal!(
            rank.read(*place, SIZE)?,
            own_bytes(0, SIZE),
            "rank {}",
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

fn a_failure_stays(context: &Context) -> Verdict {
    without_the_last(context, LONG, |ranks, memory| {
        let last = &ranks[ranks.len() - 1];
        last.comm.abort()?;
        others_fail(ranks, Code::PEER_LOST, "an aborted rank")?;
        for rank in &ranks[..ranks.len() - 1] {
            // SAFETY: refused, with no address of its device.
            let again = unsafe { rank.comm.broadcast(&rank.queue, 0, 0, 0) };
            answers!(again, Code::PEER_LOST, "a later call");
            answers!(
                rank.queue.synchronize(),
                Code::OK,
                "the queue, whose failure was reported"
            );
        }
        // SAFETY: refused.
        let own = unsafe { last.comm.all_gather(&last.queue, memory, memory, 0) };
        answers!(own, Code::CANCELLED, "a later call of the aborted rank");
        let next = world(ranks[0].bench, ranks.len() as u32, LONG)?;
        for rank in &next {
            let memory = rank.holding(&own_bytes(rank.number(), 64))?;
            rank.broadcast(memory, 64, 0)?;
        }
        for rank in &next {
            answers!(
                rank.queue.synchronize(),
                Code::OK,
                "work of a new communicator"
            );
        }
        Ok(())
    })
}

fn different_calls(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    for what in [
        "another size",
        "another root",
        "another call",
        "another type",
    ] {
        let ranks = world(&bench, ranks_of(bench.driver()), SHORT)?;
        for rank in &ranks {
            let memory = rank.holding(&own_floats(rank, 64))?;
            let odd = rank.number() == 1;
            match what {
                "another size" => rank.broadcast(memory, if odd { 96 } else { 64 }, 0)?,
                "another root" => rank.broadcast(memory, 64, rank.number() % 2)?,
                "another call" if odd => rank.broadcast(memory, 64, 0)?,
                "another type" if odd => rank.all_reduce(&Elements {
                    reduction: Reduction::MAX,
                    ..floats(memory, memory, 16)
                })?,
                _ => rank.all_reduce(&floats(memory, memory, 16))?,
            }
        }
        let mut failed = 0;
        for rank in &ranks {
            if let Err(error) = rank.queue.synchronize() {
                let known = [Code::INVALID_ARGUMENT, Code::PEER_LOST];
                check!(known.contains(&error.code()), "{what}: {error}");
                failed += 1;
            }
        }
        check!(
            failed > 0,
            "{what} on rank 1 is a failure of at least one rank"
        );
    }
    bench.finish()
}

fn a_transfer_that_nobody_takes(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let ranks = world(&bench, 2, SHORT)?;
    // Larger than what may be on its way.
    const SIZE: u64 = 8 << 20;
    let from = ranks[0].memory(SIZE)?;
    let into = ranks[1].memory(SIZE)?;
    fill(&ranks[0].queue, from, SIZE, &[1])?;
    ranks[1].exchange(&[receive(into, SIZE, 1)])?;
    answers!(
        ranks[1].queue.synchronize(),
        Code::PEER_LOST,
        "a receive of what nobody sends"
    );
    // SAFETY: refused, or the test's own memory.
    let _ = unsafe {
        ranks[0]
            .comm
            .exchange(&ranks[0].queue, &[send(from, SIZE, 1)])
    };
    let _ = ranks[0].queue.synchronize();
    answers!(
        ranks[0].comm.query(),
        Code::PEER_LOST,
        "the communicator of the sender"
    );
    drop(ranks);
    bench.finish()
}

fn what_is_behind_a_failed_call(context: &Context) -> Verdict {
    without_the_last(context, LONG, |ranks, _| {
        let rank = &ranks[0];
        let (log, event) = (Log::default(), rank.bench.event()?);
        let beside = rank.memory(64)?;
        fill(&rank.queue, beside, 64, &[1])?;
        super::super::kit::note_upstream(&rank.queue, &log)?;
        event.record(&rank.queue)?;
        ranks[ranks.len() - 1].comm.abort()?;
        until(|| Ok(event.query().is_err()))?;
        let code = Code::PEER_LOST;
        answers!(event.query(), code, "an event behind the call");
        answers!(rank.queue.synchronize(), code, "the queue of the call");
        equal!(
            log.values(),
            vec![code.0 as u64],
            "what a host call behind it was called with"
        );
        let other = rank.bench.queue_on(0)?;
        let found = read(&other, beside, 64)?;
        check!(
            found != vec![1; 64],
            "the fill behind the call was not executed"
        );
        answers!(other.synchronize(), Code::OK, "another queue");
        Ok(())
    })
}
