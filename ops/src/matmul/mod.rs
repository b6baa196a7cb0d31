//! Matrix products: mm, bmm, mv, dot, and their forms that add to a scaled bias.
//!
//! All of them are one product of batches of matrices with any strides. The `gemm` crate multiplies f32 and f64 without
//! conversion. Other types are converted to dense f32 or i64 matrices first. Threads share batches or columns.

mod kernels;

use bytemuck::{Pod, Zeroable};
use outrigger_device::DType;

use crate::call::{Call, Scalar, Tensor};
use crate::convert::Compute;
use crate::error::{Result, invalid, unsupported};
use crate::geometry::checked_size;
use crate::plan::{KernelFn, Plan};
use crate::registry::Definition;

use kernels::{converted_kernel, native_kernel};

/// The operators of this file.
pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"mm",
        plan: |call, plan| plan_product(call, plan, &MM),
    },
    Definition {
        name: c"addmm",
        plan: |call, plan| plan_product(call, plan, &ADDMM),
    },
    Definition {
        name: c"bmm",
        plan: |call, plan| plan_product(call, plan, &BMM),
    },
    Definition {
        name: c"baddbmm",
        plan: |call, plan| plan_product(call, plan, &BADDBMM),
    },
    Definition {
        name: c"mv",
        plan: |call, plan| plan_product(call, plan, &MV),
    },
    Definition {
        name: c"addmv",
        plan: |call, plan| plan_product(call, plan, &ADDMV),
    },
    Definition {
        name: c"dot",
        plan: |call, plan| plan_product(call, plan, &DOT),
    },
];

/// The dimensions of an operator's operands by letter: b batch, m rows, n columns, k the summed dimension.
struct Form {
    left: &'static str,
    right: &'static str,
    output: &'static str,
    bias: bool,
}

const MM: Form = Form {
    left: "mk",
    right: "kn",
    output: "mn",
    bias: false,
};
const ADDMM: Form = Form { bias: true, ..MM };
const BMM: Form = Form {
    left: "bmk",
    right: "bkn",
    output: "bmn",
    bias: false,
};
const BADDBMM: Form = Form { bias: true, ..BMM };
const MV: Form = Form {
    left: "mk",
    right: "k",
    output: "m",
    bias: false,
};
const ADDMV: Form = Form { bias: true, ..MV };
const DOT: Form = Form {
    left: "k",
    right: "k",
    output: "",
    bias: false,
};

/// A batch of matrices: its address and byte strides.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Matrix {
    address: u64,
    batch: i64,
    row: i64,
    column: i64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Header {
    output: Matrix,
    left: Matrix,
    right: Matrix,
    bias: Matrix,
    batches: i64,
    m: i64,
    n: i64,
    k: i64,
    /// Both factors as words of the class that is computed in.
    alpha: u64,
    beta: u64,
    dtype: u8,
    has_bias: u8,
    reserved: [u8; 6],
}

