//! The arithmetic of reductions: the elements of all ranks, in the order of the ranks. It knows nothing of
//! communicators.

use half::{bf16, f16};

use crate::{DType, sys};

/// How elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduction {
    Sum,
    Prod,
    Min,
    Max,
    Avg,
}

impl Reduction {
    pub(super) fn new(number: u32) -> Option<Self> {
        Some(match number {
            sys::OTR_REDUCE_SUM => Self::Sum,
            sys::OTR_REDUCE_PROD => Self::Prod,
            sys::OTR_REDUCE_MIN => Self::Min,
            sys::OTR_REDUCE_MAX => Self::Max,
            sys::OTR_REDUCE_AVG => Self::Avg,
            _ => return None,
        })
    }
}

/// Puts what the elements at `sources` give at `into`, which may be one of the sources.
///
/// # Safety
/// `count` elements of the type may be read at each source and written at `into`.
pub(super) type Reduce =
    unsafe fn(reduction: Reduction, sources: &[*const u8], into: *mut u8, count: usize);

/// What reduces elements of a type; `None` where nothing does.
pub(super) fn reducer(dtype: DType) -> Option<Reduce> {
    Some(match dtype {
        DType::U8 => reduce::<u8>,
        DType::I8 => reduce::<i8>,
        DType::I16 => reduce::<i16>,
        DType::I32 => reduce::<i32>,
        DType::I64 => reduce::<i64>,
        DType::U16 => reduce::<u16>,
        DType::U32 => reduce::<u32>,
        DType::U64 => reduce::<u64>,
        DType::F16 => reduce::<f16>,
        DType::BF16 => reduce::<bf16>,
        DType::F32 => reduce::<f32>,
        DType::F64 => reduce::<f64>,
        _ => return None,
    })
}

/// An element in memory, and what it is computed as.
trait Element: Copy {
    type Number: Number;
    fn load(self) -> Self::Number;
    fn store(number: Self::Number) -> Self;
}

trait Number: Copy + PartialOrd {
    const ZERO: Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn share(self, ranks: usize) -> Self;
}

macro_rules! integers {
    ($($type:ident)*) => {
        $(
            impl Number for $type {
                const ZERO: Self = 0;
                fn add(self, other: Self) -> Self {
                    self.wrapping_add(other)
                }
                fn mul(self, other: Self) -> Self {
                    self.wrapping_mul(other)
                }
                fn share(self, ranks: usize) -> Self {
                    // There are at most 64 ranks, which every type can hold.
                    self / ranks as Self
                }
            }
        )*
    };
}

macro_rules! floats {
    ($($type:ident)*) => {
        $(
            impl Number for $type {
                const ZERO: Self = 0.0;
                fn add(self, other: Self) -> Self {
                    self + other
                }
                fn mul(self, other: Self) -> Self {
                    self * other
                }
                fn share(self, ranks: usize) -> Self {
                    self / ranks as Self
                }
            }
        )*
    };
}

macro_rules! plain {
    ($($type:ident)*) => {
        $(
            impl Element for $type {
                type Number = Self;
                fn load(self) -> Self {
                    self
                }
                fn store(number: Self) -> Self {
                    number
                }
            }
        )*
    };
}

macro_rules! halves {
    ($($type:ident)*) => {
        $(
            impl Element for $type {
                type Number = f32;
                fn load(self) -> f32 {
                    self.to_f32()
                }
                fn store(number: f32) -> Self {
                    Self::from_f32(number)
                }
            }
        )*
    };
}

integers! { u8 i8 i16 i32 i64 u16 u32 u64 }
floats! { f32 f64 }
plain! { u8 i8 i16 i32 i64 u16 u32 u64 f32 f64 }
halves! { f16 bf16 }

/// Elements that are computed at a time, so that the inner loops have no branch and no call.
const BLOCK: usize = 256;

/// # Safety
/// As of [`Reduce`].
unsafe fn reduce<E: Element>(
    reduction: Reduction,
    sources: &[*const u8],
    into: *mut u8,
    count: usize,
) {
    // SAFETY: this function's contract, handed on; each arm gives a function without side effects.
    unsafe {
        match reduction {
            Reduction::Sum | Reduction::Avg => {
                let share = reduction == Reduction::Avg;
                fold::<E>(sources, into, count, share, Number::add);
            }
            Reduction::Prod => fold::<E>(sources, into, count, false, Number::mul),
            Reduction::Min => fold::<E>(
                sources,
                into,
                count,
                false,
                |a, b| if b < a { b } else { a },
            ),
            Reduction::Max => fold::<E>(
                sources,
                into,
                count,
                false,
                |a, b| if b > a { b } else { a },
            ),
        }
    }
}

