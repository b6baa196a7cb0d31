//! Operators that many libraries have, for tests of how any operator is prepared and launched.

use outrigger_device::{DType, Driver, Operator, Queue, Result};

use super::library::{Library, Workspace, prepare};
use super::numbers::{close, count, values};
use super::operand::{Arguments, Operand, Runner, gives};
use crate::{Failure, Verdict};

/// The output for these inputs and the scalar, of which there is one at most.
type Reference = fn(&[Vec<f64>], f64) -> Vec<f64>;

/// An operator on dense operands.
#[derive(Clone, Copy)]
pub(in crate::tests) struct Sample {
    pub(in crate::tests) name: &'static str,
    pub(in crate::tests) dtype: DType,
    /// The sizes of each operand.
    sizes: &'static [i64],
    inputs: usize,
    reference: Reference,
}

/// Rows and columns of matrices.
const SIDE: usize = 40;
const SQUARE: &[i64] = &[SIDE as i64, SIDE as i64];
const LINE: &[i64] = &[1000];

/// Name, sizes, number of inputs and result.
const OPERATORS: [(&str, &[i64], usize, Reference); 4] = [
    ("neg", LINE, 1, |x, _| x[0].iter().map(|x| -x).collect()),
    ("add", LINE, 2, |x, alpha| {
        x[0].iter().zip(&x[1]).map(|(x, y)| x + alpha * y).collect()
    }),
    ("mul", LINE, 2, |x, _| {
        x[0].iter().zip(&x[1]).map(|(x, y)| x * y).collect()
    }),
    ("mm", SQUARE, 2, |x, _| {
        let entry = |at: usize| {
            let (row, column) = (at / SIDE, at % SIDE);
            let products = (0..SIDE).map(|i| x[0][row * SIDE + i] * x[1][i * SIDE + column]);
            products.sum()
        };
        (0..SIDE * SIDE).map(entry).collect()
    }),
];

impl Sample {
    /// The samples that the driver takes, and the others.
    pub(in crate::tests) fn sorted(driver: &Driver) -> Verdict<(Vec<Self>, Vec<Self>)> {
        let (mut taken, mut others) = (Vec::new(), Vec::new());
        for (name, sizes, inputs, reference) in OPERATORS {
            for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
                let sample = Self {
                    name,
                    dtype,
                    sizes,
                    inputs,
                    reference,
                };
                match sample.prepare(driver, 0)? {
                    Some(_) => taken.push(sample),
                    None => others.push(sample),
                }
            }
        }
        Ok((taken, others))
    }

    /// The name and the element type of the sample.
    pub(super) fn what(&self) -> String {
        format!("{} of {}", self.name, self.dtype.name())
    }

    /// Asks a device for it, without an address and without a scalar.
    pub(super) fn prepare(&self, driver: &Driver, device: u32) -> Verdict<Option<(Operator, u64)>> {
        prepare(driver, device, &self.question()?.call())
    }

    /// An operator that the driver is known to have, and the bytes of its workspace.
    pub(super) fn prepared(&self, driver: &Driver, device: u32) -> Verdict<(Operator, u64)> {
        let prepared = self.prepare(driver, device)?;
        prepared.ok_or_else(|| Failure::new(format!("R45: `{}` is prepared again", self.name)))
    }

    /// The call, without memory.
    pub(super) fn question(&self) -> Verdict<Arguments> {
        let operand = Operand::nowhere(self.dtype, self.sizes);
        Arguments::new(self.name, &vec![&operand; self.inputs], &[&operand], &[])
    }

    /// Inputs by a seed.
    pub(super) fn inputs(&self, seed: u64) -> Vec<Vec<f64>> {
        let seeds = (0..self.inputs as u64).map(|at| seed * 16 + at);
        seeds
            .map(|seed| values(self.dtype, count(self.sizes), (-2.0, 2.0), seed))
            .collect()
    }

    /// Checks what a runner, which has it, makes of inputs of a seed.
    pub(in crate::tests) fn gives(&self, on: &dyn Runner, seed: u64) -> Verdict {
        let (inputs, out) = self.operands(on, seed)?;
        let expected = (self.reference)(&self.inputs(seed), 1.0);
        let inputs: Vec<&Operand> = inputs.iter().collect();
        gives(
            on,
            self.name,
            &inputs,
            &[&out],
            &[],
            &expected,
            &self.what(),
        )
    }

    /// Operands with inputs of a seed, and an output of nines.
    pub(in crate::tests) fn operands(
        &self,
        on: &dyn Runner,
        seed: u64,
    ) -> Verdict<(Vec<Operand>, Operand)> {
        let dense = |values: &[f64]| Operand::dense(on, self.dtype, self.sizes, values);
        let inputs = self.inputs(seed);
        let operands = inputs.iter().map(|x| dense(x)).collect::<Verdict<_>>()?;
        Ok((operands, dense(&vec![9.0; inputs[0].len()])?))
    }
}

