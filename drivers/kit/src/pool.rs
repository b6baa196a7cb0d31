//! Threads that run the lists of queues. There is one for each queue whose list runs at a time, since a host call
//! may block for as long as it likes (R17). Threads that are idle wait for the next list, and end with the driver.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::{Fault, Result};

/// Something to run; never two of them on one thread at a time.
type Job = Box<dyn FnOnce() + Send>;

/// Work of the hardware that nobody waits for but `close`. It needs no thread.
pub(crate) trait Leftover: Send {
    fn is_done(&self) -> bool;
    fn wait(&self);
}

/// The threads of one open driver.
#[derive(Clone, Debug, Default)]
pub struct Pool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// As if the host had no thread left.
    #[cfg(test)]
    refuses: std::sync::atomic::AtomicBool,
    state: Mutex<State>,
    /// For idle threads: there is a job, or the end.
    work: Condvar,
    /// For who closes: a job has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Each has a thread that comes for it.
    jobs: VecDeque<Job>,
    /// For these there was none.
    kept: VecDeque<Job>,
    leftovers: Vec<Box<dyn Leftover>>,
    running: usize,
    idle: usize,
    closing: bool,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Pool")
            .field("waiting", &(state.jobs.len() + state.kept.len()))
            .field("running", &state.running)
            .field("idle", &state.idle)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Runs a job on a thread of its own.
    ///
    /// # Errors
    /// `OTR_ERR_OUT_OF_HOST_MEMORY` if it takes a thread that the host does not have. The job is not run then.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> Result {
        self.start(Box::new(job)).map_err(|(_, fault)| fault)
    }

    /// The same, but where there is no thread the job waits for one that becomes idle, or for
    /// [`finish`](Self::finish).
    pub(crate) fn run_some_time(&self, job: impl FnOnce() + Send + 'static) {
        if let Err((job, _)) = self.start(Box::new(job)) {
            self.0.state.lock().kept.push_back(job);
            self.0.work.notify_one();
        }
    }

    fn start(&self, job: Job) -> Result<(), (Job, Fault)> {
        let mut state = self.0.state.lock();
        if state.idle > state.jobs.len() {
            state.jobs.push_back(job);
            self.0.work.notify_one();
            return Ok(());
        }
        match Shared::spawn(&self.0) {
            Ok(thread) => {
                state.jobs.push_back(job);
                state.threads.push(thread);
                Ok(())
            }
            Err(error) => {
                let text = format!("no thread for host calls: {error}");
                Err((job, Fault::host_memory(text)))
            }
        }
    }

    /// Lets the host have no thread from now on, or have some again.
    #[cfg(test)]
    pub(crate) fn refuse_threads(&self, refuses: bool) {
        (self.0.refuses).store(refuses, std::sync::atomic::Ordering::SeqCst);
    }

    /// Keeps work that the hardware has not finished, until it has.
    pub(crate) fn leave(&self, leftover: impl Leftover + 'static) {
        let mut all = std::mem::take(&mut self.0.state.lock().leftovers);
        // Outside of the lock: both ask the hardware, and give back what is done.
        all.retain(|one| !one.is_done());
        all.push(Box::new(leftover));
        self.0.state.lock().leftovers.append(&mut all);
    }

    /// Waits until all jobs have ended, and for the threads too: code that they run may be unloaded afterwards. The
    /// pool can be used again.
    pub fn finish(&self) {
        let mut state = self.0.state.lock();
        // Jobs that no thread could be had for are run here, and so are others that wait.
        loop {
            if let Some(job) = state.next() {
                parking_lot::MutexGuard::unlocked(&mut state, || contained(job));
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
        for thread in threads {
            // Threads contain the panics of their jobs, so that there is nothing to report.
            let _ = thread.join();
        }
        let mut state = self.0.state.lock();
        state.closing = false;
        let leftovers = std::mem::take(&mut state.leftovers);
        drop(state);
        for leftover in leftovers {
            leftover.wait();
        }
    }
}

/// A job that panics has broken its own queue, and must not take the thread with it.
fn contained(job: Job) {
    drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)));
}

impl State {
    fn next(&mut self) -> Option<Job> {
        self.jobs.pop_front().or_else(|| self.kept.pop_front())
    }
}

impl Shared {
    /// One more thread. The lock of the state is held, so that the thread finds what is put in before it is given back.
    fn spawn(shared: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        #[cfg(test)]
        if shared.refuses.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        let own = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("outrigger-driver".to_owned());
        thread.spawn(move || own.serve())
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.next() {
                state.running += 1;
                parking_lot::MutexGuard::unlocked(&mut state, || contained(job));
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Barrier, mpsc};
    use std::time::Duration;

    use super::Pool;

    #[test]
    fn jobs_that_wait_for_each_other_all_run() {
        let pool = Pool::default();
        for _ in 0..20 {
            let (barrier, count) = (Arc::new(Barrier::new(5)), Arc::new(AtomicUsize::new(0)));
            for _ in 0..5 {
                let (barrier, count) = (Arc::clone(&barrier), Arc::clone(&count));
                pool.run(move || {
                    barrier.wait();
                    count.fetch_add(1, Ordering::SeqCst);
                })
                .unwrap();
            }
            pool.finish();
            assert_eq!(count.load(Ordering::SeqCst), 5);
        }
    }

    #[test]
    fn a_job_without_a_thread_is_run_by_one_that_becomes_idle_or_at_the_end() {
        let (pool, count) = (Pool::default(), Arc::new(AtomicUsize::new(0)));
        let one = || {
            let count = Arc::clone(&count);
            move || _ = count.fetch_add(1, Ordering::SeqCst)
        };
        pool.refuse_threads(true);
        assert!(pool.run(one()).is_err());
        pool.run_some_time(one());
        assert_eq!(count.load(Ordering::SeqCst), 0);
        pool.finish();
        assert_eq!(
            count.load(Ordering::SeqCst),
            1,
            "the refused one is not run"
        );
        pool.run_some_time(one());
        pool.refuse_threads(false);
        pool.run(one()).unwrap();
        while count.load(Ordering::SeqCst) < 3 {
            std::thread::yield_now();
        }
        pool.finish();
    }

    #[test]
    fn an_idle_thread_is_enough_for_one_job_only() {
        let pool = Pool::default();
        for _ in 0..20 {
            pool.run(|| {}).unwrap();
            while pool.0.state.lock().idle == 0 {
                std::thread::yield_now();
            }
            let ((come, has_come), (say, heard)) = (mpsc::channel(), mpsc::channel());
            let wait = move || {
                let met = has_come.recv_timeout(Duration::from_secs(20)).is_ok();
                say.send(met).unwrap();
            };
            pool.run(wait).unwrap();
            pool.run(move || come.send(()).unwrap()).unwrap();
            assert!(heard.recv().unwrap(), "the second job waits for the first");
            pool.finish();
        }
    }

    #[test]
    fn a_job_that_panics_harms_no_other() {
        let pool = Pool::default();
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        pool.run(|| panic!("broken")).unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        let other = Arc::clone(&done);
        pool.run(move || other.store(1, Ordering::SeqCst)).unwrap();
        pool.finish();
        std::panic::set_hook(hook);
        assert_eq!(done.load(Ordering::SeqCst), 1);
    }
}
