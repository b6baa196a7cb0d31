//! R8, R10, R11 and R30: who owns what, when objects may be destroyed, and many threads at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::kernels::{arguments, count, counter};
use super::kit::{Bench, Log, block, delay, fill, holds, note, read, threads, until};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Gate, Verdict};

tests! { "core.lifetime":
    /// Destroying a queue returns without waiting for its work.
    a_queue_is_destroyed_without_waiting: R11;
    /// The work of a destroyed queue still runs, all of it.
    a_destroyed_queue_finishes_its_work: R11;
    /// All host calls of a destroyed queue are called, once each, in order.
    a_destroyed_queue_makes_its_calls: R11 R27;
    /// A destroyed queue keeps waiting for an event of another, and then goes on.
    a_destroyed_queue_still_waits: R11 R24;
    /// Destroying an event returns without waiting for its point.
    an_event_is_destroyed_without_waiting: R11;
    /// An event is destroyed while another queue waits for its point.
    an_event_may_go_before_its_point: R11 R24;
    /// Objects are destroyed in any order.
    any_order_will_do: R10 R11;
    /// A queue is destroyed by another thread than the one that made it.
    another_thread_destroys: R8 R9;
    /// Memory of a destroyed queue's work may be freed once an event says that the work is over.
    memory_may_go_after_an_event: R11 R12;
    /// Parameters of a launch may go once the call has returned.
    arguments_may_go: R30, needs HostKernels;
    /// Thousands of launches each keep their own arguments.
    each_launch_has_its_arguments: R16 R30, needs HostKernels;
    /// A launch without arguments is made.
    a_launch_without_arguments: R30, needs HostKernels;
    /// A large block of arguments arrives whole.
    a_large_block_of_arguments: R30, needs HostKernels;
}

pub(super) mod concurrent {
    use super::*;

    tests! { "core.threads":
        /// A queue takes work from eight threads, and keeps the order of each.
        one_queue_takes_work_of_many: R8 R16;
        /// Queues, events and memory are made and destroyed by six threads.
        objects_come_and_go: R8 R10, limit 60;
        /// Threads wait for one queue while others submit to it.
        wait_and_submit: R8 R19;
        /// Threads query while others submit and wait.
        query_submit_and_wait: R8 R19;
        /// A thread submits where another has allocated, and a third one reads.
        hand_work_on: R8 R9 R16;
        /// Threads that come and go leave nothing behind that other threads need.
        come_and_go: R8 R9;
    }

