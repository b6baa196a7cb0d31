//! Turns calls into stored commands. Captures and graphs that are built node by node share this file.

use std::borrow::Cow;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

use outrigger_allocator::StreamId;
use outrigger_device::{Code, CopyKind, DType, HostFn};
use outrigger_ops::{Call, KernelFn, OperatorId, Prepared, packed, refused};

use crate::buffers::Resolver;
use crate::call::StoredCall;
use crate::dag::{Access, Kind};
use crate::data::{
    Bodies, Command, ConditionalKind, DestroyFn, GraphData, Store, Stored, Work, access,
};
use crate::kernel::DeviceCall;
use crate::memory::{Device, PoolRef};
use crate::program::conditional;
use crate::steps::{self, HostNodeFn};
use crate::{Error, Result};

/// A host kernel that the host brings.
#[derive(Clone, Copy, Debug)]
pub struct KernelCall<'a> {
    /// The function, which runs on a thread of the driver's choice.
    pub function: KernelFn,
    /// The argument block, which is copied.
    pub args: &'a [u8],
    /// Estimated time in nanoseconds; 0 if unknown.
    pub cost_ns: u32,
    /// The name of the kernel, for failures and pictures.
    pub label: &'static CStr,
    /// The offsets in the block at which device addresses stand, in bytes; each is a multiple of 8.
    pub address_offsets: &'a [u32],
    /// The bytes that the kernel uses from each of these addresses on; empty if they are not known.
    pub ranges: &'a [AddressRange],
}

/// The bytes that a kernel uses from one of its addresses on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// The number of bytes.
    pub bytes: u64,
    /// Whether the kernel writes to them.
    pub written: bool,
}

impl KernelCall<'_> {
    /// The device addresses in the block, each with the number of its word.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an offset that is no multiple of 8 or beyond the block.
    pub fn addresses(&self) -> Result<Vec<(u32, u64)>> {
        let one = |&offset: &u32| {
            let at = offset as usize;
            let word = self.args.get(at..at + 8).filter(|_| at.is_multiple_of(8));
            let word = word.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
            let word = word.ok_or_else(|| {
                let text = format!(
                    "no address can stand at byte {at} of an argument block of {} bytes: its offset must be a \
                     multiple of 8 within the block",
                    self.args.len()
                );
                Error::new(Code::INVALID_ARGUMENT, text)
            })?;
            Ok((offset / 8, u64::from_ne_bytes(word)))
        };
        self.address_offsets.iter().map(one).collect()
    }
}

/// A function that runs on the host at every replay.
#[derive(Clone, Copy, Debug)]
pub struct HostNode<'a> {
    /// The function.
    pub function: HostNodeFn,
    /// The user data that the function is given.
    pub user: *mut c_void,
    /// Called once with `user` when the function will not be called again.
    pub destroy: Option<DestroyFn>,
    /// The name of the node; empty for a node without one.
    pub label: &'a str,
    /// Addresses within allocations that it reads.
    pub reads: &'a [u64],
    /// Addresses within allocations that it writes, or reads and writes.
    pub writes: &'a [u64],
    /// Estimated time in nanoseconds; 0 if unknown.
    pub cost_ns: u32,
}

/// An operator of the driver for a node, with its workspace from the graph's pool. Dropping gives the workspace back,
/// unless the graph took it.
#[derive(Debug)]
pub struct DriverNode {
    prepared: Arc<Prepared>,
    device: &'static dyn Device,
    workspace: u64,
}

impl DriverNode {
    /// The driver's operator for a call; `None` if the call becomes a host kernel, which is admitted here. The function
    /// calls the driver, and tells observers, so the caller has not locked the graph. For the same reason the caller
    /// drops the result after it has unlocked the graph.
    ///
    /// # Errors
    /// `UNSUPPORTED` if neither has anything for the call; what the driver reports.
    pub(crate) fn find(id: OperatorId, call: &Call<'_>, pool: &PoolRef) -> Result<Option<Self>> {
        let device = pool.device();
        let Some(prepared) = device.find_operator(id, call)? else {
            // A call that no kernel takes is refused before observers hear of it.
            outrigger_ops::plan(id, call).map_err(|error| refused(id, error))?;
            if !call.device_only {
                device.admit_host_kernel(id)?;
            }
            return Ok(None);
        };
        let workspace = match prepared.needs().workspace_bytes {
            0 => 0,
            bytes => {
                let stream = StreamId(device.default_stream());
                device.alloc_in(pool, bytes, stream)?.address
            }
        };
        Ok(Some(Self {
            prepared: Arc::clone(&prepared),
            device,
            workspace,
        }))
    }

