//! Nodes of CUDA's graphs: what a kernel, a copy and a fill are as nodes, and graphs that are made of them.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use outrigger_driver_kit::Result;
use parking_lot::Mutex;

use crate::commands::{Column, Copy, Way};
use crate::cuda;
use crate::device::Device;
use crate::driver::Open;
use crate::launch::{Launch, with_arguments};
use crate::product::{self, Product};

/// The work of a node.
pub(crate) enum Work<'a> {
    Kernel(&'a Launch),
    /// A copy within the device, or from or to pinned memory.
    Copy(Copy),
    Fill(Column),
    Product(&'a Product, &'a product::Launch),
}

/// A node of a graph.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Node(cuda::GraphNode);

// SAFETY: a node is used with its graph, which one thread uses at a time.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

/// A graph that nodes are put into, and then its executable form.
pub(crate) struct Nodes {
    open: Arc<Open>,
    device: u32,
    graph: cuda::Graph,
    exec: cuda::GraphExec,
    /// CUDA wants one thread at a time to use a graph.
    turn: Mutex<()>,
}

// SAFETY: any thread may use it, one at a time, which `turn` and `&mut self` see to.
unsafe impl Send for Nodes {}
// SAFETY: as above.
unsafe impl Sync for Nodes {}

impl Nodes {
    /// An empty graph. The context of the device is entered, here and for all other functions.
    pub(crate) fn new(open: &Arc<Open>, index: u32) -> Result<Self> {
        let device = open.device(index)?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: a place for the graph; 0 is the only flag.
        let made = unsafe { (device.cuda.graph_create)(&mut graph, 0) };
        device.check(made, "cuGraphCreate")?;
        Ok(Self {
            open: Arc::clone(open),
            device: index,
            graph,
            exec: std::ptr::null_mut(),
            turn: Mutex::new(()),
        })
    }

    fn device(&self) -> &Device {
        &self.open.devices[self.device as usize]
    }

    /// Puts a node into the graph, behind others of it.
    pub(crate) fn add(&mut self, work: &Work<'_>, behind: &[Node]) -> Result<Node> {
        let device = self.device();
        let (cuda, graph) = (device.cuda, self.graph);
        let (nodes, count) = (behind.as_ptr().cast::<cuda::GraphNode>(), behind.len());
        let mut node = std::ptr::null_mut();
        // SAFETY: for all calls of this block: a place for the node, nodes of this graph, and parameters that live
        // through the call, in which CUDA copies them. R31: what they name lives as long as the graph.
        let (added, what) = unsafe {
            match work {
                Work::Product(product, launch) => {
                    let given = self.captured(product, launch)?;
                    let added = (cuda.add_graph)(&mut node, graph, nodes, count, given.0);
                    (added, "cuGraphAddChildGraphNode")
                }
                Work::Kernel(launch) => {
                    let added = with_kernel(launch, |given| {
                        (cuda.add_kernel)(&mut node, graph, nodes, count, given)
                    });
                    (added, "cuGraphAddKernelNode")
                }
                Work::Copy(copy) => {
                    let given = copy_of(copy);
                    let added =
                        (cuda.add_copy)(&mut node, graph, nodes, count, &given, device.context());
                    (added, "cuGraphAddMemcpyNode")
                }
                Work::Fill(column) => {
                    let given = fill_of(column);
                    let added =
                        (cuda.add_fill)(&mut node, graph, nodes, count, &given, device.context());
                    (added, "cuGraphAddMemsetNode")
                }
            }
        };
        device.check(added, what)?;
        Ok(Node(node))
    }

    /// All nodes are in it.
    pub(crate) fn instantiate(&mut self) -> Result {
        let device = self.device();
        let mut exec = std::ptr::null_mut();
        // SAFETY: a place for the result, and a live graph; no flag is asked for.
        let made = unsafe { (device.cuda.graph_instantiate)(&mut exec, self.graph, 0) };
        device.check(made, "cuGraphInstantiate")?;
        self.exec = exec;
        Ok(())
    }

    /// Gives a node other parameters, for later launches. CUDA takes them or changes nothing.
    pub(crate) fn set(&mut self, node: Node, work: &Work<'_>) -> Result {
        let device = self.device();
        let (cuda, exec, node) = (device.cuda, self.exec, node.0);
        // SAFETY: for all calls of this block: an executable graph, and a node of the graph that it was made of; the
        // parameters as for `add`.
        let (set, what) = unsafe {
            match work {
                Work::Product(product, launch) => {
                    let given = self.captured(product, launch)?;
                    let set = (cuda.set_graph)(exec, node, given.0);
                    (set, "cuGraphExecChildGraphNodeSetParams")
                }
                Work::Kernel(launch) => {
                    let set = with_kernel(launch, |given| (cuda.set_kernel)(exec, node, given));
                    (set, "cuGraphExecKernelNodeSetParams")
                }
                Work::Copy(copy) => {
                    let set = (cuda.set_copy)(exec, node, &copy_of(copy), device.context());
                    (set, "cuGraphExecMemcpyNodeSetParams")
                }
                Work::Fill(column) => {
                    let set = (cuda.set_fill)(exec, node, &fill_of(column), device.context());
                    (set, "cuGraphExecMemsetNodeSetParams")
                }
            }
        };
        device.check(set, what)
    }

