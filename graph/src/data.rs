//! What a graph of this runtime holds: nodes with their argument blocks in one store, where addresses
//! and random numbers stand in it, and the resources that keep the memory alive.
//!
//! A step is a host kernel with its argument block, whatever it does: operators bring theirs, copies,
//! fills and host functions have one of `steps`. It must never hold an address whose memory is not held
//! by the resources or by the pool.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use outrigger_allocator::{PoolGate, PoolId};
use outrigger_device::{Code, foreign_call};
use outrigger_locks::{Mutex, Rank, calls_host};
use outrigger_ops::{Call, KernelFn, OperatorId, Plan, Prepared};

use crate::call::StoredCall;
use crate::dag::{Access, Buffer, BufferId, Dag, Kind, NodeId, NodeSpec};
use crate::memory::{Device, PoolRef};
use crate::{Error, Result};

/// What a node does.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) work: Work,
    /// Its argument block in the store.
    pub(crate) words: Range<u32>,
    /// The size of the block in bytes.
    pub(crate) size: u32,
    /// The operator call that it was planned from, in the store of calls.
    pub(crate) call: Option<StoredCall>,
    /// An address could not be told from a number: its memory cannot be bound anew.
    pub(crate) fixed: bool,
}

/// How it is done.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Nothing runs.
    None,
    /// A host kernel.
    Kernel(KernelFn),
    /// An operator of the driver, with its workspace.
    Operator(Arc<Prepared>, u64),
    /// Bodies by a predicate: the index into [`GraphData::bodies`].
    Conditional(usize),
}

/// Where a device address stands in the store, and which one it was when recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressWord {
    pub(crate) word: u32,
    pub(crate) address: u64,
}

/// Where a node's random numbers stand in the store: its seed, and its offset from where the graph's
/// numbers begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawWord {
    pub(crate) seed: u32,
    pub(crate) offset: u32,
    pub(crate) relative: u64,
    pub(crate) generator: u32,
}

/// Where random numbers come from.
pub trait Generator: fmt::Debug + Send + Sync {
    /// The id, as C hosts hold it.
    fn id(&self) -> u64;

    /// Takes the next `count` 128-bit outputs: gives the seed, and the offset at which they start.
    fn reserve_now(&self, count: u64) -> (u64, u64);
}

/// A generator that the graph draws from, and how much one replay takes.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub(crate) generator: Arc<dyn Generator>,
    /// What stands for the seed while the graph is recorded.
    pub(crate) token: u64,
    /// 128-bit outputs of one replay.
    pub(crate) count: u64,
}

/// What has a name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) what: NamedThing,
}

/// Something that replays may change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NamedThing {
    Buffer { address: u64, size: u64 },
    Scalar { node: NodeId, index: u32 },
}

/// How a predicate chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionalKind {
    /// The first body if the predicate is not 0, else the second one if there is one.
    If,
    /// The body again and again, as long as the predicate is not 0.
    While,
    /// The body whose number is the predicate; none if there is no such body.
    Switch,
}

impl ConditionalKind {
    /// From its number in the C ABI.
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

/// Bodies of a conditional node.
#[derive(Clone, Debug)]
pub(crate) struct Bodies {
    pub(crate) graphs: Vec<Arc<GraphData>>,
}

/// Memory and host functions that a graph keeps alive. Dropping gives them back, so that it happens
/// only when no replay can be running.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) device: &'static dyn Device,
    pub(crate) pool: Arc<PoolRef>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Bases of allocations that are held.
    holds: Vec<u64>,
    /// Blocks of the pool that the builder allocated and nobody freed.
    blocks: Vec<u64>,
    users: Vec<User>,
}

/// A function that gives user data of a host function back.
pub type DestroyFn = unsafe extern "C" fn(*mut c_void);

/// User data of a host function.
#[derive(Debug)]
struct User {
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

    /// Refuses if memory that the graph uses is of a pool that sleeps, its own included.
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

    /// Takes over user data of a host function.
    pub(crate) fn own(&self, user: *mut c_void, destroy: Option<DestroyFn>) {
        if let Some(destroy) = destroy {
            let user = user as usize;
            self.kept.lock().users.push(User { user, destroy });
        }
    }

    /// Takes over a block of the pool.
    pub(crate) fn own_block(&self, address: u64) {
        self.kept.lock().blocks.push(address);
    }

    /// Whether the block was owned; it no longer is.
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
            // SAFETY: the host's promise when it handed the data over: `destroy` may be called with it,
            // once, from any thread, when no replay uses it any more.
            unsafe { foreign_call!(user.destroy, user.user as *mut c_void) };
        }
    }
}

/// Nodes with all that they need.
#[derive(Clone, Debug)]
pub(crate) struct GraphData {
    pub(crate) graph: Dag<Command>,
    pub(crate) store: Store,
    pub(crate) names: Vec<Named>,
    pub(crate) resources: Arc<Resources>,
    /// Of graphs whose nodes were copied in. Not within the resources: graphs may be copied into each
    /// other, and into themselves.
    pub(crate) others: Vec<Arc<Resources>>,
}

