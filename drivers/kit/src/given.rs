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

/// The record of a type in a chain, if there is one. Records of other types are skipped (R3).
///
/// # Safety
/// `first` is NULL or the first record of a chain that lives for `'a`.
pub unsafe fn find<'a>(first: *const c::otr_ext, type_: u32) -> Option<&'a c::otr_ext> {
    let mut at = first;
    // SAFETY: this function's contract: each record is NULL or lives.
    while let Some(record) = unsafe { at.as_ref() } {
        if record.type_ == type_ {
            return Some(record);
        }
        at = record.next;
    }
    None
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

    use super::{Out, find, put_text, text, write_struct};
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
    fn a_chain_is_walked() {
        let last = c::otr_ext {
            struct_size: size_of::<c::otr_ext>(),
            type_: 8,
            reserved: 5,
            next: std::ptr::null(),
        };
        let first = c::otr_ext {
            type_: 7,
            next: &last,
            ..last
        };
        // SAFETY: both records live, and NULL is an empty chain.
        unsafe {
            assert_eq!(find(&first, 8).unwrap().reserved, 5);
            assert!(find(&first, 9).is_none());
            assert!(find(std::ptr::null(), 8).is_none());
        }
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
