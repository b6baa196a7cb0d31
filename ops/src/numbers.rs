//! Numbers of a call that become elements or factors: one that the type cannot hold is an error, as in PyTorch on the CPU,
//! whoever serves the operator.

use outrigger_device::DType;

use crate::call::{Call, Scalar};
use crate::error::PlanError;
use crate::failure::{Result, refused};
use crate::registry::OperatorId;

/// The role of an operator's numbers.
#[derive(Clone, Copy)]
enum Role {
    /// Elements of the output.
    Elements,
    /// Bounds of elements, the last one an upper bound.
    Bounds,
    /// A factor, behind the number that may stand for the last input: as an element, and whole where elements are.
    Alpha,
    /// Factors, computed with in f32 where elements are shorter; of integers, what is not whole is cut off.
    Factors,
}

static ROLES: [(OperatorId, Role); 20] = [
    (OperatorId::named(c"fill"), Role::Elements),
    (OperatorId::named(c"masked_fill"), Role::Elements),
    (OperatorId::named(c"index_fill"), Role::Elements),
    (OperatorId::named(c"scatter_value"), Role::Elements),
    (OperatorId::named(c"clamp_min"), Role::Elements),
    (OperatorId::named(c"clamp"), Role::Bounds),
    (OperatorId::named(c"clamp_max"), Role::Bounds),
    (OperatorId::named(c"add"), Role::Alpha),
    (OperatorId::named(c"sub"), Role::Alpha),
    (OperatorId::named(c"rsub"), Role::Alpha),
    (OperatorId::named(c"addmm"), Role::Factors),
    (OperatorId::named(c"baddbmm"), Role::Factors),
    (OperatorId::named(c"addmv"), Role::Factors),
    (OperatorId::named(c"index_add"), Role::Factors),
    (OperatorId::named(c"addcmul"), Role::Factors),
    (OperatorId::named(c"addcdiv"), Role::Factors),
    (OperatorId::named(c"lerp"), Role::Factors),
    (OperatorId::named(c"leaky_relu"), Role::Factors),
    (OperatorId::named(c"leaky_relu_backward"), Role::Factors),
    (OperatorId::named(c"elu"), Role::Factors),
];

/// Checks the numbers of a call.
///
/// # Errors
/// `INVALID_ARGUMENT` that names the operator, the number and the element type.
#[inline]
pub fn check(operator: OperatorId, call: &Call<'_>) -> Result<()> {
    if call.scalars.iter().all(|one| fits_everywhere(*one)) {
        return Ok(());
    }
    check_by_role(operator, call)
}

/// Whether a number is an element of every type: most are, and need no table.
#[inline]
fn fits_everywhere(number: Scalar) -> bool {
    match number {
        Scalar::I64(value) => (0..=1).contains(&value),
        Scalar::F64(value) => value == 0.0 || value == 1.0,
    }
}

#[cold]
fn check_by_role(operator: OperatorId, call: &Call<'_>) -> Result<()> {
    let role = ROLES.iter().find(|(its, _)| *its == operator);
    let (Some(&(_, role)), Some(out)) = (role, call.outputs.first()) else {
        return Ok(());
    };
    let dtype = out.dtype();
    let is_whole = is_integer(dtype);
    let computed = match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    };
    let (from, of, must_be_whole) = match role {
        Role::Elements | Role::Bounds => (0, dtype, false),
        Role::Alpha => (usize::from(call.inputs.len() == 1), dtype, is_whole),
        Role::Factors => (0, computed, false),
    };
    let numbers = call.scalars.get(from..).unwrap_or_default();
    for &number in numbers {
        if must_be_whole && number.to_f64().fract() != 0.0 {
            let text = format!(
                "a factor of {dtype} is a whole number, not {}",
                shown(number)
            );
            return Err(refused(operator, PlanError::Invalid(text.into())));
        }
        if !fits(number, of) {
            let number = shown(number);
            let text = format!("the number {number} cannot be an element of {of} without overflow");
            return Err(refused(operator, PlanError::Invalid(text.into())));
        }
    }
    match (role, numbers.last()) {
        (Role::Bounds, Some(&high)) if is_unsigned(dtype) && high.to_f64() < 0.0 => {
            let text = format!("the upper bound {} is below all of {dtype}", shown(high));
            Err(refused(operator, PlanError::Invalid(text.into())))
        }
        _ => Ok(()),
    }
}

fn is_unsigned(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64)
}

fn is_integer(dtype: DType) -> bool {
    is_unsigned(dtype) || matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64)
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

fn shown(number: Scalar) -> String {
    match number {
        Scalar::F64(value) => value.to_string(),
        Scalar::I64(value) => value.to_string(),
    }
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

    #[test]
    fn each_number_is_asked_by_what_it_is() {
        use crate::call::Tensor;
        let (whole, real) = (Scalar::I64, Scalar::F64);
        let asked = |name, dtype, inputs: usize, scalars: &[Scalar]| {
            let operands = [Tensor::new(64, dtype, &[4], &[1]); 3];
            let call = Call {
                inputs: &operands[..inputs],
                outputs: &operands[..1],
                scalars,
                ..Call::default()
            };
            check(OperatorId::find(name).expect("it exists"), &call)
                .map_err(|error| error.message().to_owned())
        };
        for (name, dtype, inputs, fine, wrong) in [
            (c"add", DType::U8, 2, whole(255), whole(256)),
            (c"sub", DType::I32, 2, real(-3.0), real(1.5)),
            (c"add", DType::F16, 2, real(0.3), real(1e5)),
            (c"baddbmm", DType::F16, 3, real(1e5), real(1e39)),
            (c"addmm", DType::I64, 3, whole(-7), real(f64::INFINITY)),
            (c"addcmul", DType::I8, 3, real(2.5), whole(200)),
            (c"lerp", DType::F32, 2, real(f64::INFINITY), real(-1e39)),
            (c"clamp_min", DType::U8, 1, whole(-1), whole(300)),
            (c"clamp_max", DType::U8, 1, whole(4), whole(-1)),
            (c"scatter_value", DType::I16, 2, real(9.5), whole(1 << 15)),
        ] {
            assert_eq!(asked(name, dtype, inputs, &[fine]), Ok(()), "{name:?}");
            let text = asked(name, dtype, inputs, &[wrong]).expect_err("it does not fit");
            assert!(text.contains(&shown(wrong)), "{name:?}: {text}");
        }
        // The number that stands for an input wraps, as in PyTorch; the factor behind it does not.
        assert_eq!(asked(c"add", DType::U8, 1, &[whole(300), whole(2)]), Ok(()));
        asked(c"add", DType::U8, 1, &[whole(2), whole(300)]).expect_err("the factor");
    }
}
