//! R48 to R54: communicators. The ranks are devices of this process here, and other processes in
//! [`processes`].

pub(super) mod exchanges;
pub(super) mod failures;
pub(super) mod misuse;
pub(super) mod processes;
mod ranks;

use std::time::Duration;

use outrigger_device::{Code, Collectives, CommParams, DType, Elements, Error, Reduction, sys};

use super::kit::{
    Bench, Log, block, delay, fill, holds, note, pattern, read, threads, until, within, write,
};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Failure, Gate, Verdict};
use ranks::{LONG, Rank, group, join, ranks_of, with_world, world};

tests! { "stream.collectives":
    /// An `all_reduce` gives all ranks the combination of all elements, of every type and reduction that the
    /// driver has; sums, minima and maxima of f32 are never refused.
    all_reduce: R51, needs Collectives TwoDevices, limit 120;
    /// All ranks get the same bits from an `all_reduce` of numbers that no order of sums gives exactly.
    all_ranks_get_the_same_bits: R51, needs Collectives TwoDevices;
    /// A `reduce` gives the root the combination, and writes on no other rank.
    reduce_writes_on_the_root_alone: R50 R51, needs Collectives TwoDevices;
    /// A `reduce_scatter` gives each rank its share of the combination, in the order of the ranks.
    reduce_scatter: R50 R51, needs Collectives TwoDevices;
    /// A `broadcast` gives all ranks the bytes of any root, and leaves the root's as they are.
    broadcast: R49, needs Collectives TwoDevices;
    /// An `all_gather` gives all ranks all parts, in the order of the ranks.
    all_gather: R50, needs Collectives TwoDevices;
    /// Calls that work in place give what they give elsewhere.
    in_place: R50, needs Collectives TwoDevices;
    /// Nothing beside the result is written.
    nothing_else_is_written: R50, needs Collectives TwoDevices;
    /// A call of no elements does nothing, and looks at no address.
    a_size_of_0: R25 R50, needs Collectives TwoDevices;
    /// One rank alone is a communicator.
    a_world_of_one: R50, needs Collectives;
    /// A call sees the work before it in its queue, and is seen by the work behind it, on every rank.
    calls_keep_the_order_of_their_queue: R16 R49, needs Collectives TwoDevices;
    /// A submission returns before the other ranks have come: one thread submits for all ranks.
    a_submission_waits_for_nobody: R17 R49, needs Collectives TwoDevices;
    /// While a rank waits for others, another queue of its device goes on.
    other_queues_go_on: R17 R49, needs Collectives TwoDevices;
    /// Calls on two queues run in the order of their submission to the communicator.
    the_order_of_the_communicator: R49, needs Collectives TwoDevices;
    /// Two communicators of the same devices work side by side, and know nothing of each other.
    two_communicators: R49, needs Collectives TwoDevices;
    /// Threads that use a communicator each, again and again, get what is right.
    many_threads: R8 R48, needs Collectives TwoDevices, limit 60;
    /// A call on a queue that records is kept, or refused with OTR_ERR_UNSUPPORTED.
    on_a_queue_that_records: R31 R54, needs Collectives Graphs;
}

// ---- Reductions ------------------------------------------------------------------------------------

const REDUCTIONS: [Reduction; 5] = [
    Reduction::SUM,
    Reduction::PROD,
    Reduction::MIN,
    Reduction::MAX,
    Reduction::AVG,
];

type Number = (DType, fn(i32) -> Vec<u8>, fn(&[u8]) -> f64);

