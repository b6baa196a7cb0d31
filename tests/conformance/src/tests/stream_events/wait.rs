//! R24: queues that wait for events.

use super::*;

tests! { "stream.wait":
    /// `queue_wait_event` returns at once, and later work of the queue starts after the point.
    it_returns_at_once_and_holds: R24;
    /// Work that was submitted before the wait is not held.
    what_is_before_runs: R16 R24;
    /// A wait for an event of the same queue changes nothing.
    for_its_own_event: R24;
    /// A wait for an event that was never recorded holds nothing.
    for_an_unrecorded_event: R22 R24;
    /// A wait for an event that has come long ago holds nothing.
    for_a_past_event: R24;
    /// A wait for an event holds a queue of another device.
    over_devices: R24, needs TwoDevices;
    /// A wait for an event of another device sees the memory that its work wrote, through the host.
    over_devices_with_data: R16 R24, needs TwoDevices;
    /// One event holds sixteen queues.
    one_event_holds_many: R24;
    /// One queue waits for events of sixteen others, of which each counts.
    one_queue_waits_for_many: R24;
    /// A destroyed event still holds those who wait for it.
    a_destroyed_event_still_holds: R11 R24;
    /// Waits go around in a circle of queues, hundreds of times.
    in_circles: R24;
    /// A diamond of queues joins: the last sees the work of both sides.
    a_diamond_joins: R16 R24;
    /// A wait carries what the first queue had waited for.
    waits_are_carried_on: R16 R24;
    /// A large copy is whole for a queue that waits for it.
    a_large_copy_is_whole: R16 R24;
    /// A synchronize of a waiting queue waits for the other's work in front of the event, and for
    /// none behind it.
    no_more_than_the_point: R21 R24;
}

fn it_returns_at_once_and_holds(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event, gate) =
        (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    let (memory, log) = (bench.memory(256)?, Log::default());
    fill(&second, memory, 256, &[9])?;
    second.synchronize()?;
    block(&first, &gate)?;
    fill(&first, memory, 256, &[1])?;
    note(&first, &log, 1)?;
    event.record(&first)?;
    second.wait_event(&event)?;
    fill(&second, memory + 128, 128, &[2])?;
    note(&second, &log, 2)?;
    second.flush()?;
    std::thread::sleep(Duration::from_millis(20));
    equal!(log.values().len(), 0, "calls before the gate opened");
    check!(!second.query()?, "the waiting queue has not finished");
    gate.open();
    let bytes = read(&second, memory, 256)?;
    equal!(
        bytes,
        [[1; 128], [2; 128]].concat(),
        "the first queue's work, and the second's on top"
    );
    equal!(log.values(), [1, 2], "the order of calls");
    bench.finish()
}

fn what_is_before_runs(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event, gate) =
        (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    let log = Log::default();
    block(&first, &gate)?;
    event.record(&first)?;
    note(&second, &log, 1)?;
    second.wait_event(&event)?;
    note(&second, &log, 2)?;
    second.flush()?;
    until(|| Ok(log.values() == [1]))?;
    gate.open();
    second.synchronize()?;
    equal!(log.values(), [1, 2], "calls");
    bench.finish()
}

fn for_its_own_event(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event, log) = (bench.queue()?, bench.event()?, Log::default());
    for i in 0..200 {
        note(&queue, &log, i)?;
        event.record(&queue)?;
        queue.wait_event(&event)?;
    }
    queue.synchronize()?;
    equal!(log.values(), (0..200).collect::<Vec<_>>(), "calls");
    bench.finish()
}

fn for_an_unrecorded_event(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event, log) = (bench.queue()?, bench.event()?, Log::default());
    queue.wait_event(&event)?;
    note(&queue, &log, 1)?;
    queue.synchronize()?;
    equal!(log.values(), [1], "calls");
    bench.finish()
}

