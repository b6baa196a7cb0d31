//! Graphs whose memory is of a pool: replays may touch whatever is free there, since other graphs of the pool
//! or the same one have freed it while they were recorded. Who frees memory of a pool orders replays behind
//! its use; what others have done with that memory meanwhile, the allocator does.

use std::ops::Range;

use outrigger_allocator::{AllocError, Backend, BlockState, PoolId, StreamId};

use super::Model;
use crate::sim::{Refusal, State};

impl Model {
    /// Replays a graph of the n-th pool.
    pub(super) fn replay(&mut self, pool: usize, stream: StreamId) {
        let Some(pool) = self.graph_pool(pool) else {
            return;
        };
        if self.sim.0.lock().captures.contains_key(&stream) {
            return;
        }
        if let Some(&last) = self.replayed.get(&pool) {
            let fence = self.sim.submitted(last);
            let ordered = fence.is_ok_and(|fence| self.sim.order(stream, &fence));
            if !ordered {
                return;
            }
        }
        let gate = self.allocator.pool_gate(pool).unwrap();
        gate.open();
        if !self.enter(pool, Some(stream)) {
            return;
        }
        self.replayed.insert(pool, stream);
        let free = self.free_memory_of(pool);
        let mut device = self.sim.0.lock();
        for bytes in free {
            let foreign = foreign_touch(&device, &bytes, Some(stream), &self.addresses_of(pool));
            assert_eq!(foreign, None, "a replay meets the work of others");
            device.submit(stream, bytes);
        }
        drop(device);
        gate.leave();
    }

    /// Begins to record a graph into the n-th pool, or ends that.
    pub(super) fn record(&mut self, pool: usize) {
        if let Some(pool) = self.recording.take() {
            if let Ok(gate) = self.allocator.pool_gate(pool) {
                gate.leave();
            }
            return;
        }
        let Some(pool) = self.graph_pool(pool) else {
            return;
        };
        if self.enter(pool, None) {
            self.recording = Some(pool);
            let device = self.sim.0.lock();
            for bytes in self.free_memory_of(pool) {
                let foreign = foreign_touch(&device, &bytes, None, &self.addresses_of(pool));
                assert_eq!(foreign, None, "what is recorded may run on any stream");
            }
        }
    }

    /// A thread that keeps graphs alive as long as they run has waited for them before their pool is
    /// released.
    pub(super) fn finish_replays(&self, pool: PoolId) {
        if let Some(&stream) = self.replayed.get(&pool) {
            let mut device = self.sim.0.lock();
            let all = device.submitted.get(&stream).copied();
            device.finish(stream, all.unwrap_or(0));
        }
    }

    /// The n-th pool, if it may be used.
    fn graph_pool(&self, pool: usize) -> Option<PoolId> {
        let pool = self.pools.get(pool % self.pools.len().max(1))?;
        (pool.references > 0).then_some(pool.id)
    }

    fn enter(&mut self, pool: PoolId, stream: Option<StreamId>) -> bool {
        let faults_before = self.faults_so_far();
        let gate = self.allocator.pool_gate(pool).unwrap();
        let entered = self.allocator.pool_enter(&gate, stream);
        self.count_ooms();
        let faulty = self.faults_so_far() > faults_before;
        match entered {
            Ok(()) => {}
            Err(AllocError::OutOfMemory(_)) => {
                let bounded = self.limit < u64::MAX || self.sim.0.lock().capacity < u64::MAX / 2;
                assert!(faulty || bounded);
                return false;
            }
            Err(AllocError::Backend(Refusal::Broken)) => {
                assert!(faulty);
                return false;
            }
            Err(error) => panic!("{error:?}"),
        }
        let snapshot = self.allocator.snapshot();
        let its = snapshot.segments.iter().filter(|it| it.pool == Some(pool));
        let mut blocks = its.flat_map(|segment| &segment.blocks);
        assert!(
            blocks.all(|block| block.state != BlockState::Lent),
            "something of the pool is lent while somebody is inside"
        );
        true
    }

    /// Errors that a replay has met are not those of an allocation.
    fn count_ooms(&mut self) {
        self.ooms = self.allocator.stats().ooms;
    }

    /// The free memory of a pool.
    fn free_memory_of(&self, pool: PoolId) -> Vec<Range<u64>> {
        let snapshot = self.allocator.snapshot();
        let its = snapshot.segments.iter().filter(|it| it.pool == Some(pool));
        let blocks = its.flat_map(|segment| segment.blocks.iter());
        let free = blocks.filter(|block| block.state == BlockState::Free);
        free.map(|block| block.address..block.address + block.size)
            .collect()
    }

    /// All addresses of a pool that have memory.
    pub(super) fn addresses_of(&self, pool: PoolId) -> Vec<Range<u64>> {
        let snapshot = self.allocator.snapshot();
        let its = snapshot.segments.iter().filter(|it| it.pool == Some(pool));
        its.map(|segment| segment.address..segment.address + segment.size)
            .collect()
    }
}

/// Work on the memory behind some addresses, as [`State::touched`], that was given it elsewhere than at the
/// addresses of its own pool.
pub(super) fn foreign_touch(
    device: &State,
    bytes: &Range<u64>,
    but: Option<StreamId>,
    own: &[Range<u64>],
) -> Option<String> {
    let mut touches = device.touches_of(bytes, but);
    let foreign = touches.find(|touch| {
        let inside =
            |own: &Range<u64>| own.start <= touch.bytes.start && touch.bytes.end <= own.end;
        !own.iter().any(inside)
    });
    foreign.map(|touch| format!("{touch:?}"))
}
