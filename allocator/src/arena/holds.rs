//! Reasons to keep a block after its owner has freed it: holds, and streams that were recorded on it.
//!
//! Both are notes beside the block; one bit in the block says that it has notes. A freed block waits for its
//! holds first, and then for its streams. The fences of the streams are taken when the last hold goes, so they
//! are behind all work that was announced until then. A block with notes must never be free.

use super::{Arena, Next};
use crate::block::State;
use crate::{FreeError, StreamId};

/// The notes of a block beside its record.
#[derive(Default)]
pub(super) struct Note {
    streams: Vec<StreamId>,
    holds: u64,
}

impl Arena {
    /// Notes that a stream uses the block around an address, which was allocated for another stream; returns where it
    /// starts.
    pub(crate) fn record(&mut self, address: u64, stream: StreamId) -> Result<u64, FreeError> {
        let id = self.around(address).ok_or(FreeError::Unknown { address })?;
        if !self.is_kept(id) {
            return Err(self.why_not_in_use(address));
        }
        let base = self.blocks[id].address;
        if self.owner.is_none_or(|owner| owner.stream == stream) {
            return Ok(base);
        }
        self.blocks[id].noted = true;
        let streams = &mut self.notes.entry(id).or_default().streams;
        if !streams.contains(&stream) {
            streams.push(stream);
        }
        Ok(base)
    }

    /// Keeps the block around an address, whoever frees it; returns where it starts.
    pub(crate) fn hold(&mut self, address: u64) -> Result<u64, FreeError> {
        let id = self.around(address).ok_or(FreeError::Unknown { address })?;
        if !self.is_kept(id) {
            return Err(self.why_not_in_use(address));
        }
        self.notes.entry(id).or_default().holds += 1;
        let block = &mut self.blocks[id];
        block.noted = true;
        Ok(block.address)
    }

    /// Gives back a hold of the block at an address. Also returns the block.
    pub(crate) fn unhold(&mut self, base: u64) -> Result<(Next, u32), FreeError> {
        let id = self.index.get(&self.blocks, base);
        let note = self.notes.get_mut(&id).filter(|note| note.holds > 0);
        let Some(note) = note else {
            return Err(self.why_not_held(base));
        };
        note.holds -= 1;
        if self.blocks[id].state == State::Allocated {
            return Ok((Next::Done, id));
        }
        Ok((self.let_go(id), id))
    }

    /// Continues with a pending block, whose holds or streams may be gone.
    pub(crate) fn let_go(&mut self, id: u32) -> Next {
        if self.blocks[id].noted {
            if self.notes.get(&id).is_some_and(|note| note.holds > 0) {
                return Next::Done;
            }
            self.blocks[id].noted = false;
            let streams = self.notes.remove(&id).unwrap_or_default().streams;
            if !streams.is_empty() {
                self.blocks[id].up = streams.len() as u32;
                return Next::Wait {
                    block: id,
                    streams,
                    owner: self.owner.map(|owner| owner.stream),
                };
            }
        }
        self.passed(id)
    }

    /// Notes that one of the streams that a pending block waits for has passed.
    pub(crate) fn pass(&mut self, id: u32) -> Next {
        self.blocks[id].up -= 1;
        if self.blocks[id].up > 0 {
            return Next::Done;
        }
        self.passed(id)
    }

    /// Whether an owner or a hold still keeps a block. (A pending block without holds has no notes.)
    fn is_kept(&self, id: u32) -> bool {
        let block = &self.blocks[id];
        block.state == State::Allocated || block.noted
    }

    #[cold]
    fn why_not_held(&self, address: u64) -> FreeError {
        match self.around(address).map(|id| (id, &self.blocks[id])) {
            None => FreeError::Unknown { address },
            Some((id, block)) if block.address != address && self.is_kept(id) => {
                FreeError::Interior {
                    address,
                    base: block.address,
                }
            }
            Some(_) => FreeError::NotHeld { address },
        }
    }
}
