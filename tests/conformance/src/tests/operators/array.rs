//! Arrays in row-major order, from which references are computed.

use outrigger_device::DType;

use super::numbers::{count, values};
use super::operand::{Operand, Runner};
use crate::Verdict;

/// An array in row-major order.
#[derive(Clone)]
pub(super) struct Array {
    pub(super) sizes: Vec<i64>,
    pub(super) values: Vec<f64>,
}

impl Array {
    pub(super) fn zeros(sizes: &[i64]) -> Self {
        let (sizes, values) = (sizes.to_vec(), vec![0.0; count(sizes)]);
        Self { sizes, values }
    }

    /// The value at a place, 0 outside.
    pub(super) fn at(&self, place: &[i64]) -> f64 {
        let mut number = 0;
        for (index, size) in place.iter().zip(&self.sizes) {
            if !(0..*size).contains(index) {
                return 0.0;
            }
            number = number * size + index;
        }
        self.values[number as usize]
    }

    pub(super) fn dot(&self, other: &Self) -> f64 {
        self.values
            .iter()
            .zip(&other.values)
            .map(|(a, b)| a * b)
            .sum()
    }
}

/// The indices of an element, from its number.
pub(super) fn place(sizes: &[i64], mut number: i64) -> Vec<i64> {
    let mut place = vec![0; sizes.len()];
    for (index, size) in place.iter_mut().zip(sizes).rev() {
        *index = number % size;
        number /= size;
    }
    place
}

/// Values between -1 and 1.
pub(super) fn array(dtype: DType, sizes: &[i64], seed: u64) -> Array {
    let values = values(dtype, count(sizes), (-1.0, 1.0), seed);
    let sizes = sizes.to_vec();
    Array { sizes, values }
}

/// The indices of an element with another index in one dimension.
pub(super) fn moved(place: &[i64], dim: usize, to: i64) -> Vec<i64> {
    let mut place = place.to_vec();
    place[dim] = to;
    place
}

impl Array {
    /// An array of what `value` gives for the indices of each element.
    pub(super) fn of(sizes: &[i64], value: impl Fn(&[i64]) -> f64) -> Self {
        let all = (0..count(sizes)).map(|number| value(&place(sizes, number as i64)));
        let values = all.collect();
        let sizes = sizes.to_vec();
        Self { sizes, values }
    }

    /// The elements of the line along a dimension that an element is in.
    pub(super) fn line(&self, dim: usize, place: &[i64]) -> Vec<f64> {
        let all = (0..self.sizes[dim]).map(|at| self.at(&moved(place, dim, at)));
        all.collect()
    }

    /// Strides of dimensions that lie in memory the other way round, and the elements in that order.
    pub(super) fn turned(&self) -> (Vec<i64>, Vec<f64>) {
        let (mut strides, mut step) = (Vec::new(), 1);
        for size in &self.sizes {
            strides.push(step);
            step *= size.max(&1);
        }
        let mut memory = vec![0.0; self.values.len()];
        for (number, value) in self.values.iter().enumerate() {
            let place = place(&self.sizes, number as i64);
            let at: i64 = place
                .iter()
                .zip(&strides)
                .map(|(index, stride)| index * stride)
                .sum();
            memory[at as usize] = *value;
        }
        (strides, memory)
    }
}

/// An operand whose dimensions lie in memory the other way round.
pub(super) fn turned(on: &dyn Runner, dtype: DType, array: &Array) -> Verdict<Operand> {
    let (strides, memory) = array.turned();
    Operand::new(on, dtype, &array.sizes, &strides, &memory)
}

/// An operand with the elements of an array.
pub(super) fn dense(on: &dyn Runner, dtype: DType, array: &Array) -> Verdict<Operand> {
    Operand::dense(on, dtype, &array.sizes, &array.values)
}

/// An operand to be written.
pub(super) fn empty(on: &dyn Runner, dtype: DType, sizes: &[i64]) -> Verdict<Operand> {
    Operand::dense(on, dtype, sizes, &vec![70.0; count(sizes)])
}

/// All places of an array of these sizes.
pub(super) fn places(sizes: &[i64]) -> impl Iterator<Item = Vec<i64>> {
    (0..count(sizes)).map(move |number| place(sizes, number as i64))
}

/// The change of a linear function's result, multiplied by a gradient, with each element alone.
pub(super) fn linear(sizes: &[i64], grad: &Array, forward: &dyn Fn(&Array) -> Array) -> Vec<f64> {
    let one = |at: usize| {
        let mut unit = Array::zeros(sizes);
        unit.values[at] = 1.0;
        forward(&unit).dot(grad)
    };
    (0..count(sizes)).map(one).collect()
}
