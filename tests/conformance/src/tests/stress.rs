//! Many threads, many queues, little memory, long runs: defects that show only under load. Each run
//! takes seconds, and its choices follow the seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_device::{Code, CopyKind};

use super::kit::{
    Bench, HostBytes, Log, block, copy, fail, fill, holds, part, pattern, read, threads, within,
    write,
};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Gate, Verdict};

tests! { "stress.load":
    /// Eight threads submit to 64 queues, each of which keeps its order.
    eight_threads_and_64_queues: R8 R16 R17, limit 120;
    /// A hundred thousand commands go through one queue.
    a_hundred_thousand_submissions: R16 R17, limit 120;
    /// A hundred thousand host calls are each made once.
    a_hundred_thousand_host_calls: R27, limit 120;
    /// Queues, events and memory come and go on eight threads while others work.
    objects_come_and_go_under_load: R8 R10 R11, limit 120;
    /// Events are recorded, waited for and destroyed by eight threads on shared queues.
    events_on_shared_queues: R8 R21 R24, limit 120;
    /// Memory pressure: threads take what there is, are refused, and give back; nothing is lost.
    memory_pressure: R8 R29, limit 120;
    /// Queues fail and recover on eight threads, and no failure reaches another's work.
    failures_on_many_queues: R8 R20 R23, limit 120;
    /// Random copies of all kinds on eight threads match a model to the byte.
    copies_on_many_threads: R8 R16, limit 120;
    /// A net of queues that wait for each other keeps the order of a counter that only one may hold.
    a_token_goes_around: R16 R24, limit 120;
    /// A thousand queues are live at a time.
    a_thousand_queues: R10 R17, limit 120;
    /// Threads share one queue, synchronize, query and fail, and every failure is told to somebody.
    no_failure_is_lost: R8 R20, limit 120;
}

fn eight_threads_and_64_queues(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queues = bench.queues(64)?;
    let logs: Vec<_> = (0..64).map(|_| Log::default()).collect();
    let memory = bench.memory(64 * 256)?;
    threads(8, |thread| {
        let mut rng = fastrand::Rng::with_seed(context.seed() ^ thread as u64);
        // Each thread has eight queues of its own, so that their order is known.
        for round in 0..1500u64 {
            let at = thread * 8 + rng.usize(..8);
            let address = memory + 256 * at as u64;
            fill(&queues[at], address, 128, &round.to_ne_bytes())?;
            within(&queues[at], address + 128, address, 128)?;
            super::kit::note(&queues[at], &logs[at], round)?;
            if rng.u8(..) == 0 {
                queues[at].synchronize()?;
            }
        }
        Ok(())
    })?;
    for (at, (queue, log)) in queues.iter().zip(&logs).enumerate() {
        let bytes = read(queue, memory + 256 * at as u64, 256)?;
        let values = log.values();
        check!(values.is_sorted(), "the calls of queue {at} are in order");
        if let Some(last) = values.last() {
            equal!(bytes, last.to_ne_bytes().repeat(32), "memory of queue {at}");
        }
    }
    bench.finish()
}

fn a_hundred_thousand_submissions(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory) = (bench.queue()?, bench.memory(4096)?);
    for i in 0..100_000u32 {
        let at = memory + u64::from(i % 512) * 8;
        fill(&queue, at, 8, &u64::from(i).to_ne_bytes())?;
    }
    let expected: Vec<u8> = (0..512u64)
        .flat_map(|at| {
            let last = (99_999 - at) / 512 * 512 + at;
            last.to_ne_bytes()
        })
        .collect();
    equal!(
        read(&queue, memory, 4096)?,
        expected,
        "the last fill of each place"
    );
    bench.finish()
}

fn a_hundred_thousand_host_calls(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queues = bench.queues(4)?;
    let calls = Arc::new(AtomicU64::new(0));
    threads(4, |thread| {
        for _ in 0..25_000 {
            let calls = calls.clone();
            queues[thread].callback(move |_| {
                calls.fetch_add(1, Ordering::Relaxed);
            })?;
        }
        queues[thread].synchronize()?;
        Ok(())
    })?;
    equal!(calls.load(Ordering::Relaxed), 100_000, "calls");
    bench.finish()
}

