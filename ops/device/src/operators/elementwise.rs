//! Operators that go element by element: arithmetic, comparisons, functions, choices, copies and fills.

use std::ffi::CStr;
use std::sync::Arc;

use half::{bf16, f16};
use outrigger_device::DType;
use outrigger_ops::{Call, Scalar, Tensor};

use crate::call::{Asked, Result, invalid, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::{Kernel, Parameters};
use crate::layout::{Layout, groups, rank_class};
use crate::source::{Definitions, Text};
use crate::work::{Launch, Prepared};

/// The rule for the register type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The element type of the output.
    Output,
    /// The element types of the inputs; the output is bool.
    Inputs,
}

/// An operator: its inputs, whether the last may be a scalar, what the numbers behind are if they are left out, and the
/// expressions for floating-point numbers and integers. Inputs are a, b and c, numbers are s0 and so on.
struct Row {
    name: &'static CStr,
    inputs: usize,
    or_scalar: bool,
    defaults: &'static [f64],
    rule: Rule,
    float: &'static str,
    integer: &'static str,
}

const fn row(
    name: &'static CStr,
    inputs: usize,
    float: &'static str,
    integer: &'static str,
) -> Row {
    Row {
        name,
        inputs,
        or_scalar: false,
        defaults: &[],
        rule: Rule::Output,
        float,
        integer,
    }
}

const fn pair(name: &'static CStr, float: &'static str, integer: &'static str) -> Row {
    Row {
        or_scalar: true,
        ..row(name, 2, float, integer)
    }
}

const fn truth(name: &'static CStr, inputs: usize, both: &'static str, or_scalar: bool) -> Row {
    Row {
        or_scalar,
        rule: Rule::Inputs,
        ..row(name, inputs, both, both)
    }
}

const fn numbers(row: Row, defaults: &'static [f64]) -> Row {
    Row { defaults, ..row }
}

