//! Orders along a dimension: `sort`, `argsort` and `topk`.

use std::ffi::CStr;
use std::sync::Arc;

use outrigger_ops::Call;

use crate::call::{Asked, Result, agrees, invalid, unsupported};
use crate::device::{Device, element};
use crate::kernel::{Kernel, Parameters};
use crate::layout::{RANK, along, groups};
use crate::source::{Definitions, Text};
use crate::work::Prepared;

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    [c"sort", c"argsort", c"topk"].into_iter()
}

/// Elements that a group sorts in local memory.
const TILE: i64 = 1024;

/// Pairs that an item merges at a time.
const PART: i64 = 16;

const WORDS: usize = 9 + 4 * RANK;

/// A step, with the part of the workspace that it takes its pairs from. A part that it does not need is not looked at.
struct Step {
    kernel: Arc<Kernel>,
    groups: u32,
    words: [u64; WORDS],
    from: usize,
}

/// The kernels of a sort.
struct Maker<'a> {
    device: &'a Device,
    definitions: Definitions,
    lines: i64,
    words: [u64; WORDS],
}

impl Maker<'_> {
    /// A step over `n` pairs of each line.
    fn step(
        &self,
        (kind, first, last): (i32, bool, bool),
        n: i64,
        [kept, line, width]: [i64; 3],
        from: usize,
    ) -> Result<Step> {
        let mut definitions = self.definitions.clone();
        definitions
            .set("KIND", kind)
            .set("FIRST", i32::from(first))
            .set("LAST", i32::from(last));
        let takes = Parameters {
            addresses: 7,
            words: WORDS,
        };
        let tiles = i64::from(groups(n, TILE)?);
        let mut words = self.words;
        for (word, number) in words[1..].iter_mut().zip([n, tiles, kept, line, width]) {
            *word = number as u64;
        }
        Ok(Step {
            kernel: self.device.kernel(Text::Sort, definitions, takes)?,
            groups: groups(self.lines.saturating_mul(tiles), 1)?,
            words,
            from,
        })
    }

    /// All steps, for the first `k` of `n` elements.
    fn steps(&self, n: i64, k: i64) -> Result<Vec<Step>> {
        let (mut n, mut steps, mut from) = (n, Vec::new(), 0);
        // Few of many: the first ones of each tile, until one tile has them all.
        if k <= TILE / 2 {
            while n > TILE {
                let last = n % TILE;
                let rest = if last > 0 { last.min(k) } else { 0 };
                let kept = n / TILE * k + rest;
                steps.push(self.step((0, steps.is_empty(), false), n, [k, kept, 0], from)?);
                (n, from) = (kept, 1 - from);
            }
        }
        if n <= TILE {
            steps.push(self.step((0, steps.is_empty(), true), n, [k, 0, 0], from)?);
            return Ok(steps);
        }
        steps.push(self.step((0, true, false), n, [TILE, n, 0], from)?);
        from = 1 - from;
        let mut width = TILE;
        while width < n {
            steps.push(self.step((1, false, false), n, [0, 0, width], from)?);
            (width, from) = (2 * width, 1 - from);
        }
        steps.push(self.step((2, false, true), n, [k, 0, 0], from)?);
        Ok(steps)
    }
}

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    agrees(name, call)?;
    let Some(at_input) = call.place(0) else {
        return invalid("the input is missing");
    };
    let input = call.input(at_input)?;
    let has_values = name != c"argsort";
    let indices = call.output(usize::from(has_values))?;
    let values = if has_values { call.output(0)? } else { indices };
    let class = device.class(input.dtype())?;
    let lines = along(&[input, values, indices], call.integer(2)?)?;
    let n = lines.size;
    let k = if name == c"topk" { call.integer(1)? } else { n };
    if i32::try_from(n).is_err() {
        return unsupported("lines of more than 2^31 elements");
    }
    if indices.numel() == 0 {
        return Ok(Prepared::nothing());
    }
    let key = if class.bytes() == 4 { "u32" } else { "u64" };
    let of_tile = 2 * TILE as u64 * (class.bytes() + 4);
    if !device.has_local(of_tile as u32) {
        return unsupported(format!(
            "the device has less than {of_tile} bytes of local memory"
        ));
    }
    let mut definitions = Definitions::default();
    definitions
        .set("A", element(input.dtype()))
        .set("T", class.name())
        .set("K", key);
    definitions
        .set("FLOATS", i32::from(class.is_float()))
        .set("DESCENDING", i32::from(call.truth(3)?))
        .set("VALUES", i32::from(has_values));
    definitions.set("TILE", TILE).set("PART", PART);
    let mut words = [0; WORDS];
    words[0] = lines.others.rank() as u64;
    for (word, step) in words[6..].iter_mut().zip(&lines.steps) {
        *word = *step as u64;
    }
    lines.write(&mut words[9..]);
    let maker = Maker {
        device,
        definitions,
        lines: lines.others.numel(),
        words,
    };
    let steps = maker.steps(n, k)?;
    // Keys, and numbers behind them, twice.
    let pairs = if steps.len() > 1 {
        (maker.lines * n) as u64
    } else {
        0
    };
    let of_keys = (pairs * class.bytes()).next_multiple_of(16);
    let part = of_keys + (pairs * 4).next_multiple_of(16);
    Ok(Prepared::with_workspace(2 * part, move |launch| {
        let input = launch.inputs[at_input];
        let values = launch.outputs[0];
        let indices = launch.outputs[usize::from(has_values)];
        let workspace = if pairs > 0 { launch.workspace } else { indices };
        for step in &steps {
            let from = workspace + step.from as u64 * part;
            let to = workspace + (1 - step.from) as u64 * part;
            let addresses = [
                input,
                values,
                indices,
                from,
                from + of_keys,
                to,
                to + of_keys,
            ];
            launch.run(&step.kernel, step.groups, &addresses, &step.words)?;
        }
        Ok(())
    }))
}
