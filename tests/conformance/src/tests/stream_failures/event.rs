//! R23 and R24: failures that events carry to those who ask and wait.

use super::*;

tests! { "stream.failed_event":
    /// An event behind a failure answers with it, each time.
    keeps_its_failure: R23;
    /// An event keeps its failure when its queue has been cleared.
    keeps_it_when_the_queue_is_cleared: R20 R23;
    /// Recording an event again forgets its failure.
    forgets_it_when_recorded_again: R23;
    /// An event in front of a failure is sound.
    in_front_of_the_failure_is_sound: R21 R23;
    /// An event that is recorded after the failure was cleared is sound.
    after_the_failure_was_cleared_is_sound: R20 R23;
    /// An event behind several failures has the first.
    has_the_first_failure: R20 R23;
    /// An event is OTR_NOT_READY until its work, part of which has failed, is over.
    is_not_ready_before: R20 R23;
    /// A queue that waits for a failed event fails with its code, and skips its work.
    fails_those_who_wait: R24;
    /// A queue that waits for an event that failed long ago fails as well.
    fails_those_who_wait_later: R23 R24;
    /// A queue that has failed already keeps its own failure.
    leaves_an_earlier_failure: R20 R24;
    /// A failure goes on through a chain of twenty queues.
    goes_on_through_a_chain: R23 R24;
    /// A failure goes on to a queue of another device.
    goes_on_to_another_device: R23 R24, needs TwoDevices;
    /// Of two failed events that a queue waits for, the first wait counts.
    the_first_wait_counts: R20 R24;
    /// A destroyed event still carries its failure to those who wait.
    carries_it_when_destroyed: R11 R24;
    /// A wait that was made before the event failed gets the failure.
    fails_a_wait_that_was_made_before: R24;
    /// A wait keeps the failure of its point when the event is recorded again on sound work.
    a_wait_keeps_its_failure: R21 R24;
    /// A wait for the sound point of an event that is recorded again on failed work is sound.
    a_wait_keeps_its_soundness: R21 R24;
    /// The failure of an event has a message, also far from where it happened.
    has_a_message: R19 R23;
    /// Several threads get the same failure from one event.
    many_threads_get_it: R8 R23;
    /// A failure stays with the event of a destroyed queue.
    outlives_its_queue: R11 R23;
}

fn keeps_its_failure(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event) = (bench.queue()?, bench.event()?);
    fail(&queue, Code::OUT_OF_RANGE)?;
    event.record(&queue)?;
    for _ in 0..5 {
        answers!(event.synchronize(), Code::OUT_OF_RANGE, "event_synchronize");
        answers!(event.query(), Code::OUT_OF_RANGE, "event_query");
    }
    fails_once(&queue, Code::OUT_OF_RANGE, "the queue")?;
    bench.finish()
}

fn keeps_it_when_the_queue_is_cleared(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event) = (bench.queue()?, bench.event()?);
    fail(&queue, Code::OUT_OF_RANGE)?;
    event.record(&queue)?;
    fails_once(&queue, Code::OUT_OF_RANGE, "the queue")?;
    note(&queue, &Log::default(), 0)?;
    queue.synchronize()?;
    // Another failure does not take its place.
    fail(&queue, Code::EXECUTION)?;
    fails_once(&queue, Code::EXECUTION, "the queue, once more")?;
    for _ in 0..3 {
        answers!(event.query(), Code::OUT_OF_RANGE, "event_query");
        answers!(event.synchronize(), Code::OUT_OF_RANGE, "event_synchronize");
    }
    bench.finish()
}

fn forgets_it_when_recorded_again(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, other, event) = (bench.queue()?, bench.queue()?, bench.event()?);
    fail(&queue, Code::OUT_OF_RANGE)?;
    event.record(&queue)?;
    answers!(event.synchronize(), Code::OUT_OF_RANGE, "event_synchronize");
    event.record(&other)?;
    event.synchronize()?;
    check!(event.query()?, "recorded on a sound queue it is sound");
    event.record(&queue)?;
    answers!(
        event.synchronize(),
        Code::OUT_OF_RANGE,
        "event_synchronize, on the failed queue again"
    );
    fails_once(&queue, Code::OUT_OF_RANGE, "the queue")?;
    event.record(&queue)?;
    event.synchronize()?;
    bench.finish()
}

fn in_front_of_the_failure_is_sound(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, before, behind) = (bench.queue()?, bench.event()?, bench.event()?);
    note(&queue, &Log::default(), 0)?;
    before.record(&queue)?;
    fail(&queue, Code::EXECUTION)?;
    behind.record(&queue)?;
    answers!(behind.synchronize(), Code::EXECUTION, "the event behind");
    check!(before.query()?, "the event in front has finished");
    before.synchronize()?;
    fails_once(&queue, Code::EXECUTION, "the queue")?;
    check!(before.query()?, "and stays so");
    bench.finish()
}

