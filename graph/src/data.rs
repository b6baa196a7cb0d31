//! The contents of a graph: its nodes, their argument blocks in one store, the words of the store that hold addresses
//! and random numbers, and the resources that keep memory alive.
//!
//! The work of a node is a host kernel with its argument block, or an operator of the driver. Operators of the host
//! bring a kernel each; the kernels of copies, fills and host functions are those of `steps`. Each address in the store
//! lies in memory that the resources hold, or that is of the graph's pool.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::sync::Arc;

use outrigger_allocator::{PoolGate, PoolId};
use outrigger_device::{Code, foreign_call};
use outrigger_locks::{Mutex, Rank, calls_host};
use outrigger_ops::{Call, KernelFn, OperatorId, Plan, Prepared, packed};

use crate::call::StoredCall;
use crate::dag::{Access, Buffer, BufferId, Dag, Kind, NodeId, NodeSpec};
use crate::drawn::Generators;
use crate::kernel::DeviceKernel;
use crate::memory::{Device, PoolRef};
use crate::{Error, Result};

/// The work of a node, and all that is needed to run it.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) work: Work,
    /// The range of the store's words that is the argument block.
    pub(crate) words: Range<u32>,
    /// The size of the block in bytes.
    pub(crate) size: u32,
    /// The operator call of the node, in the store of calls.
    pub(crate) call: Option<StoredCall>,
    /// The name under which its kernel is launched.
    pub(crate) name: &'static CStr,
    /// Whether the block may have addresses that the graph does not know. Then no other memory can be bound in place of
    /// a buffer that the node uses.
    pub(crate) fixed: bool,
    /// Whether the addresses in the block of a kernel are host pointers: it runs as a host call on every device.
    pub(crate) on_host: bool,
}

/// The work of a node.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Nothing runs.
    None,
    /// A host kernel.
    Kernel(KernelFn),
    /// An operator of the driver, with the address of its workspace.
    Operator(Arc<Prepared>, u64),
    /// A kernel of a module.
    Device(Arc<DeviceKernel>),
    /// A conditional node: the index of its bodies in [`Store::bodies`].
    Conditional(usize),
}

/// A word of the store that is a device address, and the address that was recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressWord {
    pub(crate) word: u32,
    pub(crate) address: u64,
}

/// The words of the store that are the seed and the offset of a node's random numbers. `relative` is the offset from
/// where the graph's numbers begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawWord {
    pub(crate) seed: u32,
    pub(crate) offset: u32,
    pub(crate) relative: u64,
    pub(crate) generator: u32,
}

/// A thing with a name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) what: NamedThing,
}

/// A thing that replays may change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NamedThing {
    Buffer {
        address: u64,
        size: u64,
    },
    Scalar {
        node: NodeId,
        index: u32,
    },
    /// Bytes of the store that are an argument of a kernel of a module.
    Argument {
        first: u32,
        size: u32,
    },
}

/// The rule by which the predicate of a conditional node chooses a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionalKind {
    /// The first body if the predicate is not 0, else the second one if there is one.
    If,
    /// The body, again and again while the predicate is not 0.
    While,
    /// The body whose number is the predicate; no body if there is none of that number.
    Switch,
}

impl ConditionalKind {
    /// The kind with this number in the C ABI.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for any other number.
    pub fn from_raw(raw: u32) -> Result<Self> {
        match raw {
            1 => Ok(Self::If),
            2 => Ok(Self::While),
            3 => Ok(Self::Switch),
            _ => Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!("conditional kind {raw} is unknown: it is 1 (if), 2 (while) or 3 (switch)"),
            )),
        }
    }
}

/// The bodies of a conditional node.
#[derive(Clone, Debug)]
pub(crate) struct Bodies {
    pub(crate) graphs: Vec<Arc<GraphData>>,
}

/// Memory and host functions that a graph keeps alive. Dropping gives them back, so it must wait until no replay can be
/// running.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) device: &'static dyn Device,
    pub(crate) pool: Arc<PoolRef>,
    kept: Mutex<Kept>,
}