    /// Returns the operator and the address of its workspace; 0 if it needs none. From here on the caller owns the
    /// workspace.
    fn take(&mut self) -> (Arc<Prepared>, u64) {
        let workspace = std::mem::take(&mut self.workspace);
        (Arc::clone(&self.prepared), workspace)
    }
}

impl Drop for DriverNode {
    fn drop(&mut self) {
        if self.workspace != 0 {
            self.device.free_block(self.workspace);
        }
    }
}

/// A command, and how it uses buffers.
pub(crate) type Recorded = (Stored, Vec<Access>);

fn stored(
    kind: Kind,
    label: impl Into<Cow<'static, str>>,
    function: KernelFn,
    words: std::ops::Range<u32>,
    size: u32,
) -> Stored {
    Stored {
        kind,
        label: label.into(),
        cost_ns: 0,
        effects: false,
        command: Command {
            work: Work::Kernel(function),
            words,
            size,
            call: None,
            name: c"graph",
            fixed: false,
            on_host: false,
        },
    }
}

/// A rough estimate of the time to move `size` bytes, in nanoseconds.
fn move_cost(size: u64) -> u32 {
    u32::try_from(size / 8).unwrap_or(u32::MAX).max(20)
}

/// Records an operator. `driver` is what [`DriverNode::find`] has found for the call.
pub(crate) fn operator(
    store: &mut Store,
    buffers: &mut Resolver<'_>,
    id: OperatorId,
    call: &Call<'_>,
    driver: Option<&mut DriverNode>,
) -> Result<Recorded> {
    let name = || id.name().to_string_lossy();
    outrigger_ops::check(id, call).map_err(|error| refused(id, error))?;
    let mut places = Vec::with_capacity(call.inputs.len() + call.outputs.len());
    let mut accesses = Vec::with_capacity(places.capacity());
    for (index, tensor) in call.inputs.iter().chain(call.outputs).enumerate() {
        if tensor.dtype() == DType::INVALID || tensor.numel() == 0 {
            places.push(None);
            continue;
        }
        let buffer = buffers
            .resolve(tensor.address())
            .map_err(|error| error.in_operator(name()))?;
        places.push(Some(buffer));
        // Outputs count as read too, because operators that work in place read them.
        accesses.push(access(buffer, true, index >= call.inputs.len()));
    }
    if let Some(driver) = driver {
        let (prepared, workspace) = driver.take();
        if workspace != 0 {
            buffers.own_block(workspace);
        }
        let words = store.push(&packed::pack(id, call));
        for (at, tensor) in call.inputs.iter().chain(call.outputs).enumerate() {
            if places[at].is_some() {
                let word = words.start + packed::address_word(at);
                store.push_address(word, tensor.address());
            }
        }
        store.draw_of_operator(id, call, words.start);
        store.packed = true;
        let size = words.len() as u32 * 8;
        let call = StoredCall::store(&mut store.calls, id, call);
        let mut stored = stored(Kind::Kernel, name().into_owned(), steps::copy, words, size);
        stored.command.work = Work::Operator(prepared, workspace);
        stored.command.call = Some(call);
        return Ok((stored, accesses));
    }
    let refused = |error| refused(id, error);
    Ok((store.operator(id, call, &places, refused)?, accesses))
}

pub(crate) fn kernel(
    store: &mut Store,
    buffers: &mut Resolver<'_>,
    call: &KernelCall<'_>,
) -> Result<Recorded> {
    let mut accesses = Vec::new();
    let addresses = call.addresses()?;
    for &(_, address) in &addresses {
        let buffer = buffers.resolve(address)?;
        accesses.push(access(buffer, true, true));
    }
    let words = store.push_bytes(call.args);
    for (word, address) in addresses {
        store.push_address(words.start + word, address);
    }
    let label = call.label.to_string_lossy();
    let size = call.args.len() as u32;
    let mut stored = stored(Kind::Kernel, label, call.function, words, size);
    stored.cost_ns = call.cost_ns;
    stored.effects = true;
    stored.command.name = call.label;
    Ok((stored, accesses))
}