#[rustfmt::skip] // a row is a line
static ROWS: &[Row] = &[
    numbers(pair(c"add", "a + s0 * b", "F(fma)(s0, b, a)"), &[1.0]),
    numbers(pair(c"sub", "a - s0 * b", "F(sub)(a, F(mul)(s0, b))"), &[1.0]),
    numbers(pair(c"rsub", "b - s0 * a", "F(sub)(b, F(mul)(s0, a))"), &[1.0]),
    pair(c"mul", "a * b", "F(mul)(a, b)"),
    pair(c"div", "a / b", ""),
    pair(c"rdiv", "b / a", ""),
    pair(c"div_trunc", "F(div_trunc)(a, b)", "F(div_trunc)(a, b)"),
    pair(c"div_floor", "F(div_floor)(a, b)", "F(div_floor)(a, b)"),
    pair(c"remainder", "F(remainder)(a, b)", "F(remainder)(a, b)"),
    pair(c"fmod", "F(fmod)(a, b)", "F(fmod)(a, b)"),
    pair(c"pow", "F(pow)(a, b)", "F(pow)(a, b)"),
    pair(c"rpow", "F(pow)(b, a)", "F(pow)(b, a)"),
    pair(c"maximum", "F(max)(a, b)", "F(max)(a, b)"),
    pair(c"minimum", "F(min)(a, b)", "F(min)(a, b)"),
    pair(c"bitwise_and", "", "a & b"),
    pair(c"bitwise_or", "", "a | b"),
    pair(c"bitwise_xor", "", "a ^ b"),
    row(c"bitwise_not", 1, "", "~a"),
    truth(c"eq", 2, "a == b", true),
    truth(c"ne", 2, "a != b", true),
    truth(c"lt", 2, "a < b", true),
    truth(c"le", 2, "a <= b", true),
    truth(c"gt", 2, "a > b", true),
    truth(c"ge", 2, "a >= b", true),
    truth(c"logical_and", 2, "a != 0 && b != 0", true),
    truth(c"logical_or", 2, "a != 0 || b != 0", true),
    truth(c"logical_xor", 2, "(a != 0) != (b != 0)", true),
    truth(c"logical_not", 1, "a == 0", false),
    truth(c"isnan", 1, "F(isnan)(a)", false),
    Row { integer: "", ..truth(c"isinf", 1, "F(abs)(a) == (T)OTR_INFINITY_F32", false) },
    Row { integer: "", ..truth(c"isfinite", 1, "F(abs)(a) < (T)OTR_INFINITY_F32", false) },
    row(c"neg", 1, "-a", "F(neg)(a)"),
    row(c"abs", 1, "F(abs)(a)", "F(abs)(a)"),
    row(c"sign", 1, "(T)((a > 0) - (a < 0))", "(T)((a > 0) - (a < 0))"),
    row(c"square", 1, "a * a", "F(mul)(a, a)"),
    row(c"sqrt", 1, "F(sqrt)(a)", ""),
    row(c"rsqrt", 1, "F(rsqrt)(a)", ""),
    row(c"reciprocal", 1, "1 / a", ""),
    row(c"exp", 1, "F(exp)(a)", ""),
    row(c"expm1", 1, "F(expm1)(a)", ""),
    row(c"log", 1, "F(log)(a)", ""),
    row(c"log1p", 1, "F(log1p)(a)", ""),
    row(c"log2", 1, "F(log2)(a)", ""),
    row(c"sin", 1, "F(sin)(a)", ""),
    row(c"cos", 1, "F(cos)(a)", ""),
    row(c"tanh", 1, "F(tanh)(a)", ""),
    row(c"sigmoid", 1, "1 / (1 + F(exp)(-a))", ""),
    row(c"erf", 1, "F(erf)(a)", ""),
    row(c"floor", 1, "F(floor)(a)", ""),
    row(c"ceil", 1, "F(ceil)(a)", ""),
    row(c"round", 1, "F(round)(a)", ""),
    row(c"trunc", 1, "F(trunc)(a)", ""),
    row(c"relu", 1, "a < 0 ? (T)0 : a", "a < 0 ? 0 : a"),
    numbers(row(c"leaky_relu", 1, "a > 0 ? a : a * s0", ""), &[0.01]),
    numbers(row(c"leaky_relu_backward", 2, "b > 0 ? a : a * s0", ""), &[0.01]),
    numbers(row(c"threshold_backward", 2, "b <= s0 ? (T)0 : a", "b <= s0 ? 0 : a"), &[0.0]),
    row(c"sigmoid_backward", 2, "a * (1 - b) * b", ""),
    row(c"tanh_backward", 2, "a * (1 - b * b)", ""),
    row(c"silu", 1, "a * (1 / (1 + F(exp)(-a)))", ""),
    row(c"silu_backward", 2, "otr_silu_gradient(a, b, 1 / (1 + F(exp)(-b)))", ""),
    numbers(row(c"gelu", 1, "otr_gelu(a, s0)", ""), &[0.0]),
    numbers(row(c"gelu_backward", 2, "otr_gelu_gradient(a, b, s0)", ""), &[0.0]),
    numbers(row(c"elu", 1, "a > 0 ? a * s1 : F(expm1)(a * s2) * s0 * s1", ""), &[1.0, 1.0, 1.0]),
    numbers(row(c"softplus", 1, "a * s0 > s1 ? a : F(log1p)(F(exp)(a * s0)) / s0", ""), &[1.0, 20.0]),
    numbers(row(c"softplus_backward", 2, "b * s0 > s1 ? a : a / (1 + F(exp)(-b * s0))", ""), &[1.0, 20.0]),
    numbers(row(c"hardtanh_backward", 2, "b > s0 && b < s1 ? a : (T)0", ""), &[-1.0, 1.0]),
    row(c"hardsigmoid", 1, "otr_within(a + 3, 0, 6) / 6", ""),
    row(c"hardswish", 1, "a * otr_within(a + 3, 0, 6) / 6", ""),
    pair_of_three(),
    numbers(row(c"masked_fill", 2, "b != 0 ? s0 : a", "b != 0 ? s0 : a"), &[0.0]),
    numbers(row(c"clamp", 1, "otr_within(a, s0, s1)", "otr_within(a, s0, s1)"), &[0.0, 0.0]),
    numbers(row(c"clamp_min", 1, "a < s0 ? s0 : a", "a < s0 ? s0 : a"), &[0.0]),
    numbers(row(c"clamp_max", 1, "a > s0 ? s0 : a", "a > s0 ? s0 : a"), &[0.0]),
    numbers(row(c"addcmul", 3, "a + s0 * b * c", "F(fma)(F(mul)(s0, b), c, a)"), &[1.0]),
    numbers(row(c"addcdiv", 3, "a + s0 * (b / c)", ""), &[1.0]),
    numbers(row(c"lerp", 2, "otr_between(a, b, s0)", ""), &[0.0]),
    row(c"lerp_tensor", 3, "otr_between(a, b, c)", ""),
    row(c"squared_error", 2, "(a - b) * (a - b)", ""),
    numbers(row(c"squared_error_backward", 3, "a * s0 * (b - c)", ""), &[2.0]),
];

