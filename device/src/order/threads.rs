//! Threads that run the lists of a driver's queues. There is one for each queue whose list runs at a time, since a host
//! call may block for as long as it likes (R17). Threads that are idle wait for the next list, and end with the driver.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

use outrigger_locks::{Condvar, Mutex, Rank};

use super::Job;

thread_local! {
    /// Whether this is one of the threads.
    static IS_ONE: Cell<bool> = const { Cell::new(false) };
}

/// The threads of one open driver.
#[derive(Clone)]
pub(crate) struct Threads(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// For idle threads: there is a job, or the end.
    work: Condvar,
    /// For who waits: a job has ended, or a queue that was dropped.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    running: usize,
    idle: usize,
    closing: bool,
    threads: Vec<JoinHandle<()>>,
    /// Queues that were dropped while there was something in their lists.
    leaving: usize,
}

impl Default for Threads {
    fn default() -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(Rank::HeldThreads, State::default()),
            work: Condvar::new(),
            ended: Condvar::new(),
        }))
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").finish_non_exhaustive()
    }
}

impl Threads {
    /// Runs a job on a thread of its own. Where the host has none left, the job waits for one that becomes idle, or for
    /// [`finish`](Self::finish).
    pub(crate) fn start(&self, job: Job) {
        let mut state = self.0.state.lock();
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() {
            self.0.work.notify_all();
            return;
        }
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("outrigger-order".to_owned());
        match thread.spawn(move || shared.serve()) {
            Ok(thread) => state.threads.push(thread),
            Err(error) => {
                tracing::warn!(target: "outrigger::device", %error, "no thread for host calls");
            }
        }
    }

    /// A queue was dropped, whose list goes on.
    pub(crate) fn leaves(&self) {
        self.0.state.lock().leaving += 1;
    }

    /// Such a queue is gone.
    pub(crate) fn has_left(&self) {
        self.0.state.lock().leaving -= 1;
        self.0.ended.notify_all();
    }

    /// Waits until queues that were dropped are gone.
    pub(crate) fn await_leavers(&self) {
        let mut state = self.0.state.lock();
        while state.leaving > 0 && !IS_ONE.get() {
            self.0.ended.wait(&mut state);
        }
    }

    /// Waits until all jobs have ended, and for the threads too. Where one of the threads comes here, by a host call that
    /// keeps the driver, it waits for nothing.
    pub(crate) fn finish(&self) {
        let mut state = self.0.state.lock();
        while !IS_ONE.get() {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.0.state.lock();
            } else if state.running > 0 {
                self.0.ended.wait(&mut state);
            } else {
                break;
            }
        }
        state.closing = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.0.work.notify_all();
        if !IS_ONE.get() {
            // Jobs do not panic: there is nothing to report.
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }
}

impl Shared {
    fn serve(&self) {
        IS_ONE.set(true);
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.running += 1;
                drop(state);
                job();
                state = self.state.lock();
                state.running -= 1;
                self.ended.notify_all();
            } else if state.closing {
                return;
            } else {
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}
