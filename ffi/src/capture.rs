//! Kernels and host functions of the host, and capture: a stream records its work instead of running
//! it.

use std::ffi::{CStr, c_char, c_void};

use outrigger_device::sys::otr_host_kernel_fn;
use outrigger_hooks as hooks;
use outrigger_hooks::{
    AddressRange, CaptureMode, ConditionalKind, DType, HostNode, KernelCall, Result,
};

use crate::graph::graphs;
use crate::guard::{Out, OutStruct, null, sized, slice, text, unused};
use crate::pool::optional_pool;
use crate::{otr_graph_t, otr_pool_t, otr_stream_t};

/// A host kernel: a function of the host that runs as a kernel of the device, with its arguments.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct otr_host_kernel_call_t {
    /// sizeof(otr_host_kernel_call_t)
    pub struct_size: usize,
    /// NULL
    pub next: *const c_void,
    /// The function that runs, on a thread of the driver's choice.
    pub function: otr_host_kernel_fn,
    /// The argument block. The call copies it.
    pub args: *const c_void,
    /// The bytes of the block.
    pub args_size: u32,
    /// Estimated time in nanoseconds, 0 if unknown. It decides what runs in parallel.
    pub cost_ns: u32,
    /// The name of the kernel, for failures and pictures. Lives as long as the process; or NULL.
    pub label: *const c_char,
    /// The offsets of device addresses in the block, in bytes, each a multiple of 8. A graph keeps the
    /// memory of these addresses alive, and can bind other memory in its place.
    pub address_offsets: *const u32,
    /// The number of these offsets.
    pub address_count: u32,
    /// 0
    pub reserved: u32,
    /// For each address what the kernel uses from there on; or NULL. With it, the kernel runs on every
    /// device: over copies in host memory where the driver runs no host kernels and the host does not
    /// see the memory.
    pub address_ranges: *const otr_address_range_t,
}

/// The bytes that a kernel uses from one of its addresses on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct otr_address_range_t {
    /// Bytes, all within one allocation.
    pub bytes: u64,
    /// 1 if the kernel writes to them, else 0.
    pub written: u32,
    /// 0
    pub reserved: u32,
}

/// A host function of a stream or graph. `bias`: add it to an address of this device to reach the
/// bytes. `upstream`: OTR_OK, or the failure of the work before it; after a failure the function only
/// cleans up. It must not call back into Outrigger. Any result other than OTR_OK makes the stream fail.
pub type otr_host_node_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, bias: i64, upstream: i32) -> i32>;

/// Gives user data back.
pub type otr_destroy_fn = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// A host function, and what it uses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct otr_host_node_t {
    /// sizeof(otr_host_node_t)
    pub struct_size: usize,
    /// NULL
    pub next: *const c_void,
    /// The function.
    pub function: otr_host_node_fn,
    /// The argument of the function.
    pub user: *mut c_void,
    /// Called once with `user` when the function will not be called again; or NULL. It is not called if
    /// the call that takes this struct fails.
    pub destroy: otr_destroy_fn,
    /// The name of the function, copied; or NULL.
    pub label: *const c_char,
    /// Addresses within allocations that the function reads. A graph keeps these allocations alive.
    pub reads: *const u64,
    /// Addresses within allocations that the function writes, or reads and writes.
    pub writes: *const u64,
    /// The number of addresses in `reads`.
    pub read_count: u32,
    /// The number of addresses in `writes`.
    pub write_count: u32,
    /// Estimated time in nanoseconds, 0 if unknown.
    pub cost_ns: u32,
    /// 0
    pub reserved: u32,
}

/// A stream does not capture.
pub const OTR_CAPTURE_NONE: u32 = 0;
/// A stream captures.
pub const OTR_CAPTURE_ACTIVE: u32 = 1;
/// A stream captures, and a call in the capture has failed.
pub const OTR_CAPTURE_FAILED: u32 = 2;

/// Capture mode: waiting for the whole device is refused on threads that record. Other threads cannot
/// break a capture, so this is the same as OTR_CAPTURE_THREAD_LOCAL.
pub const OTR_CAPTURE_GLOBAL: u32 = 0;
/// Capture mode: waiting for the whole device is refused on threads that record.
pub const OTR_CAPTURE_THREAD_LOCAL: u32 = 1;
/// Capture mode: waiting for the whole device is allowed. It does not wait for what is recorded.
pub const OTR_CAPTURE_RELAXED: u32 = 2;

/// The state of a stream's capture. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct otr_capture_info_t {
    /// sizeof(otr_capture_info_t)
    pub struct_size: usize,
    /// The number of the capture; 0 if the stream does not capture.
    pub id: u64,
    /// OTR_CAPTURE_NONE, _ACTIVE or _FAILED.
    pub status: u32,
    /// OTR_CAPTURE_GLOBAL, _THREAD_LOCAL or _RELAXED.
    pub mode: u32,
    /// Nodes so far.
    pub node_count: u32,
    /// Streams that record, the first included.
    pub stream_count: u32,
}