fn plan_product(call: &Call<'_>, plan: &mut Plan, form: &Form) -> Result<()> {
    let [output] = call.outputs else {
        return invalid(format!("{} outputs, 1 is expected", call.outputs.len()));
    };
    let (bias, left, right) = match (form.bias, call.inputs) {
        (false, [left, right]) => (None, left, right),
        (true, [bias, left, right]) => (Some(bias), left, right),
        _ => {
            let right = if form.bias { 3 } else { 2 };
            return invalid(format!(
                "{} inputs, {right} are expected",
                call.inputs.len()
            ));
        }
    };
    let one = Scalar::I64(1);
    let (beta, alpha) = match (form.bias, call.scalars) {
        (false, []) | (true, []) => (one, one),
        (true, [beta]) => (*beta, one),
        (true, [beta, alpha]) => (*beta, *alpha),
        _ => return invalid("scalars are (beta, alpha) where there is a bias, else none"),
    };
    for input in call.inputs {
        if input.dtype() != output.dtype() {
            return invalid(format!(
                "operands are {} and {}",
                input.dtype(),
                output.dtype()
            ));
        }
    }
    let size = checked_size(output)?;
    let mut sizes = Sizes::default();
    let left = sizes.matrix(left, form.left, ['m', 'k'], size)?;
    let right = sizes.matrix(right, form.right, ['k', 'n'], size)?;
    let out = sizes.matrix(output, form.output, ['m', 'n'], size)?;
    let (batches, m, n, k) = sizes.take();
    let bias_matrix = match bias {
        Some(bias) => broadcast_bias(bias, output, form.output, size)?,
        None => Matrix::zeroed(),
    };
    let (kernel, words): (KernelFn, fn(Scalar) -> u64) = match output.dtype() {
        DType::F32 => (native_kernel::<f32>, f32::to_word),
        DType::F64 => (native_kernel::<f64>, f64::to_word),
        DType::F16 | DType::BF16 => (converted_kernel::<f32>, f32::to_word),
        DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::U8 => {
            if alpha.is_float() || beta.is_float() {
                return unsupported("floating-point factors of integer matrices");
            }
            (converted_kernel::<i64>, i64::to_word)
        }
        other => return unsupported(format!("not defined for {other}")),
    };
    if batches * m * n == 0 {
        return Ok(());
    }
    plan.kernel = kernel;
    // 2 operations for each element and step, at about 32 operations per nanosecond and core.
    let steps = [m, n, k.max(1)]
        .into_iter()
        .fold(batches, i64::saturating_mul);
    plan.cost_ns = crate::plan::cost_ns(steps, 62);
    plan.push(&Header {
        output: out,
        left,
        right,
        bias: bias_matrix,
        batches,
        m,
        n,
        k,
        alpha: words(alpha),
        beta: words(beta),
        dtype: output.dtype().0 as u8,
        // With a factor of 0 even an infinite bias has no effect, so the bias is not read.
        has_bias: u8::from(bias.is_some() && beta.to_f64() != 0.0),
        reserved: [0; 6],
    });
    Ok(())
}

/// The sizes by letter, as the operands show them.
#[derive(Default)]
struct Sizes([Option<i64>; 4]);

impl Sizes {
    fn slot(letter: char) -> usize {
        match letter {
            'b' => 0,
            'm' => 1,
            'n' => 2,
            _ => 3,
        }
    }

    /// Notes the sizes of an operand, and returns its byte strides; 0 for letters that it lacks.
    fn matrix(
        &mut self,
        tensor: &Tensor<'_>,
        letters: &str,
        [row, column]: [char; 2],
        size: i64,
    ) -> Result<Matrix> {
        if tensor.rank() != letters.len() {
            return invalid(format!(
                "an operand has rank {}, not {}",
                tensor.rank(),
                letters.len()
            ));
        }
        checked_size(tensor)?;
        let mut strides = [0; 4];
        for (d, letter) in letters.chars().enumerate() {
            let slot = Self::slot(letter);
            let here = tensor.sizes()[d];
            if *self.0[slot].get_or_insert(here) != here {
                return invalid(format!(
                    "size {here} of dimension {d} of an operand does not fit the others: {:?}",
                    self.0[slot].unwrap_or_default()
                ));
            }
            strides[slot] = tensor.strides()[d] * size;
        }
        let [row, column] = [row, column].map(|letter| strides[Self::slot(letter)]);
        Ok(Matrix {
            address: tensor.address(),
            batch: strides[0],
            row,
            column,
        })
    }

    fn take(self) -> (i64, i64, i64, i64) {
        let [batches, m, n, k] = self.0.map(|size| size.unwrap_or(1));
        (batches, m, n, k)
    }
}

/// The bias as a batch of matrices of the output's shape.
fn broadcast_bias(
    bias: &Tensor<'_>,
    output: &Tensor<'_>,
    letters: &str,
    size: i64,
) -> Result<Matrix> {
    checked_size(bias)?;
    if bias.rank() > output.rank() {
        return invalid("the bias has more dimensions than the output");
    }
    let mut matrix = Matrix {
        address: bias.address(),
        ..Matrix::zeroed()
    };
    let skipped = output.rank() - bias.rank();
    for (d, letter) in letters.chars().enumerate().skip(skipped) {
        let (have, want) = (bias.sizes()[d - skipped], output.sizes()[d]);
        if have != want && have != 1 {
            return invalid(format!(
                "bias {:?} does not broadcast to {:?}",
                bias.sizes(),
                output.sizes()
            ));
        }
        let stride = if have == want {
            bias.strides()[d - skipped] * size
        } else {
            0
        };
        match letter {
            'b' => matrix.batch = stride,
            'm' => matrix.row = stride,
            _ => matrix.column = stride,
        }
    }
    Ok(matrix)
}
