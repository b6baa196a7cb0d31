//! Operators that a driver brings as a library.
//!
//! The driver says at first which names it has, and is asked for no others. It is asked once for each signature (name,
//! dtypes, sizes, strides and arguments), and its answer is kept, also if it is no. A thread finds the answer to a call
//! like one of its last ones in a table of its own.
//!
//! An operator is released when nobody can launch it any more and all its launches have finished (R47).

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;
use outrigger_device::sys::{
    OTR_EXT_OPERATOR_ARGS, otr_ext, otr_operator_args, otr_operator_call, otr_scalar,
    otr_scalar__bindgen_ty_1,
};
use outrigger_device::{DType, Driver, Needs, Operator, Queue};
use outrigger_locks::{Mutex, Rank, RwLock};

use super::Door;
use crate::call::{Argument, Call, Scalar};
use crate::failure::{Result, refused};
use crate::registry::{OperatorId, check};
use crate::shard::{SHARDS, shard};

/// The most signatures that are kept. Then all are dropped, so that a program with ever new shapes does not grow.
const KEPT: usize = 16_384;

/// The most scalars of a call that is offered to a driver.
const SCALARS: usize = 64;

/// Recent answers in one table; a power of two.
const RECENT: usize = 512;

/// A signature has one of so many places in a table.
const WAYS: usize = 4;

/// Operators whose last answer is remembered in one table; a power of two.
const LAST: usize = 64;

/// The answers of a device's driver so far.
pub(super) struct Answers {
    /// The operators that the driver has, a bit for each number.
    offered: Box<[u64]>,
    shards: Box<[CachePadded<Shard>]>,
    all: RwLock<HashMap<Signature, Shared>>,
}

/// The properties in which two calls differ for a driver.
type Signature = Box<[i64]>;

/// The driver's operator; `None` if it has none.
type Shared = Option<Arc<Prepared>>;

/// The same for one thread. Threads share no counter of references: the outer one is of a thread's
/// table, the inner one of the operator.
type Answer = Option<Arc<Arc<Prepared>>>;

/// Answers that one thread got lately.
struct Shard(UnsafeCell<Recent>);

// SAFETY: only the thread that has the number of the shard touches what is in the cell.
unsafe impl Sync for Shard {}

struct Recent {
    /// By the hash of the signature.
    answers: Vec<Option<(Signature, Answer)>>,
    /// For each operator, the place of its last answer.
    last: [u16; LAST],
    /// The number of answers that were put in.
    put: usize,
}

impl Recent {
    /// The answer to a call.
    #[inline]
    fn find(&mut self, id: OperatorId, call: &Call<'_>) -> Option<Answer> {
        let last = &mut self.last[id.index() as usize % LAST];
        let before = usize::from(*last);
        if let Some((signature, answer)) = self.answers.get(before)?
            && is_of(signature, id, call)
        {
            return Some(answer.clone());
        }
        let first = hash(id, call) as usize % RECENT;
        for at in (0..WAYS).map(|way| first ^ way) {
            if let Some((signature, answer)) = &self.answers[at]
                && is_of(signature, id, call)
            {
                *last = at as u16;
                return Some(answer.clone());
            }
        }
        None
    }

    /// Puts an answer in. Returns one that had to go.
    fn put(
        &mut self,
        id: OperatorId,
        call: &Call<'_>,
        new: (Signature, Answer),
    ) -> Option<(Signature, Answer)> {
        if self.answers.is_empty() {
            self.answers.resize_with(RECENT, || None);
        }
        self.put += 1;
        let first = hash(id, call) as usize % RECENT;
        let mut ways = (0..WAYS).map(|way| first ^ way);
        let at = ways.find(|&at| self.answers[at].is_none());
        let at = at.unwrap_or(first ^ (self.put % WAYS));
        self.last[id.index() as usize % LAST] = at as u16;
        self.answers[at].replace(new)
    }
}

/// The driver's operators that nobody can launch any more.
pub(super) struct Ended {
    any: AtomicBool,
    operators: Mutex<Vec<Operator>>,
}

