//! Graphs that are built node by node: fills, copies, kernels, operators, memory of the graph's own, and
//! children.

pub(in crate::tests) mod conditionals;
pub(in crate::tests) mod functions;

use std::ffi::c_void;
use std::ptr::null;

use crate::tests::host::bindings::*;
use outrigger_device::{Code, CopyKind, DType};

use super::{
    Refused, add, alloc, begin, copy, download, end, event, executable, fill, filled, held, json,
    made, nodes, otr, refused, replay, start, stream, tried, upload, ways, with_add,
};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Verdict};

tests! { "host-abi.building":
    /// Nodes run after those that they name, at each replay.
    nodes_run_in_order: H25 H27;
    /// Memory that nodes allocate is the graph's, and is used again after a node that frees it.
    memory_of_a_graph: H27;
    /// Memory of a graph is used again only by nodes that run after its last use.
    memory_is_used_again: H23 H27;
    /// A child's nodes run where it was added, as often as it was added.
    children: H27;
    /// Kernels and operators are nodes as copies are.
    kernels_and_operators: H29, needs HostReach;
    /// A node that does not fit is refused, and none is added.
    wrong_nodes: H2 H5 H8 H22;
}

const D2D: u32 = CopyKind::DeviceToDevice.raw();

fn graph() -> Verdict<u64> {
    made(|out| otr!(graph_create, 0, 0, out))
}

/// Adds a fill of 64 bytes.
fn add_fill(graph: u64, deps: &[u32], address: u64, value: u8) -> Result<u32, Refused> {
    let (deps, count, pattern) = (deps.as_ptr(), deps.len() as u32, [value]);
    let pattern = pattern.as_ptr().cast();
    tried(|out| {
        otr!(
            graph_add_fill,
            graph,
            deps,
            count,
            address,
            64,
            pattern,
            1,
            out
        )
    })
}

/// Adds a copy of 64 bytes within the device.
fn add_copy(graph: u64, deps: &[u32], to: u64, from: u64) -> Result<u32, Refused> {
    let (deps, count) = (deps.as_ptr(), deps.len() as u32);
    tried(|out| otr!(graph_add_copy, graph, deps, count, to, from, 64, D2D, out))
}

fn add_empty(graph: u64, deps: &[u32]) -> Result<u32, Refused> {
    let (deps, count) = (deps.as_ptr(), deps.len() as u32);
    tried(|out| otr!(graph_add_empty, graph, deps, count, out))
}

/// Adds an allocation of 64 bytes: its address, and its node.
fn add_alloc(graph: u64, deps: &[u32]) -> Result<(u64, u32), Refused> {
    let (mut address, mut node) = (0, 0);
    let (deps, count) = (deps.as_ptr(), deps.len() as u32);
    otr!(
        graph_add_alloc,
        graph,
        deps,
        count,
        64,
        &mut address,
        &mut node
    )?;
    Ok((address, node))
}

fn add_free(graph: u64, deps: &[u32], address: u64) -> Result<u32, Refused> {
    let (deps, count) = (deps.as_ptr(), deps.len() as u32);
    tried(|out| otr!(graph_add_free, graph, deps, count, address, out))
}

fn add_child(graph: u64, deps: &[u32], child: u64) -> Result<u32, Refused> {
    let (deps, count) = (deps.as_ptr(), deps.len() as u32);
    tried(|out| otr!(graph_add_child, graph, deps, count, child, out))
}

fn add_host(graph: u64, deps: &[u32], host: &otr_host_node_t) -> Result<u32, Refused> {
    let (deps, count) = (deps.as_ptr(), deps.len() as u32);
    tried(|out| otr!(graph_add_host, graph, deps, count, host, out))
}

fn nodes_run_in_order(context: &Context) -> Verdict {
    start(context)?;
    let (stream, graph) = (stream()?, graph()?);
    let [x, y, z] = [alloc(64, stream)?, alloc(64, stream)?, alloc(64, stream)?];
    for address in [x, y, z] {
        fill(stream, address, 64, &[0])?;
    }
    otr!(stream_synchronize, stream)?;
    // Two values change places.
    let (one, two) = (add_fill(graph, &[], x, 1)?, add_fill(graph, &[], y, 2)?);
    let joined = add_empty(graph, &[one, two])?;
    let first = add_copy(graph, &[joined], z, x)?;
    let second = add_copy(graph, &[first], x, y)?;
    let third = add_copy(graph, &[second], y, z)?;
    let last = add_fill(graph, &[third], z, 9)?;
    equal!(
        [one, two, joined, first, second, third, last],
        [0, 1, 2, 3, 4, 5, 6],
        "numbers of nodes"
    );
    let info: otr_graph_info_t = filled(|out| otr!(graph_info, graph, out))?;
    equal!(
        (info.device, info.nodes, info.edges, info.partial),
        (0, 7, 6, 0),
        "device, nodes, edges, and whether it is partial"
    );
    equal!(
        download::<u8>(stream, x, 64)?,
        [0; 64],
        "memory before the replay"
    );
    let exec = executable(graph)?;
    for _ in 0..3 {
        replay(exec, stream)?;
        for (address, value) in [(x, 2), (y, 1), (z, 9)] {
            equal!(
                download::<u8>(stream, address, 64)?,
                [value; 64],
                "memory after the replay"
            );
        }
    }
    Ok(())
}

