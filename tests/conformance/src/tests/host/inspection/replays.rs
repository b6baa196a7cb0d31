//! Executable graphs: their figures, the numbers that replays may change, and replays that are timed
//! and checked.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_device::sys::otr_scalar_t;

use super::*;
use crate::tests::kit::{threads, until};

tests! { "host-abi.replay":
    /// An executable graph tells its nodes and replays, and how it runs.
    executable_graphs: H8 H9 H28;
    /// A number of an operator is bound by its name for later replays.
    numbers_are_bound: H2 H28, needs HostReach OwnOperators;
    /// Memory that does not fit a named buffer is not bound, and replays are as before.
    wrong_bindings: H2 H22 H28;
    /// A graph of another shape or with other names is not taken over, and replays are as before.
    wrong_updates: H2 H28;
    /// Names are of a buffer or a number, and once each.
    wrong_names: H2 H22 H28, needs HostReach OwnOperators;
    /// A profile tells each node, and the comparison with single nodes leaves memory as it was.
    profiles_and_costs: H11, needs HostReach OwnOperators;
    /// A check passes where replays do what the nodes do one by one, and is a replay.
    checks: H18, needs OwnOperators;
    /// A check, a cost and a profile belong to no capture, also to none that another thread begins on their stream.
    inspected_beside_a_capture: H14 H26, needs HostReach;
    /// A profile and a check of nodes that only the driver can run are refused, or are a replay of all nodes.
    operators_of_the_driver: H3 H11 H18, needs Operators;
}

fn exec_info(exec: u64) -> Verdict<otr_graph_exec_info_t> {
    filled(|out| otr!(graph_exec_info, exec, out))
}

fn executable_graphs(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    begin(stream)?;
    fill(stream, address, 64, &[6])?;
    let inner = alloc(5000, stream)?;
    fill(stream, inner, 5000, &[7])?;
    otr!(memory_free, 0, inner)?;
    let graph = end(stream)?;
    let native = context.has(&context.open()?, Need::Graphs);
    let modes = [
        OTR_GRAPH_MODE_LAUNCH,
        OTR_GRAPH_MODE_SUBMIT,
        OTR_GRAPH_MODE_NATIVE,
    ];
    let cases = [
        (0, &modes[..]),
        (OTR_GRAPH_SERIAL, &modes[..]),
        (OTR_GRAPH_SUBMIT, &modes[1..2]),
        (OTR_GRAPH_SERIAL | OTR_GRAPH_SUBMIT, &modes[1..2]),
        (OTR_GRAPH_NATIVE, &modes[2..]),
    ];
    for (flags, modes) in cases {
        if flags == OTR_GRAPH_NATIVE && !native {
            refused(
                otr!(graph_instantiate, graph, flags, &mut 0),
                Code::UNSUPPORTED,
                "a graph of a driver that has none of its own",
            )?;
            continue;
        }
        let exec = instantiate(graph, flags)?;
        let new = exec_info(exec)?;
        equal!(
            (new.replays, new.nodes + new.dropped, new.reserved),
            (0, 2, 0),
            "replays, nodes that run or were dropped, and the rest"
        );
        check!(
            new.nodes >= 1 && new.levels >= 1 && new.parallel_levels <= new.levels,
            "{} nodes in {} parts, {} of them parallel",
            new.nodes,
            new.levels,
            new.parallel_levels
        );
        check!(
            modes.contains(&new.mode),
            "mode {} by flags {flags:#x}",
            new.mode
        );
        check!(
            new.memory_bytes >= 5000,
            "its pool holds {} bytes",
            new.memory_bytes
        );
        fill(stream, address, 64, &[0])?;
        for _ in 0..3 {
            otr!(graph_replay, exec, stream)?;
        }
        equal!(exec_info(exec)?.replays, 3, "replays");
        equal!(
            download::<u8>(stream, address, 64)?,
            [6; 64],
            "what replays write by flags {flags:#x}"
        );
        otr!(graph_exec_destroy, exec)?;
    }
    for (what, flags) in [
        ("an unknown flag", OTR_GRAPH_SUBMIT | 8),
        (
            "node by node, and by the driver",
            OTR_GRAPH_SUBMIT | OTR_GRAPH_NATIVE,
        ),
    ] {
        let answer = otr!(graph_instantiate, graph, flags, &mut 0);
        if native || flags & 8 != 0 {
            refused(answer, Code::INVALID_ARGUMENT, what)?;
        } else {
            check!(answer.is_err(), "{what}");
        }
    }
    Ok(())
}

