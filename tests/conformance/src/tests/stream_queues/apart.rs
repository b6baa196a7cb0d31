//! R17: queues do not wait for each other, and come and go.

use super::*;

tests! { "stream.independence":
    /// A blocked queue blocks no other, for any kind of work.
    a_blocked_queue_blocks_no_other: R17;
    /// A blocked queue blocks no queue of another device.
    a_blocked_queue_blocks_no_other_device: R17, needs TwoDevices;
    /// Host calls of two queues run at the same time.
    two_host_calls_meet: R17, run |c| meet(c, 2);
    /// Host calls of eight queues run at the same time.
    eight_host_calls_meet: R17, run |c| meet(c, 8);
    /// A blocked queue keeps nobody from making and destroying queues and events, and allocating.
    objects_are_made_while_work_waits: R17;
    /// To wait for one queue does not wait for another.
    a_wait_for_one_is_for_one: R17;
    /// 64 queues work at once.
    many_queues_work: R16 R17, limit 60;
    /// Queues that wait for each other in turn make progress, without a knot.
    queues_play_ping_pong: R17 R24;
    /// Queues of any priority run; a priority out of range is clamped.
    any_priority_is_taken: R17;
    /// Larger parameters of a newer host are taken, and unknown extensions skipped.
    newer_parameters_are_taken: R1 R3;
    /// Parameters that end before the flags are taken.
    older_parameters_are_taken: R1;
    /// Hundreds of queues are made and destroyed, and leave nothing.
    queues_come_and_go: R10 R11, limit 60;
}

fn a_blocked_queue_blocks_no_other(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (blocked, free, log, gate) = (bench.queue()?, bench.queue()?, Log::default(), Gate::new());
    let memory = bench.memory(8192)?;
    block(&blocked, &gate)?;
    for round in 0..50u8 {
        fill(&free, memory, 4096, &[round])?;
        within(&free, memory + 4096, memory, 4096)?;
        note(&free, &log, u64::from(round))?;
        holds(&free, memory + 4096, 4096, round, "work of the free queue")?;
        check!(free.query()?, "the free queue has finished");
        check!(!blocked.query()?, "the blocked queue has not");
    }
    gate.open();
    blocked.synchronize()?;
    bench.finish()
}

fn a_blocked_queue_blocks_no_other_device(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (blocked, free, gate) = (bench.queue_on(0)?, bench.queue_on(1)?, Gate::new());
    let memory = bench.memory_on(1, 4096)?;
    block(&blocked, &gate)?;
    for round in 0..50u8 {
        fill(&free, memory, 4096, &[round])?;
        holds(&free, memory, 4096, round, "work of the other device")?;
    }
    check!(!blocked.query()?, "the blocked queue has not finished");
    gate.open();
    blocked.synchronize()?;
    bench.finish()
}

fn meet(context: &Context, count: usize) -> Verdict {
    let bench = Bench::new(context)?;
    let queues = bench.queues(count)?;
    for _ in 0..5 {
        let meeting = Arc::new(Barrier::new(count));
        for queue in &queues {
            let meeting = meeting.clone();
            queue.callback(move |_| {
                meeting.wait();
            })?;
            queue.flush()?;
        }
        for queue in &queues {
            queue.synchronize()?;
        }
    }
    bench.finish()
}

fn objects_are_made_while_work_waits(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (blocked, gate) = (bench.queue()?, Gate::new());
    block(&blocked, &gate)?;
    for _ in 0..20 {
        let (queue, event, memory) = (bench.queue()?, bench.event()?, bench.memory(4096)?);
        fill(&queue, memory, 4096, &[1])?;
        event.record(&queue)?;
        event.synchronize()?;
    }
    check!(!blocked.query()?, "the blocked queue has not finished");
    gate.open();
    blocked.synchronize()?;
    bench.finish()
}

