//! Floating-point numbers of 8 bits, to and from f64.
//!
//! The crate `half` has none of them, and crates for them have two of the four.

/// A format: how many bits of a magnitude are fraction, the bias of its exponent, the highest finite magnitude, and whether
/// zero has no sign (the bits of negative zero are NaN then).
trait Format {
    const FRACTION: u32;
    const BIAS: i32;
    const HIGHEST: u8;
    const UNSIGNED_ZERO: bool;
    /// Whether the magnitude above the highest is infinity.
    const INFINITY: bool;
}

/// The magnitude of these bits if none were special.
fn magnitude<F: Format>(bits: u8) -> f64 {
    let fraction = f64::from(bits & ((1 << F::FRACTION) - 1));
    let whole = f64::from(1u8 << F::FRACTION);
    match i32::from(bits >> F::FRACTION) {
        0 => fraction / whole * 2f64.powi(1 - F::BIAS),
        exponent => (1.0 + fraction / whole) * 2f64.powi(exponent - F::BIAS),
    }
}

fn to_f64<F: Format>(bits: u8) -> f64 {
    let (low, is_negative) = (bits & 0x7f, bits > 0x7f);
    let size = match low {
        0 if is_negative && F::UNSIGNED_ZERO => return f64::NAN,
        low if low <= F::HIGHEST => magnitude::<F>(low),
        low if low == F::HIGHEST + 1 && F::INFINITY => f64::INFINITY,
        _ => return f64::NAN,
    };
    if is_negative { -size } else { size }
}

/// The nearest number, of two the even one. What would be rounded to more than the highest is infinity, or NaN where there
/// is none.
fn from_f64<F: Format>(value: f64) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let nan = if F::UNSIGNED_ZERO { 0x80 } else { sign | 0x7f };
    if value.is_nan() {
        return nan;
    }
    // Magnitudes have the order of their bits.
    let (mut low, mut above) = (0, F::HIGHEST + 1);
    while above - low > 1 {
        let middle = low + (above - low) / 2;
        if magnitude::<F>(middle) <= value.abs() {
            low = middle;
        } else {
            above = middle;
        }
    }
    let half_way = f64::midpoint(magnitude::<F>(low), magnitude::<F>(low + 1));
    if value.abs() > half_way || value.abs() == half_way && low % 2 == 1 {
        low += 1;
    }
    match low {
        0 if F::UNSIGNED_ZERO => 0,
        low if low <= F::HIGHEST || F::INFINITY => sign | low,
        _ => nan,
    }
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident $fraction:literal $bias:literal $highest:literal $unsigned:literal $infinity:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(crate) u8);

        impl Format for $name {
            const FRACTION: u32 = $fraction;
            const BIAS: i32 = $bias;
            const HIGHEST: u8 = $highest;
            const UNSIGNED_ZERO: bool = $unsigned;
            const INFINITY: bool = $infinity;
        }

        impl $name {
            pub(crate) fn to_f64(self) -> f64 {
                to_f64::<Self>(self.0)
            }

            pub(crate) fn from_f64(value: f64) -> Self {
                Self(from_f64::<Self>(value))
            }
        }
    )*};
}

formats! {
    /// `DType::F8E4M3`.
    F8E4M3 3 7 0x7e false false;
    /// `DType::F8E5M2`.
    F8E5M2 2 15 0x7b false true;
    /// `DType::F8E4M3FNUZ`.
    F8E4M3Fnuz 3 8 0x7f true false;
    /// `DType::F8E5M2FNUZ`.
    F8E5M2Fnuz 2 16 0x7f true false;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All finite numbers of a format come back, and what lies between two of them goes to the nearer.
    fn rounds<F: Format>() {
        let finite: Vec<u8> = (0..=255)
            .filter(|bits| to_f64::<F>(*bits).is_finite())
            .collect();
        for &bits in &finite {
            assert_eq!(from_f64::<F>(to_f64::<F>(bits)), bits, "{bits:#x}");
        }
        for at in 0..F::HIGHEST {
            let (low, high) = (to_f64::<F>(at), to_f64::<F>(at + 1));
            assert!(low < high);
            let middle = f64::midpoint(low, high);
            assert_eq!(from_f64::<F>(middle.next_down()), at);
            assert_eq!(from_f64::<F>(middle), at + at % 2, "to the even one");
            assert_eq!(from_f64::<F>(middle.next_up()), at + 1);
            if at > 0 {
                assert_eq!(from_f64::<F>(-middle.next_down()), 0x80 | at);
            }
        }
        assert!(to_f64::<F>(from_f64::<F>(f64::NAN)).is_nan());
    }

    #[test]
    fn every_number_and_every_middle_is_rounded_right() {
        rounds::<F8E4M3>();
        rounds::<F8E5M2>();
        rounds::<F8E4M3Fnuz>();
        rounds::<F8E5M2Fnuz>();
    }

    #[test]
    fn the_ends_of_the_ranges_are_those_of_the_formats() {
        let of = |format: fn(u8) -> f64, bits| format(bits);
        // OCP OFP8, table 1; the FNUZ ones as in the paper that names them (arXiv 2206.02915).
        assert_eq!(of(to_f64::<F8E4M3>, 0x7e), 448.0);
        assert_eq!(of(to_f64::<F8E4M3>, 0x01), 2f64.powi(-9));
        assert_eq!(of(to_f64::<F8E5M2>, 0x7b), 57344.0);
        assert_eq!(of(to_f64::<F8E5M2>, 0x01), 2f64.powi(-16));
        assert_eq!(of(to_f64::<F8E5M2>, 0xfc), f64::NEG_INFINITY);
        assert_eq!(of(to_f64::<F8E4M3Fnuz>, 0x7f), 240.0);
        assert_eq!(of(to_f64::<F8E5M2Fnuz>, 0x7f), 57344.0);
        assert!(of(to_f64::<F8E4M3>, 0xff).is_nan());
        assert!(of(to_f64::<F8E4M3Fnuz>, 0x80).is_nan());
    }

    #[test]
    fn what_is_too_large_is_infinity_or_not_a_number() {
        assert_eq!(F8E4M3::from_f64(464.0).0, 0x7e);
        assert_eq!(F8E4M3::from_f64(-465.0).0, 0xff);
        assert_eq!(F8E4M3::from_f64(f64::INFINITY).0, 0x7f);
        assert_eq!(F8E5M2::from_f64(61439.0).0, 0x7b);
        assert_eq!(F8E5M2::from_f64(-61440.0).0, 0xfc);
        assert_eq!(F8E4M3Fnuz::from_f64(1e9).0, 0x80);
        assert_eq!(F8E5M2Fnuz::from_f64(f64::NEG_INFINITY).0, 0x80);
        assert_eq!(F8E4M3Fnuz::from_f64(-0.0).0, 0);
        assert_eq!(F8E4M3::from_f64(-0.0).0, 0x80);
    }
}
