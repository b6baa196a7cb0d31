//! One code on its way to a module. Whoever comes first works on it: a thread of the background, or one that needs the
//! result. All others wait for that one, so nobody can wait for a thread that never comes.

use std::sync::Arc;

use outrigger_device::{Code, Driver, Error, Module, Result, forked};
use outrigger_locks::{Condvar, Mutex, Rank};

use crate::compile::produce;
use crate::source::Source;
use crate::{Place, Shared};

/// The source and options of a module, and the device that it is loaded on.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) driver: Driver,
    pub(crate) device: u32,
    pub(crate) source: Source,
}

#[derive(Debug)]
pub(crate) struct Job {
    shared: Arc<Shared>,
    place: Place,
    request: Request,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    /// Nobody works on it.
    Waiting,
    Running,
    Done(Result<Module>),
}

impl Job {
    pub(crate) fn new(shared: Arc<Shared>, place: Place, request: Request) -> Self {
        Self {
            shared,
            place,
            request,
            state: Mutex::new(Rank::Compilation, State::Waiting),
            changed: Condvar::new(),
        }
    }

    /// Works on it if nobody does.
    pub(crate) fn run(&self) {
        if !self.claim() {
            return;
        }
        // A panic of this crate must not leave others waiting for ever.
        let mut end = End {
            job: self,
            result: None,
        };
        end.result = Some(produce(
            &self.shared.store,
            &self.shared.counts,
            &self.place.key,
            &self.request,
        ));
    }

    /// Works on it if nobody does, else waits for who does.
    pub(crate) fn finish(&self) -> Result<Module> {
        if forked() {
            // The thread that worked on it is a thread of the parent. The driver refuses, and says why.
            return Err(self.refusal());
        }
        self.run();
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Done(result) => return again(result),
                _ => self.changed.wait(&mut state),
            }
        }
    }

    /// The result, if there is one.
    pub(crate) fn poll(&self) -> Option<Result<Module>> {
        match &*self.state.lock() {
            State::Done(result) => Some(again(result)),
            _ => None,
        }
    }

    /// Gives it up if nobody works on it.
    pub(crate) fn cancel(&self) {
        if self.claim() {
            let text = "the modules were dropped before this one was compiled";
            self.end(Err(Error::new(Code::CANCELLED, text)));
        }
    }

    fn claim(&self) -> bool {
        let mut state = self.state.lock();
        let free = matches!(*state, State::Waiting);
        if free {
            *state = State::Running;
        }
        free
    }

    fn end(&self, result: Result<Module>) {
        // First the table: who asks when this is done must not find the job any more.
        self.shared.finished(self.place, &result);
        *self.state.lock() = State::Done(result);
        self.changed.notify_all();
    }

    fn refusal(&self) -> Error {
        match self.request.driver.memory_info(self.request.device) {
            Err(error) => error,
            Ok(_) => Error::new(Code::FORKED, "this process was forked"),
        }
    }
}

/// Ends a job, also where the work on it unwinds.
struct End<'a> {
    job: &'a Job,
    result: Option<Result<Module>>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let panicked = || {
            Err(Error::new(
                Code::INTERNAL,
                "the thread that loaded it panicked",
            ))
        };
        self.job.end(self.result.take().unwrap_or_else(panicked));
    }
}

fn again(result: &Result<Module>) -> Result<Module> {
    match result {
        Ok(module) => Ok(module.clone()),
        Err(error) => Err(Error::new(error.code(), error.message())),
    }
}

/// A module that may still be on its way. It may be dropped at any time: the module is compiled nevertheless.
#[derive(Clone, Debug)]
pub struct Pending(Way);

#[derive(Clone, Debug)]
enum Way {
    Ready(Module),
    Job(Arc<Job>),
}

/// A module that is there.
impl From<Module> for Pending {
    fn from(module: Module) -> Self {
        Self(Way::Ready(module))
    }
}

impl Pending {
    pub(crate) fn of(job: Arc<Job>) -> Self {
        Self(Way::Job(job))
    }

    /// The module, or why there is none; `None` while it is on its way.
    pub fn poll(&self) -> Option<Result<Module>> {
        match &self.0 {
            Way::Ready(module) => Some(Ok(module.clone())),
            Way::Job(job) => job.poll(),
        }
    }

    /// The module. If no thread works on it yet, this one does.
    ///
    /// # Errors
    /// As [`Modules::load`](crate::Modules::load); `CANCELLED` where the `Modules` were dropped first.
    pub fn wait(&self) -> Result<Module> {
        match &self.0 {
            Way::Ready(module) => Ok(module.clone()),
            Way::Job(job) => job.finish(),
        }
    }
}