    fn one_queue_takes_work_of_many(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, log) = (bench.queue()?, Log::default());
        threads(8, |thread| {
            for i in 0..300 {
                note(&queue, &log, (thread as u64) << 32 | i)?;
                if i % 50 == 0 {
                    queue.query()?;
                    queue.synchronize()?;
                }
            }
            Ok(())
        })?;
        queue.synchronize()?;
        let values = log.values();
        equal!(values.len(), 2400, "calls");
        for thread in 0..8 {
            let own: Vec<_> = values
                .iter()
                .filter(|v| *v >> 32 == thread)
                .map(|v| v & 0xffff_ffff)
                .collect();
            equal!(
                own,
                (0..300).collect::<Vec<_>>(),
                "calls of thread {thread}"
            );
        }
        bench.finish()
    }

    fn objects_come_and_go(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let driver = bench.driver();
        let calls = Arc::new(AtomicU64::new(0));
        threads(6, |_| {
            for _ in 0..40 {
                let (a, b) = (driver.queue_create(0, 0)?, driver.queue_create(0, 0)?);
                let event = driver.event_create(0, false)?;
                let memory = driver.memory_alloc(0, 256)?;
                fill(&a, memory, 256, &[1])?;
                event.record(&a)?;
                b.wait_event(&event)?;
                let calls = calls.clone();
                b.callback(move |_| {
                    calls.fetch_add(1, Ordering::Relaxed);
                })?;
                event.record(&b)?;
                event.synchronize()?;
                // SAFETY: the event says that its work is over.
                unsafe { driver.memory_free(memory) }?;
            }
            Ok(())
        })?;
        equal!(calls.load(Ordering::Relaxed), 240, "calls of six threads");
        bench.finish()
    }

    fn wait_and_submit(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, log) = (bench.queue()?, Log::default());
        threads(6, |thread| {
            for i in 0..200 {
                if thread < 3 {
                    note(&queue, &log, i)?;
                } else {
                    queue.synchronize()?;
                }
            }
            Ok(())
        })?;
        queue.synchronize()?;
        equal!(log.values().len(), 600, "calls");
        bench.finish()
    }

    fn query_submit_and_wait(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, memory) = (bench.queue()?, bench.memory(6 * 64)?);
        threads(6, |thread| {
            let at = memory + 64 * thread as u64;
            for i in 0..200u32 {
                match thread % 3 {
                    0 => queue.synchronize()?,
                    1 => drop(queue.query()?),
                    _ => fill(&queue, at, 64, &i.to_ne_bytes())?,
                }
            }
            Ok(())
        })?;
        equal!(
            read(&queue, memory + 128, 64)?,
            199u32.to_ne_bytes().repeat(16),
            "the last fill of a thread"
        );
        bench.finish()
    }

    fn hand_work_on(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let queue = bench.queue()?;
        let memory = std::sync::Mutex::new(0);
        for round in 1..=20u8 {
            threads(1, |_| {
                *memory.lock().unwrap_or_else(|e| e.into_inner()) = bench.memory(4096)?;
                Ok(())
            })?;
            let address = *memory.lock().unwrap_or_else(|e| e.into_inner());
            threads(1, |_| fill(&queue, address, 4096, &[round]))?;
            threads(1, |_| {
                holds(&queue, address, 4096, round, "what another thread filled")
            })?;
            threads(1, |_| bench.give_back(address))?;
        }
        bench.finish()
    }

    fn come_and_go(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, log) = (bench.queue()?, Log::default());
        for i in 0..200 {
            threads(1, |_| {
                note(&queue, &log, i)?;
                check!(
                    bench.driver().memory_alloc(9999, 1).is_err(),
                    "there is no device 9999"
                );
                Ok(())
            })?;
        }
        queue.synchronize()?;
        equal!(
            log.values(),
            (0..200).collect::<Vec<_>>(),
            "calls of threads that are gone"
        );
        bench.finish()
    }
}

fn a_queue_is_destroyed_without_waiting(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (log, gate) = (Log::default(), Gate::new());
    for i in 0..10 {
        let queue = bench.queue()?;
        block(&queue, &gate)?;
        note(&queue, &log, i)?;
        drop(queue);
    }
    equal!(
        log.values().len(),
        0,
        "calls of destroyed queues behind a closed gate"
    );
    gate.open();
    until(|| Ok(log.values().len() == 10))?;
    bench.finish()
}

fn a_destroyed_queue_finishes_its_work(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (event, memory) = (bench.event()?, bench.memory(4096)?);
    for round in 1..=20u8 {
        let (queue, gate) = (bench.queue()?, Gate::new());
        block(&queue, &gate)?;
        fill(&queue, memory, 4096, &[0])?;
        fill(&queue, memory, 4096, &[round])?;
        event.record(&queue)?;
        drop(queue);
        check!(
            !event.query()?,
            "the work was neither waited for nor dropped"
        );
        gate.open();
        event.synchronize()?;
        holds(
            &bench.queue()?,
            memory,
            4096,
            round,
            "the work of a destroyed queue",
        )?;
    }
    bench.finish()
}

