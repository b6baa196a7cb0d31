//! The watchdog: if a call of the library does not return in time, the process ends and names the call.
//! The watchdog must never need a lock that a call holds.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::library::NAMES;

/// The call that a thread is in.
struct Slot {
    thread: String,
    /// The number of the entry that is being called, plus 1; 0 for none.
    entry: AtomicUsize,
    /// When it was called, in milliseconds since the start.
    since: AtomicU64,
}

static SLOTS: Mutex<Vec<Weak<Slot>>> = Mutex::new(Vec::new());
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    /// The slot of this thread. Threads of the library get one when a function of ours that they run
    /// calls the library.
    static SLOT: Arc<Slot> = {
        let thread = std::thread::current();
        let slot = Arc::new(Slot {
            thread: thread.name().unwrap_or("a thread of the library").to_owned(),
            entry: AtomicUsize::new(0),
            since: AtomicU64::new(0),
        });
        let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        slot
    };
}

fn now() -> u64 {
    START.elapsed().as_millis() as u64
}

/// A call in progress. An observer's call within another one is seen as a call of its own.
pub(crate) struct Seen {
    slot: Arc<Slot>,
    outer: (usize, u64),
}

/// Notes that the calling thread calls an entry.
pub(crate) fn enter(entry: usize) -> Seen {
    let slot = SLOT.with(Arc::clone);
    let outer = (
        slot.entry.load(Ordering::Relaxed),
        slot.since.load(Ordering::Relaxed),
    );
    slot.since.store(now(), Ordering::Relaxed);
    slot.entry.store(entry + 1, Ordering::Relaxed);
    Seen { slot, outer }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.slot.entry.store(self.outer.0, Ordering::Relaxed);
        self.slot.since.store(self.outer.1, Ordering::Relaxed);
    }
}

/// Watches until the process ends. `patience` is how long a call may take.
pub(crate) fn start(patience: Duration) {
    LazyLock::force(&START);
    let watch = move || {
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let late = now().saturating_sub(patience.as_millis() as u64);
            let slots: Vec<Arc<Slot>> = {
                let slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
                slots.iter().filter_map(Weak::upgrade).collect()
            };
            let busy = |slot: &&Arc<Slot>| slot.entry.load(Ordering::Relaxed) != 0;
            let hangs = |slot: &Arc<Slot>| slot.since.load(Ordering::Relaxed) < late;
            if slots.iter().filter(busy).any(hangs) {
                crate::tell!("PROBLEM: a call does not return. Calls in progress:");
                for slot in slots.iter().filter(busy) {
                    let entry = slot.entry.load(Ordering::Relaxed) - 1;
                    let time = now() - slot.since.load(Ordering::Relaxed);
                    crate::tell!("  {}: {} for {time} ms", slot.thread, NAMES[entry]);
                }
                std::process::abort();
            }
        }
    };
    let watchdog = std::thread::Builder::new().name("watchdog".to_owned());
    watchdog.spawn(watch).expect("a thread for the watchdog");
}
