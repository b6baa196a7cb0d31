//! Graphs, captured or built node by node.

use std::ops::Deref;
use std::sync::Arc;

use outrigger_allocator::StreamId;
use outrigger_device::{Code, CopyKind, DType, sys};
use outrigger_locks::{Mutex, Rank};
use outrigger_ops::{Call, OperatorId};

use crate::buffers::{BufferMap, Resolver};
use crate::dag::{Dag, Kind, NodeId};
use crate::data::{
    Command, ConditionalKind, DrawWord, GraphData, Named, NamedThing, Resources, Store, Work,
    access, buffer,
};
use crate::kernel::DeviceCall;
use crate::memory::{Device, PoolRef};
use crate::record::{self, Condition, DriverNode, HostNode, KernelCall, Recorded};
use crate::{Error, Result};

/// Nodes and edges that can be inspected, added to, and instantiated.
#[derive(Debug)]
pub struct Graph {
    partial: bool,
    inner: Mutex<Inner>,
}

/// The part of a graph that its lock guards.
#[derive(Debug)]
struct Inner {
    data: Arc<GraphData>,
    map: BufferMap,
    /// Memory that nodes of this graph have freed: address, size and node. An allocation that gets the memory again
    /// runs after that node.
    freed: Vec<(u64, u64, NodeId)>,
}

/// Figures of a graph.
#[derive(Clone, Copy, Debug)]
pub struct GraphInfo {
    /// The device of the graph.
    pub device: u32,
    /// The number of nodes.
    pub nodes: u32,
    /// The number of edges.
    pub edges: u32,
    /// Bytes that its pool holds.
    pub memory_bytes: u64,
    /// Whether the graph is what a capture had recorded at some moment. Such a graph can be inspected, but not run.
    pub partial: bool,
}

/// The format of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpFormat {
    /// The language of Graphviz.
    Dot,
    /// Nodes and buffers as JSON.
    Json,
    /// A picture as SVG.
    Svg,
}

impl Graph {
    /// An empty graph for a device. Memory that its nodes allocate comes from `pool`, or from a pool of its own.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a pool of another device.
    pub fn new(device: &'static dyn Device, pool: Option<&Arc<PoolRef>>) -> Result<Self> {
        let pool = PoolRef::given_or_new(pool, device, "graph")?;
        let data = GraphData {
            graph: Dag::default(),
            store: Store::default(),
            names: Vec::new(),
            resources: Arc::new(Resources::new(pool)),
            others: Vec::new(),
        };
        Ok(Self::over(data, BufferMap::default(), false))
    }

    pub(crate) fn over(data: GraphData, map: BufferMap, partial: bool) -> Self {
        Self {
            partial,
            inner: Mutex::new(
                Rank::Graph,
                Inner {
                    data: Arc::new(data),
                    map,
                    freed: Vec::new(),
                },
            ),
        }
    }

    /// Figures of the graph.
    pub fn info(&self) -> GraphInfo {
        let data = &self.inner.lock().data;
        GraphInfo {
            device: data.resources.device.index(),
            nodes: data.graph.len() as u32,
            edges: data.graph.edge_count() as u32,
            memory_bytes: data.resources.pool.stats().reserved,
            partial: self.partial,
        }
    }

    /// The graph in a format, under a name.
    pub fn dump(&self, name: &str, format: DumpFormat) -> String {
        let data = Arc::clone(&self.inner.lock().data);
        match format {
            DumpFormat::Dot => data.graph.to_dot(name),
            DumpFormat::Json => data.graph.to_json().to_string(),
            DumpFormat::Svg => data.graph.to_svg(),
        }
    }

    /// The contents of the graph as they are now.
    ///
    /// # Errors
    /// `CAPTURE` for a partial graph.
    pub(crate) fn data(&self) -> Result<Arc<GraphData>> {
        if self.partial {
            return Err(Error::new(
                Code::CAPTURE,
                "the graph is what a capture had recorded at some moment: it can be looked at, not run",
            ));
        }
        Ok(Arc::clone(&self.inner.lock().data))
    }

