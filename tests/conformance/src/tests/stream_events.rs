//! R21, R22 and R24 without failures: which work an event stands for, and who waits for it.

use std::time::Duration;

use outrigger_device::CopyKind;

use super::kit::{
    Bench, HostBytes, Log, block, copy, delay, fill, holds, note, read, threads, until,
};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Gate, Verdict};

tests! { "stream.event":
    /// An event that was never recorded counts as finished, whoever asks.
    without_a_record_it_is_finished: R22;
    /// An event stands for the work up to its record, and not for what comes behind.
    it_stands_for_the_work_so_far: R21;
    /// An event is not finished before the work in front of it is.
    it_is_not_early: R21;
    /// A finished event means that all effects of the work in front of it are there.
    finished_means_done: R21;
    /// A query of an event never waits.
    a_query_does_not_wait: R21;
    /// Recording again moves the event to the new point.
    recording_again_moves_it: R21;
    /// A wait that was made before the event was recorded again keeps the old point.
    a_wait_keeps_its_point: R21;
    /// A synchronize that is under way while the event is recorded again ends with the old point at the
    /// latest with the new one, and a later one waits for the new one.
    recording_again_under_a_wait: R8 R21;
    /// An event is recorded on one queue after another, and the last one counts.
    on_one_queue_after_another: R21;
    /// An event on an idle queue is finished.
    on_an_idle_queue: R21;
    /// Many events of one queue finish in the order of their records.
    many_finish_in_order: R16 R21;
    /// An event is recorded a thousand times.
    a_thousand_records: R21;
    /// Several threads wait for one event, and all are let go.
    many_threads_wait: R8 R21;
    /// Threads record and query one event at the same time.
    threads_record_and_query: R8 R21;
    /// An event stays of use when its queue is gone.
    it_outlives_its_queue: R11 R21;
    /// An event of a destroyed queue is recorded on another.
    it_moves_on_from_a_destroyed_queue: R11 R21;
    /// Hundreds of events are live at a time.
    hundreds_are_live: R10 R21;
    /// An event of another device is recorded on that device's queue.
    of_another_device: R21, needs TwoDevices;
}

pub(super) mod wait;

fn without_a_record_it_is_finished(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    for device in 0..bench.device_count() {
        let event = bench.driver().event_create(device, false)?;
        check!(event.query()?, "a new event counts as finished");
        event.synchronize()?;
        let queue = bench.queue_on(device)?;
        queue.wait_event(&event)?;
        queue.synchronize()?;
    }
    bench.finish()
}

fn it_stands_for_the_work_so_far(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event) = (bench.queue()?, bench.event()?);
    let (gate, later) = (Gate::new(), Gate::new());
    block(&queue, &gate)?;
    event.record(&queue)?;
    block(&queue, &later)?;
    check!(!event.query()?, "the work in front of it has not finished");
    gate.open();
    event.synchronize()?;
    check!(event.query()?, "the work behind it does not matter");
    check!(!queue.query()?, "the queue has not finished");
    later.open();
    queue.synchronize()?;
    bench.finish()
}

fn it_is_not_early(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event, log) = (bench.queue()?, bench.event()?, Log::default());
    for i in 1..=30u64 {
        delay(&queue, Duration::from_micros(500))?;
        note(&queue, &log, i)?;
        event.record(&queue)?;
        queue.flush()?;
        if i % 2 == 0 {
            event.synchronize()?;
        } else {
            while !event.query()? {
                std::hint::spin_loop();
            }
        }
        equal!(
            log.values().len() as u64,
            i,
            "calls in front of an event that has finished"
        );
    }
    bench.finish()
}

