//! Pooling, window by window over a padded input. The gradient of an average is compared with what the reference's
//! forward says of each element, because it is linear.

use outrigger_device::DType;

use super::array::{Array, array, dense, empty, linear, place, places, turned};
use super::operand::{Given, Operand, Runner, schema_gives};
use crate::Verdict;

/// One pooling; lists have an entry for each spatial dimension, or one for all.
struct Case {
    spatial: usize,
    input: &'static [i64],
    kernel: &'static [i64],
    stride: &'static [i64],
    padding: &'static [i64],
    dilation: &'static [i64],
    ceil: bool,
    /// The settings of an average.
    include: bool,
    divisor: Option<i64>,
    /// Spatial sizes of the result.
    out: &'static [i64],
}

const PLAIN: Case = Case {
    spatial: 2,
    input: &[2, 3, 5, 6],
    kernel: &[2],
    stride: &[],
    padding: &[0],
    dilation: &[1],
    ceil: false,
    include: true,
    divisor: None,
    out: &[2, 3],
};

const CASES: [Case; 8] = [
    PLAIN,
    // Without a batch.
    Case {
        input: &[3, 7, 8],
        kernel: &[3, 2],
        stride: &[2, 3],
        padding: &[1, 1],
        ceil: true,
        out: &[4, 3],
        ..PLAIN
    },
    Case {
        input: &[1, 2, 7, 6],
        kernel: &[3, 3],
        stride: &[1, 2],
        padding: &[1, 0],
        dilation: &[2, 1],
        out: &[5, 2],
        ..PLAIN
    },
    // The last windows reach over the padding's end, and a whole one would begin there.
    Case {
        input: &[1, 1, 5, 5],
        kernel: &[2, 4],
        stride: &[3, 2],
        padding: &[1, 2],
        ceil: true,
        include: false,
        out: &[2, 4],
        ..PLAIN
    },
    // No sample at all.
    Case {
        input: &[0, 2, 4, 4],
        kernel: &[3],
        stride: &[1],
        padding: &[1],
        out: &[4, 4],
        ..PLAIN
    },
    Case {
        spatial: 3,
        input: &[1, 2, 4, 5, 3],
        kernel: &[3, 2, 2],
        stride: &[2, 1, 2],
        padding: &[1, 0, 1],
        ceil: true,
        out: &[3, 4, 2],
        ..PLAIN
    },
    Case {
        spatial: 3,
        input: &[2, 3, 3, 4, 4],
        divisor: Some(-3),
        out: &[1, 2, 2],
        ..PLAIN
    },
    Case {
        spatial: 3,
        input: &[2, 3, 4, 5],
        kernel: &[2, 2, 2],
        stride: &[1, 1, 2],
        padding: &[0, 1, 1],
        dilation: &[1, 3, 2],
        ceil: true,
        out: &[2, 3, 3],
        ..PLAIN
    },
];

/// The number of an element in its plane.
fn number(sizes: &[i64], place: &[i64]) -> i64 {
    let dims = sizes.iter().zip(place);
    dims.fold(0, |number, (size, index)| number * size + index)
}

/// The number of a list for a dimension.
fn of_dim(list: &[i64], dim: usize) -> i64 {
    list[dim.min(list.len() - 1)]
}

