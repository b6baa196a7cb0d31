//! Resampling of any number of spatial dimensions, and its gradients.
//!
//! Each element of the result is a sum of elements of the input with weights. A weight is the product of one weight of
//! each dimension, and the gradient uses the same ones the other way round.

use std::marker::PhantomData;

use outrigger_device::Code;

use crate::call::{Call, Tensor};
use crate::error::{Result, invalid};
use crate::plain::{self, Plain, Run, SPATIAL, View, each, same_floats, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"upsample_nearest1d",
        plan: plain::plan::<Forward<Nearest, 1>>,
    },
    Definition {
        name: c"upsample_nearest1d_backward",
        plan: plain::plan::<Backward<Nearest, 1>>,
    },
    Definition {
        name: c"upsample_nearest2d",
        plan: plain::plan::<Forward<Nearest, 2>>,
    },
    Definition {
        name: c"upsample_nearest2d_backward",
        plan: plain::plan::<Backward<Nearest, 2>>,
    },
    Definition {
        name: c"upsample_nearest3d",
        plan: plain::plan::<Forward<Nearest, 3>>,
    },
    Definition {
        name: c"upsample_nearest3d_backward",
        plan: plain::plan::<Backward<Nearest, 3>>,
    },
    Definition {
        name: c"upsample_linear1d",
        plan: plain::plan::<Forward<Linear, 1>>,
    },
    Definition {
        name: c"upsample_linear1d_backward",
        plan: plain::plan::<Backward<Linear, 1>>,
    },
    Definition {
        name: c"upsample_bilinear2d",
        plan: plain::plan::<Forward<Linear, 2>>,
    },
    Definition {
        name: c"upsample_bilinear2d_backward",
        plan: plain::plan::<Backward<Linear, 2>>,
    },
    Definition {
        name: c"upsample_trilinear3d",
        plan: plain::plan::<Forward<Linear, 3>>,
    },
    Definition {
        name: c"upsample_trilinear3d_backward",
        plan: plain::plan::<Backward<Linear, 3>>,
    },
    Definition {
        name: c"upsample_bicubic2d",
        plan: plain::plan::<Forward<Cubic, 2>>,
    },
    Definition {
        name: c"upsample_bicubic2d_backward",
        plan: plain::plan::<Backward<Cubic, 2>>,
    },
];

/// The most elements of one dimension that an element of the result is made of.
const MOST: usize = 4;

/// Elements of one dimension, and their weights.
#[derive(Clone, Copy, Default)]
struct Taps {
    count: usize,
    index: [i64; MOST],
    weight: [f64; MOST],
}

/// One dimension.
#[derive(Clone, Copy)]
struct Dimension {
    input: i64,
    out: i64,
    /// The quotient of output and input size, if it was given.
    scale: Option<f64>,
    align_corners: bool,
}

impl Dimension {
    /// The steps in the input that belong to a step in the output.
    fn step(&self) -> f64 {
        match self.scale {
            Some(scale) if scale > 0.0 => 1.0 / scale,
            _ => self.input as f64 / self.out as f64,
        }
    }

    /// The place in the input at which an element of the output lies.
    fn source(&self, at: i64) -> f64 {
        if self.align_corners {
            let steps = (self.out - 1).max(1) as f64;
            return at as f64 * ((self.input - 1) as f64 / steps);
        }
        (at as f64 + 0.5) * self.step() - 0.5
    }

    /// The element in front of a place between two, and how far that lies behind it, from 0 to 1.
    fn split(&self, source: f64) -> (i64, f64) {
        let index = (source.floor() as i64).min(self.input - 1);
        (index, (source - index as f64).clamp(0.0, 1.0))
    }
}

/// The way in which an element of the result is made of elements of the input, along one dimension.
trait Method {
    /// Whether the operator has the argument `align_corners`.
    const ALIGNS: bool;

    fn taps(dim: &Dimension, at: i64) -> Taps;
}

struct Nearest;

impl Method for Nearest {
    const ALIGNS: bool = false;

    fn taps(dim: &Dimension, at: i64) -> Taps {
        let index = if dim.out == dim.input && dim.scale.is_none() {
            at
        } else {
            // In f32 as PyTorch has it, because rounding decides which of two neighbours is the nearest.
            let index = (at as f32 * dim.step() as f32).floor();
            (index as i64).clamp(0, dim.input - 1)
        };
        Taps {
            count: 1,
            index: [index; MOST],
            weight: [1.0; MOST],
        }
    }
}

struct Linear;

impl Method for Linear {
    const ALIGNS: bool = true;

    fn taps(dim: &Dimension, at: i64) -> Taps {
        let source = if dim.out == dim.input {
            at as f64
        } else {
            dim.source(at).max(0.0)
        };
        let (index, part) = dim.split(source);
        let next = (index + 1).min(dim.input - 1);
        Taps {
            count: 2,
            index: [index, next, 0, 0],
            weight: [1.0 - part, part, 0.0, 0.0],
        }
    }
}

struct Cubic;

impl Cubic {
    /// The parameter of the convolution kernel.
    const A: f64 = -0.75;

    /// The weight of an element at a distance of at most 1.
    fn near(x: f64) -> f64 {
        ((Self::A + 2.0) * x - (Self::A + 3.0)) * x * x + 1.0
    }

    /// The weight of an element at a distance from 1 to 2.
    fn far(x: f64) -> f64 {
        ((x - 5.0) * x + 8.0) * x * Self::A - 4.0 * Self::A
    }
}

impl Method for Cubic {
    const ALIGNS: bool = true;