/// Types of numbers, with what brings a small number into their bytes and back.
const NUMBERS: [Number; 12] = {
    use half::{bf16, f16};
    macro_rules! number {
        ($dtype:ident $type:ty) => {
            (
                DType::$dtype,
                |value| (value as $type).to_ne_bytes().to_vec(),
                |bytes| <$type>::from_ne_bytes(bytes.try_into().unwrap_or_default()) as f64,
            )
        };
        ($dtype:ident half $type:ty) => {
            (
                DType::$dtype,
                |value| <$type>::from_f32(value as f32).to_ne_bytes().to_vec(),
                |bytes| <$type>::from_ne_bytes(bytes.try_into().unwrap_or_default()).to_f64(),
            )
        };
    }
    [
        number!(U8 u8),
        number!(I8 i8),
        number!(I16 i16),
        number!(I32 i32),
        number!(I64 i64),
        number!(U16 u16),
        number!(U32 u32),
        number!(U64 u64),
        number!(F16 half f16),
        number!(BF16 half bf16),
        number!(F32 f32),
        number!(F64 f64),
    ]
};

/// The element of a rank at a place: small, so that every type holds all results exactly.
fn element(rank: u32, at: usize) -> i32 {
    1 + ((at as u32 * 7 + rank * 5) % 3) as i32
}

/// The result of a reduction of such elements.
fn combined(reduction: Reduction, ranks: u32, at: usize) -> f64 {
    let values = (0..ranks).map(|rank| f64::from(element(rank, at)));
    match reduction {
        Reduction::PROD => values.product(),
        Reduction::MIN => values.fold(f64::INFINITY, f64::min),
        Reduction::MAX => values.fold(0.0, f64::max),
        Reduction::AVG => values.sum::<f64>() / f64::from(ranks),
        _ => values.sum(),
    }
}

fn is_float(dtype: DType) -> bool {
    [DType::F16, DType::BF16, DType::F32, DType::F64].contains(&dtype)
}

fn all_reduce(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        let count = ranks.len() as u32;
        let mut refused = Vec::new();
        for (dtype, to_bytes, to_number) in NUMBERS {
            let size = to_bytes(0).len();
            for reduction in REDUCTIONS {
                // Few, and more than any implementation moves at a time.
                for length in [1, 5, 1000, 70_001] {
                    let mut answers = Vec::new();
                    let mut places = Vec::new();
                    for rank in ranks {
                        let own: Vec<u8> = (0..length)
                            .flat_map(|at| to_bytes(element(rank.number(), at)))
                            .collect();
                        let what = Elements {
                            send: rank.holding(&own)?,
                            receive: rank.memory(own.len() as u64)?,
                            count: length as u64,
                            dtype,
                            reduction,
                        };
                        // SAFETY: the test's own memory.
                        answers.push(unsafe { rank.comm.all_reduce(&rank.queue, &what) });
                        places.push(what);
                    }
                    let lacks = |answer: &Result<(), Error>| {
                        answer
                            .as_ref()
                            .is_err_and(|e| e.code() == Code::UNSUPPORTED)
                    };
                    if answers.iter().all(lacks) {
                        let basic = [Reduction::SUM, Reduction::MIN, Reduction::MAX];
                        check!(
                            dtype != DType::F32 || !basic.contains(&reduction),
                            "{reduction:?} of f32 is never refused"
                        );
                        refused.push(format!("{reduction:?} of {dtype}"));
                        give_back(ranks, &places)?;
                        break;
                    }
                    for (rank, answer) in answers.iter().enumerate() {
                        answers!(*answer, Code::OK, "{reduction:?} of {dtype} on rank {rank}");
                    }
                    for (rank, what) in ranks.iter().zip(&places) {
                        let found = rank.read(what.receive, length * size)?;
                        for (at, bytes) in found.chunks_exact(size).enumerate() {
                            let right = combined(reduction, count, at);
                            let right = if is_float(dtype) {
                                right
                            } else {
                                right.trunc()
                            };
                            let near = (to_number(bytes) - right).abs() <= right / 100.0;
                            check!(
                                near && (is_float(dtype) || to_number(bytes) == right),
                                "{reduction:?} of {length} {dtype}, element {at} on rank {}: {} and not {right}",
                                rank.number(),
                                to_number(bytes)
                            );
                        }
                    }
                    give_back(ranks, &places)?;
                }
            }
        }
        if !refused.is_empty() {
            context.note(format!("not supported: {}", refused.join(", ")));
        }
        Ok(())
    })
}

