//! Recurrent cells behind their matrix products, and their gradients.

use outrigger_device::{Code, DType};

use crate::call::{Call, Tensor};
use crate::error::{Result, invalid};
use crate::plain::{self, Plain, Run, View, same_floats, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"lstm_cell",
        plan: plain::plan::<LstmCell>,
    },
    Definition {
        name: c"lstm_cell_backward",
        plan: plain::plan::<LstmCellBackward>,
    },
    Definition {
        name: c"gru_cell",
        plan: plain::plan::<GruCell>,
    },
    Definition {
        name: c"gru_cell_backward",
        plan: plain::plan::<GruCellBackward>,
    },
];

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Rows and columns of a state.
fn state<'a>(tensor: &Tensor<'a>) -> Result<[i64; 2]> {
    match tensor.sizes() {
        &[rows, columns] => Ok([rows, columns]),
        sizes => invalid(format!("a state of {sizes:?}, a matrix is expected")),
    }
}

/// Checks a matrix of the rows of the state with `times` its columns.
fn gates(what: &str, tensor: &Tensor<'_>, [rows, columns]: [i64; 2], times: i64) -> Result<()> {
    let right = columns.checked_mul(times);
    let Some(right) = right else {
        return invalid(format!("a state of {columns} columns"));
    };
    same_sizes(what, tensor.sizes(), &[rows, right])
}

/// Checks input gates, hidden gates, the state and both biases of a forward, and outputs: states, and a workspace behind.
fn forward(call: &Call<'_>, outputs: usize, times: i64, of_workspace: i64) -> Result<i64> {
    let (input, hidden, old) = (call.needed(0)?, call.needed(1)?, call.needed(2)?);
    let size = state(old)?;
    same_floats(&[input, hidden, old])?;
    gates("the input gates", input, size, times)?;
    gates("the hidden gates", hidden, size, times)?;
    for bias in [3, 4].into_iter().filter_map(|at| call.tensor(at)) {
        same_floats(&[input, bias])?;
        same_sizes("a bias", bias.sizes(), &input.sizes()[1..])?;
    }
    for at in 0..outputs {
        let output = call.result(at)?;
        same_floats(&[input, output])?;
        let times = if at + 1 == outputs { of_workspace } else { 1 };
        gates("an output", output, size, times)?;
    }
    Ok(old.numel().saturating_mul(16))
}

/// Gates of a call: products of input and hidden state, to which biases are added.
struct Gates<'a> {
    input: View<'a>,
    hidden: View<'a>,
    input_bias: Option<View<'a>>,
    hidden_bias: Option<View<'a>>,
}

impl<'a> Gates<'a> {
    fn of(run: &Run<'a>) -> Result<Self, Code> {
        match (run.tensor(0), run.tensor(1)) {
            (Some(input), Some(hidden)) => Ok(Self {
                input,
                hidden,
                input_bias: run.tensor(3),
                hidden_bias: run.tensor(4),
            }),
            _ => Err(Code::INTERNAL),
        }
    }

    /// The parts of input and hidden state at a place.
    fn parts(&self, row: i64, column: i64) -> (f64, f64) {
        let part = |gates: &View<'_>, bias: &Option<View<'_>>| {
            let bias = bias.map_or(0.0, |bias| bias.get(bias.at(&[column])));
            gates.get(gates.at(&[row, column])) + bias
        };
        (
            part(&self.input, &self.input_bias),
            part(&self.hidden, &self.hidden_bias),
        )
    }

    fn sum(&self, row: i64, column: i64) -> f64 {
        let (input, hidden) = self.parts(row, column);
        input + hidden
    }
}

/// Writes numbers into a row, `columns` apart.
fn spread(to: &View<'_>, row: i64, column: i64, columns: i64, values: &[f64]) {
    for (at, value) in (0..).zip(values) {
        to.set(to.at(&[row, column + at * columns]), *value);
    }
}