const fn pair_of_three() -> Row {
    Row {
        or_scalar: true,
        ..row(c"where", 3, "a != 0 ? b : c", "a != 0 ? b : c")
    }
}

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    ROWS.iter().map(|row| row.name).chain([c"copy", c"fill"])
}

/// The numbers of a kernel.
const NUMBERS: usize = 4;

/// Makes an operator of a row.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    let Some(row) = ROWS.iter().find(|row| row.name == name) else {
        return unsupported("it is no operator that goes element by element");
    };
    let out = call.output(0)?;
    let by_scalar = row.or_scalar && call.inputs.len() + 1 == row.inputs;
    if call.outputs.len() != 1 || call.inputs.len() != row.inputs && !by_scalar {
        let (inputs, outputs) = (call.inputs.len(), call.outputs.len());
        return invalid(format!("{inputs} inputs and {outputs} outputs"));
    }
    let inputs: Vec<_> = (0..call.inputs.len())
        .map(|at| call.input(at))
        .collect::<Result<_>>()?;
    let class = match row.rule {
        Rule::Output => class_of_output(device, out, &inputs, name == c"where")?,
        Rule::Inputs => class_of_inputs(device, out, &inputs)?,
    };
    let kernel = |class: Class| -> Result<Option<Pass>> {
        let expression = match class.is_float() {
            true => row.float,
            false if name == c"bitwise_not" && out.dtype() == DType::BOOL => "a == 0",
            false => row.integer,
        };
        if expression.is_empty() {
            return Ok(None);
        }
        let result = if row.rule == Rule::Inputs {
            Class::I32
        } else {
            class
        };
        let made = Recipe {
            class,
            result,
            expression,
            // The scalar takes the place of the last input, and the numbers stand behind it.
            scalar_input: by_scalar.then_some(row.inputs - 1),
        };
        made.pass(device, out, &inputs).map(Some)
    };
    // A scalar decides at the launch whether integers are compared as such.
    let raised = by_scalar && row.rule == Rule::Inputs && !class.is_float();
    let class = if raised { Class::I64 } else { class };
    let Some(pass) = kernel(class)? else {
        return unsupported(format!("not for {}", class.name()));
    };
    let as_float = if raised { kernel(Class::F32)? } else { None };
    let (defaults, compares) = (row.defaults, row.rule == Rule::Inputs);
    let like = inputs.first().map_or(DType::F32, |input| input.dtype());
    Ok(Prepared::new(move |launch| {
        let mut scalars = [Scalar::I64(0); NUMBERS];
        let first = usize::from(by_scalar);
        for (at, default) in defaults.iter().enumerate() {
            scalars[first + at] = launch.scalar(first + at, *default);
        }
        if by_scalar {
            let given = launch.scalar(0, 0.0);
            scalars[0] = if compares {
                rounded_like(given, like)
            } else {
                given
            };
        }
        match &as_float {
            Some(as_float) if scalars[0].is_float() => as_float.submit(launch, scalars),
            _ => pass.submit(launch, scalars),
        }
    }))
}

