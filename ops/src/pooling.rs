//! Pooling over windows of any number of spatial dimensions, and its gradients.
//!
//! Windows that slide and those of adaptive pooling differ only in where they begin and end.

use std::marker::PhantomData;

use outrigger_device::{Code, DType};

use crate::call::{Call, Tensor};
use crate::error::{Result, invalid};
use crate::plain::{self, Plain, Run, SPATIAL, View, each, same_floats, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"max_pool2d",
        plan: plain::plan::<Max<MaxWindows<2>>>,
    },
    Definition {
        name: c"max_pool2d_backward",
        plan: plain::plan::<MaxBackward<MaxWindows<2>>>,
    },
    Definition {
        name: c"max_pool3d",
        plan: plain::plan::<Max<MaxWindows<3>>>,
    },
    Definition {
        name: c"max_pool3d_backward",
        plan: plain::plan::<MaxBackward<MaxWindows<3>>>,
    },
    Definition {
        name: c"avg_pool2d",
        plan: plain::plan::<Average<AverageWindows<2>>>,
    },
    Definition {
        name: c"avg_pool2d_backward",
        plan: plain::plan::<AverageBackward<AverageWindows<2>>>,
    },
    Definition {
        name: c"avg_pool3d",
        plan: plain::plan::<Average<AverageWindows<3>>>,
    },
    Definition {
        name: c"avg_pool3d_backward",
        plan: plain::plan::<AverageBackward<AverageWindows<3>>>,
    },
    Definition {
        name: c"adaptive_avg_pool2d",
        plan: plain::plan::<Average<AdaptiveWindows<2>>>,
    },
    Definition {
        name: c"adaptive_avg_pool2d_backward",
        plan: plain::plan::<AverageBackward<AdaptiveWindows<2>>>,
    },
    Definition {
        name: c"adaptive_max_pool2d",
        plan: plain::plan::<Max<AdaptiveWindows<2>>>,
    },
    Definition {
        name: c"adaptive_max_pool2d_backward",
        plan: plain::plan::<MaxBackward<AdaptiveWindows<2>>>,
    },
];

/// The window along one dimension.
#[derive(Clone, Copy)]
enum Kind {
    Sliding {
        kernel: i64,
        stride: i64,
        padding: i64,
        dilation: i64,
    },
    Adaptive,
}

/// By what the sum of a window is divided.
#[derive(Clone, Copy)]
enum Divisor {
    /// The elements of the window, with those of the padding.
    Padded,
    /// The elements of the window that are in the input.
    Inside,
    Given(i64),
}

/// One spatial dimension.
#[derive(Clone, Copy)]
struct Dimension {
    kind: Kind,
    input: i64,
    out: i64,
}

/// The elements of a window along one dimension: `count` of them from `first` on, each `step`th.
struct Window {
    first: i64,
    count: i64,
    step: i64,
    /// The elements with those of the padding.
    padded: i64,
}

impl Dimension {
    /// A dimension of windows that slide, of which at least one fits.
    fn sliding(input: i64, ceil: bool, list: [i64; 4]) -> Result<Self> {
        let [kernel, stride, padding, dilation] = list;
        let reach = dilation * (kernel - 1) + 1;
        if padding > kernel / 2 {
            return invalid(format!(
                "padding {padding} of a kernel of {kernel}: at most half of it is expected"
            ));
        }
        let rounding = if ceil { stride - 1 } else { 0 };
        let mut out = (input + 2 * padding - reach + rounding).div_euclid(stride) + 1;
        // The last window begins in the input or in the padding in front of it.
        if ceil && (out - 1) * stride >= input + padding {
            out -= 1;
        }
        if out < 1 {
            return invalid(format!(
                "a window reaches over {reach} elements of {input}, with padding {padding}"
            ));
        }
        let kind = Kind::Sliding {
            kernel,
            stride,
            padding,
            dilation,
        };
        Ok(Self { kind, input, out })
    }

    fn window(&self, at: i64) -> Window {
        match self.kind {
            Kind::Sliding {
                kernel,
                stride,
                padding,
                dilation,
            } => {
                let start = at * stride - padding;
                let skipped = (-start).max(0) as u64;
                let skipped = skipped.div_ceil(dilation as u64) as i64;
                let first = start + skipped * dilation;
                let inside = (self.input - first).max(0) as u64;
                let inside = inside.div_ceil(dilation as u64) as i64;
                Window {
                    first,
                    count: inside.min(kernel - skipped).max(0),
                    step: dilation,
                    padded: (start + kernel).min(self.input + padding) - start,
                }
            }
            Kind::Adaptive => {
                let (input, out) = (i128::from(self.input), i128::from(self.out));
                let first = (i128::from(at) * input / out) as i64;
                let end = ((i128::from(at) + 1) * input + out - 1) / out;
                let count = end as i64 - first;
                Window {
                    first,
                    count,
                    step: 1,
                    padded: count,
                }
            }
        }
    }
}