/// Frees what calls have used, whose work is waited for.
fn give_back(ranks: &[Rank<'_>], places: &[Elements]) -> Verdict {
    for (rank, what) in ranks.iter().zip(places) {
        rank.queue.synchronize()?;
        rank.bench.give_back(what.send)?;
        rank.bench.give_back(what.receive)?;
    }
    Ok(())
}

/// Numbers of f32 for a sum.
fn floats(send: u64, receive: u64, count: usize) -> Elements {
    Elements {
        send,
        receive,
        count: count as u64,
        dtype: DType::F32,
        reduction: Reduction::SUM,
    }
}

fn bytes_of(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_ne_bytes).collect()
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|word| f32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
        .collect()
}

/// The f32 numbers of a rank, all small and whole.
fn own_floats(rank: &Rank<'_>, count: usize) -> Vec<u8> {
    bytes_of((0..count).map(|at| element(rank.number(), at) as f32))
}

fn sums(ranks: &[Rank<'_>], places: impl Iterator<Item = usize>) -> Vec<u8> {
    bytes_of(places.map(|at| combined(Reduction::SUM, ranks.len() as u32, at) as f32))
}

fn all_ranks_get_the_same_bits(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        const COUNT: usize = 100_003;
        let mut places = Vec::new();
        for rank in ranks {
            let mut rng = fastrand::Rng::with_seed(7 + u64::from(rank.number()));
            let own = bytes_of((0..COUNT).map(|_| (rng.f32() - 0.5) * 1e6));
            let memory = rank.holding(&own)?;
            places.push(memory);
            rank.all_reduce(&floats(memory, memory, COUNT))?;
        }
        let first = ranks[0].read(places[0], 4 * COUNT)?;
        check!(
            floats_of(&first).iter().any(|sum| sum.fract() != 0.0),
            "sums that were rounded"
        );
        for (rank, place) in ranks.iter().zip(&places) {
            let found = rank.read(*place, 4 * COUNT)?;
            equal!(found, first, "the bits of rank {}", rank.number());
        }
        Ok(())
    })
}

fn reduce_writes_on_the_root_alone(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        const COUNT: usize = 70_001;
        for root in 0..ranks.len() as u32 {
            let mut places = Vec::new();
            for rank in ranks {
                let send = rank.holding(&own_floats(rank, COUNT))?;
                let receive = rank.memory(4 * COUNT as u64)?;
                fill(&rank.queue, receive, 4 * COUNT as u64, &[0x5a])?;
                rank.reduce(&floats(send, receive, COUNT), root)?;
                places.push((send, receive));
            }
            for (rank, (send, receive)) in ranks.iter().zip(&places) {
                let number = rank.number();
                let right = if number == root {
                    sums(ranks, 0..COUNT)
                } else {
                    vec![0x5a; 4 * COUNT]
                };
                equal!(
                    rank.read(*receive, 4 * COUNT)?,
                    right,
                    "rank {number}, where the root is {root}"
                );
                equal!(
                    rank.read(*send, 4 * COUNT)?,
                    own_floats(rank, COUNT),
                    "what rank {number} sent"
                );
            }
        }
        Ok(())
    })
}

fn reduce_scatter(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        for count in [1, 333, 90_001] {
            let all = count * ranks.len();
            let mut places = Vec::new();
            for rank in ranks {
                let send = rank.holding(&own_floats(rank, all))?;
                let receive = rank.memory(4 * count as u64)?;
                rank.reduce_scatter(&floats(send, receive, count))?;
                places.push(receive);
            }
            for (rank, place) in ranks.iter().zip(&places) {
                let first = count * rank.number() as usize;
                let right = sums(ranks, first..first + count);
                let found = rank.read(*place, 4 * count)?;
                equal!(
                    found,
                    right,
                    "the share of rank {}, of {count}",
                    rank.number()
                );
            }
        }
        Ok(())
    })
}

// ---- Bytes -----------------------------------------------------------------------------------------