fn after_the_failure_was_cleared_is_sound(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event) = (bench.queue()?, bench.event()?);
    for _ in 0..20 {
        fail(&queue, Code::EXECUTION)?;
        fails_once(&queue, Code::EXECUTION, "the queue")?;
        event.record(&queue)?;
        event.synchronize()?;
    }
    bench.finish()
}

fn has_the_first_failure(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, first, second) = (bench.queue()?, bench.event()?, bench.event()?);
    fail(&queue, Code::OUT_OF_RANGE)?;
    first.record(&queue)?;
    fail(&queue, Code::EXECUTION)?;
    fail(&queue, Code::INTERNAL)?;
    second.record(&queue)?;
    answers!(
        second.synchronize(),
        Code::OUT_OF_RANGE,
        "an event behind three failures"
    );
    answers!(
        first.synchronize(),
        Code::OUT_OF_RANGE,
        "an event behind the first"
    );
    fails_once(&queue, Code::OUT_OF_RANGE, "the queue")?;
    bench.finish()
}

fn is_not_ready_before(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event, gate, log) = (bench.queue()?, bench.event()?, Gate::new(), Log::default());
    fail(&queue, Code::EXECUTION)?;
    note(&queue, &log, 1)?;
    block(&queue, &gate)?;
    event.record(&queue)?;
    queue.flush()?;
    until(|| Ok(log.values() == [1]))?;
    check!(
        matches!(event.query(), Ok(false)),
        "a point that has not come is not ready"
    );
    gate.open();
    answers!(event.synchronize(), Code::EXECUTION, "event_synchronize");
    fails_once(&queue, Code::EXECUTION, "the queue")?;
    bench.finish()
}

fn fails_those_who_wait(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event, memory) = (
        bench.queue()?,
        bench.queue()?,
        bench.event()?,
        bench.memory(64)?,
    );
    let log = Log::default();
    fill(&second, memory, 64, &[1])?;
    fail(&first, Code::OUT_OF_RANGE)?;
    event.record(&first)?;
    second.wait_event(&event)?;
    fill(&second, memory, 64, &[2])?;
    note_upstream(&second, &log)?;
    fails_once(&second, Code::OUT_OF_RANGE, "the queue that waits")?;
    holds(&second, memory, 64, 1, "what it would have filled")?;
    equal!(
        log.values(),
        [Code::OUT_OF_RANGE.0 as u64],
        "what its host call was told"
    );
    fails_once(&first, Code::OUT_OF_RANGE, "the queue that failed")?;
    bench.finish()
}

fn fails_those_who_wait_later(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event) = (bench.queue()?, bench.queue()?, bench.event()?);
    fail(&first, Code::OUT_OF_RANGE)?;
    event.record(&first)?;
    fails_once(&first, Code::OUT_OF_RANGE, "the queue that failed")?;
    for _ in 0..3 {
        second.wait_event(&event)?;
        fails_once(&second, Code::OUT_OF_RANGE, "a queue that waits later")?;
        first.wait_event(&event)?;
        fails_once(
            &first,
            Code::OUT_OF_RANGE,
            "the first queue, which waits for its own old failure",
        )?;
    }
    bench.finish()
}

fn leaves_an_earlier_failure(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event) = (bench.queue()?, bench.queue()?, bench.event()?);
    fail(&first, Code::OUT_OF_RANGE)?;
    event.record(&first)?;
    fail(&second, Code::EXECUTION)?;
    second.wait_event(&event)?;
    fails_once(
        &second,
        Code::EXECUTION,
        "a queue that had failed before its wait did",
    )?;
    fails_once(&first, Code::OUT_OF_RANGE, "the other queue")?;
    bench.finish()
}

fn goes_on_through_a_chain(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queues, gate) = (bench.queues(20)?, Gate::new());
    let events: Vec<_> = queues
        .iter()
        .map(|_| bench.event())
        .collect::<Verdict<_>>()?;
    block(&queues[0], &gate)?;
    fail(&queues[0], Code::OUT_OF_RANGE)?;
    for i in 0..20 {
        if i > 0 {
            queues[i].wait_event(&events[i - 1])?;
        }
        events[i].record(&queues[i])?;
    }
    gate.open();
    answers!(
        events[19].synchronize(),
        Code::OUT_OF_RANGE,
        "the last event"
    );
    for queue in &queues {
        fails_once(queue, Code::OUT_OF_RANGE, "a queue of the chain")?;
    }
    bench.finish()
}

fn goes_on_to_another_device(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    for (from, to) in [(0, 1), (1, 0)] {
        let (near, far) = (bench.queue_on(from)?, bench.queue_on(to)?);
        let event = bench.driver().event_create(from, false)?;
        fail(&near, Code::OUT_OF_RANGE)?;
        event.record(&near)?;
        far.wait_event(&event)?;
        fails_once(&far, Code::OUT_OF_RANGE, "the other device's queue")?;
        fails_once(&near, Code::OUT_OF_RANGE, "the queue that failed")?;
    }
    bench.finish()
}

