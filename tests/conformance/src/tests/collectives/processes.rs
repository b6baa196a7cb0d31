//! R48, R52: ranks in two processes. The other process reads commands from its standard input, one per line,
//! and answers on its standard output.

use super::super::memory_ipc::{Other, serve};
use super::exchanges::{receive, send};
use super::*;
use crate::Helper;

tests! { "stream.collectives":
    /// Ranks of two processes do together what ranks of one do.
    two_processes: R48 R49 R50 R51, needs Collectives TwoDevices;
    /// A process that is killed before a call is OTR_ERR_PEER_LOST for the other, long before the timeout.
    a_process_that_is_killed: R52, needs Collectives TwoDevices;
    /// A process that is killed while it waits in a call is OTR_ERR_PEER_LOST, not later than in the next call.
    a_process_that_is_killed_while_it_waits: R52, needs Collectives TwoDevices;
    /// An id of a process that has ended is OTR_ERR_NOT_FOUND.
    an_id_of_a_process_that_has_ended: R48, needs Collectives TwoDevices;
    /// Bytes go between two processes in both directions.
    an_exchange_of_processes: R48 R53, needs Collectives CollectivesExchange TwoDevices;
}

/// The name under which the other process is started.
pub(in super::super) const HELPERS: &[Helper] = &[Helper {
    name: "collectives",
    run: |context| {
        let bench = Bench::new(context)?;
        let mut rank = None;
        serve(|words| answer(&bench, &mut rank, words))
    },
}];

const SIZE: usize = 600_000;
const COUNT: usize = SIZE / 4;

/// The answer of the other process, which is rank 1 on device 1.
fn answer<'a>(bench: &'a Bench, rank: &mut Option<Rank<'a>>, words: &[&str]) -> Verdict<String> {
    let joined = || Failure::new("the other process has joined");
    match *words {
        ["id"] => return Ok(digits(&group(bench.driver())?.id()?)),
        ["join", id, count] => {
            let comm = join(bench.driver(), &bytes(id)?, count.parse()?, 1, LONG)?;
            *rank = Some(Rank::new(bench, comm)?);
        }
        ["calls"] => calls(rank.as_ref().ok_or_else(joined)?)?,
        ["exchange"] => cross(rank.as_ref().ok_or_else(joined)?)?,
        ["wait"] => {
            let rank = rank.as_ref().ok_or_else(joined)?;
            let memory = rank.memory(64)?;
            rank.broadcast(memory, 64, 0)?;
            rank.queue.flush()?;
        }
        _ => return Err(Failure::new(format!("the test said {words:?}"))),
    }
    Ok("done".to_owned())
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(text: &str) -> Verdict<Vec<u8>> {
    let pairs = (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16));
    Ok(pairs.collect::<Result<_, _>>()?)
}

/// One call of each kind, with two ranks, and what comes of it.
fn calls(rank: &Rank<'_>) -> Verdict {
    let number = rank.number();
    let sum = |places: std::ops::Range<usize>| {
        bytes_of(places.map(|at| combined(Reduction::SUM, 2, at) as f32))
    };
    let memory = rank.holding(&own_floats(rank, COUNT))?;
    rank.all_reduce(&floats(memory, memory, COUNT))?;
    equal!(
        rank.read(memory, SIZE)?,
        sum(0..COUNT),
        "all_reduce on rank {number}"
    );
    let (send, share) = (
        rank.holding(&own_floats(rank, 2 * COUNT))?,
        rank.memory(SIZE as u64)?,
    );
    rank.reduce_scatter(&floats(send, share, COUNT))?;
    let first = COUNT * number as usize;
    equal!(
        rank.read(share, SIZE)?,
        sum(first..first + COUNT),
        "reduce_scatter on rank {number}"
    );
    rank.reduce(&floats(share, memory, COUNT), 1)?;
    let own = rank.holding(&own_bytes(number, SIZE))?;
    let all = rank.memory(2 * SIZE as u64)?;
    rank.all_gather(own, all, SIZE as u64)?;
    let right = [own_bytes(0, SIZE), own_bytes(1, SIZE)].concat();
    equal!(
        rank.read(all, 2 * SIZE)?,
        right,
        "all_gather on rank {number}"
    );
    rank.broadcast(own, SIZE as u64, 1)?;
    equal!(
        rank.read(own, SIZE)?,
        own_bytes(1, SIZE),
        "broadcast on rank {number}"
    );
    Ok(())
}

