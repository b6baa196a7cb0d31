//! Native graphs of a driver: commands that a queue records, and that the driver replays as one. This
//! module owns them and reports their errors; the crates above decide whether to use them.

use std::fmt;
use std::ptr::NonNull;

use crate::fork::{forked, refuse_fork};
use crate::profile::{What, WorkKind};
use crate::table::{entry, hole};
use crate::{Code, Driver, Error, Queue, Result, sys};

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
        // SAFETY: the queue is live and of this driver.
        self.driver.check(unsafe { begin(queue.raw()) })
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
        self.driver.check(code)?;
        match NonNull::new(handle) {
            Some(handle) => Ok(NativeGraph {
                handle,
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
    handle: NonNull<sys::otr_drv_graph>,
    // Declared last: the driver stays open until the graph is destroyed.
    driver: Driver,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for NativeGraph {}
// SAFETY: as above.
unsafe impl Sync for NativeGraph {}

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
        self.driver
            .check(unsafe { update(self.handle.as_ptr(), from.handle.as_ptr()) })
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
            .check(unsafe { update(self.handle.as_ptr(), first, from.handle.as_ptr()) })
    }

    fn before_update(&self, from: &Self) -> Result<&sys::otr_graph_api> {
        refuse_fork()?;
        if !from.driver.same_as(&self.driver) {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                "a graph cannot take arguments of another driver's",
            ));
        }
        self.driver
            .table()
            .graph
            .as_ref()
            .ok_or_else(|| hole("graph"))
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
        self.submit(
            move || What::new(WorkKind::Graph, "graph", 0),
            // SAFETY: queue and graph are live and of one driver; R31: what the commands name is live until
            // the launch has finished.
            move || unsafe { launch(self.raw(), graph.handle.as_ptr()) },
        )
    }
}

impl Drop for NativeGraph {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let group = self.driver.table().graph.as_ref();
        let Some(destroy) = group.and_then(|group| group.destroy) else {
            return;
        };
        // SAFETY: the handle is live and nobody else holds this value.
        if let Err(error) = self.driver.check(unsafe { destroy(self.handle.as_ptr()) }) {
            tracing::warn!(target: "outrigger::device", %error, "a graph could not be destroyed");
        }
    }
}

impl fmt::Debug for NativeGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeGraph")
            .field("driver", &self.driver.name())
            .field("handle", &self.handle)
            .finish()
    }
}