    /// The work that cuBLASLt puts into a stream, as a graph. The stream is of nobody else, so that nobody can break
    /// the capture.
    fn captured(&self, product: &Product, launch: &product::Launch) -> Result<Captured<'_>> {
        let device = self.device();
        let cuda = device.cuda;
        let handle = self.open.library.handle(device)?;
        let stream = Private::new(device)?;
        // The first launch of a kernel may load its code, which the other modes forbid to this thread.
        // SAFETY: a live stream, into which nothing was put.
        let begun = unsafe { (cuda.capture_begin)(stream.raw, cuda::CAPTURE_RELAXED) };
        device.check(begun, "cuStreamBeginCapture")?;
        let issued = product.issue(&handle, device, stream.raw, launch);
        let mut graph = std::ptr::null_mut();
        // SAFETY: a stream that captures, and a place for the graph. It ends also where it has failed.
        let ended = unsafe { (cuda.capture_end)(stream.raw, &mut graph) };
        let ended = device.check(ended, "cuStreamEndCapture");
        let captured = Captured(graph, device);
        issued.and(ended).map(|()| captured)
    }

    /// Puts a launch of the graph into a stream of its device.
    pub(crate) fn launch(&self, stream: cuda::Stream) -> Result {
        let device = self.device();
        let _turn = self.turn.lock();
        // SAFETY: an executable graph, which no other thread uses now, and a live stream.
        let launched = unsafe { (device.cuda.graph_launch)(self.exec, stream) };
        device.check(launched, "cuGraphLaunch")
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let device = self.device();
        // A context that is lost takes its graphs along.
        if let Ok(_entered) = device.enter() {
            // SAFETY: made by this, and used no more. What is launched still runs, and goes then.
            unsafe {
                if !self.exec.is_null() {
                    (device.cuda.graph_exec_destroy)(self.exec);
                }
                (device.cuda.graph_destroy)(self.graph);
            }
        }
    }
}

/// A graph that was captured. It is copied where it is used.
struct Captured<'a>(cuda::Graph, &'a Device);

impl Drop for Captured<'_> {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by the end of a capture, and used no more.
            unsafe { (self.1.cuda.graph_destroy)(self.0) };
        }
    }
}

/// A stream for a capture.
struct Private<'a> {
    raw: cuda::Stream,
    device: &'a Device,
}

impl<'a> Private<'a> {
    fn new(device: &'a Device) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place for the stream.
        let made = unsafe {
            (device.cuda.stream_create)(&mut raw, cuda::STREAM_NON_BLOCKING, device.priorities().0)
        };
        device.check(made, "cuStreamCreateWithPriority")?;
        Ok(Self { raw, device })
    }
}

impl Drop for Private<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and used no more.
        unsafe { (self.device.cuda.stream_destroy)(self.raw) };
    }
}

fn with_kernel<R>(launch: &Launch, with: impl FnOnce(*const cuda::KernelNode) -> R) -> R {
    let block = (launch.block.as_ptr(), launch.block.len());
    let shape = launch.shape;
    let call = |parameters: *mut *mut c_void, extra: *mut *mut c_void| {
        let node = cuda::KernelNode {
            function: launch.function.0,
            grid: shape.grid,
            block: shape.block,
            shared: shape.shared,
            parameters,
            extra,
        };
        with(&node)
    };
    // SAFETY: the offsets were checked against the block when the launch was made.
    unsafe { with_arguments(block, launch.parameters.as_deref(), call) }
}

fn copy_of(copy: &Copy) -> cuda::Copy3d {
    let from_host = matches!(copy.way, Way::ToDevice { .. });
    let to_host = matches!(copy.way, Way::ToHost { .. });
    cuda::Copy3d {
        src: cuda::CopySide::row(from_host, copy.src),
        dst: cuda::CopySide::row(to_host, copy.dst),
        width: copy.size as usize,
        height: 1,
        depth: 1,
    }
}

fn fill_of(column: &Column) -> cuda::FillNode {
    let (width, height) = if column.is_dense() {
        (column.rows, 1)
    } else {
        (1, column.rows)
    };
    cuda::FillNode {
        dst: column.dst,
        pitch: column.pitch,
        value: column.value,
        word: column.word as c_uint,
        width,
        height,
    }
}