/// Reads numbers of a row, `columns` apart.
fn gather<const N: usize>(from: &View<'_>, row: i64, column: i64, columns: i64) -> [f64; N] {
    std::array::from_fn(|at| from.get(from.at(&[row, column + at as i64 * columns])))
}

/// Calls `with` for each place of a state.
fn each_place(state: &View<'_>, mut with: impl FnMut(i64, i64)) {
    for row in 0..state.size(0) {
        for column in 0..state.size(1) {
            with(row, column);
        }
    }
}

/// Sums over the rows of gradients of gates, which are the gradient of a bias.
struct BiasSums {
    columns: i64,
    sums: Vec<f64>,
}

impl BiasSums {
    fn new(columns: i64, times: usize) -> Self {
        let sums = vec![0.0; columns as usize * times];
        Self { columns, sums }
    }

    fn add(&mut self, column: i64, values: &[f64]) {
        for (at, value) in (0..).zip(values) {
            self.sums[(column + at * self.columns) as usize] += value;
        }
    }

    fn write(&self, to: Option<View<'_>>) {
        if let Some(to) = to {
            for (at, sum) in (0..).zip(&self.sums) {
                to.set(to.at(&[at]), *sum);
            }
        }
    }
}

/// Checks the gradients of biases, the outputs from `first` on: they are there if the call says so.
fn bias_gradients(call: &Call<'_>, has_bias: bool, first: usize, like: &Tensor<'_>) -> Result<()> {
    for output in call.outputs.iter().skip(first) {
        if output.dtype() != DType::INVALID {
            if !has_bias {
                return invalid("a gradient of a bias, and the call says that there is none");
            }
            same_floats(&[like, output])?;
            same_sizes("the gradient of a bias", output.sizes(), &like.sizes()[1..])?;
        }
    }
    Ok(())
}

struct LstmCell;

impl Plain for LstmCell {
    fn check(call: &Call<'_>) -> Result<i64> {
        forward(call, 3, 4, 4)
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (gates, old) = (Gates::of(run)?, run.tensor(2).ok_or(Code::INTERNAL)?);
        let [hidden, cell, workspace] = [0, 1, 2].map(|at| run.output(at));
        let columns = old.size(1);
        each_place(&old, |row, column| {
            let [i, f, g, o] = [0, 1, 2, 3].map(|at| gates.sum(row, column + at * columns));
            let [i, f, g, o] = [sigmoid(i), sigmoid(f), g.tanh(), sigmoid(o)];
            let new = f * old.get(old.at(&[row, column])) + i * g;
            cell.set(cell.at(&[row, column]), new);
            hidden.set(hidden.at(&[row, column]), o * new.tanh());
            spread(&workspace, row, column, columns, &[i, f, g, o]);
        });
        Ok(())
    }
}

struct LstmCellBackward;

impl Plain for LstmCellBackward {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (old, new, workspace) = (call.needed(2)?, call.needed(3)?, call.needed(4)?);
        let (of_gates, of_cell) = (call.result(0)?, call.result(1)?);
        let size = state(old)?;
        same_floats(&[old, new, workspace, of_gates, of_cell])?;
        same_sizes("the new cell", new.sizes(), &size)?;
        same_sizes("the gradient of the old cell", of_cell.sizes(), &size)?;
        gates("the workspace", workspace, size, 4)?;
        gates("the gradient of the gates", of_gates, size, 4)?;
        for grad in [0, 1].into_iter().filter_map(|at| call.tensor(at)) {
            same_floats(&[old, grad])?;
            same_sizes("a gradient of a state", grad.sizes(), &size)?;
        }
        bias_gradients(call, call.truth(5), 2, of_gates)?;
        Ok(old.numel().saturating_mul(16))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(old), Some(new), Some(workspace)) = (run.tensor(2), run.tensor(3), run.tensor(4))
        else {
            return Err(Code::INTERNAL);
        };
        let (of_hidden, of_new) = (run.tensor(0), run.tensor(1));
        let (of_gates, of_cell) = (run.output(0), run.output(1));
        let columns = old.size(1);
        let mut of_bias = BiasSums::new(columns, 4);
        each_place(&old, |row, column| {
            let at = |view: &View<'_>| view.get(view.at(&[row, column]));
            let given = |view: &Option<View<'_>>| view.as_ref().map_or(0.0, at);
            let [i, f, g, o] = gather(&workspace, row, column, columns);
            let (hidden, tanh) = (given(&of_hidden), at(&new).tanh());
            let cell = given(&of_new) + hidden * o * (1.0 - tanh * tanh);
            let grads = [
                cell * g * i * (1.0 - i),
                cell * at(&old) * f * (1.0 - f),
                cell * i * (1.0 - g * g),
                hidden * tanh * o * (1.0 - o),
            ];
            spread(&of_gates, row, column, columns, &grads);
            of_bias.add(column, &grads);
            of_cell.set(of_cell.at(&[row, column]), cell * f);
        });
        of_bias.write(run.wanted(2));
        Ok(())
    }
}

