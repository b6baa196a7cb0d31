//! Figures of a driver: the times of copies, fills, launches, events and operators, beside what the
//! device declares. No test here fails because it is slow.

use std::time::{Duration, Instant};

use outrigger_device::{CopyKind, DType, Driver};

use super::kernels::{counter, launch_count};
use super::kit::{Bench, HostBytes, copy, fill, note};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Failure, Verdict};

tests! { "perf.copy":
    /// The speed of copies of several sizes from the host to a device.
    from_the_host: R16, run |c| copies(c, CopyKind::HostToDevice);
    /// The speed of copies of several sizes from a device to the host.
    to_the_host: R16, run |c| copies(c, CopyKind::DeviceToHost);
    /// The speed of copies of several sizes within a device.
    within_a_device: R16, run |c| copies(c, CopyKind::DeviceToDevice);
    /// The speed of copies of pinned memory to a device.
    from_pinned_memory: R26, needs Pinned;
    /// The speed of fills.
    fills: R28;
}

pub(super) mod operators {
    use super::super::host::operators::{Host, host};
    use super::super::operators::operand::{Arguments, Operand, Runner};
    use super::*;

    tests! { "perf.operator":
        /// The speed of matrix products through the C ABI, by the driver's own library or by host kernels.
        matrix_products: H18, limit 120;
    }

    /// Rows and columns, and as what.
    const PRODUCTS: [(usize, DType); 4] = [
        (512, DType::F32),
        (1024, DType::F32),
        (1024, DType::F16),
        (1024, DType::BF16),
    ];

    fn matrix_products(context: &Context) -> Verdict {
        let properties = context.open()?.properties(0)?;
        let host = host(context)?;
        for (side, dtype) in PRODUCTS {
            let name = format!("{0} x {0} x {0} of {1}", side, dtype.name());
            let peak = match dtype {
                DType::F32 => properties.peak_flops_f32,
                _ => properties.peak_flops_f16,
            };
            match product(&host, side, dtype)? {
                Some(rate) => context.figure(&name, rate, "GFLOP/s", Some(peak as f64 / 1e9)),
                None => context.note(format!("there is no operator for {name}")),
            }
        }
        Ok(())
    }

    /// The best rate of several products, in GFLOP/s; `None` where nothing runs them.
    fn product(host: &Host, side: usize, dtype: DType) -> Verdict<Option<f64>> {
        let sizes = [side as i64; 2];
        let matrix = |value: f64| Operand::dense(host, dtype, &sizes, &vec![value; side * side]);
        let (a, b, out) = (matrix(0.5)?, matrix(0.25)?, matrix(0.0)?);
        let arguments = Arguments::new("mm", &[&a, &b], &[&out], &[])?;
        // The first one may load, plan and allocate.
        if !host.supports(&arguments.call())? {
            return Ok(None);
        }
        let (begin, mut best) = (Instant::now(), Duration::MAX);
        while best == Duration::MAX || begin.elapsed() < Duration::from_secs(1) {
            let start = Instant::now();
            host.run(&arguments.call())?;
            best = best.min(start.elapsed());
        }
        let expected = vec![0.125 * side as f64; side * side];
        equal!(out.values(host, "the product")?, expected, "the product");
        Ok(Some(2.0 * (side as f64).powi(3) / best.as_secs_f64() / 1e9))
    }
}

pub(super) mod calls {
    use super::*;

    tests! { "perf.call":
        /// The time to submit a small command, and to run it.
        submissions: R17;
        /// The time to launch a kernel that does next to nothing.
        launches: R17, needs HostKernels;
        /// The time to wait for a queue with one small command.
        round_trips: R18;
        /// The time to record, query and wait for events.
        events: R21;
        /// The time to hand work from one queue to another and back.
        hand_overs: R24;
        /// The time to allocate and free memory.
        allocations: R29;
        /// The time to launch a graph, for each of its commands.
        graph_launches: R34, needs Graphs;
    }