/// Records a kernel of a module.
pub(crate) fn device_kernel(
    store: &mut Store,
    buffers: &mut Resolver<'_>,
    call: &DeviceCall<'_>,
) -> Result<Recorded> {
    let addresses = call.addresses()?;
    let accesses = addresses.iter().map(|&(_, address)| {
        let buffer = buffers.resolve(address)?;
        Ok(access(buffer, true, true))
    });
    let accesses = accesses.collect::<Result<Vec<_>>>()?;
    let words = store.push_bytes(call.args.block);
    for (word, address) in addresses {
        store.push_address(words.start + word, address);
    }
    let label = call.label.to_string_lossy();
    let size = call.args.block.len() as u32;
    let mut stored = stored(Kind::Kernel, label, steps::copy, words, size);
    stored.command.work = Work::Device(Arc::new(call.stored()));
    stored.cost_ns = call.cost_ns;
    stored.effects = true;
    stored.command.name = call.label;
    Ok((stored, accesses))
}

/// Records an operator over copies of its operands in host memory, which the graph keeps. The caller has had the host
/// kernel admitted.
pub(crate) fn operator_on_host(
    store: &mut Store,
    id: OperatorId,
    call: &Call<'_>,
) -> Result<Recorded> {
    let refused = |error| refused(id, error);
    outrigger_ops::check(id, call).map_err(refused)?;
    let places = vec![None; call.inputs.len() + call.outputs.len()];
    let mut stored = store.operator(id, call, &places, refused)?;
    // The graph does not know what the copies behind the node read, so the node is never dropped.
    stored.effects = true;
    stored.command.on_host = true;
    Ok((stored, Vec::new()))
}

/// Records a host kernel over copies in host memory, which the graph keeps.
pub(crate) fn kernel_on_host(store: &mut Store, call: &KernelCall<'_>) -> Recorded {
    let words = store.push_bytes(call.args);
    let label = call.label.to_string_lossy();
    let size = call.args.len() as u32;
    let mut stored = stored(Kind::Kernel, label, call.function, words, size);
    stored.cost_ns = call.cost_ns;
    stored.effects = true;
    stored.command.name = call.label;
    stored.command.on_host = true;
    (stored, Vec::new())
}

pub(crate) fn copy(
    store: &mut Store,
    buffers: &mut Resolver<'_>,
    (dst, src, size, kind): (u64, u64, u64, CopyKind),
) -> Result<Recorded> {
    let (reads, writes) = (
        size > 0 && kind.reads_device(),
        size > 0 && kind.writes_device(),
    );
    let mut accesses = Vec::new();
    // Before the block is stored: a call that is refused leaves no words behind (H2).
    if reads {
        accesses.push(access(buffers.resolve(src)?, true, false));
    }
    if writes {
        accesses.push(access(buffers.resolve(dst)?, false, true));
    }
    let words = store.push(&steps::copy_block(dst, src, size, kind));
    if reads {
        store.push_address(words.start + steps::COPY_SRC, src);
    }
    if writes {
        store.push_address(words.start + steps::COPY_DST, dst);
    }
    let mut stored = stored(Kind::Copy, "copy", steps::copy, words, 32);
    stored.cost_ns = move_cost(size);
    // The host sees the destination of a copy to the host, so such a copy is never dropped.
    stored.effects = size > 0 && !kind.writes_device();
    Ok((stored, accesses))
}

pub(crate) fn fill(
    store: &mut Store,
    buffers: &mut Resolver<'_>,
    dst: u64,
    size: u64,
    pattern: &[u8],
) -> Result<Recorded> {
    let mut accesses = Vec::new();
    // Before the block is stored: a call that is refused leaves no words behind (H2).
    if size > 0 {
        accesses.push(access(buffers.resolve(dst)?, false, true));
    }
    let words = store.push(&steps::fill_block(dst, size, pattern));
    if size > 0 {
        store.push_address(words.start + steps::FILL_DST, dst);
    }
    let mut stored = stored(Kind::Fill, "fill", steps::fill, words, 32);
    stored.cost_ns = move_cost(size);
    Ok((stored, accesses))
}

