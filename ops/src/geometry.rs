//! The layout of the operands of an elementwise call. Shapes are broadcast, dimensions are sorted so that memory is
//! walked in order, and dimensions are merged where all operands allow it.
//!
//! The result is what kernels iterate over: dimensions from the innermost to the outermost, each with its size and the
//! byte stride of every operand. Nothing here allocates, or knows what is computed.

use crate::call::Tensor;
use crate::error::{Result, invalid, unsupported};
use crate::plan::Plan;

/// Most operands of a kernel, outputs included.
pub(crate) const MAX_OPERANDS: usize = 4;

/// Most dimensions that are left after merging.
pub(crate) const MAX_RANK: usize = 12;

/// One dimension: its size and the byte strides of all operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dim {
    pub(crate) size: i64,
    pub(crate) strides: [i64; MAX_OPERANDS],
}

/// The dimensions of a call, innermost first.
#[derive(Debug)]
pub(crate) struct Geometry {
    pub(crate) dims: [Dim; MAX_RANK],
    pub(crate) rank: usize,
    /// Elements of the output.
    pub(crate) numel: i64,
}

impl Geometry {
    /// A geometry without dimensions: one element.
    pub(crate) fn empty() -> Self {
        let one = Dim {
            size: 1,
            strides: [0; MAX_OPERANDS],
        };
        Self {
            dims: [one; MAX_RANK],
            rank: 0,
            numel: 1,
        }
    }

    /// Adds the next outer dimension. If `ordered`, it goes outside of all others, else where memory order puts it.
    pub(crate) fn add(&mut self, dim: Dim, ordered: bool) -> Result<()> {
        self.numel = self.numel.saturating_mul(dim.size);
        if dim.size == 1 {
            return Ok(());
        }
        if !ordered {
            return insert(self, dim);
        }
        if self.rank == MAX_RANK {
            return if append_merged(self, &dim) {
                Ok(())
            } else {
                too_many()
            };
        }
        self.dims[self.rank] = dim;
        self.rank += 1;
        Ok(())
    }

    /// Merges dimensions where that is possible. Afterwards there is at least one dimension.
    pub(crate) fn finish(&mut self, operands: usize) {
        if self.rank == 0 {
            self.rank = 1;
        } else {
            merge(self, operands);
        }
    }

    /// Appends the dimensions to an argument block: for each its size, then its strides of `operands` operands.
    #[inline]
    pub(crate) fn push(&self, operands: usize, plan: &mut Plan) {
        for dim in &self.dims[..self.rank] {
            let [a, b, c, d] = dim.strides;
            plan.push_first(&[dim.size, a, b, c, d], 1 + operands);
        }
    }
}

/// The bytes of an element of an operand. Checks that the operand's address is a multiple of them.
#[inline]
pub(crate) fn checked_size(tensor: &Tensor<'_>) -> Result<i64> {
    let Some(size) = tensor.dtype().size() else {
        return unsupported(format!("element type {} is unknown", tensor.dtype().0));
    };
    if tensor.address() & (size.min(8) as u64 - 1) != 0 {
        return invalid(format!(
            "address {:#x} is not a multiple of the element size {size}",
            tensor.address()
        ));
    }
    Ok(size as i64)
}

/// A quick look at the operands of a call.
pub(crate) struct Shape {
    /// Elements of the output.
    pub(crate) numel: i64,
    /// The bytes of an element of each operand, output first.
    sizes: [i64; MAX_OPERANDS],
    /// If `dense`: the byte strides of all operands in the one dimension.
    steps: [i64; MAX_OPERANDS],
    /// Whether all operands of the output's size are contiguous, and all others are single elements.
    dense: bool,
}

/// Looks at an output, and at inputs that are broadcast to it.
#[inline]
pub(crate) fn shape(output: &Tensor<'_>, inputs: &[Tensor<'_>]) -> Result<Shape> {
    let mut sizes = [0i64; MAX_OPERANDS];
    let mut steps = [0i64; MAX_OPERANDS];
    sizes[0] = checked_size(output)?;
    steps[0] = sizes[0];
    let numel = output.numel();
    let mut dense = output.is_contiguous();
    for (k, input) in inputs.iter().enumerate() {
        let size = checked_size(input)?;
        sizes[k + 1] = size;
        let empty = numel == 0 && input.sizes() == output.sizes();
        if empty || is_contiguous_as(input, output.sizes()) {
            steps[k + 1] = size;
        } else {
            dense &= input.rank() <= output.rank() && input.sizes().iter().all(|&size| size == 1);
        }
    }
    Ok(Shape {
        numel,
        sizes,
        steps,
        dense,
    })
}

/// Whether a tensor has these sizes and is contiguous. One pass checks both, and most inputs pass.
#[inline]
fn is_contiguous_as(tensor: &Tensor<'_>, sizes: &[i64]) -> bool {
    if tensor.sizes().len() != sizes.len() {
        return false;
    }
    let mut expected = 1i64;
    let layout = tensor.sizes().iter().zip(tensor.strides());
    for ((&size, &stride), &wanted) in layout.zip(sizes).rev() {
        if size != wanted || (size != 1 && stride != expected) {
            return false;
        }
        expected *= size;
    }
    true
}

