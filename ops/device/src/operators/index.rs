//! Elements by their index: gathering, scattering, and adding up what goes to one place.

use std::ffi::CStr;
use std::sync::Arc;

use outrigger_device::DType;
use outrigger_ops::{Call, Scalar};

use super::elementwise::copy_pass;
use super::sums::Sums;
use crate::call::{Asked, Result, invalid, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::{Kernel, Parameters};
use crate::layout::{RANK, groups};
use crate::source::{Definitions, Text};
use crate::work::{Checks, Prepared, WRONG};

const NAMES: [&CStr; 10] = [
    c"gather",
    c"index_select",
    c"embedding",
    c"embedding_dense_backward",
    c"scatter",
    c"scatter_value",
    c"scatter_add",
    c"index_add",
    c"index_copy",
    c"index_fill",
];

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    NAMES.into_iter()
}

/// An index that no element has.
pub(crate) const NONE: i64 = i64::MIN;

pub(crate) const WORDS: usize = 5 + 4 * RANK + 1;

/// The use of an element.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gather = 0,
    Add = 1,
    Put = 2,
    Number = 3,
}

/// The elements that a launch moves: their sizes, and strides of index, source and target for each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    pub(crate) sizes: Vec<i64>,
    pub(crate) index: Vec<i64>,
    pub(crate) from: Vec<i64>,
    pub(crate) to: Vec<i64>,
    pub(crate) limit: i64,
    pub(crate) step: i64,
}

impl Places {
    pub(crate) fn words(&self, ignored: i64, number: u64) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        let count: i64 = self.sizes.iter().product();
        let front = [
            count,
            self.sizes.len() as i64,
            self.limit,
            self.step,
            ignored,
        ];
        for (word, number) in words.iter_mut().zip(front) {
            *word = number as u64;
        }
        for (which, list) in [&self.sizes, &self.index, &self.from, &self.to]
            .into_iter()
            .enumerate()
        {
            for (word, number) in words[5 + which * RANK..].iter_mut().zip(list) {
                *word = *number as u64;
            }
        }
        words[WORDS - 1] = number;
        words
    }

    pub(crate) fn groups(&self, chunk: i64) -> Result<u32> {
        if self.sizes.len() > RANK {
            return unsupported(format!("more than {RANK} dimensions"));
        }
        groups(self.sizes.iter().product(), chunk)
    }
}

pub(crate) fn chunk(device: &Device) -> i64 {
    if device.is_serial() {
        2048
    } else {
        2 * i64::from(device.group())
    }
}

/// The kernel for elements of these types.
fn kernel(
    device: &Device,
    kind: Kind,
    from_end: bool,
    class: Class,
    [from, index, to]: [DType; 3],
) -> Result<Arc<Kernel>> {
    let index = match index {
        DType::I64 => "i64",
        DType::I32 => "i32",
        other => return unsupported(format!("indices of {other}")),
    };
    let mut definitions = Definitions::default();
    definitions
        .set("FROM_END", i32::from(from_end))
        .set("KIND", kind as i32)
        .set("A", element(from))
        .set("I", index);
    definitions
        .set("OUT", element(to))
        .set("T", class.name())
        .set("CHUNK", chunk(device));
    let takes = Parameters {
        addresses: 4,
        words: WORDS,
    };
    device.kernel(Text::Indexed, definitions, takes)
}

/// The integers whose bits stand for elements that are moved as they are.
pub(crate) fn bits(dtype: DType) -> Result<(DType, Class)> {
    match dtype.size() {
        Some(1) => Ok((DType::U8, Class::I32)),
        Some(2) => Ok((DType::U16, Class::I32)),
        Some(4) => Ok((DType::I32, Class::I32)),
        Some(8) => Ok((DType::I64, Class::I64)),
        _ => unsupported(format!("elements of type {dtype}")),
    }
}

/// The dimension that a number names.
pub(crate) fn dimension(number: i64, rank: usize) -> Option<usize> {
    let least = rank.max(1) as i64;
    let at = if number < 0 { number + least } else { number };
    usize::try_from(at).ok().filter(|at| (*at as i64) < least)
}

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    match name.to_bytes() {
        b"gather" | b"index_select" => by_scalar(device, name, call),
        b"embedding" => embedding(device, call),
        b"embedding_dense_backward" => embedding_backward(device, call),
        _ => scattered(device, name, call),
    }
}