/// The bytes that a rank has at the beginning.
fn own_bytes(rank: u32, size: usize) -> Vec<u8> {
    pattern(size, 100 + u64::from(rank))
}

fn broadcast(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        for (root, size) in
            (0..ranks.len() as u32).zip([1usize, 900_001, 4096, 333].into_iter().cycle())
        {
            let mut places = Vec::new();
            for rank in ranks {
                let memory = rank.holding(&own_bytes(rank.number(), size))?;
                rank.broadcast(memory, size as u64, root)?;
                places.push(memory);
            }
            for (rank, place) in ranks.iter().zip(&places) {
                let found = rank.read(*place, size)?;
                equal!(
                    found,
                    own_bytes(root, size),
                    "rank {} from rank {root}",
                    rank.number()
                );
            }
        }
        Ok(())
    })
}

fn all_gather(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        for size in [1, 77, 700_003] {
            let right: Vec<u8> = (0..ranks.len() as u32)
                .flat_map(|rank| own_bytes(rank, size))
                .collect();
            let mut places = Vec::new();
            for rank in ranks {
                let send = rank.holding(&own_bytes(rank.number(), size))?;
                let receive = rank.memory(right.len() as u64)?;
                rank.all_gather(send, receive, size as u64)?;
                places.push(receive);
            }
            for (rank, place) in ranks.iter().zip(&places) {
                let found = rank.read(*place, right.len())?;
                equal!(
                    found,
                    right,
                    "the parts of {size} bytes on rank {}",
                    rank.number()
                );
            }
        }
        Ok(())
    })
}

fn in_place(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        const COUNT: usize = 66_001;
        let (part, all) = (4 * COUNT, 4 * COUNT * ranks.len());
        let root = ranks.len() as u32 - 1;
        let mut places = Vec::new();
        for rank in ranks {
            let own = u64::from(rank.number()) * part as u64;
            let reduced = rank.holding(&own_floats(rank, COUNT))?;
            rank.all_reduce(&floats(reduced, reduced, COUNT))?;
            let rooted = rank.holding(&own_floats(rank, COUNT))?;
            rank.reduce(&floats(rooted, rooted, COUNT), root)?;
            let gathered = rank.memory(all as u64)?;
            write(&rank.queue, gathered + own, &own_bytes(rank.number(), part))?;
            rank.all_gather(gathered + own, gathered, part as u64)?;
            let scattered = rank.holding(&own_floats(rank, COUNT * ranks.len()))?;
            rank.reduce_scatter(&floats(scattered, scattered + own, COUNT))?;
            places.push((reduced, rooted, gathered, scattered + own));
        }
        let parts: Vec<u8> = (0..ranks.len() as u32)
            .flat_map(|rank| own_bytes(rank, part))
            .collect();
        for (rank, (reduced, rooted, gathered, scattered)) in ranks.iter().zip(places) {
            let number = rank.number();
            equal!(
                rank.read(reduced, part)?,
                sums(ranks, 0..COUNT),
                "all_reduce on rank {number}"
            );
            let right = if number == root {
                sums(ranks, 0..COUNT)
            } else {
                own_floats(rank, COUNT)
            };
            equal!(rank.read(rooted, part)?, right, "reduce on rank {number}");
            equal!(
                rank.read(gathered, all)?,
                parts,
                "all_gather on rank {number}"
            );
            let first = COUNT * number as usize;
            let right = sums(ranks, first..first + COUNT);
            equal!(
                rank.read(scattered, part)?,
                right,
                "reduce_scatter on rank {number}"
            );
        }
        Ok(())
    })
}

