//! R33: a recording refuses calls that would wait, and calls that lead out of it.

use super::*;

tests! { "graph.capture":
    /// `queue_query` of a recording queue is refused, and the recording goes on.
    queue_query: R33, needs Graphs, run |c| captured(c, |queue, _| Ok(queue.query().map(drop)));
    /// `queue_synchronize` of a recording queue is refused, and the recording goes on.
    queue_synchronize: R33, needs Graphs, run |c| captured(c, |queue, _| Ok(queue.synchronize()));
    /// `record_begin` on a recording queue is refused, and the recording goes on.
    record_begin: R33, needs Graphs, run |c| captured(c, |queue, _| {
        let graphs = queue.driver().native_graphs().ok_or_else(|| Failure::new("the driver has the group graph"))?;
        Ok(graphs.record_begin(queue))
    });
    /// `event_query` of a point of the recording is refused.
    event_query: R33, needs Graphs, run |c| captured(c, |_, point| Ok(point.query().map(drop)));
    /// `event_synchronize` of a point of the recording is refused.
    event_synchronize: R33, needs Graphs, run |c| captured(c, |_, point| Ok(point.synchronize()));
    /// `event_time` of a point of the recording is refused.
    event_time: R33, needs Graphs Timing, run event_time;
    /// A wait for a point outside of the recording that has not come is refused.
    a_wait_for_what_is_to_come: R33, needs Graphs;
    /// A wait for a point outside of the recording that has passed is taken.
    a_wait_for_what_has_passed: R33, needs Graphs;
    /// A wait for an event that was never recorded is taken.
    a_wait_for_an_unrecorded_event: R22 R33, needs Graphs;
    /// A wait for a point outside that has failed is refused.
    a_wait_for_what_has_failed: R33, needs Graphs;
    /// A queue of another recording cannot wait for a point of this one.
    a_wait_of_another_recording: R33, needs Graphs;
    /// Queries of a queue that has joined are refused.
    a_joined_queue: R32 R33, needs Graphs;
}

fn captured(
    context: &Context,
    call: impl FnOnce(&Queue, &outrigger_device::Event) -> Verdict<Result<()>>,
) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, point, at) = (bench.queue()?, bench.event()?, bench.memory(128)?);
    fill(&queue, at, 128, &[1])?;
    queue.synchronize()?;
    begin(&queue)?;
    fill(&queue, at, 64, &[8])?;
    point.record(&queue)?;
    let answer = call(&queue, &point)?;
    answers!(answer, Code::CAPTURE, "the call");
    check!(
        answer.is_err_and(|e| !e.message().is_empty()),
        "R5: it has a text"
    );
    within(&queue, at + 64, at, 64)?;
    let graph = end(&queue)?;
    holds(&queue, at, 128, 1, "memory before the launch")?;
    launch(&queue, &graph)?;
    holds(&queue, at, 128, 8, "memory after the launch")?;
    drop(graph);
    bench.finish()
}

fn event_time(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let point = bench.driver().event_create(0, true)?;
    begin(&queue)?;
    point.record(&queue)?;
    answers!(
        point.time_ns(),
        Code::CAPTURE,
        "event_time of a point of the recording"
    );
    drop(end(&queue)?);
    answers!(
        point.time_ns(),
        Code::INVALID_ARGUMENT,
        "event_time, when it counts as never recorded"
    );
    bench.finish()
}

fn a_wait_for_what_is_to_come(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, busy, ahead, gate) = (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    block(&busy, &gate)?;
    ahead.record(&busy)?;
    begin(&queue)?;
    answers!(
        queue.wait_event(&ahead),
        Code::CAPTURE,
        "a wait for what is to come"
    );
    drop(end(&queue)?);
    gate.open();
    busy.synchronize()?;
    bench.finish()
}

fn a_wait_for_what_has_passed(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, other, past, at) = (
        bench.queue()?,
        bench.queue()?,
        bench.event()?,
        bench.memory(64)?,
    );
    past.record(&other)?;
    past.synchronize()?;
    begin(&queue)?;
    queue.wait_event(&past)?;
    fill(&queue, at, 64, &[3])?;
    let graph = end(&queue)?;
    launch(&queue, &graph)?;
    holds(&queue, at, 64, 3, "what was recorded behind the wait")?;
    drop(graph);
    bench.finish()
}

fn a_wait_for_an_unrecorded_event(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event) = (bench.queue()?, bench.event()?);
    begin(&queue)?;
    queue.wait_event(&event)?;
    let graph = end(&queue)?;
    launch(&queue, &graph)?;
    queue.synchronize()?;
    drop(graph);
    bench.finish()
}

fn a_wait_for_what_has_failed(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, other, event) = (bench.queue()?, bench.queue()?, bench.event()?);
    fail(&other, Code::EXECUTION)?;
    event.record(&other)?;
    fails_once(&other, Code::EXECUTION, "the other queue")?;
    begin(&queue)?;
    answers!(
        queue.wait_event(&event),
        Code::CAPTURE,
        "a wait for what has failed"
    );
    let graph = end(&queue)?;
    launch(&queue, &graph)?;
    queue.synchronize()?;
    drop(graph);
    bench.finish()
}

fn a_wait_of_another_recording(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, inner) = (bench.queue()?, bench.queue()?, bench.event()?);
    begin(&first)?;
    begin(&second)?;
    inner.record(&first)?;
    answers!(
        second.wait_event(&inner),
        Code::CAPTURE,
        "a wait for a point of another recording"
    );
    drop((end(&first)?, end(&second)?));
    bench.finish()
}

fn a_joined_queue(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, events) = (
        bench.queue()?,
        bench.queue()?,
        [bench.event()?, bench.event()?],
    );
    begin(&first)?;
    events[0].record(&first)?;
    second.wait_event(&events[0])?;
    answers!(
        second.query().map(drop),
        Code::CAPTURE,
        "queue_query of a joined queue"
    );
    answers!(
        second.synchronize(),
        Code::CAPTURE,
        "queue_synchronize of a joined queue"
    );
    events[1].record(&second)?;
    first.wait_event(&events[1])?;
    let graph = end(&first)?;
    second.synchronize()?;
    launch(&second, &graph)?;
    second.synchronize()?;
    drop(graph);
    bench.finish()
}