impl Default for Ended {
    fn default() -> Self {
        Self {
            any: AtomicBool::new(false),
            operators: Mutex::new(Rank::EndedOperators, Vec::new()),
        }
    }
}

impl Ended {
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self) -> Vec<Operator> {
        let mut operators = self.operators.lock();
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *operators)
    }

    fn add(&self, operator: Operator) {
        let mut operators = self.operators.lock();
        operators.push(operator);
        self.any.store(true, Ordering::Relaxed);
    }
}

/// An operator of the driver. Whoever launches it has a reference, so all launches come before its end.
pub struct Prepared {
    /// `None` only while this is being dropped.
    operator: Option<Operator>,
    needs: Needs,
    ended: Arc<Ended>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(operator) = self.operator.take() {
            // R47: launches may be running, on any queue.
            self.ended.add(operator);
        }
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared")
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}

impl Answers {
    /// Asks the driver which operators it has on a device.
    pub(super) fn new(driver: &Driver, ordinal: u32) -> Result<Self> {
        let mut offered = Vec::new();
        if let Some(operators) = driver.operators() {
            for name in operators.names(ordinal)? {
                let Some(id) = OperatorId::find(&name) else {
                    tracing::warn!(
                        target: "outrigger::ops",
                        driver = driver.name(),
                        ?name,
                        "the driver has an operator of a name that nobody asks for"
                    );
                    continue;
                };
                let (word, bit) = (id.index() as usize / 64, id.index() % 64);
                if word >= offered.len() {
                    offered.resize(word + 1, 0);
                }
                offered[word] |= 1 << bit;
            }
        }
        let shards = if offered.is_empty() { 0 } else { SHARDS };
        let recent = || {
            CachePadded::new(Shard(UnsafeCell::new(Recent {
                answers: Vec::new(),
                last: [0; LAST],
                put: 0,
            })))
        };
        Ok(Self {
            offered: offered.into(),
            shards: std::iter::repeat_with(recent).take(shards).collect(),
            all: RwLock::new(Rank::DriverOperators, HashMap::new()),
        })
    }

    /// Whether the driver has any operator.
    #[inline]
    pub(super) fn any(&self) -> bool {
        !self.offered.is_empty()
    }

    /// Whether the driver has an operator at all, for some operands.
    #[inline]
    pub(super) fn offers(&self, id: OperatorId) -> bool {
        let word = self.offered.get(id.index() as usize / 64);
        word.is_some_and(|word| word >> (id.index() % 64) & 1 != 0)
    }

    /// The driver's operator for a call; `None` if it has none.
    #[inline]
    pub(super) fn find(&self, door: &Door, id: OperatorId, call: &Call<'_>) -> Result<Answer> {
        if !self.offers(id) || call.scalars.len() > SCALARS {
            return Ok(None);
        }
        let shard = shard().and_then(|shard| self.shards.get(shard));
        if let Some(shard) = shard {
            // SAFETY: this thread alone has the number of the shard, and `find` does not come back here.
            let recent = unsafe { &mut *shard.0.get() };
            if let Some(answer) = recent.find(id, call) {
                return Ok(answer);
            }
        }
        let (signature, answer) = self.ask(door, id, call)?;
        let answer = answer.map(Arc::new);
        if let Some(shard) = shard {
            // SAFETY: as above. The reference has ended when what had to go is dropped.
            let gone = unsafe { &mut *shard.0.get() }.put(id, call, (signature, answer.clone()));
            drop(gone);
        }
        Ok(answer)
    }

