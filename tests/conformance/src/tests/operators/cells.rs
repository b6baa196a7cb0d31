//! Recurrent cells by their textbook equations. Gradients are those of the equations, by numbers that carry a derivative.

use std::ops::{Add, Mul, Sub};

use outrigger_device::DType;

use super::array::{Array, array, dense, empty, turned};
use super::numbers::rounded;
use super::operand::{Given, Runner, schema_gives};
use crate::Verdict;

/// A number, and how it changes with one that was chosen.
#[derive(Clone, Copy)]
struct Dual {
    value: f64,
    change: f64,
}

impl Add for Dual {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (value, change) = (self.value + other.value, self.change + other.change);
        Self { value, change }
    }
}

impl Sub for Dual {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let (value, change) = (self.value - other.value, self.change - other.change);
        Self { value, change }
    }
}

impl Mul for Dual {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let change = self.change * other.value + self.value * other.change;
        let value = self.value * other.value;
        Self { value, change }
    }
}

impl Dual {
    const ONE: Self = Self {
        value: 1.0,
        change: 0.0,
    };

    fn sigmoid(self) -> Self {
        let exp = (-self.value).exp();
        let change = self.change * exp / (1.0 + exp).powi(2);
        let value = 1.0 / (1.0 + exp);
        Self { value, change }
    }

    fn tanh(self) -> Self {
        let change = self.change / self.value.cosh().powi(2);
        let value = self.value.tanh();
        Self { value, change }
    }
}

/// A cell's equations: from its inputs to its states, and to what it keeps.
type Cell<const IN: usize, const OUT: usize, const KEPT: usize> =
    fn([Dual; IN]) -> ([Dual; OUT], [Dual; KEPT]);

/// The cell LSTM: from four gates and the old cell to hidden state and cell.
fn lstm([input, forget, cell, output, old]: [Dual; 5]) -> ([Dual; 2], [Dual; 4]) {
    let (input, forget) = (input.sigmoid(), forget.sigmoid());
    let (cell, output) = (cell.tanh(), output.sigmoid());
    let new = forget * old + input * cell;
    ([output * new.tanh(), new], [input, forget, cell, output])
}

/// The cell GRU: from three gates of the input, three of the hidden state and that state to the new one.
fn gru([ir, iu, inew, hr, hu, hnew, old]: [Dual; 7]) -> ([Dual; 1], [Dual; 5]) {
    let (reset, update) = ((ir + hr).sigmoid(), (iu + hu).sigmoid());
    let new = (inew + reset * hnew).tanh();
    let state = (Dual::ONE - update) * new + update * old;
    ([state], [reset, update, new, old, hnew])
}

/// The results of a cell where nothing changes.
fn values<const IN: usize, const OUT: usize, const KEPT: usize>(
    cell: Cell<IN, OUT, KEPT>,
    inputs: [f64; IN],
) -> ([f64; OUT], [f64; KEPT]) {
    let change = 0.0;
    let (states, kept) = cell(inputs.map(|value| Dual { value, change }));
    (states.map(|one| one.value), kept.map(|one| one.value))
}

/// The change of the states, multiplied by gradients, with each input.
fn gradients<const IN: usize, const OUT: usize, const KEPT: usize>(
    cell: Cell<IN, OUT, KEPT>,
    inputs: [f64; IN],
    grads: [f64; OUT],
) -> [f64; IN] {
    std::array::from_fn(|chosen| {
        let with = |at: usize| Dual {
            value: inputs[at],
            change: f64::from(at == chosen),
        };
        let (states, _) = cell(std::array::from_fn(with));
        let parts = states.iter().zip(grads);
        parts.map(|(state, grad)| state.change * grad).sum()
    })
}

const SHAPES: [[i64; 2]; 3] = [[3, 5], [1, 8], [0, 4]];

/// Gates of a cell, and biases that are added to them if they are there.
struct Operands {
    /// The gates of input and hidden state.
    gates: [Array; 2],
    biases: Option<[Array; 2]>,
    old: Array,
}

