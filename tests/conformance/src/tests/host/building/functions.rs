//! Host functions of streams and graphs: they are called in order, and their data is given back.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use super::super::work::hold;
use super::*;
use crate::tests::kit::until;
use crate::{Gate, Need};

tests! { "host-abi.host_function":
    /// A host function runs once in the order of its stream, and its data is given back.
    of_a_stream: H11 H16 H18 H19, needs HostReach;
    /// A host function of a graph runs at each replay; its data is given back with the graph, once.
    of_a_graph: H11 H13 H16 H19, needs HostReach;
    /// A host function that names memory runs where host functions reach it and is refused elsewhere; one that names
    /// none runs everywhere.
    without_reach: H2 H11 H29, absent HostReach;
    /// The objects that a replay under way uses outlive all handles, and are given back in the end.
    what_a_replay_uses: H13 H23 H27 H28;
    /// A graph whose replays fail is given back as any other.
    of_a_graph_that_fails: H13 H19;
    /// Graphs within themselves and within each other end when their last handle does.
    of_graphs_within_graphs: H13 H27;
    /// Memory that a host function names cannot be bound, wherever the function stands.
    bound_memory: H2 H28, needs HostReach;
    /// The data of a call that fails is not given back.
    refused_ones: H2 H11;
}

/// A host function with a script. It is never freed.
#[derive(Default)]
struct Script {
    calls: AtomicU64,
    /// Calls that were told of a failure before.
    told: AtomicU64,
    destroyed: AtomicU64,
    outcome: AtomicI32,
    /// The address of 64 bytes that each call writes, or 0.
    address: AtomicU64,
}

impl Script {
    fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    fn node(&'static self) -> otr_host_node_t {
        let user = std::ptr::from_ref(self).cast_mut().cast();
        otr_host_node_t {
            destroy: Some(destroy),
            ..host_node(user)
        }
    }

    /// Calls, calls that were told of a failure, and how often its data was given back.
    fn counts(&self) -> (u64, u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
        (of(&self.calls), of(&self.told), of(&self.destroyed))
    }
}

/// A host function of a [`Script`], or one that must not be called where `user` is NULL.
pub(in crate::tests::host) fn host_node(user: *mut c_void) -> otr_host_node_t {
    otr_host_node_t {
        struct_size: size_of::<otr_host_node_t>(),
        next: null(),
        function: Some(run),
        user,
        destroy: None,
        label: null(),
        reads: null(),
        writes: null(),
        read_count: 0,
        write_count: 0,
        cost_ns: 0,
        reserved: 0,
    }
}

unsafe extern "C" fn run(user: *mut c_void, bias: i64, upstream: i32) -> i32 {
    assert!(!user.is_null(), "a function that was refused is called");
    // SAFETY: not NULL, and then a script, which is never freed.
    let script = unsafe { &*user.cast::<Script>() };
    script.calls.fetch_add(1, Ordering::SeqCst);
    if upstream != 0 {
        script.told.fetch_add(1, Ordering::SeqCst);
        return upstream;
    }
    let address = script.address.load(Ordering::SeqCst);
    if address != 0 {
        let bytes = address.wrapping_add_signed(bias) as *mut u8;
        // SAFETY: 64 bytes of the device, which `bias` makes bytes of the host.
        unsafe { bytes.write_bytes(0x42, 64) };
    }
    script.outcome.load(Ordering::SeqCst)
}

unsafe extern "C" fn destroy(user: *mut c_void) {
    // SAFETY: a script, which is never freed.
    let script = unsafe { &*user.cast::<Script>() };
    script.destroyed.fetch_add(1, Ordering::SeqCst);
}

fn of_a_stream(context: &Context) -> Verdict {
    start(context)?;
    let (stream, script) = (stream()?, Script::new());
    let address = alloc(64, stream)?;
    script.address.store(address, Ordering::SeqCst);
    let node = script.node();
    fill(stream, address, 64, &[1])?;
    otr!(host_node, stream, &node)?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [0x42; 64],
        "what the function has written"
    );
    equal!(script.counts(), (1, 0, 1), "calls, told, given back");
    script.outcome.store(Code::OUT_OF_RANGE.0, Ordering::SeqCst);
    otr!(host_node, stream, &node)?;
    otr!(host_node, stream, &node)?;
    refused(
        otr!(stream_synchronize, stream),
        Code::OUT_OF_RANGE,
        "the stream of a function that failed",
    )?;
    equal!(
        script.counts(),
        (3, 1, 3),
        "calls, told of the failure, given back"
    );
    Ok(otr!(stream_synchronize, stream)?)
}

fn without_reach(context: &Context) -> Verdict {
    let reaches = context.has(&context.open()?, Need::HostReach);
    start(context)?;
    let (stream, script) = (stream()?, Script::new());
    let address = [alloc(64, stream)?];
    let naming = otr_host_node_t {
        writes: address.as_ptr(),
        write_count: 1,
        ..script.node()
    };
    let named = otr!(host_node, stream, &naming);
    if reaches {
        named?;
    } else {
        refused(named, Code::UNSUPPORTED, "a function that names memory")?;
    }
    otr!(host_node, stream, &script.node())?;
    otr!(stream_synchronize, stream)?;
    let runs = 1 + u64::from(reaches);
    equal!(script.counts(), (runs, 0, runs), "calls, told, given back");
    Ok(())
}

