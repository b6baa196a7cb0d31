//! Nodes as commands of a driver's queue, and replays that submit them one by one. Each command is read from the node's
//! argument block. This file changes neither the order of the schedule nor a block.

use std::ffi::CStr;

use outrigger_device::sys::otr_operator_call;
use outrigger_device::{CopyKind, Queue};
use outrigger_ops::{KernelFn, Prepared, packed};

use crate::dag::Kind;
use crate::data::{GraphData, Work};
use crate::program::Program;
use crate::schedule::Schedule;
use crate::steps;
use crate::timeline::Timeline;
use crate::{Error, Result};

/// The command of a node for a queue.
pub(super) enum Submission<'a> {
    Operator {
        prepared: &'a Prepared,
        call: &'a otr_operator_call,
        workspace: u64,
    },
    Copy {
        dst: u64,
        src: u64,
        size: u64,
        kind: CopyKind,
    },
    Fill {
        dst: u64,
        size: u64,
        pattern: [u8; 16],
    },
    /// A host kernel, which may be one that calls a host function.
    Kernel(KernelSubmission<'a>),
}

/// A host kernel of a graph.
pub(super) struct KernelSubmission<'a> {
    pub(super) function: KernelFn,
    pub(super) args: &'a [u8],
    pub(super) cost_ns: u32,
    pub(super) label: &'static CStr,
}

impl Submission<'_> {
    /// Submits the command to a queue. `kernel` submits a host kernel, and `failed` turns errors of the driver into
    /// errors of the caller.
    ///
    /// # Safety
    /// The ranges and the workspace that the command names are live until it has run.
    pub(super) unsafe fn put(
        self,
        queue: &Queue,
        failed: impl FnOnce(outrigger_device::Error) -> Error,
        kernel: impl FnOnce(KernelSubmission<'_>) -> Result<()>,
    ) -> Result<()> {
        // SAFETY: this function's contract: all memory that the command names is live until it has run (R12, R26).
        let submitted = unsafe {
            match self {
                Self::Operator {
                    prepared,
                    call,
                    workspace,
                } => prepared.launch_raw(queue, call, workspace),
                Self::Copy {
                    dst,
                    src,
                    size,
                    kind,
                } => queue.copy(dst, src, size, kind),
                Self::Fill { dst, size, pattern } => {
                    queue.fill(dst, size, steps::shortest(&pattern))
                }
                Self::Kernel(one) => return kernel(one),
            }
        };
        submitted.map_err(failed)
    }
}

/// The commands of a graph, in the order of the schedule.
///
/// # Safety
/// No replay changes the program's blocks while the result is used.
pub(super) unsafe fn submissions<'a>(
    data: &'a GraphData,
    schedule: &'a Schedule,
    program: &'a Program,
) -> impl Iterator<Item = Submission<'a>> {
    schedule.steps.iter().filter_map(move |&id| {
        let node = data.graph.node(id)?;
        let command = &node.spec.command;
        // SAFETY: this function's contract: no replay changes the blocks while they are read.
        let block = unsafe { program.block(command.words.clone()) };
        match (&command.work, node.spec.kind) {
            (Work::Operator(prepared, workspace), _) => Some(Submission::Operator {
                prepared,
                // SAFETY: this function's contract. The program has fixed the block.
                call: unsafe { packed::raw(block) },
                workspace: *workspace,
            }),
            (Work::Kernel(_), Kind::Copy) => {
                let (dst, src, size, kind) = steps::copy_of(block)?;
                Some(Submission::Copy {
                    dst,
                    src,
                    size,
                    kind,
                })
            }
            (Work::Kernel(_), Kind::Fill) => {
                let (dst, size, pattern) = steps::fill_of(block)?;
                Some(Submission::Fill { dst, size, pattern })
            }
            (Work::Kernel(function), _) => Some(Submission::Kernel(KernelSubmission {
                function: *function,
                args: &bytemuck::cast_slice(block)[..command.size as usize],
                cost_ns: node.spec.cost_ns,
                label: command
                    .call
                    .map_or(c"graph", |call| call.operator(&data.store.calls).name()),
            })),
            (Work::None | Work::Conditional(_), _) => None,
        }
    })
}

/// Submits all nodes to a stream, one by one.
///
/// # Safety
/// - No replay changes the program's blocks meanwhile.
/// - All memory that the nodes name is live until they have run.
pub(super) unsafe fn submit(
    stream: &Timeline,
    data: &GraphData,
    schedule: &Schedule,
    program: &Program,
) -> Result<()> {
    // SAFETY: this function's contract: no replay changes the blocks meanwhile.
    for one in unsafe { submissions(data, schedule, program) } {
        // SAFETY: this function's contract: all memory that the nodes name is live until they have run. The block was
        // made for this kernel.
        let kernel = |one: KernelSubmission<'_>| unsafe {
            stream.launch_host(one.function, one.args, one.cost_ns, one.label)
        };
        // SAFETY: this function's contract: all memory that the nodes name is live until they have run.
        unsafe { one.put(stream.queue(), |error| stream.failed(error), kernel) }?;
    }
    Ok(())
}
