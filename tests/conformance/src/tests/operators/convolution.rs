//! Convolution against sums in f64. Its gradients are compared with what the reference's forward says of each element:
//! a convolution is linear in its input and in its weight.

use outrigger_device::DType;

use super::array::{Array, array, place, turned};
use super::numbers::count;
use super::operand::{Given, Operand, Runner, schema_gives};
use crate::Verdict;

/// One convolution; lists have an entry for each spatial dimension.
struct Case {
    input: &'static [i64],
    weight: &'static [i64],
    stride: &'static [i64],
    padding: &'static [i64],
    dilation: &'static [i64],
    output_padding: &'static [i64],
    transposed: bool,
    groups: i64,
}

const PLAIN: Case = Case {
    input: &[2, 3, 5],
    weight: &[4, 3, 3],
    stride: &[1],
    padding: &[0],
    dilation: &[1],
    output_padding: &[0],
    transposed: false,
    groups: 1,
};

const CASES: [Case; 7] = [
    PLAIN,
    Case {
        input: &[1, 2, 5, 6],
        weight: &[3, 2, 2, 3],
        stride: &[2, 1],
        padding: &[1, 2],
        dilation: &[1, 2],
        output_padding: &[0, 0],
        ..PLAIN
    },
    // Depthwise, with two results for each channel.
    Case {
        input: &[2, 3, 4, 4],
        weight: &[6, 1, 3, 3],
        stride: &[1, 1],
        padding: &[1, 1],
        dilation: &[1, 1],
        output_padding: &[0, 0],
        groups: 3,
        ..PLAIN
    },
    Case {
        input: &[1, 2, 3, 4, 3],
        weight: &[2, 2, 2, 1, 3],
        stride: &[1, 2, 1],
        padding: &[0, 0, 1],
        dilation: &[1, 1, 1],
        output_padding: &[0, 0, 0],
        ..PLAIN
    },
    Case {
        input: &[2, 4, 3],
        weight: &[4, 2, 3],
        stride: &[2],
        padding: &[1],
        output_padding: &[1],
        transposed: true,
        ..PLAIN
    },
    Case {
        input: &[1, 4, 3, 2],
        weight: &[4, 3, 2, 2],
        stride: &[1, 3],
        padding: &[0, 1],
        dilation: &[2, 1],
        output_padding: &[0, 2],
        transposed: true,
        groups: 2,
    },
    // No sample at all.
    Case {
        input: &[0, 3, 5],
        ..PLAIN
    },
];

impl Case {
    fn out_sizes(&self) -> Vec<i64> {
        let channels = if self.transposed {
            self.weight[1] * self.groups
        } else {
            self.weight[0]
        };
        let spatial = (0..self.stride.len()).map(|at| {
            let (size, kernel) = (
                self.input[2 + at],
                self.dilation[at] * (self.weight[2 + at] - 1) + 1,
            );
            if self.transposed {
                (size - 1) * self.stride[at] + kernel - 2 * self.padding[at]
                    + self.output_padding[at]
            } else {
                (size + 2 * self.padding[at] - kernel) / self.stride[at] + 1
            }
        });
        [self.input[0], channels]
            .into_iter()
            .chain(spatial)
            .collect()
    }

    /// Each element of the result as a sum over channels and taps.
    fn forward(&self, input: &Array, weight: &Array) -> Array {
        let mut out = Array::zeros(&self.out_sizes());
        let (read, per_group) = (self.input[1] / self.groups, out.sizes[1] / self.groups);
        for number in 0..out.values.len() {
            let to = place(&out.sizes, number as i64);
            let group = to[1] / per_group;
            let mut sum = 0.0;
            for channel in 0..read {
                for tap in 0..count(&self.weight[2..]) {
                    let tap = place(&self.weight[2..], tap as i64);
                    let mut from = vec![to[0], group * read + channel];
                    let mut whole = true;
                    for (at, tap) in tap.iter().enumerate() {
                        let (stride, reach) = (self.stride[at], tap * self.dilation[at]);
                        if self.transposed {
                            let there = to[2 + at] + self.padding[at] - reach;
                            whole &= there.rem_euclid(stride) == 0;
                            from.push(there.div_euclid(stride));
                        } else {
                            from.push(to[2 + at] * stride + reach - self.padding[at]);
                        }
                    }
                    let first = if self.transposed {
                        [group * read + channel, to[1] % per_group]
                    } else {
                        [to[1], channel]
                    };
                    let of: Vec<i64> = first.into_iter().chain(tap).collect();
                    if whole {
                        sum += input.at(&from) * weight.at(&of);
                    }
                }
            }
            out.values[number] = sum;
        }
        out
    }

