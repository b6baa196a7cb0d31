//! The text of a thread's most recent failed call of a layered driver, for `last_error` (R5). There is
//! one per thread for all layers: a host asks for the text before the thread calls again.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use outrigger_device::Code;

thread_local! {
    /// NULL for a layer that gives no text, as a driver must not.
    static TEXT: RefCell<Option<CString>> = const { RefCell::new(None) };
    /// Whether the layer that runs now has set the text by itself.
    static OWN: Cell<bool> = const { Cell::new(false) };
    static FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Fails a call with a text of the layer's own, instead of that of the driver below. Gives the code, to
/// be returned from the method of the layer.
#[cold]
pub fn fail(code: Code, text: impl Into<String>) -> i32 {
    let text = CString::new(text.into().replace('\0', " ")).unwrap_or_default();
    set(Some(text));
    OWN.set(true);
    code.0
}

/// Runs the body of an entry. If it fails without setting a text, `text` gives one.
#[inline]
pub(crate) fn answer(body: impl FnOnce() -> i32, text: impl FnOnce() -> Option<CString>) -> i32 {
    OWN.set(false);
    // State that a panicking layer leaves half changed is the layer's own; its locks are released.
    let code = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(code) => code,
        Err(payload) => {
            // Dropping what was thrown could throw again.
            std::mem::forget(payload);
            fail(Code::INTERNAL, "a layer panicked: a defect of the layer")
        }
    };
    if code != Code::OK.0 && !OWN.get() {
        set(catch_unwind(AssertUnwindSafe(text)).unwrap_or(None));
    }
    code
}

#[cold]
fn set(text: Option<CString>) {
    FAILED.set(true);
    // A thread that is ending has no text any more; the code still goes out.
    let _ = TEXT.try_with(|slot| slot.replace(text));
}

/// The entry `last_error` of each layered table.
pub(crate) unsafe extern "C" fn last_error() -> *const c_char {
    let none = if FAILED.get() {
        std::ptr::null()
    } else {
        c"".as_ptr()
    };
    TEXT.try_with(|text| text.borrow().as_ref().map_or(none, |text| text.as_ptr()))
        .unwrap_or(c"".as_ptr())
}
