//! Observers: functions of the host that are told of allocations, segments, out of memory and fallbacks, and functions
//! that are asked to release memory before an allocation fails. They run on the thread that caused the event, with no
//! lock held. Where nobody observes, an event costs one load.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outrigger_device::Code;
use outrigger_locks::{Condvar, Mutex, Rank, RwLock, calls_host};

use crate::{Error, Result};
use outrigger_handles::{Kind, Ref, Table, unknown};

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
    /// A host kernel served an operator on a device that is not the CPU, for the first time, in the mode that warns.
    pub const HOST_KERNEL: Self = Self(64);
    /// All kinds that hosts name.
    pub const ALL: Self = Self(127);

    /// A request to release memory. Hosts do not name this kind.
    const PRESSURE: Self = Self(1 << 31);
}

/// An event that observers hear of.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// The kind: one bit.
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
    /// The time that a fallback took.
    pub nanoseconds: u64,
    /// The text of the error, where a request could not be met; else empty.
    pub text: &'a str,
    /// Free bytes of the device, if a request could not be met and the driver knows; else 0.
    pub device_free: u64,
    /// Total bytes of the device, if a request could not be met and the driver knows; else 0.
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

/// An allocation that is about to fail for lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// The device that has too little memory.
    pub device: u32,
    /// Bytes that are asked for.
    pub needed: u64,
}

/// The function of an observer: it hears of events, or releases memory.
enum ObserverFunction {
    Hears(Box<dyn Fn(&Observation<'_>) + Send + Sync>),
    Releases(Box<dyn Fn(&Pressure) -> bool + Send + Sync>),
}

/// An observer, with its calls that are running.
struct Observer {
    id: u64,
    kinds: u32,
    calls: Mutex<Calls>,
    idle: Condvar,
}

/// The function of an observer, and the number of its running calls.
struct Calls {
    /// `None` after the observer was removed. No call begins then.
    function: Option<Arc<ObserverFunction>>,
    running: usize,
}

/// A call of an observer that is running.
struct RunningCall<'a> {
    observer: &'a Observer,
    /// Kept until the call ends.
    function: Option<Arc<ObserverFunction>>,
}

impl Observer {
    /// Begins a call; `None` if the observer was removed.
    fn call(&self) -> Option<RunningCall<'_>> {
        calls_host("an observer");
        let mut calls = self.calls.lock();
        let function = Arc::clone(calls.function.as_ref()?);
        calls.running += 1;
        drop(calls);
        DEPTH.set(DEPTH.get() + 1);
        Some(RunningCall {
            observer: self,
            function: Some(function),
        })
    }
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        // The function is dropped before the thread that removes the observer goes on.
        self.function = None;
        let mut calls = self.observer.calls.lock();
        calls.running -= 1;
        if calls.running == 0 {
            self.observer.idle.notify_all();
        }
    }
}