fn memory_of_a_graph(context: &Context) -> Verdict {
    start(context)?;
    let (stream, graph) = (stream()?, graph()?);
    let result = alloc(128, stream)?;
    let (inner, at) = add_alloc(graph, &[])?;
    check!(inner != 0, "memory of a node has an address");
    let written = add_fill(graph, &[at], inner, 3)?;
    let copied = add_copy(graph, &[written], result, inner)?;
    let freed = add_free(graph, &[copied], inner)?;
    for (what, address) in [
        ("memory that a node has freed", inner),
        ("memory of the host's", result),
        ("address 0", 0),
    ] {
        refused(add_free(graph, &[], address), Code::INVALID_ARGUMENT, what)?;
    }
    equal!(nodes(graph)?, freed + 1, "nodes after refused frees");
    let (again, at) = add_alloc(graph, &[])?;
    let written = add_fill(graph, &[at], again, 4)?;
    add_copy(graph, &[written], result + 64, again)?;
    let exec = executable(graph)?;
    otr!(graph_destroy, graph)?;
    for _ in 0..3 {
        fill(stream, result, 128, &[0])?;
        replay(exec, stream)?;
        equal!(
            download::<u8>(stream, result, 128)?,
            [[3; 64], [4; 64]].concat(),
            "what went through memory of the graph"
        );
    }
    Ok(otr!(graph_exec_destroy, exec)?)
}

fn memory_is_used_again(context: &Context) -> Verdict {
    start(context)?;
    let (first, second, forked, joined) = (stream()?, stream()?, event()?, event()?);
    begin(first)?;
    let inner = alloc(64, first)?;
    otr!(event_record, forked, first)?;
    otr!(stream_wait_event, second, forked)?;
    fill(second, inner, 64, &[1])?;
    otr!(memory_record_stream, 0, inner, second)?;
    otr!(memory_free, 0, inner)?;
    let other = alloc(64, first)?;
    check!(other != inner, "the other stream still uses it");
    fill(first, other, 64, &[2])?;
    otr!(memory_free, 0, other)?;
    equal!(
        alloc(64, first)?,
        other,
        "memory in the order of one stream"
    );
    otr!(event_record, joined, second)?;
    otr!(stream_wait_event, first, joined)?;
    let captured = end(first)?;
    otr!(memory_free, 0, other)?;
    otr!(graph_destroy, captured)?;

    let built = graph()?;
    let (address, at) = add_alloc(built, &[])?;
    let freed = add_free(built, &[at], address)?;
    let (again, node) = add_alloc(built, &[])?;
    equal!(again, address, "memory that a node has freed");
    let dump = json(|out| otr!(graph_dump, built, OTR_GRAPH_JSON, out))?;
    equal!(
        dump["nodes"][node as usize]["after"],
        serde_json::json!([freed]),
        "what the second allocation runs after"
    );
    Ok(())
}

fn children(context: &Context) -> Verdict {
    start(context)?;
    let (stream, child, parent) = (stream()?, graph()?, graph()?);
    let (x, y) = (alloc(128, stream)?, alloc(64, stream)?);
    // The child moves what is behind x to x, and y behind it.
    let moved = add_copy(child, &[], x, x + 64)?;
    add_copy(child, &[moved], x + 64, y)?;
    let first = add_child(parent, &[], child)?;
    let between = add_fill(parent, &[first], y, 7)?;
    let second = add_child(parent, &[between], child)?;
    add_fill(parent, &[second], y, 8)?;
    // A node that is added to the child later is none of the parent's.
    add_fill(child, &[1], x, 99)?;
    let exec = executable(parent)?;
    otr!(graph_destroy, child)?;
    otr!(graph_destroy, parent)?;
    fill(stream, x, 64, &[1])?;
    fill(stream, x + 64, 64, &[2])?;
    fill(stream, y, 64, &[3])?;
    replay(exec, stream)?;
    equal!(
        download::<u8>(stream, x, 128)?,
        [[3; 64], [7; 64]].concat(),
        "what two runs of the child have moved"
    );
    equal!(
        download::<u8>(stream, y, 64)?,
        [8; 64],
        "what ran after both"
    );
    Ok(())
}

/// Doubles the 16 numbers at an address that stands in its block.
unsafe extern "C" fn double(args: *const c_void, _: u32, bias: i64) -> i32 {
    // SAFETY: the block below: one address of 16 numbers, which `bias` makes one of the host.
    unsafe {
        let address = args.cast::<u64>().read();
        let numbers = address.wrapping_add_signed(bias) as *mut f32;
        for at in 0..16 {
            *numbers.add(at) *= 2.0;
        }
    }
    0
}