impl Operands {
    fn new(dtype: DType, [rows, columns]: [i64; 2], times: i64, biased: bool) -> Self {
        let gates = [1, 2].map(|seed| array(dtype, &[rows, times * columns], seed));
        let biases = [3, 4].map(|seed| array(dtype, &[times * columns], seed));
        let old = array(dtype, &[rows, columns], 5);
        let biases = biased.then_some(biases);
        Self { gates, biases, old }
    }

    /// A gate of input (0) or hidden state (1), with its bias.
    fn gate(&self, side: usize, gate: i64, at: &[i64]) -> f64 {
        let column = gate * self.old.sizes[1] + at[1];
        let biases = self.biases.as_ref();
        let bias = biases.map_or(0.0, |biases| biases[side].at(&[column]));
        self.gates[side].at(&[at[0], column]) + bias
    }

    /// The inputs of an LSTM cell at a place.
    fn of_lstm(&self, at: &[i64]) -> [f64; 5] {
        let sum = |gate| self.gate(0, gate, at) + self.gate(1, gate, at);
        [sum(0), sum(1), sum(2), sum(3), self.old.at(at)]
    }

    /// The inputs of a GRU cell at a place.
    fn of_gru(&self, at: &[i64]) -> [f64; 7] {
        let [r, u, n] = [0, 1, 2].map(|gate| self.gate(0, gate, at));
        let [hr, hu, hn] = [0, 1, 2].map(|gate| self.gate(1, gate, at));
        [r, u, n, hr, hu, hn, self.old.at(at)]
    }

    /// Calls the forward, and compares.
    fn give(&self, on: &dyn Runner, name: &str, dtype: DType, expected: &[&Array]) -> Verdict {
        let gates = [
            dense(on, dtype, &self.gates[0])?,
            turned(on, dtype, &self.gates[1])?,
        ];
        let old = turned(on, dtype, &self.old)?;
        let biases = match &self.biases {
            Some([one, other]) => Some([dense(on, dtype, one)?, dense(on, dtype, other)?]),
            None => None,
        };
        let bias = |at: usize| match &biases {
            Some(biases) => Given::In(&biases[at]),
            None => Given::Nothing,
        };
        let given = [
            Given::In(&gates[0]),
            Given::In(&gates[1]),
            Given::In(&old),
            bias(0),
            bias(1),
        ];
        compare(on, name, dtype, &given, expected, &self.old.sizes)
    }
}

