//! Convolution of one to three spatial dimensions, and its gradients.
//!
//! Forward and the three gradients are one walk over all products of an output element with an input element and a
//! weight. A transposed convolution is the same walk with input and output in each other's place.

use outrigger_device::{Code, DType};

use crate::call::Call;
use crate::error::{Result, invalid, unsupported};
use crate::plain::{self, Plain, Run, SPATIAL, View, each, same_floats, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"convolution",
        plan: plain::plan::<Forward>,
    },
    Definition {
        name: c"convolution_backward",
        plan: plain::plan::<Backward>,
    },
];

/// The relation between elements of the two sides. The *narrow* side is the output, or the input of a transposed
/// convolution: the wide side's place is `narrow * stride - padding + kernel * dilation`.
struct Geometry {
    spatial: usize,
    stride: [i64; SPATIAL],
    padding: [i64; SPATIAL],
    dilation: [i64; SPATIAL],
    transposed: bool,
    groups: i64,
}

impl Geometry {
    /// The geometry of a call whose arguments from `first` on are stride, padding, dilation, transposed, output padding
    /// and groups. `out` are the sizes of what the forward gives.
    fn new(
        call: &Call<'_>,
        first: usize,
        input: &[i64],
        weight: &[i64],
        out: &[i64],
    ) -> Result<Self> {
        let spatial = input.len().saturating_sub(2);
        if !(1..=SPATIAL).contains(&spatial) {
            return unsupported(format!(
                "an input of {} dimensions: batch, channels and 1 to 3 spatial ones are served",
                input.len()
            ));
        }
        let list = |at: usize, what: &str, least: i64| {
            let given = call.ints(first + at);
            let mut all = [0; SPATIAL];
            match given.len() {
                1 => all[..spatial].fill(given[0]),
                count if count == spatial => all[..spatial].copy_from_slice(given),
                _ => {
                    return invalid(format!(
                        "{what} {given:?}: 1 or {spatial} numbers are expected"
                    ));
                }
            }
            if all[..spatial]
                .iter()
                .any(|&one| one < least || one > 1 << 40)
            {
                return invalid(format!("{what} {given:?}: at least {least} is expected"));
            }
            Ok(all)
        };
        let (transposed, groups) = (call.truth(first + 3), call.int(first + 5).unwrap_or(1));
        let geometry = Self {
            spatial,
            stride: list(0, "stride", 1)?,
            padding: list(1, "padding", 0)?,
            dilation: list(2, "dilation", 1)?,
            transposed,
            groups,
        };
        let added = list(4, "output padding", 0)?;
        if groups < 1 || weight.len() != input.len() {
            return invalid(format!(
                "{groups} groups with input {input:?} and weight {weight:?}"
            ));
        }
        let (read, written) = if transposed {
            (weight[0], weight[1] * groups)
        } else {
            (weight[1] * groups, weight[0])
        };
        if input[1] != read || read % groups != 0 || written % groups != 0 {
            return invalid(format!(
                "an input of {} channels in {groups} groups does not go with weight {weight:?}",
                input[1]
            ));
        }
        let mut right = vec![input[0], written];
        for at in 0..spatial {
            let reach = geometry.dilation[at] * (weight[2 + at] - 1);
            let (stride, padding, size) =
                (geometry.stride[at], geometry.padding[at], input[2 + at]);
            right.push(if transposed {
                (size - 1) * stride - 2 * padding + reach + added[at] + 1
            } else {
                (size + 2 * padding - reach - 1).div_euclid(stride) + 1
            });
        }
        same_sizes("the output", out, &right)?;
        Ok(geometry)
    }

    /// Calls `with` for the places of output, input and weight of all products of one output channel of one sample.
    fn products(
        &self,
        (sample, channel): (i64, i64),
        (out, input, weight): (&View<'_>, &View<'_>, &View<'_>),
        mut with: impl FnMut(i64, i64, i64),
    ) {
        let (narrow, wide) = if self.transposed {
            (input, out)
        } else {
            (out, input)
        };
        let group = channel / (out.size(1) / self.groups).max(1);
        let reads = input.size(1) / self.groups;
        let (kernel, places) = (&weight.sizes[2..], &narrow.sizes[2..]);
        for read in 0..reads {
            let from = group * reads + read;
            let (first, second) = if self.transposed {
                (from, channel % weight.size(1).max(1))
            } else {
                (channel, read)
            };
            let start = |view: &View<'_>, channel| view.at_start(&[sample, channel]);
            let (of_out, of_input) = (start(out, channel), start(input, from));
            let of_weight = weight.at_start(&[first, second]);
            each(kernel, |tap| {
                let at_weight = of_weight + weight.at_end(2, tap);
                each(places, |place| {
                    let mut there = [0; SPATIAL];
                    for at in 0..self.spatial {
                        there[at] = place[at] * self.stride[at] - self.padding[at]
                            + tap[at] * self.dilation[at];
                        if there[at] < 0 || there[at] >= wide.sizes[2 + at] {
                            return;
                        }
                    }
                    let there = &there[..self.spatial];
                    let (near, far) = (narrow.at_end(2, place), wide.at_end(2, there));
                    let (at_out, at_input) = if self.transposed {
                        (far, near)
                    } else {
                        (near, far)
                    };
                    with(of_out + at_out, of_input + at_input, at_weight);
                });
            });
        }
    }
}

/// The places of the elements of a tensor of sums by their place in it.
fn sums_of(view: &View<'_>) -> Sums {
    Sums {
        lowest: view.lowest(),
        sums: vec![0.0; view.span()],
    }
}

/// Sums in f64 for the elements of a view, by place.
struct Sums {
    lowest: i64,
    sums: Vec<f64>,
}

impl Sums {
    fn add(&mut self, place: i64, value: f64) {
        self.sums[(place - self.lowest) as usize] += value;
    }

