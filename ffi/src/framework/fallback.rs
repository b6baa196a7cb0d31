//! Whether operators may run elsewhere than on the device.

use std::ffi::c_char;

use outrigger_hooks as hooks;
use outrigger_hooks::{FallbackMode, FallbackPolicy};

use crate::guard::{Out, string, text};

/// Fallbacks are counted.
pub const OTR_FALLBACK_SILENT: u32 = 0;
/// Fallbacks are counted, and there is a warning at the first one of each operator.
pub const OTR_FALLBACK_WARN: u32 = 1;
/// Fallbacks are refused.
pub const OTR_FALLBACK_ERROR: u32 = 2;

// Literals above, so that they reach the header; the runtime's must be the same.
const _: () = assert!(
    FallbackMode::Silent as u32 == OTR_FALLBACK_SILENT
        && FallbackMode::Warn as u32 == OTR_FALLBACK_WARN
        && FallbackMode::Error as u32 == OTR_FALLBACK_ERROR
);

api! {
    /// Sets the mode of the whole process, for kernels of frameworks and for host kernels on devices that are not
    /// the CPU: OTR_FALLBACK_SILENT, _WARN or _ERROR. It replaces what the variable OUTRIGGER_FALLBACK says.
    fn otr_fallback_set_mode(mode: u32) {
        hooks::set_fallback_mode(FallbackMode::from_number(mode)?);
        Ok(())
    }

    /// The present mode for kernels of frameworks.
    fn otr_fallback_mode(mode: *mut u32) {
        let out = Out::new(mode, "mode")?;
        out.set(hooks::fallback_mode() as u32);
        Ok(())
    }

    /// Sets the modes of both places as the variable OUTRIGGER_FALLBACK does: "silent", "warn" or "error" for both,
    /// or one for each, as in "framework:error,host:warn".
    fn otr_fallback_set_policy(policy: *const c_char) {
        hooks::set_fallback_policy(FallbackPolicy::parse(text(policy, "policy")?)?);
        Ok(())
    }

    /// The modes in force, in the form of otr_fallback_set_policy. Free it with otr_string_free.
    fn otr_fallback_policy(policy: *mut *mut c_char) {
        let out = Out::new(policy, "policy")?;
        out.set(string(hooks::fallback_policy().to_string()));
        Ok(())
    }
}
