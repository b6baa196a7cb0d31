//! Nodes as commands of a driver's queue, and replays that submit them one by one. Each command is read from the node's
//! argument block. This file changes neither the order of the schedule nor a block.

use std::ffi::CStr;
use std::sync::Arc;

use outrigger_device::sys::otr_operator_call;
use outrigger_device::{Arguments, Code, CopyKind, DType, Queue};
use outrigger_ops::{KernelFn, Prepared, packed};

use crate::dag::{Kind, NodeId};
use crate::data::Work;
use crate::kernel::DeviceKernel;
use crate::program::Program;
use crate::program::conditional::{self, StoredCondition};
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
    Device {
        kernel: &'a DeviceKernel,
        args: &'a [u8],
        cost_ns: u32,
        label: &'static CStr,
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
    /// Whether its addresses are host pointers.
    pub(super) on_host: bool,
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
                Self::Device {
                    kernel,
                    args: block,
                    cost_ns,
                    label,
                } => {
                    let parts = &kernel.parts;
                    let args = Arguments { block, parts };
                    queue.launch_grid(&kernel.kernel, &kernel.grid, args, cost_ns, label)
                }
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

/// The command of a node; `None` for one that has none, or is a conditional.
///
/// # Safety
/// No replay changes the program's blocks while the result is used.
pub(super) unsafe fn submission(program: &Program, id: NodeId) -> Option<Submission<'_>> {
    let data = &program.data;
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
        (Work::Device(kernel), _) => Some(Submission::Device {
            kernel,
            args: &bytemuck::cast_slice(block)[..command.size as usize],
            cost_ns: node.spec.cost_ns,
            label: command.name,
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
            label: command.name,
            on_host: command.on_host,
        })),
        (Work::None | Work::Conditional(_), _) => None,
    }
}

/// Submits all nodes to a stream, one by one. Waits at each conditional node, for its predicate.
///
/// # Safety
/// - No replay changes the program's blocks meanwhile.
/// - All memory that the nodes name is live until they have run.
pub(super) unsafe fn submit(stream: &Timeline, program: &Program) -> Result<()> {
    for &id in &program.schedule.steps {
        // SAFETY: this function's contract.
        unsafe { submit_node(stream, program, id) }?;
    }
    Ok(())
}

/// Submits one node.
///
/// # Safety
/// The contract of [`submit`].
pub(super) unsafe fn submit_node(stream: &Timeline, program: &Program, id: NodeId) -> Result<()> {
    // SAFETY: this function's contract: no replay changes the blocks meanwhile.
    if let Some(one) = unsafe { submission(program, id) } {
        // SAFETY: this function's contract: all memory that the node names is live until it has run. The block was made
        // for this kernel.
        let kernel = |one: KernelSubmission<'_>| unsafe { launch(stream, one) };
        // SAFETY: as above.
        return unsafe { one.put(stream.queue(), |error| stream.failed(error), kernel) };
    }
    let Some(command) = program.data.graph.node(id).map(|node| &node.spec.command) else {
        return Ok(());
    };
    let Work::Conditional(index) = command.work else {
        return Ok(());
    };
    // SAFETY: this function's contract: no replay changes the blocks meanwhile.
    let block = unsafe { program.block(command.words.clone()) };
    let (bodies, condition) = (&program.bodies[index], StoredCondition::of(block));
    let condition =
        condition.ok_or_else(|| Error::new(Code::INTERNAL, "a condition without a block"))?;
    let followed = condition.follow::<Stop>(
        bodies.len(),
        // SAFETY: this function's contract: the predicate is live.
        || unsafe { read(stream, condition.predicate, condition.dtype) }.map_err(Stop),
        // SAFETY: this function's contract, which includes the bodies.
        |index| unsafe { submit(stream, &bodies[index]) }.map_err(Stop),
    );
    followed.map_err(|stop| stop.0)
}

/// Submits a host kernel, or a call of a host function.
///
/// # Safety
/// The block was made for this kernel, and all memory that it names is live until it has run.
unsafe fn launch(stream: &Timeline, one: KernelSubmission<'_>) -> Result<()> {
    if one.on_host {
        // SAFETY: this function's contract; `on_host`: the addresses are host pointers.
        return unsafe { stream.call_on_host(one.function, one.args, one.label) };
    }
    if steps::is_host(one.function) {
        // SAFETY: this function's contract; `is_host`: the block is one of `host_block`.
        return unsafe { call(stream, one) };
    }
    // SAFETY: this function's contract.
    unsafe { stream.launch_host(one.function, one.args, one.cost_ns, one.label) }
}

/// Submits a call of a host function. As a kernel it would not be called after a failure (H19).
///
/// # Safety
/// The contract of [`launch`]; the block is one of `host_block`.
unsafe fn call(stream: &Timeline, one: KernelSubmission<'_>) -> Result<()> {
    let door = stream.door();
    // If nobody can reach the device's memory, the function names none of it.
    let bias = match door.runs_host_kernels()? {
        true => door.host_bias()?,
        false => 0,
    };
    let noted = Arc::clone(stream.failed_operator());
    let (function, block, label) = (one.function, one.args.to_vec(), one.label);
    let call = move |upstream: Result<(), Code>| {
        let before = upstream.err().unwrap_or(Code::OK);
        // SAFETY: this function's contract: the function may be called, and its memory is live.
        let code = unsafe { steps::call_host(function, block.as_ptr().cast(), bias, before.0) };
        if code == Code::OK.0 {
            return Ok(());
        }
        if before == Code::OK {
            noted.set(label.into());
        }
        Err(Code(code))
    };
    stream
        .queue()
        .host_call_named(label, call)
        .map_err(|error| stream.failed(error))
}

/// The error that ends a conditional node early.
struct Stop(Error);

impl From<Code> for Stop {
    fn from(code: Code) -> Self {
        Self(Error::new(code, "a loop of a graph does not end"))
    }
}

/// Waits for a predicate.
///
/// # Safety
/// It is an element of this dtype in live memory.
unsafe fn read(stream: &Timeline, address: u64, dtype: DType) -> Result<i64> {
    let place = Box::into_raw(Box::new(0u64));
    let size = dtype.size().unwrap_or(8) as u64;
    // SAFETY: this function's contract. The place goes only when the copy has finished: where the wait fails, nobody knows
    // that, and it is leaked.
    unsafe {
        let copied = stream
            .queue()
            .copy(place as u64, address, size, CopyKind::DeviceToHost);
        if let Err(error) = copied {
            drop(Box::from_raw(place));
            return Err(stream.failed(error));
        }
        stream.synchronize_now()?;
        let value = conditional::value(place.cast(), dtype);
        drop(Box::from_raw(place));
        Ok(value)
    }
}