fn the_first_wait_counts(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queues, events) = (bench.queues(3)?, [bench.event()?, bench.event()?]);
    let gate = Gate::new();
    // The first fails late, and still is the first.
    block(&queues[0], &gate)?;
    for (i, code) in [Code::OUT_OF_RANGE, Code::EXECUTION]
        .into_iter()
        .enumerate()
    {
        fail(&queues[i], code)?;
        events[i].record(&queues[i])?;
    }
    queues[2].wait_event(&events[0])?;
    queues[2].wait_event(&events[1])?;
    queues[2].flush()?;
    answers!(events[1].synchronize(), Code::EXECUTION, "the second event");
    gate.open();
    fails_once(
        &queues[2],
        Code::OUT_OF_RANGE,
        "a queue that waits for two failures",
    )?;
    bench.finish()
}

fn carries_it_when_destroyed(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event, gate) =
        (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    block(&first, &gate)?;
    fail(&first, Code::OUT_OF_RANGE)?;
    event.record(&first)?;
    second.wait_event(&event)?;
    drop(event);
    drop(first);
    gate.open();
    fails_once(
        &second,
        Code::OUT_OF_RANGE,
        "a queue that waits for what is gone",
    )?;
    bench.finish()
}

fn fails_a_wait_that_was_made_before(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event, gate) =
        (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    let memory = bench.memory(64)?;
    fill(&second, memory, 64, &[1])?;
    block(&first, &gate)?;
    fail(&first, Code::EXECUTION)?;
    event.record(&first)?;
    second.wait_event(&event)?;
    fill(&second, memory, 64, &[2])?;
    second.flush()?;
    std::thread::sleep(Duration::from_millis(2));
    gate.open();
    fails_once(
        &second,
        Code::EXECUTION,
        "the queue that waited before it failed",
    )?;
    holds(&second, memory, 64, 1, "what it would have filled")?;
    bench.finish()
}

fn a_wait_keeps_its_failure(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, sound, event) = (
        bench.queue()?,
        bench.queue()?,
        bench.queue()?,
        bench.event()?,
    );
    let gate = Gate::new();
    block(&first, &gate)?;
    fail(&first, Code::EXECUTION)?;
    event.record(&first)?;
    second.wait_event(&event)?;
    event.record(&sound)?;
    gate.open();
    event.synchronize()?;
    fails_once(&second, Code::EXECUTION, "a wait for the old, failed point")?;
    bench.finish()
}

fn a_wait_keeps_its_soundness(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event, gate) =
        (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    block(&first, &gate)?;
    event.record(&first)?;
    second.wait_event(&event)?;
    fail(&first, Code::EXECUTION)?;
    event.record(&first)?;
    gate.open();
    second.synchronize()?;
    answers!(
        event.synchronize(),
        Code::EXECUTION,
        "the event at its new point"
    );
    fails_once(&first, Code::EXECUTION, "the first queue")?;
    bench.finish()
}

fn has_a_message(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, events) = (
        bench.queue()?,
        bench.queue()?,
        [bench.event()?, bench.event()?],
    );
    fail(&first, Code::OUT_OF_RANGE)?;
    events[0].record(&first)?;
    second.wait_event(&events[0])?;
    events[1].record(&second)?;
    for event in &events {
        let failed = event.synchronize();
        answers!(failed, Code::OUT_OF_RANGE, "event_synchronize");
        check!(
            failed.is_err_and(|e| !e.message().is_empty()),
            "event_synchronize has a message"
        );
        let failed = event.query();
        check!(
            failed.is_err_and(|e| !e.message().is_empty()),
            "event_query has a message"
        );
    }
    bench.finish()
}

fn many_threads_get_it(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event, gate) = (bench.queue()?, bench.event()?, Gate::new());
    block(&queue, &gate)?;
    fail(&queue, Code::OUT_OF_RANGE)?;
    event.record(&queue)?;
    threads(7, |thread| {
        if thread == 6 {
            std::thread::sleep(Duration::from_millis(2));
            gate.open();
            return Ok(());
        }
        answers!(
            event.synchronize(),
            Code::OUT_OF_RANGE,
            "event_synchronize of one of 6 threads"
        );
        Ok(())
    })?;
    bench.finish()
}

fn outlives_its_queue(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, other, event, gate) = (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    block(&queue, &gate)?;
    fail(&queue, Code::EXECUTION)?;
    event.record(&queue)?;
    drop(queue);
    gate.open();
    answers!(
        event.synchronize(),
        Code::EXECUTION,
        "the event of a destroyed queue"
    );
    other.wait_event(&event)?;
    fails_once(&other, Code::EXECUTION, "a queue that waits for it")?;
    bench.finish()
}