/// A scalar as an element of a half-precision tensor would hold it.
fn rounded_like(scalar: Scalar, dtype: DType) -> Scalar {
    match dtype {
        DType::F16 => Scalar::F64(f16::from_f64(scalar.to_f64()).to_f64()),
        DType::BF16 => Scalar::F64(bf16::from_f64(scalar.to_f64()).to_f64()),
        _ => scalar,
    }
}

fn class_of_output(
    device: &Device,
    out: &Tensor<'_>,
    inputs: &[&Tensor<'_>],
    is_choice: bool,
) -> Result<Class> {
    let class = device.class(out.dtype())?;
    let mut wide = class;
    for (at, input) in inputs.iter().enumerate() {
        let other = device.class(input.dtype())?;
        let is_condition = is_choice && at == 0;
        if is_condition && other.is_float() && other != class {
            return unsupported("a floating-point condition of another type than the result");
        }
        if is_condition && (class, other) == (Class::I32, Class::I64) {
            wide = Class::I64;
        }
        if !is_condition && other.is_float() && !class.is_float() {
            return unsupported("floating-point operands with an integer output");
        }
    }
    Ok(wide)
}

/// The class of a comparison: operands with dimensions decide, others only raise it from integers to floats.
fn class_of_inputs(device: &Device, out: &Tensor<'_>, inputs: &[&Tensor<'_>]) -> Result<Class> {
    if out.dtype() != DType::BOOL {
        return unsupported("an output that is not bool");
    }
    let (mut with, mut without) = (None, None);
    for input in inputs {
        let class = device.class(input.dtype())?;
        let place = if input.rank() == 0 {
            &mut without
        } else {
            &mut with
        };
        *place = Some(place.map_or(class, |other| wider(class, other)));
    }
    match (with, without) {
        (Some(with), Some(_)) if with.is_float() => Ok(with),
        (Some(with), Some(without)) => Ok(wider(with, without)),
        (Some(class), None) | (None, Some(class)) => Ok(class),
        (None, None) => invalid("no inputs"),
    }
}

fn wider(one: Class, other: Class) -> Class {
    let order = [Class::F64, Class::F32, Class::I64, Class::I32];
    order
        .into_iter()
        .find(|class| [one, other].contains(class))
        .unwrap_or(one)
}

/// Copies elements, also to other element types.
pub(crate) fn make_copy(device: &Device, _: &CStr, call: &Call<'_>) -> Result<Prepared> {
    let (from, to) = (call.input(0)?, call.output(0)?);
    if call.inputs.len() != 1 || call.outputs.len() != 1 {
        return invalid("1 input and 1 output are expected");
    }
    let pass = copy_pass(device, from, to)?;
    Ok(Prepared::new(move |launch| {
        pass.submit(launch, [Scalar::I64(0); NUMBERS])
    }))
}

/// The pass of a copy.
pub(crate) fn copy_pass(device: &Device, from: &Tensor<'_>, to: &Tensor<'_>) -> Result<Pass> {
    let (source, target) = (from.dtype(), to.dtype());
    let recipe = |class| Recipe {
        class,
        result: class,
        expression: "a",
        scalar_input: None,
    };
    if source == target {
        // The bytes go as they are, so NaN keeps its bits and every type is served.
        let bits = match source.size() {
            Some(1) => DType::U8,
            Some(2) => DType::U16,
            Some(4) => DType::I32,
            Some(8) => DType::I64,
            Some(16) => return copy_pairs(device, from, to),
            _ => return unsupported(format!("elements of type {source}")),
        };
        let class = if bits == DType::I64 {
            Class::I64
        } else {
            Class::I32
        };
        let (from, to) = (from.of_dtype(bits), to.of_dtype(bits));
        return recipe(class).pass(device, &to, &[&from]);
    }
    let is_wide = |dtype| matches!(dtype, DType::U16 | DType::U32 | DType::U64);
    let class = |dtype| match is_wide(dtype) {
        true => Ok(Class::I64),
        false => device.class(dtype),
    };
    let (read, written) = (class(source)?, class(target)?);
    if is_wide(source) && written.is_float() || is_wide(target) && read.is_float() {
        return unsupported(format!("from {source} to {target}"));
    }
    let class = match (read, written) {
        (Class::F32, Class::F64) => Class::F64,
        (Class::I32, Class::I64) => Class::I64,
        (read, _) => read,
    };
    recipe(class).pass(device, to, &[from])
}

