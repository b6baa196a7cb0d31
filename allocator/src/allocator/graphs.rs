//! What execution graphs need: private pools for the memory that a replay touches again, and holds on
//! the memory of others that it uses.
//!
//! A pool that is being released must never keep memory from the device for want of somebody to wait:
//! what cannot go at once goes with the next free, growth or [`Allocator::empty_cache`].

use super::Allocator;
use crate::heap::Place;
use crate::{
    Allocation, Backend, FreeError, PoolAllocError, PoolError, PoolId, PoolStats, StreamId,
};

impl<B: Backend> Allocator<B> {
    /// Makes a private pool, with one reference. It holds no memory yet.
    pub fn pool_create(&self) -> PoolId {
        self.heap.lock().pool_create()
    }

    /// Adds a reference to a pool.
    ///
    /// # Errors
    /// The pool was released or never made.
    pub fn pool_retain(&self, pool: PoolId) -> Result<(), PoolError> {
        self.heap.lock().pool_retain(pool)
    }

    /// Gives a reference to a pool back. With the last one the pool is released: its idle segments go
    /// back to the device, after a fence behind the work of their streams, which is waited for; each
    /// other segment goes once its last block is free and its streams have passed.
    ///
    /// # Errors
    /// The pool was released or never made.
    pub fn pool_release(&self, pool: PoolId) -> Result<(), PoolError> {
        let next = self.heap.lock().pool_release(pool)?;
        self.give_back_retired(next);
        Ok(())
    }

    /// Allocates at least `size` bytes for work on `stream` from segments of this pool alone. A size
    /// of 0 gets the smallest block. [`free`](Self::free) takes it back to the pool.
    ///
    /// # Errors
    /// The pool was released or never made; or those of [`alloc`](Self::alloc).
    pub fn alloc_in(
        &self,
        pool: PoolId,
        size: u64,
        stream: StreamId,
    ) -> Result<Allocation, PoolAllocError<B::Error>> {
        let place = Place {
            pool: Some(pool),
            stream,
        };
        let request = self.config.request(size);
        let mut heap = self.heap.lock();
        heap.pool_check(pool).map_err(PoolAllocError::Pool)?;
        let Some(request) = request else {
            drop(heap);
            return Err(PoolAllocError::Alloc(self.out_of_memory(size, stream)));
        };
        if let Some(found) = heap.alloc_at(&request, place) {
            return Ok(found);
        }
        // Released by another thread meanwhile, the pool is still there for the new segment.
        heap.pool_pin(pool);
        drop(heap);
        let result = self.alloc_slow(&request, place);
        let next = self.heap.lock().pool_unpin(pool);
        self.give_back_retired(next);
        result.map_err(PoolAllocError::Alloc)
    }

    /// A pool's figures of now; `None` if it was never made, or was released and has no memory left.
    pub fn pool_stats(&self, pool: PoolId) -> Option<PoolStats> {
        self.heap.lock().pool_stats(pool)
    }

    /// Keeps the block around any address out of reuse, whoever frees it, and returns where it starts.
    /// Holds count: each needs its own [`unhold`](Self::unhold). A block that its owner has freed takes
    /// further holds while it has one.
    ///
    /// # Errors
    /// The address is in memory that is free, or not held from the device.
    pub fn hold(&self, any_address: u64) -> Result<u64, FreeError> {
        self.heap.lock().hold(any_address)
    }

    /// Gives back a hold of the block that starts at `base`. Work that uses the block through this hold
    /// is finished, or is on the stream that it was allocated for, or
    /// [`record_stream`](Self::record_stream) was called for its stream, for which a freed block may
    /// still be named: it is reused only after what that stream had been given by now has finished.
    ///
    /// # Errors
    /// The block has no hold, or the address is not where a block starts.
    pub fn unhold(&self, base: u64) -> Result<(), FreeError> {
        let next = self.heap.lock().unhold(base)?;
        self.go_on(next);
        Ok(())
    }
}
