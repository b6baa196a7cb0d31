//! Captures and graphs as a host can look at them.

pub(in crate::tests) mod replays;

use std::ptr::{null, null_mut};

use crate::tests::host::bindings::*;
use outrigger_device::{Code, CopyKind, DType};

use super::{
    Refused, add, alloc, begin, capture_info, copy, download, end, event, executable, fill, filled,
    finished, instantiate, json, made, nodes, otr, refused, replay, scalar, start, stream, string,
    upload, ways, with_add,
};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Need, Verdict};

tests! { "host-abi.inspection":
    /// A stream tells whether it captures, in which mode, and how much was recorded.
    captures: H25 H26;
    /// The part that was recorded so far can be looked at and not run, and the capture goes on.
    partial_graphs: H25 H26;
    /// A capture that is given up says why, and its stream is usable.
    a_capture_is_given_up: H3 H26;
    /// A call that fails makes its capture fail, whose end says why; nothing of it has run.
    failed_calls: H2 H3 H26;
    /// Nodes carry the label that their stream had when they were recorded.
    labels: H11 H25;
    /// Waiting for the device is refused on a thread that records, but in mode relaxed.
    modes: H8 H26;
    /// Reserving random numbers in a capture costs nothing until a replay.
    random_numbers: H25 H28;
    /// A graph is written down in three formats.
    dumps: H8 H11;
}

fn captures(context: &Context) -> Verdict {
    start(context)?;
    let (first, second, forked, joined) = (stream()?, stream()?, event()?, event()?);
    let address = alloc(64, first)?;
    let of = |info: otr_capture_info_t| (info.status, info.node_count, info.stream_count);
    let idle = capture_info(first)?;
    equal!(
        (idle.id, of(idle)),
        (0, (OTR_CAPTURE_NONE, 0, 0)),
        "a stream that does not capture"
    );
    for mode in [
        OTR_CAPTURE_GLOBAL,
        OTR_CAPTURE_THREAD_LOCAL,
        OTR_CAPTURE_RELAXED,
    ] {
        otr!(capture_begin, first, mode, 0)?;
        let begun = capture_info(first)?;
        equal!(of(begun), (OTR_CAPTURE_ACTIVE, 0, 1), "a new capture");
        equal!(begun.mode, mode, "its mode");
        fill(first, address, 64, &[1])?;
        otr!(event_record, forked, first)?;
        equal!(
            of(capture_info(second)?),
            (OTR_CAPTURE_NONE, 0, 0),
            "a stream that has not joined"
        );
        otr!(stream_wait_event, second, forked)?;
        fill(second, address, 64, &[2])?;
        let both = capture_info(second)?;
        equal!(
            (both.id, of(both)),
            (begun.id, (OTR_CAPTURE_ACTIVE, 2, 2)),
            "a stream that has joined"
        );
        otr!(event_record, joined, second)?;
        otr!(stream_wait_event, first, joined)?;
        refused(
            otr!(capture_begin, second, mode, 0),
            Code::CAPTURE,
            "a capture within a capture",
        )?;
        refused(
            otr!(capture_end, second, &mut 0),
            Code::INVALID_ARGUMENT,
            "the end of a capture on a stream that has joined",
        )?;
        for stream in [first, second] {
            refused(
                otr!(stream_destroy, stream),
                Code::BUSY,
                "to destroy a stream that captures",
            )?;
        }
        equal!(
            capture_info(first)?.status,
            OTR_CAPTURE_ACTIVE,
            "the capture after refused calls"
        );
        otr!(graph_destroy, end(first)?)?;
        equal!(
            of(capture_info(second)?),
            (OTR_CAPTURE_NONE, 0, 0),
            "the streams of a capture that has ended"
        );
    }
    // A capture on each of two streams, one within the other in time.
    begin(first)?;
    fill(first, address, 64, &[1])?;
    begin(second)?;
    fill(second, address, 64, &[2])?;
    let inner = end(second)?;
    fill(first, address, 64, &[3])?;
    let outer = end(first)?;
    equal!((nodes(inner)?, nodes(outer)?), (1, 2), "nodes of each");
    // Work that was not joined is named.
    begin(first)?;
    otr!(event_record, forked, first)?;
    otr!(stream_wait_event, second, forked)?;
    fill(second, address, 64, &[4])?;
    let told = refused(
        otr!(capture_end, first, &mut 0),
        Code::CAPTURE,
        "the end of a capture whose second stream was not joined",
    )?;
    for part in ["not joined", "fill"] {
        check!(told.text.contains(part), "H3: {part} in {}", told.text);
    }
    for stream in [first, second] {
        otr!(stream_destroy, stream)?;
    }
    Ok(())
}