    /// The device of the graph, and the pool of its memory.
    fn memory(&self) -> (&'static dyn Device, Arc<PoolRef>) {
        let resources = &self.inner.lock().data.resources;
        (resources.device, Arc::clone(&resources.pool))
    }

    /// Names a buffer, so that other memory can be bound in its place.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the range is not in a live allocation, or the name is empty or taken.
    pub fn name_buffer(&self, name: &str, address: u64, size: u64) -> Result<()> {
        let device = self.inner.lock().data.resources.device;
        device.check_range(&"buffer", address, size)?;
        self.name(name, NamedThing::Buffer { address, size })
    }

    /// Names a scalar of an operator's node, so that another number can be bound in its place.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is no such node or scalar; `INVALID_ARGUMENT` if the name is empty or taken.
    pub fn name_scalar(&self, name: &str, node: NodeId, index: u32) -> Result<()> {
        let data = Arc::clone(&self.inner.lock().data);
        let call = data
            .graph
            .node(node)
            .and_then(|node| node.spec.command.call);
        let count = call.map(|call| call.with(&data.store.calls, |_, call| call.scalars.len()));
        if count.is_none_or(|count| index as usize >= count) {
            return Err(Error::new(
                Code::NOT_FOUND,
                match count {
                    None => format!("node {node} is not an operator of this graph"),
                    Some(count) => {
                        format!("node {node} has {count} scalars, and none of number {index}")
                    }
                },
            ));
        }
        self.name(name, NamedThing::Scalar { node, index })
    }

    /// Names an argument of a kernel of a module, by its number, so that replays may use another value. Addresses are
    /// named as [buffers](Self::name_buffer).
    ///
    /// # Errors
    /// `NOT_FOUND` if the node has no such argument; `INVALID_ARGUMENT` for one that is no value, and as
    /// [`name_buffer`](Self::name_buffer) for the name.
    pub fn name_argument(&self, name: &str, node: NodeId, index: u32) -> Result<()> {
        let data = Arc::clone(&self.inner.lock().data);
        let command = data.graph.node(node).map(|node| &node.spec.command);
        let Some((words, kernel)) = command.and_then(|command| match &command.work {
            Work::Device(kernel) => Some((&command.words, kernel)),
            _ => None,
        }) else {
            let text = format!("node {node} is not a kernel of a module in this graph");
            return Err(Error::new(Code::NOT_FOUND, text));
        };
        let Some(part) = kernel.parts.get(index as usize) else {
            let text = format!(
                "node {node} has {} arguments, and none of number {index}",
                kernel.parts.len()
            );
            return Err(Error::new(Code::NOT_FOUND, text));
        };
        if part.kind != sys::OTR_ARGUMENT_VALUE {
            let text = format!(
                "argument {index} of node {node} is not a value: an address is named as a buffer"
            );
            return Err(Error::new(Code::INVALID_ARGUMENT, text));
        }
        let (first, size) = (8 * words.start + part.offset, part.size);
        self.name(name, NamedThing::Argument { first, size })
    }

