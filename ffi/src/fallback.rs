//! Counts operators that a framework's adapter ran on the CPU.

use std::ffi::c_char;

use outrigger_hooks as hooks;
use outrigger_hooks::{Code, Error, FallbackMode};

use crate::guard::{Out, string, text};

/// Fallbacks are counted.
pub const OTR_FALLBACK_SILENT: u32 = 0;
/// Fallbacks are counted, and otr_fallback_begin asks for a warning at the first one of each operator.
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
    /// Asks for permission to run an operator on the CPU. Sets `first_warning` to 1 if the adapter
    /// should warn its user. Fails with OTR_ERR_UNSUPPORTED in the mode OTR_FALLBACK_ERROR.
    fn otr_fallback_begin(operator_name: *const c_char, first_warning: *mut u32) {
        let out = Out::new(first_warning, "first_warning")?;
        out.set(hooks::fallback_begin(text(operator_name, "operator_name")?)?.into());
        Ok(())
    }

    /// Counts a fallback that has run: its time with all staging, and the bytes that were copied
    /// between device and host for it.
    fn otr_fallback_end(operator_name: *const c_char, nanoseconds: u64, staged_bytes: u64) {
        hooks::fallback_end(text(operator_name, "operator_name")?, nanoseconds, staged_bytes);
        Ok(())
    }

    /// Sets the mode of the whole process: OTR_FALLBACK_SILENT, _WARN or _ERROR. It replaces the mode
    /// of the variable OUTRIGGER_FALLBACK.
    fn otr_fallback_set_mode(mode: u32) {
        hooks::set_fallback_mode(FallbackMode::from_number(mode)?);
        Ok(())
    }

    /// The present mode.
    fn otr_fallback_mode(mode: *mut u32) {
        let out = Out::new(mode, "mode")?;
        out.set(hooks::fallback_mode() as u32);
        Ok(())
    }

    /// All operators that fell back, the most expensive first, as JSON:
    /// [{"operator", "calls", "seconds", "staged_bytes"}]. Free it with otr_string_free.
    fn otr_fallback_report(json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        let report = serde_json::to_string(&hooks::fallback_report())
            .map_err(|error| Error::new(Code::INTERNAL, error.to_string()))?;
        out.set(string(report));
        Ok(())
    }

    /// Forgets all counts.
    fn otr_fallback_reset() {
        hooks::fallback_reset();
        Ok(())
    }
}