fn objects_come_and_go_under_load(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let driver = bench.driver();
    threads(8, |thread| {
        for round in 0..300u32 {
            let queue = driver.queue_create(0, 0)?;
            let event = driver.event_create(0, false)?;
            let memory = driver.memory_alloc(0, 4096)?;
            fill(&queue, memory, 4096, &round.to_ne_bytes())?;
            event.record(&queue)?;
            if thread % 2 == 0 {
                drop(queue);
                event.synchronize()?;
            } else {
                equal!(
                    read(&queue, memory, 4)?,
                    round.to_ne_bytes(),
                    "memory of a thread"
                );
            }
            // SAFETY: its work is over.
            unsafe { driver.memory_free(memory) }?;
        }
        Ok(())
    })?;
    bench.finish()
}

fn events_on_shared_queues(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queues = bench.queues(8)?;
    threads(8, |thread| {
        let mut rng = fastrand::Rng::with_seed(context.seed() ^ thread as u64);
        let shared = bench.event()?;
        for _ in 0..400 {
            let (from, to) = (rng.usize(..8), rng.usize(..8));
            let done = Arc::new(AtomicU64::new(0));
            let flag = done.clone();
            queues[from].callback(move |_| {
                flag.store(1, Ordering::SeqCst);
            })?;
            let event = bench.event()?;
            event.record(&queues[from])?;
            queues[to].wait_event(&event)?;
            let (flag, seen) = (done.clone(), Arc::new(AtomicU64::new(7)));
            let result = seen.clone();
            queues[to].callback(move |_| {
                result.store(flag.load(Ordering::SeqCst), Ordering::SeqCst);
            })?;
            shared.record(&queues[to])?;
            shared.synchronize()?;
            equal!(
                seen.load(Ordering::SeqCst),
                1,
                "what a call behind a wait saw of the work in front of it"
            );
        }
        Ok(())
    })?;
    bench.finish()
}

fn memory_pressure(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (driver, total) = (bench.driver(), bench.properties(0)?.total_memory);
    threads(8, |thread| {
        let mut rng = fastrand::Rng::with_seed(context.seed() ^ thread as u64);
        let (queue, mut live) = (driver.queue_create(0, 0)?, Vec::new());
        for round in 0..300u32 {
            match driver.memory_alloc(0, rng.u64(1..total / 8)) {
                Ok(address) => {
                    fill(&queue, address, 1, &[thread as u8])?;
                    live.push(address);
                }
                Err(error) => equal!(error.code(), Code::OUT_OF_MEMORY, "why memory is refused"),
            }
            if live.len() > 3 || (round % 5 == 0 && !live.is_empty()) {
                let address = live.swap_remove(rng.usize(..live.len()));
                holds(&queue, address, 1, thread as u8, "memory of a thread")?;
                // SAFETY: its work is over.
                unsafe { driver.memory_free(address) }?;
            }
        }
        queue.synchronize()?;
        for address in live {
            // SAFETY: its work is over.
            unsafe { driver.memory_free(address) }?;
        }
        Ok(())
    })?;
    bench.memory(part(&bench, 2)?)?;
    bench.finish()
}

fn failures_on_many_queues(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = bench.memory(8 * 64)?;
    threads(8, |thread| {
        let (queue, event) = (bench.queue()?, bench.event()?);
        let address = memory + 64 * thread as u64;
        for round in 1..=200u8 {
            fill(&queue, address, 64, &[round])?;
            let fails = (usize::from(round) + thread) % 3 == 0;
            if fails {
                fail(&queue, Code(100 + thread as i32))?;
            }
            fill(&queue, address, 32, &[0])?;
            event.record(&queue)?;
            let code = if fails {
                Code(100 + thread as i32)
            } else {
                Code::OK
            };
            answers!(event.synchronize(), code, "an event of thread {thread}");
            answers!(queue.synchronize(), code, "the queue of thread {thread}");
            let expected = if fails {
                vec![round; 64]
            } else {
                [vec![0; 32], vec![round; 32]].concat()
            };
            equal!(
                read(&queue, address, 64)?,
                expected,
                "memory of thread {thread}"
            );
        }
        Ok(())
    })?;
    bench.finish()
}

