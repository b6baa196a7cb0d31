//! Running results along a dimension, and sorting.

use outrigger_device::DType;

use super::numbers::{count, values};
use super::operand::{Given, Operand, Runner, schema_gives};
use crate::Verdict;

pub(super) fn cumprod(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, sizes) in [[1i64, 1, 1], [3, 5, 7], [2, 20, 9]]
        .into_iter()
        .enumerate()
    {
        let x = values(dtype, count(&sizes), (0.8, 1.25), seed as u64);
        for dim in 0..3 {
            let inner: i64 = sizes[dim + 1..].iter().product();
            let mut expected = x.clone();
            for at in 0..x.len() {
                if at as i64 / inner % sizes[dim] > 0 {
                    expected[at] *= expected[at - inner as usize];
                }
            }
            let a = Operand::dense(on, dtype, &sizes, &x)?;
            let out = Operand::dense(on, dtype, &sizes, &vec![99.0; x.len()])?;
            // The dtype may be left out.
            let to = if dim == 0 {
                Given::Dtype(dtype)
            } else {
                Given::Nothing
            };
            let given = [Given::In(&a), Given::Int(dim as i64 - 3), to];
            let what = format!("{name} of {sizes:?} over dimension {dim}");
            let expected = [Some(expected.as_slice())];
            schema_gives(on, name, &given, &[Some(&out)], &expected, &what)?;
        }
    }
    Ok(())
}