/// Gathering along a dimension that is a scalar.
fn by_scalar(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    let selects = name == c"index_select";
    if call.inputs.len() != 2 || call.outputs.len() != 1 {
        return invalid("inputs (a, indices) and 1 output are expected");
    }
    let (input, indices, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
    if input.dtype() != out.dtype()
        || selects && indices.rank() > 1
        || !selects && indices.sizes() != out.sizes()
    {
        return unsupported("element types or sizes that do not go together");
    }
    if input.rank() != out.rank() {
        return invalid("input and output have the same rank");
    }
    let (moved, class) = bits(input.dtype())?;
    let kernel = kernel(
        device,
        Kind::Gather,
        false,
        class,
        [moved, indices.dtype(), moved],
    )?;
    let places = Places {
        sizes: out.sizes().to_vec(),
        to: out.strides().to_vec(),
        ..Places::default()
    };
    let launched = places.groups(chunk(device))?;
    let (sizes, strides) = (input.sizes().to_vec(), input.strides().to_vec());
    let (of_index, index_strides) = (indices.numel(), indices.strides().to_vec());
    let checks = Checks::new(device.host_visible);
    Ok(Prepared::with_workspace(WRONG, move |launch| {
        let Some(along) = dimension(launch.scalar(0, 0.0).to_i64(), sizes.len()) else {
            return Err(outrigger_device::Code::INVALID_ARGUMENT.0);
        };
        let mut places = places.clone();
        places.from = strides.clone();
        (places.limit, places.step) = match sizes.get(along) {
            Some(size) => (*size, strides[along]),
            None => (1, 0),
        };
        if let Some(stride) = places.from.get_mut(along) {
            *stride = 0;
        }
        places.index = match selects {
            true => vec![0; sizes.len()],
            false => index_strides.clone(),
        };
        if selects && let Some(stride) = places.index.get_mut(along) {
            if places.sizes[along] != of_index {
                return Err(outrigger_device::Code::INVALID_ARGUMENT.0);
            }
            *stride = index_strides.first().copied().unwrap_or(0);
        }
        let [from, index, to] = [launch.inputs[0], launch.inputs[1], launch.outputs[0]];
        let words = places.words(NONE, 0);
        launch.checked(&checks, |launch, wrong| {
            launch.run(&kernel, launched, &[from, index, to, wrong], &words)
        })
    }))
}

fn embedding(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    if call.inputs.len() != 2 || call.outputs.len() != 1 {
        return invalid("inputs (weight, indices) and 1 output are expected");
    }
    let (weight, indices, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
    let &[limit, length] = weight.sizes() else {
        return invalid("the weight has two dimensions");
    };
    if weight.dtype() != out.dtype() || out.numel() != indices.numel().saturating_mul(length) {
        return invalid("the output has a row of the weight for each index");
    }
    if !indices.is_contiguous() || !out.is_contiguous() {
        return unsupported("indices or an output that are not contiguous");
    }
    let (moved, class) = bits(weight.dtype())?;
    let kernel = kernel(
        device,
        Kind::Gather,
        false,
        class,
        [moved, indices.dtype(), moved],
    )?;
    let places = Places {
        sizes: vec![indices.numel(), length],
        index: vec![1, 0],
        from: vec![0, weight.strides()[1]],
        to: vec![length, 1],
        limit,
        step: weight.strides()[0],
    };
    let (launched, words) = (places.groups(chunk(device))?, places.words(NONE, 0));
    let checks = Checks::new(device.host_visible);
    Ok(Prepared::with_workspace(WRONG, move |launch| {
        let [from, index, to] = [launch.inputs[0], launch.inputs[1], launch.outputs[0]];
        launch.checked(&checks, |launch, wrong| {
            launch.run(&kernel, launched, &[from, index, to, wrong], &words)
        })
    }))
}

fn embedding_backward(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    if call.inputs.len() != 2 || call.outputs.len() != 1 {
        return invalid("inputs (grad, indices) and 1 output are expected");
    }
    let (grad, indices, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
    let &[limit, length] = out.sizes() else {
        return invalid("the output has two dimensions");
    };
    if grad.dtype() != out.dtype() || grad.numel() != indices.numel().saturating_mul(length) {
        return invalid("the gradient has a row of the output for each index");
    }
    if !grad.is_contiguous() || !indices.is_contiguous() || !out.is_contiguous() {
        return unsupported("operands that are not contiguous");
    }
    if !device.class(out.dtype())?.is_float() {
        return unsupported("the gradient of integers");
    }
    if out.numel() == 0 {
        return Ok(Prepared::nothing());
    }
    let sums = Sums::new(device, None, out)?;
    let class = device.class(sums.dtype)?;
    let kernel = kernel(
        device,
        Kind::Add,
        false,
        class,
        [grad.dtype(), indices.dtype(), sums.dtype],
    )?;
    let places = Places {
        sizes: vec![indices.numel(), length],
        index: vec![1, 0],
        from: vec![length, 1],
        to: vec![0, 1],
        limit,
        step: length,
    };
    let (launched, checks) = (
        places.groups(chunk(device))?,
        Checks::new(device.host_visible),
    );
    Ok(Prepared::with_workspace(
        WRONG + sums.workspace_bytes(),
        move |launch| {
            let padding = launch.scalar(0, -1.0).to_i64();
            let words = places.words(padding, class.word(Scalar::I64(1)));
            let out = launch.outputs[0];
            let place = sums.begin(launch, 0, out, launch.workspace + WRONG)?;
            let [grad, index] = [launch.inputs[0], launch.inputs[1]];
            launch.checked(&checks, |launch, wrong| {
                launch.run(&kernel, launched, &[grad, index, place, wrong], &words)?;
                sums.finish(launch, place, out)
            })
        },
    ))
}

/// Operators that copy their input, and then change what an index leads to.
fn scattered(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    let (Some(at_input), Some(at_index)) = (call.place(0), call.place(2)) else {
        return invalid("input or index is missing");
    };
    let (input, index, out) = (
        call.input(at_input)?,
        call.input(at_index)?,
        call.output(0)?,
    );
    let Some(along) = dimension(call.integer(1)?, input.rank()) else {
        return invalid("there is no such dimension");
    };
    if input.sizes() != out.sizes() || input.dtype() != out.dtype() {
        return invalid("input and output have the same sizes and the same element type");
    }
    let kind = match name.to_bytes() {
        b"scatter" | b"index_copy" => Kind::Put,
        b"scatter_add" | b"index_add" => Kind::Add,
        _ => Kind::Number,
    };
    // Either an index for each element, or one for each slice.
    let slices = name.to_bytes().starts_with(b"index");
    let at_source = if kind == Kind::Number {
        None
    } else {
        call.place(3)
    };
    let source = at_source.map(|at| call.input(at)).transpose()?;
    if (kind != Kind::Number) != source.is_some()
        || source.is_some_and(|one| one.dtype() != out.dtype())
    {
        return invalid("the source is missing, or of another element type");
    }
    if out.rank() == 0 || slices && index.rank() > 1 || !slices && index.rank() != out.rank() {
        return unsupported("an index of another rank");
    }
    let sizes = match slices {
        true => {
            let mut sizes = out.sizes().to_vec();
            sizes[along] = index.numel();
            sizes
        }
        false => index.sizes().to_vec(),
    };
    let most = |at: usize| {
        if at == along {
            i64::MAX
        } else {
            out.sizes()[at]
        }
    };
    if (0..sizes.len()).any(|at| sizes[at] > most(at)) {
        return invalid("the index is larger than the input");
    }
    if let Some(source) = source {
        let fits = source.rank() == sizes.len()
            && source
                .sizes()
                .iter()
                .zip(&sizes)
                .all(|(one, index)| index <= one);
        if !fits || slices && source.sizes() != sizes {
            return invalid("the source is smaller than the index");
        }
    }
    let sums = match kind {
        Kind::Add => Some(Sums::new(device, Some(input), out)?),
        _ => None,
    };
    let first = match kind {
        Kind::Add => None,
        _ => Some(copy_pass(device, input, out)?),
    };
    let mut index_strides = vec![0; sizes.len()];
    match slices {
        true => index_strides[along] = index.strides().first().copied().unwrap_or(0),
        false => index_strides.copy_from_slice(index.strides()),
    }
    let strides = match &sums {
        Some(sums) => &sums.strides,
        None => out.strides(),
    };
    let (mut to, step) = (strides.to_vec(), strides[along]);
    to[along] = 0;
    let places = Places {
        sizes,
        index: index_strides,
        from: source.map_or_else(Vec::new, |source| source.strides().to_vec()),
        to,
        limit: out.sizes()[along],
        step,
    };
    let (moved, class) = match kind {
        Kind::Put => bits(out.dtype())?,
        _ => {
            let computed = sums.as_ref().map_or(out.dtype(), |sums| sums.dtype);
            (out.dtype(), device.class(computed)?)
        }
    };
    let target = sums.as_ref().map_or(moved, |sums| sums.dtype);
    let kernel = kernel(
        device,
        kind,
        name == c"index_fill",
        class,
        [moved, index.dtype(), target],
    )?;
    let launched = places.groups(chunk(device))?;
    let number = match (kind, name == c"index_add") {
        (Kind::Number, _) => call.number(3),
        (_, true) => call.number(4),
        _ => None,
    };
    let checks = Checks::new(device.host_visible);
    let workspace = WRONG + sums.as_ref().map_or(0, Sums::workspace_bytes);
    Ok(Prepared::with_workspace(workspace, move |launch| {
        let (from, out) = (launch.inputs[at_input], launch.outputs[0]);
        let mut place = out;
        // In place there is nothing to copy.
        if let Some(first) = first.as_ref().filter(|_| from != out) {
            first.run(launch, &[from, out], [Scalar::I64(0); 4])?;
        }
        if let Some(sums) = &sums {
            place = sums.begin(launch, from, out, launch.workspace + WRONG)?;
        }
        let factor = number.map_or(Scalar::I64(1), |at| launch.scalar(at, 1.0));
        let source = at_source.map_or(out, |at| launch.inputs[at]);
        let words = places.words(NONE, class.word(factor));
        let index = launch.inputs[at_index];
        launch.checked(&checks, |launch, wrong| {
            launch.run(&kernel, launched, &[source, index, place, wrong], &words)?;
            match &sums {
                Some(sums) => sums.finish(launch, place, out),
                None => Ok(()),
            }
        })
    }))
}