thread_local! {
    /// The number of observers' calls that the thread is in.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

static TABLE: Table<Observer> = Table::new(Kind::Observer);
static LIST: RwLock<Vec<Ref<Observer>>> = RwLock::new(Rank::Observers, Vec::new());
static LISTENING: AtomicU32 = AtomicU32::new(0);

/// Adds an observer: `function` is called for every event of the given kinds. A panic in it goes no further. Returns
/// the observer's id.
///
/// # Errors
/// `OUT_OF_HOST_MEMORY` if too many observers are alive.
pub fn add_observer(
    kinds: ObservationKinds,
    function: impl Fn(&Observation<'_>) + Send + Sync + 'static,
) -> Result<u64> {
    let kinds = kinds.0 & ObservationKinds::ALL.0;
    let hears = move |seen: &Observation<'_>| contained(|| function(seen)).unwrap_or_default();
    add(kinds, ObserverFunction::Hears(Box::new(hears)))
}

/// Adds an observer of pressure: `function` is called when an allocation on any device is about to fail, after caches
/// were given back and pending frees were waited for. It releases what it can, best by freeing, and returns whether it
/// released anything. If so, the allocation is tried once more. The function may allocate, too; if that fails, it gets
/// an error, and no observer is asked for that request. A panic counts as having released nothing. Returns the
/// observer's id.
///
/// # Errors
/// `OUT_OF_HOST_MEMORY` if too many observers are alive.
pub fn add_pressure_observer(
    function: impl Fn(&Pressure) -> bool + Send + Sync + 'static,
) -> Result<u64> {
    let kinds = ObservationKinds::PRESSURE.0;
    let releases = move |asked: &Pressure| contained(|| function(asked)).unwrap_or_default();
    add(kinds, ObserverFunction::Releases(Box::new(releases)))
}

/// Calls a function of the host. A panic in it goes no further, and does not change the outcome of the caller.
pub(crate) fn contained<R>(call: impl FnOnce() -> R) -> Option<R> {
    // Only the host's own data can be left half-changed.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Some(result),
        Err(payload) => {
            // Dropping the payload could panic again.
            std::mem::forget(payload);
            tracing::error!(target: "outrigger::host", "a function of the host panicked");
            None
        }
    }
}

fn add(kinds: u32, function: ObserverFunction) -> Result<u64> {
    let calls = Calls {
        function: Some(Arc::new(function)),
        running: 0,
    };
    let observer = TABLE.insert(|id| Observer {
        id,
        kinds,
        calls: Mutex::new(Rank::ObserverCalls, calls),
        idle: Condvar::new(),
    })?;
    let id = observer.id;
    let mut list = LIST.write();
    list.push(observer);
    listen(&list);
    Ok(id)
}

fn listen(list: &[Ref<Observer>]) {
    let all = list.iter().fold(0, |all, one| all | one.kinds);
    LISTENING.store(all, Ordering::Relaxed);
}

/// Removes an observer. When this returns, no call of the observer is running, and none will start: it waits for
/// running calls on other threads.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live observer. `BUSY` from within an observer, while a call of the observer
/// to remove is running: the call would wait for itself, or two calls for each other.
pub fn remove_observer(id: u64) -> Result<()> {
    let observer = TABLE.get(id)?;
    let function = {
        let mut calls = observer.calls.lock();
        if DEPTH.get() > 0 && calls.running > 0 {
            return Err(Error::new(
                Code::BUSY,
                "an observer that is running cannot be removed from within an observer: remove it when \
                 the call is over",
            ));
        }
        // If several threads remove the observer, one of them gets the function.
        calls.function.take()
    };
    let function = function.ok_or_else(|| unknown(Kind::Observer, id))?;
    drop(TABLE.remove(id)?);
    {
        let mut list = LIST.write();
        list.retain(|one| one.id != id);
        listen(&list);
    }
    let mut calls = observer.calls.lock();
    while calls.running > 0 {
        observer.idle.wait(&mut calls);
    }
    drop(calls);
    drop(function);
    Ok(())
}

/// Whether anybody observes this kind. Asked before an observation is put together.
#[inline]
pub(crate) fn listening(kind: ObservationKinds) -> bool {
    LISTENING.load(Ordering::Relaxed) & kind.0 != 0
}

/// Tells all observers of the kind. The caller holds no lock.
#[cold]
pub(crate) fn observe(observation: &Observation<'_>) {
    for observer in interested(observation.kind) {
        if let Some(call) = observer.call()
            && let Some(ObserverFunction::Hears(function)) = call.function.as_deref()
        {
            function(observation);
        }
    }
}

/// Asks all observers of pressure to release memory, and returns whether any did. The caller holds no lock.
#[cold]
pub(crate) fn relieve(pressure: &Pressure) -> bool {
    // An observer may need memory to release memory. To ask again for that would not end.
    if !listening(ObservationKinds::PRESSURE) || is_quiet() {
        return false;
    }
    quietly(|| {
        let mut released = false;
        for observer in interested(ObservationKinds::PRESSURE) {
            if let Some(call) = observer.call()
                && let Some(ObserverFunction::Releases(function)) = call.function.as_deref()
            {
                released |= function(pressure);
            }
        }
        released
    })
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call during which the host is asked for nothing: neither to release memory, nor for the context of an
/// allocation. Calls that the host makes from within such a question run inside.
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

/// The observers of a kind. They are called after the list was unlocked, because an observer may add another one.
fn interested(kind: ObservationKinds) -> Vec<Ref<Observer>> {
    let list = LIST.read();
    let interested = list.iter().filter(|one| one.kinds & kind.0 != 0);
    interested.cloned().collect()
}
