//! Host kernels that go from element to element, in f64 or in i64: right for every dtype and layout, and not fast.
//!
//! The argument block of such a kernel is the packed call. So the kernel sees the call as it was planned, and needs no
//! block of its own.

use std::ffi::c_void;
use std::ops::ControlFlow;

use half::{bf16, f16};
use outrigger_device::{Code, DType};

use crate::arguments;
use crate::call::{Argument, Call, Scalar, Tensor};
use crate::error::{Result, invalid, unsupported};
use crate::failure::{failed_with, out_of_bounds};
use crate::memory::ArgumentBlock;
use crate::packed;
use crate::plan::{Plan, cost_ns};
use crate::registry::OperatorId;

/// An operator that is computed element by element.
pub(crate) trait Plain {
    /// Checks a call whose arguments have the right types. Returns a number of steps, of some nanoseconds each.
    fn check(call: &Call<'_>) -> Result<i64>;

    /// Computes a call that was checked.
    ///
    /// # Errors
    /// The code of the failure, such as `OUT_OF_RANGE`.
    fn run(run: &Run<'_>) -> Result<(), Code>;
}

/// The plan of a plain operator: what its `Definition` names.
pub(crate) fn plan<P: Plain>(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let Some(id) = OperatorId::find(plan.label) else {
        return invalid("the operator is not of the catalog");
    };
    if let Some(entry) = id.entry() {
        arguments::check(entry, call)?;
    }
    let steps = P::check(call)?;
    plan.kernel = kernel::<P>;
    plan.cost_ns = cost_ns(steps, 4000);
    plan.push_words(&packed::pack(id, call));
    Ok(())
}

/// Runs a block that [`plan`] packed.
unsafe extern "C" fn kernel<P: Plain>(args: *const c_void, args_size: u32, bias: i64) -> i32 {
    // SAFETY: the caller gives the block of the plan, which is readable.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let words = block.words();
    let id = packed::operator(&words);
    packed::unpack(words, |call| match P::run(&Run { id, call, bias }) {
        Ok(()) => Code::OK.0,
        Err(code) => code.0,
    })
}

/// A call that runs.
pub(crate) struct Run<'a> {
    id: OperatorId,
    pub(crate) call: &'a Call<'a>,
    bias: i64,
}

impl<'a> Run<'a> {
    /// The operator.
    pub(crate) fn name(&self) -> &'static std::ffi::CStr {
        self.id.name()
    }

    /// An output, by its place among the outputs.
    pub(crate) fn output(&self, at: usize) -> View<'a> {
        View::new(&self.call.outputs[at], self.bias)
    }

    /// An output that is there.
    pub(crate) fn wanted(&self, at: usize) -> Option<View<'a>> {
        let tensor = self.call.outputs.get(at)?;
        (tensor.dtype() != DType::INVALID).then(|| View::new(tensor, self.bias))
    }

    /// A tensor of the call.
    pub(crate) fn view(&self, tensor: &Tensor<'a>) -> View<'a> {
        View::new(tensor, self.bias)
    }

    /// The failure of an index that is not within a dimension.
    pub(crate) fn out_of_bounds(&self, index: i64, dimension: usize, size: i64) -> Code {
        out_of_bounds(&[self.id.name()], index, dimension, size)
    }

    /// The failure of an index that is not within some elements, of whatever shape.
    pub(crate) fn out_of_elements(&self, index: i64, elements: i64) -> Code {
        let text = format!("index {index} is out of bounds for {elements} elements");
        failed_with(Code::OUT_OF_RANGE, &[self.id.name()], text)
    }

    /// The tensor of an argument, by its place in the schema; `None` if it was left out.
    pub(crate) fn tensor(&self, argument: usize) -> Option<View<'a>> {
        self.call.tensor(argument).map(|tensor| self.view(tensor))
    }
}

impl<'a> Call<'a> {
    /// The tensor of an argument, by its place in the schema; `None` if it was left out.
    pub(crate) fn tensor(&self, argument: usize) -> Option<&'a Tensor<'a>> {
        let tensor = match self.args.get(argument)?.get() {
            Argument::Input(at) => self.inputs.get(at),
            Argument::Output(at) => self.outputs.get(at),
            _ => None,
        };
        tensor.filter(|tensor| tensor.dtype() != DType::INVALID)
    }

    /// The tensor of an argument that must be there.
    pub(crate) fn needed(&self, argument: usize) -> Result<&'a Tensor<'a>> {
        match self.tensor(argument) {
            Some(tensor) => Ok(tensor),
            None => invalid(format!(
                "argument {argument} is a tensor that must be there"
            )),
        }
    }

