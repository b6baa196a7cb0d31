//! The places where operators ran, and what a host says that runs them elsewhere than on the device.

use std::ffi::c_char;

use outrigger_hooks as hooks;
use outrigger_hooks::{Code, Error, PlaceEntry, Result};

use crate::guard::{Out, string, text};

fn as_json(report: &[PlaceEntry]) -> Result<*mut c_char> {
    let json = serde_json::to_string(report);
    let json = json.map_err(|error| Error::new(Code::INTERNAL, error.to_string()))?;
    Ok(string(json))
}

api! {
    /// Asks for permission to run an operator on the CPU. Sets `first_warning` to 1 if the adapter
    /// should warn its user. Fails with OTR_ERR_UNSUPPORTED in the mode OTR_FALLBACK_ERROR.
    fn otr_fallback_begin(operator_name: *const c_char, first_warning: *mut u32) {
        let out = Out::new(first_warning, "first_warning")?;
        out.set(hooks::fallback_begin(text(operator_name, "operator_name")?)?.into());
        Ok(())
    }

    /// Counts a fallback that has run: its time with all staging, without the wait for work that was
    /// submitted before; and the bytes that were copied between device and host for it.
    fn otr_fallback_end(operator_name: *const c_char, nanoseconds: u64, staged_bytes: u64) {
        hooks::fallback_end(text(operator_name, "operator_name")?, nanoseconds, staged_bytes);
        Ok(())
    }

    /// All operators that ran in kernels of a framework, the most expensive first, as JSON in the form of
    /// otr_operator_report. Free it with otr_string_free.
    fn otr_fallback_report(json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        out.set(as_json(&hooks::fallback_report())?);
        Ok(())
    }

    /// Forgets all counts of operators, at all places.
    fn otr_fallback_reset() {
        hooks::operator_reset();
        Ok(())
    }

    /// The places where all operators ran so far, as JSON: [{"operator", "place", "calls", "timed_calls", "seconds",
    /// "staged_bytes"}]. `place` is "device" (an operator of the driver; on a device that is the CPU also a host
    /// kernel), "host_kernel" (a kernel of Outrigger on the CPU) or "framework" (a kernel of the framework on the CPU).
    /// `seconds` is of the calls that were timed: those of frameworks, and others while otr_operator_timing is on. Free
    /// it with otr_string_free.
    fn otr_operator_report(json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        out.set(as_json(&hooks::operator_report())?);
        Ok(())
    }

    /// Times each call of an operator from now on (1), or no longer (0), in the whole process. A timed call waits
    /// for the work of its stream before it begins, and then for itself.
    fn otr_operator_timing(on: u32) {
        if on > 1 {
            let text = format!("on is {on}: it is 0 or 1");
            return Err(Error::new(Code::INVALID_ARGUMENT, text));
        }
        hooks::set_operator_timing(on != 0);
        Ok(())
    }
}