/// An executable graph of y = x + 2 x, whose operand is "x" and whose number is "alpha".
fn named(stream: u64, (x, y): (u64, u64)) -> Verdict<(u64, u64)> {
    begin(stream)?;
    add(stream, (y, x, x), 16, 2)?;
    let graph = end(stream)?;
    otr!(graph_name_buffer, graph, c"x".as_ptr(), x, 64)?;
    otr!(graph_name_scalar, graph, c"alpha".as_ptr(), 0, 0)?;
    Ok((graph, executable(graph)?))
}

fn slot(exec: u64, name: &std::ffi::CStr) -> Verdict<u32> {
    made(|out| otr!(graph_slot, exec, name.as_ptr(), out))
}

fn numbers_are_bound(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (x, y, other) = (alloc(64, stream)?, alloc(64, stream)?, alloc(64, stream)?);
    upload(stream, x, &[1f32; 16])?;
    upload(stream, other, &[10f32; 16])?;
    let (_, exec) = named(stream, (x, y))?;
    let (alpha, operand) = (slot(exec, c"alpha")?, slot(exec, c"x")?);
    let replayed = |expected: f32, what: &str| {
        otr!(graph_replay, exec, stream)?;
        equal!(download::<f32>(stream, y, 16)?, [expected; 16], "{what}");
        Verdict::Ok(())
    };
    replayed(3.0, "with the number that was recorded")?;
    otr!(graph_replay, exec, stream)?;
    otr!(graph_bind_scalar, exec, alpha, &scalar(DType::F64, 5))?;
    equal!(
        download::<f32>(stream, y, 16)?,
        [3.0; 16],
        "a replay that was submitted keeps its number"
    );
    replayed(6.0, "with another number")?;
    otr!(graph_bind, exec, operand, other)?;
    otr!(memory_free, 0, other)?;
    replayed(60.0, "with another operand, which the graph holds")?;
    for wrong in [operand, alpha + operand + 1, u32::MAX] {
        refused(
            otr!(graph_bind_scalar, exec, wrong, &scalar(DType::F64, 9)),
            Code::NOT_FOUND,
            "a slot that is of no number",
        )?;
        if wrong != operand {
            refused(
                otr!(graph_bind, exec, wrong, x),
                Code::NOT_FOUND,
                "a slot that is of no buffer",
            )?;
        }
    }
    let number = otr_scalar_t {
        dtype: DType::F32.0,
        ..scalar(DType::F64, 1)
    };
    refused(
        otr!(graph_bind_scalar, exec, alpha, &number),
        Code::INVALID_ARGUMENT,
        "a number that is neither f64 nor i64",
    )?;
    let mut large = scalar(DType::F64, 0);
    large.value.f64_ = 1e39;
    refused(
        otr!(graph_bind_scalar, exec, alpha, &large),
        Code::INVALID_ARGUMENT,
        "a number that f32 cannot hold",
    )?;
    refused(
        otr!(graph_bind, exec, operand, y + (1 << 40)),
        Code::INVALID_ARGUMENT,
        "beyond the end",
    )?;
    replayed(60.0, "after refused bindings")?;
    otr!(graph_bind, exec, operand, 0)?;
    replayed(6.0, "with the recorded operand again")
}

fn wrong_bindings(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (x, other, gone) = (
        alloc(64, stream)?,
        alloc(64, stream)?,
        alloc(1 << 22, stream)?,
    );
    otr!(memory_free, 0, gone)?;
    let facts: otr_pointer_info_t = filled(|out| otr!(memory_pointer_info, 0, other, out))?;
    let on_stack = std::ptr::from_ref(&facts) as u64;
    begin(stream)?;
    fill(stream, x, 64, &[5])?;
    let graph = end(stream)?;
    otr!(graph_name_buffer, graph, c"x".as_ptr(), x, 64)?;
    for way in ways(context)? {
        let exec = instantiate(graph, way)?;
        let name = slot(exec, c"x")?;
        for (what, address) in [
            ("freed memory", gone),
            ("host memory", on_stack),
            ("a range beyond the end", other + facts.size - 32),
        ] {
            let answer = otr!(graph_bind, exec, name, address);
            refused(answer, Code::INVALID_ARGUMENT, what)?;
        }
        for wrong in [name + 1, u32::MAX] {
            let answer = otr!(graph_bind, exec, wrong, other);
            refused(answer, Code::NOT_FOUND, "a slot that there is not")?;
        }
        refused(
            otr!(graph_bind_scalar, exec, name, &scalar(DType::F64, 1)),
            Code::NOT_FOUND,
            "a number for a buffer",
        )?;
        fill(stream, x, 64, &[0])?;
        replay(exec, stream)?;
        equal!(
            download::<u8>(stream, x, 64)?,
            [5; 64],
            "what is filled after refused bindings"
        );
        otr!(graph_exec_destroy, exec)?;
    }
    Ok(())
}