/// Copies elements of 16 bytes as two of 8.
fn copy_pairs(device: &Device, from: &Tensor<'_>, to: &Tensor<'_>) -> Result<Pass> {
    let halves = |tensor: &Tensor<'_>| {
        let sizes = tensor
            .sizes()
            .iter()
            .copied()
            .chain([2])
            .collect::<Vec<_>>();
        let strides = tensor.strides().iter().map(|stride| 2 * stride);
        (sizes, strides.chain([1]).collect::<Vec<_>>())
    };
    let (one, other) = (halves(from), halves(to));
    let recipe = Recipe {
        class: Class::I64,
        result: Class::I64,
        expression: "a",
        scalar_input: None,
    };
    let from = Tensor::new(from.address(), DType::I64, &one.0, &one.1);
    let to = Tensor::new(to.address(), DType::I64, &other.0, &other.1);
    recipe.pass(device, &to, &[&from])
}

/// Fills with a number.
pub(crate) fn make_fill(device: &Device, _: &CStr, call: &Call<'_>) -> Result<Prepared> {
    let out = call.output(0)?;
    if !call.inputs.is_empty() || call.outputs.len() != 1 {
        return invalid("no input and 1 output are expected");
    }
    let recipe = Recipe {
        class: device.class(out.dtype())?,
        result: device.class(out.dtype())?,
        expression: "s0",
        scalar_input: None,
    };
    let pass = recipe.pass(device, out, &[])?;
    let is_bool = out.dtype() == DType::BOOL;
    Ok(Prepared::new(move |launch| {
        let value = launch.scalar(0, 0.0);
        let value = match is_bool {
            // Half is true, and an integer that is cut to 0 is not.
            true => Scalar::I64(i64::from(value.to_f64() != 0.0)),
            false => value,
        };
        pass.submit(
            launch,
            [value, Scalar::I64(0), Scalar::I64(0), Scalar::I64(0)],
        )
    }))
}

/// An expression over inputs, before it has a layout.
pub(crate) struct Recipe<'a> {
    /// The registers of the inputs, and that of the expression.
    pub(crate) class: Class,
    pub(crate) result: Class,
    pub(crate) expression: &'a str,
    /// The input that a scalar stands for: it is s0 then, and the numbers of the row begin with s1.
    pub(crate) scalar_input: Option<usize>,
}

/// A launch of an expression for operands of a layout.
pub(crate) struct Pass {
    kernel: Option<Arc<Kernel>>,
    class: Class,
    inputs: usize,
    groups: u32,
    words: Vec<u64>,
}

/// The most words of a launch: counts, sizes and strides of eight dimensions, and numbers.
const WORDS: usize = 4 + 8 * 5 + NUMBERS;

