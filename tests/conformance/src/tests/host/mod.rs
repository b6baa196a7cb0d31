//! The host contract over the driver under test: the C ABI, called as a C host calls it.

pub(super) mod arguments;
pub(super) mod faults;
pub(super) mod graphs;
pub(super) mod operators;
pub(super) mod work;

use std::ffi::{CStr, c_char};
use std::fmt;

use outrigger_device::{Code, CopyKind};
use outrigger_ffi::*;

use crate::verdict::{check, equal};
use crate::{Context, Verdict};

/// Calls an entry of the C ABI, and gives its status as a result.
macro_rules! otr {
    ($entry:ident $(, $argument:expr)* $(,)?) => {
        // SAFETY: pointers to what outlives the call, or NULL, or ids, all of which are checked (H5, H6).
        $crate::tests::host::outcome(unsafe { outrigger_ffi::$entry($($argument),*) })
    };
}
pub(super) use otr;

/// What a failed call said.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) code: Code,
    pub(super) text: String,
    pub(super) stream: u64,
    pub(super) operator: Option<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.text)
    }
}

impl std::error::Error for Refused {}

fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: a string of the library, which is terminated (H7).
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(text.to_string_lossy().into_owned())
}

/// Reads and frees a status.
pub(super) fn outcome(status: *mut otr_status_t) -> Result<(), Refused> {
    if status.is_null() {
        return Ok(());
    }
    // SAFETY: a status that was just handed out, and is freed once.
    unsafe {
        let refused = Refused {
            code: Code(otr_status_code(status)),
            text: text(otr_status_message(status)).unwrap_or_default(),
            stream: otr_status_stream(status),
            operator: text(otr_status_operator(status)),
        };
        otr_status_free(status);
        Err(refused)
    }
}

/// Makes the driver under test the one that the runtime loads. Comes before any other call of the library.
pub(super) fn start(context: &Context) -> Verdict {
    start_under(context, "")
}

/// As [`start`], with layers over the driver, as in `OUTRIGGER_LAYERS`.
pub(super) fn start_under(context: &Context, layers: &str) -> Verdict {
    // SAFETY: this process has one thread as yet, and reads its environment through this library only.
    unsafe {
        std::env::set_var("OUTRIGGER_DRIVER", context.spec());
        std::env::set_var("OUTRIGGER_LAYERS", layers);
        for name in ["OUTRIGGER_FALLBACK", "OUTRIGGER_ALLOC"] {
            std::env::remove_var(name);
        }
    }
    let mut count = 0;
    otr!(otr_device_count, &mut count)?;
    equal!(
        count,
        context.open()?.device_count(),
        "devices of the runtime"
    );
    Ok(())
}

/// Checks that a call fails with this code and a text.
#[track_caller]
pub(super) fn refused(outcome: Result<(), Refused>, code: Code, what: &str) -> Verdict<Refused> {
    match outcome {
        Ok(()) => Err(crate::Failure::new(format!(
            "{what}: expected {code:?}, and it succeeded"
        ))),
        Err(refused) => {
            equal!(refused.code, code, "{what} (`{}`)", refused.text);
            check!(!refused.text.is_empty(), "H3: {what} has a text");
            Ok(refused)
        }
    }
}

/// The output of a call that succeeds.
#[track_caller]
pub(super) fn made<T: Default>(make: impl FnOnce(*mut T) -> Result<(), Refused>) -> Verdict<T> {
    let mut value = T::default();
    make(&raw mut value)?;
    Ok(value)
}

pub(super) fn stream() -> Verdict<u64> {
    made(|out| otr!(otr_stream_create, 0, 0, out))
}

pub(super) fn event() -> Verdict<u64> {
    made(|out| otr!(otr_event_create, 0, 0, out))
}

pub(super) fn alloc(size: u64, stream: u64) -> Verdict<u64> {
    made(|out| otr!(otr_memory_alloc, 0, size, stream, out))
}

#[track_caller]
pub(super) fn fill(stream: u64, address: u64, size: u64, pattern: &[u8]) -> Verdict {
    let (pattern, width) = (pattern.as_ptr().cast(), pattern.len() as u32);
    Ok(otr!(otr_fill, stream, address, size, pattern, width)?)
}

#[track_caller]
pub(super) fn upload<T: Copy>(stream: u64, to: u64, from: &[T]) -> Verdict {
    let (size, kind) = (size_of_val(from) as u64, CopyKind::HostToDevice.raw());
    otr!(otr_copy, stream, to, from.as_ptr() as u64, size, kind)?;
    Ok(otr!(otr_stream_synchronize, stream)?)
}

#[track_caller]
pub(super) fn download<T: Copy + Default>(stream: u64, from: u64, count: usize) -> Verdict<Vec<T>> {
    let mut to = vec![T::default(); count];
    let (size, kind) = (size_of_val(&to[..]) as u64, CopyKind::DeviceToHost.raw());
    otr!(otr_copy, stream, to.as_mut_ptr() as u64, from, size, kind)?;
    otr!(otr_stream_synchronize, stream)?;
    Ok(to)
}

/// Whether a stream has finished.
pub(super) fn finished(stream: u64) -> Verdict<bool> {
    Ok(made(|out: *mut u32| otr!(otr_stream_query, stream, out))? == 1)
}