fn wrong_updates(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (x, y) = (alloc(64, stream)?, alloc(64, stream)?);
    let captured = |record: &dyn Fn() -> Verdict| {
        begin(stream)?;
        record()?;
        end(stream)
    };
    let graph = captured(&|| fill(stream, x, 64, &[5]))?;
    let named = captured(&|| fill(stream, x, 64, &[6]))?;
    otr!(graph_name_buffer, named, c"it".as_ptr(), x, 64)?;
    let others = [
        ("no node", captured(&|| Ok(()))?),
        ("a copy", captured(&|| copy(stream, x, y))?),
        (
            "a node more",
            captured(&|| {
                fill(stream, x, 64, &[6])?;
                fill(stream, x, 64, &[7])
            })?,
        ),
        ("a name more", named),
    ];
    for way in ways(context)? {
        let exec = instantiate(graph, way)?;
        for (what, other) in others {
            let answer = otr!(graph_update, exec, other);
            refused(answer, Code::INVALID_ARGUMENT, what)?;
        }
        fill(stream, x, 64, &[0])?;
        replay(exec, stream)?;
        equal!(
            download::<u8>(stream, x, 64)?,
            [5; 64],
            "what is filled after refused updates"
        );
        otr!(graph_exec_destroy, exec)?;
    }
    Ok(())
}

/// The place where a host function lets another thread go on, and waits for it.
#[derive(Default)]
struct Meeting {
    here: AtomicBool,
    there: AtomicBool,
}

unsafe extern "C" fn meet(user: *mut c_void, _: i64, upstream: i32) -> i32 {
    // SAFETY: the meeting below, which is never freed.
    let meeting = unsafe { &*user.cast::<Meeting>() };
    meeting.here.store(true, Ordering::SeqCst);
    while !meeting.there.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    upstream
}

fn inspected_beside_a_capture(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(1 << 16, stream)?;
    for inspect in 0..3 {
        fill(stream, address, 1 << 16, &[7])?;
        let meeting: &'static Meeting = Box::leak(Box::default());
        let user = std::ptr::from_ref(meeting).cast_mut().cast();
        let writes = [address];
        let node = otr_host_node_t {
            function: Some(meet),
            writes: writes.as_ptr(),
            write_count: 1,
            ..super::super::building::functions::host_node(user)
        };
        begin(stream)?;
        otr!(host_node, stream, &node)?;
        let exec = executable(end(stream)?)?;
        threads(2, |thread| {
            if thread == 1 {
                until(|| Ok(meeting.here.load(Ordering::SeqCst)))?;
                let begun = begin(stream);
                meeting.there.store(true, Ordering::SeqCst);
                return begun;
            }
            match inspect {
                0 => otr!(graph_check, exec, stream)?,
                1 => drop(json(|out| otr!(graph_cost, exec, stream, out))?),
                _ => drop(json(|out| otr!(graph_profile, exec, stream, out))?),
            }
            Ok(())
        })?;
        equal!(nodes(end(stream)?)?, 0, "nodes of the capture beside it");
        equal!(
            download::<u8>(stream, address, 8)?,
            [7; 8],
            "memory that the function left alone"
        );
    }
    Ok(())
}

