//! Graphs: inspecting them, naming what replays may change, and building them node by node.

use std::ffi::{c_char, c_void};

use outrigger_device::CopyKind;
use outrigger_device::sys::otr_operator_call_t;
use outrigger_hooks as hooks;
use outrigger_hooks::{Code, ConditionalKind, DType, DumpFormat, Error, Graph, Ref, Result};

use crate::capture::{otr_host_kernel_call_t, otr_host_node_t, with_host_node, with_kernel};
use crate::guard::{Out, OutStruct, slice, string, text};
use crate::operator::with_call;
use crate::pool::optional_pool;
use crate::{otr_graph_t, otr_node_t, otr_operator_id_t, otr_pool_t};

/// A conditional node that runs its first body if the predicate is not 0; otherwise its second body, if
/// there is one.
pub const OTR_GRAPH_IF: u32 = 1;
/// A conditional node that repeats its body as long as the predicate is not 0.
pub const OTR_GRAPH_WHILE: u32 = 2;
/// A conditional node that runs the body whose number is the predicate; if there is none, it runs
/// nothing.
pub const OTR_GRAPH_SWITCH: u32 = 3;

/// A graph in the language of Graphviz.
pub const OTR_GRAPH_DOT: u32 = 1;
/// A graph's nodes and buffers as JSON.
pub const OTR_GRAPH_JSON: u32 = 2;
/// A picture of a graph, as SVG.
pub const OTR_GRAPH_SVG: u32 = 3;

/// Figures of a graph. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct otr_graph_info_t {
    /// sizeof(otr_graph_info_t)
    pub struct_size: usize,
    /// Bytes that its pool holds.
    pub memory_bytes: u64,
    /// The device.
    pub device: u32,
    /// Nodes.
    pub nodes: u32,
    /// Edges.
    pub edges: u32,
    /// 1 for a graph of otr_capture_partial, which cannot be instantiated; else 0.
    pub partial: u32,
}

/// Graphs by their handles.
pub(crate) fn graphs(handles: *const otr_graph_t, count: u32) -> Result<Vec<Ref<Graph>>> {
    let handles = slice(handles, count as usize, "graphs")?;
    handles.iter().map(|&handle| hooks::graph(handle)).collect()
}

fn node_list<'a>(array: *const otr_node_t, count: u32) -> Result<&'a [otr_node_t]> {
    slice(array, count as usize, "deps")
}

