//! Graphs: commands that were kept instead of run. Each launch of the graph runs them together.
//!
//! A launch is one command of its queue. The commands that it runs are shared and never changed. So an
//! update replaces them only for later launches, and they live until the last launch of a destroyed
//! graph. `recording` brings the commands here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::command::{Command, Outcome};
use super::driver::{Device, Host, give};
use super::event::queue;
use super::fault::{Fault, done};
use super::recording;
use crate::{Code, sys};

/// What argument blocks are aligned to, as in a queue.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A kept command: its argument block is `size` bytes from a line on.
#[derive(Clone)]
struct Kept {
    command: Command,
    line: usize,
    size: u32,
}

// SAFETY: a command owns nothing that is bound to a thread: its pointers are the host's numbers, which
// are passed on, and labels, which are constants of the process.
unsafe impl Send for Kept {}
// SAFETY: as above; nothing in it is written after it was kept.
unsafe impl Sync for Kept {}

/// Commands in the order of their calls, which respects what each waits for.
#[derive(Clone, Default)]
pub(super) struct Body {
    commands: Vec<Kept>,
    args: Vec<Line>,
    cost: u64,
    blocks: bool,
}

/// A graph of the host.
struct Graph {
    body: Mutex<Arc<Body>>,
    /// Where it was recorded. It lies in `host`, and no other device ever does.
    device: *const Device,
    host: Arc<Host>,
}

impl Body {
    /// Appends a command with a copy of its argument block.
    pub(super) fn push(&mut self, command: Command, args: &[u8]) {
        self.cost = self.cost.saturating_add(command.cost_ns());
        self.blocks |= command.may_block();
        let line = self.args.len();
        self.args.extend(args.chunks(64).map(|chunk| {
            let mut line = Line([0; 64]);
            line.0[..chunk.len()].copy_from_slice(chunk);
            line
        }));
        self.commands.push(Kept {
            command,
            line,
            // An argument block has at most u32::MAX bytes: its size comes from a u32.
            size: args.len() as u32,
        });
    }

    /// The estimated run time of all commands, in nanoseconds.
    pub(super) fn cost_ns(&self) -> u64 {
        self.cost
    }

    /// Whether one of the commands may block.
    pub(super) fn may_block(&self) -> bool {
        self.blocks
    }

    /// Runs all commands. After a failure, `upstream` or of one of them, only host calls are.
    ///
    /// # Safety
    /// As of [`Command::run`], for each of the commands.
    pub(super) unsafe fn run(&self, upstream: Code) -> Outcome {
        let mut outcome = Outcome::from(upstream);
        for kept in &self.commands {
            let args = (self.args[kept.line..].as_ptr().cast(), kept.size);
            // SAFETY: what a command needs holds for each of this graph's; the block was copied for
            // this command (R30).
            let one = unsafe { kept.command.clone().run(args, outcome.code) };
            if outcome.code == Code::OK {
                outcome = one;
            }
        }
        outcome
    }

    /// Refuses another one whose commands differ from these, from number `first` on, in more than their
    /// arguments.
    fn check_same(&self, first: usize, other: &Self) -> Result<(), Fault> {
        let own = self.commands.get(first..).unwrap_or_default();
        let mut pairs = own.iter().zip(&other.commands);
        let differs = pairs
            .position(|(one, other)| one.size != other.size || !one.command.same(&other.command));
        match differs {
            Some(index) => Err(Fault::argument(format!(
                "command {} (from 0) of the graph is not of the kind, the kernel or the size of command \
                 {index} of the other one",
                first + index
            ))),
            None if own.len() < other.commands.len() => Err(Fault::argument(format!(
                "the graph has {} commands from number {first} on, not {}",
                own.len(),
                other.commands.len()
            ))),
            None => Ok(()),
        }
    }

    /// Replaces commands from number `first` on by those of another one, which are the same but for their
    /// arguments.
    fn replace(&mut self, first: usize, other: &Self) {
        for (kept, new) in self.commands[first..].iter_mut().zip(&other.commands) {
            let lines = (new.size as usize).div_ceil(64);
            self.args[kept.line..][..lines].copy_from_slice(&other.args[new.line..][..lines]);
            let (old, new) = (kept.command.cost_ns(), new.command.clone());
            self.cost = self.cost.saturating_sub(old).saturating_add(new.cost_ns());
            kept.command = new;
        }
    }
}

/// The graph behind a handle.
///
/// # Safety
/// `handle` is NULL or came from `record_end` and was not destroyed.
unsafe fn graph<'a>(handle: *mut sys::otr_drv_graph) -> Result<&'a Graph, Fault> {
    // SAFETY: NULL, or from `record_end` and not destroyed.
    unsafe { handle.cast::<Graph>().as_ref() }
        .ok_or_else(|| Fault::null("the graph", Code::INVALID_HANDLE))
}

pub(super) unsafe extern "C" fn record_begin(on: *mut sys::otr_queue) -> i32 {
    // SAFETY: R8: no call uses a queue that the host destroys, so it is NULL or live.
    done(|| recording::begin(unsafe { queue(on)? }))
}