fn nothing_else_is_written(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        const COUNT: usize = 1001;
        const EDGE: u64 = 256;
        let size = 4 * COUNT as u64;
        let all = size * ranks.len() as u64;
        let mut places = Vec::new();
        for rank in ranks {
            let send = rank.holding(&own_floats(rank, COUNT * ranks.len()))?;
            let mut here = Vec::new();
            for length in [size, size, all, size] {
                let place = rank.memory(length + 2 * EDGE)?;
                fill(&rank.queue, place, length + 2 * EDGE, &[0xa5])?;
                here.push((place, length));
            }
            rank.all_reduce(&floats(send, here[0].0 + EDGE, COUNT))?;
            rank.reduce_scatter(&floats(send, here[1].0 + EDGE, COUNT))?;
            rank.all_gather(send, here[2].0 + EDGE, size)?;
            rank.broadcast(here[3].0 + EDGE, size, 0)?;
            places.push((send, here));
        }
        for (rank, (send, here)) in ranks.iter().zip(places) {
            for (call, (place, length)) in here.into_iter().enumerate() {
                for edge in [place, place + EDGE + length] {
                    let what =
                        format!("beside the result of call {call} on rank {}", rank.number());
                    holds(&rank.queue, edge, EDGE as usize, 0xa5, &what)?;
                }
            }
            let sent = rank.read(send, all as usize)?;
            equal!(sent, own_floats(rank, COUNT * ranks.len()), "what was sent");
        }
        Ok(())
    })
}

fn a_size_of_0(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        for rank in ranks {
            let log = Log::default();
            note(&rank.queue, &log, 1)?;
            rank.all_reduce(&floats(0, 0, 0))?;
            rank.reduce(&floats(0, 0, 0), 0)?;
            rank.reduce_scatter(&floats(0, 0, 0))?;
            rank.broadcast(0, 0, 0)?;
            rank.all_gather(0, 0, 0)?;
            note(&rank.queue, &log, 2)?;
            rank.queue.synchronize()?;
            equal!(log.values(), vec![1, 2], "the host calls around them");
        }
        // A call that has a size still works.
        let mut places = Vec::new();
        for rank in ranks {
            let memory = rank.holding(&own_bytes(rank.number(), 100))?;
            rank.broadcast(memory, 100, 1)?;
            places.push(memory);
        }
        for (rank, place) in ranks.iter().zip(places) {
            equal!(
                rank.read(place, 100)?,
                own_bytes(1, 100),
                "rank {}",
                rank.number()
            );
        }
        Ok(())
    })
}

fn a_world_of_one(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let ranks = world(&bench, 1, LONG)?;
    let rank = &ranks[0];
    const COUNT: usize = 100_000;
    let own = own_floats(rank, COUNT);
    let send = rank.holding(&own)?;
    let place = rank.memory(own.len() as u64)?;
    let check_and_clear = |what: &str| -> Verdict {
        equal!(rank.read(place, own.len())?, own, "{what} of one rank");
        fill(&rank.queue, place, own.len() as u64, &[0])
    };
    rank.all_reduce(&floats(send, place, COUNT))?;
    check_and_clear("all_reduce")?;
    rank.reduce(&floats(send, place, COUNT), 0)?;
    check_and_clear("reduce")?;
    rank.reduce_scatter(&floats(send, place, COUNT))?;
    check_and_clear("reduce_scatter")?;
    rank.all_gather(send, place, own.len() as u64)?;
    check_and_clear("all_gather")?;
    rank.broadcast(send, own.len() as u64, 0)?;
    equal!(rank.read(send, own.len())?, own, "broadcast of one rank");
    drop(ranks);
    bench.finish()
}

// ---- Order -----------------------------------------------------------------------------------------

fn calls_keep_the_order_of_their_queue(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        const COUNT: usize = 4096;
        let size = 4 * COUNT as u64;
        let mut places = Vec::new();
        for rank in ranks {
            let (memory, result) = (rank.memory(size)?, rank.memory(3 * size)?);
            // Ranks come late, each at another time.
            delay(
                &rank.queue,
                Duration::from_millis(20 * u64::from(rank.number())),
            )?;
            let mut value = (rank.number() + 1) as f32;
            for round in 0..3 {
                fill(&rank.queue, memory, size, &value.to_ne_bytes())?;
                rank.all_reduce(&floats(memory, memory, COUNT))?;
                within(&rank.queue, result + size * round, memory, size)?;
                value += 10.0;
            }
            fill(&rank.queue, memory, size, &[0])?;
            places.push(result);
        }
        let count = ranks.len() as f32;
        for (rank, place) in ranks.iter().zip(places) {
            for round in 0..3u8 {
                let right = count * (count + 1.0) / 2.0 + 10.0 * f32::from(round) * count;
                let found = rank.read(place + size * u64::from(round), size as usize)?;
                equal!(
                    floats_of(&found),
                    vec![right; COUNT],
                    "round {round} on rank {}",
                    rank.number()
                );
            }
        }
        Ok(())
    })
}