fn a_destroyed_queue_makes_its_calls(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event, gate, log) = (bench.queue()?, bench.event()?, Gate::new(), Log::default());
    block(&queue, &gate)?;
    for i in 0..500 {
        note(&queue, &log, i)?;
    }
    event.record(&queue)?;
    drop(queue);
    gate.open();
    // Cancelled or not: the calls are made (R11).
    until(|| Ok(log.values().len() == 500))?;
    equal!(
        log.values(),
        (0..500).collect::<Vec<_>>(),
        "calls of a destroyed queue"
    );
    drop(event.synchronize());
    std::thread::sleep(Duration::from_millis(5));
    equal!(log.values().len(), 500, "calls, and none twice");
    bench.finish()
}

fn a_destroyed_queue_still_waits(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event, gate) =
        (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    let (log, done) = (Log::default(), bench.event()?);
    block(&first, &gate)?;
    note(&first, &log, 1)?;
    event.record(&first)?;
    second.wait_event(&event)?;
    note(&second, &log, 2)?;
    done.record(&second)?;
    drop(second);
    std::thread::sleep(Duration::from_millis(5));
    equal!(log.values().len(), 0, "calls before the gate opened");
    gate.open();
    done.synchronize()?;
    equal!(log.values(), [1, 2], "calls");
    bench.finish()
}

fn an_event_is_destroyed_without_waiting(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate) = (bench.queue()?, Gate::new());
    block(&queue, &gate)?;
    for _ in 0..100 {
        let event = bench.event()?;
        event.record(&queue)?;
        drop(event);
    }
    check!(!queue.query()?, "the queue has not finished");
    gate.open();
    queue.synchronize()?;
    bench.finish()
}

fn an_event_may_go_before_its_point(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, log) = (bench.queue()?, bench.queue()?, Log::default());
    for i in 0..100 {
        let event = bench.event()?;
        delay(&first, Duration::from_micros(50))?;
        note(&first, &log, 2 * i)?;
        event.record(&first)?;
        second.wait_event(&event)?;
        drop(event);
        note(&second, &log, 2 * i + 1)?;
    }
    second.synchronize()?;
    first.synchronize()?;
    let values = log.values();
    for i in 0..100u64 {
        let at = |value| values.iter().position(|v| *v == value);
        check!(
            at(2 * i) < at(2 * i + 1),
            "call {} of the waiting queue came after its event",
            2 * i + 1
        );
    }
    bench.finish()
}

fn any_order_will_do(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let mut rng = context.rng();
    let memory = bench.memory(4096)?;
    for _ in 0..30 {
        let (mut queues, mut events) = (bench.queues(5)?, Vec::new());
        for _ in 0..10 {
            let event = bench.event()?;
            let (from, to) = (rng.usize(..5), rng.usize(..5));
            fill(&queues[from], memory + 512 * from as u64, 512, &[1])?;
            event.record(&queues[from])?;
            queues[to].wait_event(&event)?;
            events.push(event);
        }
        // The last events outlive the queues, to tell when those are done with the memory.
        let mut ends = Vec::new();
        for queue in &queues {
            let end = bench.event()?;
            end.record(queue)?;
            ends.push(end);
        }
        while !queues.is_empty() || !events.is_empty() {
            if rng.bool() && !queues.is_empty() {
                queues.swap_remove(rng.usize(..queues.len()));
            } else if !events.is_empty() {
                events.swap_remove(rng.usize(..events.len()));
            }
        }
        for end in ends {
            end.synchronize()?;
        }
    }
    bench.give_back(memory)?;
    bench.finish()
}

fn another_thread_destroys(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    for _ in 0..50 {
        let (queue, event, log) = (bench.queue()?, bench.event()?, Log::default());
        note(&queue, &log, 1)?;
        event.record(&queue)?;
        let both = std::sync::Mutex::new(Some((queue, event)));
        threads(1, |_| {
            let both = both.lock().unwrap_or_else(|e| e.into_inner()).take();
            if let Some((queue, event)) = both {
                drop(queue);
                event.synchronize()?;
            }
            Ok(())
        })?;
        equal!(
            log.values(),
            [1],
            "the call of a queue that another thread destroyed"
        );
    }
    bench.finish()
}