/// The relation between the elements of a plane, which are those of one channel, and windows.
struct Pooling {
    spatial: usize,
    dims: [Dimension; SPATIAL],
    divisor: Divisor,
}

impl Pooling {
    fn new(
        spatial: usize,
        divisor: Divisor,
        dim: impl Fn(usize) -> Result<Dimension>,
    ) -> Result<Self> {
        let none = Dimension {
            kind: Kind::Adaptive,
            input: 1,
            out: 1,
        };
        let mut dims = [none; SPATIAL];
        for (at, one) in dims.iter_mut().take(spatial).enumerate() {
            *one = dim(at)?;
        }
        Ok(Self {
            spatial,
            dims,
            divisor,
        })
    }

    /// The sizes of what is made of an input.
    fn out_sizes(&self, input: &[i64]) -> Vec<i64> {
        let first = input.len() - self.spatial;
        let spatial = self.dims[..self.spatial].iter().map(|dim| dim.out);
        input[..first].iter().copied().chain(spatial).collect()
    }

    /// Calls `with` for each window: its place in the output, and the window in each dimension.
    fn windows(&self, mut with: impl FnMut(&[i64], &[Window])) {
        let out = self.dims.map(|dim| dim.out);
        each(&out[..self.spatial], |place| {
            let windows: [Window; SPATIAL] = std::array::from_fn(|at| {
                let index = place.get(at).copied().unwrap_or(0);
                self.dims[at].window(index)
            });
            with(place, &windows[..self.spatial]);
        });
    }

    /// By what the sum of a window is divided.
    fn divisor(&self, windows: &[Window]) -> f64 {
        // As floating-point numbers, because the product of paddings may be large.
        match self.divisor {
            Divisor::Padded => windows.iter().map(|one| one.padded as f64).product(),
            Divisor::Inside => windows.iter().map(|one| one.count as f64).product(),
            Divisor::Given(divisor) => divisor as f64,
        }
    }

    /// The number of an element in its plane.
    fn number(&self, place: &[i64]) -> i64 {
        let dims = place.iter().zip(&self.dims);
        dims.fold(0, |number, (index, dim)| number * dim.input + index)
    }
}

/// Calls `with` for each element of a window: its place in the plane.
fn elements(windows: &[Window], mut with: impl FnMut(&[i64])) {
    let mut counts = [0; SPATIAL];
    for (count, window) in counts.iter_mut().zip(windows) {
        *count = window.count;
    }
    let mut place = [0; SPATIAL];
    each(&counts[..windows.len()], |steps| {
        for ((index, step), window) in place.iter_mut().zip(steps).zip(windows) {
            *index = window.first + step * window.step;
        }
        with(&place[..windows.len()]);
    });
}

/// The numbers of a list for each spatial dimension; one stands for all, and `default` for none.
fn list(
    given: &[i64],
    what: &str,
    spatial: usize,
    least: i64,
    default: Option<[i64; SPATIAL]>,
) -> Result<[i64; SPATIAL]> {
    let mut all = default.unwrap_or_default();
    match given.len() {
        0 if default.is_some() => {}
        1 => all.fill(given[0]),
        count if count == spatial => all[..spatial].copy_from_slice(given),
        _ => {
            return invalid(format!(
                "{what} {given:?}: 1 or {spatial} numbers are expected"
            ));
        }
    }
    let most = i64::from(i32::MAX);
    if given.iter().any(|one| !(least..=most).contains(one)) {
        return invalid(format!(
            "{what} {given:?}: numbers from {least} to {most} are expected"
        ));
    }
    Ok(all)
}

/// The spatial sizes of the input, which may be without a batch.
fn spatial_sizes<'a>(input: &Tensor<'a>, spatial: usize) -> Result<&'a [i64]> {
    let (sizes, rank) = (input.sizes(), input.rank());
    if rank != spatial + 1 && rank != spatial + 2 {
        return invalid(format!(
            "an input of {sizes:?}: channels and {spatial} spatial dimensions, and a batch or none, are expected"
        ));
    }
    // Only the batch may be empty.
    if sizes[rank - spatial - 1..].contains(&0) {
        return invalid(format!("an input of {sizes:?}: only a batch may be empty"));
    }
    Ok(&sizes[rank - spatial..])
}

