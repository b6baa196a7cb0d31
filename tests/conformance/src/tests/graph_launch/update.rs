//! R35: updates of graphs and of parts of them, and those that are refused.

use outrigger_device::{NativeGraph, Queue};

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
    /// Each command is updated by itself, and the others stay as they are.
    each_part: R35, needs Graphs GraphUpdatePart;
    /// A kernel and a host call are updated by themselves.
    a_part_with_a_kernel: R35, needs Graphs GraphUpdatePart HostKernels;
    /// Commands are numbered in the order of their calls, on all queues of a recording; waits for events do
    /// not count, and fills of no bytes do.
    parts_of_two_queues: R32 R35, needs Graphs GraphUpdatePart;
    /// An update of a part is for later launches.
    a_part_is_for_later_launches: R35, needs Graphs GraphUpdatePart;
    /// A graph in which another one was recorded keeps what it had when that one is updated.
    a_part_leaves_copies: R31 R35, needs Graphs GraphUpdatePart;
    /// A part that does not fit is refused, and nothing changes.
    parts_that_do_not_fit: R4 R35, needs Graphs GraphUpdatePart;
    /// A model and a graph with 60 commands agree after a thousand random updates of parts.
    random_parts: R35, needs Graphs GraphUpdatePart;
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
    drop((graph, other));
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
    drop(graph);
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
    drop((graph, other));
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
    drop(graph);
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
    drop(graph);
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
    drop(graph);
    bench.finish()
}

fn from_itself(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(64)?);
    let graph = filling(bench.driver(), at, 6)?;
    graph.update(&graph)?;
    launch(&queue, &graph)?;
    holds(&queue, at, 64, 6, "what the graph fills")?;
    drop(graph);
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
    drop((graph, other));
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
    drop((graph, other));
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
    drop((graphs, graph));
    bench.finish()
}

/// Records fills of 64 bytes: where, counted in pieces of 64 bytes, and with what.
fn fills(queue: &Queue, at: u64, pieces: &[(u64, u8)]) -> Verdict<NativeGraph> {
    begin(queue)?;
    for (piece, value) in pieces {
        fill(queue, at + 64 * piece, 64, &[*value])?;
    }
    end(queue)
}

fn each_part(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(6 * 64)?);
    let log = Log::default();
    begin(&queue)?;
    fill(&queue, at, 64, &[1])?;
    within(&queue, at + 64, at, 64)?;
    keep_note(&queue, &log, 5)?;
    fill(&queue, at + 128, 64, &[2, 3])?;
    let graph = end(&queue)?;
    let changed = |first: u32, record: &dyn Fn() -> Verdict| {
        begin(&queue)?;
        record()?;
        graph.update_part(first, &end(&queue)?)?;
        fill(&queue, at, 6 * 64, &[0])?;
        launch(&queue, &graph)?;
        let found = read(&queue, at, 6 * 64)?;
        let ends = found.chunks(64).map(|piece| (piece[0], piece[63]));
        Ok::<_, Failure>(ends.collect::<Vec<_>>())
    };
    let zero = (0, 0);
    let last = changed(3, &|| fill(&queue, at + 5 * 64, 64, &[4, 5]))?;
    equal!(
        last,
        [(1, 1), (1, 1), zero, zero, zero, (4, 5)],
        "the last fill"
    );
    let second = changed(1, &|| within(&queue, at + 4 * 64, at, 64))?;
    equal!(
        second,
        [(1, 1), zero, zero, zero, (1, 1), (4, 5)],
        "the copy"
    );
    let third = changed(2, &|| keep_note(&queue, &log, 6))?;
    equal!(third, second, "the host call");
    let first = changed(0, &|| fill(&queue, at, 64, &[9]))?;
    equal!(
        first,
        [(9, 9), zero, zero, zero, (9, 9), (4, 5)],
        "the first fill"
    );
    let two = changed(2, &|| {
        keep_note(&queue, &log, 7)?;
        fill(&queue, at + 2 * 64, 64, &[8])
    })?;
    equal!(
        two,
        [(9, 9), zero, (8, 8), zero, (9, 9), zero],
        "two commands"
    );
    equal!(
        changed(4, &|| Ok(()))?,
        two,
        "no command, behind the last one"
    );
    equal!(log.values(), [5, 5, 6, 6, 7, 7], "host calls");
    drop(graph);
    bench.finish()
}

