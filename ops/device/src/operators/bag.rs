//! Bags of rows of a table.

use std::ffi::CStr;

use outrigger_ops::{Call, Tensor};

use crate::call::{Asked, Result, agrees, invalid};
use crate::device::{Device, element};
use crate::kernel::Parameters;
use crate::layout::groups;
use crate::source::{Definitions, Text};
use crate::work::{Checks, Prepared, WRONG};

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    [c"embedding_bag"].into_iter()
}

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    agrees(name, call)?;
    let [Some(at_table), Some(at_indices), Some(at_offsets)] = [0, 1, 2].map(|at| call.place(at))
    else {
        return invalid("table, indices or offsets are missing");
    };
    let at_factors = call.place(6);
    let (table, indices) = (call.input(at_table)?, call.input(at_indices)?);
    let offsets = call.input(at_offsets)?;
    let factors = at_factors.and_then(|at| call.maybe_input(at));
    let out = call.output(0)?;
    let [numbers, sizes, largest] = [call.output(1)?, call.output(2)?, call.output(3)?];
    let (class, sums) = (device.class(table.dtype())?, device.sums());
    let mut definitions = Definitions::default();
    definitions
        .set("MODE", call.integer(4)?)
        .set("FACTORS", i32::from(factors.is_some()))
        .set("T", class.name())
        .set("SUM", sums.name());
    let types = [
        ("A", table),
        ("I", indices),
        ("O", offsets),
        ("N", numbers),
        ("S", sizes),
        ("L", largest),
    ];
    for (name, one) in types {
        definitions.set(name, element(one.dtype()));
    }
    let stride = |one: Option<&Tensor<'_>>, at: usize| {
        one.and_then(|one| one.strides().get(at))
            .copied()
            .unwrap_or(0)
    };
    let (bags, columns) = (out.sizes()[0], out.sizes()[1]);
    let words = [
        bags,
        offsets.numel(),
        indices.numel(),
        table.sizes()[0],
        columns,
        call.integer(8)?,
        numbers.numel(),
        sizes.numel(),
        largest.numel(),
        stride(Some(table), 0),
        stride(Some(table), 1),
        stride(Some(out), 0),
        stride(Some(out), 1),
        stride(Some(largest), 0),
        stride(Some(largest), 1),
        stride(Some(indices), 0),
        stride(Some(offsets), 0),
        stride(factors, 0),
        stride(Some(numbers), 0),
        stride(Some(sizes), 0),
    ]
    .map(|number| number as u64);
    let takes = Parameters {
        addresses: 9,
        words: words.len(),
    };
    let kernel = device.kernel(Text::Bag, definitions, takes)?;
    let launched = groups(bags + 1, 1)?;
    let checks = Checks::new(device.host_visible);
    Ok(Prepared::with_workspace(WRONG, move |launch| {
        launch.checked(&checks, |launch, wrong| {
            // A tensor without elements may have no address.
            let or = |address: u64| if address == 0 { wrong } else { address };
            let [table, indices, offsets] =
                [at_table, at_indices, at_offsets].map(|at| or(launch.inputs[at]));
            let factors = at_factors.map_or(table, |at| or(launch.inputs[at]));
            let [out, numbers, sizes, largest] = [0, 1, 2, 3].map(|at| or(launch.outputs[at]));
            let addresses = [
                table, indices, offsets, factors, out, numbers, sizes, largest, wrong,
            ];
            launch.run(&kernel, launched, &addresses, &words)
        })
    }))
}
