//! Attention over heads, and its gradients.

use std::ffi::CStr;
use std::sync::Arc;

use outrigger_device::DType;
use outrigger_ops::{Call, Tensor};

use crate::call::{Asked, Result, invalid, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::{Kernel, Parameters};
use crate::layout::groups;
use crate::source::{Definitions, Text};
use crate::work::{Launch, Prepared};

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    [c"attention", c"attention_backward"].into_iter()
}

/// Words in front of seed and offset.
const FRONT: usize = 6 + 6 * 4 + 3 + 3 * 4;
const WORDS: usize = FRONT + 4;

/// Elements of a query, key or value that a group keeps; larger ones are left to others.
const WIDEST: i64 = 512;

/// The parts that forward and backward share: operands, sizes, and the places of their numbers.
struct Setting<'a> {
    places: [usize; 3],
    at_mask: Option<usize>,
    mask: Option<&'a Tensor<'a>>,
    mask_strides: [i64; 4],
    sizes: [i64; 5],
    widths: [i64; 2],
    causal: bool,
    /// Scalars: scale, dropout, seed, offset.
    numbers: [usize; 4],
    dtype: DType,
    class: Class,
}

impl<'a> Setting<'a> {
    /// Of a call whose query is the argument `first`, and whose settings begin with the argument `settings`.
    fn new(device: &Device, call: &Call<'a>, first: usize, settings: usize) -> Result<Self> {
        let places = [
            call.place(first),
            call.place(first + 1),
            call.place(first + 2),
        ];
        let [Some(q), Some(k), Some(v)] = places else {
            return invalid("query, key or value is missing");
        };
        let (query, key, value) = (call.input(q)?, call.input(k)?, call.input(v)?);
        let (&[n, h, l, d], &[kn, g, s, kd], &[vn, vg, vs, e]) =
            (query.sizes(), key.sizes(), value.sizes())
        else {
            return invalid("query, key and value have four dimensions");
        };
        if [kn, kd, vn, vg, vs] != [n, d, n, g, s] || g == 0 && h != 0 || g != 0 && h % g != 0 {
            return invalid("the sizes of query, key and value do not go together");
        }
        let dtype = query.dtype();
        let class = device.class(dtype)?;
        if !class.is_float() || [key, value].iter().any(|one| one.dtype() != dtype) {
            return unsupported(
                "operands that are not floating-point, or of several element types",
            );
        }
        if !(1..=WIDEST).contains(&d) || !(1..=WIDEST).contains(&e) {
            return unsupported(format!(
                "queries and values of more than {WIDEST} elements, or none"
            ));
        }
        let at_mask = call.place(first + 3);
        let mask = at_mask.map(|at| call.input(at)).transpose()?;
        let mut mask_strides = [0; 4];
        if let Some(mask) = mask {
            let right = [n, h, l, s];
            let Some(lead) = 4_usize.checked_sub(mask.rank()) else {
                return invalid("the mask has more than four dimensions");
            };
            for (at, (&size, &stride)) in mask.sizes().iter().zip(mask.strides()).enumerate() {
                if size != 1 && size != right[lead + at] {
                    return invalid(format!(
                        "a mask of sizes {:?} is not broadcast to {right:?}",
                        mask.sizes()
                    ));
                }
                mask_strides[lead + at] = if size == 1 { 0 } else { stride };
            }
            if mask.dtype() != DType::BOOL && !device.class(mask.dtype())?.is_float() {
                return unsupported("a mask of integers");
            }
        }
        let number = |at: usize| match call.number(settings + at) {
            Some(place) => Ok(place),
            None => invalid("scale, dropout, seed or offset is missing"),
        };
        Ok(Self {
            places: [q, k, v],
            at_mask,
            mask,
            mask_strides,
            sizes: [n, h, g, l, s],
            widths: [d, e],
            causal: call.truth(settings)?,
            numbers: [number(1)?, number(2)?, number(3)?, number(4)?],
            dtype,
            class,
        })
    }

    fn definitions(&self, device: &Device, kind: i32, statistic: DType) -> Definitions {
        let mut definitions = Definitions::default();
        definitions
            .set("KIND", kind)
            .set("A", element(self.dtype))
            .set("STAT", element(statistic));
        let mask = match self.mask {
            None => 0,
            Some(mask) if mask.dtype() == DType::BOOL => 1,
            Some(_) => 2,
        };
        definitions
            .set("MASK", mask)
            .set("M", self.mask.map_or("f32", |mask| element(mask.dtype())));
        definitions
            .set("D", self.widths[0])
            .set("E", self.widths[1]);
        definitions.set("BLOCK", device.group().max(32));
        definitions
            .set("T", self.class.name())
            .set("SUM", device.sums().name());
        definitions
    }

