//! Layouts of operands, brought to as few dimensions as possible. Arithmetic over sizes and strides alone.

use outrigger_ops::Tensor;

use crate::call::{Result, unsupported};

/// The most dimensions of an operand.
pub(crate) const RANK: usize = 8;

/// Sizes that several operands share, and the strides of each, the outermost dimension first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) sizes: Vec<i64>,
    pub(crate) strides: Vec<Vec<i64>>,
}

impl Layout {
    /// The dimensions of `sizes`, with the strides of operands that are broadcast to it.
    pub(crate) fn broadcast(sizes: &[i64], operands: &[&Tensor<'_>]) -> Result<Self> {
        let mut strides = Vec::new();
        for operand in operands {
            let Some(lead) = sizes.len().checked_sub(operand.rank()) else {
                return unsupported("an operand of more dimensions than the result");
            };
            let mut own = vec![0; sizes.len()];
            for (at, (&size, &stride)) in operand.sizes().iter().zip(operand.strides()).enumerate()
            {
                own[lead + at] = match size {
                    _ if size == sizes[lead + at] => stride,
                    1 => 0,
                    _ => {
                        return crate::call::invalid(format!(
                            "sizes {:?} are not broadcast to {sizes:?}",
                            operand.sizes()
                        ));
                    }
                };
            }
            strides.push(own);
        }
        Ok(Self {
            sizes: sizes.to_vec(),
            strides,
        })
    }

    /// Takes some of the dimensions.
    pub(crate) fn of_dimensions(&self, mut keep: impl FnMut(usize) -> bool) -> Self {
        let kept: Vec<usize> = (0..self.sizes.len()).filter(|at| keep(*at)).collect();
        let take = |list: &Vec<i64>| kept.iter().map(|at| list[*at]).collect();
        Self {
            sizes: take(&self.sizes),
            strides: self.strides.iter().map(take).collect(),
        }
    }

    /// Without dimensions of size 1, in the order of the first operand's strides if `sort`, and with neighbours joined
    /// that all operands walk as one.
    pub(crate) fn simple(&self, sort: bool) -> Self {
        let mut order: Vec<usize> = (0..self.sizes.len())
            .filter(|at| self.sizes[*at] != 1)
            .collect();
        if sort && let Some(first) = self.strides.first() {
            order.sort_by_key(|at| std::cmp::Reverse(first[*at].unsigned_abs()));
        }
        let mut simple = Self {
            sizes: Vec::new(),
            strides: vec![Vec::new(); self.strides.len()],
        };
        for at in order {
            let size = self.sizes[at];
            let joins = !simple.sizes.is_empty()
                && self
                    .strides
                    .iter()
                    .zip(&simple.strides)
                    .all(|(from, to)| to.last().is_some_and(|last| *last == from[at] * size));
            if joins {
                if let Some(last) = simple.sizes.last_mut() {
                    *last *= size;
                }
                for (from, to) in self.strides.iter().zip(&mut simple.strides) {
                    if let Some(last) = to.last_mut() {
                        *last = from[at];
                    }
                }
            } else {
                simple.sizes.push(size);
                for (from, to) in self.strides.iter().zip(&mut simple.strides) {
                    to.push(from[at]);
                }
            }
        }
        simple
    }

    /// With so many dimensions; those in front have size 1.
    pub(crate) fn padded(mut self, rank: usize) -> Self {
        while self.sizes.len() < rank {
            self.sizes.insert(0, 1);
            for strides in &mut self.strides {
                strides.insert(0, 0);
            }
        }
        self
    }

    pub(crate) fn rank(&self) -> usize {
        self.sizes.len()
    }

    pub(crate) fn numel(&self) -> i64 {
        self.sizes.iter().product()
    }

    /// The words of sizes, and then the strides of each operand.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let numbers = self.sizes.iter().chain(self.strides.iter().flatten());
        numbers.map(|number| *number as u64)
    }
}

/// The strides of a dense tensor, in row-major order.
pub(crate) fn dense(sizes: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; sizes.len()];
    for at in (1..sizes.len()).rev() {
        strides[at - 1] = strides[at] * sizes[at];
    }
    strides
}