    fn write(&self, to: &View<'_>) {
        for number in 0..to.numel() {
            let place = to.nth(number);
            to.set(place, self.sums[(place - self.lowest) as usize]);
        }
    }
}

struct Forward;

impl Plain for Forward {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (input, weight, out) = (call.needed(0)?, call.needed(1)?, call.result(0)?);
        same_floats(&[input, weight, out])?;
        Geometry::new(call, 3, input.sizes(), weight.sizes(), out.sizes())?;
        if let Some(bias) = call.tensor(2) {
            same_floats(&[input, bias])?;
            same_sizes("the bias", bias.sizes(), &out.sizes()[1..2])?;
        }
        Ok(out.numel().saturating_mul(weight.numel()))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(input), Some(weight), out) = (run.tensor(0), run.tensor(1), run.output(0)) else {
            return Err(Code::INTERNAL);
        };
        let geometry = Geometry::new(run.call, 3, input.sizes, weight.sizes, out.sizes);
        let geometry = geometry.map_err(|_| Code::INTERNAL)?;
        let mut sums = sums_of(&out);
        for sample in 0..out.size(0) {
            for channel in 0..out.size(1) {
                geometry.products((sample, channel), (&out, &input, &weight), |o, i, w| {
                    sums.add(o, input.get(i) * weight.get(w));
                });
                if let Some(bias) = run.tensor(2) {
                    let value = bias.get(bias.at(&[channel]));
                    let start = out.at_start(&[sample, channel]);
                    each(&out.sizes[2..], |place| {
                        sums.add(start + out.at_end(2, place), value)
                    });
                }
            }
        }
        sums.write(&out);
        Ok(())
    }
}

struct Backward;

impl Plain for Backward {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (grad, input, weight) = (call.needed(0)?, call.needed(1)?, call.needed(2)?);
        same_floats(&[grad, input, weight])?;
        Geometry::new(call, 3, input.sizes(), weight.sizes(), grad.sizes())?;
        let channels = &grad.sizes()[1..2];
        let right = [input.sizes(), weight.sizes(), channels];
        if call.outputs.len() != right.len() {
            return invalid("outputs are the gradients of input, weight and bias");
        }
        for (output, right) in call.outputs.iter().zip(right) {
            if output.dtype() != DType::INVALID {
                same_floats(&[grad, output])?;
                same_sizes("a gradient", output.sizes(), right)?;
            }
        }
        Ok(grad
            .numel()
            .saturating_mul(weight.numel())
            .saturating_mul(2))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(grad), Some(input), Some(weight)) = (run.tensor(0), run.tensor(1), run.tensor(2))
        else {
            return Err(Code::INTERNAL);
        };
        let geometry = Geometry::new(run.call, 3, input.sizes, weight.sizes, grad.sizes);
        let geometry = geometry.map_err(|_| Code::INTERNAL)?;
        // Of an operand's layout: a gradient may have another one.
        let mut of_input = sums_of(&input);
        let mut of_weight = sums_of(&weight);
        let mut of_bias = vec![0.0; grad.size(1) as usize];
        for sample in 0..grad.size(0) {
            for channel in 0..grad.size(1) {
                geometry.products((sample, channel), (&grad, &input, &weight), |o, i, w| {
                    let outer = grad.get(o);
                    of_input.add(i, outer * weight.get(w));
                    of_weight.add(w, outer * input.get(i));
                });
                let start = grad.at_start(&[sample, channel]);
                each(&grad.sizes[2..], |place| {
                    of_bias[channel as usize] += grad.get(start + grad.at_end(2, place));
                });
            }
        }
        for (at, (sums, like)) in [(&of_input, &input), (&of_weight, &weight)]
            .into_iter()
            .enumerate()
        {
            if let Some(to) = run.wanted(at) {
                for number in 0..to.numel() {
                    let sum = sums.sums[(like.nth(number) - sums.lowest) as usize];
                    to.set(to.nth(number), sum);
                }
            }
        }
        if let Some(to) = run.wanted(2) {
            for (channel, sum) in of_bias.into_iter().enumerate() {
                to.set(to.at(&[channel as i64]), sum);
            }
        }
        Ok(())
    }
}
