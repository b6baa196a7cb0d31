//! Random number generators: counters for Philox 4x32-10. A generator holds no numbers, only where
//! the next ones start, so that results do not depend on how many threads or kernels draw them and
//! a captured graph can advance it on every replay.

use outrigger_device::Code;
use outrigger_locks::{Mutex, Rank};

use crate::table::{Kind, Ref, Table};
use crate::{Error, Result, runtime};

static TABLE: Table<Generator> = Table::new(Kind::Generator);

/// The seed of a generator that nobody has seeded: as in PyTorch.
const DEFAULT_SEED: u64 = 67_280_421_310_721;

/// A generator of one device.
#[derive(Debug)]
pub struct Generator {
    id: u64,
    device: u32,
    state: Mutex<(u64, u64)>, // seed, offset in 128-bit outputs
}

impl Generator {
    /// The id, as C hosts hold it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The device that it belongs to.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Seeds it and goes back to the start of the sequence.
    pub fn seed(&self, seed: u64) {
        *self.state.lock() = (seed, 0);
    }

    /// Seed and offset (in 128-bit outputs) of what comes next.
    pub fn state(&self) -> (u64, u64) {
        *self.state.lock()
    }

    /// Sets what comes next.
    pub fn set_state(&self, seed: u64, offset: u64) {
        *self.state.lock() = (seed, offset);
    }

    /// Takes the next `count` 128-bit outputs (four 32-bit numbers each): returns the seed, and the
    /// offset at which they start.
    ///
    /// Where the current stream of this thread captures, what is returned stands for the numbers that
    /// each replay reserves for itself.
    pub fn reserve(&self, count: u64) -> (u64, u64) {
        let capturing = runtime()
            .and_then(|runtime| runtime.device(self.device))
            .is_ok_and(|device| device.captures().any());
        if capturing && let Some(place) = crate::graph::reserve(self, count) {
            return place;
        }
        self.reserve_now(count)
    }

    /// As [`reserve`](Self::reserve), captured or not.
    pub(crate) fn reserve_now(&self, count: u64) -> (u64, u64) {
        let mut state = self.state.lock();
        let start = *state;
        state.1 = state.1.wrapping_add(count);
        start
    }
}

/// Makes a generator for a device.
///
/// # Errors
/// `INVALID_DEVICE`, or `OUT_OF_HOST_MEMORY` if too many are alive.
pub fn create_generator(device: u32) -> Result<Ref<Generator>> {
    runtime()?.device(device)?;
    new_generator(device)
}

/// As [`create_generator`], for a device that is being made.
pub(crate) fn new_generator(device: u32) -> Result<Ref<Generator>> {
    TABLE.insert(|id| Generator {
        id,
        device,
        state: Mutex::new(Rank::Generator, (DEFAULT_SEED, 0)),
    })
}

/// The generator with this id.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live generator.
pub fn generator(id: u64) -> Result<Ref<Generator>> {
    TABLE.get(id)
}

/// Destroys a generator.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live generator; `INVALID_ARGUMENT` for a device's default
/// generator, which the runtime owns.
pub fn destroy_generator(id: u64) -> Result<()> {
    let device = TABLE.get(id)?.device;
    if runtime()?.device(device)?.default_generator().id() == id {
        return Err(Error::new(
            Code::INVALID_ARGUMENT,
            "the default generator of a device belongs to the runtime and is not destroyed",
        ));
    }
    TABLE.remove(id).map(drop)
}