/// The lines along a dimension of tensors whose other sizes are the same.
pub(crate) struct Lines {
    /// The other dimensions, with the strides of each tensor.
    pub(crate) others: Layout,
    /// Elements of a line of the first tensor, and how far they lie apart in each.
    pub(crate) size: i64,
    pub(crate) steps: Vec<i64>,
}

/// Lines along a dimension that may be counted from the end and that there is. A tensor without dimensions is a line of one
/// element.
pub(crate) fn along(tensors: &[&Tensor<'_>], dim: i64) -> Result<Lines> {
    let first = tensors[0];
    let rank = first.rank();
    let dim = if dim < 0 { dim + rank as i64 } else { dim } as usize;
    let all = Layout {
        sizes: first.sizes().to_vec(),
        strides: tensors.iter().map(|one| one.strides().to_vec()).collect(),
    };
    let others = all.of_dimensions(|at| at != dim).simple(false);
    if others.rank() > RANK {
        return unsupported(format!("more than {RANK} dimensions"));
    }
    let steps = tensors.iter().map(|one| one.strides().get(dim).copied());
    Ok(Lines {
        others,
        size: first.sizes().get(dim).copied().unwrap_or(1),
        steps: steps.map(|step| step.unwrap_or(0)).collect(),
    })
}

impl Lines {
    /// Writes sizes and strides into words, eight for each list.
    pub(crate) fn write(&self, words: &mut [u64]) {
        let lists = [&self.others.sizes].into_iter().chain(&self.others.strides);
        for (which, list) in lists.enumerate() {
            for (word, number) in words[which * RANK..].iter_mut().zip(list) {
                *word = *number as u64;
            }
        }
    }
}

/// The ranks for which kernels are made, so that few are compiled.
pub(crate) fn rank_class(rank: usize) -> Result<usize> {
    match rank {
        0..=2 => Ok(2),
        3 | 4 => Ok(4),
        5..=RANK => Ok(RANK),
        _ => unsupported(format!("more than {RANK} dimensions")),
    }
}

/// The number of groups for so many elements, `chunk` of them each.
pub(crate) fn groups(count: i64, chunk: i64) -> Result<u32> {
    match u32::try_from(count.max(0).div_euclid(chunk) + i64::from(count.rem_euclid(chunk) > 0)) {
        Ok(groups) if groups < 1 << 30 => Ok(groups),
        _ => unsupported("more elements than one launch has groups for"),
    }
}

#[cfg(test)]
mod tests {
    use outrigger_device::DType;
    use outrigger_ops::Tensor;

    use super::{Layout, groups};

    #[test]
    fn dimensions_that_all_operands_walk_alike_are_one() {
        let sizes = [2, 3, 4];
        let dense = [12, 4, 1];
        let a = Tensor::new(64, DType::F32, &sizes, &dense);
        let row = Tensor::new(64, DType::F32, &sizes[2..], &dense[2..]);
        let same = Layout::broadcast(&sizes, &[&a, &a]).unwrap().simple(true);
        assert_eq!(
            (same.sizes, same.strides),
            (vec![24], vec![vec![1], vec![1]])
        );
        let rows = Layout::broadcast(&sizes, &[&a, &row]).unwrap().simple(true);
        assert_eq!(rows.sizes, [6, 4]);
        assert_eq!(rows.strides, [[4, 1], [0, 1]]);
    }

    #[test]
    fn a_permuted_result_is_walked_in_its_own_order() {
        let (sizes, strides) = ([2, 3, 4], [1, 2, 6]);
        let a = Tensor::new(64, DType::F32, &sizes, &strides);
        let simple = Layout::broadcast(&sizes, &[&a, &a]).unwrap().simple(true);
        assert_eq!(
            (simple.sizes, simple.strides),
            (vec![24], vec![vec![1], vec![1]])
        );
    }

    #[test]
    fn groups_are_counted_up() {
        let counted = [0, 1, 8, 9].map(|count| groups(count, 8).unwrap());
        assert_eq!(counted, [0, 1, 1, 2]);
        assert!(groups(i64::MAX, 8).is_err());
    }
}
