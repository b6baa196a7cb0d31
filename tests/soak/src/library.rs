//! The library as a C host sees it: the table of `otr_host_api`, and the one way to call an entry. The
//! watchdog sees each call. Each call is counted, and judged by the rules of outcomes (H1 to H4). A
//! broken rule is reported at once and makes the soak fail.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use outrigger_device::Code;
use outrigger_ffi::{otr_host_api, otr_host_api_t, otr_status_t};

/// The most entries that a table may have, and codes that a status may have.
pub(crate) const ENTRIES: usize = 192;
pub(crate) const CODES: usize = 21;

/// The byte that outputs hold before a call.
const SENTINEL: u8 = 0x5e;

/// The end of a call: its code, if it failed.
pub(crate) type Outcome = Result<(), Code>;

/// The table, looked up as a host would that has loaded the library.
pub(crate) fn table() -> &'static otr_host_api_t {
    static TABLE: LazyLock<&'static otr_host_api_t> = LazyLock::new(|| {
        // SAFETY: the table lives as long as the process.
        let table = unsafe { &*otr_host_api() };
        assert_eq!(table.api_major, outrigger_ffi::OTR_HOST_API_MAJOR);
        assert!(table.struct_size >= size_of::<otr_host_api_t>());
        table
    });
    *TABLE
}

/// The names of the entries in the order of the table, as the header has them.
pub(crate) static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let header = include_str!("../../../include/outrigger/table.h");
    let (_, members) = header.split_once("uint32_t api_minor;").expect("a table");
    let (members, _) = members.split_once("} otr_host_api_t;").expect("its end");
    let names = members.split("(*").skip(1);
    let names: Vec<_> = names
        .map(|rest| rest.split(')').next().unwrap_or(rest))
        .collect();
    let functions = size_of::<otr_host_api_t>() - offset_of!(otr_host_api_t, host_kernel_launch);
    assert_eq!(
        names.len(),
        functions / size_of::<usize>(),
        "the header's table"
    );
    assert!(names.len() <= ENTRIES);
    names
});

/// Calls by entry and code.
pub(crate) static TALLY: [[AtomicU64; CODES]; ENTRIES] =
    [const { [const { AtomicU64::new(0) }; CODES] }; ENTRIES];

/// The number of an entry within the table.
macro_rules! entry {
    ($entry:ident) => {
        const {
            (std::mem::offset_of!(outrigger_ffi::otr_host_api_t, $entry)
                - std::mem::offset_of!(outrigger_ffi::otr_host_api_t, host_kernel_launch))
                / size_of::<usize>()
        }
    };
}

/// Calls an entry that returns a status, and gives its outcome.
macro_rules! call {
    ($entry:ident($($arg:expr),* $(,)?)) => {
        $crate::library::judged($crate::library::entry!($entry), || {
            let function = $crate::library::table().$entry;
            // SAFETY: pointers are NULL or valid for the call, and what the contract leaves to the host
            // is kept to by the action that calls.
            #[allow(unused_unsafe, reason = "one macro for all entries")]
            unsafe { function($($arg),*) }
        })
    };
}

/// Calls an entry that returns something else than a status, and cannot fail.
macro_rules! plain_call {
    ($entry:ident($($arg:expr),*)) => {{
        let (entry, function) = ($crate::library::entry!($entry), $crate::library::table().$entry);
        let _seen = $crate::watch::enter(entry);
        $crate::library::TALLY[entry][0].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // SAFETY: the arguments are what the entry takes: a status, or a string that was handed out.
        #[allow(unused_unsafe, reason = "one macro for all entries")]
        unsafe { function($($arg),*) }
    }};
}

pub(crate) use {call, entry, plain_call};