/// # Safety
/// As of [`Reduce`].
#[inline(always)] // so that `combine` is one operation of the loop
unsafe fn fold<E: Element>(
    sources: &[*const u8],
    into: *mut u8,
    count: usize,
    share: bool,
    combine: impl Fn(E::Number, E::Number) -> E::Number,
) {
    let mut start = 0;
    while start < count {
        let block = BLOCK.min(count - start);
        let mut sums = [E::Number::ZERO; BLOCK];
        for (rank, source) in sources.iter().enumerate() {
            let source = source.cast::<E>();
            for (at, sum) in sums[..block].iter_mut().enumerate() {
                // SAFETY: one of `count` elements of the source; no alignment is assumed.
                let value = unsafe { source.add(start + at).read_unaligned() }.load();
                *sum = if rank == 0 {
                    value
                } else {
                    combine(*sum, value)
                };
            }
        }
        for (at, sum) in sums[..block].iter().enumerate() {
            let value = if share {
                sum.share(sources.len())
            } else {
                *sum
            };
            // SAFETY: one of `count` elements of the result; no alignment is assumed.
            unsafe {
                into.cast::<E>()
                    .add(start + at)
                    .write_unaligned(E::store(value))
            };
        }
        start += block;
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{Reduction, reducer};
    use crate::DType;

    const ALL: [Reduction; 5] = [
        Reduction::Sum,
        Reduction::Prod,
        Reduction::Min,
        Reduction::Max,
        Reduction::Avg,
    ];

    fn run<T: Copy>(dtype: DType, reduction: Reduction, ranks: &[Vec<T>]) -> Vec<T> {
        let mut into = ranks[0].clone();
        let sources: Vec<_> = ranks.iter().map(|rank| rank.as_ptr().cast()).collect();
        // SAFETY: all vectors are as long as the first.
        unsafe {
            reducer(dtype).unwrap()(reduction, &sources, into.as_mut_ptr().cast(), into.len());
        }
        into
    }

    #[test]
    fn elements_of_all_ranks_become_one_beyond_a_block() {
        let ranks: Vec<Vec<i32>> = (1..=3)
            .map(|rank| (0..1000).map(|at| rank * at).collect())
            .collect();
        for reduction in ALL {
            let result = run(DType::I32, reduction, &ranks);
            for (at, value) in (0..1000i32).zip(result) {
                let expected = match reduction {
                    Reduction::Sum => 6 * at,
                    Reduction::Prod => at.wrapping_mul(2 * at).wrapping_mul(3 * at),
                    Reduction::Min => at,
                    Reduction::Max => 3 * at,
                    Reduction::Avg => 2 * at,
                };
                assert_eq!(value, expected, "{reduction:?} of {at}");
            }
        }
    }

    #[test]
    fn integers_wrap_and_halves_are_summed_as_floats() {
        assert_eq!(
            run(DType::U8, Reduction::Sum, &[vec![200u8], vec![100]]),
            [44]
        );
        assert_eq!(run(DType::I8, Reduction::Avg, &[vec![-3i8], vec![0]]), [-1]);
        // In f16 alone 2048 + 1 is 2048, three times.
        let halves = [2048.0, 1.0, 1.0, 2.0].map(|value| vec![f16::from_f32(value)]);
        assert_eq!(run(DType::F16, Reduction::Sum, &halves)[0].to_f32(), 2052.0);
        let halves = [3.0, 5.0].map(|value| vec![bf16::from_f32(value)]);
        assert_eq!(run(DType::BF16, Reduction::Avg, &halves)[0].to_f32(), 4.0);
    }

    #[test]
    fn types_without_an_order_have_no_reducer() {
        for dtype in DType::ALL {
            let numbers = [
                DType::U8,
                DType::I8,
                DType::I16,
                DType::I32,
                DType::I64,
                DType::U16,
                DType::U32,
                DType::U64,
                DType::F16,
                DType::BF16,
                DType::F32,
                DType::F64,
            ];
            assert_eq!(
                reducer(*dtype).is_some(),
                numbers.contains(dtype),
                "{dtype:?}"
            );
        }
    }
}
