//! The one door of the C ABI: the macro that declares exports and contains the panic guard, and the
//! checks of pointers that hosts pass.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use outrigger_hooks::{Code, Error, Result, refuse_fork};

use crate::otr_status_t;

/// Declares functions of the C ABI. The body runs in the panic guard and returns `Result<()>`; the
/// function returns NULL on success, else a status object.
macro_rules! api {
    ($(
        $(#[doc = $doc:literal])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block
    )*) => {$(
        $(#[doc = $doc])*
        ///
        /// # Safety
        /// Pointers are NULL or valid, as the top of the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> *mut $crate::otr_status_t {
            $crate::guard::guard(move || $body)
        }
    )*};
}

/// Runs a call, unless this is a forked child (H17), and turns its failure, or its panic, into a status.
#[inline]
pub(crate) fn guard(call: impl FnOnce() -> Result<()>) -> *mut otr_status_t {
    match catch_unwind(AssertUnwindSafe(|| refuse_fork().and_then(|()| call()))) {
        Ok(Ok(())) => std::ptr::null_mut(),
        Ok(Err(error)) => otr_status_t::boxed(&error),
        Err(panic) => panicked(panic),
    }
}

#[cold]
fn panicked(panic: Box<dyn Any + Send>) -> *mut otr_status_t {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    // The payload's own drop may panic; it is leaked rather than let out.
    std::mem::forget(panic);
    otr_status_t::boxed(&Error::new(
        Code::INTERNAL,
        format!("a defect of Outrigger, please report it: panic: {text}"),
    ))
}

/// The place of an output: checked before anything is done, written when everything has succeeded.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    #[inline]
    pub(crate) fn new(pointer: *mut T, name: &str) -> Result<Self> {
        NonNull::new(pointer).map(Self).ok_or_else(|| null(name))
    }

    #[inline]
    pub(crate) fn set(self, value: T) {
        // SAFETY: not NULL, as checked in `new`; H6: valid for writes during the call.
        unsafe { self.0.as_ptr().write(value) }
    }
}

/// An output struct that starts with its `struct_size`. No byte beyond this size is written (H9).
pub(crate) struct OutStruct<T: Sized> {
    to: NonNull<T>,
    size: usize,
}

impl<T> OutStruct<T> {
    pub(crate) fn new(pointer: *mut T, name: &str) -> Result<Self> {
        let to = NonNull::new(pointer).ok_or_else(|| null(name))?;
        // SAFETY: not NULL; H6, H9: valid during the call, with `struct_size` as its first member.
        let size = unsafe { to.as_ptr().cast::<usize>().read() };
        if size < size_of::<usize>() {
            return Err(wrong_size(size, name));
        }
        Ok(Self {
            to,
            size: size.min(size_of::<T>()),
        })
    }

    /// Writes all but `struct_size`.
    pub(crate) fn set(self, value: &T) {
        const HEAD: usize = size_of::<usize>();
        let from = std::ptr::from_ref(value).cast::<u8>();
        // SAFETY: both are valid for `size` bytes: the host's by its `struct_size` (H9), ours since
        // size is at most `size_of::<T>()`.
        unsafe {
            let to = self.to.as_ptr().cast::<u8>();
            from.add(HEAD)
                .copy_to_nonoverlapping(to.add(HEAD), self.size - HEAD);
        }
    }
}

/// A string of the host.
pub(crate) fn c_str<'a>(pointer: *const c_char, name: &str) -> Result<&'a CStr> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: not NULL; H6, H7: a NUL-terminated string that outlives the call.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// A string of the host that must be UTF-8 (H7).
pub(crate) fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str> {
    c_str(pointer, name)?
        .to_str()
        .map_err(|_| Error::new(Code::INVALID_ARGUMENT, format!("{name} is not valid UTF-8")))
}

/// An array of the host. It may be NULL if it has no elements (H6).
#[inline]
pub(crate) fn slice<'a, T>(pointer: *const T, count: usize, name: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: not NULL; H6: `count` elements that outlive the call.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// A struct that the host has filled, and that starts with its `struct_size`. The size is read before anything else:
/// behind a shorter struct there may be no memory (H9).
#[inline]
pub(crate) fn sized<'a, T>(pointer: *const T, name: &str) -> Result<&'a T> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: not NULL; H6, H9: valid during the call, with `struct_size` as its first member.
    let size = unsafe { pointer.cast::<usize>().read() };
    if size < size_of::<T>() {
        return Err(wrong_size(size, name));
    }
    // SAFETY: H6, H9: it has as many bytes as it says, which are no fewer than the type has.
    Ok(unsafe { &*pointer })
}

#[cold]
fn wrong_size(size: usize, name: &str) -> Error {
    Error::new(
        Code::INVALID_ARGUMENT,
        format!("{name}->struct_size is {size}: set it to sizeof(*{name})"),
    )
}

/// Checks the members of a struct that have no meaning yet (H10).
#[inline]
pub(crate) fn unused(next: *const c_void, reserved: u32, name: &str) -> Result<()> {
    if next.is_null() && reserved == 0 {
        return Ok(());
    }
    Err(Error::new(
        Code::INVALID_ARGUMENT,
        format!("{name}->next is not NULL or {name}->reserved is not 0: they have no meaning yet"),
    ))
}

/// A string for the host, who frees it with `otr_string_free`.
pub(crate) fn string(value: String) -> *mut c_char {
    let mut bytes = value.into_bytes();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default().into_raw()
}

#[cold]
pub(crate) fn null(name: &str) -> Error {
    Error::new(Code::INVALID_ARGUMENT, format!("{name} is NULL"))
}