fn memory_may_go_after_an_event(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    for round in 0..100u8 {
        let (queue, event, memory) = (bench.queue()?, bench.event()?, bench.memory(65536)?);
        fill(&queue, memory, 65536, &[round])?;
        event.record(&queue)?;
        drop(queue);
        event.synchronize()?;
        bench.give_back(memory)?;
    }
    bench.finish()
}

fn arguments_may_go(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate, total) = (bench.queue()?, Gate::new(), counter());
    let Some(kernel) = bench.host_kernel(0, count)? else {
        return Err(crate::Failure::new("the driver takes host kernels"));
    };
    block(&queue, &gate)?;
    let mut block_of_arguments = Vec::new();
    for step in 1..=10 {
        block_of_arguments = arguments(total, step).to_vec();
        // SAFETY: what the kernel expects.
        unsafe { queue.launch(&kernel, &block_of_arguments, 0, c"count") }?;
        block_of_arguments.fill(0xff);
        std::hint::black_box(&mut block_of_arguments);
    }
    drop(block_of_arguments);
    gate.open();
    queue.synchronize()?;
    equal!(total.load(Ordering::SeqCst), 55, "what ten launches added");
    bench.finish()
}

fn each_launch_has_its_arguments(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate, total) = (bench.queue()?, Gate::new(), counter());
    let Some(kernel) = bench.host_kernel(0, count)? else {
        return Err(crate::Failure::new("the driver takes host kernels"));
    };
    block(&queue, &gate)?;
    for step in 1..=3000 {
        // SAFETY: what the kernel expects.
        unsafe { queue.launch(&kernel, &arguments(total, step), 0, c"count") }?;
    }
    equal!(
        total.load(Ordering::SeqCst),
        0,
        "what launches behind a closed gate added"
    );
    gate.open();
    queue.synchronize()?;
    equal!(
        total.load(Ordering::SeqCst),
        3000 * 3001 / 2,
        "what 3000 launches added"
    );
    bench.finish()
}

fn a_launch_without_arguments(context: &Context) -> Verdict {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn kernel(_: *const std::ffi::c_void, size: u32, _: i64) -> i32 {
        CALLS.fetch_add(1 + u64::from(size) * 1000, Ordering::SeqCst);
        0
    }
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let Some(kernel) = bench.host_kernel(0, kernel)? else {
        return Err(crate::Failure::new("the driver takes host kernels"));
    };
    for _ in 0..10 {
        // SAFETY: the kernel takes nothing.
        unsafe { queue.launch(&kernel, &[], 0, c"nothing") }?;
    }
    queue.synchronize()?;
    equal!(
        CALLS.load(Ordering::SeqCst),
        10,
        "launches, with no bytes of arguments"
    );
    bench.finish()
}

fn a_large_block_of_arguments(context: &Context) -> Verdict {
    static SUM: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn kernel(args: *const std::ffi::c_void, size: u32, _: i64) -> i32 {
        // SAFETY: the block has as many bytes as are said.
        let bytes = unsafe { std::slice::from_raw_parts(args.cast::<u8>(), size as usize) };
        SUM.fetch_add(bytes.iter().map(|b| u64::from(*b)).sum(), Ordering::SeqCst);
        0
    }
    let bench = Bench::new(context)?;
    let (queue, gate) = (bench.queue()?, Gate::new());
    let Some(kernel) = bench.host_kernel(0, kernel)? else {
        return Err(crate::Failure::new("the driver takes host kernels"));
    };
    block(&queue, &gate)?;
    for size in [1, 8, 63, 64, 65, 256, 1000, 4000] {
        // SAFETY: the kernel takes any bytes.
        unsafe { queue.launch(&kernel, &vec![1u8; size], 0, c"sum") }?;
    }
    gate.open();
    queue.synchronize()?;
    equal!(
        SUM.load(Ordering::SeqCst),
        1 + 8 + 63 + 64 + 65 + 256 + 1000 + 4000,
        "the sum of all arguments"
    );
    bench.finish()
}