    /// An output that must be there, by its place among the outputs.
    pub(crate) fn result(&self, at: usize) -> Result<&'a Tensor<'a>> {
        match self
            .outputs
            .get(at)
            .filter(|one| one.dtype() != DType::INVALID)
        {
            Some(tensor) => Ok(tensor),
            None => invalid(format!("output {at} must be there")),
        }
    }

    /// The integer of an argument; `None` if it was left out.
    pub(crate) fn int(&self, argument: usize) -> Option<i64> {
        match self.args.get(argument)?.get() {
            Argument::Int(value) => Some(value),
            _ => None,
        }
    }

    /// The truth value of an argument; false if it was left out.
    pub(crate) fn truth(&self, argument: usize) -> bool {
        let value = self.args.get(argument).map(|value| value.get());
        value == Some(Argument::Bool(true))
    }

    /// The scalar of an argument; `None` if it was left out.
    pub(crate) fn scalar(&self, argument: usize) -> Option<Scalar> {
        match self.args.get(argument)?.get() {
            Argument::Scalar(at) => self.scalars.get(at).copied(),
            _ => None,
        }
    }

    /// The number of an argument; `None` if it was left out.
    pub(crate) fn number(&self, argument: usize) -> Option<f64> {
        self.scalar(argument).map(Scalar::to_f64)
    }

    /// The list of integers or truth values of an argument; empty if it was left out.
    pub(crate) fn ints(&self, argument: usize) -> &'a [i64] {
        match self.args.get(argument).map(|value| value.get()) {
            Some(Argument::Ints(list) | Argument::Bools(list)) => list,
            _ => &[],
        }
    }
}

/// A tensor whose elements are read and written one by one.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    base: u64,
    pub(crate) dtype: DType,
    pub(crate) sizes: &'a [i64],
    pub(crate) strides: &'a [i64],
}

macro_rules! by_dtype {
    ($dtype:expr, $type:ident => $do:expr, $half:ident => $do_half:expr, else $other:expr) => {
        match $dtype {
            DType::F32 => {
                type $type = f32;
                $do
            }
            DType::F64 => {
                type $type = f64;
                $do
            }
            DType::F16 => {
                type $half = f16;
                $do_half
            }
            DType::BF16 => {
                type $half = bf16;
                $do_half
            }
            DType::F8E4M3 => {
                type $half = crate::narrow::F8E4M3;
                $do_half
            }
            DType::F8E5M2 => {
                type $half = crate::narrow::F8E5M2;
                $do_half
            }
            DType::F8E4M3FNUZ => {
                type $half = crate::narrow::F8E4M3Fnuz;
                $do_half
            }
            DType::F8E5M2FNUZ => {
                type $half = crate::narrow::F8E5M2Fnuz;
                $do_half
            }
            DType::I64 => {
                type $type = i64;
                $do
            }
            DType::I32 => {
                type $type = i32;
                $do
            }
            DType::I16 => {
                type $type = i16;
                $do
            }
            DType::I8 => {
                type $type = i8;
                $do
            }
            DType::U8 => {
                type $type = u8;
                $do
            }
            DType::U16 => {
                type $type = u16;
                $do
            }
            DType::U32 => {
                type $type = u32;
                $do
            }
            DType::U64 => {
                type $type = u64;
                $do
            }
            _ => $other,
        }
    };
}

impl<'a> View<'a> {
    pub(crate) fn new(tensor: &Tensor<'a>, bias: i64) -> Self {
        Self {
            base: tensor.address().wrapping_add_signed(bias),
            dtype: tensor.dtype(),
            sizes: tensor.sizes(),
            strides: tensor.strides(),
        }
    }

    pub(crate) fn numel(&self) -> i64 {
        self.sizes.iter().product()
    }

    pub(crate) fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// The size of a dimension; 1 for one that is not there.
    pub(crate) fn size(&self, dim: usize) -> i64 {
        self.sizes.get(dim).copied().unwrap_or(1)
    }

    /// The place of an element by its indices, the first ones of which may be left out where the rank is less.
    pub(crate) fn at(&self, indices: &[i64]) -> i64 {
        debug_assert!(indices.len() == self.rank());
        let steps = indices.iter().zip(self.strides);
        steps.map(|(index, stride)| index * stride).sum()
    }

    /// The place of the first element of those with these first indices.
    pub(crate) fn at_start(&self, indices: &[i64]) -> i64 {
        let steps = indices.iter().zip(self.strides);
        steps.map(|(index, stride)| index * stride).sum()
    }

