//! Parts that the tests of the kernels share: tensors in host memory, of any dtype and layout, and calls on them.
//! Nothing here computes what a kernel computes. For little-endian machines only.

#![allow(dead_code, reason = "each test program uses a part")]

use std::cell::Cell;
use std::ffi::{CString, c_void};

use half::{bf16, f16};
use outrigger_ops::{Call, Code, DType, OperatorId, PlanError, Scalar, Tensor, plan};

/// Kernels get addresses that are this much below the memory. So a kernel that forgets the bias reads and writes
/// elsewhere.
const BIAS: i64 = 1 << 32;

/// A tensor in the test's own memory.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) dtype: DType,
    pub(crate) sizes: Vec<i64>,
    pub(crate) strides: Vec<i64>,
    /// The number of elements in memory before the one with all indices 0.
    offset: i64,
    /// Cells, because kernels write through addresses that were taken from a shared array.
    data: Vec<Cell<u64>>,
}

/// A small generator of test data. A failing case can be repeated from its seed.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// A value within [-limit, limit]; an integer for integer types.
    pub(crate) fn value(&mut self, dtype: DType, limit: f64) -> f64 {
        let unit = (self.word() >> 11) as f64 / (1u64 << 53) as f64;
        let value = (unit * 2.0 - 1.0) * limit;
        match dtype {
            DType::BOOL => (self.word() & 1) as f64,
            DType::U8 => value.abs().round(),
            _ if is_float(dtype) => value,
            _ => value.round(),
        }
    }
}

pub(crate) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
}

/// The relative error that a value near 1 may have in this type.
pub(crate) fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 2e-6,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 0.0,
    }
}

impl Array {
    /// A dense row-major tensor of zeros.
    pub(crate) fn dense(dtype: DType, sizes: &[i64]) -> Self {
        let mut strides = vec![1; sizes.len()];
        for d in (1..sizes.len()).rev() {
            strides[d - 1] = strides[d] * sizes[d].max(1);
        }
        Self::with_layout(dtype, sizes, strides, 0)
    }

    /// A tensor of zeros in a random layout without shared elements: dimensions permuted, spread out or reversed.
    pub(crate) fn scattered(dtype: DType, sizes: &[i64], rng: &mut Rng) -> Self {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        for k in (1..order.len()).rev() {
            order.swap(k, rng.below(k as u64 + 1) as usize);
        }
        let (mut strides, mut offset) = (vec![0; sizes.len()], rng.below(3) as i64);
        let mut step = if rng.below(3) == 0 { 2 } else { 1 };
        for &d in order.iter().rev() {
            let size = sizes[d].max(1);
            strides[d] = step;
            step *= size + i64::from(rng.below(4) == 0);
            if rng.below(4) == 0 {
                offset += strides[d] * (size - 1);
                strides[d] = -strides[d];
            }
        }
        Self::with_layout(dtype, sizes, strides, offset)
    }

    fn with_layout(dtype: DType, sizes: &[i64], strides: Vec<i64>, offset: i64) -> Self {
        let reach: i64 = sizes
            .iter()
            .zip(&strides)
            .map(|(n, s)| (n - 1).max(0) * s.abs())
            .sum();
        let bytes = (offset + reach + 1) as usize * dtype.size().unwrap_or(1);
        Self {
            dtype,
            sizes: sizes.to_vec(),
            strides,
            offset,
            data: vec![Cell::new(0); bytes.div_ceil(8) + 1],
        }
    }

    /// The tensor with random values within [-limit, limit].
    pub(crate) fn filled(mut self, rng: &mut Rng, limit: f64) -> Self {
        for k in 0..self.numel() {
            let value = rng.value(self.dtype, limit);
            self.set(k, value);
        }
        self
    }

    pub(crate) fn of(dtype: DType, sizes: &[i64], values: &[f64]) -> Self {
        let mut array = Self::dense(dtype, sizes);
        assert_eq!(array.numel(), values.len() as i64);
        for (k, value) in values.iter().enumerate() {
            array.set(k as i64, *value);
        }
        array
    }

    pub(crate) fn numel(&self) -> i64 {
        self.sizes.iter().product()
    }

