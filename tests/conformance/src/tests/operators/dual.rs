//! Numbers with a derivative, so that the gradients of a reference follow from its forward alone.

use std::iter::Sum;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A value, and its derivative by the one element that is varied.
#[derive(Clone, Copy)]
pub(super) struct Dual {
    pub(super) value: f64,
    slope: f64,
}

impl Dual {
    pub(super) fn exp(self) -> Self {
        let value = self.value.exp();
        self.chain(value, value)
    }

    pub(super) fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        self.chain(value, 0.5 / value)
    }

    /// A function's value, by the function's derivative.
    pub(super) fn chain(self, value: f64, derivative: f64) -> Self {
        let slope = self.slope * derivative;
        Self { value, slope }
    }
}

impl From<f64> for Dual {
    fn from(value: f64) -> Self {
        Self { value, slope: 0.0 }
    }
}

impl Add for Dual {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            value: self.value + other.value,
            slope: self.slope + other.slope,
        }
    }
}

impl Neg for Dual {
    type Output = Self;
    fn neg(self) -> Self {
        self.chain(-self.value, -1.0)
    }
}

impl Sub for Dual {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul for Dual {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        Self {
            value: self.value * other.value,
            slope: self.slope * other.value + self.value * other.slope,
        }
    }
}

impl Div for Dual {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        let inverse = 1.0 / other.value;
        self * other.chain(inverse, -inverse * inverse)
    }
}

impl Sum for Dual {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(0.0.into(), Add::add)
    }
}

/// Numbers that do not vary.
pub(super) fn fixed(values: &[f64]) -> Vec<Dual> {
    values.iter().map(|value| Dual::from(*value)).collect()
}

/// The values of numbers.
pub(super) fn plain(values: &[Dual]) -> Vec<f64> {
    values.iter().map(|one| one.value).collect()
}

/// The gradient by each of some values of the products of a function's results with `grad`.
pub(super) fn gradient(
    values: &[f64],
    grad: &[f64],
    function: impl Fn(&[Dual]) -> Vec<Dual>,
) -> Vec<f64> {
    let mut given = fixed(values);
    (0..values.len())
        .map(|at| {
            given[at].slope = 1.0;
            let results = function(&given);
            given[at].slope = 0.0;
            let terms = results.iter().zip(grad);
            terms.map(|(result, grad)| result.slope * grad).sum()
        })
        .collect()
}