fn a_part_with_a_kernel(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, totals, log) = (bench.queue()?, [counter(), counter()], Log::default());
    let Some(kernel) = bench.host_kernel(0, count)? else {
        return Err(Failure::new("the driver takes host kernels"));
    };
    let add = |total, step| {
        // SAFETY: what the kernel expects.
        unsafe { queue.launch(&kernel, &arguments(total, step), 0, c"count") }?;
        Ok::<_, Failure>(())
    };
    begin(&queue)?;
    add(totals[0], 1)?;
    keep_note(&queue, &log, 1)?;
    add(totals[0], 10)?;
    let graph = end(&queue)?;
    launch(&queue, &graph)?;
    begin(&queue)?;
    keep_note(&queue, &log, 2)?;
    add(totals[1], 100)?;
    graph.update_part(1, &end(&queue)?)?;
    launch(&queue, &graph)?;
    queue.synchronize()?;
    equal!(
        totals.map(|t| t.load(Ordering::SeqCst)),
        [12, 100],
        "what the kernels added"
    );
    equal!(log.values(), [1, 2], "host calls");
    drop(graph);
    bench.finish()
}

fn parts_of_two_queues(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, other, at) = (bench.queue()?, bench.queue()?, bench.memory(6 * 64)?);
    let (forked, joined) = (bench.event()?, bench.event()?);
    begin(&queue)?;
    fill(&queue, at, 64, &[1])?;
    forked.record(&queue)?;
    other.wait_event(&forked)?;
    fill(&other, at + 64, 64, &[2])?;
    fill(&queue, at + 128, 0, &[7])?;
    fill(&queue, at + 128, 64, &[3])?;
    joined.record(&other)?;
    queue.wait_event(&joined)?;
    fill(&queue, at + 192, 64, &[4])?;
    let graph = end(&queue)?;
    for (number, value) in [(0, 11), (1, 12), (3, 13), (4, 14)] {
        let piece = u64::from(number) - u64::from(number > 1);
        graph.update_part(number, &fills(&queue, at, &[(piece, value)])?)?;
    }
    fill(&queue, at, 6 * 64, &[0])?;
    launch(&queue, &graph)?;
    let expected: Vec<u8> = [11, 12, 13, 14, 0, 0]
        .into_iter()
        .flat_map(|value| [value; 64])
        .collect();
    equal!(read(&queue, at, 6 * 64)?, expected, "all four fills");
    drop(graph);
    bench.finish()
}

fn a_part_is_for_later_launches(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate, at) = (bench.queue()?, Gate::new(), bench.memory(256)?);
    let graph = fills(&queue, at, &[(0, 1), (1, 2)])?;
    let other = fills(&queue, at, &[(2, 3)])?;
    write(&queue, at, &[0; 256])?;
    block(&queue, &gate)?;
    launch(&queue, &graph)?;
    graph.update_part(1, &other)?;
    drop(other);
    launch(&queue, &graph)?;
    graph.update_part(0, &fills(&bench.queue()?, at, &[(3, 4)])?)?;
    drop(graph);
    gate.open();
    equal!(
        read(&queue, at, 256)?,
        [[1; 64], [2; 64], [3; 64], [0; 64]].concat(),
        "the launches before and behind the first update, and none behind the second"
    );
    bench.finish()
}