    /// Nanoseconds for each of `count` turns of the best of several tries.
    fn best(count: u32, mut turns: impl FnMut() -> Verdict) -> Verdict<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            let start = Instant::now();
            turns()?;
            best = best.min(start.elapsed().as_nanos() as f64 / f64::from(count));
        }
        Ok(best)
    }

    fn submissions(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, memory) = (bench.queue()?, bench.memory(64)?);
        let mut submit = f64::INFINITY;
        let whole = best(10_000, || {
            let start = Instant::now();
            for _ in 0..10_000 {
                fill(&queue, memory, 8, &[1])?;
            }
            submit = submit.min(start.elapsed().as_nanos() as f64 / 10_000.0);
            Ok(queue.synchronize()?)
        })?;
        context.figure("submit a fill", submit, "ns", None);
        context.figure("submit and run a fill", whole, "ns", None);
        bench.finish()
    }

    fn launches(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, total) = (bench.queue()?, counter());
        let Some(kernel) = bench.host_kernel(0, super::super::kernels::count)? else {
            return Err(Failure::new("the driver takes host kernels"));
        };
        let launch = best(10_000, || {
            for _ in 0..10_000 {
                launch_count(&queue, &kernel, total, 1)?;
            }
            Ok(queue.synchronize()?)
        })?;
        context.figure("launch and run a kernel", launch, "ns", None);
        bench.finish()
    }

    fn round_trips(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, memory) = (bench.queue()?, bench.memory(64)?);
        let trip = best(500, || {
            for _ in 0..500 {
                fill(&queue, memory, 8, &[1])?;
                queue.synchronize()?;
            }
            Ok(())
        })?;
        context.figure("fill and synchronize", trip, "ns", None);
        let idle = best(5000, || {
            for _ in 0..5000 {
                queue.synchronize()?;
            }
            Ok(())
        })?;
        context.figure("synchronize an idle queue", idle, "ns", None);
        bench.finish()
    }

    fn events(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, event) = (bench.queue()?, bench.event()?);
        let record = best(5000, || {
            for _ in 0..5000 {
                event.record(&queue)?;
            }
            Ok(())
        })?;
        context.figure("record an event", record, "ns", None);
        event.synchronize()?;
        let query = best(5000, || {
            for _ in 0..5000 {
                check!(event.query()?, "the event has finished");
            }
            Ok(())
        })?;
        context.figure("query a finished event", query, "ns", None);
        let make = best(2000, || {
            for _ in 0..2000 {
                drop(bench.event()?);
            }
            Ok(())
        })?;
        context.figure("make and destroy an event", make, "ns", None);
        bench.finish()
    }

    fn hand_overs(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queues, event) = (bench.queues(2)?, bench.event()?);
        let log = super::super::kit::Log::default();
        let turn = best(1000, || {
            for i in 0..1000usize {
                queues[i % 2].wait_event(&event)?;
                note(&queues[i % 2], &log, 0)?;
                event.record(&queues[i % 2])?;
            }
            Ok(event.synchronize()?)
        })?;
        context.figure("host call on alternating queues", turn, "ns", None);
        bench.finish()
    }

    fn allocations(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        for (name, size) in [("4 KiB", 4096), ("1 MiB", 1 << 20), ("8 MiB", 8 << 20)] {
            let pair = best(300, || {
                for _ in 0..300 {
                    let address = bench.memory_alloc(0, size)?;
                    // SAFETY: no work uses it.
                    unsafe { bench.memory_free(address) }?;
                }
                Ok(())
            })?;
            context.figure(&format!("allocate and free {name}"), pair, "ns", None);
        }
        bench.finish()
    }

    fn graph_launches(context: &Context) -> Verdict {
        use super::super::graph_recording::{begin, end, launch};
        let bench = Bench::new(context)?;
        let (queue, memory) = (bench.queue()?, bench.memory(64)?);
        begin(&queue)?;
        for _ in 0..1000 {
            fill(&queue, memory, 8, &[1])?;
        }
        let graph = end(&queue)?;
        let each = best(20_000, || {
            for _ in 0..20 {
                launch(&queue, &graph)?;
            }
            Ok(queue.synchronize()?)
        })?;
        context.figure("a fill of a graph of 1000", each, "ns", None);
        // R36: a graph may hold memory.
        drop(graph);
        bench.finish()
    }
}

