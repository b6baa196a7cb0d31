//! Random number generators: counters for Philox 4x32-10. A generator holds no numbers, only the place where the next
//! ones start. So results do not depend on the number of threads or kernels that draw them, and a captured graph can
//! advance the generator at every replay.

use std::sync::Arc;

use outrigger_device::Code;
use outrigger_graph::Stream;
use outrigger_locks::{Mutex, Rank};

use crate::current::chosen_stream;
use crate::{Error, Result, stream};
use outrigger_handles::{Kind, Ref, Table};

static TABLE: Table<Generator> = Table::new(Kind::Generator);

/// The seed of a generator that nobody has seeded: the one of PyTorch.
const DEFAULT_SEED: u64 = 67_280_421_310_721;

/// Makes what a graph keeps of a generator; `None` if the generator is being destroyed.
type Kept<'a> = &'a dyn Fn() -> Option<Arc<dyn outrigger_graph::Generator>>;

/// A generator of one device, which need not be open.
#[derive(Debug)]
pub struct Generator {
    id: u64,
    device: u32,
    is_default: bool,
    state: Mutex<(u64, u64)>, // seed, offset in 128-bit outputs
}

impl Generator {
    /// The id in the C ABI.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The number of the generator's device.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Sets the seed, and goes back to the start of the sequence. In a capture, each replay does so.
    ///
    /// # Errors
    /// Those of [`set_state`](Self::set_state).
    pub fn seed(&self, seed: u64) -> Result<()> {
        self.set_state(seed, 0)
    }

    /// The seed, and the offset of the next numbers in 128-bit outputs.
    ///
    /// If the current stream of this thread captures, both stand for the state of a replay at this place.
    pub fn state(&self) -> (u64, u64) {
        self.in_capture(|stream, kept| stream.reserve(self.id, kept, 0))
            .unwrap_or_else(|| *self.state.lock())
    }

    /// Sets the seed and the offset of the next numbers. If the current stream of this thread captures, each replay does
    /// so.
    ///
    /// # Errors
    /// `CAPTURE` for a state that was read in a capture, outside of that capture.
    pub fn set_state(&self, seed: u64, offset: u64) -> Result<()> {
        let set =
            |stream: &Stream, kept: Kept<'_>| stream.set_generator(self.id, kept, (seed, offset));
        if let Some(set) = self.in_capture(set) {
            return set;
        }
        outrigger_graph::refuse_recorded_state(seed)?;
        *self.state.lock() = (seed, offset);
        Ok(())
    }

    /// Takes the next `count` 128-bit outputs of four 32-bit numbers each. Returns the seed, and the offset of the
    /// first output.
    ///
    /// If the current stream of this thread captures, the result stands for numbers that each replay reserves for
    /// itself.
    pub fn reserve(&self, count: u64) -> (u64, u64) {
        self.in_capture(|stream, kept| stream.reserve(self.id, kept, count))
            .unwrap_or_else(|| self.reserve_now(count))
    }

    /// Calls `with` for this thread's current stream, which knows whether it captures, and for what a graph keeps of this
    /// generator; `None` if no stream captures.
    #[inline]
    fn in_capture<T>(&self, with: impl FnOnce(&Stream, Kept<'_>) -> Option<T>) -> Option<T> {
        // Without one the device is not open, and nothing captures.
        let standard = stream::default_stream(self.device)?;
        if !standard.device().captures().any() {
            return None;
        }
        let chosen = chosen_stream(self.device).map(|id| stream::stream(id).ok());
        let stream = chosen.unwrap_or_else(|| Some(standard.clone()))?;
        with(&stream, &|| {
            let kept = HeldGenerator(generator(self.id).ok()?);
            Some(Arc::new(kept))
        })
    }

    /// Reserves now, whether the current stream captures or not.
    fn reserve_now(&self, count: u64) -> (u64, u64) {
        let mut state = self.state.lock();
        let start = *state;
        state.1 = state.1.wrapping_add(count);
        start
    }
}

/// The generator of a graph, which keeps it alive.
#[derive(Debug)]
struct HeldGenerator(Ref<Generator>);

impl outrigger_graph::Generator for HeldGenerator {
    fn id(&self) -> u64 {
        self.0.id
    }

    fn reserve_now(&self, count: u64) -> (u64, u64) {
        self.0.reserve_now(count)
    }

    fn set_now(&self, seed: u64, offset: u64) {
        *self.0.state.lock() = (seed, offset);
    }
}

/// Makes a generator for a device, which is its default one or not.
///
/// # Errors
/// `OUT_OF_HOST_MEMORY` if too many are alive.
pub(crate) fn make(device: u32, is_default: bool) -> Result<Ref<Generator>> {
    Ok(TABLE.insert(|id| Generator {
        id,
        device,
        is_default,
        state: Mutex::new(Rank::Generator, (DEFAULT_SEED, 0)),
    })?)
}

/// The generator with this id.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live generator.
pub fn generator(id: u64) -> Result<Ref<Generator>> {
    Ok(TABLE.get(id)?)
}

/// Destroys a generator.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live generator; `INVALID_ARGUMENT` for the default generator of a device,
/// which the runtime owns.
pub fn destroy_generator(id: u64) -> Result<()> {
    if TABLE.get(id)?.is_default {
        return Err(Error::new(
            Code::INVALID_ARGUMENT,
            "the default generator of a device belongs to the runtime and is not destroyed",
        ));
    }
    drop(TABLE.remove(id)?);
    Ok(())
}