/// The windows of an operator. The input is the argument `input`, 1 in a backward and 0 else, and the lists follow it.
trait Windows {
    fn of(call: &Call<'_>, input: usize) -> Result<Pooling>;
}

struct MaxWindows<const N: usize>;

impl<const N: usize> Windows for MaxWindows<N> {
    fn of(call: &Call<'_>, input: usize) -> Result<Pooling> {
        let sizes = spatial_sizes(call.needed(input)?, N)?;
        let numbers = |at: usize| call.ints(input + at);
        let kernel = list(numbers(1), "kernel size", N, 1, None)?;
        let stride = list(numbers(2), "stride", N, 1, Some(kernel))?;
        let padding = list(numbers(3), "padding", N, 0, None)?;
        let dilation = list(numbers(4), "dilation", N, 1, None)?;
        let ceil = call.truth(input + 5);
        Pooling::new(N, Divisor::Inside, |at| {
            let list = [kernel[at], stride[at], padding[at], dilation[at]];
            Dimension::sliding(sizes[at], ceil, list)
        })
    }
}

struct AverageWindows<const N: usize>;

impl<const N: usize> Windows for AverageWindows<N> {
    fn of(call: &Call<'_>, input: usize) -> Result<Pooling> {
        let sizes = spatial_sizes(call.needed(input)?, N)?;
        let numbers = |at: usize| call.ints(input + at);
        let kernel = list(numbers(1), "kernel size", N, 1, None)?;
        let stride = list(numbers(2), "stride", N, 1, Some(kernel))?;
        let padding = list(numbers(3), "padding", N, 0, None)?;
        let ceil = call.truth(input + 4);
        let divisor = match call.int(input + 6) {
            Some(0) => return invalid("the divisor is 0, any other number is expected"),
            Some(divisor) => Divisor::Given(divisor),
            None if call.truth(input + 5) => Divisor::Padded,
            None => Divisor::Inside,
        };
        Pooling::new(N, divisor, |at| {
            Dimension::sliding(sizes[at], ceil, [kernel[at], stride[at], padding[at], 1])
        })
    }
}

struct AdaptiveWindows<const N: usize>;

impl<const N: usize> Windows for AdaptiveWindows<N> {
    fn of(call: &Call<'_>, input: usize) -> Result<Pooling> {
        let sizes = spatial_sizes(call.needed(input)?, N)?;
        // A backward has no list: the gradient has the sizes.
        let given = match input {
            0 => call.ints(1),
            _ => {
                let grad = call.needed(0)?.sizes();
                &grad[grad.len().saturating_sub(N)..]
            }
        };
        let out = list(given, "output size", N, 0, None)?;
        Pooling::new(N, Divisor::Inside, |at| {
            Ok(Dimension {
                kind: Kind::Adaptive,
                input: sizes[at],
                out: out[at],
            })
        })
    }
}

/// Checks a tensor of indices.
fn indices_of(indices: &Tensor<'_>, right: &[i64]) -> Result<()> {
    same_sizes("the indices", indices.sizes(), right)?;
    match indices.dtype() {
        DType::I64 => Ok(()),
        other => invalid(format!("indices of {other}: i64 is expected")),
    }
}

/// Checks the output of a forward; returns its sizes, and a number of steps.
fn forward<W: Windows>(call: &Call<'_>) -> Result<(Vec<i64>, i64)> {
    let (input, out) = (call.needed(0)?, call.result(0)?);
    same_floats(&[input, out])?;
    let right = W::of(call, 0)?.out_sizes(input.sizes());
    same_sizes("the output", out.sizes(), &right)?;
    Ok((right, out.numel().saturating_add(input.numel())))
}

/// The same of a backward.
fn backward<W: Windows>(call: &Call<'_>) -> Result<(Vec<i64>, i64)> {
    let (grad, input, out) = (call.needed(0)?, call.needed(1)?, call.result(0)?);
    same_floats(&[grad, input, out])?;
    let right = W::of(call, 1)?.out_sizes(input.sizes());
    same_sizes("the gradient of the output", grad.sizes(), &right)?;
    same_sizes("the gradient of the input", out.sizes(), input.sizes())?;
    Ok((right, grad.numel().saturating_add(input.numel())))
}

/// The number of planes.
fn planes(view: &View<'_>, spatial: usize) -> i64 {
    view.sizes[..view.rank() - spatial].iter().product()
}

/// Writes for each plane of a gradient what `fill` adds up in it, in row-major order.
fn write_sums(to: &View<'_>, spatial: usize, mut fill: impl FnMut(i64, &mut [f64])) {
    let lead = to.rank() - spatial;
    let mut sums = vec![0.0; to.sizes[lead..].iter().product::<i64>() as usize];
    for plane in 0..planes(to, spatial) {
        sums.fill(0.0);
        fill(plane, &mut sums);
        let start = to.nth_start(lead, plane);
        let mut next = sums.iter();
        each(&to.sizes[lead..], |place| {
            to.set(
                start + to.at_end(lead, place),
                next.next().copied().unwrap_or(0.0),
            );
        });
    }
}

struct Max<W>(PhantomData<W>);

impl<W: Windows> Plain for Max<W> {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (right, steps) = forward::<W>(call)?;
        indices_of(call.result(1)?, &right)?;
        Ok(steps)
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let input = run.tensor(0).ok_or(Code::INTERNAL)?;
        let (out, indices) = (run.output(0), run.output(1));
        let pooling = W::of(run.call, 0).map_err(|_| Code::INTERNAL)?;
        let lead = input.rank() - pooling.spatial;
        for plane in 0..planes(&input, pooling.spatial) {
            let [from, to, to_index] =
                [&input, &out, &indices].map(|view| view.nth_start(lead, plane));
            pooling.windows(|place, windows| {
                let mut best: Option<(f64, i64)> = None;
                elements(windows, |element| {
                    let value = input.get(from + input.at_end(lead, element));
                    if best.is_none_or(|(most, _)| value > most || value.is_nan()) {
                        best = Some((value, pooling.number(element)));
                    }
                });
                // Dilation and padding can leave a window without an element.
                let (value, number) = best.unwrap_or((f64::NEG_INFINITY, 0));
                out.set(to + out.at_end(lead, place), value);
                indices.set_int(to_index + indices.at_end(lead, place), number);
            });
        }
        Ok(())
    }
}

