//! Operators that are made of others, where a driver has the parts and not the whole.
//!
//! A rule goes through the parts of an operator in order. It runs twice: first to ask the driver for each part, and then,
//! with memory for what lies between the parts, to give them to a stream. So nothing is given to the stream unless the
//! driver has all parts.

mod norms;
mod rules;

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use outrigger_device::{Code, DType};

use crate::call::{Call, Scalar, Tensor};
use crate::catalog::COUNT;
use crate::door::{Door, Prepared};
use crate::failure::{Error, Result};
use crate::geometry::MAX_RANK;
use crate::registry::OperatorId;

/// The parts of one operator that is made of others.
struct Rule {
    whole: OperatorId,
    /// The operators that the rule needs in any case. A call may need more.
    parts: &'static [OperatorId],
    make: fn(&Call<'_>, &mut Maker<'_>) -> Made,
}

/// The outcome of a rule or a part.
type Made = Result<(), Stop>;

/// The reason why a rule ends early.
enum Stop {
    /// The driver does not have a part, or the rule does not serve the call.
    No,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Work that a composition gives to a stream.
#[derive(Debug)]
pub enum Part<'a> {
    /// An operator of the driver.
    Operator {
        /// The operator.
        id: OperatorId,
        /// The call of the operator.
        call: &'a Call<'a>,
        /// The operator as the driver has prepared it.
        prepared: &'a Prepared,
    },
    /// A copy within the device.
    Copy {
        /// The first address that is written.
        dst: u64,
        /// The first address that is read.
        src: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// A fill with a repeated pattern.
    Fill {
        /// The first address that is written.
        dst: u64,
        /// The number of bytes.
        bytes: u64,
        /// The pattern, of 1, 2, 4, 8 or 16 bytes.
        pattern: &'a [u8],
    },
}

/// The operator or command that serves a part.
enum Choice {
    Driver(Arc<Prepared>),
    /// Further parts.
    Parts,
    Nothing,
}

/// A call that the driver serves by parts.
pub struct Composition {
    rule: &'static Rule,
    choices: Vec<Choice>,
    scratch_bytes: u64,
}

impl std::fmt::Debug for Composition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Composition")
            .field("whole", &self.rule.whole.name())
            .field("parts", &self.choices.len())
            .finish_non_exhaustive()
    }
}

impl Composition {
    /// The bytes that lie between the parts.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// Goes through the work in order. `call` is the call that the composition was made for; `scratch` is the address of
    /// as many bytes as it needs, which are the composition's alone until the work has finished.
    ///
    /// # Errors
    /// What `with` reports.
    pub fn run(
        &self,
        call: &Call<'_>,
        scratch: u64,
        with: &mut dyn FnMut(Part<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut maker = Maker {
            scratch: Scratch::at(scratch),
            pass: Pass::Run {
                choices: self.choices.iter(),
                with,
            },
        };
        match (self.rule.make)(call, &mut maker) {
            Ok(()) => Ok(()),
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::No) => Err(Error::new(
                Code::INTERNAL,
                "a composition has other parts when it runs than when it was made",
            )),
        }
    }
}

/// The operators that may be composed on a device, a bit for each.
pub(crate) struct Composable {
    /// The operators for whose parts the driver has operators.
    all: [u64; WORDS],
    /// The same without those that are kept whole.
    now: [AtomicU64; WORDS],
}

const WORDS: usize = COUNT.div_ceil(64);

impl Composable {
    /// The operators that can be composed of those that `offers` knows. On the CPU there are none: the host kernel is
    /// the better whole.
    pub(crate) fn new(offers: impl Fn(OperatorId) -> bool, is_cpu: bool) -> Self {
        let rules = if is_cpu { &[] } else { rules::RULES };
        let mut all = [0; WORDS];
        let has = |all: &[u64; WORDS], id: OperatorId| {
            let at = id.index() as usize;
            all[at / 64] >> (at % 64) & 1 != 0
        };
        // Parts may be composed themselves.
        loop {
            let before = all;
            for rule in rules {
                let mut parts = rule.parts.iter();
                if parts.all(|&part| offers(part) || has(&all, part)) {
                    let at = rule.whole.index() as usize;
                    all[at / 64] |= 1 << (at % 64);
                }
            }
            if all == before {
                break;
            }
        }
        Self {
            all,
            now: all.map(AtomicU64::new),
        }
    }

    /// Whether an operator may be composed.
    #[inline]
    pub(crate) fn has(&self, id: OperatorId) -> bool {
        let at = id.index() as usize;
        let word = self.now.get(at / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (at % 64) & 1 != 0)
    }

    /// Keeps these operators whole, and no others.
    pub(crate) fn keep_whole(&self, ids: &[OperatorId]) {
        for (at, (now, all)) in self.now.iter().zip(self.all).enumerate() {
            let mine = ids.iter().map(|id| id.index() as usize);
            let kept = mine.filter(|id| id / 64 == at).map(|id| 1 << (id % 64));
            now.store(
                all & !kept.fold(0, |word, bit: u64| word | bit),
                Ordering::Relaxed,
            );
        }
    }
}

