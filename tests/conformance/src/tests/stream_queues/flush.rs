//! R18: submitted work makes progress by itself.

use super::*;

tests! { "stream.flush":
    /// Submitted work runs by itself, after a flush.
    work_runs_by_itself: R18;
    /// Work of each kind runs by itself, after a flush.
    work_of_each_kind_runs_by_itself: R18;
    /// A flush returns at once, also where work waits.
    a_flush_does_not_wait: R17 R18, needs Flush;
    /// A queue without work may be flushed.
    an_idle_queue_is_flushed: R18, needs Flush;
    /// A driver without `queue_flush` starts work at once.
    without_flush_work_starts_at_once: R18, absent Flush;
    /// To wait for an event starts the work that it stands for.
    an_event_synchronize_flushes: R18;
    /// To wait for a queue starts its work.
    a_queue_synchronize_flushes: R18;
    /// Work of another queue that waits for it starts the work.
    a_wait_of_another_queue_flushes: R18 R24;
    /// A chain of waits over many queues starts the first of them.
    a_chain_of_waits_flushes: R18 R24;
    /// Work that was flushed goes on while more is submitted and nobody waits.
    work_goes_on: R18;
}

fn work_runs_by_itself(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    for i in 0..20 {
        note(&queue, &log, i)?;
        queue.flush()?;
        until(|| Ok(log.values().len() as u64 == i + 1))?;
    }
    bench.finish()
}

fn work_of_each_kind_runs_by_itself(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory) = (bench.queue()?, bench.memory(128)?);
    let word = HostBytes::of(64, 0);
    fill(&queue, memory, 64, &[5])?;
    within(&queue, memory + 64, memory, 64)?;
    copy(&queue, word.at(0), memory + 64, 64, CopyKind::DeviceToHost)?;
    queue.flush()?;
    until(|| Ok(queue.query()?))?;
    equal!(word.get(), vec![5; 64], "what was copied, without a wait");
    bench.finish()
}

fn a_flush_does_not_wait(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log, gate) = (bench.queue()?, Log::default(), Gate::new());
    block(&queue, &gate)?;
    note(&queue, &log, 1)?;
    for _ in 0..10 {
        queue.flush()?;
    }
    equal!(log.values().len(), 0, "calls behind a closed gate");
    gate.open();
    queue.synchronize()?;
    bench.finish()
}

fn an_idle_queue_is_flushed(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    for _ in 0..100 {
        queue.flush()?;
        check!(queue.query()?, "a flushed queue without work has finished");
    }
    bench.finish()
}

fn without_flush_work_starts_at_once(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    if context.has(bench.driver(), crate::Need::Flush) {
        return Ok(());
    }
    let (queue, log) = (bench.queue()?, Log::default());
    note(&queue, &log, 1)?;
    until(|| Ok(log.values() == [1]))?;
    bench.finish()
}

fn an_event_synchronize_flushes(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event, log) = (bench.queue()?, bench.event()?, Log::default());
    for i in 0..50 {
        note(&queue, &log, i)?;
        event.record(&queue)?;
        event.synchronize()?;
        equal!(log.values().len() as u64, i + 1, "calls before the event");
    }
    bench.finish()
}

fn a_queue_synchronize_flushes(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    for i in 0..50 {
        note(&queue, &log, i)?;
        queue.synchronize()?;
        equal!(log.values().len() as u64, i + 1, "calls");
    }
    bench.finish()
}

fn a_wait_of_another_queue_flushes(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event, log) = (
        bench.queue()?,
        bench.queue()?,
        bench.event()?,
        Log::default(),
    );
    for i in 0..50 {
        note(&first, &log, 2 * i)?;
        event.record(&first)?;
        second.wait_event(&event)?;
        note(&second, &log, 2 * i + 1)?;
        second.synchronize()?;
        equal!(log.values().len() as u64, 2 * i + 2, "calls of both queues");
    }
    equal!(log.values(), (0..100).collect::<Vec<_>>(), "their order");
    bench.finish()
}

fn a_chain_of_waits_flushes(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queues, log) = (bench.queues(12)?, Log::default());
    let event = bench.event()?;
    for (i, queue) in queues.iter().enumerate() {
        queue.wait_event(&event)?;
        note(queue, &log, i as u64)?;
        event.record(queue)?;
    }
    queues[11].synchronize()?;
    equal!(
        log.values(),
        (0..12).collect::<Vec<_>>(),
        "calls of the chain"
    );
    bench.finish()
}

fn work_goes_on(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log, gate) = (bench.queue()?, Log::default(), Gate::new());
    note(&queue, &log, 0)?;
    block(&queue, &gate)?;
    for i in 1..50 {
        note(&queue, &log, i)?;
    }
    queue.flush()?;
    until(|| Ok(log.values() == [0]))?;
    gate.open();
    until(|| Ok(log.values().len() == 50))?;
    queue.synchronize()?;
    bench.finish()
}
