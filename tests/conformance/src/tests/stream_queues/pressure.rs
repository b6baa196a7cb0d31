//! R17: queues take all the work they are given, also while a host call waits for the submitter.

use super::*;

tests! { "stream.pressure":
    /// A queue takes thousands of host calls while its first waits for the submitter.
    host_calls: R16 R17, limit 60;
    /// A queue takes thousands of fills while it is blocked.
    fills: R16 R17, limit 60;
    /// A queue takes thousands of copies while it is blocked.
    copies: R16 R17, limit 60;
    /// A queue takes thousands of waits and records while it is blocked.
    events: R17 R21 R24, limit 60;
    /// Four threads fill a blocked queue, and all get on.
    from_many_threads: R8 R17, limit 60;
    /// A queue that is blocked by an event of another, which is blocked by the submitter, takes all.
    behind_another_queue: R17 R24, limit 60;
    /// Thousands of commands go through a queue that nobody holds back.
    at_full_speed: R16 R17, limit 60;
}

const MANY: u64 = 6000;

fn host_calls(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log, gate) = (bench.queue()?, Log::default(), Gate::new());
    block(&queue, &gate)?;
    for i in 0..MANY {
        note(&queue, &log, i)?;
    }
    gate.open();
    queue.synchronize()?;
    equal!(log.values(), (0..MANY).collect::<Vec<_>>(), "the calls");
    bench.finish()
}

fn fills(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory, gate) = (bench.queue()?, bench.memory(8 * MANY)?, Gate::new());
    block(&queue, &gate)?;
    for i in 0..MANY {
        fill(&queue, memory + 8 * i, 8, &i.to_ne_bytes())?;
    }
    check!(!queue.query()?, "the blocked queue has not finished");
    gate.open();
    let expected: Vec<u8> = (0..MANY).flat_map(u64::to_ne_bytes).collect();
    equal!(
        read(&queue, memory, expected.len())?,
        expected,
        "what was filled"
    );
    bench.finish()
}

fn copies(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory, gate) = (bench.queue()?, bench.memory(64 + 8 * MANY)?, Gate::new());
    fill(&queue, memory, 8, &7u64.to_ne_bytes())?;
    fill(&queue, memory + 8, 8 * MANY, &[0])?;
    block(&queue, &gate)?;
    for i in 0..MANY {
        within(&queue, memory + 8 * (i + 1), memory + 8 * i, 8)?;
    }
    gate.open();
    let expected = 7u64.to_ne_bytes().repeat(MANY as usize + 1);
    equal!(
        read(&queue, memory, expected.len())?,
        expected,
        "what was handed from copy to copy"
    );
    bench.finish()
}

fn events(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, gate) = (bench.queue()?, bench.queue()?, Gate::new());
    let (event, log) = (bench.event()?, Log::default());
    block(&first, &gate)?;
    for i in 0..2000 {
        event.record(&first)?;
        second.wait_event(&event)?;
        if i % 100 == 0 {
            note(&second, &log, i)?;
        }
    }
    equal!(log.values().len(), 0, "calls behind a blocked queue");
    gate.open();
    second.synchronize()?;
    event.synchronize()?;
    equal!(log.values().len(), 20, "calls in the end");
    bench.finish()
}

fn from_many_threads(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate) = (bench.queue()?, Gate::new());
    let calls = Arc::new(AtomicU64::new(0));
    block(&queue, &gate)?;
    threads(4, |_| {
        for _ in 0..2000 {
            let calls = calls.clone();
            queue.callback(move |_| {
                calls.fetch_add(1, Ordering::Relaxed);
            })?;
        }
        Ok(())
    })?;
    equal!(
        calls.load(Ordering::Relaxed),
        0,
        "calls behind a closed gate"
    );
    gate.open();
    queue.synchronize()?;
    equal!(calls.load(Ordering::Relaxed), 8000, "calls of four threads");
    bench.finish()
}

fn behind_another_queue(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, gate) = (bench.queue()?, bench.queue()?, Gate::new());
    let (event, log) = (bench.event()?, Log::default());
    block(&first, &gate)?;
    event.record(&first)?;
    second.wait_event(&event)?;
    for i in 0..MANY {
        note(&second, &log, i)?;
    }
    gate.open();
    second.synchronize()?;
    equal!(log.values(), (0..MANY).collect::<Vec<_>>(), "the calls");
    bench.finish()
}

fn at_full_speed(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory) = (bench.queue()?, bench.memory(64)?);
    let calls = Arc::new(AtomicUsize::new(0));
    for i in 0..20_000u32 {
        fill(&queue, memory, 64, &i.to_ne_bytes())?;
        if i % 8 == 0 {
            let calls = calls.clone();
            queue.callback(move |_| {
                calls.fetch_add(1, Ordering::Relaxed);
            })?;
        }
    }
    equal!(
        read(&queue, memory, 64)?,
        19_999u32.to_ne_bytes().repeat(16),
        "the last fill"
    );
    equal!(calls.load(Ordering::Relaxed), 2500, "calls");
    bench.finish()
}