fn copies_on_many_threads(context: &Context) -> Verdict {
    const SIZE: usize = 8192;
    let bench = Bench::new(context)?;
    let memory = bench.memory(8 * SIZE as u64)?;
    threads(8, |thread| {
        let mut rng = fastrand::Rng::with_seed(context.seed() ^ thread as u64);
        let (queue, base) = (bench.queue()?, memory + (thread * SIZE) as u64);
        let host = HostBytes::new(pattern(SIZE, thread as u64));
        let mut models = [pattern(SIZE, thread as u64), pattern(SIZE, 77)];
        write(&queue, base, &models[1])?;
        for _ in 0..500 {
            let size = rng.usize(1..SIZE / 2);
            let (dst, src) = (
                rng.usize(..SIZE / 2 - size + 1),
                SIZE / 2 + rng.usize(..SIZE / 2 - size + 1),
            );
            let (to, from) = (rng.usize(..2), rng.usize(..2));
            let at = |side: usize, offset: usize| {
                if side == 0 {
                    host.at(offset)
                } else {
                    base + offset as u64
                }
            };
            let kind = [
                [CopyKind::HostToHost, CopyKind::DeviceToHost],
                [CopyKind::HostToDevice, CopyKind::DeviceToDevice],
            ][to][from];
            let (dst, src) = if rng.bool() { (dst, src) } else { (src, dst) };
            copy(&queue, at(to, dst), at(from, src), size as u64, kind)?;
            let bytes = models[from][src..src + size].to_vec();
            models[to][dst..dst + size].copy_from_slice(&bytes);
        }
        equal!(
            read(&queue, base, SIZE)?,
            models[1],
            "device memory of thread {thread}"
        );
        equal!(host.get(), models[0], "host memory of thread {thread}");
        Ok(())
    })?;
    bench.finish()
}

fn a_token_goes_around(context: &Context) -> Verdict {
    const ROUNDS: u64 = 4000;
    let bench = Bench::new(context)?;
    let (queues, event, memory) = (bench.queues(16)?, bench.event()?, bench.memory(16)?);
    let mut rng = context.rng();
    fill(&queues[0], memory, 16, &[0])?;
    queues[0].synchronize()?;
    let token = Arc::new(AtomicU64::new(0));
    for i in 0..ROUNDS {
        let queue = &queues[rng.usize(..16)];
        queue.wait_event(&event)?;
        let token = token.clone();
        // Not atomic as a whole: two holders at a time would lose one.
        queue.callback(move |_| {
            let found = token.load(Ordering::Relaxed);
            std::hint::spin_loop();
            token.store(found + 1, Ordering::Relaxed);
        })?;
        fill(queue, memory, 8, &i.to_ne_bytes())?;
        event.record(queue)?;
    }
    event.synchronize()?;
    equal!(
        token.load(Ordering::SeqCst),
        ROUNDS,
        "how often the token was handed on"
    );
    equal!(
        read(&queues[0], memory, 8)?,
        (ROUNDS - 1).to_ne_bytes(),
        "who wrote last"
    );
    bench.finish()
}

fn a_thousand_queues(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let mut queues = Vec::new();
    for _ in 0..1000 {
        match bench.queue() {
            Ok(queue) => queues.push(queue),
            // A host without as many threads says so (R29).
            Err(_) => break,
        }
    }
    check!(queues.len() >= 128, "{} queues could be made", queues.len());
    context.note(format!("{} queues are live at a time", queues.len()));
    let memory = bench.memory(64 * queues.len() as u64)?;
    for (i, queue) in queues.iter().enumerate() {
        fill(queue, memory + 64 * i as u64, 64, &[i as u8])?;
    }
    for (i, queue) in queues.iter().enumerate() {
        holds(
            queue,
            memory + 64 * i as u64,
            64,
            i as u8,
            "memory of one of many queues",
        )?;
    }
    bench.finish()
}

fn no_failure_is_lost(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    for round in 0..100 {
        let (gate, told) = (Gate::new(), AtomicU64::new(0));
        block(&queue, &gate)?;
        fail(&queue, Code(500 + round))?;
        threads(5, |thread| {
            if thread == 0 {
                gate.open();
                return Ok(());
            }
            if let Err(error) = queue.synchronize() {
                equal!(error.code(), Code(500 + round), "the failure");
                told.fetch_add(1, Ordering::SeqCst);
            }
            queue.query().ok();
            Ok(())
        })?;
        check!(
            told.load(Ordering::SeqCst) > 0,
            "in round {round}, somebody was told of the failure"
        );
        queue.synchronize()?;
    }
    bench.finish()
}
