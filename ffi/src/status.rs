//! Status objects: what a failed call hands out.

use std::ffi::{CStr, CString, c_char};

use outrigger_hooks::{Code, Error, Result};

/// The reason why a call failed. A status of NULL means success.
pub struct otr_status_t {
    code: i32,
    message: CString,
    operator: Option<CString>,
    stream: u64,
    submission: u64,
}

impl otr_status_t {
    #[cold]
    pub(crate) fn boxed(error: &Error) -> *mut Self {
        Box::into_raw(Box::new(Self {
            code: error.code().0,
            message: c_string(error.message()),
            operator: error.operator().map(c_string),
            stream: error.stream().unwrap_or(0),
            submission: error.submission().unwrap_or(0),
        }))
    }
}

impl otr_status_t {
    /// The outcome that a function of the host answers with; the function has owned the status until then.
    ///
    /// # Safety
    /// NULL, or a status that was not freed; it is not used afterwards.
    pub(crate) unsafe fn outcome(status: *mut Self) -> Result<()> {
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: made by `Box::into_raw`; this function's contract: it is freed here only.
        let status = unsafe { Box::from_raw(status) };
        let mut text = status.message.to_string_lossy().into_owned();
        if let Some(operator) = &status.operator {
            text = format!("{}: {text}", operator.to_string_lossy());
        }
        Err(Error::new(Code(status.code), text))
    }
}

fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// # Safety
/// NULL, or a status that was not freed.
unsafe fn get<'a>(status: *const otr_status_t) -> Option<&'a otr_status_t> {
    // SAFETY: H1: NULL, or a status that was not freed.
    unsafe { status.as_ref() }
}

// The functions below cannot fail or panic, and so need no guard; the test of exports knows them by name.

/// A status of the host, for functions of the host that answer with one. NULL for the code OTR_OK. `message` is copied;
/// NULL is an empty text.
///
/// # Safety
/// NULL, or a string that ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otr_status_new(code: i32, message: *const c_char) -> *mut otr_status_t {
    if code == Code::OK.0 {
        return std::ptr::null_mut();
    }
    let text = if message.is_null() {
        c""
    } else {
        // SAFETY: not NULL; H6, H7: a string that ends in NUL.
        unsafe { CStr::from_ptr(message) }
    };
    otr_status_t::boxed(&Error::new(Code(code), text.to_string_lossy()))
}

/// The code of a status: OTR_OK for NULL.
///
/// # Safety
/// NULL, or a status that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otr_status_code(status: *const otr_status_t) -> i32 {
    // SAFETY: H1: NULL, or a status that was not freed.
    unsafe { get(status) }.map_or(Code::OK.0, |status| status.code)
}

/// The text of a status: what was wrong, and what would be right. Never NULL; lives as long as the
/// status.
///
/// # Safety
/// NULL, or a status that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otr_status_message(status: *const otr_status_t) -> *const c_char {
    // SAFETY: H1: NULL, or a status that was not freed.
    unsafe { get(status) }.map_or(c"success".as_ptr(), |status| status.message.as_ptr())
}

/// The operator that failed, or NULL where it does not apply. Lives as long as the status.
///
/// # Safety
/// NULL, or a status that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otr_status_operator(status: *const otr_status_t) -> *const c_char {
    // SAFETY: H1: NULL, or a status that was not freed.
    unsafe { get(status) }
        .and_then(|status| status.operator.as_deref())
        .map_or(std::ptr::null(), CStr::as_ptr)
}

/// The stream whose work failed, or 0 where it does not apply.
///
/// # Safety
/// NULL, or a status that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otr_status_stream(status: *const otr_status_t) -> u64 {
    // SAFETY: H1: NULL, or a status that was not freed.
    unsafe { get(status) }.map_or(0, |status| status.stream)
}

/// The number of the failed command within its stream, from 1; 0 where it does not apply.
///
/// # Safety
/// NULL, or a status that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otr_status_submission(status: *const otr_status_t) -> u64 {
    // SAFETY: H1: NULL, or a status that was not freed.
    unsafe { get(status) }.map_or(0, |status| status.submission)
}

/// Frees a status. NULL is ignored.
///
/// # Safety
/// NULL, or a status that was not freed; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otr_status_free(status: *mut otr_status_t) {
    if !status.is_null() {
        // SAFETY: made by `Box::into_raw` in `boxed`; H1: the host frees a status once.
        drop(unsafe { Box::from_raw(status) });
    }
}

/// Frees a string that a call handed out. NULL is ignored.
///
/// # Safety
/// NULL, or a string that was handed out and not freed; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otr_string_free(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: made by `CString::into_raw`; H11: the host frees a string once.
        drop(unsafe { CString::from_raw(string) });
    }
}
