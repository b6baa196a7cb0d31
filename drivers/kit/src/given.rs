//! Values that the host gives: structs of the size that it was compiled with (R1), chains (R3), places for outputs
//! (R4), and texts.

use std::ffi::{CStr, c_char};

use outrigger_contract as c;

use crate::{Fault, Result};

/// A field of a struct of the host, as an `Option`: `None` where the struct ends before it (R1).
///
/// The pointer is not NULL, aligned, and to a struct that is as large as its first word says. Using the macro takes
/// an `unsafe` block for this reason.
#[macro_export]
macro_rules! field {
    ($pointer:expr, $type:ty, $field:ident) => {{
        let from: *const $type = $pointer;
        let place = &raw const (*from).$field;
        let end = std::mem::offset_of!($type, $field) + $crate::given::size_behind(place);
        // Every struct of the contract begins with its size.
        (from.cast::<usize>().read() >= end).then(|| place.read())
    }};
}

/// The size of what a pointer is to.
#[doc(hidden)]
pub const fn size_behind<T>(_: *const T) -> usize {
    size_of::<T>()
}

/// Writes a struct into one of the host: from `start` on, and no further than both sides know it (R1).
///
/// # Safety
/// `to` is NULL, or to a struct that is as large as its first word says. `T` is a struct of the contract.
pub unsafe fn write_struct<T>(to: *mut T, full: &T, start: usize, what: &str) -> Result {
    Out::new(to, what)?;
    // SAFETY: not NULL, so a struct that begins with its size.
    let size = unsafe { to.cast::<usize>().read() };
    let end = size.min(size_of::<T>());
    // SAFETY: `full` has `size_of::<T>()` bytes and `to` has `size`; `end` is in both.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(full).cast::<u8>().add(start.min(end)),
            to.cast::<u8>().add(start.min(end)),
            end.saturating_sub(start),
        );
    }
    Ok(())
}

/// The parameters of a call, which are not NULL and of version 1.0 or later (R1).
///
/// # Safety
/// `given` is NULL, or to a struct of the contract that is as large as its first word says, and lives for `'a`.
#[inline]
pub unsafe fn params<'a, T>(given: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: this function's contract.
    match unsafe { given.cast::<usize>().as_ref() } {
        // SAFETY: not NULL, and as large as the type.
        Some(size) if *size >= size_of::<T>() => Ok(unsafe { &*given }),
        size => Err(no_params(size.copied(), size_of::<T>(), what)),
    }
}

#[cold]
fn no_params(size: Option<usize>, least: usize, what: &str) -> Fault {
    match size {
        None => null(what),
        Some(size) => Fault::argument(format!("{what}: {size} bytes; version 1.0 has {least}")),
    }
}

/// Memory that is asked for: of the device itself, and aligned to `most` bytes or less. Whether it can be exported is all
/// the same to the driver.
///
/// # Safety
/// That of [`params`].
pub unsafe fn memory<'a>(
    given: *const c::otr_memory_params,
    most: u64,
) -> Result<&'a c::otr_memory_params> {
    // SAFETY: this function's contract.
    let given = unsafe { params(given, "the parameters of the memory")? };
    if given.kind != c::OTR_MEMORY_DEVICE {
        return Err(Fault::unsupported(format!(
            "memory of kind {:#x}: this driver has OTR_MEMORY_DEVICE ({}) alone",
            given.kind,
            c::OTR_MEMORY_DEVICE
        )));
    }
    if given.flags & !c::OTR_MEMORY_EXPORTABLE != 0 {
        return Err(Fault::argument(format!(
            "memory flags {:#x}; known is OTR_MEMORY_EXPORTABLE ({:#x})",
            given.flags,
            c::OTR_MEMORY_EXPORTABLE
        )));
    }
    if given.alignment != 0 && !given.alignment.is_power_of_two() {
        return Err(Fault::argument(format!(
            "an alignment of {} bytes: it is a power of two, or 0",
            given.alignment
        )));
    }
    if given.alignment > most {
        return Err(Fault::unsupported(format!(
            "an alignment of {} bytes: this driver aligns to {most} at most",
            given.alignment
        )));
    }
    Ok(given)
}