fn partial_graphs(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    fill(stream, address, 64, &[0])?;
    otr!(stream_synchronize, stream)?;
    begin(stream)?;
    fill(stream, address, 64, &[1])?;
    let partial = made(|out| otr!(capture_partial, stream, out))?;
    fill(stream, address, 64, &[2])?;
    let info: otr_graph_info_t = filled(|out| otr!(graph_info, partial, out))?;
    equal!(
        (info.nodes, info.partial),
        (1, 1),
        "nodes of what was recorded so far, and whether it is partial"
    );
    let whole = made(|out| otr!(graph_create, 0, 0, out))?;
    let mut out = 0x5a;
    let wrong = [
        (
            "an executable graph",
            otr!(graph_instantiate, partial, 0, &mut out),
        ),
        (
            "one more node",
            otr!(graph_add_empty, partial, null(), 0, &mut 0),
        ),
        (
            "a child",
            otr!(graph_add_child, whole, null(), 0, partial, &mut 0),
        ),
    ];
    for (what, answer) in wrong {
        refused(answer, Code::CAPTURE, what)?;
    }
    equal!(out, 0x5a, "H2: the output of a failed call");
    otr!(graph_destroy, partial)?;
    let exec = executable(end(stream)?)?;
    otr!(graph_replay, exec, stream)?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [2; 64],
        "what the whole capture does"
    );
    Ok(())
}