fn wrong_names(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (x, y) = (alloc(64, stream)?, alloc(64, stream)?);
    upload(stream, x, &[1f32; 16])?;
    let (graph, _) = named(stream, (x, y))?;
    let buffer = |name: &std::ffi::CStr, address, size| {
        otr!(graph_name_buffer, graph, name.as_ptr(), address, size)
    };
    let number = |name: &std::ffi::CStr, node, index| {
        otr!(graph_name_scalar, graph, name.as_ptr(), node, index)
    };
    let wrong = [
        ("a name that is taken", buffer(c"alpha", y, 64)),
        ("a name of no letters", buffer(c"", y, 64)),
        ("a range beyond its memory", buffer(c"y", y, 1 << 30)),
        ("what is no memory", buffer(c"y", 64, 64)),
        ("a number by a name that is taken", number(c"x", 0, 0)),
    ];
    for (what, answer) in wrong {
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    refused(
        number(c"beta", 0, 1),
        Code::NOT_FOUND,
        "a number that the operator has not",
    )?;
    refused(
        number(c"beta", 1, 0),
        Code::NOT_FOUND,
        "a number of a node that there is not",
    )?;
    let exec = executable(graph)?;
    for name in [c"y", c"beta"] {
        refused(
            otr!(graph_slot, exec, name.as_ptr(), &mut 0),
            Code::NOT_FOUND,
            "a name that was refused",
        )?;
    }
    check!(slot(exec, c"x")? != slot(exec, c"alpha")?, "slots differ");
    Ok(())
}

fn profiles_and_costs(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (x, y) = (alloc(64, stream)?, alloc(64, stream)?);
    upload(stream, x, &[1f32; 16])?;
    upload(stream, y, &[0f32; 16])?;
    begin(stream)?;
    otr!(capture_label, stream, c"layer".as_ptr())?;
    add(stream, (y, y, x), 16, 1)?;
    add(stream, (x, x, x), 16, 0)?;
    let exec = executable(end(stream)?)?;
    let cost = json(|out| otr!(graph_cost, exec, stream, out))?;
    equal!(cost["nodes"], 2, "nodes of {cost}");
    check!(
        cost["replay_ns"].as_u64() > Some(0)
            && cost["node_by_node_ns"].as_u64() > Some(0)
            && cost["slower"].is_boolean(),
        "times and what follows from them, in {cost}"
    );
    equal!(
        download::<f32>(stream, y, 16)?,
        [0.0; 16],
        "memory after replays that were compared"
    );
    let profile = json(|out| otr!(graph_profile, exec, stream, out))?;
    let nodes = profile["nodes"].as_array().cloned().unwrap_or_default();
    equal!(nodes.len(), 2, "nodes of {profile}");
    for (at, node) in nodes.iter().enumerate() {
        equal!(
            (&node["id"], &node["label"], &node["scope"]),
            (
                &serde_json::json!(at),
                &serde_json::json!("add"),
                &serde_json::json!("layer")
            ),
            "number, operator and label of node {at}"
        );
        check!(node["ns"].is_u64(), "the time of {node}");
    }
    check!(
        profile["total_ns"].as_u64() > Some(0)
            && profile["traceEvents"].as_array().map(Vec::len) >= Some(2),
        "the whole time, and events for Perfetto, in {profile}"
    );
    equal!(
        download::<f32>(stream, y, 16)?,
        [1.0; 16],
        "memory after one replay that was timed"
    );
    // A stream that captures takes no replay.
    for case in 0..3 {
        begin(stream)?;
        let answer = match case {
            0 => json(|out| otr!(graph_profile, exec, stream, out)).map(drop),
            1 => json(|out| otr!(graph_cost, exec, stream, out)).map(drop),
            _ => otr!(graph_check, exec, stream).map_err(Into::into),
        };
        check!(answer.is_err(), "a replay on a stream that captures");
        refused(
            otr!(capture_end, stream, &mut 0),
            Code::CAPTURE,
            "the end of that capture",
        )?;
    }
    Ok(())
}

fn checks(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (x, y) = (alloc(64, stream)?, alloc(64, stream)?);
    upload(stream, x, &[1f32; 16])?;
    upload(stream, y, &[0f32; 16])?;
    begin(stream)?;
    for _ in 0..5 {
        add(stream, (y, y, x), 16, 1)?;
    }
    let exec = executable(end(stream)?)?;
    for round in 1..=3 {
        otr!(graph_check, exec, stream)?;
        equal!(
            download::<f32>(stream, y, 16)?,
            [5.0 * round as f32; 16],
            "memory after a check, which is one replay"
        );
    }
    Ok(())
}

fn operators_of_the_driver(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (x, y) = (alloc(64, stream)?, alloc(64, stream)?);
    upload(stream, x, &[1f32; 16])?;
    upload(stream, y, &[0f32; 16])?;
    begin(stream)?;
    add(stream, (y, y, x), 16, 1)?;
    let exec = executable(end(stream)?)?;
    otr!(graph_replay, exec, stream)?;
    let mut replays = 1.0;
    let profile = json(|out| otr!(graph_profile, exec, stream, out));
    let check = otr!(graph_check, exec, stream);
    for done in [profile.is_ok(), check.is_ok()] {
        replays += f32::from(u8::from(done));
    }
    if let Err(refused) = check {
        equal!(refused.code, Code::UNSUPPORTED, "why it is refused");
    }
    equal!(
        download::<f32>(stream, y, 16)?,
        [replays; 16],
        "memory after as many replays as there were"
    );
    Ok(())
}