/// The parts by which the driver of a door serves a call; `None` if it does not.
pub(crate) fn compose(door: &Door, id: OperatorId, call: &Call<'_>) -> Result<Option<Composition>> {
    let Some(rule) = rules::RULES.iter().find(|rule| rule.whole == id) else {
        return Ok(None);
    };
    let mut dtypes = call.outputs.iter().map(Tensor::dtype);
    let dtype = dtypes.find(|dtype| *dtype != DType::INVALID);
    let gives = |dtype| id.entry().is_some_and(|entry| entry.gives(dtype));
    if !dtype.is_some_and(gives) {
        return Ok(None);
    }
    let mut maker = Maker {
        // Any address but 0: memory is taken when all parts are known to be there.
        scratch: Scratch::at(ALIGN),
        pass: Pass::Ask {
            door,
            choices: Vec::new(),
        },
    };
    match (rule.make)(call, &mut maker) {
        Ok(()) => {}
        Err(Stop::No) => return Ok(None),
        Err(Stop::Failed(error)) => return Err(error),
    }
    let Pass::Ask { choices, .. } = maker.pass else {
        return Ok(None);
    };
    Ok(Some(Composition {
        rule,
        choices,
        scratch_bytes: maker.scratch.most,
    }))
}

/// The maker of one composition: it asks for the parts of a rule or runs them, and gives out memory between them.
struct Maker<'m> {
    scratch: Scratch,
    pass: Pass<'m>,
}

enum Pass<'m> {
    Ask {
        door: &'m Door,
        choices: Vec<Choice>,
    },
    Run {
        choices: slice::Iter<'m, Choice>,
        with: &'m mut dyn FnMut(Part<'_>) -> Result<()>,
    },
}

/// Each tensor between the parts begins at a multiple of so many bytes.
const ALIGN: u64 = 256;

/// Memory that is given out from its begin on.
struct Scratch {
    base: u64,
    used: u64,
    most: u64,
}

impl Scratch {
    fn at(base: u64) -> Self {
        Self {
            base,
            used: 0,
            most: 0,
        }
    }

    fn take(&mut self, bytes: u64) -> u64 {
        let address = self.base + self.used;
        self.used += bytes.next_multiple_of(ALIGN);
        self.most = self.most.max(self.used);
        address
    }
}

impl Maker<'_> {
    /// Calls an operator as a part.
    fn call(
        &mut self,
        id: OperatorId,
        inputs: &[&Operand],
        outputs: &[&Operand],
        scalars: &[Scalar],
    ) -> Made {
        let inputs: ArrayVec<Tensor<'_>, 8> = inputs.iter().map(|one| one.tensor()).collect();
        let outputs: ArrayVec<Tensor<'_>, 8> = outputs.iter().map(|one| one.tensor()).collect();
        let call = Call {
            inputs: &inputs,
            outputs: &outputs,
            scalars,
            args: &[],
            device_only: true,
            whole: false,
        };
        let (at, choice) = match &mut self.pass {
            Pass::Ask { door, choices } => {
                let at = choices.len();
                if let Some(prepared) = door.find(id, &call)? {
                    choices.push(Choice::Driver(Arc::clone(&prepared)));
                    return Ok(());
                }
                let composes = door.composes(id);
                choices.push(if composes {
                    Choice::Parts
                } else {
                    Choice::Nothing
                });
                (at, if composes { Some(id) } else { None })
            }
            Pass::Run { choices, with } => match choices.next() {
                Some(Choice::Driver(prepared)) => {
                    let call = &call;
                    return Ok(with(Part::Operator { id, call, prepared })?);
                }
                Some(Choice::Parts) => (0, Some(id)),
                Some(Choice::Nothing) | None => (0, None),
            },
        };
        let rule = choice.and_then(|id| rules::RULES.iter().find(|rule| rule.whole == id));
        let Some(rule) = rule else {
            return Err(Stop::No);
        };
        let used = self.scratch.used;
        let outcome = (rule.make)(&call, self);
        // The next part runs behind these parts, so their memory is free.
        self.scratch.used = used;
        if let (Err(Stop::No), Pass::Ask { choices, .. }) = (&outcome, &mut self.pass) {
            choices.truncate(at);
            choices.push(Choice::Nothing);
        }
        outcome
    }

    /// Copies bytes within the device. What is there already stays: an operator may write over its input, and a copy of a
    /// queue may not (R26).
    fn copy_bytes(&mut self, dst: u64, src: u64, bytes: u64) -> Made {
        if let Pass::Run { with, .. } = &mut self.pass
            && dst != src
        {
            with(Part::Copy { dst, src, bytes })?;
        }
        Ok(())
    }

    /// Fills bytes.
    fn fill_bytes(&mut self, dst: u64, bytes: u64, pattern: &[u8]) -> Made {
        if let Pass::Run { with, .. } = &mut self.pass {
            let fill = Part::Fill {
                dst,
                bytes,
                pattern,
            };
            with(fill)?;
        }
        Ok(())
    }

    /// A dense tensor between the parts.
    fn scratch(&mut self, dtype: DType, sizes: &[i64]) -> Result<Operand, Stop> {
        let mut made = Operand::dense(0, dtype, sizes)?;
        let numel = u64::try_from(sizes.iter().product::<i64>()).unwrap_or(0);
        made.address = self.scratch.take(numel * dtype.size().unwrap_or(1) as u64);
        Ok(made)
    }

    /// The tensor in the dtype that a rule computes in: itself, or a copy of a half-precision one in f32.
    fn widened(&mut self, tensor: &Operand) -> Result<Operand, Stop> {
        let dtype = wide(tensor.dtype);
        if dtype == tensor.dtype {
            return Ok(tensor.clone());
        }
        let made = self.scratch(dtype, &tensor.sizes)?;
        self.call(rules::COPY, &[tensor], &[&made], &[])?;
        Ok(made)
    }

    /// The tensor with its elements in row-major order: itself, or a copy.
    fn contiguous(&mut self, tensor: &Operand) -> Result<Operand, Stop> {
        if tensor.tensor().is_contiguous() {
            return Operand::dense(tensor.address, tensor.dtype, &tensor.sizes);
        }
        let made = self.scratch(tensor.dtype, &tensor.sizes)?;
        self.call(rules::COPY, &[tensor], &[&made], &[])?;
        Ok(made)
    }

    /// The place of a result that [`finish`](Self::finish) brings to its tensor: the tensor itself, or a dense one in
    /// the dtype that a rule computes in.
    fn target(&mut self, tensor: &Operand) -> Result<Operand, Stop> {
        let dtype = wide(tensor.dtype);
        if dtype == tensor.dtype && tensor.tensor().is_contiguous() {
            return Operand::dense(tensor.address, dtype, &tensor.sizes);
        }
        self.scratch(dtype, &tensor.sizes)
    }

    fn finish(&mut self, target: &Operand, tensor: &Operand) -> Made {
        if target.address == tensor.address {
            return Ok(());
        }
        let target = target.viewed(&tensor.sizes)?;
        self.call(rules::COPY, &[&target], &[tensor], &[])
    }
}