    fn name(&self, name: &str, what: NamedThing) -> Result<()> {
        let mut inner = self.inner.lock();
        if name.is_empty() || inner.data.names.iter().any(|one| one.name == name) {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!("the name '{name}' is empty or taken: the names of a graph must be unique"),
            ));
        }
        Arc::make_mut(&mut inner.data).names.push(Named {
            name: name.to_owned(),
            what,
        });
        Ok(())
    }

    // ---- Building ------------------------------------------------------------------------------

    fn add(
        &self,
        deps: &[NodeId],
        command: impl FnOnce(&'static dyn Device, &mut Store, &mut Resolver<'_>) -> Result<Recorded>,
    ) -> Result<NodeId> {
        if self.partial {
            self.data()?;
        }
        let mut inner = self.inner.lock();
        let Inner { data, map, .. } = &mut *inner;
        let data = Arc::make_mut(data);
        if let Some(dep) = deps.iter().find(|&&dep| dep as usize >= data.graph.len()) {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "a node cannot run after node {dep}: the graph has {} nodes so far",
                    data.graph.len()
                ),
            ));
        }
        let GraphData {
            graph,
            store,
            resources,
            ..
        } = data;
        let (stored, accesses) = {
            let mut add = |buffer| graph.add_buffer(buffer);
            let mut resolver = Resolver {
                map,
                resources,
                add: &mut add,
            };
            command(resources.device, store, &mut resolver)?
        };
        graph
            .add(0, stored.spec(None), deps, &accesses)
            .ok_or_else(|| Error::new(Code::INTERNAL, "a buffer of a graph is missing"))
    }

    /// Adds a host kernel.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for unknown `deps` or addresses that are not in live memory.
    ///
    /// # Safety
    /// At every replay the kernel may run with this block, on the memory that its addresses name.
    pub unsafe fn add_kernel(&self, deps: &[NodeId], call: &KernelCall<'_>) -> Result<NodeId> {
        self.add(deps, |_, store, buffers| {
            record::kernel(store, buffers, call)
        })
    }

    /// Adds a kernel of a module.
    ///
    /// # Errors
    /// As [`add_kernel`](Self::add_kernel).
    ///
    /// # Safety
    /// At every replay the kernel may run with this block, on the memory that its addresses name.
    pub unsafe fn add_device_kernel(
        &self,
        deps: &[NodeId],
        call: &DeviceCall<'_>,
    ) -> Result<NodeId> {
        self.add(deps, |_, store, buffers| {
            record::device_kernel(store, buffers, call)
        })
    }

    /// Adds an operator.
    ///
    /// # Errors
    /// As [`add_kernel`](Self::add_kernel); `UNSUPPORTED` if there is no kernel for these arguments.
    pub fn add_operator(&self, deps: &[NodeId], id: OperatorId, call: &Call<'_>) -> Result<NodeId> {
        let (_, pool) = self.memory();
        // The graph is not locked here, because the call reaches the driver and observers.
        let mut driver = DriverNode::find(id, call, &pool)?;
        self.add(deps, |_, store, buffers| {
            record::operator(store, buffers, id, call, driver.as_mut())
        })
    }

    /// Adds a copy.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for unknown `deps` or a device range that is not in a live allocation.
    ///
    /// # Safety
    /// Host ranges are valid at every replay, and the two ranges do not overlap.
    pub unsafe fn add_copy(
        &self,
        deps: &[NodeId],
        dst: u64,
        src: u64,
        size: u64,
        kind: CopyKind,
    ) -> Result<NodeId> {
        self.add(deps, |device, store, buffers| {
            check_copy(device, dst, src, size, kind)?;
            record::copy(store, buffers, (dst, src, size, kind))
        })
    }

    /// Adds a fill with a pattern of 1, 2, 4, 8 or 16 bytes.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for unknown `deps`, a range that is not in a live allocation, or a pattern
    /// that does not fit.
    pub fn add_fill(&self, deps: &[NodeId], dst: u64, size: u64, pattern: &[u8]) -> Result<NodeId> {
        self.add(deps, |device, store, buffers| {
            check_pattern(size, pattern)?;
            device.check_range(&"destination", dst, size)?;
            record::fill(store, buffers, dst, size, pattern)
        })
    }

    /// Adds a host function.
    ///
    /// # Errors
    /// Those of [`add_kernel`](Self::add_kernel). Then `destroy` is not called.
    ///
    /// # Safety
    /// At every replay the function may be called with its user data, from any thread.
    pub unsafe fn add_host(&self, deps: &[NodeId], node: &HostNode<'_>) -> Result<NodeId> {
        let id = self.add(deps, |_, store, buffers| {
            record::host_node(store, buffers, node)
        })?;
        let resources = Arc::clone(&self.inner.lock().data.resources);
        resources.own(node.user, node.destroy);
        Ok(id)
    }

    /// Adds a node without work, which joins edges.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for unknown `deps`.
    pub fn add_empty(&self, deps: &[NodeId]) -> Result<NodeId> {
        self.add(deps, |_, _, _| {
            Ok((record::nothing(Kind::Empty, "empty"), Vec::new()))
        })
    }

    /// Adds a conditional node with copies of the bodies as they are now.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that says what is wrong with predicate, bodies or `deps`; `UNSUPPORTED` for bodies that draw
    /// random numbers.
    pub fn add_conditional(
        &self,
        deps: &[NodeId],
        kind: ConditionalKind,
        predicate: u64,
        dtype: DType,
        bodies: &[impl Deref<Target = Self>],
    ) -> Result<NodeId> {
        let bodies = whole(bodies)?;
        self.add(deps, |device, store, buffers| {
            let bodies = &bodies[..];
            let condition = Condition {
                kind,
                predicate,
                dtype,
                bodies,
            };
            record::conditional(device, store, buffers, &condition)
        })
    }

    /// Adds an allocation from the graph's pool. If it gets memory that another node frees, it runs after that node.
    /// The graph owns the memory until a node frees it, or the graph ends.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; `INVALID_ARGUMENT` for unknown `deps`.
    pub fn add_alloc(&self, deps: &[NodeId], size: u64) -> Result<(NodeId, u64)> {
        let (device, pool) = self.memory();
        let stream = StreamId(device.default_stream());
        let block = device.alloc_in(&pool, size.max(1), stream)?;
        let mut after = deps.to_vec();
        {
            let inner = self.inner.lock();
            let ends = |&(address, size, _): &(u64, u64, NodeId)| {
                address < block.address + block.size && block.address < address + size
            };
            after.extend(inner.freed.iter().filter(|one| ends(one)).map(|one| one.2));
        }
        let label = format!("alloc {size}");
        let added = self.add(&after, |_, _, _| {
            Ok((record::nothing(Kind::Alloc, label), Vec::new()))
        });
        let id = added.inspect_err(|_| device.free_block(block.address))?;
        let mut inner = self.inner.lock();
        inner.map.allocated(block.address);
        inner.data.resources.own_block(block.address);
        Ok((id, block.address))
    }

    /// Adds the end of an allocation that [`add_alloc`](Self::add_alloc) made. Later nodes must not use it.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the address is not that of such an allocation, or for unknown `deps`.
    pub fn add_free(&self, deps: &[NodeId], address: u64) -> Result<NodeId> {
        let resources = Arc::clone(&self.inner.lock().data.resources);
        let device = resources.device;
        let size = device.lookup(address).map_or(0, |block| block.size);
        let id = self.add(deps, |_, _, _| {
            if !resources.disown_block(address) {
                return Err(Error::new(
                    Code::INVALID_ARGUMENT,
                    format!("{address:#x} is not an allocation that a node of this graph has made"),
                ));
            }
            Ok((record::nothing(Kind::Free, "free"), Vec::new()))
        })?;
        {
            let mut inner = self.inner.lock();
            if let Some(buffer) = inner.map.freed(address) {
                Arc::make_mut(&mut inner.data).graph.set_transient(buffer);
            }
            inner.freed.push((address, size, id));
        }
        device.free_block(address);
        Ok(id)
    }

    /// Copies all nodes of another graph, to run after `deps`. The returned node runs after all of them.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for unknown `deps` or a graph of another device.
    pub fn add_child(&self, deps: &[NodeId], child: &Self) -> Result<NodeId> {
        let child = child.data()?;
        if child.resources.device.index() != self.info().device {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                "the child is a graph of another device",
            ));
        }
        let first = self.add_empty(deps)?;
        let mut inner = self.inner.lock();
        let Inner { data, map, .. } = &mut *inner;
        let leaves = Arc::make_mut(data).append(&child, map, first);
        drop(inner);
        self.add_empty(&leaves)
    }
}