/// Operands of a launch and its workspace, and what belongs into the output.
pub(super) struct Launch {
    sample: Sample,
    inputs: Vec<Operand>,
    pub(super) out: Operand,
    scalars: Vec<f64>,
    workspace: Workspace,
    expected: Vec<f64>,
}

impl Launch {
    /// A launch of an operator that wants so many bytes; inputs and what the workspace begins with follow the seed.
    pub(super) fn new(library: &Library, sample: Sample, bytes: u64, seed: u64) -> Verdict<Self> {
        Self::scaled(library, sample, bytes, seed, &[])
    }

    /// A launch with these scalars.
    pub(super) fn scaled(
        library: &Library,
        sample: Sample,
        bytes: u64,
        seed: u64,
        scalars: &[f64],
    ) -> Verdict<Self> {
        let (inputs, out) = sample.operands(library, seed)?;
        let scalar = scalars.first().copied().unwrap_or(1.0);
        Ok(Self {
            sample,
            inputs,
            out,
            scalars: scalars.to_vec(),
            workspace: Workspace::new(library, bytes, seed as u8)?,
            expected: (sample.reference)(&sample.inputs(seed), scalar),
        })
    }

    /// Writes inputs of another seed in order of a queue.
    pub(super) fn set_inputs(&self, queue: &Queue, seed: u64) -> Verdict {
        for (input, values) in self.inputs.iter().zip(self.sample.inputs(seed)) {
            input.set(queue, &values)?;
        }
        Ok(())
    }

    /// Launches it; the call and all that it points to are gone when this returns.
    pub(super) fn submit(&self, queue: &Queue, operator: &Operator) -> Verdict {
        Ok(self.try_submit(queue, operator)??)
    }

    /// Submits the launch, and gives the answer of the driver.
    pub(super) fn try_submit(&self, queue: &Queue, operator: &Operator) -> Verdict<Result<()>> {
        let inputs: Vec<&Operand> = self.inputs.iter().collect();
        let arguments = Arguments::new(self.sample.name, &inputs, &[&self.out], &self.scalars)?;
        let (call, workspace) = (arguments.call(), self.workspace.address);
        // SAFETY: the operator was prepared for this sample, and what the call points to lives through it;
        // the memory goes at the end of the test, which waits.
        let answer = unsafe { queue.launch_operator(operator, &call, workspace) };
        arguments.wipe();
        Ok(answer)
    }

    /// Checks the output, and that nothing else was written. The work is over.
    pub(super) fn is_done(&self, library: &Library, what: &str) -> Verdict {
        let what = format!("{}, {what}", self.sample.what());
        close(
            self.sample.dtype,
            &self.out.values(library, &what)?,
            &self.expected,
            &what,
        )?;
        for input in &self.inputs {
            input.values(library, &what)?;
        }
        self.workspace.is_kept(library)
    }
}