/// The things that a graph gives back at its end.
#[derive(Debug, Default)]
struct Kept {
    /// Bases of allocations that are held.
    holds: Vec<u64>,
    /// Blocks of the pool that the graph allocated, and that no node has freed.
    blocks: Vec<u64>,
    users: Vec<UserData>,
}

/// A function of the host that gives the user data of a host function back.
pub type DestroyFn = unsafe extern "C" fn(*mut c_void);

/// User data of a host function.
#[derive(Debug)]
struct UserData {
    user: usize,
    destroy: DestroyFn,
}

impl Resources {
    pub(crate) fn new(pool: Arc<PoolRef>) -> Self {
        Self {
            device: pool.device(),
            pool,
            kept: Mutex::new(Rank::Resources, Kept::default()),
        }
    }

    /// Keeps the allocation around an address alive, whoever frees it.
    pub(crate) fn hold(&self, address: u64) -> Result<()> {
        let base = self.device.hold(address)?;
        self.kept.lock().holds.push(base);
        Ok(())
    }

    /// Refuses if the graph's pool sleeps, or the pool of any memory that the graph holds.
    pub(crate) fn check_awake(&self) -> Result<()> {
        if self.device.is_asleep(self.pool.pool()) {
            return Err(Error::new(
                Code::BUSY,
                format!(
                    "the graph's pool {} sleeps: wake it first",
                    self.pool.pool()
                ),
            ));
        }
        let mut holds = self.kept.lock().holds.clone().into_iter();
        holds.try_for_each(|base| self.device.check_awake(base))
    }

    /// Takes ownership of the user data of a host function.
    pub(crate) fn own(&self, user: *mut c_void, destroy: Option<DestroyFn>) {
        if let Some(destroy) = destroy {
            let user = user as usize;
            self.kept.lock().users.push(UserData { user, destroy });
        }
    }

    /// Takes ownership of a block of the pool.
    pub(crate) fn own_block(&self, address: u64) {
        self.kept.lock().blocks.push(address);
    }

    /// Gives ownership of a block up. Returns whether the graph owned it.
    pub(crate) fn disown_block(&self, address: u64) -> bool {
        let blocks = &mut self.kept.lock().blocks;
        let place = blocks.iter().position(|&block| block == address);
        place.map(|index| blocks.swap_remove(index)).is_some()
    }
}

impl Drop for Resources {
    fn drop(&mut self) {
        let kept = self.kept.get_mut();
        for base in kept.holds.drain(..) {
            self.device.unhold(base);
        }
        for address in kept.blocks.drain(..) {
            self.device.free_block(address);
        }
        for user in kept.users.drain(..) {
            calls_host("the function that gives user data of a host function back");
            // SAFETY: `otr_destroy_fn`: the host takes its user data back once, from any thread, when the
            // function will not be called again. Resources are dropped after the last replay has finished.
            unsafe { foreign_call!(user.destroy, user.user as *mut c_void) };
        }
    }
}

/// Nodes with all that they need to run.
#[derive(Clone, Debug)]
pub(crate) struct GraphData {
    pub(crate) graph: Dag<Command>,
    pub(crate) store: Store,
    pub(crate) names: Vec<Named>,
    pub(crate) resources: Arc<Resources>,
    /// The resources of graphs that were copied in as children. They are not part of `resources`, because graphs may
    /// be copied into each other, and into themselves.
    pub(crate) others: Vec<Arc<Resources>>,
}

impl GraphData {
    /// The gates of the pools whose memory the nodes may use. From now on these pools may lend memory between replays.
    pub(crate) fn gates(&self) -> Vec<PoolGate> {
        let mut gates: HashMap<PoolId, PoolGate> = HashMap::new();
        self.add_gates(&mut gates);
        gates.values().for_each(PoolGate::open);
        gates.into_values().collect()
    }

    fn add_gates(&self, gates: &mut HashMap<PoolId, PoolGate>) {
        for resources in std::iter::once(&self.resources).chain(&self.others) {
            let pool = &resources.pool;
            // A pool that never gave out memory has none that a node could use.
            if pool.stats().allocated_peak > 0 {
                gates.insert(pool.pool(), pool.gate().clone());
            }
        }
        let bodies = self.store.bodies.iter().flat_map(|bodies| &bodies.graphs);
        bodies.for_each(|body| body.add_gates(gates));
    }
}