    /// The place of the first element of those with the same first indices, by the number of these in row-major order.
    pub(crate) fn nth_start(&self, dims: usize, mut number: i64) -> i64 {
        let mut place = 0;
        for (size, stride) in self.sizes.iter().zip(self.strides).take(dims).rev() {
            place += number % size * stride;
            number /= size;
        }
        place
    }

    /// The distance that indices of the dimensions from `first` on add to a place.
    pub(crate) fn at_end(&self, first: usize, indices: &[i64]) -> i64 {
        let steps = indices.iter().zip(&self.strides[first..]);
        steps.map(|(index, stride)| index * stride).sum()
    }

    /// The place of the element that stands at indices of a tensor to whose sizes this one is broadcast.
    pub(crate) fn at_broadcast(&self, indices: &[i64]) -> i64 {
        let mine = &indices[indices.len() - self.rank()..];
        let steps = mine.iter().zip(self.sizes).zip(self.strides);
        steps
            .map(|((at, size), stride)| if *size == 1 { 0 } else { at * stride })
            .sum()
    }

    /// The indices of the element with a number in row-major order.
    pub(crate) fn indices(&self, mut number: i64, indices: &mut [i64]) {
        for (index, size) in indices.iter_mut().zip(self.sizes).rev() {
            *index = number % size;
            number /= size;
        }
    }

    /// The lowest place of an element.
    pub(crate) fn lowest(&self) -> i64 {
        let dims = self.sizes.iter().zip(self.strides);
        dims.map(|(size, stride)| (size - 1).max(0) * (*stride).min(0))
            .sum()
    }

    /// The number of places from the lowest to the highest.
    pub(crate) fn span(&self) -> usize {
        let dims = self.sizes.iter().zip(self.strides);
        let reach: i64 = dims
            .map(|(size, stride)| (size - 1).max(0) * stride.abs())
            .sum();
        reach as usize + 1
    }

    /// The place of the element with a number in row-major order.
    pub(crate) fn nth(&self, mut number: i64) -> i64 {
        let mut place = 0;
        for (size, stride) in self.sizes.iter().zip(self.strides).rev() {
            place += number % size * stride;
            number /= size;
        }
        place
    }

    fn pointer(&self, place: i64) -> *mut u8 {
        let width = self.dtype.size().unwrap_or(1) as i64;
        self.base.wrapping_add_signed(place * width) as *mut u8
    }

    /// The element at a place, as a number.
    #[expect(
        clippy::unnecessary_cast,
        reason = "one of the types that the macro goes through is f64"
    )]
    pub(crate) fn get(&self, place: i64) -> f64 {
        let from = self.pointer(place);
        // SAFETY: places come from `at` and `nth` with indices below the sizes, so it is an element of an operand, which
        // is live while the kernel runs.
        unsafe {
            by_dtype!(self.dtype, T => from.cast::<T>().read_unaligned() as f64,
                H => from.cast::<H>().read_unaligned().to_f64(),
                else f64::from(from.read() != 0))
        }
    }

    /// Writes a number as the element at a place, rounded once.
    pub(crate) fn set(&self, place: i64, value: f64) {
        let to = self.pointer(place);
        // SAFETY: as in `get`; the tensor is an output.
        unsafe {
            by_dtype!(self.dtype, T => to.cast::<T>().write_unaligned(value as T),
                H => to.cast::<H>().write_unaligned(H::from_f64(value)),
                else to.write(u8::from(value != 0.0)));
        }
    }

    /// The element at a place as an integer, exactly; floating-point numbers are cut.
    #[expect(
        clippy::unnecessary_cast,
        reason = "one of the types that the macro goes through is i64"
    )]
    pub(crate) fn get_int(&self, place: i64) -> i64 {
        let from = self.pointer(place);
        // SAFETY: as in `get`.
        unsafe {
            by_dtype!(self.dtype, T => from.cast::<T>().read_unaligned() as i64,
                H => from.cast::<H>().read_unaligned().to_f64() as i64,
                else i64::from(from.read() != 0))
        }
    }

    /// Writes an integer as the element at a place; it wraps.
    pub(crate) fn set_int(&self, place: i64, value: i64) {
        let to = self.pointer(place);
        // SAFETY: as in `set`.
        unsafe {
            by_dtype!(self.dtype, T => to.cast::<T>().write_unaligned(value as T),
                H => to.cast::<H>().write_unaligned(H::from_f64(value as f64)),
                else to.write(u8::from(value != 0)));
        }
    }

    /// Moves an element of another tensor of this dtype to a place, as its bits.
    pub(crate) fn take(&self, place: i64, other: &View<'_>, from: i64) {
        debug_assert!(self.dtype == other.dtype);
        let width = self.dtype.size().unwrap_or(1);
        // SAFETY: as in `get` and `set`: elements of this width. They may be one and the same.
        unsafe { std::ptr::copy(other.pointer(from), self.pointer(place), width) };
    }

    /// Moves all elements of a tensor of the same sizes and dtype here.
    pub(crate) fn take_all(&self, other: &View<'_>) {
        for number in 0..self.numel() {
            self.take(self.nth(number), other, other.nth(number));
        }
    }

    /// Writes a scalar as the element at a place.
    pub(crate) fn set_scalar(&self, place: i64, value: Scalar) {
        match value {
            Scalar::I64(value) => self.set_int(place, value),
            Scalar::F64(value) => self.set(place, value),
        }
    }

    /// Whether the elements are integers or truth values.
    pub(crate) fn is_int(&self) -> bool {
        !matches!(
            self.dtype,
            DType::F32 | DType::F64 | DType::F16 | DType::BF16
        ) && !is_narrow(self.dtype)
    }
}