impl Case {
    fn spatial_sizes(&self) -> &'static [i64] {
        &self.input[self.input.len() - self.spatial..]
    }

    fn out_sizes(&self) -> Vec<i64> {
        let lead = &self.input[..self.input.len() - self.spatial];
        [lead, self.out].concat()
    }

    /// The place of an element of a window along a dimension, which may be in the padding.
    fn index(&self, dim: usize, window: i64, tap: i64) -> i64 {
        let stride = match self.stride {
            [] => self.kernel,
            stride => stride,
        };
        window * of_dim(stride, dim) - of_dim(self.padding, dim) + tap * of_dim(self.dilation, dim)
    }

    /// The elements of a window, some of which are in the padding.
    fn window(&self, window: &[i64]) -> Vec<Vec<i64>> {
        let kernel: Vec<i64> = (0..self.spatial)
            .map(|dim| of_dim(self.kernel, dim))
            .collect();
        let taps: Vec<_> = places(&kernel).collect();
        let one = |taps: Vec<i64>| {
            let dims = (0..self.spatial).map(|dim| self.index(dim, window[dim], taps[dim]));
            dims.collect()
        };
        taps.into_iter().map(one).collect()
    }

    /// Whether an element is in the input, or so far behind it at most.
    fn is_inside(&self, element: &[i64], margin: &[i64]) -> bool {
        let dims = self.spatial_sizes().iter().enumerate();
        let mut dims = dims.map(|(dim, size)| {
            let margin = of_dim(margin, dim);
            (-margin..size + margin).contains(&element[dim])
        });
        dims.all(|inside| inside)
    }

    /// The elements of a window that are in the input.
    fn inside(&self, window: &[i64]) -> Vec<Vec<i64>> {
        let mut all = self.window(window);
        all.retain(|element| self.is_inside(element, &[0]));
        all
    }

    fn average(&self, input: &Array) -> Array {
        let lead = self.input.len() - self.spatial;
        Array::of(&self.out_sizes(), |at| {
            let (first, window) = at.split_at(lead);
            let inside = self.inside(window);
            let mut padded = self.window(window);
            padded.retain(|element| self.is_inside(element, self.padding));
            let divisor = match self.divisor {
                Some(divisor) => divisor as f64,
                None if self.include => padded.len() as f64,
                None => inside.len() as f64,
            };
            let values = inside.iter();
            let values = values.map(|element| input.at(&[first, element].concat()));
            values.sum::<f64>() / divisor
        })
    }

    /// The number of what each window's largest element is.
    fn largest(&self, input: &Array) -> Array {
        largest(input, self.spatial, &self.out_sizes(), |window| {
            self.inside(window)
        })
    }

    /// The arguments of windows, up to the rounding of the sizes.
    fn arguments(&self, dilation: bool) -> Vec<Given<'_>> {
        let mut all = vec![
            Given::Ints(self.kernel),
            Given::Ints(self.stride),
            Given::Ints(self.padding),
        ];
        if dilation {
            all.push(Given::Ints(self.dilation));
        }
        all.push(Given::Truth(self.ceil));
        all
    }

    fn what(&self, name: &str) -> String {
        let Self {
            input,
            kernel,
            stride,
            padding,
            dilation,
            ceil,
            ..
        } = self;
        format!(
            "{name} of {input:?} by {kernel:?} (stride {stride:?}, padding {padding:?}, dilation {dilation:?}, \
             rounded up {ceil})"
        )
    }
}

/// The number in its plane of each window's largest element, the first of equals. NaN is the largest.
fn largest(
    input: &Array,
    spatial: usize,
    out: &[i64],
    inside: impl Fn(&[i64]) -> Vec<Vec<i64>>,
) -> Array {
    let lead = out.len() - spatial;
    Array::of(out, |at| {
        let (first, window) = at.split_at(lead);
        let all = inside(window);
        let value = |element: &[i64]| match input.at(&[first, element].concat()) {
            value if value.is_nan() => f64::INFINITY,
            value => value,
        };
        let most = all.iter().map(|element| value(element));
        let most = most.fold(f64::NEG_INFINITY, f64::max);
        let best = all.iter().find(|element| value(element) == most);
        best.map_or(-1.0, |element| number(&input.sizes[lead..], element) as f64)
    })
}

/// The elements of a plane by their numbers.
fn picked(input: &Array, spatial: usize, numbers: &Array) -> Array {
    let lead = input.sizes.len() - spatial;
    Array::of(&numbers.sizes, |at| {
        let element = place(&input.sizes[lead..], numbers.at(at) as i64);
        input.at(&[&at[..lead], &element].concat())
    })
}

/// The sum at each element, when each window gives its gradient to the element with its number.
fn given_back(grad: &Array, spatial: usize, numbers: &Array, sizes: &[i64]) -> Array {
    let lead = sizes.len() - spatial;
    Array::of(sizes, |at| {
        let mine = number(&sizes[lead..], &at[lead..]) as f64;
        let windows = places(&grad.sizes[lead..]);
        let windows = windows.map(|window| [&at[..lead], &window].concat());
        let here = windows.filter(|window| numbers.at(window) == mine);
        here.map(|window| grad.at(&window)).sum()
    })
}

/// An input, in which one element of floating point is NaN.
fn with_nan(dtype: DType, sizes: &[i64], seed: u64) -> Array {
    let mut input = array(dtype, sizes, seed);
    if let Some(value) = input.values.get_mut(7) {
        *value = f64::NAN;
    }
    input
}