/// A graph made executable; `None` where the driver's graphs have no host functions.
fn replayable(graph: u64, way: u32) -> Verdict<Option<u64>> {
    match tried(|out| otr!(graph_instantiate, graph, way, out)) {
        Err(refused) if way == OTR_GRAPH_NATIVE && refused.code == Code::UNSUPPORTED => Ok(None),
        outcome => Ok(Some(outcome?)),
    }
}

/// Waits until what has ended was given back, which is looked for when memory is.
fn until_given_back(scripts: &[(&Script, u64)], before: u64) -> Verdict {
    until(|| {
        let held = held()?;
        let all = scripts
            .iter()
            .all(|(script, times)| script.counts().2 == *times);
        Ok(all && held == before)
    })
}

fn of_a_graph(context: &Context) -> Verdict {
    start(context)?;
    for way in ways(context)? {
        let before = held()?;
        let (stream, built) = (stream()?, graph()?);
        let address = alloc(64, stream)?;
        let (script, captured) = (Script::new(), Script::new());
        script.address.store(address, Ordering::SeqCst);
        let writes = [address];
        let node = otr_host_node_t {
            label: c"my host function".as_ptr(),
            writes: writes.as_ptr(),
            write_count: 1,
            ..script.node()
        };
        let first = add_fill(built, &[], address, 1)?;
        let second = add_host(built, &[first], &node)?;
        add_host(built, &[second], &node)?;
        begin(stream)?;
        otr!(host_node, stream, &captured.node())?;
        let graph = end(stream)?;
        let (Some(exec), Some(other)) = (replayable(built, way)?, replayable(graph, way)?) else {
            context.note("graphs of the driver have no host functions");
            continue;
        };
        otr!(graph_destroy, built)?;
        otr!(graph_destroy, graph)?;
        equal!(
            (script.counts(), captured.counts()),
            ((0, 0, 0), (0, 0, 0)),
            "calls, told, given back before a replay"
        );
        for round in 1..=3 {
            replay(exec, stream)?;
            replay(other, stream)?;
            equal!(
                download::<u8>(stream, address, 64)?,
                [0x42; 64],
                "what the function has written"
            );
            equal!(
                (script.counts(), captured.counts()),
                ((2 * round, 0, 0), (round, 0, 0)),
                "calls, told, given back after {round} replays by flags {way:#x}"
            );
        }
        script.outcome.store(Code::OUT_OF_RANGE.0, Ordering::SeqCst);
        replay(exec, stream)?;
        refused(
            otr!(stream_synchronize, stream),
            Code::OUT_OF_RANGE,
            "the stream of a replay that failed",
        )?;
        equal!(
            script.counts(),
            (8, 1, 0),
            "calls, told of the failure, given back"
        );
        script.outcome.store(0, Ordering::SeqCst);
        replay(exec, stream)?;
        otr!(graph_exec_destroy, exec)?;
        otr!(graph_exec_destroy, other)?;
        otr!(stream_synchronize, stream)?;
        otr!(memory_free, 0, address)?;
        until_given_back(&[(script, 2), (captured, 1)], before)?;
        equal!(
            (script.counts(), captured.counts()),
            ((10, 1, 2), (3, 0, 1)),
            "calls, told, given back with the graphs"
        );
    }
    Ok(())
}

fn what_a_replay_uses(context: &Context) -> Verdict {
    start(context)?;
    for way in ways(context)? {
        let before = held()?;
        let (stream, other, script) = (stream()?, stream()?, Script::new());
        let (x, y) = (alloc(64, stream)?, alloc(64, stream)?);
        fill(stream, x, 64, &[3])?;
        let pool = made(|out| otr!(pool_create, 0, out))?;
        otr!(capture_begin, stream, OTR_CAPTURE_GLOBAL, pool)?;
        let inner = alloc(64, stream)?;
        copy(stream, inner, x)?;
        otr!(host_node, stream, &script.node())?;
        copy(stream, y, inner)?;
        otr!(memory_free, 0, inner)?;
        let graph = end(stream)?;
        let Some(exec) = replayable(graph, way)? else {
            continue;
        };
        let gate = Gate::new();
        hold(stream, &gate)?;
        replay(exec, stream)?;
        otr!(graph_exec_destroy, exec)?;
        otr!(graph_destroy, graph)?;
        otr!(pool_destroy, pool)?;
        otr!(memory_free, 0, x)?;
        otr!(memory_empty_cache, 0)?;
        // Nobody else gets the memory.
        let others: Vec<u64> = (0..32).map(|_| alloc(64, other)).collect::<Verdict<_>>()?;
        for &address in &others {
            fill(other, address, 64, &[0xee])?;
        }
        otr!(stream_synchronize, other)?;
        equal!(script.counts(), (0, 0, 0), "calls, told, given back");
        gate.open();
        equal!(
            download::<u8>(stream, y, 64)?,
            [3; 64],
            "what a replay by flags {way:#x} has copied"
        );
        for address in others.into_iter().chain([y]) {
            otr!(memory_free, 0, address)?;
        }
        until_given_back(&[(script, 1)], before)?;
        equal!(script.counts(), (1, 0, 1), "calls, told, given back");
    }
    Ok(())
}