    fn taps(dim: &Dimension, at: i64) -> Taps {
        let (index, part) = dim.split(dim.source(at));
        Taps {
            count: 4,
            index: [-1, 0, 1, 2].map(|step| (index + step).clamp(0, dim.input - 1)),
            weight: [
                Self::far(part + 1.0),
                Self::near(part),
                Self::near(1.0 - part),
                Self::far(2.0 - part),
            ],
        }
    }
}

/// The spatial dimensions of a call.
struct Resampling {
    spatial: usize,
    dims: [Dimension; SPATIAL],
}

impl Resampling {
    /// Of sizes with batch and channels. `next` is the place of the argument behind the lists of sizes.
    fn new<M: Method>(
        call: &Call<'_>,
        spatial: usize,
        input: &[i64],
        out: &[i64],
        next: usize,
    ) -> Result<Self> {
        let given = call.ints(1);
        if given.len() != spatial || given.iter().any(|size| *size < 1) {
            return invalid(format!(
                "an output size of {given:?}: {spatial} numbers of at least 1 are expected"
            ));
        }
        // Only the batch may be empty.
        if input.len() != spatial + 2 || input[1..].contains(&0) {
            return invalid(format!(
                "an input of {input:?}: a batch, channels and {spatial} spatial dimensions are expected, none \
                 but the batch empty"
            ));
        }
        same_sizes("the output", out, &[&input[..2], given].concat())?;
        let none = Dimension {
            input: 1,
            out: 1,
            scale: None,
            align_corners: false,
        };
        let scales = next + usize::from(M::ALIGNS);
        let mut dims = [none; SPATIAL];
        for (at, dim) in dims.iter_mut().take(spatial).enumerate() {
            *dim = Dimension {
                input: input[2 + at],
                out: given[at],
                scale: call.number(scales + at),
                align_corners: M::ALIGNS && call.truth(next),
            };
        }
        Ok(Self { spatial, dims })
    }

    /// Calls `with` for the places of all pairs of elements of output and input within a plane, and their weights.
    fn pairs<M: Method>(&self, mut with: impl FnMut(&[i64], &[i64], f64)) {
        let out = self.dims.map(|dim| dim.out);
        each(&out[..self.spatial], |place| {
            let mut taps = [Taps::default(); SPATIAL];
            let mut counts = [0; SPATIAL];
            for (at, index) in place.iter().enumerate() {
                taps[at] = M::taps(&self.dims[at], *index);
                counts[at] = taps[at].count as i64;
            }
            let mut there = [0; SPATIAL];
            each(&counts[..self.spatial], |choice| {
                let mut weight = 1.0;
                for (at, tap) in choice.iter().enumerate() {
                    there[at] = taps[at].index[*tap as usize];
                    weight *= taps[at].weight[*tap as usize];
                }
                with(place, &there[..self.spatial], weight);
            });
        });
    }
}

/// Adds up what `fill` gives for each plane, in row-major order, and writes it.
fn write_sums(to: &View<'_>, mut fill: impl FnMut(i64, &mut dyn FnMut(&[i64], f64))) {
    let plane_sizes = &to.sizes[2..];
    let mut sums = vec![0.0; plane_sizes.iter().product::<i64>() as usize];
    for plane in 0..to.size(0) * to.size(1) {
        sums.fill(0.0);
        fill(plane, &mut |place, value| {
            let dims = place.iter().zip(plane_sizes);
            let number = dims.fold(0, |number, (index, size)| number * size + index);
            sums[number as usize] += value;
        });
        let start = to.nth_start(2, plane);
        let mut next = sums.iter().copied();
        each(plane_sizes, |place| {
            to.set(start + to.at_end(2, place), next.next().unwrap_or(0.0));
        });
    }
}

/// Steps for so many elements.
fn steps(out: &Tensor<'_>, spatial: usize) -> i64 {
    out.numel().saturating_mul(1 << spatial)
}

struct Forward<M, const N: usize>(PhantomData<M>);

impl<M: Method, const N: usize> Plain for Forward<M, N> {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (input, out) = (call.needed(0)?, call.result(0)?);
        same_floats(&[input, out])?;
        Resampling::new::<M>(call, N, input.sizes(), out.sizes(), 2)?;
        Ok(steps(out, N))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (input, out) = (run.tensor(0).ok_or(Code::INTERNAL)?, run.output(0));
        let resampling = Resampling::new::<M>(run.call, N, input.sizes, out.sizes, 2);
        let resampling = resampling.map_err(|_| Code::INTERNAL)?;
        write_sums(&out, |plane, add| {
            let from = input.nth_start(2, plane);
            resampling.pairs::<M>(|place, there, weight| {
                add(place, weight * input.get(from + input.at_end(2, there)));
            });
        });
        Ok(())
    }
}

struct Backward<M, const N: usize>(PhantomData<M>);

impl<M: Method, const N: usize> Plain for Backward<M, N> {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (grad, out) = (call.needed(0)?, call.result(0)?);
        same_floats(&[grad, out])?;
        same_sizes("the gradient of the input", out.sizes(), call.ints(2))?;
        Resampling::new::<M>(call, N, out.sizes(), grad.sizes(), 3)?;
        Ok(steps(grad, N))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (grad, out) = (run.tensor(0).ok_or(Code::INTERNAL)?, run.output(0));
        let resampling = Resampling::new::<M>(run.call, N, out.sizes, grad.sizes, 3);
        let resampling = resampling.map_err(|_| Code::INTERNAL)?;
        write_sums(&out, |plane, add| {
            let from = grad.nth_start(2, plane);
            resampling.pairs::<M>(|place, there, weight| {
                add(there, weight * grad.get(from + grad.at_end(2, place)));
            });
        });
        Ok(())
    }
}
