//! Observers: functions of the host that are told of allocations, segments, out of memory and
//! fallbacks, and those that are asked to release memory before an allocation fails. They run on the
//! thread that caused the event, outside of all locks of the runtime, and cost one load where nobody
//! listens.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

    /// Asked to release memory; no kind that a host names.
    const PRESSURE: Self = Self(1 << 31);
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
    /// The text of the error, where a request could not be met; else empty.
    pub text: &'a str,
    /// Bytes that the device has left, where a request could not be met and the device tells; else 0.
    pub device_free: u64,
    /// Bytes that the device has in all, likewise.
    pub device_total: u64,
}

impl Default for Observation<'_> {
    fn default() -> Self {
        Self {
            kind: ObservationKinds(0),
            device: 0,
            address: 0,
            size: 0,
            allocated_bytes: 0,
            reserved_bytes: 0,
            name: "",
            nanoseconds: 0,
            text: "",
            device_free: 0,
            device_total: 0,
        }
    }
}

/// An allocation that is about to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// The device that has not enough memory.
    pub device: u32,
    /// Bytes that are asked for.
    pub needed: u64,
}

enum Function {
    Hears(Box<dyn Fn(&Observation<'_>) + Send + Sync>),
    Releases(Box<dyn Fn(&Pressure) -> bool + Send + Sync>),
}

struct Observer {
    id: u64,
    kinds: u32,
    // Read-locked while it runs, so that removing can wait for the last call.
    function: RwLock<Option<Function>>,
}

static TABLE: Table<Observer> = Table::new(Kind::Observer);
static LIST: RwLock<Vec<Arc<Observer>>> = RwLock::new(Vec::new());
static LISTENING: AtomicU32 = AtomicU32::new(0);

/// Has `function` called for every event of the given kinds; a panic in it goes no further. Returns the
/// observer's id.
///
/// # Errors
/// `OUT_OF_HOST_MEMORY` if too many observers are alive.
pub fn add_observer(
    kinds: ObservationKinds,
    function: impl Fn(&Observation<'_>) + Send + Sync + 'static,
) -> Result<u64> {
    let kinds = kinds.0 & ObservationKinds::ALL.0;
    let hears = move |seen: &Observation<'_>| contained(|| function(seen)).unwrap_or_default();
    add(kinds, Function::Hears(Box::new(hears)))
}

/// Has `function` called when an allocation of any device is about to fail, after caches were given back
/// and pending frees were waited for. It releases what it can (frees, at best) and tells whether it did
/// anything: then the allocation is tried once more. It may allocate itself; what it cannot get is an
/// error there, and nobody is asked again for it. A panic in it counts as having released nothing. Returns the
/// observer's id.
///
/// # Errors
/// `OUT_OF_HOST_MEMORY` if too many observers are alive.
pub fn add_pressure_observer(
    function: impl Fn(&Pressure) -> bool + Send + Sync + 'static,
) -> Result<u64> {
    let kinds = ObservationKinds::PRESSURE.0;
    let releases = move |asked: &Pressure| contained(|| function(asked)).unwrap_or_default();
    add(kinds, Function::Releases(Box::new(releases)))
}

/// Calls a function of the host. A panic in it goes no further: the call that caused it has its own outcome.
pub(crate) fn contained<R>(call: impl FnOnce() -> R) -> Option<R> {
    // What the function left half done is the host's own.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Some(result),
        Err(payload) => {
            // Dropping what was thrown could throw again.
            std::mem::forget(payload);
            tracing::error!(target: "outrigger::host", "a function of the host panicked");
            None
        }
    }
}

fn add(kinds: u32, function: Function) -> Result<u64> {
    let observer = TABLE.insert(|id| Observer {
        id,
        kinds,
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
    for observer in interested(observation.kind) {
        if let Some(Function::Hears(function)) = &*observer.function.read() {
            function(observation);
        }
    }
}

/// Asks all who can to release memory. No lock of the runtime may be held. True if anybody did.
#[cold]
pub(crate) fn relieve(pressure: &Pressure) -> bool {
    // Whoever releases may need memory for that; asking again for it would not end.
    if !listening(ObservationKinds::PRESSURE) || is_quiet() {
        return false;
    }
    quietly(|| {
        let mut released = false;
        for observer in interested(ObservationKinds::PRESSURE) {
            if let Some(Function::Releases(function)) = &*observer.function.read() {
                released |= function(pressure);
            }
        }
        released
    })
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Makes a call in which the host is not asked for anything: neither to release memory, nor where it
/// is. For what runs within a lock of the runtime, or within such a question.
pub(crate) fn quietly<R>(call: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            QUIET.set(self.0);
        }
    }
    let _restore = Restore(QUIET.replace(true));
    call()
}

/// Whether the calling thread is within [`quietly`].
pub(crate) fn is_quiet() -> bool {
    QUIET.get()
}

/// Those who listen, to be called outside of the list's lock: an observer may add another one.
fn interested(kind: ObservationKinds) -> Vec<Arc<Observer>> {
    let list = LIST.read();
    let interested = list.iter().filter(|one| one.kinds & kind.0 != 0);
    interested.cloned().collect()
}
