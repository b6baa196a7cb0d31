//! Observers: functions of the host that are told of allocations, segments, out of memory and
//! fallbacks. They run on the thread that caused the event, outside of all locks of the runtime, and
//! cost one load where nobody listens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;

use crate::Result;
use crate::table::{Kind, Table};

/// A set of kinds of observations, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservationKinds(pub u32);

impl ObservationKinds {
    /// Memory was handed out.
    pub const ALLOC: Self = Self(1);
    /// Memory was given back to the cache.
    pub const FREE: Self = Self(2);
    /// The cache took memory from the device.
    pub const SEGMENT_ALLOC: Self = Self(4);
    /// The cache gave memory back to the device.
    pub const SEGMENT_FREE: Self = Self(8);
    /// A request could not be met.
    pub const OUT_OF_MEMORY: Self = Self(16);
    /// An operator ran on the CPU in place of the device.
    pub const FALLBACK: Self = Self(32);
    /// All of them.
    pub const ALL: Self = Self(63);
}

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// Which of the kinds: one bit.
    pub kind: ObservationKinds,
    /// The device that it concerns.
    pub device: u32,
    /// The address, for memory; else 0.
    pub address: u64,
    /// Bytes: of the block, of the segment, requested, or staged by a fallback.
    pub size: u64,
    /// Bytes that the device has handed out, for memory.
    pub allocated_bytes: u64,
    /// Bytes that the device's cache holds, for memory.
    pub reserved_bytes: u64,
    /// The operator, for a fallback; else empty.
    pub name: &'a str,
    /// How long a fallback took.
    pub nanoseconds: u64,
}

type Function = dyn Fn(&Observation<'_>) + Send + Sync;

struct Observer {
    id: u64,
    kinds: u32,
    // Read-locked while it runs, so that removing can wait for the last call.
    function: RwLock<Option<Box<Function>>>,
}

static TABLE: Table<Observer> = Table::new(Kind::Observer);
static LIST: RwLock<Vec<Arc<Observer>>> = RwLock::new(Vec::new());
static LISTENING: AtomicU32 = AtomicU32::new(0);

/// Has `function` called for every event of the given kinds. Returns the observer's id.
///
/// # Errors
/// `OUT_OF_HOST_MEMORY` if too many observers are alive.
pub fn add_observer(
    kinds: ObservationKinds,
    function: impl Fn(&Observation<'_>) + Send + Sync + 'static,
) -> Result<u64> {
    let function: Box<Function> = Box::new(function);
    let observer = TABLE.insert(|id| Observer {
        id,
        kinds: kinds.0 & ObservationKinds::ALL.0,
        function: RwLock::new(Some(function)),
    })?;
    let id = observer.id;
    let mut list = LIST.write();
    list.push(observer);
    LISTENING.store(
        list.iter().fold(0, |all, one| all | one.kinds),
        Ordering::Relaxed,
    );
    Ok(id)
}

/// Removes an observer. When it returns, no call of it is running and none will start; it must
/// therefore not be called from within the observer.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live observer.
pub fn remove_observer(id: u64) -> Result<()> {
    let observer = TABLE.remove(id)?;
    let mut list = LIST.write();
    list.retain(|one| one.id != id);
    LISTENING.store(
        list.iter().fold(0, |all, one| all | one.kinds),
        Ordering::Relaxed,
    );
    drop(list);
    observer.function.write().take();
    Ok(())
}

/// True if anybody wants to know of this kind: asked before an observation is put together.
#[inline]
pub(crate) fn listening(kind: ObservationKinds) -> bool {
    LISTENING.load(Ordering::Relaxed) & kind.0 != 0
}

/// Tells all observers of the kind. No lock of the runtime may be held.
#[cold]
pub(crate) fn observe(observation: &Observation<'_>) {
    // Called outside of the list's lock: an observer may add another one.
    let interested: Vec<_> = LIST
        .read()
        .iter()
        .filter(|one| one.kinds & observation.kind.0 != 0)
        .cloned()
        .collect();
    for observer in interested {
        if let Some(function) = &*observer.function.read() {
            function(observation);
        }
    }
}