fn a_capture_is_given_up(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    fill(stream, address, 64, &[1])?;
    let reason = c"the moon is full".as_ptr();
    for (what, answer) in [
        ("an abort", otr!(capture_abort, stream, reason)),
        ("an end", otr!(capture_end, stream, &mut 0)),
        ("a look", otr!(capture_partial, stream, &mut 0)),
    ] {
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    begin(stream)?;
    fill(stream, address, 64, &[2])?;
    otr!(capture_abort, stream, reason)?;
    equal!(
        capture_info(stream)?.status,
        OTR_CAPTURE_FAILED,
        "the capture"
    );
    let (pattern, mut graph) = ([3u8], 0x5a);
    refused(
        otr!(fill, stream, address, 64, pattern.as_ptr().cast(), 1),
        Code::CAPTURE,
        "work of a capture that has failed",
    )?;
    let told = refused(
        otr!(capture_end, stream, &mut graph),
        Code::CAPTURE,
        "the end of a capture that was given up",
    )?;
    check!(
        told.text.contains("the moon is full"),
        "the reason is told: {}",
        told.text
    );
    equal!(graph, 0x5a, "H2: the output of a failed call");
    equal!(
        download::<u8>(stream, address, 64)?,
        [1; 64],
        "memory: nothing of it has run"
    );
    Ok(())
}

fn failed_calls(context: &Context) -> Verdict {
    // A host function that names memory is refused where none reaches it.
    let reaches = context.has(&context.open()?, Need::HostReach);
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    fill(stream, address, 64, &[1])?;
    otr!(stream_synchronize, stream)?;
    begin(stream)?;
    fill(stream, address, 64, &[2])?;
    let exec = executable(end(stream)?)?;
    let (pattern, nowhere) = ([3u8; 3], [64]);
    let pattern = pattern.as_ptr().cast();
    let host = otr_host_node_t {
        reads: nowhere.as_ptr(),
        read_count: 1,
        ..super::building::functions::host_node(null_mut())
    };
    let (invalid, kind) = (Code::INVALID_ARGUMENT, OTR_GRAPH_IF);
    let beyond_reach = if reaches { invalid } else { Code::UNSUPPORTED };
    type Call<'a> = &'a dyn Fn() -> Result<(), Refused>;
    let gone = alloc(1 << 22, stream)?;
    otr!(memory_free, 0, gone)?;
    let calls: [(&str, Code, Call<'_>); 10] = [
        ("a copy from freed memory", invalid, &|| {
            otr!(
                copy,
                stream,
                address,
                gone,
                64,
                CopyKind::DeviceToDevice.raw()
            )
        }),
        ("a pattern of three bytes", invalid, &|| {
            otr!(fill, stream, address, 63, pattern, 3)
        }),
        ("an operator on freed memory", invalid, &|| {
            let operands = (address, gone, address);
            with_add(DType::F32, operands, 16, 1, |add, call| {
                Ok(otr!(operator_call, stream, add, call))
            })
            .unwrap_or(Ok(()))
        }),
        (
            "more memory than the limit has room for",
            Code::OUT_OF_MEMORY,
            &|| {
                otr!(memory_set_limit, 0, 1)?;
                let answer = otr!(memory_alloc, 0, 64 << 20, stream, &mut 0);
                otr!(memory_set_limit, 0, u64::MAX)?;
                answer
            },
        ),
        ("a fill beyond the end", invalid, &|| {
            otr!(fill, stream, address + 63, 1 << 30, pattern, 1)
        }),
        (
            "a host function that reads what is no memory",
            beyond_reach,
            &|| otr!(host_node, stream, &host),
        ),
        ("a conditional without a body", invalid, &|| {
            otr!(
                capture_conditional,
                stream,
                kind,
                address,
                DType::I64.0,
                null(),
                0
            )
        }),
        ("too much memory", Code::OUT_OF_MEMORY, &|| {
            otr!(memory_alloc, 0, 1 << 50, stream, &mut 0)
        }),
        ("a replay", Code::CAPTURE, &|| {
            otr!(graph_replay, exec, stream)
        }),
        ("a query", Code::CAPTURE, &|| {
            otr!(stream_query, stream, &mut 0)
        }),
    ];
    for (what, code, call) in calls {
        begin(stream)?;
        fill(stream, address, 64, &[4])?;
        refused(call(), code, what)?;
        let info = capture_info(stream)?;
        // If kernels run over copies, those that were recorded before an operand was wrong are nodes.
        let most = if reaches { 1 } else { 2 };
        check!(
            info.status == OTR_CAPTURE_FAILED && (1..=most).contains(&info.node_count),
            "the capture has status {} and {} nodes after {what}",
            info.status,
            info.node_count
        );
        refused(otr!(capture_end, stream, &mut 0), code, what)?;
        equal!(
            download::<u8>(stream, address, 64)?,
            [1; 64],
            "memory after {what}"
        );
    }
    Ok(())
}

fn labels(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    otr!(capture_label, stream, c"without effect".as_ptr())?;
    begin(stream)?;
    fill(stream, address, 64, &[1])?;
    otr!(capture_label, stream, c"encoder".as_ptr())?;
    fill(stream, address, 64, &[2])?;
    fill(stream, address, 64, &[3])?;
    otr!(capture_label, stream, c"de<co>\"der\"".as_ptr())?;
    fill(stream, address, 64, &[4])?;
    otr!(capture_label, stream, null())?;
    fill(stream, address, 64, &[5])?;
    let graph = end(stream)?;
    let dump = json(|out| otr!(graph_dump, graph, OTR_GRAPH_JSON, out))?;
    let nodes = dump["nodes"].as_array().cloned().unwrap_or_default();
    let scopes: Vec<Option<&str>> = nodes.iter().map(|node| node["scope"].as_str()).collect();
    equal!(
        scopes,
        [
            None,
            Some("encoder"),
            Some("encoder"),
            Some("de<co>\"der\""),
            None
        ],
        "labels of nodes"
    );
    Ok(())
}

fn modes(context: &Context) -> Verdict {
    start(context)?;
    let (stream, other) = (stream()?, stream()?);
    let (address, elsewhere) = (alloc(64, stream)?, alloc(64, other)?);
    for mode in [OTR_CAPTURE_GLOBAL, OTR_CAPTURE_THREAD_LOCAL] {
        otr!(capture_begin, stream, mode, 0)?;
        fill(stream, address, 64, &[1])?;
        // A thread that records nothing may wait.
        crate::tests::kit::threads(1, |_| Ok(otr!(device_synchronize, 0)?))?;
        equal!(
            capture_info(stream)?.status,
            OTR_CAPTURE_ACTIVE,
            "the capture after another thread has waited"
        );
        refused(
            otr!(device_synchronize, 0),
            Code::CAPTURE,
            "to wait for the device on a thread that records",
        )?;
        refused(
            otr!(capture_end, stream, &mut 0),
            Code::CAPTURE,
            "the end of that capture",
        )?;
    }
    otr!(capture_begin, stream, OTR_CAPTURE_RELAXED, 0)?;
    fill(stream, address, 64, &[2])?;
    fill(other, elsewhere, 64, &[3])?;
    otr!(device_synchronize, 0)?;
    check!(
        finished(other)?,
        "the streams that do not capture have finished"
    );
    let exec = executable(end(stream)?)?;
    otr!(graph_replay, exec, stream)?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [2; 64],
        "what was captured"
    );
    Ok(())
}

fn random_numbers(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    otr!(stream_set_current, stream)?;
    let generator = made(|out| otr!(generator_create, 0, out))?;
    otr!(generator_seed, generator, 5)?;
    let state = || {
        let (mut seed, mut offset) = (0, 0);
        otr!(generator_state, generator, &mut seed, &mut offset)?;
        Verdict::Ok((seed, offset))
    };
    let reserve = |count| {
        let (mut seed, mut offset) = (0, 0);
        otr!(generator_reserve, generator, count, &mut seed, &mut offset)?;
        Verdict::Ok(offset)
    };
    begin(stream)?;
    reserve(8)?;
    otr!(capture_abort, stream, c"not wanted".as_ptr())?;
    refused(
        otr!(capture_end, stream, &mut 0),
        Code::CAPTURE,
        "a capture that was given up",
    )?;
    equal!(state()?, (5, 0), "the generator after it");
    begin(stream)?;
    fill(stream, address, 64, &[1])?;
    equal!(
        (reserve(8)?, reserve(4)?),
        (0, 8),
        "offsets within the capture"
    );
    let exec = executable(end(stream)?)?;
    equal!(state()?, (5, 0), "the generator before a replay");
    for round in 1..=3 {
        otr!(graph_replay, exec, stream)?;
        equal!(
            state()?,
            (5, 12 * round),
            "the generator after {round} replays"
        );
    }
    // The graph keeps it.
    otr!(generator_destroy, generator)?;
    otr!(graph_replay, exec, stream)?;
    Ok(otr!(stream_synchronize, stream)?)
}

fn dumps(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    begin(stream)?;
    fill(stream, address, 64, &[1])?;
    otr!(capture_label, stream, c"a <b> & \"c\" \x01 \\".as_ptr())?;
    fill(stream, address, 64, &[2])?;
    let graph = end(stream)?;
    let text = |format| string(|out| otr!(graph_dump, graph, format, out));
    let dot = text(OTR_GRAPH_DOT)?;
    check!(
        dot.starts_with("digraph") && dot.contains("->"),
        "two nodes with an edge for Graphviz: {dot}"
    );
    let svg = text(OTR_GRAPH_SVG)?;
    check!(
        svg.contains("<svg") && svg.contains("</svg>"),
        "a picture: {svg}"
    );
    let dump = json(|out| otr!(graph_dump, graph, OTR_GRAPH_JSON, out))?;
    equal!(
        dump["nodes"].as_array().map(Vec::len),
        Some(2),
        "nodes of {dump}"
    );
    equal!(
        dump["nodes"][1]["after"],
        serde_json::json!([0]),
        "what the second runs after"
    );
    Ok(())
}