pub(super) unsafe extern "C" fn record_end(
    on: *mut sys::otr_queue,
    place: *mut *mut sys::otr_drv_graph,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a queue that the host destroys, so it is NULL or live.
        let queue = unsafe { queue(on)? };
        if place.is_null() {
            return Err(Fault::null(
                "the place for the graph",
                Code::INVALID_ARGUMENT,
            ));
        }
        let host = queue
            .owner()
            .ok_or_else(|| Fault::new(Code::INVALID_HANDLE, "this queue was destroyed before"))?;
        let graph = Box::new(Graph {
            body: Mutex::new(Arc::new(recording::end(queue)?)),
            device: queue.device(),
            host,
        });
        graph.host.graphs.fetch_add(1, Ordering::Relaxed);
        // SAFETY: not NULL, so writable.
        unsafe { give(place, Box::into_raw(graph).cast()) }
    })
}

pub(super) unsafe extern "C" fn launch(
    on: *mut sys::otr_queue,
    handle: *mut sys::otr_drv_graph,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a queue that the host destroys, so it is NULL or live.
        let (queue, graph) = unsafe { (queue(on)?, graph(handle)?) };
        if !std::ptr::eq(queue.device(), graph.device) {
            return Err(Fault::new(
                Code::INVALID_DEVICE,
                "the graph was recorded on another device than that of the queue",
            ));
        }
        let body = Arc::clone(&graph.body.lock());
        queue.submit(Command::Graph { body })
    })
}

pub(super) unsafe extern "C" fn update(
    handle: *mut sys::otr_drv_graph,
    from: *mut sys::otr_drv_graph,
) -> i32 {
    // SAFETY: this function's own contract.
    unsafe {
        exchange(handle, from, |body, new| {
            let (own, other) = (body.commands.len(), new.commands.len());
            if own > other {
                return Err(Fault::argument(format!(
                    "the graph has {own} commands, not {other}"
                )));
            }
            body.check_same(0, &new)?;
            *body = new;
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn update_part(
    handle: *mut sys::otr_drv_graph,
    first: u32,
    from: *mut sys::otr_drv_graph,
) -> i32 {
    // SAFETY: this function's own contract.
    unsafe {
        exchange(handle, from, |body, new| {
            body.check_same(first as usize, &new)?;
            // A copy only where launches still have the old commands.
            Arc::make_mut(body).replace(first as usize, &new);
            Ok(())
        })
    }
}

/// Lets `with` change the commands of a graph by those of another one.
///
/// # Safety
/// R8: no call uses a graph that the host destroys, so each is NULL or live.
unsafe fn exchange(
    handle: *mut sys::otr_drv_graph,
    from: *mut sys::otr_drv_graph,
    with: impl FnOnce(&mut Arc<Body>, Arc<Body>) -> Result<(), Fault>,
) -> i32 {
    done(|| {
        // SAFETY: this function's contract.
        let (graph, from) = unsafe { (graph(handle)?, graph(from)?) };
        if !std::ptr::eq(graph.device, from.device) {
            return Err(Fault::argument("the graphs are of two devices"));
        }
        let new = Arc::clone(&from.body.lock());
        with(&mut graph.body.lock(), new)
    })
}

pub(super) unsafe extern "C" fn destroy(handle: *mut sys::otr_drv_graph) -> i32 {
    done(|| {
        // SAFETY: R8: no other call uses the graph that the host destroys, so it is NULL or live.
        let graph = unsafe { graph(handle)? };
        graph.host.graphs.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw` in `record_end`, and given back by the host; launches that
        // were submitted share the body.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(graph).cast_mut()) });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::{destroy, launch, record_begin, record_end, update, update_part};
    use crate::Code;

    #[test]
    fn null_is_refused_and_a_live_graph_keeps_the_driver_open() {
        let api = super::super::api("graphs=native");
        let (open, close) = (api.open.unwrap(), api.close.unwrap());
        let (create, give_up) = (api.queue_create.unwrap(), api.queue_destroy.unwrap());
        let (mut driver, mut queue, mut graph) = (null_mut(), null_mut(), null_mut());
        // SAFETY: NULL where the contract has an answer for it, else what the calls before have given.
        unsafe {
            assert_eq!(open(std::ptr::null(), &mut driver), Code::OK.0);
            let device_open = api.device_open.unwrap();
            assert_eq!(device_open(driver, 0, std::ptr::null()), Code::OK.0);
            assert_eq!(create(driver, 0, std::ptr::null(), &mut queue), Code::OK.0);
            assert_eq!(record_begin(null_mut()), Code::INVALID_HANDLE.0);
            assert_eq!(record_end(null_mut(), &mut graph), Code::INVALID_HANDLE.0);
            assert_eq!(record_begin(queue), Code::OK.0);
            assert_eq!(record_end(queue, null_mut()), Code::INVALID_ARGUMENT.0);
            assert_eq!(record_end(queue, &mut graph), Code::OK.0, "it went on");
            assert_eq!(launch(null_mut(), graph), Code::INVALID_HANDLE.0);
            assert_eq!(launch(queue, null_mut()), Code::INVALID_HANDLE.0);
            assert_eq!(update(graph, null_mut()), Code::INVALID_HANDLE.0);
            assert_eq!(update(null_mut(), graph), Code::INVALID_HANDLE.0);
            assert_eq!(update_part(graph, 0, null_mut()), Code::INVALID_HANDLE.0);
            assert_eq!(update_part(null_mut(), 0, graph), Code::INVALID_HANDLE.0);
            assert_eq!(destroy(null_mut()), Code::INVALID_HANDLE.0);
            assert_eq!(give_up(queue), Code::OK.0);
            assert_eq!(close(driver), Code::BUSY.0);
            assert_eq!(destroy(graph), Code::OK.0);
            assert_eq!(close(driver), Code::OK.0);
        }
    }
}