fn a_wait_for_one_is_for_one(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, gate, event) =
        (bench.queue()?, bench.queue()?, Gate::new(), bench.event()?);
    block(&first, &gate)?;
    delay(&second, Duration::from_millis(1))?;
    event.record(&second)?;
    second.synchronize()?;
    event.synchronize()?;
    check!(!first.query()?, "the first queue has not finished");
    gate.open();
    first.synchronize()?;
    bench.finish()
}

fn many_queues_work(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queues = bench.queues(64)?;
    let memory = bench.memory(64 * 256)?;
    for round in 0..30u8 {
        for (queue, at) in queues.iter().zip((memory..).step_by(256)) {
            fill(queue, at, 128, &[round])?;
            within(queue, at + 128, at, 128)?;
        }
    }
    for (queue, at) in queues.iter().zip((memory..).step_by(256)) {
        holds(queue, at, 256, 29, "memory of one of 64 queues")?;
    }
    bench.finish()
}

fn queues_play_ping_pong(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queues, log) = (bench.queues(2)?, Log::default());
    let events = [bench.event()?, bench.event()?];
    for i in 0..500usize {
        let (me, other) = (i % 2, (i + 1) % 2);
        queues[me].wait_event(&events[other])?;
        note(&queues[me], &log, i as u64)?;
        events[me].record(&queues[me])?;
    }
    queues[0].synchronize()?;
    queues[1].synchronize()?;
    equal!(log.values(), (0..500).collect::<Vec<_>>(), "the calls");
    bench.finish()
}

fn any_priority_is_taken(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let properties = bench.properties(0)?;
    let memory = bench.memory(64)?;
    let (lowest, highest) = (properties.priority_lowest, properties.priority_highest);
    for priority in [0, lowest, highest, i32::MIN, i32::MAX, -1, 1, 100] {
        let queue = bench.driver().queue_create(0, priority)?;
        fill(&queue, memory, 64, &[priority as u8])?;
        holds(
            &queue,
            memory,
            64,
            priority as u8,
            "work of a queue with a priority",
        )?;
    }
    bench.finish()
}

fn newer_parameters_are_taken(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let extension = unknown_extension(std::ptr::null());
    let mut params = Newer::new(queue_params(0, 0));
    params.known.struct_size = Newer::<outrigger_device::sys::otr_queue_params>::SIZE;
    params.known.next = &extension;
    let mut queue = std::ptr::null_mut();
    raw.takes(
        call!(
            raw.api(),
            queue_create,
            raw.handle(),
            0,
            &params.known,
            &mut queue
        ),
        "queue_create",
    )?;
    check!(
        params.is_untouched(),
        "nothing was written to the parameters"
    );
    raw.synchronize(queue)?;
    raw.destroy(queue, std::ptr::null_mut())
}

fn older_parameters_are_taken(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    // The flags behind the size would be refused, were they read.
    let mut params = queue_params(0, 0xffff_ffff);
    params.struct_size = std::mem::offset_of!(outrigger_device::sys::otr_queue_params, flags);
    let mut queue = std::ptr::null_mut();
    raw.takes(
        call!(
            raw.api(),
            queue_create,
            raw.handle(),
            0,
            &params,
            &mut queue
        ),
        "queue_create",
    )?;
    raw.synchronize(queue)?;
    raw.destroy(queue, std::ptr::null_mut())
}

fn queues_come_and_go(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = bench.memory(64)?;
    for round in 0..400u32 {
        let queue = bench.queue()?;
        fill(&queue, memory, 64, &round.to_ne_bytes())?;
        if round % 3 == 0 {
            queue.synchronize()?;
        }
        let event = bench.event()?;
        event.record(&queue)?;
        drop(queue);
        event.synchronize()?;
    }
    equal!(
        read(&bench.queue()?, memory, 64)?,
        399u32.to_ne_bytes().repeat(16),
        "the last queue's work"
    );
    bench.finish()
}