/// The data of a graph beside its nodes: argument blocks, calls, bodies, and the words of blocks that replays or
/// bindings change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) words: Vec<u64>,
    pub(crate) addresses: Vec<AddressWord>,
    pub(crate) draws: Vec<DrawWord>,
    pub(crate) generators: Generators,
    pub(crate) calls: Vec<u64>,
    /// Whether there are blocks of operators of the driver, whose pointers are to be fixed.
    pub(crate) packed: bool,
    pub(crate) bodies: Vec<Bodies>,
}

/// A stored command, with what its node says about it.
pub(crate) struct Stored {
    pub(crate) kind: Kind,
    pub(crate) label: Cow<'static, str>,
    pub(crate) cost_ns: u32,
    pub(crate) effects: bool,
    pub(crate) command: Command,
}

impl Stored {
    pub(crate) fn spec(self, scope: Option<Arc<str>>) -> NodeSpec<Command> {
        NodeSpec {
            kind: self.kind,
            label: self.label,
            scope,
            cost_ns: self.cost_ns,
            effects: self.effects,
            command: self.command,
        }
    }
}

/// The distance, as a power of two, by which the buffers of a call are moved to find their addresses in its block. It
/// is larger than any allocation, and a multiple of every alignment.
const SHIFT: u32 = 46;

impl Store {
    /// Appends an argument block of whole words.
    pub(crate) fn push(&mut self, words: &[u64]) -> Range<u32> {
        let first = self.words.len() as u32;
        self.words.extend_from_slice(words);
        first..self.words.len() as u32
    }

