//! The threads that compile in the background. They come with the first work and go with the last, so that a program that
//! has compiled all of its code has none.

use std::collections::VecDeque;
use std::sync::Arc;

use outrigger_device::{Code, Error, Result};
use outrigger_locks::{Condvar, Mutex, Rank};

use crate::job::Job;

const THREADS: &str = "OUTRIGGER_COMPILE_THREADS";
const MOST_THREADS: usize = 256;

/// The number of threads that the environment asks for in `OUTRIGGER_COMPILE_THREADS`; `None` if it does not.
///
/// # Errors
/// `INVALID_ARGUMENT` for a value that makes no sense.
pub(crate) fn threads_from_environment() -> Result<Option<usize>> {
    let value = std::env::var_os(THREADS).unwrap_or_default();
    parse(&value.to_string_lossy())
}

fn parse(text: &str) -> Result<Option<usize>> {
    if text.is_empty() {
        return Ok(None);
    }
    let number = text.parse().ok().filter(|n| (1..=MOST_THREADS).contains(n));
    number.map(Some).ok_or_else(|| {
        let text =
            format!("{THREADS} is `{text}`; give a number of threads from 1 to {MOST_THREADS}");
        Error::new(Code::INVALID_ARGUMENT, text)
    })
}

#[derive(Debug)]
pub(crate) struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Arc<Job>>,
    threads: usize,
}

impl Pool {
    pub(crate) fn new(threads: Option<usize>) -> Self {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        Self(Arc::new(Inner {
            most: threads.unwrap_or_else(cores).clamp(1, MOST_THREADS),
            state: Mutex::new(Rank::CompileThreads, State::default()),
            ended: Condvar::new(),
        }))
    }

    pub(crate) fn submit(&self, job: &Arc<Job>) {
        let mut state = self.0.state.lock();
        state.jobs.push_back(job.clone());
        if state.threads == self.0.most {
            return;
        }
        state.threads += 1;
        drop(state);
        let inner = self.0.clone();
        let thread = std::thread::Builder::new()
            .name("otr-compile".to_owned())
            .spawn(move || inner.work());
        if let Err(error) = thread {
            tracing::debug!(target: "outrigger::modules", %error, "no thread: compiled by who asks");
            self.0.work();
        }
    }
}

impl Inner {
    /// Works until nothing is left.
    fn work(&self) {
        let thread = Thread(self);
        loop {
            let mut state = self.state.lock();
            let Some(job) = state.jobs.pop_front() else {
                // In one step with seeing that nothing is left: who adds a job either is seen or starts a thread.
                state.threads -= 1;
                drop(state);
                std::mem::forget(thread);
                self.ended.notify_all();
                return;
            };
            drop(state);
            job.run();
        }
    }
}

/// A thread that ends because a job panicked. What it leaves is worked on by who waits for it.
struct Thread<'a>(&'a Inner);

impl Drop for Thread<'_> {
    fn drop(&mut self) {
        self.0.state.lock().threads -= 1;
        self.0.ended.notify_all();
    }
}

impl Drop for Pool {
    /// Gives up what nobody works on, and waits for the rest: a compiler that runs while its process ends and takes its
    /// libraries down is a crash.
    fn drop(&mut self) {
        if outrigger_device::forked() {
            return;
        }
        let mut state = self.0.state.lock();
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        for job in jobs {
            job.cancel();
        }
        let mut state = self.0.state.lock();
        while state.threads > 0 {
            self.0.ended.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_number_of_threads_is_a_number_from_1() {
        assert_eq!(parse("").unwrap(), None);
        assert_eq!(parse("3").unwrap(), Some(3));
        for text in ["0", "-1", "many", "257", "1.5"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(
                error.contains(&format!("OUTRIGGER_COMPILE_THREADS is `{text}`; give")),
                "{error}"
            );
        }
    }
}