fn a_submission_waits_for_nobody(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        let mut places = Vec::new();
        // More than a queue may keep for a while, one rank after the other.
        for rank in ranks {
            let memory = rank.holding(&own_floats(rank, 8))?;
            for _ in 0..400 {
                rank.broadcast(memory, 32, 0)?;
            }
            rank.all_reduce(&floats(memory, memory, 8))?;
            places.push(memory);
        }
        for (rank, place) in ranks.iter().zip(places) {
            let right: Vec<f32> = (0..8)
                .map(|at| (ranks.len() as i32 * element(0, at)) as f32)
                .collect();
            equal!(
                floats_of(&rank.read(place, 32)?),
                right,
                "rank {}",
                rank.number()
            );
        }
        Ok(())
    })
}

fn other_queues_go_on(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        let first = &ranks[0];
        let memory = first.holding(&own_floats(first, 8))?;
        first.all_reduce(&floats(memory, memory, 8))?;
        first.queue.flush()?;
        let (other, log) = (first.bench.queue_on(0)?, Log::default());
        let beside = first.memory(4096)?;
        for value in 0..200 {
            fill(&other, beside, 4096, &[value as u8])?;
            note(&other, &log, value)?;
        }
        holds(
            &other,
            beside,
            4096,
            199,
            "what another queue did meanwhile",
        )?;
        equal!(log.values().len(), 200, "its host calls");
        check!(
            !first.queue.query()?,
            "the call waits for the other ranks still"
        );
        for rank in &ranks[1..] {
            let memory = rank.holding(&own_floats(rank, 8))?;
            rank.all_reduce(&floats(memory, memory, 8))?;
        }
        equal!(first.read(memory, 32)?, sums(ranks, 0..8), "the result");
        Ok(())
    })
}

fn the_order_of_the_communicator(context: &Context) -> Verdict {
    with_world(context, |ranks| {
        let gate = Gate::new();
        let (mut places, mut seconds) = (Vec::new(), Vec::new());
        for rank in ranks {
            let memory = rank.holding(&own_floats(rank, 8))?;
            rank.queue.synchronize()?;
            let second = rank.bench.queue_on(rank.comm.device())?;
            // The first call is held up, and the second may not pass it.
            block(&rank.queue, &gate)?;
            rank.all_reduce(&floats(memory, memory, 8))?;
            // SAFETY: the test's own memory.
            let later = unsafe { rank.comm.all_reduce(&second, &floats(memory, memory, 8)) };
            answers!(later, Code::OK, "the second call");
            second.flush()?;
            places.push(memory);
            seconds.push(second);
        }
        std::thread::sleep(Duration::from_millis(30));
        for second in &seconds {
            check!(!second.query()?, "the second call has not passed the first");
        }
        gate.open();
        let count = ranks.len() as f32;
        for ((rank, place), second) in ranks.iter().zip(places).zip(&seconds) {
            second.synchronize()?;
            let once = floats_of(&sums(ranks, 0..8));
            let right: Vec<f32> = once.iter().map(|sum| sum * count).collect();
            equal!(
                floats_of(&rank.read(place, 32)?),
                right,
                "rank {}",
                rank.number()
            );
        }
        Ok(())
    })
}