    /// Appends a block of bytes.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) -> Range<u32> {
        let first = self.words.len() as u32;
        let (chunks, rest) = bytes.as_chunks::<8>();
        self.words
            .extend(chunks.iter().map(|chunk| u64::from_ne_bytes(*chunk)));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.words.push(u64::from_ne_bytes(last));
        }
        first..self.words.len() as u32
    }

    pub(crate) fn push_address(&mut self, word: u32, address: u64) {
        self.addresses.push(AddressWord { word, address });
    }

    /// Plans an operator call and stores its block. `buffers` has the buffer of each operand: inputs, then outputs;
    /// `None` for one without memory. Only a kernel knows the layout of its block, so the call is planned once more
    /// with each buffer moved by another distance: the words that moved by such a distance are addresses.
    pub(crate) fn operator(
        &mut self,
        id: OperatorId,
        call: &Call<'_>,
        buffers: &[Option<BufferId>],
        refused: impl Fn(outrigger_ops::PlanError) -> Error,
    ) -> Result<Stored> {
        let plan = outrigger_ops::plan(id, call).map_err(&refused)?;
        let words = self.push_bytes(plan.args());
        let stored = StoredCall::store(&mut self.calls, id, call);
        let mut fixed = false;
        let shift = |index: usize| buffers[index].map_or(0, |buffer| shift_of(buffers, buffer));
        let (mut inputs, mut outputs) = (call.inputs.to_vec(), call.outputs.to_vec());
        for (index, tensor) in inputs.iter_mut().chain(&mut outputs).enumerate() {
            *tensor = tensor.at(tensor.address().wrapping_add(shift(index)));
        }
        let moved = Call {
            inputs: &inputs,
            outputs: &outputs,
            ..*call
        };
        let moved = outrigger_ops::plan(id, &moved).map_err(&refused)?;
        let first = words.start;
        for (word, before, after) in differing(&plan, &moved, id)? {
            let by = after.wrapping_sub(before);
            if by.trailing_zeros() >= SHIFT && by >> SHIFT <= buffers.len() as u64 {
                self.push_address(first + word, before);
            } else {
                fixed = true;
            }
        }
        self.draw(id, call, &plan, first, &refused)?;
        Ok(Stored {
            kind: Kind::Kernel,
            label: plan.label.to_string_lossy(),
            cost_ns: plan.cost_ns,
            effects: false,
            command: Command {
                work: Work::Kernel(plan.kernel),
                words,
                size: plan.args().len() as u32,
                call: Some(stored),
                name: plan.label,
                fixed,
                on_host: false,
            },
        })
    }

    /// Notes the words of a driver's operator that are its seed and offset, if they are of a generator that this graph
    /// draws from. `first` is the first word of its block.
    pub(crate) fn draw_of_operator(&mut self, id: OperatorId, call: &Call<'_>, first: u32) {
        let ([.., seed, offset], true) = (call.scalars, id.is_random()) else {
            return;
        };
        let token = seed.to_i64() as u64;
        let Some(generator) = self.generators.find(token) else {
            return;
        };
        let tensors = call.inputs.len() + call.outputs.len();
        let value = |scalar| first + packed::scalar_words(tensors, scalar)[1];
        let last = call.scalars.len() - 1;
        self.draws.push(DrawWord {
            seed: value(last - 1),
            offset: value(last),
            relative: offset.to_i64() as u64,
            generator,
        });
    }

    /// Finds the words of the block that are the call's seed and offset, if they are of a generator that this graph
    /// draws from.
    fn draw(
        &mut self,
        id: OperatorId,
        call: &Call<'_>,
        plan: &Plan,
        first: u32,
        refused: &impl Fn(outrigger_ops::PlanError) -> Error,
    ) -> Result<()> {
        if !id.is_random() || self.generators.is_empty() {
            return Ok(());
        }
        let [numbers @ .., seed, offset] = call.scalars else {
            return Ok(());
        };
        let token = seed.to_i64() as u64;
        let Some(generator) = self.generators.find(token) else {
            return Ok(());
        };
        let other = |seed: u64, offset: u64| -> Result<Plan> {
            let mut scalars = numbers.to_vec();
            scalars.push(outrigger_ops::Scalar::I64(seed as i64));
            scalars.push(outrigger_ops::Scalar::I64(offset as i64));
            let call = Call {
                scalars: &scalars,
                ..*call
            };
            outrigger_ops::plan(id, &call).map_err(refused)
        };
        let relative = offset.to_i64() as u64;
        let seed = differing(plan, &other(!token, relative)?, id)?;
        let offset = differing(plan, &other(token, !relative)?, id)?;
        match (&seed[..], &offset[..]) {
            ([], []) => Ok(()), // a call without elements draws nothing
            ([seed], [offset]) => {
                self.draws.push(DrawWord {
                    seed: first + seed.0,
                    offset: first + offset.0,
                    relative,
                    generator,
                });
                Ok(())
            }
            _ => Err(Error::new(
                Code::INTERNAL,
                "the places of the seed and the offset in the argument block could not be found",
            )
            .in_operator(id.name().to_string_lossy())),
        }
    }
}

/// The distance by which the operands of a buffer are moved; another one for each buffer of the call.
fn shift_of(buffers: &[Option<BufferId>], buffer: BufferId) -> u64 {
    let place = buffers.iter().position(|&one| one == Some(buffer));
    (place.unwrap_or(0) as u64 + 1) << SHIFT
}

/// The words in which the blocks of two plans of one call differ: number, value in `plan`, value in `other`.
fn differing(plan: &Plan, other: &Plan, id: OperatorId) -> Result<Vec<(u32, u64, u64)>> {
    let (a, b) = (plan.args(), other.args());
    if a.len() != b.len() || !std::ptr::fn_addr_eq(plan.kernel, other.kernel) {
        return Err(Error::new(
            Code::INTERNAL,
            "the choice of the kernel depends on the addresses of its operands, so the call cannot be recorded",
        )
        .in_operator(id.name().to_string_lossy()));
    }
    let pairs = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    Ok((0..)
        .zip(pairs)
        .filter(|(_, (a, b))| a != b)
        .map(|(word, (a, b))| (word, u64::from_ne_bytes(*a), u64::from_ne_bytes(*b)))
        .collect())
}

/// A node's use of a buffer.
pub(crate) fn access(buffer: BufferId, reads: bool, writes: bool) -> Access {
    Access {
        buffer,
        reads,
        writes,
    }
}

/// The buffer of a live allocation.
pub(crate) fn buffer(address: u64, size: u64) -> Buffer {
    Buffer {
        address,
        size,
        transient: false,
    }
}