fn of_a_graph_that_fails(context: &Context) -> Verdict {
    start(context)?;
    for way in ways(context)? {
        let before = held()?;
        let (stream, script) = (stream()?, Script::new());
        script.outcome.store(Code::OUT_OF_RANGE.0, Ordering::SeqCst);
        let address = alloc(64, stream)?;
        begin(stream)?;
        otr!(host_node, stream, &script.node())?;
        fill(stream, address, 64, &[1])?;
        let graph = end(stream)?;
        let Some(exec) = replayable(graph, way)? else {
            continue;
        };
        replay(exec, stream)?;
        replay(exec, stream)?;
        otr!(graph_exec_destroy, exec)?;
        otr!(graph_destroy, graph)?;
        otr!(memory_free, 0, address)?;
        refused(
            otr!(stream_synchronize, stream),
            Code::OUT_OF_RANGE,
            "the stream of the replays",
        )?;
        until_given_back(&[(script, 1)], before)?;
    }
    Ok(())
}

fn of_graphs_within_graphs(context: &Context) -> Verdict {
    start(context)?;
    let (stream, script) = (stream()?, Script::new());
    let (a, b) = (graph()?, graph()?);
    let before = held()?;
    add_alloc(a, &[])?;
    let first = add_host(a, &[], &script.node())?;
    add_child(a, &[first], a)?;
    add_child(b, &[], a)?;
    add_child(a, &[], b)?;
    let exec = executable(a)?;
    otr!(graph_destroy, a)?;
    otr!(graph_destroy, b)?;
    replay(exec, stream)?;
    otr!(stream_synchronize, stream)?;
    equal!(
        script.counts(),
        (4, 0, 0),
        "calls: two of its own, two of the other's; told, given back"
    );
    otr!(graph_exec_destroy, exec)?;
    until_given_back(&[(script, 1)], before)
}

fn bound_memory(context: &Context) -> Verdict {
    start(context)?;
    let (stream, script) = (stream()?, Script::new());
    let before = held()?;
    let address = alloc(64, stream)?;
    let writes = [address];
    let node = otr_host_node_t {
        label: c"my host function".as_ptr(),
        writes: writes.as_ptr(),
        write_count: 1,
        ..script.node()
    };
    let (body, outer) = (graph()?, graph()?);
    add_host(body, &[], &node)?;
    made(|out: *mut u32| {
        otr!(
            graph_add_conditional,
            outer,
            null(),
            0,
            OTR_GRAPH_IF,
            address,
            DType::I64.0,
            &body,
            1,
            out
        )
    })?;
    for graph in [body, outer] {
        otr!(graph_name_buffer, graph, c"x".as_ptr(), address, 64)?;
        let told = refused(
            otr!(graph_instantiate, graph, 0, &mut 0),
            Code::UNSUPPORTED,
            "a name for memory of a host function",
        )?;
        for part in ["'x' cannot be bound", "my host function"] {
            check!(told.text.contains(part), "H3: {part} in {}", told.text);
        }
        otr!(graph_destroy, graph)?;
    }
    otr!(memory_free, 0, address)?;
    until_given_back(&[(script, 1)], before)?;
    equal!(script.counts(), (0, 0, 1), "calls, told, given back");
    Ok(())
}

fn refused_ones(context: &Context) -> Verdict {
    start(context)?;
    let (stream, graph, script) = (stream()?, graph()?, Script::new());
    let nowhere = [64];
    let node = otr_host_node_t {
        reads: nowhere.as_ptr(),
        read_count: 1,
        ..script.node()
    };
    refused(
        add_host(graph, &[], &node),
        Code::INVALID_ARGUMENT,
        "a host function that reads what is no memory",
    )?;
    refused(
        add_host(graph, &[5], &script.node()),
        Code::INVALID_ARGUMENT,
        "a host function after a node that there is not",
    )?;
    let unread = otr_host_node_t {
        reads: null(),
        read_count: 1,
        ..script.node()
    };
    refused(
        otr!(host_node, stream, &unread),
        Code::INVALID_ARGUMENT,
        "a list of one address at NULL",
    )?;
    equal!(nodes(graph)?, 0, "nodes that were added");
    otr!(graph_destroy, graph)?;
    otr!(stream_synchronize, stream)?;
    otr!(memory_empty_cache, 0)?;
    equal!(script.counts(), (0, 0, 0), "calls, told, given back");
    Ok(())
}
