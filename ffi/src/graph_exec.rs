//! Executable graphs.

use std::ffi::c_char;

use outrigger_device::sys::otr_scalar_t;
use outrigger_hooks as hooks;
use outrigger_hooks::{Code, Error, ExecFlags, ExecMode};

use crate::guard::{Out, OutStruct, null, string, text};
use crate::operator::scalar;
use crate::{otr_graph_exec_t, otr_graph_t, otr_stream_t};

/// Replays never use more than one thread.
pub const OTR_GRAPH_SERIAL: u32 = 1;
/// Replays go through the driver's queue node by node.
pub const OTR_GRAPH_SUBMIT: u32 = 2;
/// Replays are launches of a graph of the driver's own. OTR_ERR_UNSUPPORTED where it has none.
pub const OTR_GRAPH_NATIVE: u32 = 4;

/// A replay is one launch of a host kernel that runs all nodes: a host call where the driver takes no host functions
/// and the host sees its memory.
pub const OTR_GRAPH_MODE_LAUNCH: u32 = 1;
/// A replay goes through the driver's queue node by node.
pub const OTR_GRAPH_MODE_SUBMIT: u32 = 3;
/// A replay is one launch of a graph of the driver's own.
pub const OTR_GRAPH_MODE_NATIVE: u32 = 4;

/// Figures of an executable graph. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct otr_graph_exec_info_t {
    /// sizeof(otr_graph_exec_info_t)
    pub struct_size: usize,
    /// Replays so far.
    pub replays: u64,
    /// Bytes that its pool holds.
    pub memory_bytes: u64,
    /// Estimated time of a replay on one thread, in nanoseconds.
    pub estimated_ns: u64,
    /// Nodes that run.
    pub nodes: u32,
    /// Nodes that were dropped, since nobody sees their results.
    pub dropped: u32,
    /// Parts that run one after the other.
    pub levels: u32,
    /// Those of them that run on several threads.
    pub parallel_levels: u32,
    /// OTR_GRAPH_MODE_*
    pub mode: u32,
    /// 0
    pub reserved: u32,
}