/// The flags of an event; those of none for NULL.
///
/// # Safety
/// That of [`params`].
pub unsafe fn event_flags(given: *const c::otr_event_params) -> Result<u32> {
    if given.is_null() {
        return Ok(0);
    }
    // SAFETY: this function's contract.
    let flags = unsafe { params(given, "the parameters of the event")? }.flags;
    if flags & !c::OTR_EVENT_TIMING != 0 {
        return Err(Fault::argument(format!(
            "event flags {flags:#x}; known is OTR_EVENT_TIMING ({:#x})",
            c::OTR_EVENT_TIMING
        )));
    }
    Ok(flags)
}

/// A copy, for a driver that copies one row alone.
///
/// # Safety
/// That of [`params`].
#[inline]
pub unsafe fn copy<'a>(given: *const c::otr_copy) -> Result<&'a c::otr_copy> {
    // SAFETY: this function's contract.
    let given = unsafe { params(given, "the copy")? };
    if given.rows > 1 {
        return Err(several_rows(given.rows));
    }
    Ok(given)
}

#[cold]
fn several_rows(rows: u32) -> Fault {
    Fault::unsupported(format!(
        "a copy of {rows} rows: this driver copies one at a time"
    ))
}

/// A copy of one row between devices.
///
/// # Safety
/// That of [`params`].
pub unsafe fn peer_copy<'a>(given: *const c::otr_copy) -> Result<&'a c::otr_copy> {
    // SAFETY: this function's contract.
    let given = unsafe { copy(given)? };
    if given.kind != c::OTR_COPY_DEVICE_TO_DEVICE {
        return Err(Fault::argument(format!(
            "a copy of kind {} between devices: it is OTR_COPY_DEVICE_TO_DEVICE ({})",
            given.kind,
            c::OTR_COPY_DEVICE_TO_DEVICE
        )));
    }
    Ok(given)
}

/// A place for an output, which was found not to be NULL before anything happens (R4).
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Refuses a place that is NULL.
    #[inline]
    pub fn new(place: *mut T, what: &str) -> Result<Self> {
        if place.is_null() {
            return Err(null(what));
        }
        Ok(Self(place))
    }

    /// Writes the output, last of all.
    #[inline]
    pub fn give(self, value: T) {
        // SAFETY: not NULL; R10: the host makes any other place for an output writable during the call.
        unsafe { self.0.write(value) };
    }
}

/// Checks the parameters of `device_open`, which say nothing yet.
///
/// # Errors
/// `OTR_ERR_INVALID_ARGUMENT` for a flag.
///
/// # Safety
/// R1: `params` is NULL or a struct of its size.
pub unsafe fn device_params(params: *const c::otr_device_params) -> Result {
    if params.is_null() {
        return Ok(());
    }
    // SAFETY: not NULL, so a struct of its size (R1).
    match unsafe { field!(params, c::otr_device_params, flags) } {
        None | Some(0) => Ok(()),
        Some(flags) => Err(Fault::argument(format!(
            "device flags {flags:#x} are unknown: pass 0"
        ))),
    }
}

/// A pointer other than a handle that is NULL where it must not be (R7).
#[cold]
pub fn null(what: &str) -> Fault {
    Fault::argument(format!("{what} is NULL and must not be"))
}

/// A text of the host; `None` if it is NULL.
///
/// # Safety
/// `text` is NULL or NUL-terminated, and lives for `'a`.
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, so NUL-terminated.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some)
        .map_err(|_| Fault::argument(format!("{what} is not UTF-8")))
}

