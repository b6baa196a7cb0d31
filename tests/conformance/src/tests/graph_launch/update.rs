//! R35: updates of graphs, and those that are refused.

use super::*;

tests! { "graph.update":
    /// An update is for later launches: those that were submitted keep what they had.
    is_for_later_launches: R35, needs Graphs GraphUpdate;
    /// The addresses and the pattern of a fill are updated.
    of_a_fill: R35, needs Graphs GraphUpdate;
    /// The addresses of copies are updated.
    of_copies: R35, needs Graphs GraphUpdate;
    /// The arguments of a kernel are updated.
    of_a_kernel: R35, needs Graphs GraphUpdate HostKernels;
    /// The data of a host call are updated.
    of_a_host_call: R35, needs Graphs GraphUpdate;
    /// `from` stays as it is, and the host's.
    leaves_the_other: R35, needs Graphs GraphUpdate;
    /// An update from itself changes nothing.
    from_itself: R35, needs Graphs GraphUpdate;
    /// Commands of other kinds are refused, and nothing changes.
    other_kinds_are_refused: R4 R35, needs Graphs GraphUpdate;
    /// More commands are refused, and nothing changes.
    more_commands_are_refused: R4 R35, needs Graphs GraphUpdate;
    /// Fewer commands are refused, and nothing changes.
    fewer_commands_are_refused: R4 R35, needs Graphs GraphUpdate;
    /// The same commands in another order are refused, and nothing changes.
    another_order_is_refused: R4 R35, needs Graphs GraphUpdate;
    /// Another kernel is refused, and nothing changes.
    another_kernel_is_refused: R4 R35, needs Graphs GraphUpdate HostKernels;
    /// A graph is updated a thousand times between launches.
    a_thousand_times: R35, needs Graphs GraphUpdate;
}

fn is_for_later_launches(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate, at) = (bench.queue()?, Gate::new(), bench.memory(128)?);
    let (graph, other) = (
        filling(bench.driver(), at, 1)?,
        filling(bench.driver(), at + 64, 2)?,
    );
    write(&queue, at, &[0; 128])?;
    block(&queue, &gate)?;
    launch(&queue, &graph)?;
    graph.update(&other)?;
    launch(&queue, &graph)?;
    gate.open();
    equal!(
        read(&queue, at, 128)?,
        [[1; 64], [2; 64]].concat(),
        "the launch before the update, and the one behind it"
    );
    bench.finish()
}

fn of_a_fill(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(256)?);
    let graph = filling(bench.driver(), at, 1)?;
    for i in 1..4u8 {
        fill(&queue, at, 256, &[0])?;
        graph.update(&filling(bench.driver(), at + 64 * u64::from(i), 10 + i)?)?;
        launch(&queue, &graph)?;
        let mut expected = vec![0; 256];
        expected[64 * usize::from(i)..][..64].fill(10 + i);
        equal!(read(&queue, at, 256)?, expected, "update {i}");
    }
    bench.finish()
}

fn of_copies(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(256)?);
    let recorded = |dst: u64, src: u64| {
        begin(&queue)?;
        within(&queue, at + dst, at + src, 64)?;
        end(&queue)
    };
    let (graph, other) = (recorded(64, 0)?, recorded(192, 128)?);
    write(&queue, at, &[[1; 64], [2; 64], [3; 64], [4; 64]].concat())?;
    graph.update(&other)?;
    launch(&queue, &graph)?;
    equal!(
        read(&queue, at, 256)?,
        [[1; 64], [2; 64], [3; 64], [3; 64]].concat(),
        "the updated copy"
    );
    bench.finish()
}

fn of_a_kernel(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, totals) = (bench.queue()?, [counter(), counter()]);
    let Some(kernel) = bench.host_kernel(0, count)? else {
        return Err(Failure::new("the driver takes host kernels"));
    };
    let recorded = |total, step| {
        begin(&queue)?;
        // SAFETY: what the kernel expects.
        unsafe { queue.launch(&kernel, &arguments(total, step), 0, c"count") }?;
        end(&queue)
    };
    let graph = recorded(totals[0], 3)?;
    launch(&queue, &graph)?;
    graph.update(&recorded(totals[1], 40)?)?;
    launch(&queue, &graph)?;
    launch(&queue, &graph)?;
    queue.synchronize()?;
    equal!(
        totals.map(|t| t.load(Ordering::SeqCst)),
        [3, 80],
        "what the kernels added"
    );
    bench.finish()
}

