//! Host functions of streams and graphs: they are called in order, and their data is given back.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use super::*;
use crate::Need;
use crate::tests::kit::until;

tests! { "host-abi.host_function":
    /// A host function runs once in the order of its stream, and its data is given back.
    of_a_stream: H11 H16 H18 H19, needs HostReach;
    /// A host function of a graph runs at each replay; its data is given back with the graph, once.
    of_a_graph: H11 H13 H16 H19, needs HostReach;
    /// A host function that names memory runs where host functions reach it and is refused elsewhere; one that names
    /// none runs everywhere.
    without_reach: H2 H11 H29, absent HostReach;
    /// What a call that fails was given is not given back.
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
    /// Where 64 bytes are that each call writes, or 0.
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
    otr!(otr_host_node, stream, &node)?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [0x42; 64],
        "what the function has written"
    );
    equal!(script.counts(), (1, 0, 1), "calls, told, given back");
    script.outcome.store(Code::OUT_OF_RANGE.0, Ordering::SeqCst);
    otr!(otr_host_node, stream, &node)?;
    otr!(otr_host_node, stream, &node)?;
    refused(
        otr!(otr_stream_synchronize, stream),
        Code::OUT_OF_RANGE,
        "the stream of a function that failed",
    )?;
    equal!(
        script.counts(),
        (3, 1, 3),
        "calls, told of the failure, given back"
    );
    Ok(otr!(otr_stream_synchronize, stream)?)
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
    let named = otr!(otr_host_node, stream, &naming);
    if reaches {
        named?;
    } else {
        refused(named, Code::UNSUPPORTED, "a function that names memory")?;
    }
    otr!(otr_host_node, stream, &script.node())?;
    otr!(otr_stream_synchronize, stream)?;
    let runs = 1 + u64::from(reaches);
    equal!(script.counts(), (runs, 0, runs), "calls, told, given back");
    Ok(())
}

fn of_a_graph(context: &Context) -> Verdict {
    start(context)?;
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
    otr!(otr_capture_begin, stream, OTR_CAPTURE_GLOBAL, 0)?;
    otr!(otr_host_node, stream, &captured.node())?;
    let graph = made(|out| otr!(otr_capture_end, stream, out))?;
    let (exec, other) = (executable(built)?, executable(graph)?);
    otr!(otr_graph_destroy, built)?;
    otr!(otr_graph_destroy, graph)?;
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
            "calls, told, given back after {round} replays"
        );
    }
    script.outcome.store(Code::OUT_OF_RANGE.0, Ordering::SeqCst);
    replay(exec, stream)?;
    refused(
        otr!(otr_stream_synchronize, stream),
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
    otr!(otr_graph_exec_destroy, exec)?;
    otr!(otr_graph_exec_destroy, other)?;
    otr!(otr_stream_synchronize, stream)?;
    until(|| {
        // What has ended is looked for when memory is.
        otr!(otr_memory_empty_cache, 0)?;
        Ok(script.counts().2 == 2 && captured.counts().2 == 1)
    })?;
    equal!(
        (script.counts(), captured.counts()),
        ((10, 1, 2), (3, 0, 1)),
        "calls, told, given back with the graphs"
    );
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
        otr!(otr_host_node, stream, &unread),
        Code::INVALID_ARGUMENT,
        "a list of one address at NULL",
    )?;
    equal!(nodes(graph)?, 0, "nodes that were added");
    otr!(otr_graph_destroy, graph)?;
    otr!(otr_stream_synchronize, stream)?;
    otr!(otr_memory_empty_cache, 0)?;
    equal!(script.counts(), (0, 0, 0), "calls, told, given back");
    Ok(())
}
