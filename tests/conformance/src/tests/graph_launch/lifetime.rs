//! R36: graphs that are destroyed, and the entries of the group with NULL.

use super::*;

tests! { "graph.lifetime":
    /// A graph is destroyed while its launch is to come, which still runs.
    a_destroyed_graph_still_runs: R36, needs Graphs;
    /// A graph lives on when the queue that recorded it is destroyed.
    a_graph_outlives_its_queue: R10 R36, needs Graphs;
    /// Hundreds of graphs are live at a time.
    hundreds_are_live: R10, needs Graphs;
    /// `close` answers as ever once all graphs are destroyed.
    a_driver_closes_after_graphs: R10 R12 R36, needs Graphs;
    /// Entries of the group refuse NULL.
    null_is_refused: R4 R7, needs Graphs;
}

fn a_destroyed_graph_still_runs(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate, at, log) = (
        bench.queue()?,
        Gate::new(),
        bench.memory(64)?,
        Log::default(),
    );
    write(&queue, at, &[0; 64])?;
    begin(&queue)?;
    fill(&queue, at, 64, &[1])?;
    keep_note(&queue, &log, 1)?;
    let graph = end(&queue)?;
    block(&queue, &gate)?;
    launch(&queue, &graph)?;
    launch(&queue, &graph)?;
    drop(graph);
    equal!(log.values().len(), 0, "calls behind a closed gate");
    gate.open();
    holds(&queue, at, 64, 1, "what the destroyed graph fills")?;
    equal!(log.values(), [1, 1], "calls");
    bench.finish()
}

fn a_graph_outlives_its_queue(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let at = bench.memory(64)?;
    // The queue of the graph is gone when `filling` returns.
    let graph = filling(bench.driver(), at, 5)?;
    let queue = bench.queue()?;
    fill(&queue, at, 64, &[0])?;
    launch(&queue, &graph)?;
    holds(&queue, at, 64, 5, "what it fills")?;
    drop(graph);
    bench.finish()
}

fn hundreds_are_live(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(64 * 300)?);
    let graphs: Vec<_> = (0..300u64)
        .map(|i| filling(bench.driver(), at + 64 * i, i as u8))
        .collect::<Verdict<_>>()?;
    for graph in graphs.iter().rev() {
        launch(&queue, graph)?;
    }
    let expected: Vec<u8> = (0..300u64).flat_map(|i| [i as u8; 64]).collect();
    equal!(
        read(&queue, at, expected.len())?,
        expected,
        "what 300 graphs fill"
    );
    drop(graphs);
    bench.finish()
}

fn a_driver_closes_after_graphs(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = Bare::open(context, &raw)?;
    // SAFETY: the group is there, and as large as the loader has found.
    let group = unsafe { &*raw.api().graph };
    let queue = bare.queue()?;
    for _ in 0..10 {
        let mut graph = null_mut();
        raw.takes(call!(group, record_begin, queue), "record_begin")?;
        raw.takes(call!(group, record_end, queue, &mut graph), "record_end")?;
        raw.takes(call!(group, launch, queue, graph), "launch")?;
        raw.takes(call!(group, destroy, graph), "destroy")?;
    }
    raw.synchronize(queue)?;
    raw.destroy(queue, null_mut())?;
    bare.close("close, after ten graphs")
}

fn null_is_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    // SAFETY: the group is there, and as large as the loader has found.
    let group: &sys::otr_graph_api = unsafe { &*raw.api().graph };
    let queue = raw.queue()?;
    let mut graph = std::ptr::without_provenance_mut(0x5a5a);
    raw.refuses(
        call!(group, record_begin, null_mut()),
        Code::INVALID_HANDLE,
        "record_begin of NULL",
    )?;
    raw.refuses(
        call!(group, record_end, null_mut(), &mut graph),
        Code::INVALID_HANDLE,
        "record_end of NULL",
    )?;
    check!(graph.addr() == 0x5a5a, "R4: nothing was written");
    raw.takes(call!(group, record_begin, queue), "record_begin")?;
    raw.refuses(
        call!(group, record_end, queue, null_mut()),
        Code::INVALID_ARGUMENT,
        "record_end without a place for the graph",
    )?;
    raw.takes(
        call!(group, record_end, queue, &mut graph),
        "record_end: the recording goes on (R4)",
    )?;
    raw.refuses(
        call!(group, launch, null_mut(), graph),
        Code::INVALID_HANDLE,
        "launch on NULL",
    )?;
    raw.refuses(
        call!(group, launch, queue, null_mut()),
        Code::INVALID_HANDLE,
        "launch of NULL",
    )?;
    if let Some(update) = group.update {
        // SAFETY: NULL, which is refused (R7), and a live graph.
        let answer = unsafe { update(null_mut(), graph) };
        raw.refuses(answer, Code::INVALID_HANDLE, "update of NULL")?;
        // SAFETY: as above.
        let answer = unsafe { update(graph, null_mut()) };
        raw.refuses(answer, Code::INVALID_HANDLE, "update from NULL")?;
    }
    if context.has(raw.driver(), Need::GraphUpdatePart) {
        // SAFETY: the group reaches as far as this entry.
        let update = unsafe { (&raw const (*raw.api().graph).update_part).read() };
        let Some(update) = update else {
            return Err(Failure::new("the entry `update_part` has vanished"));
        };
        // SAFETY: NULL, which is refused (R7), and a live graph.
        let answer = unsafe { update(null_mut(), 0, graph) };
        raw.refuses(answer, Code::INVALID_HANDLE, "update_part of NULL")?;
        // SAFETY: as above.
        let answer = unsafe { update(graph, 0, null_mut()) };
        raw.refuses(answer, Code::INVALID_HANDLE, "update_part from NULL")?;
    }
    raw.refuses(
        call!(group, destroy, null_mut()),
        Code::INVALID_HANDLE,
        "destroy of NULL",
    )?;
    answers!(raw.query(queue)?, Code::OK, "queue_query afterwards");
    raw.takes(call!(group, destroy, graph), "destroy")?;
    raw.destroy(queue, null_mut())
}