fn for_a_past_event(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event, gate) =
        (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    event.record(&first)?;
    event.synchronize()?;
    block(&first, &gate)?;
    second.wait_event(&event)?;
    // Only the point counts, and it has passed: the first queue is blocked.
    second.synchronize()?;
    gate.open();
    first.synchronize()?;
    bench.finish()
}

fn over_devices(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    for (from, to) in [(0, 1), (1, 0)] {
        let (near, far, gate, log) = (
            bench.queue_on(from)?,
            bench.queue_on(to)?,
            Gate::new(),
            Log::default(),
        );
        let event = bench.driver().event_create(from, false)?;
        block(&near, &gate)?;
        note(&near, &log, 1)?;
        event.record(&near)?;
        far.wait_event(&event)?;
        note(&far, &log, 2)?;
        far.flush()?;
        std::thread::sleep(Duration::from_millis(5));
        check!(!far.query()?, "the other device's queue has not finished");
        gate.open();
        far.synchronize()?;
        equal!(log.values(), [1, 2], "calls of both devices");
    }
    bench.finish()
}

fn over_devices_with_data(context: &Context) -> Verdict {
    const SIZE: usize = 1 << 18;
    let bench = Bench::new(context)?;
    let (near, far, event) = (bench.queue_on(0)?, bench.queue_on(1)?, bench.event()?);
    let (here, there) = (
        bench.memory_on(0, SIZE as u64)?,
        bench.memory_on(1, SIZE as u64)?,
    );
    let bytes = HostBytes::of(SIZE, 0);
    for round in 1..=20u8 {
        fill(&near, here, SIZE as u64, &[round])?;
        copy(
            &near,
            bytes.at(0),
            here,
            SIZE as u64,
            CopyKind::DeviceToHost,
        )?;
        event.record(&near)?;
        far.wait_event(&event)?;
        copy(
            &far,
            there,
            bytes.at(0),
            SIZE as u64,
            CopyKind::HostToDevice,
        )?;
        holds(
            &far,
            there,
            SIZE,
            round,
            "what came from device 0 to device 1",
        )?;
    }
    near.synchronize()?;
    bench.finish()
}

fn one_event_holds_many(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, others, event, gate) = (
        bench.queue()?,
        bench.queues(16)?,
        bench.event()?,
        Gate::new(),
    );
    let log = Log::default();
    block(&first, &gate)?;
    note(&first, &log, 0)?;
    event.record(&first)?;
    for queue in &others {
        queue.wait_event(&event)?;
        note(queue, &log, 1)?;
        queue.flush()?;
    }
    std::thread::sleep(Duration::from_millis(5));
    equal!(log.values().len(), 0, "calls before the gate opened");
    gate.open();
    for queue in &others {
        queue.synchronize()?;
    }
    let values = log.values();
    equal!(
        (values[0], values.len()),
        (0, 17),
        "the first call, and how many"
    );
    bench.finish()
}

fn one_queue_waits_for_many(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (last, others) = (bench.queue()?, bench.queues(16)?);
    let gates: Vec<_> = others.iter().map(|_| Gate::new()).collect();
    let events: Vec<_> = others
        .iter()
        .map(|_| bench.event())
        .collect::<Verdict<_>>()?;
    for ((queue, gate), event) in others.iter().zip(&gates).zip(&events) {
        block(queue, gate)?;
        event.record(queue)?;
        last.wait_event(event)?;
    }
    last.flush()?;
    for (at, gate) in gates.iter().enumerate().rev() {
        check!(
            !last.query()?,
            "with {} events to come it has not finished",
            at + 1
        );
        gate.open();
        events[at].synchronize()?;
    }
    last.synchronize()?;
    bench.finish()
}

fn a_destroyed_event_still_holds(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event, gate) =
        (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    let log = Log::default();
    block(&first, &gate)?;
    note(&first, &log, 1)?;
    event.record(&first)?;
    second.wait_event(&event)?;
    drop(event);
    note(&second, &log, 2)?;
    second.flush()?;
    std::thread::sleep(Duration::from_millis(5));
    check!(!second.query()?, "the wait is not gone with the event");
    gate.open();
    second.synchronize()?;
    equal!(log.values(), [1, 2], "calls");
    bench.finish()
}