/// The dtype that a rule computes in, so that a result is rounded once.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// A tensor of a rule, with its layout.
#[derive(Clone, Debug)]
struct Operand {
    address: u64,
    dtype: DType,
    sizes: ArrayVec<i64, MAX_RANK>,
    strides: ArrayVec<i64, MAX_RANK>,
}

impl Operand {
    /// A tensor of the call.
    fn of(tensor: &Tensor<'_>) -> Result<Self, Stop> {
        Ok(Self {
            address: tensor.address(),
            dtype: tensor.dtype(),
            sizes: list(tensor.sizes())?,
            strides: list(tensor.strides())?,
        })
    }

    /// A tensor of the call that may be absent.
    fn maybe(tensor: Option<&Tensor<'_>>) -> Result<Option<Self>, Stop> {
        let there = tensor.filter(|tensor| tensor.dtype() != DType::INVALID);
        there.map(Self::of).transpose()
    }

    /// A tensor with its elements in row-major order.
    fn dense(address: u64, dtype: DType, sizes: &[i64]) -> Result<Self, Stop> {
        let mut strides: ArrayVec<i64, MAX_RANK> = list(sizes)?;
        let mut step = 1;
        for (stride, size) in strides.iter_mut().zip(sizes).rev() {
            *stride = step;
            step *= size.max(&1);
        }
        Ok(Self {
            address,
            dtype,
            sizes: list(sizes)?,
            strides,
        })
    }

    /// An operand that is absent.
    fn absent() -> Self {
        Self {
            address: 0,
            dtype: DType::INVALID,
            sizes: ArrayVec::new(),
            strides: ArrayVec::new(),
        }
    }

    fn tensor(&self) -> Tensor<'_> {
        Tensor::new(self.address, self.dtype, &self.sizes, &self.strides)
    }

    /// The same elements with other sizes; they lie in row-major order.
    fn viewed(&self, sizes: &[i64]) -> Result<Self, Stop> {
        if !self.tensor().is_contiguous() {
            return Err(Stop::No);
        }
        Self::dense(self.address, self.dtype, sizes)
    }

    /// The same elements with two dimensions in each other's place.
    fn transposed(&self, one: usize, other: usize) -> Self {
        let mut turned = self.clone();
        turned.sizes.swap(one, other);
        turned.strides.swap(one, other);
        turned
    }

    fn numel(&self) -> i64 {
        self.sizes.iter().product()
    }

    fn bytes(&self) -> u64 {
        self.numel().unsigned_abs() * self.dtype.size().unwrap_or(1) as u64
    }
}

fn list(numbers: &[i64]) -> Result<ArrayVec<i64, MAX_RANK>, Stop> {
    ArrayVec::try_from(numbers).map_err(|_| Stop::No)
}
