//! Numbers of the dtypes: their form in memory, and how close a result must be to a reference in f64.

use outrigger_device::DType;

use crate::Verdict;
use crate::verdict::{check, equal};

/// Bytes of an element.
pub(in crate::tests) fn width(dtype: DType) -> usize {
    dtype.size().expect("the tests use dtypes that there are")
}

/// A value as a dtype has it in memory.
pub(in crate::tests) fn encode(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::F64 => value.to_ne_bytes().to_vec(),
        DType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(value).to_ne_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(value).to_ne_bytes().to_vec(),
        DType::I64 => (value as i64).to_ne_bytes().to_vec(),
        DType::I32 => (value as i32).to_ne_bytes().to_vec(),
        DType::I16 => (value as i16).to_ne_bytes().to_vec(),
        DType::I8 => (value as i8).to_ne_bytes().to_vec(),
        DType::BOOL => vec![u8::from(value != 0.0)],
        DType::F8E4M3 | DType::F8E5M2 => {
            // The nearest of all that there are.
            let distance = |bits: u8| match decode(dtype, &[bits]) {
                found if found.is_nan() => f64::INFINITY,
                found => (found - value).abs(),
            };
            let nearest =
                (0..=u8::MAX).min_by(|one, other| distance(*one).total_cmp(&distance(*other)));
            nearest.into_iter().collect()
        }
        _ => vec![value as u8],
    }
}

/// The number of OCP OFP8 with these bits, with so many bits of fraction.
fn of_eight_bits(bits: u8, fraction: u32) -> f64 {
    // As a binary16 of the same exponent, or of one with a bit less, whose bias is 15 and not 7.
    let (low, is_e5) = (u16::from(bits & 0x7f), fraction == 2);
    let size = match low {
        0x7f if !is_e5 => f64::NAN,
        low if is_e5 => half::f16::from_bits(low << 8).into(),
        low => f64::from(half::f16::from_bits(low << 7)) * 256.0,
    };
    if bits > 0x7f { -size } else { size }
}

pub(in crate::tests) fn decode(dtype: DType, bytes: &[u8]) -> f64 {
    fn take<const N: usize>(bytes: &[u8]) -> [u8; N] {
        std::array::from_fn(|at| bytes[at])
    }
    match dtype {
        DType::F64 => f64::from_ne_bytes(take(bytes)),
        DType::F32 => f32::from_ne_bytes(take(bytes)).into(),
        DType::F16 => half::f16::from_ne_bytes(take(bytes)).into(),
        DType::BF16 => half::bf16::from_ne_bytes(take(bytes)).into(),
        DType::I64 => i64::from_ne_bytes(take(bytes)) as f64,
        DType::I32 => i32::from_ne_bytes(take(bytes)).into(),
        DType::I16 => i16::from_ne_bytes(take(bytes)).into(),
        DType::I8 => i8::from_ne_bytes(take(bytes)).into(),
        DType::F8E4M3 => of_eight_bits(bytes[0], 3),
        DType::F8E5M2 => of_eight_bits(bytes[0], 2),
        _ => bytes[0].into(),
    }
}

/// The most normalized mean square error that a result of a dtype may have: some units of its last place,
/// squared. Integers are exact.
pub(in crate::tests) fn limit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-24,
        DType::F32 => 1e-11,
        DType::F16 => 1e-5,
        DType::BF16 => 5e-4,
        _ => 0.0,
    }
}

/// The largest error of one element, in parts of its value or of a typical one, whichever is larger.
fn element_limit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-11,
        DType::F32 => 2e-5,
        DType::F16 => 16.0 / 2048.0,
        DType::BF16 => 16.0 / 256.0,
        _ => 0.0,
    }
}

/// Compares with a reference: the normalized mean square error, and the error of each element, are within the dtype's
/// limits.
pub(in crate::tests) fn close(
    dtype: DType,
    found: &[f64],
    expected: &[f64],
    what: &str,
) -> Verdict {
    equal!(found.len(), expected.len(), "elements of {what}");
    let (mut error, mut power) = (0.0, 0.0);
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = (found.is_nan() && expected.is_nan()) || found == expected;
        check!(
            same || (found.is_finite() && expected.is_finite()),
            "{what}: element {at} is {found}, and {expected} is right"
        );
        if !same {
            error += (found - expected).powi(2);
        }
        if expected.is_finite() {
            power += expected.powi(2);
        }
    }
    let typical = (power / expected.len().max(1) as f64).sqrt();
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let most = element_limit(dtype) * typical.max(expected.abs()) + 1e-15;
        check!(
            found == expected || !found.is_finite() || (found - expected).abs() <= most,
            "{what}: element {at} is {found}, and {expected} is right within {most:e}"
        );
    }
    let limit = limit(dtype);
    // A result that is not a number has an error that is none either, and is refused above.
    let right = error <= limit * power + 1e-30;
    check!(
        right,
        "{what}: a normalized error of {:e}, at most {limit:e}",
        error / power
    );
    Ok(())
}

/// A value that the dtype has, so that the reference starts from the same one.
pub(in crate::tests) fn rounded(dtype: DType, value: f64) -> f64 {
    decode(dtype, &encode(dtype, value))
}

pub(in crate::tests) fn values(
    dtype: DType,
    count: usize,
    (low, high): (f64, f64),
    seed: u64,
) -> Vec<f64> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count)
        .map(|_| rounded(dtype, low + rng.f64() * (high - low)))
        .collect()
}

pub(in crate::tests) fn count(sizes: &[i64]) -> usize {
    sizes.iter().product::<i64>() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As few elements as a mean over all of them hides: 20 of 70,001 are a quarter of a thousandth of the power.
    #[test]
    fn a_few_wrong_elements_of_many_are_found_in_every_dtype() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let right = values(DType::F64, 70_001, (0.5, 1.5), 1);
            let mut found: Vec<f64> = right.iter().map(|value| rounded(dtype, *value)).collect();
            assert!(
                close(dtype, &found, &right, "rounded ones").is_ok(),
                "{dtype}"
            );
            found
                .iter_mut()
                .step_by(2000)
                .take(20)
                .for_each(|value| *value = 0.0);
            assert!(close(dtype, &found, &right, "zeros").is_err(), "{dtype}");
        }
    }
}