/// Checks values and indices, of an input as it is in memory and turned.
fn gives_largest(
    on: &dyn Runner,
    (name, dtype): (&str, DType),
    input: &Array,
    spatial: usize,
    numbers: &Array,
    arguments: &[Given<'_>],
    what: &str,
) -> Verdict {
    let values = picked(input, spatial, numbers);
    for input in [dense(on, dtype, input)?, turned(on, dtype, input)?] {
        let out = empty(on, dtype, &values.sizes)?;
        let (strides, in_memory) = numbers.turned();
        let indices = Operand::new(on, DType::I64, &numbers.sizes, &strides, &in_memory)?;
        let given = [&[Given::In(&input)][..], arguments].concat();
        let results = [Some(&out), Some(&indices)];
        let expected = [Some(&*values.values), Some(&*in_memory)];
        schema_gives(on, name, &given, &results, &expected, what)?;
    }
    Ok(())
}

pub(super) fn max_pool(on: &dyn Runner, name: &str, dtype: DType, spatial: usize) -> Verdict {
    for (seed, case) in (0u64..)
        .zip(&CASES)
        .filter(|(_, case)| case.spatial == spatial)
    {
        let input = with_nan(dtype, case.input, seed);
        let numbers = case.largest(&input);
        let (what, arguments) = (case.what(name), case.arguments(true));
        gives_largest(
            on,
            (name, dtype),
            &input,
            spatial,
            &numbers,
            &arguments,
            &what,
        )?;
    }
    Ok(())
}

pub(super) fn max_pool_backward(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    spatial: usize,
) -> Verdict {
    for (seed, case) in (0u64..)
        .zip(&CASES)
        .filter(|(_, case)| case.spatial == spatial)
    {
        let input = array(dtype, case.input, seed);
        let numbers = case.largest(&input);
        let grad = array(dtype, &case.out_sizes(), 100 + seed);
        let expected = given_back(&grad, spatial, &numbers, case.input);
        let (input, grad) = (dense(on, dtype, &input)?, turned(on, dtype, &grad)?);
        let numbers = dense(on, DType::I64, &numbers)?;
        let (first, last) = ([Given::In(&grad), Given::In(&input)], [Given::In(&numbers)]);
        let given = [&first[..], &case.arguments(true), &last].concat();
        let out = empty(on, dtype, case.input)?;
        let expected = [Some(&*expected.values)];
        schema_gives(on, name, &given, &[Some(&out)], &expected, &case.what(name))?;
    }
    Ok(())
}

/// The cases without dilation, with the sums divided in each way.
fn averages(spatial: usize) -> impl Iterator<Item = Case> {
    let fits = move |case: &&Case| case.spatial == spatial && case.dilation == [1];
    CASES.iter().filter(fits).flat_map(|case| {
        [
            (true, None),
            (false, None),
            (true, Some(5)),
            (false, case.divisor),
        ]
        .map(|(include, divisor)| Case {
            include,
            divisor,
            ..*case
        })
    })
}

fn divisor_arguments(case: &Case) -> [Given<'static>; 2] {
    let divisor = case.divisor.map_or(Given::Nothing, Given::Int);
    [Given::Truth(case.include), divisor]
}

pub(super) fn avg_pool(on: &dyn Runner, name: &str, dtype: DType, spatial: usize) -> Verdict {
    for (seed, case) in (0u64..).zip(averages(spatial)) {
        let input = array(dtype, case.input, seed);
        let expected = case.average(&input);
        let input = turned(on, dtype, &input)?;
        let out = empty(on, dtype, &expected.sizes)?;
        let first = [Given::In(&input)];
        let given = [
            &first[..],
            &case.arguments(false),
            &divisor_arguments(&case),
        ]
        .concat();
        let expected = [Some(&*expected.values)];
        schema_gives(on, name, &given, &[Some(&out)], &expected, &case.what(name))?;
    }
    Ok(())
}

pub(super) fn avg_pool_backward(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    spatial: usize,
) -> Verdict {
    for (seed, case) in (0u64..).zip(averages(spatial)) {
        let input = array(dtype, case.input, seed);
        let grad = array(dtype, &case.out_sizes(), 100 + seed);
        let expected = linear(case.input, &grad, &|unit| case.average(unit));
        let (input, grad) = (dense(on, dtype, &input)?, turned(on, dtype, &grad)?);
        let out = empty(on, dtype, case.input)?;
        let first = [Given::In(&grad), Given::In(&input)];
        let given = [
            &first[..],
            &case.arguments(false),
            &divisor_arguments(&case),
        ]
        .concat();
        let expected = [Some(&*expected)];
        schema_gives(on, name, &given, &[Some(&out)], &expected, &case.what(name))?;
    }
    Ok(())
}

/// Inputs, and spatial sizes of results.
const ADAPTIVE: [(&[i64], &[i64]); 6] = [
    (&[2, 3, 5, 7], &[2, 3]),
    (&[3, 4, 6], &[4, 1]),
    (&[1, 2, 3, 4], &[5, 6]),
    (&[2, 1, 9, 10], &[7, 4]),
    (&[0, 2, 3, 3], &[2, 2]),
    (&[1, 2, 3, 3], &[0, 2]),
];

/// The elements of a window: those that share some of its part of the plane.
fn part(input: &[i64], out: &[i64], window: &[i64]) -> Vec<Vec<i64>> {
    let shares = |element: &Vec<i64>| {
        let mut dims = (0..out.len()).map(|dim| {
            let (of, to) = (input[dim], out[dim]);
            let (element, window) = (element[dim], window[dim]);
            (element + 1) * to > window * of && element * to < (window + 1) * of
        });
        dims.all(|dim| dim)
    };
    places(input).filter(shares).collect()
}

/// Sizes of the result, and of the planes.
fn adaptive_sizes(input: &'static [i64], out: &[i64]) -> (Vec<i64>, &'static [i64]) {
    let (lead, plane) = input.split_at(input.len() - 2);
    ([lead, out].concat(), plane)
}

fn adaptive_average(input: &Array, out: &[i64]) -> Array {
    let (lead, plane) = input.sizes.split_at(input.sizes.len() - 2);
    Array::of(&[lead, out].concat(), |at| {
        let (first, window) = at.split_at(lead.len());
        let part = part(plane, out, window);
        let values = part.iter();
        let values = values.map(|element| input.at(&[first, element].concat()));
        values.sum::<f64>() / part.len() as f64
    })
}

pub(super) fn adaptive_max_pool(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, (sizes, out)) in (0u64..).zip(ADAPTIVE) {
        let input = with_nan(dtype, sizes, seed);
        let (right, plane) = adaptive_sizes(sizes, out);
        let numbers = largest(&input, 2, &right, |window| part(plane, out, window));
        let what = format!("{name} of {sizes:?} to {out:?}");
        let arguments = [Given::Ints(out)];
        gives_largest(on, (name, dtype), &input, 2, &numbers, &arguments, &what)?;
    }
    Ok(())
}