    /// The words in front of seed and offset, for strides of query, key, value, output, gradient; of logsumexp; and of the
    /// gradients of query, key and value.
    fn words(&self, operands: [[i64; 4]; 5], sums: [i64; 3], results: [[i64; 4]; 3]) -> Vec<u64> {
        let mut words = self.sizes.to_vec();
        words.push(i64::from(self.causal));
        words.extend(operands.as_flattened());
        words.extend(self.mask_strides);
        words.extend(sums);
        words.extend(results.as_flattened());
        words.into_iter().map(|word| word as u64).collect()
    }

    /// A function that completes the words at a launch.
    fn finisher(
        &self,
        front: Vec<u64>,
    ) -> impl Fn(&Launch<'_>) -> [u64; WORDS] + Send + Sync + use<> {
        let ([scale, dropout, seed, offset], class) = (self.numbers, self.class);
        move |launch| {
            let mut words = [0; WORDS];
            words[..FRONT].copy_from_slice(&front);
            words[FRONT] = launch.scalar(seed, 0.0).to_i64() as u64;
            words[FRONT + 1] = launch.scalar(offset, 0.0).to_i64() as u64;
            words[FRONT + 2] = class.word(launch.scalar(scale, 1.0));
            words[FRONT + 3] = class.word(launch.scalar(dropout, 0.0));
            words
        }
    }

    fn kernel(
        &self,
        device: &Device,
        definitions: Definitions,
        addresses: usize,
    ) -> Result<Arc<Kernel>> {
        let words = WORDS;
        device.kernel(
            Text::Attention,
            definitions,
            Parameters { addresses, words },
        )
    }
}

/// The strides of an operand of four dimensions.
fn four(tensor: &Tensor<'_>, sizes: [i64; 4]) -> Result<[i64; 4]> {
    if tensor.sizes() != sizes {
        return invalid(format!(
            "sizes {:?}, {sizes:?} are expected",
            tensor.sizes()
        ));
    }
    let strides = tensor.strides();
    Ok([strides[0], strides[1], strides[2], strides[3]])
}

fn three(tensor: &Tensor<'_>, sizes: [i64; 3]) -> Result<[i64; 3]> {
    if tensor.sizes() != sizes {
        return invalid(format!(
            "sizes {:?}, {sizes:?} are expected",
            tensor.sizes()
        ));
    }
    let strides = tensor.strides();
    Ok([strides[0], strides[1], strides[2]])
}

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    match name == c"attention" {
        true => forward(device, call),
        false => backward(device, call),
    }
}

fn forward(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    let setting = Setting::new(device, call, 0, 4)?;
    let ([n, h, g, l, s], [d, e]) = (setting.sizes, setting.widths);
    let [q, k, v] = setting.places;
    let (out, sums) = (call.output(0)?, call.output(1)?);
    if out.dtype() != setting.dtype || !device.class(sums.dtype())?.is_float() {
        return unsupported("an output of another element type");
    }
    let operands = [
        four(call.input(q)?, [n, h, l, d])?,
        four(call.input(k)?, [n, g, s, d])?,
        four(call.input(v)?, [n, g, s, e])?,
        four(out, [n, h, l, e])?,
        [0; 4],
    ];
    let front = setting.words(operands, three(sums, [n, h, l])?, [[0; 4]; 3]);
    let launched = groups(n.saturating_mul(h).saturating_mul(l), 1)?;
    let kernel = setting.kernel(device, setting.definitions(device, 0, sums.dtype()), 6)?;
    let (words, at_mask) = (setting.finisher(front), setting.at_mask);
    Ok(Prepared::new(move |launch| {
        let words = words(launch);
        let [q, k, v] = [q, k, v].map(|at| launch.inputs[at]);
        let (out, sums) = (launch.outputs[0], launch.outputs[1]);
        let mask = at_mask.map_or(out, |at| launch.inputs[at]);
        // Without keys there is no address of one.
        let or = |address: u64| if address == 0 { out } else { address };
        launch.run(
            &kernel,
            launched,
            &[q, or(k), or(v), mask, out, sums],
            &words,
        )
    }))
}

/// The launch of a mask's gradient.
struct OfMask {
    kernel: Arc<Kernel>,
    groups: u32,
    /// Sizes of the mask and strides of its gradient, behind the words of all kernels.
    words: [u64; 8],
}

