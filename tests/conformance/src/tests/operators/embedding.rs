//! Bags of rows of a table. References go through all samples for each element of the result.

use outrigger_device::DType;

use super::array::{Array, array, empty, turned};
use super::operand::{Given, Operand, Runner, schema_gives};
use crate::Verdict;

const ROWS: [i64; 2] = [7, 5];
const SAMPLES: [i64; 9] = [3, 0, 6, 3, 3, 1, 5, 0, 2];

/// One list of bags.
struct Case {
    /// The places where bags begin, and where the last one ends if the call says so.
    offsets: &'static [i64],
    with_last: bool,
    padding: i64,
    weights: bool,
}

const CASES: [Case; 4] = [
    Case {
        offsets: &[0, 2, 2, 7],
        with_last: false,
        padding: -1,
        weights: true,
    },
    // The samples behind the last bag are in none.
    Case {
        offsets: &[0, 4, 4, 8],
        with_last: true,
        padding: 3,
        weights: false,
    },
    // A bag of nothing but padding.
    Case {
        offsets: &[0, 3, 5],
        with_last: false,
        padding: 3,
        weights: true,
    },
    Case {
        offsets: &[0],
        with_last: true,
        padding: -1,
        weights: false,
    },
];

impl Case {
    fn bags(&self) -> usize {
        self.offsets.len() - usize::from(self.with_last)
    }

    /// The bag of a sample: the last one that begins at it or before.
    fn bag_of(&self, sample: usize) -> usize {
        let begun = self.offsets.iter().filter(|start| **start <= sample as i64);
        begun.count() - 1
    }

    /// The samples of a bag that count.
    fn samples(&self, bag: usize) -> Vec<usize> {
        let all = 0..SAMPLES.len();
        all.filter(|sample| self.bag_of(*sample) == bag && SAMPLES[*sample] != self.padding)
            .collect()
    }
}

/// The result of a mode for a column of a bag: the values of its samples.
fn together(mode: i64, values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    match mode {
        _ if values.is_empty() => 0.0,
        0 => sum,
        1 => sum / values.len() as f64,
        _ => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    }
}

pub(super) fn embedding_bag(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    let table = array(dtype, &ROWS, 1);
    let factors = array(dtype, &[SAMPLES.len() as i64], 2);
    let list = |dtype, values: &[i64]| {
        let numbers: Vec<f64> = values.iter().map(|value| *value as f64).collect();
        Operand::dense(on, dtype, &[values.len() as i64], &numbers)
    };
    for (index_type, (mode, case)) in [DType::I64, DType::I32].into_iter().cycle().zip(
        CASES
            .iter()
            .flat_map(|case| (0..3).map(move |mode| (mode, case))),
    ) {
        let weighted = mode == 0 && case.weights;
        let bags = case.bags() as i64;
        let factor = |sample: usize| {
            if weighted {
                factors.values[sample]
            } else {
                1.0
            }
        };
        let value =
            |sample: usize, column: i64| table.at(&[SAMPLES[sample], column]) * factor(sample);
        let expected = Array::of(&[bags, ROWS[1]], |at| {
            let samples = case.samples(at[0] as usize);
            let values: Vec<f64> = samples.iter().map(|one| value(*one, at[1])).collect();
            together(mode, &values)
        });
        let all = 0..SAMPLES.len();
        let of_sample: Vec<f64> = all.map(|sample| case.bag_of(sample) as f64).collect();
        // The last offset has a size, too: it is 0.
        let sizes = (0..case.offsets.len()).map(|bag| match bag {
            bag if bag < case.bags() => case.samples(bag).len() as f64,
            _ => 0.0,
        });
        let sizes: Vec<f64> = sizes.collect();
        let largest = Array::of(&expected.sizes, |at| {
            let samples = case.samples(at[0] as usize);
            let mut samples = samples.iter();
            let best = samples.find(|one| value(**one, at[1]) == expected.at(at));
            best.map_or(-1.0, |best| SAMPLES[*best] as f64)
        });
        let (weight, indices) = (turned(on, dtype, &table)?, list(index_type, &SAMPLES)?);
        let (offsets, by_sample) = (
            list(index_type, case.offsets)?,
            turned(on, dtype, &factors)?,
        );
        let out = empty(on, dtype, &expected.sizes)?;
        let of_sample_out = empty(on, index_type, &[SAMPLES.len() as i64])?;
        let sizes_out = empty(on, index_type, &[sizes.len() as i64])?;
        let largest_out = match mode {
            2 => empty(on, index_type, &expected.sizes)?,
            _ => empty(on, index_type, &[0])?,
        };
        let given = [
            Given::In(&weight),
            Given::In(&indices),
            Given::In(&offsets),
            Given::Truth(false),
            Given::Int(mode),
            Given::Truth(false),
            if weighted {
                Given::In(&by_sample)
            } else {
                Given::Nothing
            },
            Given::Truth(case.with_last),
            Given::Int(case.padding),
        ];
        let results = [&out, &of_sample_out, &sizes_out, &largest_out].map(Some);
        let largest = if mode == 2 { &*largest.values } else { &[] };
        let expected = [&*expected.values, &of_sample, &sizes, largest].map(Some);
        let what = format!("{name} of bags from {:?}, mode {mode}", case.offsets);
        schema_gives(on, name, &given, &results, &expected, &what)?;
    }
    Ok(())
}
