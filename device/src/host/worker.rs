//! The threads behind the queues: one worker for each queue that needs one. A worker decides only when
//! its queue runs; the queue decides how.
//!
//! A worker starts when it is woken for the first time: by a flush, a host call, a query that answers
//! "not yet", a backlog, enough estimated work, or the ticker. It ends when it had nothing to do for
//! ten seconds, or when its queue is retired and done.

use std::time::Duration;

use super::queue::Queue;
use super::sync::{
    AtomicBool, Condvar, MODEL, Mutex, Ordering, fence, spawn, spin_loop, yield_now,
};

/// How long a worker without work lives.
const LINGER: Duration = Duration::from_secs(10);
/// How many times a worker looks for more work before it sleeps: some microseconds.
const SPINS: u32 = if MODEL { 1 } else { 200 };

/// The worker of one queue.
#[derive(Default)]
pub(super) struct Worker {
    /// Whether a thread looks at the queue, or was asked to. This thread clears it before its last
    /// look.
    awake: AtomicBool,
    state: Mutex<State>,
    signal: Condvar,
}

#[derive(Default)]
struct State {
    thread: Thread,
    phase: Phase,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Thread {
    #[default]
    Absent,
    Asleep,
    Awake,
}

/// Where a queue is in its life.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    Live,
    /// Destroyed by the host, with work left.
    Retired,
    /// In the pool, or on the way to it.
    #[default]
    Released,
}

impl Worker {
    /// Begins a life of the queue.
    pub(super) fn begin(&self) {
        self.state.lock().phase = Phase::Live;
    }

    /// Ends the present life of the queue: it is released as soon as its work has finished. `false` if
    /// it was retired before.
    pub(super) fn retire(&self, queue: &'static Queue) -> bool {
        let mut state = self.state.lock();
        if state.phase != Phase::Live {
            return false;
        }
        state.phase = Phase::Retired;
        if state.thread == Thread::Absent && !queue.idle() {
            self.start(&mut state, queue);
        }
        if state.thread == Thread::Absent {
            // Nothing is left to run, or no thread could be started: then this one does it.
            state.phase = Phase::Released;
            drop(state);
            while !queue.run_pending() {
                yield_now();
            }
            queue.release();
            return true;
        }
        self.notify(&mut state);
        true
    }

    /// Makes sure that a thread runs what was submitted before this call.
    #[inline]
    pub(super) fn wake(&self, queue: &'static Queue) {
        // With the fence in `sleep`: either the thread sees the submission, or this sees it asleep.
        fence(Ordering::SeqCst);
        if !self.awake.load(Ordering::Relaxed) {
            self.wake_slowly(queue);
        }
    }

    #[cold]
    fn wake_slowly(&self, queue: &'static Queue) {
        let mut state = self.state.lock();
        match state.thread {
            // A thread that cannot be started now is tried again by the ticker; waiters help anyway.
            Thread::Absent => self.start(&mut state, queue),
            Thread::Asleep => self.notify(&mut state),
            Thread::Awake => {}
        }
    }

    fn start(&self, state: &mut State, queue: &'static Queue) {
        let name = format!("otr-host-{}", queue.number());
        let body = move || queue.worker().run(queue);
        match spawn(name, body) {
            Ok(()) => {
                state.thread = Thread::Awake;
                self.awake.store(true, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::warn!(target: "outrigger::device", %error, "a worker could not be started");
            }
        }
    }

    fn notify(&self, state: &mut State) {
        if state.thread == Thread::Asleep {
            state.thread = Thread::Awake;
            self.awake.store(true, Ordering::Relaxed);
            self.signal.notify_one();
        }
    }

    /// The life of the thread.
    fn run(&self, queue: &'static Queue) {
        loop {
            let finished = queue.run_pending();
            // Where another thread goes on, this one is not needed until it is woken again.
            let mut turns = 0;
            while finished && turns < SPINS && queue.idle() {
                spin_loop();
                turns += 1;
            }
            if (!finished || queue.idle()) && !self.sleep(queue, finished) {
                return;
            }
        }
    }

    /// Sleeps until there may be work; `false` if the thread is to end. Pending work keeps it awake if
    /// it `looks` for work, or if work that it had left was handed back.
    fn sleep(&self, queue: &'static Queue, looks: bool) -> bool {
        let mut state = self.state.lock();
        self.awake.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let idle = queue.idle();
        if !idle && (looks || !queue.left() || state.phase != Phase::Live) {
            self.awake.store(true, Ordering::Relaxed);
            return true;
        }
        if state.phase != Phase::Live {
            state.thread = Thread::Absent;
            let last = state.phase == Phase::Retired;
            state.phase = Phase::Released;
            drop(state);
            if last {
                queue.release();
            }
            return false;
        }
        state.thread = Thread::Asleep;
        while state.thread == Thread::Asleep {
            let over = self.signal.wait_for(&mut state, LINGER).timed_out();
            if over && state.thread == Thread::Asleep {
                state.thread = Thread::Absent;
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    use super::super::command::Command;
    use super::super::driver::Host;
    use super::super::queue::Queue;
    use super::Thread;

    /// Waits for something that takes microseconds; fails well before a worker would go by itself.
    fn soon(mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(5), "it never came");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    #[test]
    fn a_queue_is_released_whatever_its_worker_was_doing() {
        for state in [Thread::Absent, Thread::Awake, Thread::Asleep] {
            let host = Arc::new(Host::open("devices=1,memory=64K").unwrap());
            host.open_device(0).unwrap();
            let device = host.device(0).unwrap();
            let queue = Queue::create(&host, device).unwrap();
            device.queues.fetch_add(1, Ordering::Relaxed);
            queue.mark(Command::Nop).unwrap();
            if state != Thread::Absent {
                queue.worker().wake(queue);
            }
            if state == Thread::Asleep {
                soon(|| queue.worker().state.lock().thread == Thread::Asleep);
            }
            let alive = Arc::downgrade(&host);
            drop(host);
            queue.destroy().unwrap();
            assert!(queue.destroy().is_err());
            soon(|| alive.upgrade().is_none());
            assert!(queue.idle());
        }
    }
}
