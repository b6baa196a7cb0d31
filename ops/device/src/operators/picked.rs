//! Elements that tensors of indices pick together: `index` and `index_put`.

use std::ffi::CStr;

use outrigger_device::DType;
use outrigger_ops::{Argument, Call, Tensor};

use super::index::bits;
use super::sums::Sums;
use crate::call::{Asked, Result, agrees, invalid, unsupported};
use crate::device::{Device, element};
use crate::kernel::Parameters;
use crate::layout::{Layout, RANK, groups};
use crate::source::{Definitions, Text};
use crate::work::{Checks, Prepared, WRONG};

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    [c"index", c"index_put"].into_iter()
}

/// The most tensors of indices.
const PICKS: usize = 4;

/// A tensor of indices: its place among the inputs, its dtype, and the dimension that it leads along.
struct Pick {
    at: usize,
    dtype: DType,
    dim: usize,
}

/// An indexed tensor, with strides by the places of the result.
struct Picked {
    sizes: Vec<i64>,
    /// Of the tensor, 0 where indices lead along a dimension.
    tensor: Vec<i64>,
    /// Of each tensor of indices.
    indices: Vec<Vec<i64>>,
    picks: Vec<Pick>,
}

impl Picked {
    /// Of a call whose operands go together.
    fn of(call: &Call<'_>, tensor: &Tensor<'_>) -> Result<Self> {
        let Argument::Inputs(range) = call.argument(1) else {
            return invalid("argument 1 is a list of indices");
        };
        let mut picks = Vec::new();
        for (dim, at) in range.enumerate() {
            if let Some(one) = call.maybe_input(at) {
                let dtype = one.dtype();
                picks.push(Pick { at, dtype, dim });
            }
        }
        if picks.is_empty() || picks.len() > PICKS {
            return unsupported(format!("{} tensors of indices", picks.len()));
        }
        let given = |pick: &Pick| &call.inputs[pick.at];
        let rank = picks.iter().map(|pick| given(pick).rank()).max();
        let mut common = vec![1; rank.unwrap_or(0)];
        for pick in &picks {
            for (all, size) in common
                .iter_mut()
                .rev()
                .zip(given(pick).sizes().iter().rev())
            {
                if *size != 1 {
                    *all = *size;
                }
            }
        }
        // Indices that stand apart put their common dimensions in front.
        let together = picks.windows(2).all(|two| two[1].dim == two[0].dim + 1);
        let first = if together { picks[0].dim } else { 0 };
        let others = (0..tensor.rank()).filter(|dim| picks.iter().all(|pick| pick.dim != *dim));
        let (mut sizes, mut strides) = (Vec::new(), Vec::new());
        for dim in others {
            sizes.push(tensor.sizes()[dim]);
            strides.push(tensor.strides()[dim]);
        }
        sizes.splice(first..first, common.iter().copied());
        strides.splice(first..first, common.iter().map(|_| 0));
        let of_indices = |pick: &Pick| {
            let one = given(pick);
            let mut own = vec![0; sizes.len()];
            let places = own[..first + common.len()].iter_mut().rev();
            for (place, (size, stride)) in places.zip(one.sizes().iter().zip(one.strides()).rev()) {
                *place = if *size == 1 { 0 } else { *stride };
            }
            own
        };
        Ok(Self {
            indices: picks.iter().map(of_indices).collect(),
            tensor: strides,
            sizes,
            picks,
        })
    }
}

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    agrees(name, call)?;
    let puts = name == c"index_put";
    let at_dense = if puts { call.place(2) } else { None };
    let out = call.output(0)?;
    // The first is the tensor that is indexed, the second has an element for each place.
    let (tensor, dense) = match (puts, at_dense, call.place(0)) {
        (true, Some(at), _) => (out, call.input(at)?),
        (false, _, Some(at)) => (call.input(at)?, out),
        _ => return invalid("the input or the values are missing"),
    };
    let adds = puts && call.truth(3)?;
    let Picked {
        sizes,
        tensor: mut of_tensor,
        indices,
        picks,
    } = Picked::of(call, tensor)?;
    let sums = match adds {
        true => Some(Sums::new(device, Some(out), out)?),
        false => None,
    };
    if let Some(sums) = &sums {
        // The sums may lie elsewhere, densely.
        let moved = Tensor::new(64, sums.dtype, out.sizes(), &sums.strides);
        of_tensor = Picked::of(call, &moved)?.tensor;
    }
    let steps: Vec<i64> = match &sums {
        Some(sums) => picks.iter().map(|pick| sums.strides[pick.dim]).collect(),
        None => picks
            .iter()
            .map(|pick| tensor.strides()[pick.dim])
            .collect(),
    };
    let mut layout = Layout::broadcast(&sizes, &[dense])?;
    layout.strides.push(of_tensor);
    layout.strides.extend(indices);
    let layout = layout.simple(true);
    if layout.rank() > RANK {
        return unsupported(format!("more than {RANK} dimensions"));
    }
    let (moved, class) = match &sums {
        Some(sums) => (dense.dtype(), device.class(sums.dtype)?),
        None => bits(dense.dtype())?,
    };
    let target = sums.as_ref().map_or(moved, |sums| sums.dtype);
    let chunk: i64 = match device.is_serial() {
        true => 2048,
        false => 2 * i64::from(device.group()),
    };
    let mut definitions = Definitions::default();
    definitions
        .set("KIND", i32::from(puts) + i32::from(adds))
        .set("A", element(moved))
        .set("OUT", element(target));
    definitions
        .set("T", class.name())
        .set("PICKS", picks.len())
        .set("CHUNK", chunk);
    for (at, pick) in picks.iter().enumerate() {
        definitions.set(format_args!("I{at}"), element(pick.dtype));
    }
    let mut words = vec![layout.numel() as u64, layout.rank() as u64];
    let padded = |list: &[i64]| -> Vec<u64> {
        let numbers = list.iter().map(|number| *number as u64);
        numbers.chain(std::iter::repeat(0)).take(RANK).collect()
    };
    let (from, to) = if puts { (0, 1) } else { (1, 0) };
    words.extend(padded(&layout.sizes));
    words.extend(padded(&layout.strides[from]));
    words.extend(padded(&layout.strides[to]));
    for strides in &layout.strides[2..] {
        words.extend(padded(strides));
    }
    words.extend(picks.iter().map(|pick| tensor.sizes()[pick.dim] as u64));
    words.extend(steps.iter().map(|step| *step as u64));
    let takes = Parameters {
        addresses: 3 + picks.len(),
        words: words.len(),
    };
    let launched = groups(layout.numel(), chunk)?;
    let kernel = device.kernel(Text::Picked, definitions, takes)?;
    let checks = Checks::new(device.host_visible);
    let at_in = if puts { at_dense } else { call.place(0) }.unwrap_or(0);
    let workspace = WRONG + sums.as_ref().map_or(0, Sums::workspace_bytes);
    Ok(Prepared::with_workspace(workspace, move |launch| {
        let out = launch.outputs[0];
        let place = match &sums {
            Some(sums) => sums.begin(launch, out, out, launch.workspace + WRONG)?,
            None => out,
        };
        launch.checked(&checks, |launch, wrong| {
            let mut addresses = [0; 3 + PICKS];
            addresses[..3].copy_from_slice(&[launch.inputs[at_in], place, wrong]);
            for (address, pick) in addresses[3..].iter_mut().zip(&picks) {
                *address = launch.inputs[pick.at];
            }
            launch.run(&kernel, launched, &addresses[..3 + picks.len()], &words)?;
            match &sums {
                Some(sums) => sums.finish(launch, place, out),
                None => Ok(()),
            }
        })
    }))
}
