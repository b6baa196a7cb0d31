//! Chains of records (R3): how one of a type is found. What is in it, who asks reads.

use std::mem::offset_of;
use std::ptr::NonNull;

use crate as sys;

/// More records than any chain has: one that is longer leads back into itself.
const TOO_MANY: usize = 1000;

/// The first record of a type in a chain, which is at least as large as its head; `None` if there is none. Records of
/// other types are skipped.
///
/// # Errors
/// A text, as the end of a sentence about the chain, where it cannot be walked.
///
/// # Safety
/// `first` is NULL or a record, each record is as large as it says (R1), and `next` of each is NULL or a record.
pub unsafe fn find_record(
    first: *const sys::otr_ext,
    type_: u32,
) -> Result<Option<NonNull<sys::otr_ext>>, String> {
    let mut at = first;
    for number in 1..TOO_MANY {
        let Some(record) = NonNull::new(at.cast_mut()) else {
            return Ok(None);
        };
        if !at.is_aligned() {
            return Err(format!(
                "record {number} of its chain lies at {at:p}, which is not aligned"
            ));
        }
        // SAFETY: aligned, and this function's contract: a record has at least its size.
        let size = unsafe { at.cast::<usize>().read() };
        if size < size_of::<sys::otr_ext>() {
            return Err(format!(
                "record {number} of its chain has {size} bytes, and the head of a record alone has {}",
                size_of::<sys::otr_ext>()
            ));
        }
        // SAFETY: the head lies within the record.
        let head = unsafe { at.read() };
        if head.type_ == type_ {
            return Ok(Some(record));
        }
        at = head.next;
    }
    Err(format!(
        "its chain has {TOO_MANY} records or more: the last one has NULL for `next`"
    ))
}

const _: () = assert!(offset_of!(sys::otr_ext, struct_size) == 0);

#[cfg(test)]
mod tests {
    use std::ptr::{null, without_provenance};

    use super::find_record;
    use crate as sys;

    fn record(type_: u32, next: *const sys::otr_ext) -> sys::otr_ext {
        sys::otr_ext {
            struct_size: size_of::<sys::otr_ext>(),
            type_,
            reserved: 0,
            next,
        }
    }

    #[test]
    fn the_first_of_its_type_is_found_wherever_it_stands() {
        let again = record(7, null());
        let last = record(9, &again);
        let middle = record(7, &last);
        let first = record(8, &middle);
        // SAFETY: live records, or NULL.
        let found = |type_| unsafe { find_record(&first, type_) }.unwrap();
        assert_eq!(found(7).unwrap().as_ptr().cast_const(), &raw const middle);
        assert_eq!(found(9).unwrap().as_ptr().cast_const(), &raw const last);
        assert_eq!(found(1), None);
        // SAFETY: NULL is an empty chain.
        assert_eq!(unsafe { find_record(null(), 7) }, Ok(None));
    }

    #[test]
    fn a_chain_that_cannot_be_walked_is_named() {
        let mut ring = record(7, null());
        ring.next = &raw const ring;
        let short = sys::otr_ext {
            struct_size: 16,
            ..record(7, null())
        };
        let front = record(7, &short);
        let nowhere = record(7, without_provenance(0x1004));
        for (first, part) in [
            (&raw const ring, "1000 records"),
            (&raw const front, "record 2 of its chain has 16 bytes"),
            (&raw const nowhere, "record 2 of its chain lies at 0x1004"),
        ] {
            // SAFETY: live records, none of which is read beyond its size.
            let text = unsafe { find_record(first, 1) }.unwrap_err();
            assert!(text.contains(part), "{text}");
        }
    }
}