api! {
    /// Makes an empty graph, to be built node by node. A node runs after the nodes in its `deps`, which
    /// are nodes of the same graph. Memory of otr_graph_add_alloc comes from `pool`; if it is 0, from a
    /// pool of the graph's own.
    fn otr_graph_create(device: u32, pool: otr_pool_t, graph: *mut otr_graph_t) {
        let out = Out::new(graph, "graph")?;
        let pool = optional_pool(pool)?;
        out.set(hooks::create_graph(device, pool.as_deref())?.id());
        Ok(())
    }

    /// Destroys a graph. What was instantiated from it lives on.
    fn otr_graph_destroy(graph: otr_graph_t) {
        hooks::destroy_graph(graph)
    }

    /// Figures of a graph.
    fn otr_graph_info(graph: otr_graph_t, info: *mut otr_graph_info_t) {
        let out = OutStruct::new(info, "info")?;
        let known = hooks::graph(graph)?.info();
        out.set(&otr_graph_info_t {
            struct_size: 0,
            memory_bytes: known.memory_bytes,
            device: known.device,
            nodes: known.nodes,
            edges: known.edges,
            partial: known.partial.into(),
        });
        Ok(())
    }

    /// The graph as text: OTR_GRAPH_DOT, _JSON or _SVG. Free it with otr_string_free.
    fn otr_graph_dump(graph: otr_graph_t, format: u32, text: *mut *mut c_char) {
        let out = Out::new(text, "text")?;
        let format = match format {
            OTR_GRAPH_DOT => DumpFormat::Dot,
            OTR_GRAPH_JSON => DumpFormat::Json,
            OTR_GRAPH_SVG => DumpFormat::Svg,
            other => {
                return Err(Error::new(
                    Code::INVALID_ARGUMENT,
                    format!("format {other} is unknown: it is one of OTR_GRAPH_DOT, _JSON, _SVG"),
                ));
            }
        };
        let name = format!("graph {graph:#x}");
        out.set(string(hooks::graph(graph)?.dump(&name, format)));
        Ok(())
    }

    /// Names memory that nodes use, before the graph is instantiated. Replays may then use other memory
    /// in its place (otr_graph_bind). The range lies in one live allocation.
    fn otr_graph_name_buffer(
        graph: otr_graph_t,
        name: *const c_char,
        address: u64,
        size: u64,
    ) {
        hooks::graph(graph)?.name_buffer(text(name, "name")?, address, size)
    }

    /// Names a scalar of an operator's node, before the graph is instantiated (otr_graph_bind_scalar).
    fn otr_graph_name_scalar(
        graph: otr_graph_t,
        name: *const c_char,
        node: otr_node_t,
        scalar_index: u32,
    ) {
        hooks::graph(graph)?.name_scalar(text(name, "name")?, node, scalar_index)
    }

    /// Names an argument of a kernel's node (otr_graph_add_kernel, otr_kernel_launch) by its number, before the graph is
    /// instantiated (otr_graph_bind_argument). Addresses are named by otr_graph_name_buffer.
    fn otr_graph_name_argument(
        graph: otr_graph_t,
        name: *const c_char,
        node: otr_node_t,
        index: u32,
    ) {
        hooks::graph(graph)?.name_argument(text(name, "name")?, node, index)
    }

    /// Adds a launch of a host kernel; see otr_host_kernel_launch.
    fn otr_graph_add_host_kernel(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        call: *const otr_host_kernel_call_t,
        node: *mut otr_node_t,
    ) {
        let out = Out::new(node, "node")?;
        let deps = node_list(deps, dep_count)?;
        let graph = hooks::graph(graph)?;
        // SAFETY: H22: the memory of a kernel's operands is live at every replay; H6: its block is
        // valid for the call.
        out.set(with_kernel(call, |call| unsafe { graph.add_kernel(deps, call) })?);
        Ok(())
    }

    /// Adds an operator. OTR_ERR_UNSUPPORTED: there is no kernel for these arguments.
    fn otr_graph_add_operator(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        operator_id: otr_operator_id_t,
        call: *const otr_operator_call_t,
        node: *mut otr_node_t,
    ) {
        let out = Out::new(node, "node")?;
        let deps = node_list(deps, dep_count)?;
        let graph = hooks::graph(graph)?;
        out.set(with_call(operator_id, call, |id, call| graph.add_operator(deps, id, call))?);
        Ok(())
    }

    /// Adds a copy; see otr_copy. The host keeps its memory valid as long as the graph is replayed.
    fn otr_graph_add_copy(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        dst: u64,
        src: u64,
        size: u64,
        kind: u32,
        node: *mut otr_node_t,
    ) {
        let out = Out::new(node, "node")?;
        let deps = node_list(deps, dep_count)?;
        let kind = CopyKind::from_raw(kind).ok_or_else(|| {
            let text = format!("copy kind {kind} is unknown: it is one of OTR_COPY_*, 1 to 4");
            Error::new(Code::INVALID_ARGUMENT, text)
        })?;
        // SAFETY: the graph checks device ranges (H22); the host keeps its own memory valid as long as
        // the graph is replayed.
        out.set(unsafe { hooks::graph(graph)?.add_copy(deps, dst, src, size, kind) }?);
        Ok(())
    }

    /// Adds a fill; see otr_fill.
    fn otr_graph_add_fill(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        dst: u64,
        size: u64,
        pattern: *const c_void,
        pattern_size: u32,
        node: *mut otr_node_t,
    ) {
        let out = Out::new(node, "node")?;
        let deps = node_list(deps, dep_count)?;
        let pattern = slice(pattern.cast::<u8>(), pattern_size as usize, "pattern")?;
        out.set(hooks::graph(graph)?.add_fill(deps, dst, size, pattern)?);
        Ok(())
    }

    /// Adds a host function, called at every replay.
    fn otr_graph_add_host(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        host: *const otr_host_node_t,
        node: *mut otr_node_t,
    ) {
        let out = Out::new(node, "node")?;
        let deps = node_list(deps, dep_count)?;
        let graph = hooks::graph(graph)?;
        // SAFETY: H11: the host keeps `user` until `destroy` is called.
        out.set(with_host_node(host, |host| unsafe { graph.add_host(deps, host) })?);
        Ok(())
    }

    /// Adds a node that only joins edges.
    fn otr_graph_add_empty(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        node: *mut otr_node_t,
    ) {
        let out = Out::new(node, "node")?;
        out.set(hooks::graph(graph)?.add_empty(node_list(deps, dep_count)?)?);
        Ok(())
    }

    /// Adds copies of all nodes of another graph. `node` runs after all of them.
    fn otr_graph_add_child(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        child: otr_graph_t,
        node: *mut otr_node_t,
    ) {
        let out = Out::new(node, "node")?;
        let deps = node_list(deps, dep_count)?;
        let child = hooks::graph(child)?;
        out.set(hooks::graph(graph)?.add_child(deps, &child)?);
        Ok(())
    }

    /// Adds a conditional node: OTR_GRAPH_IF, _WHILE or _SWITCH. The predicate is one number in device
    /// memory, of dtype bool, u8, i32 or i64, read when the node runs. The bodies are graphs of the
    /// same device, taken as they are now. OTR_ERR_UNSUPPORTED for bodies that draw random numbers.
    fn otr_graph_add_conditional(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        kind: u32,
        predicate: u64,
        dtype: u32,
        bodies: *const otr_graph_t,
        body_count: u32,
        node: *mut otr_node_t,
    ) {
        let out = Out::new(node, "node")?;
        let deps = node_list(deps, dep_count)?;
        let bodies = graphs(bodies, body_count)?;
        let kind = ConditionalKind::from_raw(kind)?;
        let graph = hooks::graph(graph)?;
        out.set(graph.add_conditional(deps, kind, predicate, DType(dtype), &bodies)?);
        Ok(())
    }

    /// Adds an allocation from the graph's pool, and returns its address. If the memory is memory that
    /// another node frees, the new node runs after that node.
    fn otr_graph_add_alloc(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        size: u64,
        address: *mut u64,
        node: *mut otr_node_t,
    ) {
        let (out_address, out) = (Out::new(address, "address")?, Out::new(node, "node")?);
        let (node, address) = hooks::graph(graph)?.add_alloc(node_list(deps, dep_count)?, size)?;
        out_address.set(address);
        out.set(node);
        Ok(())
    }

    /// Adds the free of an allocation of otr_graph_add_alloc. Later nodes must not use the memory.
    fn otr_graph_add_free(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        address: u64,
        node: *mut otr_node_t,
    ) {
        let out = Out::new(node, "node")?;
        out.set(hooks::graph(graph)?.add_free(node_list(deps, dep_count)?, address)?);
        Ok(())
    }
}
