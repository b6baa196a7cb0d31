//! Elements that are joined with those that an index names.

use std::ffi::CStr;
use std::sync::Arc;

use outrigger_device::DType;
use outrigger_ops::{Argument, Call, Scalar, Tensor};

use super::elementwise::Recipe;
use super::index::{NONE, Places, WORDS, chunk, dimension};
use super::sums::Sums;
use crate::call::{Asked, Result, agrees, invalid, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::{Kernel, Parameters};
use crate::layout::dense;
use crate::source::{Definitions, Text};
use crate::work::{Checks, Prepared, WRONG};

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    [c"scatter_reduce"].into_iter()
}

/// The way in which elements are joined. A mean is a sum that is divided at the end.
struct Reduction {
    /// The expression of a and b; none for sums, which are added.
    join: Option<&'static str>,
    /// The value that changes no number, for floating-point numbers and for integers of 4 and 8 bytes.
    neutral: [Scalar; 3],
    is_mean: bool,
}

impl Reduction {
    fn of(call: &Call<'_>) -> Result<Self> {
        let Argument::String(name) = call.argument(4) else {
            return invalid("argument 4 is the name of the reduction");
        };
        let (least, most) = (i64::MIN, i64::MAX);
        let of = |join, float, [narrow, wide]: [i64; 2], is_mean| Self {
            join,
            neutral: [Scalar::F64(float), Scalar::I64(narrow), Scalar::I64(wide)],
            is_mean,
        };
        Ok(match name.to_bytes() {
            b"sum" => of(None, 0.0, [0; 2], false),
            b"mean" => of(None, 0.0, [0; 2], true),
            b"prod" => of(Some("F(mul)"), 1.0, [1; 2], false),
            b"amax" => of(
                Some("F(max)"),
                f64::NEG_INFINITY,
                [i32::MIN.into(), least],
                false,
            ),
            b"amin" => of(
                Some("F(min)"),
                f64::INFINITY,
                [i32::MAX.into(), most],
                false,
            ),
            _ => return invalid(format!("reduction {name:?}")),
        })
    }

    fn neutral(&self, class: Class) -> u64 {
        class.word(match class {
            Class::F32 | Class::F64 => self.neutral[0],
            Class::I32 => self.neutral[1],
            Class::I64 => self.neutral[2],
        })
    }
}

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    agrees(name, call)?;
    let [Some(at_input), Some(at_index), Some(at_source)] = [0, 2, 3].map(|at| call.place(at))
    else {
        return invalid("input, index or source is missing");
    };
    let (input, index) = (call.input(at_input)?, call.input(at_index)?);
    let (source, out) = (call.input(at_source)?, call.output(0)?);
    let Some(along) = dimension(call.integer(1)?, out.rank()) else {
        return invalid("there is no such dimension");
    };
    if out.rank() == 0 || index.rank() != out.rank() {
        return unsupported("an index of another rank");
    }
    let (reduction, with_input) = (Reduction::of(call)?, call.truth(5)?);
    let sums = Sums::new(device, Some(input), out)?;
    let class = device.class(sums.dtype)?;
    let bits = if class.bytes() == 4 { "u32" } else { "u64" };
    let of_index = element(index.dtype());
    let kernel = |kind: i32, out: DType, read: DType| -> Result<Arc<Kernel>> {
        let mut definitions = Definitions::default();
        definitions
            .set("KIND", kind)
            .set("FROM_END", 0)
            .set("A", element(read))
            .set("I", of_index);
        definitions
            .set("OUT", element(out))
            .set("T", device.class(out)?.name())
            .set("CHUNK", chunk(device));
        if let Some(join) = reduction.join.filter(|_| kind == 4) {
            definitions
                .set("JOIN", join)
                .set("U", bits)
                .set("FLOATS", i32::from(class.is_float()));
        }
        let takes = Parameters {
            addresses: 4,
            words: WORDS,
        };
        device.kernel(Text::Indexed, definitions, takes)
    };
    let to_places = |strides: &[i64]| {
        let (mut to, step) = (strides.to_vec(), strides[along]);
        to[along] = 0;
        Places {
            sizes: index.sizes().to_vec(),
            index: index.strides().to_vec(),
            from: source.strides().to_vec(),
            to,
            limit: out.sizes()[along],
            step,
        }
    };
    let places = to_places(&sums.strides);
    let launched = places.groups(chunk(device))?;
    let first = match with_input {
        true => None,
        false => Some(kernel(3, sums.dtype, sums.dtype)?),
    };
    let join = kernel(
        if reduction.join.is_some() { 4 } else { 1 },
        sums.dtype,
        source.dtype(),
    )?;
    let start = places.words(NONE, reduction.neutral(class));
    let words = places.words(NONE, class.word(Scalar::I64(1)));
    // Behind the sums: how many elements went to each place.
    let of_sums = sums.workspace_bytes().next_multiple_of(16);
    let of_counts = match reduction.is_mean {
        true => out.numel().unsigned_abs() * 4,
        false => 0,
    };
    let mean = match reduction.is_mean {
        true => {
            let strides = dense(out.sizes());
            let counts = to_places(&strides).words(NONE, 0);
            let counted = Tensor::new(64, DType::I32, out.sizes(), &strides);
            let summed = Tensor::new(64, sums.dtype, out.sizes(), &sums.strides);
            let divided = Recipe {
                class,
                result: class,
                expression: match class.is_float() {
                    true => "b > 0 ? a / (b + s0) : a",
                    false => "b > 0 ? F(div_floor)(a, b + s0) : a",
                },
                scalar_input: None,
            };
            let pass = divided.pass(device, &summed, &[&summed, &counted])?;
            Some((kernel(5, DType::I32, DType::I32)?, counts, pass))
        }
        false => None,
    };
    let checks = Checks::new(device.host_visible);
    let workspace = WRONG + of_sums + of_counts;
    Ok(Prepared::with_workspace(workspace, move |launch| {
        let (from, out) = (launch.inputs[at_input], launch.outputs[0]);
        let [index, source] = [at_index, at_source].map(|at| launch.inputs[at]);
        let place = sums.begin(launch, from, out, launch.workspace + WRONG)?;
        let counts = launch.workspace + WRONG + of_sums;
        launch.checked(&checks, |launch, wrong| {
            if let Some(first) = &first {
                launch.run(first, launched, &[source, index, place, wrong], &start)?;
            }
            launch.run(&join, launched, &[source, index, place, wrong], &words)?;
            if let Some((count, words, pass)) = &mean {
                launch.zero(counts, of_counts)?;
                launch.run(count, launched, &[source, index, counts, wrong], words)?;
                let mut numbers = [Scalar::I64(0); 4];
                numbers[0] = Scalar::I64(i64::from(with_input));
                pass.run(launch, &[place, counts, place], numbers)?;
            }
            sums.finish(launch, place, out)
        })
    }))
}
