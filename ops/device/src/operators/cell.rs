//! Recurrent cells behind their matrix products, and their gradients.

use std::ffi::CStr;

use outrigger_ops::{Call, Tensor};

use super::reduce;
use crate::call::{Asked, Result, agrees, unsupported};
use crate::device::{Device, element};
use crate::kernel::Parameters;
use crate::layout::groups;
use crate::source::{Definitions, Text};
use crate::work::Prepared;

/// In the order of their numbers in the text.
const NAMES: [&CStr; 4] = [
    c"lstm_cell",
    c"lstm_cell_backward",
    c"gru_cell",
    c"gru_cell_backward",
];

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    NAMES.into_iter()
}

/// Tensors that a cell reads and writes, at most.
const INPUTS: usize = 5;
const OUTPUTS: usize = 3;

const WORDS: usize = 2 + 2 * (INPUTS + OUTPUTS);

/// The gradient of a bias: a gradient of gates, summed over its rows.
struct OfBias {
    sum: Prepared,
    gates: usize,
    output: usize,
}

impl OfBias {
    fn new(device: &Device, call: &Call<'_>, gates: usize, output: usize) -> Result<Option<Self>> {
        let Some(bias) = call.maybe_output(output) else {
            return Ok(None);
        };
        let (sizes, strides) = ([1, bias.numel()], [0, bias.strides()[0]]);
        let row = Tensor::new(bias.address(), bias.dtype(), &sizes, &strides);
        let call = Call {
            inputs: std::slice::from_ref(call.output(gates)?),
            outputs: std::slice::from_ref(&row),
            ..Call::default()
        };
        let sum = reduce::make(device, c"sum", &call)?;
        Ok(Some(Self { sum, gates, output }))
    }
}

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    agrees(name, call)?;
    let Some(kind) = NAMES.iter().position(|one| *one == name) else {
        return unsupported("it is no cell");
    };
    let (inputs, outputs) = [(5, 3), (5, 2), (5, 2), (2, 3)][kind];
    let places: [Option<usize>; INPUTS] =
        std::array::from_fn(|at| (at < inputs).then(|| call.place(at)).flatten());
    let optional = if kind == 1 { [0, 1] } else { [3, 4] };
    // The state; of a gradient of GRU, that of the new one.
    let state = call.input(places[if kind == 3 { 0 } else { 2 }].unwrap_or(0))?;
    let class = device.class(state.dtype())?;
    if state.numel() == 0 {
        return unsupported("a state without elements");
    }
    let chunk: i64 = match device.is_serial() {
        true => 1024,
        false => i64::from(device.group()),
    };
    let mut definitions = Definitions::default();
    definitions
        .set("KIND", kind)
        .set("A", element(state.dtype()))
        .set("T", class.name())
        .set("CHUNK", chunk);
    for (name, at) in ["FIRST", "SECOND"].iter().zip(optional) {
        definitions.set(name, i32::from(places[at].is_some()));
    }
    let mut words = [0; WORDS];
    words[0] = state.numel() as u64;
    words[1] = state.sizes()[1] as u64;
    let read = places.map(|at| at.and_then(|at| call.maybe_input(at)));
    let written = (0..outputs).map(|at| call.maybe_output(at));
    for (at, one) in read.into_iter().chain(written).enumerate() {
        // A bias is a row.
        let strides = one.map_or(&[][..], |one| one.strides());
        for (word, stride) in words[2 + 2 * at..4 + 2 * at]
            .iter_mut()
            .rev()
            .zip(strides.iter().rev())
        {
            *word = *stride as u64;
        }
    }
    let takes = Parameters {
        addresses: INPUTS + OUTPUTS,
        words: WORDS,
    };
    let kernel = device.kernel(Text::Cell, definitions, takes)?;
    let launched = groups(state.numel(), chunk)?;
    let of_biases = match kind {
        1 => [OfBias::new(device, call, 0, 2)?, None],
        3 => [
            OfBias::new(device, call, 0, 3)?,
            OfBias::new(device, call, 1, 4)?,
        ],
        _ => [None, None],
    };
    let workspaces = of_biases.iter().flatten();
    let workspace = workspaces.map(|one| one.sum.workspace_bytes).max();
    Ok(Prepared::with_workspace(
        workspace.unwrap_or(0),
        move |launch| {
            let first = launch.outputs[0];
            let mut addresses = [first; INPUTS + OUTPUTS];
            for (address, place) in addresses.iter_mut().zip(places) {
                *address = place.map_or(first, |at| launch.inputs[at]);
            }
            addresses[INPUTS..INPUTS + outputs].copy_from_slice(&launch.outputs[..outputs]);
            launch.run(&kernel, launched, &addresses, &words)?;
            for one in of_biases.iter().flatten() {
                let (gates, bias) = (launch.outputs[one.gates], launch.outputs[one.output]);
                launch.part(&one.sum, &[gates], &[bias], launch.workspace)?;
            }
            Ok(())
        },
    ))
}
