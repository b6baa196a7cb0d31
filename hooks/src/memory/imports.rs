//! The memory of other processes that a device has imported. `ipc` exports, imports and closes memory.

use std::collections::BTreeMap;

use outrigger_device::Physical;
use outrigger_locks::{Rank, RwLock};

/// An import: memory of another process.
pub(crate) struct Import {
    pub(crate) size: u64,
    pub(crate) mapped: Mapped,
}

/// The way in which the memory is mapped here.
pub(crate) enum Mapped {
    /// The driver mapped an allocation of the other process, which starts here.
    Allocation(u64),
    /// Physical memory, mapped at addresses that this process reserved.
    Pieces {
        address: u64,
        size: u64,
        physical: Vec<Physical>,
    },
}

/// The imported memory of a device, by address.
pub(crate) struct Imports(RwLock<BTreeMap<u64, Import>>);

impl Default for Imports {
    fn default() -> Self {
        Self(RwLock::new(Rank::Imports, BTreeMap::new()))
    }
}

impl Imports {
    /// Adds an import at its address.
    pub(crate) fn insert(&self, base: u64, import: Import) {
        self.0.write().insert(base, import);
    }

    /// Removes the import at an address.
    pub(crate) fn remove(&self, base: u64) -> Option<Import> {
        self.0.write().remove(&base)
    }

    /// The start and size of the import that contains an address.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, u64)> {
        let imports = self.0.read();
        let (&base, import) = imports.range(..=address).next_back()?;
        (address - base < import.size).then_some((base, import.size))
    }
}
