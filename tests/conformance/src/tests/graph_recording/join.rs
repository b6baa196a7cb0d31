//! R32 and R33: queues that join a recording, and events of it.

use super::*;

tests! { "graph.join":
    /// A queue that waits for a point of the recording joins it, and is joined again.
    queues_fork_and_join: R32, needs Graphs;
    /// The recorded order holds between queues that joined.
    order_between_queues_is_kept: R32 R34, needs Graphs;
    /// A joined queue joins a third one.
    a_joined_queue_forks: R32, needs Graphs;
    /// Work that the recording queue does not wait for fails the recording; its queues are usable.
    work_that_is_not_joined_fails_the_recording: R32, needs Graphs;
    /// `record_end` on a queue that has only joined is refused, and the recording goes on.
    only_the_first_queue_ends_it: R32, needs Graphs;
    /// `record_end` on a queue that does not record is refused.
    a_queue_that_does_not_record: R7 R31, needs Graphs;
    /// Events of the recording count as never recorded when it has ended, and serve as ever.
    events_are_free_afterwards: R33, needs Graphs;
    /// Destroying the queue that began gives the recording up: joined queues work again.
    the_first_queue_may_go: R33, needs Graphs;
    /// Destroying a queue that had joined makes `record_end` fail.
    a_joined_queue_may_go: R33, needs Graphs;
    /// Two recordings on two queues do not touch each other.
    two_recordings_at_a_time: R31 R33, needs Graphs;
    /// Another thread's queue works while this one records.
    other_queues_work_meanwhile: R8 R17 R31, needs Graphs;
}

fn queues_fork_and_join(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second) = (bench.queue()?, bench.queue()?);
    let (forked, joined, at) = (bench.event()?, bench.event()?, bench.memory(192)?);
    begin(&first)?;
    fill(&first, at, 64, &[6])?;
    forked.record(&first)?;
    second.wait_event(&forked)?;
    within(&second, at + 64, at, 64)?;
    joined.record(&second)?;
    first.wait_event(&joined)?;
    within(&first, at + 128, at + 64, 64)?;
    let graph = end(&first)?;
    fill(&second, at, 192, &[0])?;
    second.synchronize()?;
    holds(&first, at, 192, 0, "memory before the launch")?;
    launch(&first, &graph)?;
    holds(&first, at, 192, 6, "memory after the launch")?;
    drop(graph);
    bench.finish()
}

fn order_between_queues_is_kept(context: &Context) -> Verdict {
    const SIZE: u64 = 1 << 18;
    let bench = Bench::new(context)?;
    let queues = bench.queues(2)?;
    let (event, at) = (bench.event()?, bench.memory(2 * SIZE)?);
    begin(&queues[0])?;
    for round in 0..10usize {
        let queue = &queues[round % 2];
        if round > 0 {
            queue.wait_event(&event)?;
        }
        fill(queue, at, SIZE, &[round as u8])?;
        within(queue, at + SIZE, at, SIZE)?;
        event.record(queue)?;
    }
    queues[0].wait_event(&event)?;
    let graph = end(&queues[0])?;
    for _ in 0..10 {
        fill(&queues[0], at, 2 * SIZE, &[0xff])?;
        launch(&queues[0], &graph)?;
        holds(
            &queues[0],
            at,
            2 * SIZE as usize,
            9,
            "what the last of ten steps wrote",
        )?;
    }
    drop(graph);
    bench.finish()
}

fn a_joined_queue_forks(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queues, at, log) = (bench.queues(3)?, bench.memory(64)?, Log::default());
    let events = [bench.event()?, bench.event()?, bench.event()?];
    begin(&queues[0])?;
    events[0].record(&queues[0])?;
    queues[1].wait_event(&events[0])?;
    keep_note(&queues[1], &log, 1)?;
    events[1].record(&queues[1])?;
    queues[2].wait_event(&events[1])?;
    keep_note(&queues[2], &log, 2)?;
    fill(&queues[2], at, 64, &[4])?;
    events[2].record(&queues[2])?;
    queues[0].wait_event(&events[2])?;
    keep_note(&queues[0], &log, 3)?;
    let graph = end(&queues[0])?;
    equal!(log.values().len(), 0, "calls before the launch");
    launch(&queues[0], &graph)?;
    holds(&queues[0], at, 64, 4, "what the third queue recorded")?;
    equal!(log.values(), [1, 2, 3], "calls");
    drop(graph);
    bench.finish()
}