fn a_part_leaves_copies(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(256)?);
    let graph = fills(&queue, at, &[(0, 1), (1, 2)])?;
    begin(&queue)?;
    launch(&queue, &graph)?;
    fill(&queue, at + 192, 64, &[9])?;
    let outer = end(&queue)?;
    let part = fills(&queue, at, &[(2, 3)])?;
    graph.update_part(0, &part)?;
    graph.update_part(1, &fills(&queue, at, &[(0, 6)])?)?;
    fill(&queue, at, 256, &[0])?;
    launch(&queue, &part)?;
    launch(&queue, &outer)?;
    equal!(
        read(&queue, at, 256)?,
        [[1; 64], [2; 64], [3; 64], [9; 64]].concat(),
        "what the outer graph and the other one fill"
    );
    fill(&queue, at, 256, &[0])?;
    // The launch is one command of the outer graph.
    outer.update_part(1, &fills(&queue, at, &[(3, 8)])?)?;
    launch(&queue, &graph)?;
    let own = read(&queue, at, 256)?;
    equal!(
        own,
        [[6; 64], [0; 64], [3; 64], [0; 64]].concat(),
        "what the updated graph fills"
    );
    launch(&queue, &outer)?;
    equal!(
        read(&queue, at, 256)?,
        [[1; 64], [2; 64], [3; 64], [8; 64]].concat(),
        "what the updated outer graph fills"
    );
    drop((graph, part, outer));
    bench.finish()
}

fn parts_that_do_not_fit(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(192)?);
    begin(&queue)?;
    fill(&queue, at, 64, &[1])?;
    fill(&queue, at + 64, 64, &[1])?;
    within(&queue, at + 128, at, 64)?;
    let graph = end(&queue)?;
    begin(&queue)?;
    fill(&queue, at, 64, &[2])?;
    within(&queue, at + 128, at + 64, 64)?;
    let mixed = end(&queue)?;
    let one = fills(&queue, at, &[(0, 3)])?;
    let two = fills(&queue, at, &[(0, 3), (1, 3)])?;
    for (what, first, other) in [
        ("a fill for a copy", 2, &one),
        ("a copy for a fill behind one that fits", 0, &mixed),
        ("more commands than are left", 2, &two),
        ("a command behind the last one", 3, &one),
        ("a command far behind the last one", u32::MAX, &one),
    ] {
        let answer = graph.update_part(first, other);
        answers!(answer, Code::INVALID_ARGUMENT, "{what}");
        check!(
            answer.is_err_and(|e| !e.message().is_empty()),
            "R5: {what} has a text"
        );
        fill(&queue, at, 192, &[0])?;
        launch(&queue, &graph)?;
        holds(&queue, at, 192, 1, "the graph is what it was")?;
    }
    drop(graph);
    bench.finish()
}

fn random_parts(context: &Context) -> Verdict {
    const COMMANDS: u64 = 60;
    let bench = Bench::new(context)?;
    let (queue, size) = (bench.queue()?, COMMANDS * 64);
    let at = bench.memory(size)?;
    // The place that each command fills, and the byte that it fills with.
    let mut model: Vec<(u64, u8)> = (0..COMMANDS).map(|i| (i, 1)).collect();
    let graph = fills(&queue, at, &model)?;
    let mut state = 0x9e37_79b9_u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for round in 0..1000 {
        let first = random(COMMANDS);
        let count = 1 + random((COMMANDS - first).min(5));
        let new: Vec<_> = (0..count)
            .map(|_| (random(COMMANDS), random(256) as u8))
            .collect();
        graph.update_part(first as u32, &fills(&queue, at, &new)?)?;
        model[first as usize..][..new.len()].copy_from_slice(&new);
        launch(&queue, &graph)?;
        if round % 50 == 49 {
            fill(&queue, at, size, &[0])?;
            launch(&queue, &graph)?;
            let mut expected = vec![0; size as usize];
            for (piece, value) in &model {
                expected[64 * *piece as usize..][..64].fill(*value);
            }
            equal!(read(&queue, at, size as usize)?, expected, "round {round}");
        }
    }
    drop(graph);
    bench.finish()
}
