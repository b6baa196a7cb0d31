//! Native graphs of a driver: commands that a queue records, and that the driver replays as one. This
//! module owns them and reports their errors; the crates above decide whether to use them.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use outrigger_locks::{Mutex, Rank};

use crate::fork::{forked, refuse_fork};
use crate::held::{self, Command, Held};
use crate::profile::{What, WorkKind};
use crate::table::{entry, hole};
use crate::{Code, Driver, Error, Queue, RawDriver, Result, sys};

impl Driver {
    /// The driver's own graphs; `None` if it has none.
    pub fn native_graphs(&self) -> Option<NativeGraphs<'_>> {
        self.table().graph.as_ref().map(|group| NativeGraphs {
            driver: self,
            group,
        })
    }
}

/// What a driver does with graphs of its own.
#[derive(Clone, Copy, Debug)]
pub struct NativeGraphs<'a> {
    driver: &'a Driver,
    group: &'a sys::otr_graph_api,
}

impl NativeGraphs<'_> {
    /// Lets a queue keep what is submitted to it, instead of running it, until
    /// [`record_end`](Self::record_end). Queues that wait for an event of the recording join it.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a queue of another driver; `CAPTURE` if the queue records already; what
    /// else the driver answers.
    pub fn record_begin(&self, queue: &Queue) -> Result<()> {
        refuse_fork()?;
        self.check_queue(queue)?;
        let begin = entry!(self.group, record_begin);
        queue.settle()?;
        // SAFETY: the queue is live and of this driver.
        self.driver.check(unsafe { begin(queue.raw()) })?;
        queue.order().lane().set_recording(true);
        Ok(())
    }

    /// Ends a recording and gives its graph. The queue takes work again, also after an error.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the recording did not begin on this queue, or queues that joined it were
    /// not joined again; what else the driver answers.
    pub fn record_end(&self, queue: &Queue) -> Result<NativeGraph> {
        refuse_fork()?;
        self.check_queue(queue)?;
        let end = entry!(self.group, record_end);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the queue is live and of this driver; the handle lives through the call.
        let code = unsafe { end(queue.raw(), &mut handle) };
        // A recording that failed is lost (R32).
        queue.order().lane().set_recording(false);
        self.driver.check(code)?;
        match NonNull::new(handle) {
            Some(handle) => Ok(NativeGraph {
                recorded: Arc::new(Recorded {
                    handle,
                    held: Mutex::new(Rank::HeldGraph, Vec::new()),
                    raw: Arc::clone(self.driver.shared()),
                }),
                driver: self.driver.clone(),
            }),
            None => Err(Error::new(
                Code::INTERNAL,
                "the driver gave NULL for a graph",
            )),
        }
    }

    /// Whether [`NativeGraph::update`] can be used.
    pub fn can_update(&self) -> bool {
        self.group.update.is_some()
    }

    /// Whether [`NativeGraph::update_part`] can be used.
    pub fn can_update_part(&self) -> bool {
        self.group.update_part.is_some()
    }

    fn check_queue(&self, queue: &Queue) -> Result<()> {
        if queue.driver().same_as(self.driver) {
            return Ok(());
        }
        Err(foreign(self.driver, queue))
    }
}

#[cold]
fn foreign(driver: &Driver, queue: &Queue) -> Error {
    Error::new(
        Code::INVALID_ARGUMENT,
        format!(
            "a graph of the driver {} with a queue of the driver {}",
            driver.name(),
            queue.driver().name()
        ),
    )
}

/// A graph of a driver. Dropping it does not wait: launches that were submitted still run (R36).
pub struct NativeGraph {
    recorded: Arc<Recorded>,
    // Declared last: the driver stays open until the graph is destroyed.
    driver: Driver,
}

/// A graph that queues may hold launches of.
struct Recorded {
    handle: NonNull<sys::otr_drv_graph>,
    /// Launches that were held, by queue and place there.
    held: Mutex<Vec<(Weak<Held>, u64)>>,
    raw: Arc<RawDriver>,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Recorded {}
// SAFETY: as above.
unsafe impl Sync for Recorded {}

impl Recorded {
    /// Notes a launch that a queue holds.
    fn note(&self, order: &Arc<Held>, place: u64) {
        let mut held = self.held.lock();
        held.retain(|(other, _)| {
            other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(order))
        });
        held.push((Arc::downgrade(order), place));
    }