impl Recipe<'_> {
    /// The expression as a launch; `out` has elements of its type.
    pub(crate) fn pass(
        &self,
        device: &Device,
        out: &Tensor<'_>,
        inputs: &[&Tensor<'_>],
    ) -> Result<Pass> {
        let mut pass = Pass {
            kernel: None,
            class: self.class,
            inputs: inputs.len(),
            groups: 0,
            words: Vec::new(),
        };
        let mut operands = vec![out];
        operands.extend(inputs);
        let layout = Layout::broadcast(out.sizes(), &operands)?.simple(true);
        if layout.numel() == 0 {
            return Ok(pass);
        }
        let mut definitions = Definitions::default();
        definitions.set("INPUTS", inputs.len());
        for (name, input) in ["A", "B", "C"].iter().zip(inputs) {
            definitions.set(name, element(input.dtype()));
        }
        definitions.set("OUT", element(out.dtype()));
        definitions
            .set("T", self.class.name())
            .set("R", self.result.name());
        definitions.set("FLOATS", i32::from(self.class.is_float()));
        // A scalar is s0, and the numbers of the expression come behind it.
        if let Some(name) = self.scalar_input.and_then(|at| ["a", "b", "c"].get(at)) {
            definitions.set(name, "s0");
            let expression = self.expression.replace("s0", "s1");
            definitions.set("RESULT", format!("({expression})"));
        } else {
            definitions.set("RESULT", format!("({})", self.expression));
        }
        let chunk: i64 = if device.is_serial() {
            4096
        } else {
            4 * i64::from(device.group())
        };
        definitions.set("CHUNK", chunk);
        let is_flat = layout.rank() <= 1
            && layout.strides[0].iter().all(|stride| *stride == 1)
            && layout
                .strides
                .iter()
                .flatten()
                .all(|stride| matches!(stride, 0 | 1));
        let rank = if is_flat {
            0
        } else {
            rank_class(layout.rank())?
        };
        definitions.set("RANK", rank);
        let mut counts = [layout.numel(), 1, 1, 1];
        let mut by_row = false;
        if is_flat {
            for (name, strides) in ["STEP_A", "STEP_B", "STEP_C"]
                .iter()
                .zip(&layout.strides[1..])
            {
                definitions.set(name, strides.first().copied().unwrap_or(0));
            }
            pass.groups = groups(layout.numel(), chunk)?;
        } else {
            let inner = layout.sizes.last().copied().unwrap_or(1);
            by_row = inner
                >= if device.is_serial() {
                    8
                } else {
                    i64::from(device.group()) / 4
                };
            if by_row {
                let (rows, in_group) = (layout.numel() / inner, (chunk / inner).max(1));
                let pieces = i64::from(groups(inner, chunk)?);
                counts = [rows, in_group, pieces, chunk];
                pass.groups = groups(i64::from(groups(rows, in_group)?).saturating_mul(pieces), 1)?;
            } else {
                pass.groups = groups(layout.numel(), chunk)?;
            }
        }
        definitions.set("BY_ROW", i32::from(by_row));
        pass.words.extend(counts.map(|count| count as u64));
        if !is_flat {
            pass.words.extend(layout.padded(rank).words());
        }
        let takes = Parameters {
            addresses: inputs.len() + 1,
            words: pass.words.len() + NUMBERS,
        };
        pass.kernel = Some(device.kernel(Text::Elementwise, definitions, takes)?);
        Ok(pass)
    }
}

impl Pass {
    /// Submits it for the inputs and the first output of a call.
    fn submit(
        &self,
        launch: &mut Launch<'_>,
        scalars: [Scalar; NUMBERS],
    ) -> std::result::Result<(), i32> {
        let mut addresses = [0; 4];
        addresses[..self.inputs].copy_from_slice(&launch.inputs[..self.inputs]);
        addresses[self.inputs] = launch.outputs[0];
        self.run(launch, &addresses[..=self.inputs], scalars)
    }

    /// Submits it for these addresses, the output last.
    pub(crate) fn run(
        &self,
        launch: &mut Launch<'_>,
        addresses: &[u64],
        scalars: [Scalar; NUMBERS],
    ) -> std::result::Result<(), i32> {
        let Some(kernel) = &self.kernel else {
            return Ok(());
        };
        let mut words = [0; WORDS];
        let (front, rest) = words.split_at_mut(self.words.len());
        front.copy_from_slice(&self.words);
        for (word, scalar) in rest.iter_mut().zip(scalars) {
            *word = self.class.word(scalar);
        }
        let count = self.words.len() + NUMBERS;
        launch.run(kernel, self.groups, addresses, &words[..count])
    }
}
