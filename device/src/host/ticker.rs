//! One thread that keeps work from waiting for ever. It looks at all queues once a millisecond, and
//! wakes the worker of each queue whose work has not moved since its last look. When no work is left,
//! it sleeps until a submission wakes it, so an idle process has no timer. It never runs any work.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::thread::{MembarrierCommand, membarrier};

use super::queue::Queue;

/// How often the ticker looks. Work lies for at most two of these before a worker is woken.
const TICK: Duration = Duration::from_millis(1);
/// Looks without any work before the ticker goes to sleep.
const QUIET_TICKS: u32 = 100;

static QUEUES: Mutex<Vec<&'static Queue>> = Mutex::new(Vec::new());
/// Whether the ticker sleeps until it is poked. So it does before it has been started.
static ASLEEP: AtomicBool = AtomicBool::new(true);
static SLEEP: Mutex<()> = Mutex::new(());
static POKED: Condvar = Condvar::new();
static START: Once = Once::new();

/// Puts a queue under the ticker's eyes.
pub(super) fn watch(queue: &'static Queue) {
    QUEUES.lock().push(queue);
}

/// Takes it out again.
pub(super) fn forget(queue: &'static Queue) {
    QUEUES.lock().retain(|one| !std::ptr::eq(*one, queue));
}

/// Called after each submission: wakes the ticker if it sleeps.
#[inline]
pub(super) fn poke() {
    // The other half of `heavy_fence`: the submission is published before this load.
    compiler_fence(Ordering::SeqCst);
    if ASLEEP.load(Ordering::Relaxed) {
        poke_slowly();
    }
}

#[cold]
fn poke_slowly() {
    START.call_once(|| {
        let thread = std::thread::Builder::new().name("otr-host-ticker".to_owned());
        if let Err(error) = thread.spawn(tick) {
            // Work then runs when somebody waits, flushes or queries, which is nearly always.
            tracing::warn!(target: "outrigger::device", %error, "the ticker could not be started");
        }
    });
    let _sleep = SLEEP.lock();
    ASLEEP.store(false, Ordering::Relaxed);
    POKED.notify_one();
}

/// The life of the ticker.
fn tick() {
    let fenced = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
    let mut quiet = 0;
    loop {
        std::thread::sleep(TICK);
        quiet = if look() { 0 } else { quiet + 1 };
        if quiet < QUIET_TICKS {
            continue;
        }
        quiet = 0;
        let mut sleep = SLEEP.lock();
        ASLEEP.store(true, Ordering::Relaxed);
        // A submitter pays for no fence, so that this thread pays for both: afterwards either the
        // submission is seen here, or its thread sees that this one sleeps. Where the kernel cannot do
        // that, sleep is short.
        let fenced = fenced && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        if look() {
            ASLEEP.store(false, Ordering::Relaxed);
        } else if fenced {
            while ASLEEP.load(Ordering::Relaxed) {
                POKED.wait(&mut sleep);
            }
        } else {
            POKED.wait_for(&mut sleep, 20 * TICK);
            ASLEEP.store(false, Ordering::Relaxed);
        }
    }
}

/// Wakes the workers of queues whose work has been lying since the last look; whether any has work.
fn look() -> bool {
    let mut working = false;
    for queue in QUEUES.lock().iter() {
        let tail = queue.tail();
        if !queue.passed(tail) {
            working = true;
            if !queue.passed(queue.ticked.load(Ordering::Relaxed)) {
                queue.worker().wake(queue);
            }
        }
        queue.ticked.store(tail, Ordering::Relaxed);
    }
    working
}
