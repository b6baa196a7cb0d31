//! The buffers that a graph uses. Each address is looked up once, and memory that is not of the graph's pool is held.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use outrigger_device::Code;

use crate::dag::{Buffer, BufferId};
use crate::data::{Resources, buffer};
use crate::{Error, Result};

/// The buffers and live allocations that are known while a graph is recorded or built.
#[derive(Clone, Debug, Default)]
pub(crate) struct BufferMap {
    by_base: HashMap<u64, BufferId>,
    by_address: HashMap<u64, BufferId>,
    /// Buffers whose allocation has been freed.
    ended: HashSet<BufferId>,
    /// Bases of live allocations from the graph's pool.
    own: HashSet<u64>,
}

impl BufferMap {
    /// Notes an allocation from the graph's pool.
    pub(crate) fn allocated(&mut self, base: u64) {
        self.own.insert(base);
    }

    /// The buffer of an allocation that another graph uses: the one that this graph has for it, else what `add` gives.
    /// An allocation has one buffer, so that a writer and a reader of it are seen to use the same memory.
    pub(crate) fn adopt(&mut self, base: u64, add: impl FnOnce() -> BufferId) -> BufferId {
        *self.by_base.entry(base).or_insert_with(add)
    }

    /// Notes that an allocation is freed. Returns its buffer if the graph made the allocation and uses it.
    pub(crate) fn freed(&mut self, base: u64) -> Option<BufferId> {
        let own = self.own.remove(&base);
        let buffer = self.by_base.remove(&base)?;
        self.ended.insert(buffer);
        own.then_some(buffer)
    }
}

/// Finds the buffers of one command.
pub(crate) struct Resolver<'a> {
    pub(crate) map: &'a mut BufferMap,
    pub(crate) resources: &'a Arc<Resources>,
    pub(crate) add: &'a mut dyn FnMut(Buffer) -> BufferId,
}

impl Resolver<'_> {
    /// The buffer that contains an address.
    pub(crate) fn resolve(&mut self, address: u64) -> Result<BufferId> {
        let map = &mut *self.map;
        if let Some(&found) = map.by_address.get(&address)
            && !map.ended.contains(&found)
        {
            return Ok(found);
        }
        let device = self.resources.device;
        let block = device.lookup(address).filter(|block| !block.free);
        let Some(block) = block else {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "{address:#x} is not in live memory of device {}: a graph takes only memory that it \
                     can keep alive",
                    device.index()
                ),
            ));
        };
        let id = match map.by_base.get(&block.base) {
            Some(&known) => known,
            None => {
                if block.pool != Some(self.resources.pool.pool()) {
                    self.resources.hold(block.base)?;
                }
                let id = (self.add)(buffer(block.base, block.size));
                map.by_base.insert(block.base, id);
                id
            }
        };
        map.by_address.insert(address, id);
        Ok(id)
    }

    /// The buffer of memory that another graph uses, whose resources this graph keeps.
    pub(crate) fn adopt(&mut self, buffer: &Buffer) -> BufferId {
        let (map, add) = (&mut *self.map, &mut *self.add);
        map.adopt(buffer.address, || add(*buffer))
    }

    /// Keeps a block of the graph's pool that an operator uses as workspace.
    pub(crate) fn own_block(&mut self, address: u64) {
        self.resources.own_block(address);
    }
}
