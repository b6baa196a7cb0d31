//! A position in a walk over the elements of several operands at once. This file is arithmetic only.

use crate::geometry::{Dim, MAX_OPERANDS, MAX_RANK};

/// A position in the walk: an index for each dimension, and the byte offsets that they add up to.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    dims: &'a [Dim],
    indices: [i64; MAX_RANK],
    offsets: [i64; MAX_OPERANDS],
}

impl<'a> Cursor<'a> {
    #[inline]
    pub(crate) fn at(dims: &'a [Dim], position: i64) -> Self {
        let mut cursor = Self {
            dims,
            indices: [0; MAX_RANK],
            offsets: [0; MAX_OPERANDS],
        };
        if position != 0 {
            cursor.step(0, position);
        }
        cursor
    }

    /// The number of elements from here to the end of the row.
    #[inline]
    pub(crate) fn row_left(&self) -> usize {
        (self.dims[0].size - self.indices[0]) as usize
    }

    /// The byte offset of an operand.
    #[inline]
    pub(crate) fn offset(&self, operand: usize) -> i64 {
        self.offsets[operand]
    }

    /// Moves on within the row, by no more than is left of it.
    #[inline]
    pub(crate) fn advance(&mut self, count: usize) {
        let dim = &self.dims[0];
        let count = count as i64;
        if self.indices[0] + count < dim.size {
            self.indices[0] += count;
            for (offset, stride) in self.offsets.iter_mut().zip(&dim.strides) {
                *offset += count * stride;
            }
        } else {
            self.step(0, count);
        }
    }

    /// Moves dimension `from` by `count`, carrying into the outer ones.
    fn step(&mut self, from: usize, count: i64) {
        let mut carry = count;
        for (index, dim) in self.indices[from..].iter_mut().zip(&self.dims[from..]) {
            let moved = *index + carry;
            carry = moved / dim.size;
            let new = moved - carry * dim.size;
            for (offset, stride) in self.offsets.iter_mut().zip(&dim.strides) {
                *offset += (new - *index) * stride;
            }
            *index = new;
            if carry == 0 {
                return;
            }
        }
    }
}