    fn arguments(&self) -> [Given<'_>; 6] {
        [
            Given::Ints(self.stride),
            Given::Ints(self.padding),
            Given::Ints(self.dilation),
            Given::Truth(self.transposed),
            Given::Ints(self.output_padding),
            Given::Int(self.groups),
        ]
    }

    fn what(&self, name: &str) -> String {
        let Self {
            input,
            weight,
            stride,
            padding,
            dilation,
            groups,
            transposed,
            ..
        } = self;
        let kind = if *transposed { "transposed, " } else { "" };
        format!(
            "{name} of {input:?} by {weight:?} ({kind}stride {stride:?}, padding {padding:?}, dilation {dilation:?}, \
             {groups} groups)"
        )
    }
}

pub(super) fn convolution(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, case) in (0u64..).zip(&CASES) {
        let (input, weight) = (
            array(dtype, case.input, seed),
            array(dtype, case.weight, 100 + seed),
        );
        let mut expected = case.forward(&input, &weight);
        let bias = array(dtype, &expected.sizes[1..2], 200 + seed);
        let what = case.what(name);
        let dense = |array: &Array| Operand::dense(on, dtype, &array.sizes, &array.values);
        let (x, w, b) = (dense(&input)?, dense(&weight)?, dense(&bias)?);
        let out = |turn: u64| {
            Operand::dense(
                on,
                dtype,
                &expected.sizes,
                &vec![50.0 + turn as f64; expected.values.len()],
            )
        };
        let (with_bias, without) = (out(0)?, out(1)?);
        let tail = case.arguments();
        let given = |x, bias| [&[Given::In(x), Given::In(&w), bias][..], &tail].concat();
        let plain = expected.values.clone();
        // The input as it is, and turned in memory.
        let turned = turned(on, dtype, &input)?;
        schema_gives(
            on,
            name,
            &given(&turned, Given::Nothing),
            &[Some(&without)],
            &[Some(&plain)],
            &what,
        )?;
        let per_channel = count(&expected.sizes[2..]).max(1);
        for (number, value) in expected.values.iter_mut().enumerate() {
            *value += bias.values[number / per_channel % bias.values.len()];
        }
        let expected = [Some(expected.values.as_slice())];
        schema_gives(
            on,
            name,
            &given(&x, Given::In(&b)),
            &[Some(&with_bias)],
            &expected,
            &what,
        )?;
    }
    Ok(())
}

pub(super) fn convolution_backward(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, case) in (0u64..).zip(&CASES) {
        let (input, weight) = (
            array(dtype, case.input, seed),
            array(dtype, case.weight, 100 + seed),
        );
        let grad = array(dtype, &case.out_sizes(), 300 + seed);
        // The change of the result with one element alone.
        let each = |like: &Array, forward: &dyn Fn(&Array) -> Array| -> Vec<f64> {
            let one = |at: usize| {
                let mut unit = Array::zeros(&like.sizes);
                unit.values[at] = 1.0;
                forward(&unit).dot(&grad)
            };
            (0..like.values.len()).map(one).collect()
        };
        let of_input = each(&input, &|unit| case.forward(unit, &weight));
        let of_weight = each(&weight, &|unit| case.forward(&input, unit));
        let per_channel = count(&grad.sizes[2..]).max(1);
        let mut of_bias = vec![0.0; grad.sizes[1] as usize];
        for (number, value) in grad.values.iter().enumerate() {
            of_bias[number / per_channel % grad.sizes[1] as usize] += value;
        }
        let dense = |array: &Array| Operand::dense(on, dtype, &array.sizes, &array.values);
        let (g, x, w) = (turned(on, dtype, &grad)?, dense(&input)?, dense(&weight)?);
        let tail = case.arguments();
        for wanted in [[1, 1, 1], [0, 1, 0]] {
            let empty = |array: &Array| {
                Operand::dense(on, dtype, &array.sizes, &vec![70.0; array.values.len()])
            };
            let bias = Array::zeros(&grad.sizes[1..2]);
            let outputs = [empty(&input)?, empty(&weight)?, empty(&bias)?];
            let results: Vec<_> = outputs
                .iter()
                .zip(wanted)
                .map(|(one, yes)| (yes == 1).then_some(one))
                .collect();
            let mask = [Given::Truths(&wanted)];
            let given = [
                &[Given::In(&g), Given::In(&x), Given::In(&w)][..],
                &tail,
                &mask,
            ]
            .concat();
            let expected = [&of_input, &of_weight, &of_bias].map(|values| Some(values.as_slice()));
            schema_gives(on, name, &given, &results, &expected, &case.what(name))?;
        }
    }
    Ok(())
}