/// The two ranks send each other what they have.
fn cross(rank: &Rank<'_>) -> Verdict {
    let (number, peer) = (rank.number(), 1 - rank.number());
    let (from, to) = (
        rank.holding(&own_bytes(number, SIZE))?,
        rank.memory(SIZE as u64)?,
    );
    rank.exchange(&[
        send(from, SIZE as u64, peer),
        receive(to, SIZE as u64, peer),
    ])?;
    equal!(
        rank.read(to, SIZE)?,
        own_bytes(peer, SIZE),
        "what rank {number} received"
    );
    Ok(())
}

/// Tells the other process to do something, while this one does it too.
fn together(other: &mut Other, line: &str, work: impl FnOnce() -> Verdict) -> Verdict {
    let (said, done) = std::thread::scope(|scope| {
        let said = scope.spawn(|| other.ask(line));
        let done = work();
        (said.join(), done)
    });
    done?;
    let said = said.map_err(|_| Failure::new("a thread of the test panicked"))??;
    equal!(said, "done", "what the other process says");
    Ok(())
}

/// This process as rank 0, and another as rank 1.
fn pair<'a>(context: &Context, bench: &'a Bench) -> Verdict<(Rank<'a>, Other)> {
    let mut other = Other::with(context, "collectives")?;
    let id = group(bench.driver())?.id()?;
    let mut comm = None;
    together(&mut other, &format!("join {} 2", digits(&id)), || {
        comm = Some(join(bench.driver(), &id, 2, 0, LONG)?);
        Ok(())
    })?;
    let comm = comm.ok_or_else(|| Failure::new("this process has joined"))?;
    Ok((Rank::new(bench, comm)?, other))
}

fn two_processes(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (rank, mut other) = pair(context, &bench)?;
    for _ in 0..3 {
        together(&mut other, "calls", || calls(&rank))?;
    }
    other.end()?;
    drop(rank);
    bench.finish()
}

fn an_exchange_of_processes(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (rank, mut other) = pair(context, &bench)?;
    for _ in 0..3 {
        together(&mut other, "exchange", || cross(&rank))?;
    }
    other.end()?;
    drop(rank);
    bench.finish()
}

fn a_process_that_is_killed(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (rank, mut other) = pair(context, &bench)?;
    together(&mut other, "calls", || calls(&rank))?;
    let memory = rank.memory(64)?;
    rank.all_gather(memory, memory, 32)?;
    rank.queue.flush()?;
    other.kill()?;
    answers!(
        rank.queue.synchronize(),
        Code::PEER_LOST,
        "a call that the killed rank never came to"
    );
    answers!(rank.comm.query(), Code::PEER_LOST, "the communicator");
    drop(rank);
    bench.finish()
}

fn a_process_that_is_killed_while_it_waits(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (rank, mut other) = pair(context, &bench)?;
    together(&mut other, "wait", || Ok(()))?;
    // The other process waits by now, or will.
    std::thread::sleep(Duration::from_millis(100));
    other.kill()?;
    let memory = rank.holding(&own_bytes(0, 64))?;
    // The other process may have come to the first call before its end; to the second it has not.
    // SAFETY: the test's own memory.
    let calls = [(); 2].map(|()| unsafe { rank.comm.broadcast(&rank.queue, memory, 64, 0) });
    let [first, second] = calls;
    let ended = rank.queue.synchronize().and(first).and(second);
    answers!(ended, Code::PEER_LOST, "the calls of the other rank");
    equal!(
        rank.read(memory, 64)?,
        own_bytes(0, 64),
        "the bytes of the root"
    );
    drop(rank);
    bench.finish()
}

fn an_id_of_a_process_that_has_ended(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let mut other = Other::with(context, "collectives")?;
    let id = bytes(&other.ask("id")?)?;
    other.end()?;
    let params = CommParams {
        id: &id,
        rank_count: 1,
        rank: 0,
        timeout: Some(LONG),
    };
    let answer = group(bench.driver())?.create(0, &params);
    answers!(
        answer,
        Code::NOT_FOUND,
        "create with an id of a process that has ended"
    );
    bench.finish()
}
