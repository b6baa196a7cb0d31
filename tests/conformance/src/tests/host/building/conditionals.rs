//! Conditional nodes: when they run, a number in device memory decides what they do.

use super::*;

tests! { "host-abi.conditional":
    /// The predicate decides when the node runs: one body, another, or none.
    conditionals: H25;
    /// A body that changes its predicate runs as often as that says.
    loops: H25, needs OwnOperators;
    /// A conditional whose predicate or bodies do not fit is refused, and no node is added.
    wrong_conditionals: H2 H22;
}

/// Adds a conditional node.
fn add_conditional(
    graph: u64,
    kind: u32,
    (predicate, dtype): (u64, DType),
    bodies: &[u64],
) -> Result<u32, Refused> {
    let (list, count) = (bodies.as_ptr(), bodies.len() as u32);
    tried(|out| {
        otr!(
            graph_add_conditional,
            graph,
            null(),
            0,
            kind,
            predicate,
            dtype.0,
            list,
            count,
            out
        )
    })
}

/// Sets a predicate of 64 bits.
fn set(stream: u64, predicate: u64, value: i64) -> Verdict {
    fill(stream, predicate, 8, &value.to_ne_bytes())
}

/// A graph that fills 64 bytes.
fn filling(address: u64, value: u8) -> Verdict<u64> {
    let graph = graph()?;
    add_fill(graph, &[], address, value)?;
    Ok(graph)
}

fn conditionals(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (address, predicate) = (alloc(64, stream)?, alloc(8, stream)?);
    let bodies = [
        filling(address, 11)?,
        filling(address, 12)?,
        filling(address, 13)?,
    ];
    /// Predicates, each with what is written then.
    type Cases = &'static [(i64, u8)];
    let cases: [(u32, usize, Cases); 3] = [
        (OTR_GRAPH_IF, 1, &[(1, 11), (0, 0), (-5, 11)]),
        (OTR_GRAPH_IF, 2, &[(1, 11), (0, 12)]),
        (
            OTR_GRAPH_SWITCH,
            3,
            &[(0, 11), (2, 13), (3, 0), (-1, 0), (1, 12)],
        ),
    ];
    for (kind, count, cases) in cases {
        let built = graph()?;
        add_conditional(built, kind, (predicate, DType::I64), &bodies[..count])?;
        otr!(capture_begin, stream, OTR_CAPTURE_GLOBAL, 0)?;
        otr!(
            capture_conditional,
            stream,
            kind,
            predicate,
            DType::I64.0,
            bodies.as_ptr(),
            count as u32
        )?;
        let captured = made(|out| otr!(capture_end, stream, out))?;
        for (graph, made_by) in [(built, "built"), (captured, "captured")] {
            let exec = executable(graph)?;
            for &(value, expected) in cases {
                fill(stream, address, 64, &[0])?;
                set(stream, predicate, value)?;
                replay(exec, stream)?;
                equal!(
                    download::<u8>(stream, address, 64)?,
                    [expected; 64],
                    "kind {kind} with {count} bodies at {value}, {made_by}"
                );
            }
        }
    }
    Ok(())
}

fn loops(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (x, predicate, one) = (alloc(64, stream)?, alloc(8, stream)?, alloc(8, stream)?);
    set(stream, one, 1)?;
    otr!(stream_synchronize, stream)?;
    // The body doubles x, and counts the predicate down.
    otr!(capture_begin, stream, OTR_CAPTURE_GLOBAL, 0)?;
    add(stream, (x, x, x), 16, 1)?;
    with_add(
        DType::I64,
        (predicate, predicate, one),
        1,
        -1,
        |add, call| otr!(operator_call, stream, add, call),
    )?;
    let body = made(|out| otr!(capture_end, stream, out))?;
    let graph = graph()?;
    add_conditional(graph, OTR_GRAPH_WHILE, (predicate, DType::I64), &[body])?;
    let exec = executable(graph)?;
    for rounds in [3, 0, 6] {
        upload(stream, x, &[1f32; 16])?;
        set(stream, predicate, rounds)?;
        replay(exec, stream)?;
        equal!(
            download::<f32>(stream, x, 16)?,
            [2f32.powi(rounds as i32); 16],
            "what {rounds} rounds have doubled"
        );
    }
    Ok(())
}

fn wrong_conditionals(context: &Context) -> Verdict {
    start(context)?;
    let (stream, graph, body) = (stream()?, graph()?, graph()?);
    let predicate = alloc(8, stream)?;
    let good = (predicate, DType::I64);
    let wrong = [
        ("no body", add_conditional(graph, OTR_GRAPH_IF, good, &[])),
        (
            "three bodies of an if",
            add_conditional(graph, OTR_GRAPH_IF, good, &[body; 3]),
        ),
        (
            "two bodies of a while",
            add_conditional(graph, OTR_GRAPH_WHILE, good, &[body; 2]),
        ),
        (
            "a predicate of floats",
            add_conditional(graph, OTR_GRAPH_IF, (predicate, DType::F32), &[body]),
        ),
        (
            "a predicate that is no memory",
            add_conditional(graph, OTR_GRAPH_IF, (64, DType::I64), &[body]),
        ),
    ];
    for (what, answer) in wrong {
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    equal!(nodes(graph)?, 0, "nodes that were added");
    otr!(graph_destroy, body)?;
    refused(
        add_conditional(graph, OTR_GRAPH_IF, good, &[body]),
        Code::INVALID_HANDLE,
        "a body that was destroyed",
    )?;
    Ok(())
}