pub(crate) fn host_node(
    store: &mut Store,
    buffers: &mut Resolver<'_>,
    node: &HostNode<'_>,
) -> Result<Recorded> {
    let mut accesses = Vec::new();
    let uses = node.reads.iter().map(|address| (address, false));
    for (&address, writes) in uses.chain(node.writes.iter().map(|address| (address, true))) {
        if address != 0 {
            accesses.push(access(buffers.resolve(address)?, true, writes));
        }
    }
    let words = store.push(&steps::host_block(node.function as usize, node.user));
    let label = if node.label.is_empty() {
        "host"
    } else {
        node.label
    };
    let mut stored = stored(Kind::Host, label.to_owned(), steps::host_node, words, 16);
    stored.cost_ns = node.cost_ns;
    stored.effects = true;
    // The function knows its addresses, which the block does not show.
    stored.command.fixed = true;
    Ok((stored, accesses))
}

pub(crate) fn host_call(store: &mut Store, function: HostFn, user: *mut c_void) -> Recorded {
    let words = store.push(&steps::host_block(function as usize, user));
    let mut stored = stored(Kind::Host, "host", steps::host_call, words, 16);
    stored.effects = true;
    (stored, Vec::new())
}

/// A predicate and its bodies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition<'a> {
    pub(crate) kind: ConditionalKind,
    pub(crate) predicate: u64,
    pub(crate) dtype: DType,
    pub(crate) bodies: &'a [Arc<GraphData>],
}

pub(crate) fn conditional(
    device: &'static dyn Device,
    store: &mut Store,
    buffers: &mut Resolver<'_>,
    condition: &Condition<'_>,
) -> Result<Recorded> {
    let invalid = |text: String| Err(Error::new(Code::INVALID_ARGUMENT, text));
    let right = match condition.kind {
        ConditionalKind::If => 1..=2,
        ConditionalKind::While => 1..=1,
        ConditionalKind::Switch => 1..=1024,
    };
    let count = condition.bodies.len();
    if !right.contains(&count) {
        return invalid(format!(
            "{count} bodies of a conditional node: a node of this kind has {} to {}",
            right.start(),
            right.end()
        ));
    }
    let known = [DType::BOOL, DType::U8, DType::I32, DType::I64];
    if !known.contains(&condition.dtype) {
        return invalid(format!(
            "a predicate of {} is not supported: it must be one number of bool, u8, i32 or i64",
            condition.dtype
        ));
    }
    let size = condition.dtype.size().unwrap_or(8) as u64;
    device.check_range(&"predicate", condition.predicate, size)?;
    for body in condition.bodies {
        if body.resources.device.index() != device.index() {
            return invalid("a body of a conditional node is a graph of another device".to_owned());
        }
        if !body.store.generators.is_empty() {
            return Err(Error::new(
                Code::UNSUPPORTED,
                "random numbers in a body of a conditional node: how many a replay draws would depend \
                 on the predicate; draw them before the node",
            ));
        }
    }
    let mut accesses = vec![access(buffers.resolve(condition.predicate)?, true, false)];
    for body in condition.bodies {
        for one in body
            .graph
            .nodes()
            .flat_map(|(_, node)| body.graph.accesses(node))
        {
            let Some(buffer) = body.graph.buffers().get(one.buffer as usize) else {
                continue;
            };
            if !buffer.transient {
                accesses.push(access(buffers.adopt(buffer), true, one.writes));
            }
        }
    }
    let block =
        conditional::conditional_block(condition.predicate, condition.dtype, condition.kind, count);
    let words = store.push(&block);
    store.push_address(words.start + conditional::PREDICATE, condition.predicate);
    store.bodies.push(Bodies {
        graphs: condition.bodies.to_vec(),
    });
    let label = match condition.kind {
        ConditionalKind::If => "if",
        ConditionalKind::While => "while",
        ConditionalKind::Switch => "switch",
    };
    let mut stored = stored(
        Kind::Conditional,
        label,
        conditional::conditional,
        words,
        32,
    );
    stored.command.work = Work::Conditional(store.bodies.len() - 1);
    stored.cost_ns = condition
        .bodies
        .iter()
        .map(|body| u32::try_from(body.graph.schedule(1).cost_ns).unwrap_or(u32::MAX))
        .max()
        .unwrap_or(0);
    stored.effects = true;
    Ok((stored, accesses))
}

/// The command of a node that does nothing.
pub(crate) fn nothing(kind: Kind, label: impl Into<Cow<'static, str>>) -> Stored {
    let mut stored = stored(kind, label, steps::copy, 0..0, 0);
    stored.command.work = Work::None;
    stored
}
