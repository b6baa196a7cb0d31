//! Operator calls in one flat array. A node keeps its call so that another scalar can be bound.

use outrigger_ops::{Call, OperatorId, packed};

/// The place of a call in the array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredCall {
    first: u32,
    len: u32,
}

impl StoredCall {
    pub(crate) fn store(calls: &mut Vec<u64>, id: OperatorId, call: &Call<'_>) -> Self {
        let block = packed::pack(id, call);
        let first = calls.len() as u32;
        calls.extend_from_slice(&block);
        let len = block.len() as u32;
        Self { first, len }
    }

    /// The same call after its array was appended to another one of `by` words.
    pub(crate) fn moved(self, by: u32) -> Self {
        let first = self.first + by;
        Self { first, ..self }
    }

    fn block(self, calls: &[u64]) -> &[u64] {
        &calls[self.first as usize..][..self.len as usize]
    }

    /// The operator that the call is of.
    pub(crate) fn operator(self, calls: &[u64]) -> OperatorId {
        packed::operator(self.block(calls))
    }

    /// Runs `with` on the stored call.
    pub(crate) fn with<R>(self, calls: &[u64], with: impl FnOnce(OperatorId, &Call<'_>) -> R) -> R {
        let block = self.block(calls);
        packed::unpack(block.to_vec(), |call| with(packed::operator(block), call))
    }
}