struct GruCell;

impl Plain for GruCell {
    fn check(call: &Call<'_>) -> Result<i64> {
        forward(call, 2, 3, 5)
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (gates, old) = (Gates::of(run)?, run.tensor(2).ok_or(Code::INTERNAL)?);
        let (hidden, workspace) = (run.output(0), run.output(1));
        let columns = old.size(1);
        each_place(&old, |row, column| {
            let reset = sigmoid(gates.sum(row, column));
            let update = sigmoid(gates.sum(row, column + columns));
            let (of_input, of_hidden) = gates.parts(row, column + 2 * columns);
            let new = (of_input + reset * of_hidden).tanh();
            let before = old.get(old.at(&[row, column]));
            hidden.set(hidden.at(&[row, column]), new + update * (before - new));
            let kept = [reset, update, new, before, of_hidden];
            spread(&workspace, row, column, columns, &kept);
        });
        Ok(())
    }
}

struct GruCellBackward;

impl Plain for GruCellBackward {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (grad, workspace) = (call.needed(0)?, call.needed(1)?);
        let [of_input, of_hidden, of_old] = [call.result(0)?, call.result(1)?, call.result(2)?];
        let size = state(grad)?;
        same_floats(&[grad, workspace, of_input, of_hidden, of_old])?;
        gates("the workspace", workspace, size, 5)?;
        gates("the gradient of the input gates", of_input, size, 3)?;
        gates("the gradient of the hidden gates", of_hidden, size, 3)?;
        same_sizes("the gradient of the old state", of_old.sizes(), &size)?;
        bias_gradients(call, call.truth(2), 3, of_input)?;
        Ok(grad.numel().saturating_mul(16))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(grad), Some(workspace)) = (run.tensor(0), run.tensor(1)) else {
            return Err(Code::INTERNAL);
        };
        let [of_input, of_hidden, of_old] = [0, 1, 2].map(|at| run.output(at));
        let columns = grad.size(1);
        let mut of_input_bias = BiasSums::new(columns, 3);
        let mut of_hidden_bias = BiasSums::new(columns, 3);
        each_place(&grad, |row, column| {
            let outer = grad.get(grad.at(&[row, column]));
            let [reset, update, new, old, hidden] = gather(&workspace, row, column, columns);
            let of_new = outer * (1.0 - update) * (1.0 - new * new);
            let of_reset = of_new * hidden * reset * (1.0 - reset);
            let of_update = outer * (old - new) * update * (1.0 - update);
            let input = [of_reset, of_update, of_new];
            let recurrent = [of_reset, of_update, of_new * reset];
            spread(&of_input, row, column, columns, &input);
            spread(&of_hidden, row, column, columns, &recurrent);
            of_input_bias.add(column, &input);
            of_hidden_bias.add(column, &recurrent);
            of_old.set(of_old.at(&[row, column]), outer * update);
        });
        of_input_bias.write(run.wanted(3));
        of_hidden_bias.write(run.wanted(4));
        Ok(())
    }
}