fn finished_means_done(context: &Context) -> Verdict {
    const SIZE: usize = 1 << 18;
    let bench = Bench::new(context)?;
    let (queue, event, memory) = (bench.queue()?, bench.event()?, bench.memory(SIZE as u64)?);
    let bytes = HostBytes::of(SIZE, 0);
    for round in 1..=60u8 {
        fill(&queue, memory, SIZE as u64, &[round])?;
        copy(
            &queue,
            bytes.at(0),
            memory,
            SIZE as u64,
            CopyKind::DeviceToHost,
        )?;
        event.record(&queue)?;
        if round % 2 == 0 {
            event.synchronize()?;
        } else {
            queue.flush()?;
            while !event.query()? {
                std::hint::spin_loop();
            }
        }
        let missing = bytes.get().iter().filter(|byte| **byte != round).count();
        equal!(
            missing,
            0,
            "bytes that are not there although the event has finished, in round {round}"
        );
    }
    bench.finish()
}

fn a_query_does_not_wait(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event, gate) = (bench.queue()?, bench.event()?, Gate::new());
    block(&queue, &gate)?;
    event.record(&queue)?;
    for _ in 0..200 {
        check!(
            !event.query()?,
            "an event behind a closed gate has not finished"
        );
    }
    gate.open();
    until(|| Ok(event.query()?))?;
    bench.finish()
}

fn recording_again_moves_it(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event) = (bench.queue()?, bench.event()?);
    for _ in 0..10 {
        event.record(&queue)?;
        event.synchronize()?;
        let gate = Gate::new();
        block(&queue, &gate)?;
        check!(event.query()?, "it stands for the old point");
        event.record(&queue)?;
        check!(!event.query()?, "it has moved to the new point");
        gate.open();
        event.synchronize()?;
    }
    bench.finish()
}

fn a_wait_keeps_its_point(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, third, event) = (
        bench.queue()?,
        bench.queue()?,
        bench.queue()?,
        bench.event()?,
    );
    let (gate, later, log) = (Gate::new(), Gate::new(), Log::default());
    block(&first, &gate)?;
    event.record(&first)?;
    second.wait_event(&event)?;
    note(&second, &log, 1)?;
    block(&first, &later)?;
    event.record(&first)?;
    third.wait_event(&event)?;
    gate.open();
    second.synchronize()?;
    equal!(log.values(), [1], "the wait was for the old point");
    check!(!event.query()?, "the event is at the new one");
    check!(!third.query()?, "and so is a later wait");
    later.open();
    third.synchronize()?;
    bench.finish()
}

fn recording_again_under_a_wait(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event) = (bench.queue()?, bench.event()?);
    for _ in 0..20 {
        let (gate, later) = (Gate::new(), Gate::new());
        block(&queue, &gate)?;
        event.record(&queue)?;
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| event.synchronize());
            std::thread::sleep(Duration::from_micros(300));
            block(&queue, &later)?;
            event.record(&queue)?;
            gate.open();
            check!(!event.query()?, "the event is at its new point");
            later.open();
            match waiter.join() {
                Ok(ended) => Ok(ended?),
                Err(_) => Err(crate::Failure::new("the waiting thread panicked")),
            }
        })?;
        event.synchronize()?;
        check!(queue.query()?, "all has finished");
    }
    bench.finish()
}

fn on_one_queue_after_another(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queues, event) = (bench.queues(4)?, bench.event()?);
    let gates: Vec<_> = queues.iter().map(|_| Gate::new()).collect();
    for (queue, gate) in queues.iter().zip(&gates) {
        block(queue, gate)?;
        event.record(queue)?;
    }
    for gate in &gates[..3] {
        gate.open();
    }
    for queue in &queues[..3] {
        queue.synchronize()?;
    }
    check!(!event.query()?, "it stands for the last queue's work");
    gates[3].open();
    event.synchronize()?;
    bench.finish()
}

fn on_an_idle_queue(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event) = (bench.queue()?, bench.event()?);
    for _ in 0..50 {
        event.record(&queue)?;
        event.synchronize()?;
        check!(event.query()?, "it has finished");
    }
    bench.finish()
}