fn in_circles(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queues, event, log) = (bench.queues(3)?, bench.event()?, Log::default());
    for i in 0..900 {
        let queue = &queues[i % 3];
        queue.wait_event(&event)?;
        note(queue, &log, i as u64)?;
        event.record(queue)?;
    }
    event.synchronize()?;
    equal!(log.values(), (0..900).collect::<Vec<_>>(), "calls");
    bench.finish()
}

fn a_diamond_joins(context: &Context) -> Verdict {
    const SIZE: usize = 1 << 16;
    let bench = Bench::new(context)?;
    let queues = bench.queues(4)?;
    let events = [bench.event()?, bench.event()?, bench.event()?];
    let memory = bench.memory(4 * SIZE as u64)?;
    let part = |at: u64| memory + at * SIZE as u64;
    for round in 1..=40u8 {
        fill(&queues[0], part(0), SIZE as u64, &[round])?;
        events[0].record(&queues[0])?;
        for side in [1, 2] {
            queues[side].wait_event(&events[0])?;
            super::super::kit::within(&queues[side], part(side as u64), part(0), SIZE as u64)?;
            events[side].record(&queues[side])?;
            queues[3].wait_event(&events[side])?;
        }
        super::super::kit::within(&queues[3], part(3), part(1), SIZE as u64 / 2)?;
        super::super::kit::within(
            &queues[3],
            part(3) + SIZE as u64 / 2,
            part(2),
            SIZE as u64 / 2,
        )?;
        holds(
            &queues[3],
            part(3),
            SIZE,
            round,
            "what came through both sides",
        )?;
    }
    bench.finish()
}

fn waits_are_carried_on(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queues, gate, log) = (bench.queues(3)?, Gate::new(), Log::default());
    let events = [bench.event()?, bench.event()?];
    block(&queues[0], &gate)?;
    note(&queues[0], &log, 0)?;
    events[0].record(&queues[0])?;
    // The second queue does nothing but wait and record.
    queues[1].wait_event(&events[0])?;
    events[1].record(&queues[1])?;
    queues[2].wait_event(&events[1])?;
    note(&queues[2], &log, 2)?;
    queues[2].flush()?;
    std::thread::sleep(Duration::from_millis(5));
    check!(
        !events[1].query()?,
        "an event behind a wait has not finished"
    );
    gate.open();
    queues[2].synchronize()?;
    equal!(log.values(), [0, 2], "calls");
    bench.finish()
}

fn a_large_copy_is_whole(context: &Context) -> Verdict {
    const SIZE: usize = 4 << 20;
    let bench = Bench::new(context)?;
    let (first, second, event) = (bench.queue()?, bench.queue()?, bench.event()?);
    let (a, b) = (bench.memory(SIZE as u64)?, bench.memory(SIZE as u64)?);
    for round in 1..=6u8 {
        fill(&first, a, SIZE as u64, &[round])?;
        super::super::kit::within(&first, b, a, SIZE as u64)?;
        event.record(&first)?;
        second.wait_event(&event)?;
        let tail = SIZE as u64 - 64;
        holds(
            &second,
            b + tail,
            64,
            round,
            "the end of a large copy, behind its event",
        )?;
    }
    first.synchronize()?;
    bench.finish()
}

fn no_more_than_the_point(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event) = (bench.queue()?, bench.queue()?, bench.event()?);
    let (before, behind) = (Gate::new(), Gate::new());
    block(&first, &before)?;
    event.record(&first)?;
    block(&first, &behind)?;
    second.wait_event(&event)?;
    before.open();
    second.synchronize()?;
    check!(!first.query()?, "the first queue has work behind the event");
    behind.open();
    first.synchronize()?;
    bench.finish()
}