struct MaxBackward<W>(PhantomData<W>);

/// The tensor of indices, which is the last argument.
fn indices_at(call: &Call<'_>) -> usize {
    call.args.len() - 1
}

impl<W: Windows> Plain for MaxBackward<W> {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (right, steps) = backward::<W>(call)?;
        indices_of(call.needed(indices_at(call))?, &right)?;
        Ok(steps)
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(grad), Some(indices)) = (run.tensor(0), run.tensor(indices_at(run.call))) else {
            return Err(Code::INTERNAL);
        };
        let pooling = W::of(run.call, 1).map_err(|_| Code::INTERNAL)?;
        let lead = grad.rank() - pooling.spatial;
        let elements: i64 = pooling.dims.iter().map(|dim| dim.input).product();
        let number = |place| indices.get_int(indices.nth(place));
        let mut all = (0..indices.numel()).map(number);
        if let Some(wrong) = all.find(|number| !(0..elements).contains(number)) {
            return Err(run.out_of_elements(wrong, elements));
        }
        write_sums(&run.output(0), pooling.spatial, |plane, sums| {
            let (from, at) = (grad.nth_start(lead, plane), indices.nth_start(lead, plane));
            each(&grad.sizes[lead..], |place| {
                let number = indices.get_int(at + indices.at_end(lead, place));
                sums[number as usize] += grad.get(from + grad.at_end(lead, place));
            });
        });
        Ok(())
    }
}

struct Average<W>(PhantomData<W>);

impl<W: Windows> Plain for Average<W> {
    fn check(call: &Call<'_>) -> Result<i64> {
        forward::<W>(call).map(|(_, steps)| steps)
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (input, out) = (run.tensor(0).ok_or(Code::INTERNAL)?, run.output(0));
        let pooling = W::of(run.call, 0).map_err(|_| Code::INTERNAL)?;
        let lead = input.rank() - pooling.spatial;
        for plane in 0..planes(&input, pooling.spatial) {
            let (from, to) = (input.nth_start(lead, plane), out.nth_start(lead, plane));
            pooling.windows(|place, windows| {
                let mut sum = 0.0;
                let mut empty = true;
                elements(windows, |element| {
                    sum += input.get(from + input.at_end(lead, element));
                    empty = false;
                });
                let mean = if empty {
                    0.0
                } else {
                    sum / pooling.divisor(windows)
                };
                out.set(to + out.at_end(lead, place), mean);
            });
        }
        Ok(())
    }
}

struct AverageBackward<W>(PhantomData<W>);

impl<W: Windows> Plain for AverageBackward<W> {
    fn check(call: &Call<'_>) -> Result<i64> {
        backward::<W>(call).map(|(_, steps)| steps)
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let grad = run.tensor(0).ok_or(Code::INTERNAL)?;
        let pooling = W::of(run.call, 1).map_err(|_| Code::INTERNAL)?;
        let lead = grad.rank() - pooling.spatial;
        write_sums(&run.output(0), pooling.spatial, |plane, sums| {
            let from = grad.nth_start(lead, plane);
            pooling.windows(|place, windows| {
                let part = grad.get(from + grad.at_end(lead, place)) / pooling.divisor(windows);
                elements(windows, |element| {
                    sums[pooling.number(element) as usize] += part
                });
            });
        });
        Ok(())
    }
}