/// The most that the device declares to move, in GB/s; `None` where it says nothing.
fn peak(driver: &Driver) -> Verdict<Option<f64>> {
    let peak = driver.properties(0)?.peak_bytes_per_second;
    Ok((peak > 0).then(|| peak as f64 / 1e9))
}

/// The best rate of several tries, in GB/s.
fn rate(bytes: u64, mut turn: impl FnMut() -> Verdict) -> Verdict<f64> {
    let mut best = Duration::MAX;
    for _ in 0..6 {
        let start = Instant::now();
        turn()?;
        best = best.min(start.elapsed());
    }
    Ok(bytes as f64 / best.as_secs_f64() / 1e9)
}

/// Sizes that fit into a part of the device.
fn sizes(driver: &Driver) -> Verdict<Vec<(&'static str, u64)>> {
    let most = driver.properties(0)?.total_memory / 4;
    let all = [
        ("64 KiB", 64 << 10),
        ("1 MiB", 1 << 20),
        ("8 MiB", 8 << 20),
        ("64 MiB", 64 << 20),
    ];
    Ok(all.into_iter().filter(|(_, size)| *size <= most).collect())
}

fn copies(context: &Context, kind: CopyKind) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, peak) = (bench.queue()?, peak(bench.driver())?);
    for (name, size) in sizes(bench.driver())? {
        let (device, host) = (bench.memory(size)?, HostBytes::of(size as usize, 1));
        let other = if kind == CopyKind::DeviceToDevice {
            bench.memory(size)?
        } else {
            host.at(0)
        };
        let (dst, src) = if kind == CopyKind::HostToDevice {
            (device, other)
        } else {
            (other, device)
        };
        fill(&queue, device, size, &[2])?;
        queue.synchronize()?;
        let rate = rate(size, || {
            copy(&queue, dst, src, size, kind)?;
            Ok(queue.synchronize()?)
        })?;
        context.figure(&format!("copy {name}"), rate, "GB/s", peak);
        bench.give_back(device)?;
        if kind == CopyKind::DeviceToDevice {
            bench.give_back(other)?;
        }
    }
    bench.finish()
}

fn from_pinned_memory(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, peak) = (bench.queue()?, peak(bench.driver())?);
    let pinned = bench
        .driver()
        .pinned()
        .ok_or_else(|| Failure::new("the driver has pinned memory"))?;
    for (name, size) in sizes(bench.driver())? {
        let (device, pointer) = (bench.memory(size)?, pinned.alloc(size)?);
        // SAFETY: the memory has this size.
        unsafe { pointer.cast::<u8>().write_bytes(1, size as usize) };
        let rate = rate(size, || {
            copy(&queue, device, pointer as u64, size, CopyKind::HostToDevice)?;
            Ok(queue.synchronize()?)
        })?;
        context.figure(&format!("copy {name} of pinned memory"), rate, "GB/s", peak);
        bench.give_back(device)?;
        // SAFETY: the work is over.
        unsafe { pinned.free(pointer) }?;
    }
    bench.finish()
}

fn fills(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, peak) = (bench.queue()?, peak(bench.driver())?);
    for (name, size) in sizes(bench.driver())? {
        let device = bench.memory(size)?;
        let rate = rate(size, || {
            fill(&queue, device, size, &[1, 2, 3, 4])?;
            Ok(queue.synchronize()?)
        })?;
        context.figure(&format!("fill {name}"), rate, "GB/s", peak);
        bench.give_back(device)?;
    }
    bench.finish()
}