    /// The answer that all threads share, or the driver's.
    #[cold]
    fn ask(&self, door: &Door, id: OperatorId, call: &Call<'_>) -> Result<(Signature, Shared)> {
        let signature = signature(id, call);
        if let Some(answer) = self.all.read().get(&signature) {
            return Ok((signature, answer.clone()));
        }
        // A driver is asked only for calls that are well-formed. A signature that is kept was checked.
        check(id, call).map_err(|error| refused(id, error))?;
        let Some(operators) = door.driver().operators() else {
            return Ok((signature, None));
        };
        let answer = with_raw(id, call, |raw| {
            // SAFETY: the operands of the raw call are those of `call`, which outlives this statement.
            unsafe { operators.prepare(door.ordinal(), raw) }
        })?;
        let answer = answer.map(|(operator, needs)| {
            Arc::new(Prepared {
                operator: Some(operator),
                needs,
                ended: Arc::clone(&door.ended),
            })
        });
        let forgotten = {
            let mut all = self.all.write();
            let forgotten = if all.len() >= KEPT {
                std::mem::take(&mut *all)
            } else {
                HashMap::new()
            };
            all.insert(signature.clone(), answer.clone());
            forgotten
        };
        // Not under the lock, as above.
        drop(forgotten);
        Ok((signature, answer))
    }
}

impl Prepared {
    /// The requirements that the driver has told of the operator.
    #[inline]
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Launches the operator with a call that it was prepared for, or one of the same signature.
    ///
    /// # Safety
    /// The operands lie in live memory of the queue's device until the launch has finished, and nothing that is not
    /// ordered with the queue touches them. R47: the workspace has as many bytes as the operator [`needs`](Self::needs),
    /// and is the launch's alone until it has finished.
    ///
    /// # Errors
    /// What the driver reports.
    #[inline]
    pub unsafe fn launch(
        &self,
        queue: &Queue,
        id: OperatorId,
        call: &Call<'_>,
        workspace: u64,
    ) -> outrigger_device::Result<()> {
        // SAFETY: this function's contract is that of `launch_raw`. The raw call points into `call`.
        with_raw(id, call, |raw| unsafe {
            self.launch_raw(queue, raw, workspace)
        })
    }

    /// The same with a call in the form of the driver contract.
    ///
    /// # Safety
    /// The contract of [`launch`](Self::launch); the pointers of the call are valid, and their counts are right.
    ///
    /// # Errors
    /// What the driver reports.
    #[inline]
    pub unsafe fn launch_raw(
        &self,
        queue: &Queue,
        call: &otr_operator_call,
        workspace: u64,
    ) -> outrigger_device::Result<()> {
        let Some(operator) = &self.operator else {
            unreachable!("an operator is there until the end of what holds it");
        };
        // SAFETY: this function's contract: operands and workspace are live, and so is what `call` points to.
        unsafe { queue.launch_operator(operator, call, workspace) }
    }
}

/// Gives `with` a call in the form of the driver contract. Only the scalars have another form there; those beyond 64 are
/// left out.
#[inline]
pub fn with_raw<R>(
    id: OperatorId,
    call: &Call<'_>,
    with: impl FnOnce(&otr_operator_call) -> R,
) -> R {
    let mut scalars = ArrayVec::<otr_scalar, SCALARS>::new();
    // `find` lets no more through.
    for scalar in call.scalars.iter().take(SCALARS) {
        let (dtype, value) = match *scalar {
            Scalar::F64(value) => (DType::F64, otr_scalar__bindgen_ty_1 { f64_: value }),
            Scalar::I64(value) => (DType::I64, otr_scalar__bindgen_ty_1 { i64_: value }),
        };
        scalars.push(otr_scalar {
            dtype: dtype.0,
            reserved: 0,
            value,
        });
    }
    let args = otr_operator_args {
        ext: otr_ext {
            struct_size: size_of::<otr_operator_args>(),
            type_: OTR_EXT_OPERATOR_ARGS,
            reserved: 0,
            next: std::ptr::null(),
        },
        values: call.args.as_ptr().cast(),
        count: call.args.len() as u32,
        reserved: 0,
    };
    let next = if call.args.is_empty() {
        std::ptr::null()
    } else {
        &raw const args.ext
    };
    with(&otr_operator_call {
        struct_size: size_of::<otr_operator_call>(),
        next,
        name: id.name().as_ptr(),
        inputs: call.inputs.as_ptr().cast(),
        outputs: call.outputs.as_ptr().cast(),
        scalars: scalars.as_ptr(),
        input_count: call.inputs.len() as u32,
        output_count: call.outputs.len() as u32,
        scalar_count: scalars.len() as u32,
        flags: 0,
    })
}