    /// Waits until no queue holds a launch: what was submitted keeps what it had (R35).
    fn settle(&self) -> Result<()> {
        let held = std::mem::take(&mut *self.held.lock());
        for (order, place) in held {
            if let Some(order) = order.upgrade() {
                held::wait(&order, place)?;
            }
        }
        Ok(())
    }
}

impl NativeGraph {
    /// Gives later launches the arguments of another graph with the same commands.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the driver cannot; `INVALID_ARGUMENT` if the commands differ, or for a graph of
    /// another driver: nothing has changed then.
    pub fn update(&self, from: &Self) -> Result<()> {
        let group = self.before_update(from)?;
        let update = group.update.ok_or_else(|| self.no_update("graphs"))?;
        // SAFETY: both graphs are live and of one driver.
        self.driver.check(unsafe { update(self.raw(), from.raw()) })
    }

    /// Gives later launches the arguments of another graph, for as many commands as that has. `first` is
    /// the number of the first one here, from 0.
    ///
    /// # Errors
    /// Those of [`update`](Self::update); `INVALID_ARGUMENT` also for commands that this graph does not
    /// have.
    pub fn update_part(&self, first: u32, from: &Self) -> Result<()> {
        let group = self.before_update(from)?;
        let part = group.update_part;
        let update = part.ok_or_else(|| self.no_update("parts of graphs"))?;
        // SAFETY: both graphs are live and of one driver.
        self.driver
            .check(unsafe { update(self.raw(), first, from.raw()) })
    }

    fn before_update(&self, from: &Self) -> Result<&sys::otr_graph_api> {
        refuse_fork()?;
        if !from.driver.same_as(&self.driver) {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                "a graph cannot take arguments of another driver's",
            ));
        }
        self.recorded.settle()?;
        let group = self.driver.table().graph.as_ref();
        group.ok_or_else(|| hole("graph"))
    }

    fn raw(&self) -> *mut sys::otr_drv_graph {
        self.recorded.handle.as_ptr()
    }

    #[cold]
    fn no_update(&self, what: &str) -> Error {
        Error::new(
            Code::UNSUPPORTED,
            format!(
                "the driver {} does not update {what}: record another one",
                self.driver.name()
            ),
        )
    }
}

impl Queue {
    /// Launches a graph: all of its commands, as one submission.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a graph of another driver; `INVALID_DEVICE` for one of another device;
    /// what else the driver answers. Failures of the commands come with later queries and waits.
    ///
    /// # Safety
    /// All that the recorded commands name is live until the launch has finished.
    #[inline]
    pub unsafe fn launch_graph(&self, graph: &NativeGraph) -> Result<()> {
        refuse_fork()?;
        if !graph.driver.same_as(self.driver()) {
            return Err(foreign(&graph.driver, self));
        }
        let Some(group) = &self.driver().table().graph else {
            return Err(hole("graph"));
        };
        let launch = entry!(group, launch);
        let queue = self.raw();
        let submitted = self.submit(
            move || What::new(WorkKind::Graph, "graph", 0),
            // SAFETY: queue and graph are live and of one driver; R31: what the commands name is live until
            // the launch has finished.
            move || unsafe { launch(queue, graph.raw()) },
            || {
                let graph = Arc::clone(&graph.recorded);
                // SAFETY: as above.
                Command::new(move || unsafe { launch(queue, graph.handle.as_ptr()) })
            },
        );
        if !self.order().is_open() {
            graph.recorded.note(self.order(), self.order().end());
        }
        submitted
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let group = self.raw.table().graph.as_ref();
        let Some(destroy) = group.and_then(|group| group.destroy) else {
            return;
        };
        // SAFETY: the handle is live and nobody else holds this value.
        if let Err(error) = self.raw.check(unsafe { destroy(self.handle.as_ptr()) }) {
            tracing::warn!(target: "outrigger::device", %error, "a graph could not be destroyed");
        }
    }
}

impl fmt::Debug for NativeGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeGraph")
            .field("driver", &self.driver.name())
            .field("handle", &self.recorded.handle)
            .finish()
    }
}
