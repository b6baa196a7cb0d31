//! Handles of graphs, and devices as graphs see them. `outrigger_graph` has the life of a graph.

use std::fmt;
use std::sync::{Arc, OnceLock};

use outrigger_allocator::{Allocation, BlockInfo, PoolGate, PoolId, PoolStats, StreamId};
use outrigger_device::Tail;
use outrigger_graph::{CaptureMode, ExecFlags, Graph, GraphExec, PoolRef, Replayed};
use outrigger_ops::{Door, OperatorId};

use crate::memory::sleep::end_sleep;
use crate::places::{self, Place};
use crate::{Device, Pool, Result, Stream};
use outrigger_handles::{Kind, Ref, Table};

static GRAPHS: Table<Graph> = Table::new(Kind::Graph);
static EXECS: Table<GraphExec> = Table::new(Kind::GraphExec);

impl Stream {
    /// Begins a capture on this stream. Memory that is allocated on the capture's streams comes from `pool`, or from a
    /// pool of the capture's own.
    ///
    /// # Errors
    /// `CAPTURE` if the stream is capturing; `INVALID_ARGUMENT` for a pool of another device.
    pub fn capture_begin(&self, mode: CaptureMode, pool: Option<&Pool>) -> Result<()> {
        let pool = pool.map(Pool::memory);
        self.begin_capture(mode, pool, self.device().captures())
    }

    /// Ends the capture that was begun on this stream, and returns its graph.
    ///
    /// # Errors
    /// The first failure of a call in the capture, or `CAPTURE` if work of another stream was not joined. In both cases
    /// the capture has ended, and its memory is given back. `INVALID_ARGUMENT` if the stream has not begun a capture.
    pub fn capture_end(&self) -> Result<Ref<Graph>> {
        let graph = self.end_capture()?;
        Ok(GRAPHS.insert(|_| graph)?)
    }

    /// The nodes that were recorded so far, as a graph that can be inspected, but not instantiated.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the stream is not capturing.
    pub fn capture_partial(&self) -> Result<Ref<Graph>> {
        let graph = self.partial_capture()?;
        Ok(GRAPHS.insert(|_| graph)?)
    }
}

impl Device {
    /// Makes an empty graph for the device. Memory that its nodes allocate comes from `pool`, or from a pool
    /// of its own.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a pool of another device; `OUT_OF_HOST_MEMORY` if too many are alive.
    pub fn create_graph(&'static self, pool: Option<&Pool>) -> Result<Ref<Graph>> {
        let graph = Graph::new(self, pool.map(Pool::memory))?;
        Ok(GRAPHS.insert(|_| graph)?)
    }
}

/// The graph with this id.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live graph.
pub fn graph(id: u64) -> Result<Ref<Graph>> {
    Ok(GRAPHS.get(id)?)
}

/// Destroys a graph. Executable graphs that were instantiated from it live on.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live graph.
pub fn destroy_graph(id: u64) -> Result<()> {
    drop(GRAPHS.remove(id)?);
    Ok(())
}

/// Instantiates a graph.
///
/// # Errors
/// Those of [`Graph::instantiate`]; `OUT_OF_HOST_MEMORY` if too many are alive.
pub fn instantiate(graph: &Graph, flags: ExecFlags) -> Result<Ref<GraphExec>> {
    let exec = graph.instantiate(flags)?;
    Ok(EXECS.insert(|_| exec)?)
}

/// The executable graph with this id.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live executable graph.
#[inline]
pub fn graph_exec(id: u64) -> Result<Ref<GraphExec>> {
    Ok(EXECS.get(id)?)
}

/// Destroys an executable graph without waiting. Replays that were submitted still run, and what they use is given back
/// afterwards.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live executable graph.
pub fn destroy_graph_exec(id: u64) -> Result<()> {
    drop(EXECS.remove(id)?);
    Ok(())
}

impl outrigger_graph::Device for Device {
    fn index(&self) -> u32 {
        self.index()
    }

    fn door(&self) -> &Door {
        self.door()
    }

    fn admit_host_kernel(&self, id: OperatorId) -> Result<()> {
        self.admit_host_kernel(id)
    }

    fn count_replayed(&self, operator: &Replayed) {
        let place = if operator.driver {
            Place::Device
        } else {
            self.host_kernel_place()
        };
        places::count(operator.operator, place, operator.nodes);
    }

    fn native_cheaper(&self) -> &OnceLock<bool> {
        self.native_cheaper()
    }

    fn check_range(&self, what: &dyn fmt::Display, address: u64, size: u64) -> Result<()> {
        self.check_range(what, address, size)
    }

    fn lookup(&self, address: u64) -> Option<BlockInfo> {
        self.allocator().lookup(address)
    }

    fn any_asleep(&self) -> bool {
        self.sleeping().any()
    }

    fn check_awake(&self, address: u64) -> Result<()> {
        self.check_awake(address)
    }

    fn hold(&self, address: u64) -> Result<u64> {
        self.hold(address)
    }

    fn unhold(&self, base: u64) {
        self.unhold(base);
    }

    fn record_stream(&self, base: u64, stream: u64) {
        // The call cannot fail: the block is held, and a held block may be recorded even after the host has freed it.
        let _ = self.record(base, stream);
    }

    fn alloc_in(&self, pool: &PoolRef, size: u64, stream: StreamId) -> Result<Allocation> {
        self.alloc_in(pool, size, stream)
    }

    fn free_block(&self, address: u64) {
        self.free_block(address);
    }

    fn pool_create(&self) -> (PoolId, PoolGate) {
        let pool = self.allocator().pool_create();
        let gate = self.allocator().pool_gate(pool);
        let gate = gate.expect("a pool has a gate as long as it has references");
        (pool, gate)
    }

    fn pool_release(&self, pool: PoolId) {
        end_sleep(self, pool);
        if let Err(error) = self.allocator().pool_release(pool) {
            tracing::error!(target: "outrigger::graph", %error, "a pool was released twice");
        }
    }

    fn pool_stats(&self, pool: PoolId) -> PoolStats {
        self.allocator().pool_stats(pool).unwrap_or_default()
    }

    fn is_asleep(&self, pool: PoolId) -> bool {
        self.sleeping().bytes_of(pool).is_some()
    }

    fn try_enter(&self, gate: &PoolGate, stream: StreamId) -> bool {
        self.allocator().pool_try_enter(gate, stream)
    }

    fn enter(&self, gate: &PoolGate, stream: Option<StreamId>) -> Result<()> {
        let entered = self.allocator().pool_enter(gate, stream);
        entered.map_err(|error| self.alloc_failed(error))
    }

    fn default_stream(&self) -> u64 {
        self.default_stream().id()
    }

    fn fence(&self, stream: u64) -> Result<Option<Arc<Tail>>> {
        self.timelines().fence(stream)
    }

    fn retire(&self, stream: Option<u64>, kept: Box<dyn Send>) {
        self.retire(stream, kept);
    }

    fn sweep_retired(&self) {
        self.sweep_retired();
    }
}