fn many_finish_in_order(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    let events: Vec<_> = (0..300).map(|_| bench.event()).collect::<Verdict<_>>()?;
    for (i, event) in events.iter().enumerate() {
        note(&queue, &log, i as u64)?;
        event.record(&queue)?;
    }
    queue.flush()?;
    let mut finished = 0;
    until(|| {
        // From the back: what is in front of a finished event has finished as well.
        let last = (finished..300)
            .rev()
            .find(|&i| matches!(events[i].query(), Ok(true)));
        if let Some(last) = last {
            for event in &events[..last] {
                check!(
                    event.query()?,
                    "an event in front of a finished one has finished"
                );
            }
            check!(
                log.values().len() > last,
                "the calls in front of event {last} were made"
            );
            finished = last + 1;
        }
        Ok(finished == 300)
    })?;
    bench.finish()
}

fn a_thousand_records(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event, log) = (bench.queue()?, bench.event()?, Log::default());
    for i in 0..1000 {
        note(&queue, &log, i)?;
        event.record(&queue)?;
    }
    event.synchronize()?;
    equal!(
        log.values().len(),
        1000,
        "calls in front of the last record"
    );
    bench.finish()
}

fn many_threads_wait(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event, gate, log) = (bench.queue()?, bench.event()?, Gate::new(), Log::default());
    block(&queue, &gate)?;
    note(&queue, &log, 1)?;
    event.record(&queue)?;
    threads(9, |thread| {
        if thread == 8 {
            std::thread::sleep(Duration::from_millis(3));
            gate.open();
            return Ok(());
        }
        event.synchronize()?;
        equal!(log.values(), [1], "calls, once a thread was let go");
        Ok(())
    })?;
    bench.finish()
}

fn threads_record_and_query(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queues, event) = (bench.queues(4)?, bench.event()?);
    threads(4, |thread| {
        let log = Log::default();
        for i in 0..300 {
            note(&queues[thread], &log, i)?;
            event.record(&queues[thread])?;
            event.query()?;
            if i % 30 == 0 {
                event.synchronize()?;
                queues[(thread + 1) % 4].wait_event(&event)?;
            }
        }
        queues[thread].synchronize()?;
        equal!(log.values().len(), 300, "calls of this thread");
        Ok(())
    })?;
    event.synchronize()?;
    bench.finish()
}

fn it_outlives_its_queue(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, other, event, gate) = (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    let log = Log::default();
    block(&queue, &gate)?;
    note(&queue, &log, 1)?;
    event.record(&queue)?;
    drop(queue);
    check!(
        !event.query()?,
        "the work of the destroyed queue has not finished"
    );
    other.wait_event(&event)?;
    note(&other, &log, 2)?;
    gate.open();
    event.synchronize()?;
    other.synchronize()?;
    equal!(log.values(), [1, 2], "calls");
    check!(event.query()?, "it stays finished");
    bench.finish()
}

fn it_moves_on_from_a_destroyed_queue(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let event = bench.event()?;
    for i in 0..50 {
        let (queue, log) = (bench.queue()?, Log::default());
        note(&queue, &log, i)?;
        event.record(&queue)?;
        drop(queue);
        if i % 2 == 0 {
            event.synchronize()?;
            equal!(log.values(), [i], "calls of a destroyed queue");
        }
    }
    event.synchronize()?;
    bench.finish()
}

fn hundreds_are_live(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate) = (bench.queue()?, Gate::new());
    let events: Vec<_> = (0..800).map(|_| bench.event()).collect::<Verdict<_>>()?;
    block(&queue, &gate)?;
    for event in &events {
        event.record(&queue)?;
    }
    for event in &events {
        check!(!event.query()?, "none has finished");
    }
    gate.open();
    for event in events.iter().rev() {
        event.synchronize()?;
    }
    bench.finish()
}

fn of_another_device(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate) = (bench.queue_on(1)?, Gate::new());
    let event = bench.driver().event_create(1, false)?;
    block(&queue, &gate)?;
    event.record(&queue)?;
    check!(!event.query()?, "it has not finished");
    gate.open();
    event.synchronize()?;
    bench.finish()
}