pub(super) fn adaptive_max_pool_backward(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, (sizes, out)) in (0u64..).zip(ADAPTIVE) {
        let input = array(dtype, sizes, seed);
        let (right, plane) = adaptive_sizes(sizes, out);
        let numbers = largest(&input, 2, &right, |window| part(plane, out, window));
        let grad = array(dtype, &right, 100 + seed);
        let expected = given_back(&grad, 2, &numbers, sizes);
        let (input, grad) = (dense(on, dtype, &input)?, turned(on, dtype, &grad)?);
        let numbers = dense(on, DType::I64, &numbers)?;
        let given = [&grad, &input, &numbers].map(Given::In);
        let result = empty(on, dtype, sizes)?;
        let what = format!("{name} of {sizes:?} to {out:?}");
        let expected = [Some(&*expected.values)];
        schema_gives(on, name, &given, &[Some(&result)], &expected, &what)?;
    }
    Ok(())
}

pub(super) fn adaptive_avg_pool(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, (sizes, out)) in (0u64..).zip(ADAPTIVE) {
        let input = array(dtype, sizes, seed);
        let expected = adaptive_average(&input, out);
        let input = turned(on, dtype, &input)?;
        let result = empty(on, dtype, &expected.sizes)?;
        let what = format!("{name} of {sizes:?} to {out:?}");
        let given = [Given::In(&input), Given::Ints(out)];
        let expected = [Some(&*expected.values)];
        schema_gives(on, name, &given, &[Some(&result)], &expected, &what)?;
    }
    Ok(())
}

pub(super) fn adaptive_avg_pool_backward(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, (sizes, out)) in (0u64..).zip(ADAPTIVE) {
        let input = array(dtype, sizes, seed);
        let (right, _) = adaptive_sizes(sizes, out);
        let grad = array(dtype, &right, 100 + seed);
        let expected = linear(sizes, &grad, &|unit| adaptive_average(unit, out));
        let (input, grad) = (dense(on, dtype, &input)?, turned(on, dtype, &grad)?);
        let result = empty(on, dtype, sizes)?;
        let what = format!("{name} of {sizes:?} to {out:?}");
        let given = [Given::In(&grad), Given::In(&input)];
        let expected = [Some(&*expected)];
        schema_gives(on, name, &given, &[Some(&result)], &expected, &what)?;
    }
    Ok(())
}
