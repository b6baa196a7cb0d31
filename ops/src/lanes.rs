//! Folds over values in independent lanes. No addition waits for the one before it, so loops are vectorised. The order
//! of operations depends on the length alone.

/// The number of lanes of a fold.
pub(crate) const LANES: usize = 16;

/// Folds values in lanes, and then folds the lanes.
#[inline(always)]
pub(crate) fn fold<T: Copy, S: Copy>(
    values: &[T],
    start: S,
    take: impl Fn(S, T) -> S,
    join: impl Fn(S, S) -> S,
) -> S {
    let mut sums = [start; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for (sum, value) in sums.iter_mut().zip(block) {
            *sum = take(*sum, *value);
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum = take(*sum, *value);
    }
    join_lanes(sums, join)
}

/// Folds pairs of values in lanes, and then folds the lanes. The shorter sequence decides the length.
#[inline(always)]
pub(crate) fn fold_pairs<T: Copy, S: Copy>(
    a: &[T],
    b: &[T],
    start: S,
    take: impl Fn(S, T, T) -> S,
    join: impl Fn(S, S) -> S,
) -> S {
    let n = a.len().min(b.len());
    let mut sums = [start; LANES];
    let (a_blocks, a_rest) = a[..n].as_chunks::<LANES>();
    let (b_blocks, b_rest) = b[..n].as_chunks::<LANES>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for (k, sum) in sums.iter_mut().enumerate() {
            *sum = take(*sum, a[k], b[k]);
        }
    }
    for (sum, (a, b)) in sums.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *sum = take(*sum, *a, *b);
    }
    join_lanes(sums, join)
}

/// [`fold_pairs`] for three sequences.
#[inline(always)]
pub(crate) fn fold_triples<T: Copy, S: Copy>(
    a: &[T],
    b: &[T],
    c: &[T],
    start: S,
    take: impl Fn(S, T, T, T) -> S,
    join: impl Fn(S, S) -> S,
) -> S {
    let n = a.len().min(b.len()).min(c.len());
    let mut sums = [start; LANES];
    let (a_blocks, a_rest) = a[..n].as_chunks::<LANES>();
    let (b_blocks, b_rest) = b[..n].as_chunks::<LANES>();
    let (c_blocks, c_rest) = c[..n].as_chunks::<LANES>();
    for ((a, b), c) in a_blocks.iter().zip(b_blocks).zip(c_blocks) {
        for (k, sum) in sums.iter_mut().enumerate() {
            *sum = take(*sum, a[k], b[k], c[k]);
        }
    }
    for (k, sum) in sums.iter_mut().enumerate().take(a_rest.len()) {
        *sum = take(*sum, a_rest[k], b_rest[k], c_rest[k]);
    }
    join_lanes(sums, join)
}

/// Joins lanes in pairs, so that rounding errors grow with the logarithm of the number of lanes.
#[inline(always)]
fn join_lanes<S: Copy>(mut sums: [S; LANES], join: impl Fn(S, S) -> S) -> S {
    let mut width = LANES / 2;
    while width > 0 {
        for k in 0..width {
            sums[k] = join(sums[k], sums[k + width]);
        }
        width /= 2;
    }
    sums[0]
}
