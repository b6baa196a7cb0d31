//! What a device has imported of the memory of other processes. How memory is exported and imported is `ipc`'s.

use std::collections::BTreeMap;

use outrigger_device::Physical;
use outrigger_locks::{Rank, RwLock};

/// Memory of another process.
pub(crate) struct Import {
    pub(crate) size: u64,
    pub(crate) mapped: Mapped,
}

/// How it got here.
pub(crate) enum Mapped {
    /// The driver has mapped another's allocation, which starts here.
    Allocation(u64),
    /// Physical memory, mapped at addresses that were reserved for it.
    Pieces {
        address: u64,
        size: u64,
        physical: Vec<Physical>,
    },
}

/// What a device has imported, by address.
pub(crate) struct Imports(RwLock<BTreeMap<u64, Import>>);

impl Default for Imports {
    fn default() -> Self {
        Self(RwLock::new(Rank::Imports, BTreeMap::new()))
    }
}

impl Imports {
    /// Puts an import in, at its address.
    pub(crate) fn insert(&self, base: u64, import: Import) {
        self.0.write().insert(base, import);
    }

    /// Takes the import at an address out.
    pub(crate) fn remove(&self, base: u64) -> Option<Import> {
        self.0.write().remove(&base)
    }

    /// The start and size of the imported allocation around an address.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, u64)> {
        let imports = self.0.read();
        let (&base, import) = imports.range(..=address).next_back()?;
        (address - base < import.size).then_some((base, import.size))
    }
}