fn of_a_host_call(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    let recorded = |value| {
        begin(&queue)?;
        keep_note(&queue, &log, value)?;
        end(&queue)
    };
    let graph = recorded(1)?;
    launch(&queue, &graph)?;
    graph.update(&recorded(2)?)?;
    launch(&queue, &graph)?;
    queue.synchronize()?;
    equal!(log.values(), [1, 2], "calls");
    bench.finish()
}

fn leaves_the_other(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(128)?);
    let (graph, other) = (
        filling(bench.driver(), at, 1)?,
        filling(bench.driver(), at + 64, 2)?,
    );
    fill(&queue, at, 128, &[0])?;
    graph.update(&other)?;
    graph.update(&filling(bench.driver(), at, 3)?)?;
    launch(&queue, &other)?;
    launch(&queue, &graph)?;
    equal!(
        read(&queue, at, 128)?,
        [[3; 64], [2; 64]].concat(),
        "both graphs"
    );
    drop(other);
    launch(&queue, &graph)?;
    holds(
        &queue,
        at,
        64,
        3,
        "the updated graph, when the other is gone",
    )?;
    bench.finish()
}

fn from_itself(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(64)?);
    let graph = filling(bench.driver(), at, 6)?;
    graph.update(&graph)?;
    launch(&queue, &graph)?;
    holds(&queue, at, 64, 6, "what the graph fills")?;
    bench.finish()
}

/// Tries an update that is refused; the graph goes on to fill 64 bytes with 1 and copies them.
fn unchanged(
    context: &Context,
    other: impl FnOnce(&Bench, &outrigger_device::Queue, u64) -> Verdict,
) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(128)?);
    begin(&queue)?;
    fill(&queue, at, 64, &[1])?;
    within(&queue, at + 64, at, 64)?;
    let graph = end(&queue)?;
    begin(&queue)?;
    other(&bench, &queue, at)?;
    let other = end(&queue)?;
    let answer = graph.update(&other);
    answers!(answer, Code::INVALID_ARGUMENT, "the update");
    check!(
        answer.is_err_and(|e| !e.message().is_empty()),
        "R5: it has a text"
    );
    fill(&queue, at, 128, &[0])?;
    launch(&queue, &graph)?;
    holds(&queue, at, 128, 1, "the graph is what it was")?;
    bench.finish()
}

fn other_kinds_are_refused(context: &Context) -> Verdict {
    unchanged(context, |_, queue, at| {
        fill(queue, at, 64, &[2])?;
        fill(queue, at + 64, 64, &[3])
    })
}

fn more_commands_are_refused(context: &Context) -> Verdict {
    unchanged(context, |_, queue, at| {
        fill(queue, at, 64, &[2])?;
        within(queue, at + 64, at, 64)?;
        fill(queue, at, 64, &[3])
    })
}

fn fewer_commands_are_refused(context: &Context) -> Verdict {
    unchanged(context, |_, queue, at| fill(queue, at, 64, &[2]))
}

fn another_order_is_refused(context: &Context) -> Verdict {
    unchanged(context, |_, queue, at| {
        within(queue, at + 64, at, 64)?;
        fill(queue, at, 64, &[2])
    })
}

fn another_kernel_is_refused(context: &Context) -> Verdict {
    unsafe extern "C" fn another(_: *const std::ffi::c_void, _: u32, _: i64) -> i32 {
        Code::INTERNAL.0
    }
    let bench = Bench::new(context)?;
    let (queue, total) = (bench.queue()?, counter());
    let (Some(one), Some(two)) = (bench.host_kernel(0, count)?, bench.host_kernel(0, another)?)
    else {
        return Err(Failure::new("the driver takes host kernels"));
    };
    let recorded = |kernel| {
        begin(&queue)?;
        // SAFETY: what the first kernel expects; the second takes anything.
        unsafe { queue.launch(kernel, &arguments(total, 1), 0, c"kernel") }?;
        end(&queue)
    };
    let (graph, other) = (recorded(&one)?, recorded(&two)?);
    answers!(
        graph.update(&other),
        Code::INVALID_ARGUMENT,
        "an update with another kernel"
    );
    launch(&queue, &graph)?;
    queue.synchronize()?;
    equal!(total.load(Ordering::SeqCst), 1, "what the kernel added");
    bench.finish()
}

fn a_thousand_times(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(64)?);
    let graphs = [
        filling(bench.driver(), at, 1)?,
        filling(bench.driver(), at, 2)?,
    ];
    let graph = filling(bench.driver(), at, 0)?;
    for i in 0..1000 {
        graph.update(&graphs[i % 2])?;
        launch(&queue, &graph)?;
    }
    holds(&queue, at, 64, 2, "the last update")?;
    bench.finish()
}