fn work_that_is_not_joined_fails_the_recording(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, at) = (bench.queue()?, bench.queue()?, bench.memory(64)?);
    let (forked, early) = (bench.event()?, bench.event()?);
    fill(&first, at, 64, &[1])?;
    begin(&first)?;
    forked.record(&first)?;
    second.wait_event(&forked)?;
    fill(&second, at, 64, &[2])?;
    early.record(&second)?;
    fill(&second, at, 64, &[3])?;
    first.wait_event(&early)?;
    answers!(
        try_end(&first)?,
        Code::INVALID_ARGUMENT,
        "record_end with work that is not waited for"
    );
    second.synchronize()?;
    holds(&first, at, 64, 1, "memory: the recording is lost")?;
    answers!(
        try_end(&first)?,
        Code::INVALID_ARGUMENT,
        "record_end, again"
    );
    for queue in [&first, &second] {
        fill(queue, at, 64, &[5])?;
        holds(queue, at, 64, 5, "work of a queue that had recorded")?;
    }
    bench.finish()
}

fn only_the_first_queue_ends_it(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, at) = (bench.queue()?, bench.queue()?, bench.memory(64)?);
    let (forked, joined) = (bench.event()?, bench.event()?);
    begin(&first)?;
    forked.record(&first)?;
    second.wait_event(&forked)?;
    fill(&second, at, 64, &[2])?;
    answers!(
        try_end(&second)?,
        Code::INVALID_ARGUMENT,
        "record_end of a queue that has only joined"
    );
    joined.record(&second)?;
    first.wait_event(&joined)?;
    let graph = end(&first)?;
    launch(&second, &graph)?;
    holds(&second, at, 64, 2, "what was recorded")?;
    drop(graph);
    bench.finish()
}

fn a_queue_that_does_not_record(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, other, at) = (bench.queue()?, bench.queue()?, bench.memory(64)?);
    answers!(
        try_end(&queue)?,
        Code::INVALID_ARGUMENT,
        "record_end without a recording"
    );
    begin(&other)?;
    answers!(
        try_end(&queue)?,
        Code::INVALID_ARGUMENT,
        "record_end of another queue"
    );
    fill(&queue, at, 64, &[1])?;
    holds(&queue, at, 64, 1, "its work")?;
    drop(end(&other)?);
    bench.finish()
}

fn events_are_free_afterwards(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, point, gate) = (bench.queue()?, bench.event()?, Gate::new());
    begin(&queue)?;
    point.record(&queue)?;
    let graph = end(&queue)?;
    check!(point.query()?, "it counts as never recorded");
    point.synchronize()?;
    queue.wait_event(&point)?;
    launch(&queue, &graph)?;
    block(&queue, &gate)?;
    point.record(&queue)?;
    check!(!point.query()?, "it serves as ever");
    gate.open();
    point.synchronize()?;
    drop(graph);
    bench.finish()
}

fn the_first_queue_may_go(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, forked) = (bench.queue()?, bench.queue()?, bench.event()?);
    let log = Log::default();
    begin(&first)?;
    forked.record(&first)?;
    second.wait_event(&forked)?;
    drop(first);
    note(&second, &log, 1)?;
    second.synchronize()?;
    equal!(log.values(), [1], "a joined queue works again");
    check!(
        forked.query()?,
        "a point of the recording counts as never recorded"
    );
    bench.finish()
}

fn a_joined_queue_may_go(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, forked, at) = (
        bench.queue()?,
        bench.queue()?,
        bench.event()?,
        bench.memory(64)?,
    );
    begin(&first)?;
    forked.record(&first)?;
    second.wait_event(&forked)?;
    drop(second);
    answers!(
        try_end(&first)?,
        Code::INVALID_ARGUMENT,
        "record_end, when a joined queue is gone"
    );
    fill(&first, at, 64, &[1])?;
    holds(&first, at, 64, 1, "work of the first queue")?;
    bench.finish()
}

fn two_recordings_at_a_time(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, at) = (bench.queue()?, bench.queue()?, bench.memory(128)?);
    begin(&first)?;
    begin(&second)?;
    fill(&first, at, 64, &[1])?;
    fill(&second, at + 64, 64, &[2])?;
    let one = end(&first)?;
    fill(&second, at + 64, 64, &[3])?;
    let two = end(&second)?;
    launch(&first, &two)?;
    launch(&first, &one)?;
    equal!(
        read(&first, at, 128)?,
        [[1; 64], [3; 64]].concat(),
        "what both recordings do"
    );
    drop((one, two));
    bench.finish()
}

fn other_queues_work_meanwhile(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (recording, at) = (bench.queue()?, bench.memory(4096)?);
    begin(&recording)?;
    super::super::kit::threads(3, |thread| {
        let (queue, part) = (bench.queue()?, at + 1024 * thread as u64);
        for round in 0..50 {
            fill(&queue, part, 1024, &[round])?;
            holds(&queue, part, 1024, round, "work beside a recording")?;
        }
        Ok(())
    })?;
    fill(&recording, at, 4096, &[77])?;
    let graph = end(&recording)?;
    launch(&recording, &graph)?;
    holds(&recording, at, 4096, 77, "the recorded work")?;
    drop(graph);
    bench.finish()
}
