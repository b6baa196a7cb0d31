//! The calls as tests see them: which ones there were, and which were wrong. And the defects that tests order: a call
//! that fails, a device that is lost.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

/// `CUDA_ERROR_INVALID_CONTEXT`.
pub(crate) const NO_CONTEXT: c_int = 201;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub(crate) const NO_HANDLE: c_int = 400;

static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static MISUSE: Mutex<Vec<String>> = Mutex::new(Vec::new());
static FAIL: Mutex<Vec<(String, u32, c_int)>> = Mutex::new(Vec::new());
static VERSION: AtomicI32 = AtomicI32::new(13000);
static CAPABILITY: AtomicI32 = AtomicI32::new(90);

pub(crate) fn version() -> c_int {
    VERSION.load(Ordering::Relaxed)
}

/// Of the first device.
pub(crate) fn capability() -> c_int {
    CAPABILITY.load(Ordering::Relaxed)
}

/// Notes a call; what it has to answer at once, if a test says so.
pub(crate) fn called(name: &str) -> Option<c_int> {
    CALLS.lock().unwrap().push(name.to_owned());
    let mut fail = FAIL.lock().unwrap();
    let at = fail.iter().position(|(wanted, ..)| wanted == name)?;
    if fail[at].1 > 0 {
        fail[at].1 -= 1;
        return None;
    }
    Some(fail.remove(at).2)
}

/// Notes a call that CUDA would not bear.
pub(crate) fn misuse(text: String) -> c_int {
    MISUSE.lock().unwrap().push(text);
    1
}

/// Declares exported functions that answer with a status.
macro_rules! api {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        /// # Safety
        /// As the function of CUDA of this name, or as its own comment says.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the names are CUDA's")]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            if let Some(code) = $crate::calls::called(stringify!($name)) {
                return code;
            }
            #[allow(unused_unsafe, reason = "some bodies are safe")]
            // SAFETY: pointers and handles are what the header of CUDA asks for.
            unsafe { $body }
        }
    )*};
}
pub(crate) use api;

fn tell(list: &Mutex<Vec<String>>, place: *mut c_char, size: usize) -> usize {
    let text = std::mem::take(&mut *list.lock().unwrap()).join("\n");
    let length = text.len().min(size);
    // SAFETY: there is room for so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), length) };
    length
}

/// The calls since the last time, one in a line.
///
/// # Safety
/// There is room for `size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn standin_calls(place: *mut c_char, size: usize) -> usize {
    tell(&CALLS, place, size)
}

/// Tells the calls that CUDA would not have borne since the last time.
///
/// # Safety
/// There is room for `size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn standin_misuse(place: *mut c_char, size: usize) -> usize {
    tell(&MISUSE, place, size)
}

/// Lets a call of a function fail, after so many that do not. Calls of several functions may be meant to fail at a time.
///
/// # Safety
/// A NUL-terminated text.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn standin_fail(name: *const c_char, after: u32, code: c_int) {
    // SAFETY: this function's contract.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned();
    FAIL.lock().unwrap().push((name, after, code));
}

/// Sets the version of the API.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_version(version: c_int) {
    VERSION.store(version, Ordering::Relaxed);
}

/// Loses a device with an error, as a kernel does that writes where it must not; 0 makes it new.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_lose(device: u32, code: c_int) {
    crate::machine::lose(device as usize, code);
}

/// Sets the compute capability of the first device, a number like 90.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_capability(capability: c_int) {
    CAPABILITY.store(capability, Ordering::Relaxed);
}