/// Checks that the device ranges of a copy lie in live allocations.
fn check_copy(device: &dyn Device, dst: u64, src: u64, size: u64, kind: CopyKind) -> Result<()> {
    if kind.writes_device() {
        device.check_range(&"destination", dst, size)?;
    }
    if kind.reads_device() {
        device.check_range(&"source", src, size)?;
    }
    Ok(())
}

/// The contents of graphs, none of which is partial.
pub(crate) fn whole(graphs: &[impl Deref<Target = Graph>]) -> Result<Vec<Arc<GraphData>>> {
    graphs.iter().map(|graph| graph.data()).collect()
}

impl GraphData {
    /// Copies all nodes of another graph, to run after a node of this one. Returns those copies that no other copy runs
    /// after.
    fn append(&mut self, other: &Self, map: &mut BufferMap, first: NodeId) -> Vec<NodeId> {
        for one in std::iter::once(&other.resources).chain(&other.others) {
            let known = |known: &Arc<Resources>| Arc::ptr_eq(known, one);
            if !known(&self.resources) && !self.others.iter().any(known) {
                self.others.push(Arc::clone(one));
            }
        }
        let words = self.store.words.len() as u32;
        let calls = self.store.calls.len() as u32;
        let bodies = self.store.bodies.len();
        let nodes = self.graph.len() as NodeId;
        self.store.words.extend_from_slice(&other.store.words);
        self.store.calls.extend_from_slice(&other.store.calls);
        self.store.packed |= other.store.packed;
        self.store.bodies.extend_from_slice(&other.store.bodies);
        for one in &other.store.addresses {
            self.store.push_address(words + one.word, one.address);
        }
        // The child's numbers follow those that this graph draws before.
        let before = self.store.generators.adopt(&other.store.generators);
        for draw in &other.store.draws {
            let (seed, offset) = before[draw.generator as usize];
            self.store.draws.push(DrawWord {
                seed: draw.seed + words,
                offset: draw.offset + words,
                relative: offset.wrapping_add(draw.relative),
                generator: self.store.generators.seeded(seed),
            });
        }
        let buffers: Vec<_> = other
            .graph
            .buffers()
            .iter()
            .map(|one| {
                let mut add = || self.graph.add_buffer(buffer(one.address, one.size));
                if one.transient {
                    let id = add();
                    self.graph.set_transient(id);
                    id
                } else {
                    map.adopt(one.address, add)
                }
            })
            .collect();
        let mut leaf = vec![true; other.graph.len()];
        for (_, node) in other.graph.nodes() {
            let mut spec = node.spec.clone();
            spec.command = moved(&spec.command, words, calls, bodies);
            let deps: Vec<_> = match other.graph.deps(node) {
                [] => vec![first],
                deps => deps.iter().map(|&dep| nodes + dep).collect(),
            };
            for &dep in other.graph.deps(node) {
                leaf[dep as usize] = false;
            }
            let accesses: Vec<_> = other
                .graph
                .accesses(node)
                .iter()
                .map(|one| access(buffers[one.buffer as usize], one.reads, one.writes))
                .collect();
            let added = self.graph.add(node.lane, spec, &deps, &accesses);
            debug_assert!(
                added.is_some(),
                "nodes and buffers of the child were all added"
            );
        }
        let leaves = (0..).zip(leaf).filter(|(_, leaf)| *leaf);
        let leaves: Vec<_> = leaves.map(|(id, _): (NodeId, _)| nodes + id).collect();
        if leaves.is_empty() {
            vec![first]
        } else {
            leaves
        }
    }
}

fn moved(command: &Command, words: u32, calls: u32, bodies: usize) -> Command {
    let mut command = command.clone();
    command.words = command.words.start + words..command.words.end + words;
    command.call = command.call.map(|call| call.moved(calls));
    if let Work::Conditional(index) = &mut command.work {
        *index += bodies;
    }
    command
}

/// Checks that the length of a fill's pattern is allowed and divides the size.
///
/// # Errors
/// `INVALID_ARGUMENT` that says which lengths are allowed.
pub fn check_pattern(size: u64, pattern: &[u8]) -> Result<()> {
    if matches!(pattern.len(), 1 | 2 | 4 | 8 | 16) && size.is_multiple_of(pattern.len() as u64) {
        return Ok(());
    }
    Err(Error::new(
        Code::INVALID_ARGUMENT,
        format!(
            "a fill of {size} bytes with a pattern of {} bytes: the pattern has 1, 2, 4, 8 or 16 bytes, \
             and the size is a multiple of it",
            pattern.len()
        ),
    ))
}
