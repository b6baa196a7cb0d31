//! Instruction sets. The inner loops of kernels are compiled twice: for the baseline of the target, and for the
//! instructions that most machines of the target have. The better one is chosen at run time.
//!
//! Arithmetic that differs between the two goes through [`Isa`]. Results may differ in the last bit between machines,
//! but never between calls on one machine.

/// The instructions that a loop may expect of the processor.
pub(crate) trait Isa: Copy {
    /// `a * b + c`, rounded once where the processor does so at full speed, else twice.
    fn fma32(a: f32, b: f32, c: f32) -> f32;
    /// `a * b + c`, rounded once where the processor does so at full speed, else twice.
    fn fma64(a: f64, b: f64, c: f64) -> f64;
}

/// The baseline of the target.
#[derive(Clone, Copy)]
pub(crate) struct Baseline;

/// An x86-64 processor with AVX2 and fused multiply-add.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Wide;

impl Isa for Baseline {
    #[inline(always)]
    fn fma32(a: f32, b: f32, c: f32) -> f32 {
        if cfg!(target_arch = "x86_64") {
            a * b + c
        } else {
            a.mul_add(b, c)
        }
    }

    #[inline(always)]
    fn fma64(a: f64, b: f64, c: f64) -> f64 {
        if cfg!(target_arch = "x86_64") {
            a * b + c
        } else {
            a.mul_add(b, c)
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Isa for Wide {
    #[inline(always)]
    fn fma32(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn fma64(a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }
}

/// True if loops compiled for [`Wide`] may run on this processor.
#[cfg(target_arch = "x86_64")]
#[inline]
fn wide() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

/// A computation that is compiled once for each instruction set.
pub(crate) trait Vectorised {
    /// The result.
    type Output;
    /// Runs the computation. Must be `#[inline(always)]`, so that it is compiled with the caller's features.
    fn run<I: Isa>(self) -> Self::Output;
}

/// Runs a computation with the best instructions of this processor.
#[inline(always)]
pub(crate) fn dispatch<V: Vectorised>(work: V) -> V::Output {
    #[cfg(target_arch = "x86_64")]
    if wide() {
        // SAFETY: `wide` has found just now that the processor has these features.
        return unsafe { run_wide(work) };
    }
    work.run::<Baseline>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_wide<V: Vectorised>(work: V) -> V::Output {
    work.run::<Wide>()
}