thread_local! {
    /// Calls of this thread that have succeeded, for actions that do without an output.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// Makes one call, and judges how it ended.
pub(crate) fn judged(entry: usize, call: impl FnOnce() -> *mut otr_status_t) -> Outcome {
    let status = {
        let _seen = crate::watch::enter(entry);
        call()
    };
    LAST.set(entry);
    if status.is_null() {
        TALLY[entry][0].fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    let code = plain_call!(status_code(status));
    let text = told(plain_call!(status_message(status)));
    let operator = plain_call!(status_operator(status));
    plain_call!(status_stream(status));
    plain_call!(status_submission(status));
    let name = NAMES[entry];
    match &text {
        Some(text) if !text.is_empty() => (),
        _ => problem(&format!("{name}: code {code} without a text in UTF-8")),
    }
    if !operator.is_null() && told(operator).is_none() {
        problem(&format!("{name}: the operator of a failure is no text"));
    }
    let text = text.unwrap_or_default();
    if code < 1 || code as usize >= CODES {
        problem(&format!("{name}: a status with code {code}: {text}"));
    } else {
        TALLY[entry][code as usize].fetch_add(1, Ordering::Relaxed);
    }
    if [Code::INTERNAL, Code::VERSION, Code::FORKED].contains(&Code(code)) {
        problem(&format!("{name}: {}: {text}", Code(code)));
    }
    plain_call!(status_free(status));
    Err(Code(code))
}

/// A string of the library, if it is UTF-8.
fn told(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL, so a NUL-terminated string that lives as long as the status.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().ok().map(str::to_owned)
}

/// Types of outputs: any bytes are a value.
pub(crate) trait Plain: Copy {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for u64 {}
impl Plain for f64 {}
impl Plain for *mut c_void {}
impl Plain for *mut c_char {}
macro_rules! plain {
    ($($name:ident)*) => { $(impl Plain for outrigger_ffi::$name {})* };
}
plain!(otr_capture_info_t otr_graph_info_t otr_graph_exec_info_t otr_pointer_info_t otr_memory_stats_t
       otr_pool_info_t otr_device_info_t);

fn bytes<T: Plain>(value: &MaybeUninit<T>) -> &[u8] {
    // SAFETY: all bytes were written: by `SENTINEL`, and over it by the library.
    unsafe { std::slice::from_raw_parts(value.as_ptr().cast(), size_of::<T>()) }
}

/// The output of a call that succeeded. A call that failed must have left it untouched (H2).
pub(crate) fn made<T: Plain>(make: impl FnOnce(*mut T) -> Outcome) -> Result<T, Code> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: within `value`.
    unsafe {
        value
            .as_mut_ptr()
            .cast::<u8>()
            .write_bytes(SENTINEL, size_of::<T>())
    };
    let outcome = make(value.as_mut_ptr());
    if outcome.is_err() && bytes(&value).iter().any(|byte| *byte != SENTINEL) {
        let name = NAMES[LAST.get()];
        problem(&format!(
            "{name}: an output was written though the call failed (H2)"
        ));
    }
    // SAFETY: all bytes are written, and any bytes are a value of the type.
    outcome.map(|()| unsafe { value.assume_init() })
}

/// A struct that the library fills, asked for with `size` bytes of it: no more may be written, nor the
/// size itself (H9). `Some` if all of it was asked for and given.
pub(crate) fn filled<T: Plain>(size: usize, fill: impl FnOnce(*mut T) -> Outcome) -> Option<T> {
    const HEAD: usize = size_of::<usize>();
    let mut value = MaybeUninit::<T>::uninit();
    let pointer = value.as_mut_ptr();
    // SAFETY: within `value`, which is aligned for its first member.
    unsafe {
        pointer.cast::<u8>().write_bytes(SENTINEL, size_of::<T>());
        pointer.cast::<usize>().write(size);
    }
    let outcome = fill(pointer);
    let from = if outcome.is_ok() {
        size.max(HEAD)
    } else {
        HEAD
    };
    let written = bytes(&value)[from.min(size_of::<T>())..]
        .iter()
        .any(|byte| *byte != SENTINEL);
    if written || bytes(&value)[..HEAD] != size.to_ne_bytes() {
        let name = NAMES[LAST.get()];
        problem(&format!(
            "{name}: more was written than `struct_size` {size} allows (H2, H9)"
        ));
    }
    let whole = outcome.is_ok() && size == size_of::<T>();
    // SAFETY: all bytes are written, and any bytes are a value of the type.
    whole.then(|| unsafe { value.assume_init() })
}

/// Takes an outcome that does not matter here: it was judged.
pub(crate) fn ignore<T>(_outcome: T) {}

/// A text that the library hands out, given back to it.
pub(crate) fn text(tell: impl FnOnce(*mut *mut c_char) -> Outcome) -> Option<String> {
    let pointer = made(tell).ok()?;
    let name = NAMES[LAST.get()];
    let text = told(pointer);
    if text.is_none() {
        problem(&format!("{name}: what was handed out is no text"));
    }
    plain_call!(string_free(pointer));
    text
}

/// A text that has to be JSON.
pub(crate) fn json(tell: impl FnOnce(*mut *mut c_char) -> Outcome) -> Option<serde_json::Value> {
    let text = text(tell)?;
    let name = NAMES[LAST.get()];
    let value = serde_json::from_str(&text);
    if let Err(error) = &value {
        problem(&format!("{name}: the text is no JSON: {error}"));
    }
    value.ok()
}

static PROBLEMS: AtomicUsize = AtomicUsize::new(0);

/// The number of problems so far.
pub(crate) fn problems() -> usize {
    PROBLEMS.load(Ordering::Relaxed)
}

/// Tells of something that the contract does not allow. Of the same kind only the first few are told.
pub(crate) fn problem(text: &str) {
    static SEEN: LazyLock<Mutex<HashMap<String, usize>>> = LazyLock::new(Mutex::default);
    PROBLEMS.fetch_add(1, Ordering::Relaxed);
    let kind: String = text
        .chars()
        .filter(|one| !one.is_ascii_hexdigit())
        .take(60)
        .collect();
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let times = seen.entry(kind).or_default();
    *times += 1;
    if *times <= 3 {
        crate::tell!("PROBLEM: {text}");
    }
}