/// Whether elements are floating-point numbers of 8 bits, which host kernels read and write.
pub(crate) fn is_narrow(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::F8E4M3 | DType::F8E5M2 | DType::F8E4M3FNUZ | DType::F8E5M2FNUZ
    )
}

/// Refuses elements that are no real numbers of their own: complex ones, scales, several in a byte, and those that the
/// tensor does not say of.
pub(crate) fn real(tensor: &Tensor<'_>) -> Result<()> {
    match tensor.dtype() {
        DType::C64
        | DType::C128
        | DType::F8E8M0
        | DType::F4E2M1X2
        | DType::I4X2
        | DType::U4X2
        | DType::INVALID => unsupported(format!("elements of {}", tensor.dtype())),
        _ => Ok(()),
    }
}

/// Refuses elements that are not floating-point.
pub(crate) fn floating(tensor: &Tensor<'_>) -> Result<()> {
    match tensor.dtype() {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => Ok(()),
        dtype => unsupported(format!(
            "elements of {dtype}: f32, f64, f16 and bf16 are served"
        )),
    }
}

/// A dimension that may be counted from the end, of a tensor of `rank` (0 counts as 1).
pub(crate) fn dimension(dim: i64, rank: usize) -> Result<usize> {
    let count = rank.max(1) as i64;
    match dim {
        dim if (0..count).contains(&dim) => Ok(dim as usize),
        dim if (-count..0).contains(&dim) => Ok((dim + count) as usize),
        _ => invalid(format!(
            "dimension {dim} is not within -{count} and {}",
            count - 1
        )),
    }
}

/// Refuses two lists of sizes that are to be the same.
pub(crate) fn same_sizes(what: &str, found: &[i64], right: &[i64]) -> Result<()> {
    if found == right {
        return Ok(());
    }
    invalid(format!(
        "{what} has sizes {found:?}, {right:?} are expected"
    ))
}

/// Refuses a tensor that cannot be broadcast to these sizes.
pub(crate) fn broadcasts(what: &str, found: &[i64], to: &[i64]) -> Result<()> {
    let mut pairs = found.iter().rev().zip(to.iter().rev());
    if found.len() <= to.len() && pairs.all(|(size, right)| *size == 1 || size == right) {
        return Ok(());
    }
    invalid(format!(
        "{what} has sizes {found:?}, which are not broadcast to {to:?}"
    ))
}

/// Refuses what is not floating-point, and tensors of different types.
pub(crate) fn same_floats(tensors: &[&Tensor<'_>]) -> Result<()> {
    let dtype = tensors[0].dtype();
    if ![DType::F32, DType::F64, DType::F16, DType::BF16].contains(&dtype) {
        return unsupported(format!(
            "operands of {dtype}: f32, f64, f16 and bf16 are served"
        ));
    }
    match tensors.iter().find(|tensor| tensor.dtype() != dtype) {
        Some(other) => invalid(format!("operands of {dtype} and {}", other.dtype())),
        None => Ok(()),
    }
}

/// The most spatial dimensions.
pub(crate) const SPATIAL: usize = 3;

/// Calls `with` for all places of an array of these sizes.
pub(crate) fn each(sizes: &[i64], mut with: impl FnMut(&[i64])) {
    let mut place = [0; SPATIAL];
    let count: i64 = sizes.iter().product();
    for _ in 0..count {
        with(&place[..sizes.len()]);
        let _ = (0..sizes.len()).rev().try_for_each(|dim| {
            place[dim] += 1;
            if place[dim] < sizes[dim] {
                return ControlFlow::Break(());
            }
            place[dim] = 0;
            ControlFlow::Continue(())
        });
    }
}
