//! Host memory that CUDA has pinned.

use std::collections::BTreeMap;
use std::ffi::c_void;

use outrigger_driver_kit::{Fault, Result};
use parking_lot::RwLock;

use crate::cuda;
use crate::device::Device;

/// Host memory that CUDA has pinned, by its address.
#[derive(Default)]
pub(crate) struct Pinned(RwLock<BTreeMap<u64, Block>>);

#[derive(Clone, Copy)]
struct Block {
    size: u64,
    /// The device in whose context the block was pinned.
    device: u32,
    /// Whether the block was the host's before it was pinned, and is so afterwards.
    registered: bool,
}

impl Pinned {
    pub(crate) fn count(&self) -> usize {
        self.0.read().len()
    }

    /// Whether all bytes of a range are in one block.
    pub(crate) fn has(&self, address: u64, size: u64) -> bool {
        let blocks = self.0.read();
        let block = blocks.range(..=address).next_back();
        block.is_some_and(|(start, block)| {
            let offset = address - start;
            offset < block.size && size <= block.size - offset
        })
    }

    /// The number of blocks that were pinned in the context of a device.
    pub(crate) fn count_of(&self, device: u32) -> usize {
        let blocks = self.0.read();
        blocks
            .values()
            .filter(|block| block.device == device)
            .count()
    }

    pub(crate) fn add(&self, pointer: *mut c_void, size: u64, registered: bool, device: u32) {
        let block = Block {
            size,
            device,
            registered,
        };
        self.0.write().insert(pointer as u64, block);
    }

    /// Takes a block from the books, and says whose context it was pinned in.
    pub(crate) fn take(&self, pointer: *mut c_void, registered: bool) -> Result<u32> {
        let mut blocks = self.0.write();
        match blocks.get(&(pointer as u64)) {
            Some(block) if block.registered == registered => {
                let device = block.device;
                blocks.remove(&(pointer as u64));
                Ok(device)
            }
            _ => {
                let how = if registered { "pinned" } else { "allocated" };
                Err(Fault::argument(format!(
                    "{pointer:p} is not memory that this driver has {how}"
                )))
            }
        }
    }
}

/// Pinned memory of any size; the context of the device is entered.
pub(crate) fn alloc_pinned(device: &Device, size: u64) -> Result<*mut c_void> {
    let mut pointer = std::ptr::null_mut();
    // SAFETY: a place for the pointer.
    let taken =
        unsafe { (device.cuda.host_alloc)(&mut pointer, size as usize, cuda::HOST_ALLOC_PORTABLE) };
    if taken == cuda::ERROR_OUT_OF_MEMORY {
        return Err(Fault::host_memory(format!(
            "{size} bytes of pinned host memory are not to be had"
        )));
    }
    device.check(taken, "cuMemHostAlloc")?;
    Ok(pointer)
}
