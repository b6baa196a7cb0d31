//! The outcome of work (R19), as entries write it into the host's struct.

use std::mem::offset_of;

use outrigger_contract as c;

use crate::fault::{Fault, Progress, Result, guard};
use crate::given::{null, put_text, write_struct};

/// The answers, when nothing has failed, of the body of an entry that asks or waits for work.
pub trait Outcome {
    /// The code that says so.
    fn code(self) -> i32;
}

impl Outcome for () {
    fn code(self) -> i32 {
        c::OTR_OK
    }
}

impl Outcome for Progress {
    fn code(self) -> i32 {
        match self {
            Self::Done => c::OTR_OK,
            Self::NotReady => c::OTR_NOT_READY,
        }
    }
}

/// Runs the body of an entry that asks or waits for work, and writes the outcome (R19).
/// [`outcomes!`](crate::outcomes) puts every such entry in it.
///
/// # Safety
/// `place` is NULL, or to a struct that is as large as its first word says, and not smaller than that of version 1.0.
#[inline]
pub unsafe fn tell<T: Outcome>(
    place: *mut c::otr_outcome,
    body: impl FnOnce() -> Result<T>,
) -> i32 {
    guard(|| {
        if place.is_null() {
            return Err(null("the place for the outcome"));
        }
        match body() {
            // SAFETY: not NULL, so at least the struct of version 1.0.
            Ok(outcome) => unsafe { (&raw mut (*place).code).write(outcome.code()) },
            // SAFETY: this function's contract.
            Err(fault) if fault.is_outcome() => return unsafe { write(place, &fault) },
            Err(fault) => return Err(fault),
        }
        Ok(())
    })
}

/// Writes a failure of work.
///
/// # Safety
/// That of `tell`.
#[cold]
unsafe fn write(place: *mut c::otr_outcome, fault: &Fault) -> Result {
    let mut outcome = c::otr_outcome {
        struct_size: 0,
        next: std::ptr::null_mut(),
        code: fault.code(),
        reserved: 0,
        submission: 0,
        label: [0; c::OTR_LABEL_BYTES as usize],
        message: [0; c::OTR_MESSAGE_BYTES as usize],
    };
    if let Some(origin) = fault.origin() {
        outcome.submission = origin.number();
        put_text(&mut outcome.label, &origin.label());
    }
    put_text(&mut outcome.message, &fault.message());
    let start = offset_of!(c::otr_outcome, code);
    // SAFETY: this function's contract.
    unsafe { write_struct(place, &outcome, start, "the place for the outcome") }
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, c_char};

    use super::tell;
    use crate::fault::{Fault, Progress, last_error};
    use crate::origin::{Label, Origin};
    use outrigger_contract as c;

    fn text() -> String {
        // SAFETY: R5: never NULL, and valid until this thread's next call.
        unsafe { CStr::from_ptr(last_error()) }
            .to_string_lossy()
            .into_owned()
    }

    fn place() -> c::otr_outcome {
        c::otr_outcome {
            struct_size: size_of::<c::otr_outcome>(),
            next: std::ptr::null_mut(),
            code: 77,
            reserved: 77,
            submission: 77,
            label: [77; c::OTR_LABEL_BYTES as usize],
            message: [77; c::OTR_MESSAGE_BYTES as usize],
        }
    }

    fn of(field: &[c_char]) -> String {
        let bytes = field.iter().map(|byte| *byte as u8);
        String::from_utf8(bytes.take_while(|byte| *byte != 0).collect()).unwrap()
    }

    #[test]
    fn an_outcome_is_written_where_there_is_one() {
        let mut outcome = place();
        // SAFETY: a live struct of its type, here and below; or NULL.
        let mut told = |result| unsafe { (tell(&mut outcome, || result), outcome) };
        let (code, well) = told(Ok(Progress::NotReady));
        assert_eq!((code, well.code), (c::OTR_OK, c::OTR_NOT_READY));
        assert_eq!(
            (well.submission, well.label[0], well.message[0]),
            (77, 77, 77)
        );
        let (code, refused) = told(Err(Fault::argument("it is wrong")));
        assert_eq!(
            (code, refused.code),
            (c::OTR_ERR_INVALID_ARGUMENT, c::OTR_NOT_READY)
        );
        assert_eq!(text(), "it is wrong");
        // SAFETY: a constant.
        let label = unsafe { Label::new(c"add".as_ptr()) };
        let long = "\u{e9}".repeat(200);
        let failed = Fault::outcome(11, long).of(Origin::new(label, 5));
        let (code, failed) = told(Err(failed));
        assert_eq!((code, failed.code, failed.submission), (c::OTR_OK, 11, 5));
        assert_eq!(of(&failed.label), "add");
        assert_eq!(
            of(&failed.message),
            "\u{e9}".repeat(127),
            "cut in front of a character"
        );
        assert_eq!(text(), "it is wrong", "the call has not failed");
        // SAFETY: as above.
        let null = unsafe { tell(std::ptr::null_mut(), || Ok(())) };
        assert_eq!(null, c::OTR_ERR_INVALID_ARGUMENT);
    }
}
