//! Numbers of a call that become elements: one that the element type cannot hold is an error, as in PyTorch on the CPU,
//! whoever serves the operator.

use std::sync::LazyLock;

use outrigger_device::{Code, DType};
use outrigger_ops::{Call, OperatorId, Scalar};

use crate::{Error, Result};

/// The numbers of the operators whose numbers are elements of the output.
static OPERATORS: LazyLock<[u32; 6]> = LazyLock::new(|| {
    [
        c"fill",
        c"masked_fill",
        c"index_fill",
        c"clamp",
        c"clamp_min",
        c"clamp_max",
    ]
    .map(|name| OperatorId::find(name).map_or(u32::MAX, OperatorId::index))
});

/// Checks the numbers of a call.
///
/// # Errors
/// `INVALID_ARGUMENT` that names the operator, the number and the element type.
#[inline]
pub(crate) fn check(operator: OperatorId, call: &Call<'_>) -> Result<()> {
    if call.scalars.is_empty() || !OPERATORS.contains(&operator.index()) {
        return Ok(());
    }
    let Some(out) = call.outputs.first() else {
        return Ok(());
    };
    match call.scalars.iter().find(|one| !fits(**one, out.dtype())) {
        None => Ok(()),
        Some(number) => Err(does_not_fit(operator, *number, out.dtype())),
    }
}

/// Whether a number can be an element. Infinities fit where the type has them, NaN fits everywhere, and negative numbers
/// wrap in unsigned types: as in PyTorch.
fn fits(number: Scalar, dtype: DType) -> bool {
    let value = number.to_f64();
    let real = |largest: f64, has_infinity: bool| {
        value.is_nan() || value.abs() <= largest || (has_infinity && value.is_infinite())
    };
    let whole = |lowest: i64, largest: i64| match number {
        Scalar::I64(value) => (lowest..=largest).contains(&value),
        Scalar::F64(value) => value.is_nan() || (lowest as f64 <= value && value <= largest as f64),
    };
    match dtype {
        DType::F32 | DType::C64 => real(f64::from(f32::MAX), true),
        DType::F16 => real(65504.0, true),
        DType::BF16 => real(f64::from(f32::from_bits(0x7f7f_0000)), true),
        DType::F8E4M3 => real(448.0, false),
        DType::F8E5M2 => real(57344.0, true),
        DType::F8E4M3FNUZ => real(240.0, false),
        DType::F8E5M2FNUZ => real(57344.0, false),
        DType::I8 => whole(i8::MIN.into(), i8::MAX.into()),
        DType::I16 => whole(i16::MIN.into(), i16::MAX.into()),
        DType::I32 => whole(i32::MIN.into(), i32::MAX.into()),
        DType::I64 => whole(i64::MIN, i64::MAX),
        DType::U8 => whole(-i64::from(u8::MAX), u8::MAX.into()),
        DType::U16 => whole(-i64::from(u16::MAX), u16::MAX.into()),
        DType::U32 => whole(-i64::from(u32::MAX), u32::MAX.into()),
        _ => true,
    }
}

#[cold]
fn does_not_fit(operator: OperatorId, number: Scalar, dtype: DType) -> Error {
    let number = match number {
        Scalar::F64(value) => value.to_string(),
        Scalar::I64(value) => value.to_string(),
    };
    let text = format!("the number {number} cannot be an element of {dtype} without overflow");
    Error::new(Code::INVALID_ARGUMENT, text).in_operator(operator.name().to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_element_type_holds() {
        let (whole, real) = (Scalar::I64, Scalar::F64);
        for (dtype, fine, wrong) in [
            (DType::F16, real(65504.0), real(65520.0)),
            (DType::F16, real(f64::NEG_INFINITY), whole(70_000)),
            (DType::BF16, real(3.3e38), real(3.4e38)),
            (DType::F32, real(f64::NAN), real(-1e40)),
            (DType::F8E4M3, real(-448.0), real(f64::INFINITY)),
            (DType::U8, whole(-255), whole(256)),
            (DType::U8, real(255.0), real(-256.0)),
            (DType::I8, whole(-128), whole(128)),
            (DType::I32, real(2147483647.0), whole(1 << 31)),
            (DType::I64, whole(i64::MIN), real(f64::INFINITY)),
        ] {
            assert!(fits(fine, dtype), "{fine:?} in {dtype}");
            assert!(!fits(wrong, dtype), "{wrong:?} in {dtype}");
        }
        assert!(fits(whole(7), DType::BOOL) && fits(real(1e300), DType::F64));
    }
}