fn two_communicators(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let count = ranks_of(bench.driver());
    let (one, other) = (world(&bench, count, LONG)?, world(&bench, count, LONG)?);
    let mut places = Vec::new();
    for (rank, twin) in one.iter().zip(&other) {
        let memory = rank.holding(&own_floats(rank, 500))?;
        let second = twin.holding(&own_bytes(twin.number(), 2000))?;
        for _ in 0..10 {
            rank.broadcast(memory, 2000, 1)?;
            twin.broadcast(second, 2000, 0)?;
        }
        rank.all_reduce(&floats(memory, memory, 500))?;
        places.push((memory, second));
    }
    // One that fails leaves the other as it is.
    for ((rank, twin), (memory, second)) in one.iter().zip(&other).zip(&places) {
        let right: Vec<f32> = (0..500)
            .map(|at| (count as i32 * element(1, at)) as f32)
            .collect();
        equal!(
            floats_of(&rank.read(*memory, 2000)?),
            right,
            "of the first, rank {}",
            rank.number()
        );
        equal!(
            twin.read(*second, 2000)?,
            own_bytes(0, 2000),
            "of the second, rank {}",
            rank.number()
        );
    }
    other[0].comm.abort()?;
    for (rank, (memory, _)) in one.iter().zip(&places) {
        answers!(
            rank.comm.query(),
            Code::OK,
            "the communicator that was not aborted"
        );
        rank.broadcast(*memory, 2000, 0)?;
    }
    for rank in &one {
        answers!(rank.queue.synchronize(), Code::OK, "its work");
    }
    drop((one, other));
    bench.finish()
}

fn many_threads(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let count = ranks_of(bench.driver());
    let id = || -> Verdict<Vec<u8>> { Ok(group(bench.driver())?.id()?) };
    let ids = [id()?, id()?, id()?];
    // A thread for each rank of each communicator.
    threads(ids.len() * count as usize, |thread| {
        let (world, rank) = (thread / count as usize, thread as u32 % count);
        let comm = join(bench.driver(), &ids[world], count, rank, LONG)?;
        let rank = Rank::new(&bench, comm)?;
        let memory = rank.memory(40_000)?;
        for round in 0..30u32 {
            let own = (rank.number() + round + world as u32) as f32;
            fill(&rank.queue, memory, 40_000, &own.to_ne_bytes())?;
            rank.all_reduce(&floats(memory, memory, 10_000))?;
            let right = (count * (count - 1) / 2 + count * (round + world as u32)) as f32;
            let found = floats_of(&rank.read(memory, 40_000)?);
            equal!(
                found,
                vec![right; 10_000],
                "round {round} of rank {}",
                rank.number()
            );
        }
        Ok(())
    })?;
    bench.finish()
}

fn on_a_queue_that_records(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let ranks = world(&bench, 1, LONG)?;
    let rank = &ranks[0];
    let graphs = bench
        .native_graphs()
        .ok_or_else(|| Failure::new("the driver has the group graph"))?;
    let (memory, result) = (rank.memory(32)?, rank.memory(32)?);
    fill(&rank.queue, memory, 32, &2f32.to_ne_bytes())?;
    fill(&rank.queue, result, 32, &[0])?;
    rank.queue.synchronize()?;
    graphs.record_begin(&rank.queue)?;
    // SAFETY: the test's own memory.
    let answer = unsafe {
        rank.comm
            .all_reduce(&rank.queue, &floats(memory, result, 8))
    };
    let graph = graphs.record_end(&rank.queue)?;
    let kept = answer.is_ok();
    if !kept {
        answers!(answer, Code::UNSUPPORTED, "a call on a queue that records");
        context.note("calls of communicators are not recorded");
    }
    holds(&rank.queue, result, 32, 0, "before the launch")?;
    // SAFETY: what was recorded is the test's own memory.
    unsafe { rank.queue.launch_graph(&graph) }?;
    let right = if kept { 2f32 } else { 0f32 };
    equal!(
        floats_of(&rank.read(result, 32)?),
        vec![right; 8],
        "after the launch"
    );
    drop(graph);
    drop(ranks);
    bench.finish()
}
