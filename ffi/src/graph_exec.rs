//! Executable graphs.

use std::ffi::{c_char, c_void};

use outrigger_device::sys::otr_scalar_t;
use outrigger_hooks as hooks;
use outrigger_hooks::{Code, Error, ExecFlags, ExecMode};

use crate::guard::{Out, OutStruct, null, slice, string, text};
use crate::operator::scalar;
use crate::{otr_graph_exec_t, otr_graph_t, otr_stream_t};

/// Replays never use more than one thread.
pub const OTR_GRAPH_SERIAL: u32 = 1;
/// Replays go through the driver's queue node by node.
pub const OTR_GRAPH_SUBMIT: u32 = 2;
/// Replays are launches of a graph of the driver. OTR_ERR_UNSUPPORTED if the driver has no graphs.
pub const OTR_GRAPH_NATIVE: u32 = 4;

/// A replay is one launch of a host kernel that runs all nodes. If the driver takes no host functions
/// but the host sees its memory, a host call takes the place of the kernel.
pub const OTR_GRAPH_MODE_LAUNCH: u32 = 1;
/// A replay goes through the driver's queue node by node.
pub const OTR_GRAPH_MODE_SUBMIT: u32 = 3;
/// A replay is one launch of a graph of the driver.
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
    /// Nodes that were dropped, because nobody sees their results.
    pub dropped: u32,
    /// Parts that run one after the other.
    pub levels: u32,
    /// Parts of these that run on several threads.
    pub parallel_levels: u32,
    /// OTR_GRAPH_MODE_*
    pub mode: u32,
    /// 0
    pub reserved: u32,
}

api! {
    /// Makes a graph executable. `flags` is 0, or combines OTR_GRAPH_SERIAL and at most one of
    /// OTR_GRAPH_SUBMIT and OTR_GRAPH_NATIVE. Without these two the library chooses how replays reach
    /// the device.
    fn otr_graph_instantiate(graph: otr_graph_t, flags: u32, exec: *mut otr_graph_exec_t) {
        let out = Out::new(exec, "exec")?;
        if flags & !(OTR_GRAPH_SERIAL | OTR_GRAPH_SUBMIT | OTR_GRAPH_NATIVE) != 0 {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "flags {flags:#x} are unknown: known are OTR_GRAPH_SERIAL, OTR_GRAPH_SUBMIT and \
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

    /// Destroys an executable graph without waiting. Submitted replays still run; what they use is
    /// given back afterwards.
    fn otr_graph_exec_destroy(exec: otr_graph_exec_t) {
        hooks::destroy_graph_exec(exec)
    }

    /// Replays a graph in stream order, and returns at once. Replays of one executable graph run in the
    /// order of these calls, on any streams. Since the last replay, other allocations may have used
    /// free memory of its pool. If one of them is still in use, the call waits for earlier replays and
    /// takes other memory for the graph. OTR_ERR_OUT_OF_MEMORY if there is none.
    fn otr_graph_replay(exec: otr_graph_exec_t, stream: otr_stream_t) {
        hooks::graph_exec(exec)?.replay(&*hooks::stream(stream)?)
    }

    /// The slot of a name, for otr_graph_bind. OTR_ERR_NOT_FOUND if the graph has no such name.
    fn otr_graph_slot(exec: otr_graph_exec_t, name: *const c_char, slot: *mut u32) {
        let out = Out::new(slot, "slot")?;
        out.set(hooks::graph_exec(exec)?.slot(text(name, "name")?)?);
        Ok(())
    }

    /// Binds other memory in place of a named buffer, for later replays. Nothing is copied or recorded
    /// again. The graph keeps the memory alive until other memory takes its place. Address 0 binds the
    /// recorded memory again.
    fn otr_graph_bind(exec: otr_graph_exec_t, slot: u32, address: u64) {
        hooks::graph_exec(exec)?.bind(slot, address)
    }

    /// Binds another number in place of a named one, for later replays.
    fn otr_graph_bind_scalar(exec: otr_graph_exec_t, slot: u32, value: *const otr_scalar_t) {
        // SAFETY: H6: NULL, or valid for the call.
        let value = unsafe { value.as_ref() }.ok_or_else(|| null("value"))?;
        let value = scalar(value)?;
        hooks::graph_exec(exec)?.bind_scalar(slot, value)
    }

    /// Binds another value in place of a named argument of a kernel, for later replays. It has as many bytes as the
    /// recorded one.
    fn otr_graph_bind_argument(
        exec: otr_graph_exec_t,
        slot: u32,
        value: *const c_void,
        size: u32,
    ) {
        let value = slice(value.cast::<u8>(), size as usize, "value")?;
        hooks::graph_exec(exec)?.bind_argument(slot, value)
    }

    /// Takes over the addresses and numbers of another graph of the same shape: the same kinds of
    /// nodes, operators and edges. Bindings go back to what that graph recorded. If a node differs,
    /// OTR_ERR_INVALID_ARGUMENT names the first one, and nothing has changed.
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

    /// Replays once, measures the time of each node, and waits. The result is JSON: `total_ns`, and
    /// `nodes` with `id`, `label`, `scope`, `ns`. As a file it opens in Perfetto (`traceEvents`). Free
    /// it with otr_string_free. OTR_ERR_UNSUPPORTED if a node is an operator of the driver.
    fn otr_graph_profile(exec: otr_graph_exec_t, stream: otr_stream_t, json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        let stream = hooks::stream(stream)?;
        out.set(string(hooks::graph_exec(exec)?.profile(&stream)?.to_string()));
        Ok(())
    }

    /// Compares the time of a replay with that of the other ways to run its nodes, and waits. Each time
    /// is the best of some rounds. The result is JSON: `nodes`; `replay_ns`; `node_by_node_ns`, one
    /// command of the driver for each; `native_ns`, one launch of a graph of the driver, or null where
    /// there is none; `host_ns`, one launch of a host kernel, or null if the replay is none; `slower`,
    /// whether the replay takes longer than node by node. Memory is restored afterwards. Every round
    /// calls host functions and draws random numbers. Free the result with otr_string_free.
    fn otr_graph_cost(exec: otr_graph_exec_t, stream: otr_stream_t, json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        let stream = hooks::stream(stream)?;
        out.set(string(hooks::graph_exec(exec)?.cost(&stream)?.to_string()));
        Ok(())
    }

    /// Runs the nodes in the order in which they were recorded, and then as a replay does, both from
    /// the same contents of memory. Waits. Fails if a result differs, and names the first node that
    /// differs. OTR_ERR_UNSUPPORTED if a node is an operator of the driver.
    fn otr_graph_check(exec: otr_graph_exec_t, stream: otr_stream_t) {
        let stream = hooks::stream(stream)?;
        hooks::graph_exec(exec)?.check(&stream)
    }
}