fn kernels_and_operators(context: &Context) -> Verdict {
    start(context)?;
    let (stream, graph) = (stream()?, graph()?);
    let (x, y) = (alloc(64, stream)?, alloc(64, stream)?);
    let (block, places) = ([x], [0]);
    let call = otr_host_kernel_call_t {
        function: Some(double),
        args: block.as_ptr().cast(),
        args_size: 8,
        label: c"double".as_ptr(),
        address_offsets: places.as_ptr(),
        address_count: 1,
        ..super::graphs::kernel()
    };
    let kernel = made(|out| otr!(graph_add_host_kernel, graph, null(), 0, &call, out))?;
    let operator = with_add(DType::F32, (y, x, x), 16, 3, |add, call| {
        tried(|out| otr!(graph_add_operator, graph, &kernel, 1, add, call, out))
    })?;
    let exec = executable(graph)?;
    upload(stream, x, &[1f32; 16])?;
    for round in 1..=4 {
        replay(exec, stream)?;
        let doubled = 2f32.powi(round);
        equal!(
            download::<f32>(stream, x, 16)?,
            [doubled; 16],
            "what the kernel doubles"
        );
        equal!(
            download::<f32>(stream, y, 16)?,
            [4.0 * doubled; 16],
            "what the operator adds"
        );
    }
    equal!([kernel, operator], [0, 1], "numbers of nodes");
    // The same kernel runs in the order of a stream.
    upload(stream, x, &[5f32; 16])?;
    otr!(host_kernel_launch, stream, &call)?;
    equal!(
        download::<f32>(stream, x, 16)?,
        [10.0; 16],
        "what was launched"
    );
    let misplaced = [4];
    let call = otr_host_kernel_call_t {
        address_offsets: misplaced.as_ptr(),
        ..call
    };
    refused(
        otr!(graph_add_host_kernel, graph, null(), 0, &call, &mut 0),
        Code::INVALID_ARGUMENT,
        "an address at a place that is none",
    )?;
    equal!(nodes(graph)?, 2, "nodes after a refused one");
    Ok(())
}

fn wrong_nodes(context: &Context) -> Verdict {
    start(context)?;
    let (stream, graph) = (stream()?, graph()?);
    let (address, gone) = (alloc(64, stream)?, alloc(1 << 22, stream)?);
    otr!(memory_free, 0, gone)?;
    let node = add_fill(graph, &[], address, 1)?;
    let none = node + 1;
    let (pattern, block, places) = ([1u8; 16], [gone], [0]);
    let pattern = pattern.as_ptr().cast::<c_void>();
    let call = otr_host_kernel_call_t {
        args: block.as_ptr().cast(),
        args_size: 8,
        address_offsets: places.as_ptr(),
        address_count: 1,
        ..super::graphs::kernel()
    };
    let mut out = 0x5a;
    let wrong = [
        (
            "a node after one that there is not",
            add_empty(graph, &[none]),
        ),
        ("a node after itself", add_fill(graph, &[none], address, 1)),
        (
            "a child after one that there is not",
            add_child(graph, &[none], graph),
        ),
        (
            "an allocation after one that there is not",
            add_alloc(graph, &[none]).map(|one| one.1),
        ),
        (
            "a free after one that there is not",
            add_free(graph, &[none], address),
        ),
        ("a fill of freed memory", add_fill(graph, &[], gone, 1)),
        (
            "a copy from freed memory",
            add_copy(graph, &[], address, gone),
        ),
        (
            "a copy beyond the end",
            add_copy(graph, &[], address, u64::MAX - 10),
        ),
    ];
    for (what, answer) in wrong {
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    let wrong = [
        (
            "a fill with a pattern of 3 bytes",
            otr!(
                graph_add_fill,
                graph,
                null(),
                0,
                address,
                63,
                pattern,
                3,
                &mut out
            ),
        ),
        (
            "a fill with a pattern at NULL",
            otr!(
                graph_add_fill,
                graph,
                null(),
                0,
                address,
                64,
                null(),
                4,
                &mut out
            ),
        ),
        (
            "a copy of an unknown kind",
            otr!(
                graph_add_copy,
                graph,
                null(),
                0,
                address,
                address,
                0,
                77,
                &mut out
            ),
        ),
        (
            "a kernel on freed memory",
            otr!(graph_add_host_kernel, graph, null(), 0, &call, &mut out),
        ),
        (
            "an operator without its struct",
            otr!(graph_add_operator, graph, null(), 0, 0, null(), &mut out),
        ),
        (
            "a name for freed memory",
            otr!(graph_name_buffer, graph, c"x".as_ptr(), gone, 64),
        ),
    ];
    for (what, answer) in wrong {
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    let call = super::operators::empty_call();
    refused(
        otr!(
            graph_add_operator,
            graph,
            null(),
            0,
            u32::MAX,
            &call,
            &mut out
        ),
        Code::NOT_FOUND,
        "an operator that there is not",
    )?;
    equal!(out, 0x5a, "H2: outputs of failed calls");
    equal!(nodes(graph)?, 1, "nodes after refused ones");
    let exec = executable(graph)?;
    replay(exec, stream)?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [1; 64],
        "what the graph does"
    );
    Ok(())
}