/// Copies a text into a zeroed field, cut in front of a character so that a NUL remains.
pub fn put_text(field: &mut [c_char], text: &str) {
    let mut end = text.len().min(field.len().saturating_sub(1));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in field.iter_mut().zip(text[..end].bytes()) {
        *to = from as c_char;
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_char;
    use std::mem::offset_of;

    use super::{Out, event_flags, memory, put_text, text, write_struct};
    use outrigger_contract as c;

    #[test]
    fn a_field_is_read_only_if_it_is_there() {
        let mut params = c::otr_queue_params {
            struct_size: size_of::<c::otr_queue_params>(),
            next: std::ptr::null(),
            priority: 3,
            flags: 9,
        };
        // SAFETY: a live struct, no larger than its first word says.
        let flags = unsafe { field!(&params, c::otr_queue_params, flags) };
        assert_eq!(flags, Some(9));
        params.struct_size = offset_of!(c::otr_queue_params, flags);
        // SAFETY: as above.
        let (flags, priority) = unsafe {
            (
                field!(&params, c::otr_queue_params, flags),
                field!(&params, c::otr_queue_params, priority),
            )
        };
        assert_eq!((flags, priority), (None, Some(3)));
    }

    #[test]
    fn a_struct_is_written_as_far_as_both_know_it() {
        let full = c::otr_queue_params {
            struct_size: 0,
            next: std::ptr::null(),
            priority: 3,
            flags: 9,
        };
        let start = offset_of!(c::otr_queue_params, priority);
        for (size, expected) in [
            (8, [1, 1]),
            (start, [1, 1]),
            (start + 4, [3, 1]),
            (start + 8, [3, 9]),
            (4096, [3, 9]),
        ] {
            let mut to = c::otr_queue_params {
                struct_size: size,
                next: std::ptr::null(),
                priority: 1,
                flags: 1,
            };
            // SAFETY: at most as large as it says is written, and what it says is no more than there is, but for
            // the last one, of which no more than the type is written.
            unsafe { write_struct(&mut to, &full, start, "the struct") }.unwrap();
            assert_eq!([to.priority, to.flags as i32], expected, "{size} bytes");
            assert_eq!(to.struct_size, size);
        }
        // SAFETY: NULL is refused.
        assert!(unsafe { write_struct(std::ptr::null_mut(), &full, start, "it") }.is_err());
    }

    #[test]
    fn parameters_are_of_version_1_or_later() {
        let mut event = c::otr_event_params {
            struct_size: size_of::<c::otr_event_params>(),
            next: std::ptr::null(),
            flags: c::OTR_EVENT_TIMING,
            reserved: 0,
        };
        let code = |given: crate::Result<u32>| given.map_err(|fault| fault.code());
        // SAFETY: NULL, or a struct as large as it says.
        unsafe {
            assert_eq!(code(event_flags(std::ptr::null())), Ok(0));
            assert_eq!(code(event_flags(&event)), Ok(c::OTR_EVENT_TIMING));
            event.struct_size -= 1;
            assert_eq!(code(event_flags(&event)), Err(c::OTR_ERR_INVALID_ARGUMENT));
            event.struct_size += 1;
            event.flags = 6;
            assert_eq!(code(event_flags(&event)), Err(c::OTR_ERR_INVALID_ARGUMENT));
        }
    }

    #[test]
    fn memory_is_of_a_known_kind_and_alignment() {
        let good = c::otr_memory_params {
            struct_size: size_of::<c::otr_memory_params>(),
            next: std::ptr::null(),
            size: 1,
            alignment: 256,
            kind: c::OTR_MEMORY_DEVICE,
            flags: c::OTR_MEMORY_EXPORTABLE,
        };
        let other = |change: fn(&mut c::otr_memory_params)| {
            let mut params = good;
            change(&mut params);
            // SAFETY: a struct as large as it says.
            unsafe { memory(&params, 256) }.map_or_else(|fault| fault.code(), |_| 0)
        };
        assert_eq!(other(|_| ()), 0);
        assert_eq!(other(|p| p.alignment = 0), 0);
        assert_eq!(other(|p| p.alignment = 24), c::OTR_ERR_INVALID_ARGUMENT);
        assert_eq!(other(|p| p.alignment = 512), c::OTR_ERR_UNSUPPORTED);
        assert_eq!(other(|p| p.kind = 1), c::OTR_ERR_UNSUPPORTED);
        assert_eq!(other(|p| p.flags = 2), c::OTR_ERR_INVALID_ARGUMENT);
    }

    #[test]
    fn texts_and_places() {
        let put = |text| {
            let mut field = [0; 4];
            put_text(&mut field, text);
            field.map(|byte: c_char| byte as u8)
        };
        assert_eq!((put("abcdef"), put("")), (*b"abc\0", [0; 4]));
        assert_eq!(put("ab\u{e9}"), *b"ab\0\0");
        // SAFETY: constants, or NULL.
        unsafe {
            assert_eq!(text(c"ab".as_ptr(), "it").unwrap(), Some("ab"));
            assert_eq!(text(std::ptr::null(), "it").unwrap(), None);
            assert!(text(c"\xff".as_ptr(), "it").is_err());
        }
        assert!(Out::<u32>::new(std::ptr::null_mut(), "it").is_err());
    }
}