api! {
    /// Makes a graph executable. `flags` is 0 or of OTR_GRAPH_SERIAL, and OTR_GRAPH_SUBMIT or
    /// OTR_GRAPH_NATIVE. Without either of these the way that costs least is taken.
    fn otr_graph_instantiate(graph: otr_graph_t, flags: u32, exec: *mut otr_graph_exec_t) {
        let out = Out::new(exec, "exec")?;
        if flags & !(OTR_GRAPH_SERIAL | OTR_GRAPH_SUBMIT | OTR_GRAPH_NATIVE) != 0 {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "flags {flags:#x} are unknown: they are of OTR_GRAPH_SERIAL, OTR_GRAPH_SUBMIT and \
                     OTR_GRAPH_NATIVE"
                ),
            ));
        }
        let flags = ExecFlags {
            serial: flags & OTR_GRAPH_SERIAL != 0,
            submit: flags & OTR_GRAPH_SUBMIT != 0,
            native: flags & OTR_GRAPH_NATIVE != 0,
        };
        out.set(hooks::instantiate(&*hooks::graph(graph)?, flags)?.id());
        Ok(())
    }

    /// Destroys an executable graph without waiting: replays that were submitted still run, and what
    /// they use is given back afterwards.
    fn otr_graph_exec_destroy(exec: otr_graph_exec_t) {
        hooks::destroy_graph_exec(exec)
    }

    /// Replays a graph in stream order, and returns at once. Replays of one executable graph run in the
    /// order of these calls, on whatever streams. What its pool had free since the last replay may
    /// have served other allocations: where one is still in use, the call waits for earlier replays
    /// and takes other memory for the graph. OTR_ERR_OUT_OF_MEMORY if there is none.
    fn otr_graph_replay(exec: otr_graph_exec_t, stream: otr_stream_t) {
        hooks::graph_exec(exec)?.replay(&*hooks::stream(stream)?)
    }

    /// The slot of a name, for otr_graph_bind. OTR_ERR_NOT_FOUND.
    fn otr_graph_slot(exec: otr_graph_exec_t, name: *const c_char, slot: *mut u32) {
        let out = Out::new(slot, "slot")?;
        out.set(hooks::graph_exec(exec)?.slot(text(name, "name")?)?);
        Ok(())
    }

    /// Puts other memory in place of a named buffer, for later replays: without a copy, and without
    /// recording anew. The memory is kept alive until other memory takes its place.
    fn otr_graph_bind(exec: otr_graph_exec_t, slot: u32, address: u64) {
        hooks::graph_exec(exec)?.bind(slot, address)
    }

    /// Puts another number in place of a named one, for later replays.
    fn otr_graph_bind_scalar(exec: otr_graph_exec_t, slot: u32, value: *const otr_scalar_t) {
        // SAFETY: H6: NULL, or valid for the call.
        let value = unsafe { value.as_ref() }.ok_or_else(|| null("value"))?;
        let value = scalar(value)?;
        hooks::graph_exec(exec)?.bind_scalar(slot, value)
    }

    /// Takes over addresses and numbers of another graph of the same shape: same kinds of nodes, same
    /// operators, same edges. OTR_ERR_INVALID_ARGUMENT names the first node that differs, and nothing
    /// has changed then. Bindings go back to what that graph recorded.
    fn otr_graph_update(exec: otr_graph_exec_t, graph: otr_graph_t) {
        let graph = hooks::graph(graph)?;
        hooks::graph_exec(exec)?.update(&graph)
    }

    /// Figures of an executable graph.
    fn otr_graph_exec_info(exec: otr_graph_exec_t, info: *mut otr_graph_exec_info_t) {
        let out = OutStruct::new(info, "info")?;
        let known = hooks::graph_exec(exec)?.info();
        out.set(&otr_graph_exec_info_t {
            struct_size: 0,
            replays: known.replays,
            memory_bytes: known.memory_bytes,
            estimated_ns: known.estimated_ns,
            nodes: known.nodes,
            dropped: known.dropped,
            levels: known.segments,
            parallel_levels: known.parallel_segments,
            mode: match known.mode {
                ExecMode::Launch => OTR_GRAPH_MODE_LAUNCH,
                ExecMode::Submit => OTR_GRAPH_MODE_SUBMIT,
                ExecMode::Native => OTR_GRAPH_MODE_NATIVE,
            },
            reserved: 0,
        });
        Ok(())
    }

    /// Replays once, timing each node, and waits. The result is JSON: `total_ns`, and `nodes` with `id`,
    /// `label`, `scope`, `ns`; as a file it opens in Perfetto (`traceEvents`). Free it with
    /// otr_string_free. OTR_ERR_UNSUPPORTED if a node is an operator of the driver.
    fn otr_graph_profile(exec: otr_graph_exec_t, stream: otr_stream_t, json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        let stream = hooks::stream(stream)?;
        out.set(string(hooks::graph_exec(exec)?.profile(&stream)?.to_string()));
        Ok(())
    }

    /// Compares the time of a replay with that of submitting its nodes one by one, the best of some rounds
    /// each, and waits. The result is JSON: `nodes`, `replay_ns`, `node_by_node_ns`, `slower`. Memory is as
    /// it was before; host functions are called, and random numbers are drawn, in every round. Free it
    /// with otr_string_free.
    fn otr_graph_cost(exec: otr_graph_exec_t, stream: otr_stream_t, json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        let stream = hooks::stream(stream)?;
        out.set(string(hooks::graph_exec(exec)?.cost(&stream)?.to_string()));
        Ok(())
    }

    /// Runs the nodes in the order in which they were recorded, then as a replay does, from the same
    /// contents of memory, and waits. Fails with the first node whose result differs;
    /// OTR_ERR_UNSUPPORTED if a node is an operator of the driver.
    fn otr_graph_check(exec: otr_graph_exec_t, stream: otr_stream_t) {
        let stream = hooks::stream(stream)?;
        hooks::graph_exec(exec)?.check(&stream)
    }
}