/// Runs `with` on a caller's kernel call.
pub(crate) fn with_kernel<R>(
    call: *const otr_host_kernel_call_t,
    with: impl FnOnce(&KernelCall<'_>) -> Result<R>,
) -> Result<R> {
    let call = sized(call, "call")?;
    unused(call.next, call.reserved, "call")?;
    let label = if call.label.is_null() {
        c"kernel"
    } else {
        // SAFETY: not NULL; a label is a NUL-terminated string that lives as long as the process.
        unsafe { CStr::from_ptr(call.label) }
    };
    let ranges = if call.address_ranges.is_null() {
        &[]
    } else {
        slice(
            call.address_ranges,
            call.address_count as usize,
            "call->address_ranges",
        )?
    };
    let ranges: Vec<AddressRange> = ranges
        .iter()
        .map(|range| AddressRange {
            bytes: range.bytes,
            written: range.written != 0,
        })
        .collect();
    with(&KernelCall {
        function: call.function.ok_or_else(|| null("call->function"))?,
        args: slice(
            call.args.cast::<u8>(),
            call.args_size as usize,
            "call->args",
        )?,
        cost_ns: call.cost_ns,
        label,
        address_offsets: slice(
            call.address_offsets,
            call.address_count as usize,
            "call->address_offsets",
        )?,
        ranges: &ranges,
    })
}

/// Runs `with` on a caller's host function.
pub(crate) fn with_host_node<R>(
    node: *const otr_host_node_t,
    with: impl FnOnce(&HostNode<'_>) -> Result<R>,
) -> Result<R> {
    let node = sized(node, "node")?;
    unused(node.next, node.reserved, "node")?;
    with(&HostNode {
        function: node.function.ok_or_else(|| null("node->function"))?,
        user: node.user,
        destroy: node.destroy,
        label: if node.label.is_null() {
            ""
        } else {
            text(node.label, "node->label")?
        },
        reads: slice(node.reads, node.read_count as usize, "node->reads")?,
        writes: slice(node.writes, node.write_count as usize, "node->writes")?,
        cost_ns: node.cost_ns,
    })
}

api! {
    /// Launches a host kernel, a function of the host, in stream order, and returns at once; a kernel of a module
    /// is launched by otr_kernel_launch. OTR_ERR_UNSUPPORTED if the driver runs no host kernels, its memory is not
    /// visible to the host, and the call says nothing of what to copy.
    fn otr_host_kernel_launch(stream: otr_stream_t, call: *const otr_host_kernel_call_t) {
        with_kernel(call, |call| {
            let stream = hooks::stream(stream)?;
            // SAFETY: H22: the memory of a kernel's operands is live; H6: its block is valid for the call.
            unsafe { stream.launch_host_kernel(call) }
        })
    }

    /// Runs a host function as otr_host_call does, with what a graph has to know of it: the memory that it uses, which
    /// the graph keeps, and `destroy`, which tells that it will not be called again.
    fn otr_host_node(stream: otr_stream_t, node: *const otr_host_node_t) {
        with_host_node(node, |node| {
            let stream = hooks::stream(stream)?;
            // SAFETY: H11: the host keeps `user` until `destroy` is called.
            unsafe { stream.host_node(node) }
        })
    }

    /// Begins a capture: until otr_capture_end the work of this stream is recorded, not run. A stream
    /// that waits for an event that was recorded in the capture joins it. `mode` is OTR_CAPTURE_*.
    /// Memory that is allocated on these streams comes from `pool`; if it is 0, from a pool of the
    /// graph's own. The first call that fails in a capture makes the capture fail.
    fn otr_capture_begin(stream: otr_stream_t, mode: u32, pool: otr_pool_t) {
        let pool = optional_pool(pool)?;
        hooks::stream(stream)?.capture_begin(CaptureMode::from_raw(mode)?, pool.as_deref())
    }

    /// Ends the capture that was begun on this stream. Fails with the first failure of a call in the
    /// capture, or with OTR_ERR_CAPTURE if work of another stream was not joined. The capture has ended
    /// then, too: its streams are usable, and its memory is given back.
    fn otr_capture_end(stream: otr_stream_t, graph: *mut otr_graph_t) {
        let out = Out::new(graph, "graph")?;
        out.set(hooks::stream(stream)?.capture_end()?.id());
        Ok(())
    }

    /// Makes a capture fail. otr_capture_end then reports the caller's reason.
    fn otr_capture_abort(stream: otr_stream_t, reason: *const c_char) {
        hooks::stream(stream)?.capture_abort(text(reason, "reason")?)
    }

    /// A graph of what was recorded so far, to look at. It cannot be instantiated.
    fn otr_capture_partial(stream: otr_stream_t, graph: *mut otr_graph_t) {
        let out = Out::new(graph, "graph")?;
        out.set(hooks::stream(stream)?.capture_partial()?.id());
        Ok(())
    }

    /// Tells the state of a stream's capture.
    fn otr_capture_info(stream: otr_stream_t, info: *mut otr_capture_info_t) {
        let out = OutStruct::new(info, "info")?;
        let known = hooks::stream(stream)?.capture_info();
        out.set(&known.map_or_else(otr_capture_info_t::default, |known| otr_capture_info_t {
            struct_size: 0,
            id: known.id,
            status: if known.failed { OTR_CAPTURE_FAILED } else { OTR_CAPTURE_ACTIVE },
            mode: known.mode as u32,
            node_count: known.nodes,
            stream_count: known.streams,
        }));
        Ok(())
    }

    /// Labels the nodes that this stream records from here on, until the next label; NULL ends it. If
    /// the stream does not capture, the call does nothing.
    fn otr_capture_label(stream: otr_stream_t, label: *const c_char) {
        let label = if label.is_null() { "" } else { text(label, "label")? };
        hooks::stream(stream)?.capture_label(label);
        Ok(())
    }

    /// Records a conditional node; see otr_graph_add_conditional.
    fn otr_capture_conditional(
        stream: otr_stream_t,
        kind: u32,
        predicate: u64,
        dtype: u32,
        bodies: *const otr_graph_t,
        body_count: u32,
    ) {
        let bodies = graphs(bodies, body_count)?;
        let kind = ConditionalKind::from_raw(kind)?;
        hooks::stream(stream)?.capture_conditional(kind, predicate, DType(dtype), &bodies)
    }
}