impl GraphData {
    /// The gates of the pools whose memory the nodes may use, which lend it between replays from now on.
    pub(crate) fn gates(&self) -> Vec<PoolGate> {
        let mut gates: HashMap<PoolId, PoolGate> = HashMap::new();
        self.add_gates(&mut gates);
        gates.values().for_each(PoolGate::open);
        gates.into_values().collect()
    }

    fn add_gates(&self, gates: &mut HashMap<PoolId, PoolGate>) {
        for resources in std::iter::once(&self.resources).chain(&self.others) {
            let pool = &resources.pool;
            // One that never served anybody has nothing that a node could use.
            if pool.stats().allocated_peak > 0 {
                gates.insert(pool.pool(), pool.gate().clone());
            }
        }
        let bodies = self.store.bodies.iter().flat_map(|bodies| &bodies.graphs);
        bodies.for_each(|body| body.add_gates(gates));
    }
}

/// What is stored beside the nodes while a graph is recorded or built.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) words: Vec<u64>,
    pub(crate) addresses: Vec<AddressWord>,
    pub(crate) draws: Vec<DrawWord>,
    pub(crate) drawn: Vec<Drawn>,
    pub(crate) calls: Vec<u64>,
    pub(crate) bodies: Vec<Bodies>,
}

/// A command that was stored, with what a node says of it.
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

/// How far apart the buffers of a call are moved to see where their addresses stand: more than any
/// allocation is long, and a multiple of every alignment.
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

    /// Draws as much from a generator as another graph does. Gives its index.
    pub(crate) fn adopt(&mut self, other: &Drawn) -> u32 {
        let same = |one: &Drawn| one.generator.id() == other.generator.id();
        let index = match self.drawn.iter().position(same) {
            Some(index) => {
                self.drawn[index].count += other.count;
                index
            }
            None => {
                self.drawn.push(other.clone());
                self.drawn.len() - 1
            }
        };
        index as u32
    }

    pub(crate) fn push_address(&mut self, word: u32, address: u64) {
        self.addresses.push(AddressWord { word, address });
    }

    /// Plans an operator call and stores its block. `buffers` gives the buffer of each operand (inputs,
    /// then outputs; `None` for one without memory): it is planned once more with each buffer moved, and
    /// the words that moved along are its addresses. Kernels pack their blocks as they like.
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
            tensor.address = tensor.address.wrapping_add(shift(index));
        }
        let scalars = call.scalars;
        let moved = Call {
            inputs: &inputs,
            outputs: &outputs,
            scalars,
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
                fixed,
            },
        })
    }

    /// Finds where a call's seed and offset stand, if they are of a generator that this graph draws
    /// from.
    fn draw(
        &mut self,
        id: OperatorId,
        call: &Call<'_>,
        plan: &Plan,
        first: u32,
        refused: &impl Fn(outrigger_ops::PlanError) -> Error,
    ) -> Result<()> {
        if !id.is_random() || self.drawn.is_empty() {
            return Ok(());
        }
        let [numbers @ .., seed, offset] = call.scalars else {
            return Ok(());
        };
        let token = seed.to_i64() as u64;
        let Some(generator) = self.drawn.iter().position(|drawn| drawn.token == token) else {
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
            ([], []) => Ok(()), // without elements nothing is drawn
            ([seed], [offset]) => {
                self.draws.push(DrawWord {
                    seed: first + seed.0,
                    offset: first + offset.0,
                    relative,
                    generator: generator as u32,
                });
                Ok(())
            }
            _ => Err(Error::new(
                Code::INTERNAL,
                "where the kernel keeps its seed could not be found",
            )
            .in_operator(id.name().to_string_lossy())),
        }
    }
}

/// By how much the operands of a buffer are moved: by its place among the buffers of the call.
fn shift_of(buffers: &[Option<BufferId>], buffer: BufferId) -> u64 {
    let place = buffers.iter().position(|&one| one == Some(buffer));
    (place.unwrap_or(0) as u64 + 1) << SHIFT
}

/// The words in which the blocks of two plans of one call differ: number, before, after.
fn differing(plan: &Plan, other: &Plan, id: OperatorId) -> Result<Vec<(u32, u64, u64)>> {
    let (a, b) = (plan.args(), other.args());
    if a.len() != b.len() || !std::ptr::fn_addr_eq(plan.kernel, other.kernel) {
        return Err(Error::new(
            Code::INTERNAL,
            "the kernel depends on where its operands lie, so that it cannot be recorded",
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

/// What a node that runs on a buffer may do with it.
pub(crate) fn access(buffer: BufferId, reads: bool, writes: bool) -> Access {
    Access {
        buffer,
        reads,
        writes,
    }
}

/// A buffer of a live allocation.
pub(crate) fn buffer(address: u64, size: u64) -> Buffer {
    Buffer {
        address,
        size,
        transient: false,
    }
}