/// Runs a call whose results are all there.
fn compare(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    given: &[Given<'_>],
    expected: &[&Array],
    sizes: &[i64],
) -> Verdict {
    let outputs = expected.iter().map(|one| empty(on, dtype, &one.sizes));
    let outputs = outputs.collect::<Verdict<Vec<_>>>()?;
    let results: Vec<_> = outputs.iter().map(Some).collect();
    let values: Vec<_> = expected.iter().map(|one| Some(&*one.values)).collect();
    let what = format!("{name} of {sizes:?}");
    schema_gives(on, name, given, &results, &values, &what)
}

/// An array of several numbers of each place of a state, each behind all of the ones before.
fn side_by_side(sizes: &[i64; 2], times: i64, value: impl Fn(&[i64], usize) -> f64) -> Array {
    let [rows, columns] = *sizes;
    Array::of(&[rows, times * columns], |at| {
        value(&[at[0], at[1] % columns], (at[1] / columns) as usize)
    })
}

/// The sum over the rows.
fn summed(array: &Array) -> Array {
    let rows = array.sizes[0];
    Array::of(&array.sizes[1..], |at| {
        (0..rows).map(|row| array.at(&[row, at[0]])).sum()
    })
}

/// The array with its values as the dtype has them.
fn as_kept(dtype: DType, mut array: Array) -> Array {
    for value in &mut array.values {
        *value = rounded(dtype, *value);
    }
    array
}

pub(super) fn lstm_cell(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (sizes, biased) in SHAPES.into_iter().zip([true, false, true]) {
        let operands = Operands::new(dtype, sizes, 4, biased);
        let at = |place: &[i64]| values(lstm, operands.of_lstm(place));
        let hidden = Array::of(&sizes, |place| at(place).0[0]);
        let cell = Array::of(&sizes, |place| at(place).0[1]);
        let workspace = side_by_side(&sizes, 4, |place, gate| at(place).1[gate]);
        operands.give(on, name, dtype, &[&hidden, &cell, &workspace])?;
    }
    Ok(())
}

pub(super) fn gru_cell(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (sizes, biased) in SHAPES.into_iter().zip([true, false, true]) {
        let operands = Operands::new(dtype, sizes, 3, biased);
        let at = |place: &[i64]| values(gru, operands.of_gru(place));
        let hidden = Array::of(&sizes, |place| at(place).0[0]);
        let workspace = side_by_side(&sizes, 5, |place, gate| at(place).1[gate]);
        operands.give(on, name, dtype, &[&hidden, &workspace])?;
    }
    Ok(())
}

pub(super) fn lstm_cell_backward(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    // Either gradient may be absent.
    for (sizes, [of_hidden, of_cell]) in SHAPES.into_iter().chain(SHAPES).zip([
        [true, true],
        [true, true],
        [true, false],
        [false, true],
        [true, false],
        [true, true],
    ]) {
        let operands = Operands::new(dtype, sizes, 4, true);
        let grads = [7, 8].map(|seed| array(dtype, &sizes, seed));
        let outer = |place: &[i64]| {
            let one = |at: usize, there: bool| if there { grads[at].at(place) } else { 0.0 };
            [one(0, of_hidden), one(1, of_cell)]
        };
        let inner = |place: &[i64]| gradients(lstm, operands.of_lstm(place), outer(place));
        let of_gates = side_by_side(&sizes, 4, |place, gate| inner(place)[gate]);
        let of_old = Array::of(&sizes, |place| inner(place)[4]);
        let of_bias = summed(&of_gates);
        let results = |place: &[i64]| values(lstm, operands.of_lstm(place));
        let new = as_kept(dtype, Array::of(&sizes, |place| results(place).0[1]));
        let workspace = side_by_side(&sizes, 4, |place, gate| results(place).1[gate]);
        let workspace = turned(on, dtype, &as_kept(dtype, workspace))?;
        let (old, new) = (dense(on, dtype, &operands.old)?, turned(on, dtype, &new)?);
        let [hidden, cell] = &grads;
        let (hidden, cell) = (turned(on, dtype, hidden)?, dense(on, dtype, cell)?);
        let given = [
            if of_hidden {
                Given::In(&hidden)
            } else {
                Given::Nothing
            },
            if of_cell {
                Given::In(&cell)
            } else {
                Given::Nothing
            },
            Given::In(&old),
            Given::In(&new),
            Given::In(&workspace),
            Given::Truth(true),
        ];
        let expected = [&of_gates, &of_old, &of_bias];
        compare(on, name, dtype, &given, &expected, &sizes)?;
    }
    Ok(())
}

pub(super) fn gru_cell_backward(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for sizes in SHAPES {
        let operands = Operands::new(dtype, sizes, 3, true);
        let grad = array(dtype, &sizes, 7);
        let inner = |place: &[i64]| gradients(gru, operands.of_gru(place), [grad.at(place)]);
        let of_input = side_by_side(&sizes, 3, |place, gate| inner(place)[gate]);
        let of_hidden = side_by_side(&sizes, 3, |place, gate| inner(place)[3 + gate]);
        let of_old = Array::of(&sizes, |place| inner(place)[6]);
        let (input_bias, hidden_bias) = (summed(&of_input), summed(&of_hidden));
        let kept = |place: &[i64]| values(gru, operands.of_gru(place)).1;
        let workspace = side_by_side(&sizes, 5, |place, gate| kept(place)[gate]);
        let workspace = turned(on, dtype, &as_kept(dtype, workspace))?;
        let grad = turned(on, dtype, &grad)?;
        let given = [Given::In(&grad), Given::In(&workspace), Given::Truth(true)];
        let expected = [&of_input, &of_hidden, &of_old, &input_bias, &hidden_bias];
        compare(on, name, dtype, &given, &expected, &sizes)?;
    }
    Ok(())
}