    pub(crate) fn tensor(&self) -> Tensor<'_> {
        let size = self.dtype.size().unwrap_or(1) as i64;
        let address = self.data.as_ptr() as i64 + self.offset * size - BIAS;
        Tensor::new(address as u64, self.dtype, &self.sizes, &self.strides)
    }

    /// The indices of element k in row-major order.
    pub(crate) fn indices(&self, mut k: i64) -> Vec<i64> {
        let mut indices = vec![0; self.sizes.len()];
        for d in (0..self.sizes.len()).rev() {
            indices[d] = k % self.sizes[d];
            k /= self.sizes[d];
        }
        indices
    }

    fn place(&self, indices: &[i64]) -> (usize, usize) {
        // Missing leading dimensions, and dimensions of size 1, are broadcast.
        let skip = indices.len() - self.sizes.len();
        let at: i64 = self
            .sizes
            .iter()
            .zip(&self.strides)
            .zip(&indices[skip..])
            .map(|((size, stride), index)| if *size == 1 { 0 } else { index * stride })
            .sum();
        let size = self.dtype.size().expect("a known dtype");
        ((self.offset + at) as usize * size, size)
    }

    pub(crate) fn at(&self, indices: &[i64]) -> f64 {
        let (at, size) = self.place(indices);
        let (word, shift) = (at / 8, at % 8 * 8);
        let mask = if size >= 8 {
            u64::MAX
        } else {
            (1 << (size * 8)) - 1
        };
        let bits = (self.data[word].get() >> shift) & mask;
        match self.dtype {
            DType::F64 => f64::from_bits(bits),
            DType::F32 => f64::from(f32::from_bits(bits as u32)),
            DType::F16 => f16::from_bits(bits as u16).to_f64(),
            DType::BF16 => bf16::from_bits(bits as u16).to_f64(),
            DType::I64 => bits as i64 as f64,
            DType::I32 => f64::from(bits as i32),
            DType::I16 => f64::from(bits as i16),
            DType::I8 => f64::from(bits as i8),
            _ => bits as f64,
        }
    }

    pub(crate) fn get(&self, k: i64) -> f64 {
        self.at(&self.indices(k))
    }

    pub(crate) fn set(&mut self, k: i64, value: f64) {
        let indices = self.indices(k);
        let (at, size) = self.place(&indices);
        let bits = match self.dtype {
            DType::F64 => value.to_bits(),
            DType::F32 => u64::from((value as f32).to_bits()),
            DType::F16 => u64::from(f16::from_f64(value).to_bits()),
            DType::BF16 => u64::from(bf16::from_f64(value).to_bits()),
            _ => value as i64 as u64,
        };
        let (word, shift) = (at / 8, at % 8 * 8);
        let mask = if size >= 8 {
            u64::MAX
        } else {
            (1 << (size * 8)) - 1
        };
        let kept = self.data[word].get() & !(mask << shift);
        self.data[word].set(kept | (bits & mask) << shift);
    }

    pub(crate) fn values(&self) -> Vec<f64> {
        (0..self.numel()).map(|k| self.get(k)).collect()
    }
}

/// Plans and runs a call. Returns the code of the kernel.
pub(crate) fn try_call(
    name: &str,
    inputs: &[&Array],
    outputs: &mut [&mut Array],
    scalars: &[Scalar],
) -> Result<i32, PlanError> {
    let inputs: Vec<_> = inputs.iter().map(|input| input.tensor()).collect();
    let outputs: Vec<_> = outputs.iter().map(|output| output.tensor()).collect();
    call_tensors(name, &inputs, &outputs, scalars)
}

/// [`try_call`] on tensors.
pub(crate) fn call_tensors(
    name: &str,
    inputs: &[Tensor<'_>],
    outputs: &[Tensor<'_>],
    scalars: &[Scalar],
) -> Result<i32, PlanError> {
    let call = Call {
        inputs,
        outputs,
        scalars,
        ..Call::default()
    };
    run_call(name, &call)
}

/// Runs a call of any kind.
pub(crate) fn run_call(name: &str, call: &Call<'_>) -> Result<i32, PlanError> {
    let id = OperatorId::find(&CString::new(name).expect("a name")).expect("the operator exists");
    let plan = plan(id, call)?;
    // A block may be copied to any address, so the kernel gets it at an odd one.
    let mut moved = vec![0u8; plan.args().len() + 1];
    moved[1..].copy_from_slice(plan.args());
    let args = moved[1..].as_ptr().cast::<c_void>();
    // SAFETY: the block is of this plan. Operands are live arrays, `BIAS` above their addresses.
    Ok(unsafe { (plan.kernel)(args, plan.args().len() as u32, BIAS) })
}

/// Plans and runs a call that must succeed.
pub(crate) fn call(name: &str, inputs: &[&Array], outputs: &mut [&mut Array], scalars: &[Scalar]) {
    let code =
        try_call(name, inputs, outputs, scalars).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(code, Code::OK.0, "{name}");
}

/// The operand for one that is absent.
pub(crate) fn absent() -> Array {
    Array::dense(DType::INVALID, &[])
}

#[track_caller]
pub(crate) fn assert_close(got: f64, want: f64, tolerance: f64, what: impl std::fmt::Debug) {
    let close = got == want
        || got.is_nan() && want.is_nan()
        || (got - want).abs() <= tolerance * want.abs().max(1.0);
    assert!(close, "{what:?}: {got} instead of {want}");
}