fn pair(low: u32, high: usize) -> i64 {
    i64::from(low) | (high as i64) << 32
}

/// Gives `with` the numbers in which two calls differ for a driver, until it returns false. Returns whether it never
/// did.
#[inline(always)] // three loops over the same numbers, each with a body of an instruction or two
fn numbers(id: OperatorId, call: &Call<'_>, mut with: impl FnMut(i64) -> bool) -> bool {
    if !with(pair(id.index(), call.inputs.len())) {
        return false;
    }
    for tensor in call.inputs.iter().chain(call.outputs) {
        if !with(pair(tensor.dtype().0, tensor.rank()))
            || !tensor.sizes().iter().all(|&size| with(size))
            || !tensor.strides().iter().all(|&stride| with(stride))
        {
            return false;
        }
    }
    call.args.iter().all(|value| {
        let range = |kind, range: std::ops::Range<usize>| (pair(kind, range.len()), range.start);
        let (head, tail) = match value.get() {
            Argument::None => (0, 0),
            Argument::Input(at) => (1, at),
            Argument::Inputs(at) => range(2, at),
            Argument::Output(at) => (3, at),
            Argument::Outputs(at) => range(4, at),
            Argument::Scalar(at) => (5, at),
            Argument::Scalars(at) => range(6, at),
            Argument::Int(number) => (7, number as usize),
            Argument::Bool(truth) => (8, usize::from(truth)),
            Argument::DType(dtype) => (9, dtype.0 as usize),
            Argument::String(text) => {
                let bytes = text.to_bytes();
                return with(pair(10, bytes.len()))
                    && bytes.iter().all(|&byte| with(i64::from(byte)));
            }
            Argument::Ints(list) => {
                return with(pair(11, list.len())) && list.iter().all(|&one| with(one));
            }
            Argument::Bools(list) => {
                return with(pair(12, list.len()))
                    && list.iter().all(|&one| with(i64::from(one != 0)));
            }
        };
        with(head) && with(tail as i64)
    })
}

fn signature(id: OperatorId, call: &Call<'_>) -> Signature {
    let mut signature = Vec::with_capacity(64);
    numbers(id, call, |number| {
        signature.push(number);
        true
    });
    signature.into()
}

/// Whether a call has this signature.
#[inline]
fn is_of(signature: &[i64], id: OperatorId, call: &Call<'_>) -> bool {
    if !call.args.is_empty() {
        let mut rest = signature.iter();
        return numbers(id, call, |number| rest.next() == Some(&number)) && rest.next().is_none();
    }
    // The same without a branch for each number.
    let Some((&head, mut rest)) = signature.split_first() else {
        return false;
    };
    if head != pair(id.index(), call.inputs.len()) {
        return false;
    }
    for tensor in call.inputs.iter().chain(call.outputs) {
        let (sizes, strides) = (tensor.sizes(), tensor.strides());
        let Some((mine, others)) = rest.split_at_checked(1 + 2 * sizes.len()) else {
            return false;
        };
        let (my_sizes, my_strides) = mine[1..].split_at(sizes.len());
        let mut differs = mine[0] ^ pair(tensor.dtype().0, sizes.len());
        for (mine, size) in my_sizes.iter().zip(sizes) {
            differs |= mine ^ size;
        }
        for (mine, stride) in my_strides.iter().zip(strides) {
            differs |= mine ^ stride;
        }
        if differs != 0 {
            return false;
        }
        rest = others;
    }
    rest.is_empty()
}

/// A hash whose multiplications do not wait for each other, of the sizes alone. Signatures with the same one have several
/// places, and beyond these cost time, no more.
#[inline]
fn hash(id: OperatorId, call: &Call<'_>) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (mut factor, mut sum) = (ODD, u64::from(id.index()));
    for tensor in call.inputs.iter().chain(call.outputs) {
        for &size in tensor.sizes() {
            sum = sum.wrapping_add((size as u64).wrapping_mul(factor));
            factor = factor.wrapping_add(ODD << 1);
        }
    }
    sum ^= sum >> 32;
    sum.wrapping_mul(ODD) >> 40
}