impl Shape {
    /// If operands are dense: the numbers of their one dimension, in the order of `Geometry::push`.
    #[inline]
    pub(crate) fn dense(&self) -> Option<[i64; MAX_OPERANDS + 1]> {
        let [a, b, c, d] = self.steps;
        self.dense.then_some([self.numel, a, b, c, d])
    }
}

/// Lays out an output and inputs that are broadcast to it.
pub(crate) fn broadcast(output: &Tensor<'_>, inputs: &[Tensor<'_>]) -> Result<Geometry> {
    let shape = shape(output, inputs)?;
    let Some([size, strides @ ..]) = shape.dense() else {
        return general(output, inputs, &shape);
    };
    let mut geometry = Geometry::empty();
    geometry.numel = shape.numel;
    geometry.rank = 1;
    geometry.dims[0] = Dim { size, strides };
    Ok(geometry)
}

/// [`broadcast`] for operands that are not dense.
#[inline(never)]
pub(crate) fn general(
    output: &Tensor<'_>,
    inputs: &[Tensor<'_>],
    shape: &Shape,
) -> Result<Geometry> {
    let mut geometry = Geometry::empty();
    geometry.numel = shape.numel;
    let rank = output.rank();
    for input in inputs {
        if input.rank() > rank {
            return invalid(shapes(
                "an input has more dimensions than the output",
                output,
                inputs,
            ));
        }
    }
    for back in 1..=rank {
        let size = output.sizes()[rank - back];
        let mut dim = Dim {
            size,
            strides: [0; MAX_OPERANDS],
        };
        dim.strides[0] = output.strides()[rank - back] * shape.sizes[0];
        for (k, input) in inputs.iter().enumerate() {
            if back > input.rank() {
                continue;
            }
            let at = input.rank() - back;
            if input.sizes()[at] == size {
                dim.strides[k + 1] = input.strides()[at] * shape.sizes[k + 1];
            } else if input.sizes()[at] != 1 {
                return invalid(shapes(
                    "an input cannot be broadcast to the output",
                    output,
                    inputs,
                ));
            }
        }
        if size != 1 {
            insert(&mut geometry, dim)?;
        }
    }
    geometry.finish(inputs.len() + 1);
    Ok(geometry)
}

/// Inserts a dimension in memory order: dimensions with small strides are inside. The output's stride decides, then the
/// inputs'. Dimensions come innermost first, and equal ones keep that order.
#[inline]
fn insert(geometry: &mut Geometry, dim: Dim) -> Result<()> {
    let rank = geometry.rank;
    if rank == MAX_RANK {
        return if append_merged(geometry, &dim) {
            Ok(())
        } else {
            too_many()
        };
    }
    let mut at = rank;
    while at > 0 && is_inner(&dim, &geometry.dims[at - 1]) {
        geometry.dims[at] = geometry.dims[at - 1];
        at -= 1;
    }
    geometry.dims[at] = dim;
    geometry.rank += 1;
    Ok(())
}

#[cold]
fn too_many() -> Result<()> {
    unsupported(format!(
        "more than {MAX_RANK} dimensions that cannot be merged"
    ))
}

/// For a geometry without room: merges the dimension into the outermost one, if it continues that. Returns whether it
/// did.
fn append_merged(geometry: &mut Geometry, dim: &Dim) -> bool {
    let last = &mut geometry.dims[MAX_RANK - 1];
    let fits = last
        .strides
        .iter()
        .zip(&dim.strides)
        .all(|(a, b)| a * last.size == *b);
    if fits {
        last.size *= dim.size;
    }
    fits
}

/// True if `a` belongs inside of `b`.
#[inline]
fn is_inner(a: &Dim, b: &Dim) -> bool {
    for (x, y) in a.strides.iter().zip(&b.strides) {
        let (x, y) = (x.abs(), y.abs());
        if x != 0 && y != 0 && x != y {
            return x < y;
        }
    }
    false
}

/// Merges neighbouring dimensions that all operands walk as one.
#[inline]
fn merge(geometry: &mut Geometry, operands: usize) {
    let mut last = 0;
    for next in 1..geometry.rank {
        let dim = geometry.dims[next];
        let inner = &mut geometry.dims[last];
        let fits = (0..operands).all(|k| inner.strides[k] * inner.size == dim.strides[k]);
        if fits {
            inner.size *= dim.size;
        } else {
            last += 1;
            geometry.dims[last] = dim;
        }
    }
    geometry.rank = last + 1;
}

#[cold]
fn shapes(what: &str, output: &Tensor<'_>, inputs: &[Tensor<'_>]) -> String {
    let inputs: Vec<_> = inputs.iter().map(|input| input.sizes()).collect();
    format!("{what}: inputs {inputs:?}, output {:?}", output.sizes())
}