impl OfMask {
    fn new(
        device: &Device,
        setting: &Setting<'_>,
        statistic: DType,
        [mask, out]: [&Tensor<'_>; 2],
    ) -> Result<Self> {
        if mask.sizes() != out.sizes() || !device.class(out.dtype())?.is_float() {
            return invalid(
                "the gradient of a mask has the mask's sizes, and floating-point elements",
            );
        }
        let chunk: i64 = match device.is_serial() {
            true => 64,
            false => i64::from(device.group()),
        };
        let mut definitions = setting.definitions(device, 4, statistic);
        definitions
            .set("OF_MASK", element(out.dtype()))
            .set("CHUNK", chunk);
        let takes = Parameters {
            addresses: 8,
            words: WORDS + 8,
        };
        let (mut words, lead) = ([1; 8], 4 - out.rank());
        for (at, (size, stride)) in out.sizes().iter().zip(out.strides()).enumerate() {
            words[lead + at] = *size as u64;
            words[4 + lead + at] = *stride as u64;
        }
        Ok(Self {
            kernel: device.kernel(Text::Attention, definitions, takes)?,
            groups: groups(out.numel(), chunk)?,
            words,
        })
    }
}

fn backward(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    let setting = Setting::new(device, call, 1, 7)?;
    let ([n, h, g, l, s], [d, e]) = (setting.sizes, setting.widths);
    let [q, k, v] = setting.places;
    let places = [call.place(0), call.place(5), call.place(6)];
    let [Some(at_grad), Some(at_out), Some(at_sums)] = places else {
        return invalid("gradient, output or logsumexp is missing");
    };
    let (grad, out, sums) = (
        call.input(at_grad)?,
        call.input(at_out)?,
        call.input(at_sums)?,
    );
    let wanted = [
        call.maybe_output(0),
        call.maybe_output(1),
        call.maybe_output(2),
    ];
    let others = [Some(grad), Some(out)].into_iter().chain(wanted);
    if others.flatten().any(|one| one.dtype() != setting.dtype)
        || !device.class(sums.dtype())?.is_float()
    {
        return unsupported("operands of several element types");
    }
    let operands = [
        four(call.input(q)?, [n, h, l, d])?,
        four(call.input(k)?, [n, g, s, d])?,
        four(call.input(v)?, [n, g, s, e])?,
        four(out, [n, h, l, e])?,
        four(grad, [n, h, l, e])?,
    ];
    let strides =
        |tensor: Option<&Tensor<'_>>, sizes| tensor.map_or(Ok([0; 4]), |one| four(one, sizes));
    let results = [
        strides(wanted[0], [n, h, l, d])?,
        strides(wanted[1], [n, g, s, d])?,
        strides(wanted[2], [n, g, s, e])?,
    ];
    let front = setting.words(operands, three(sums, [n, h, l])?, results);
    let rows = n.saturating_mul(h).saturating_mul(l);
    let (queries, keys) = (
        groups(rows, 1)?,
        groups(n.saturating_mul(g).saturating_mul(s), 1)?,
    );
    let product = setting.kernel(device, setting.definitions(device, 1, sums.dtype()), 3)?;
    let has = wanted.map(|one| one.is_some());
    let of_query = match has[0] {
        true => Some(setting.kernel(device, setting.definitions(device, 2, sums.dtype()), 8)?),
        false => None,
    };
    let of_keys = match has[1] || has[2] {
        true => {
            let mut definitions = setting.definitions(device, 3, sums.dtype());
            definitions
                .set("OF_KEY", i32::from(has[1]))
                .set("OF_VALUE", i32::from(has[2]));
            Some(setting.kernel(device, definitions, 9)?)
        }
        false => None,
    };
    let of_mask = match (setting.mask, call.maybe_output(3)) {
        (Some(mask), Some(out)) => Some(OfMask::new(device, &setting, sums.dtype(), [mask, out])?),
        (None, Some(_)) => return invalid("the gradient of a mask that is not there"),
        (_, None) => None,
    };
    let (words, at_mask) = (setting.finisher(front), setting.at_mask);
    let bytes = rows.unsigned_abs() * setting.class.bytes();
    Ok(Prepared::with_workspace(bytes, move |launch| {
        let words = words(launch);
        let [q, k, v] = [q, k, v].map(|at| launch.inputs[at]);
        let [grad, out, sums] = [at_grad, at_out, at_sums].map(|at| launch.inputs[at]);
        let workspace = launch.workspace;
        let mask = at_mask.map_or(grad, |at| launch.inputs[at]);
        let outputs = [0, 1, 2].map(|at| launch.outputs[at]);
        launch.run(&product, queries, &[grad, out, workspace], &words)?;
        if let Some(kernel) = &of_query {
            let addresses = [q, k, v, mask, grad, sums, workspace, outputs[0]];
            launch.run(kernel, queries, &addresses, &words)?;
        }
        if let Some(kernel) = &of_keys {
            let or = |address: u64| if address == 0 { workspace } else { address };
            let addresses = [
                q,
                k,
                v,
                mask,
                grad,
                sums,
                workspace,
                or(outputs[1]),
                or(outputs[2]),
            ];
            launch.run(kernel, keys, &addresses, &words)?;
        }
        if let Some(one) = &of_mask {
            let to = launch.outputs[3];
            let addresses = [q, k, v, mask, grad, sums, workspace, to];
            let mut all = [0; WORDS + 8];
            all[..WORDS].copy_from_slice(&words);
            all[WORDS..].copy_from_slice(&one.words);
            launch.run(&one.kernel, one.groups, &addresses, &all)?;
        }
        Ok(())
    }))
}
