//! What became of work, as a driver tells it (R19): the struct that it writes, and the result that this becomes. A call that
//! has failed gives no outcome: its error says nothing about the work.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use crate::{Code, Error, RawDriver, Result, sys};

/// A place for an outcome, as a host makes it for a driver.
pub const NO_OUTCOME: sys::otr_outcome = sys::otr_outcome {
    struct_size: size_of::<sys::otr_outcome>(),
    next: std::ptr::null_mut(),
    // What a driver has not written says nothing.
    code: Code::NOT_READY.0,
    reserved: 0,
    submission: 0,
    label: [0; sys::OTR_LABEL_BYTES as usize],
    message: [0; sys::OTR_MESSAGE_BYTES as usize],
};

impl RawDriver {
    /// Whether all of the work has finished, by a call that writes an outcome.
    ///
    /// # Errors
    /// The failure of the work, which [is an outcome](Error::is_outcome); why there is no outcome.
    #[inline]
    pub(crate) fn ask(&self, call: impl FnOnce(*mut sys::otr_outcome) -> i32) -> Result<bool> {
        let mut place = MaybeUninit::<sys::otr_outcome>::uninit();
        let outcome = place.as_mut_ptr();
        // SAFETY: fields of the place. Of the texts the first byte is enough: where there are more, the driver wrote them.
        unsafe {
            (*outcome).struct_size = NO_OUTCOME.struct_size;
            (*outcome).next = NO_OUTCOME.next;
            (*outcome).code = NO_OUTCOME.code;
            (*outcome).submission = 0;
            (*outcome).label[0] = 0;
            (*outcome).message[0] = 0;
        }
        self.check(call(outcome))?;
        // SAFETY: written above.
        match Code(unsafe { (*outcome).code }) {
            Code::OK => Ok(true),
            Code::NOT_READY => Ok(false),
            // SAFETY: as above.
            _ => Err(unsafe { failure(outcome) }),
        }
    }

    /// The same for a call that waits, or has an outcome at any time.
    ///
    /// # Errors
    /// Those of [`ask`](Self::ask).
    #[inline]
    pub(crate) fn wait(&self, call: impl FnOnce(*mut sys::otr_outcome) -> i32) -> Result<()> {
        match self.ask(call) {
            Ok(true) => Ok(()),
            Ok(false) => Err(unready()),
            Err(error) => Err(error),
        }
    }
}

#[cold]
fn unready() -> Error {
    Error::new(
        Code::INTERNAL,
        "the driver has waited and says OTR_NOT_READY, which R19 forbids",
    )
}

/// The failure that a driver wrote.
///
/// # Safety
/// The fields that [`RawDriver::ask`] writes were written.
#[cold]
unsafe fn failure(outcome: *const sys::otr_outcome) -> Error {
    // SAFETY: this function's contract; texts end in NUL.
    unsafe {
        Error::of_work(
            Code((*outcome).code),
            text(&raw const (*outcome).message),
            text(&raw const (*outcome).label),
            (*outcome).submission,
        )
    }
}

/// A text, which ends in NUL or with its field.
///
/// # Safety
/// The bytes up to the first NUL were written.
unsafe fn text<const SIZE: usize>(field: *const [c_char; SIZE]) -> String {
    let field = field.cast::<u8>();
    // SAFETY: this function's contract: none is looked at behind the NUL.
    let bytes = (0..SIZE).map(|at| unsafe { field.add(at).read() });
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::NO_OUTCOME;
    use crate::{Code, Driver, sys};

    fn driver() -> Driver {
        Driver::open(&"host?devices=1&memory=1M".parse().unwrap()).unwrap()
    }

    #[test]
    fn an_outcome_becomes_a_result_with_its_place() {
        let driver = driver();
        let told = |change: fn(&mut sys::otr_outcome)| {
            driver.as_raw().ask(|place| {
                let mut outcome = NO_OUTCOME;
                change(&mut outcome);
                // SAFETY: the place of the call.
                unsafe { place.write(outcome) };
                0
            })
        };
        assert!(told(|outcome| outcome.code = 0).unwrap());
        assert!(!told(|outcome| outcome.code = 1).unwrap());
        let failed = told(|outcome| {
            outcome.code = Code::OUT_OF_RANGE.0;
            outcome.submission = 42;
            outcome.label[..3].copy_from_slice(&[b'a', b'd', b'd'].map(|byte| byte as _));
            // Without a NUL.
            outcome.message = [b'x' as _; sys::OTR_MESSAGE_BYTES as usize];
        });
        let failed = failed.unwrap_err();
        assert!(failed.is_outcome());
        assert_eq!(
            (failed.label(), failed.submission()),
            (Some("add"), Some(42))
        );
        assert_eq!(failed.message(), "x".repeat(256));
        let unknown = told(|outcome| outcome.code = Code::EXECUTION.0).unwrap_err();
        assert_eq!((unknown.label(), unknown.submission()), (None, None));
    }

    #[test]
    fn a_call_that_fails_or_writes_nothing_has_no_outcome() {
        let driver = driver();
        let refused = driver.as_raw().ask(|_| Code::DEVICE_LOST.0).unwrap_err();
        assert!(refused.code() == Code::DEVICE_LOST && !refused.is_outcome());
        assert!(!driver.as_raw().ask(|_| 0).unwrap());
        let unready = driver.as_raw().wait(|_| 0).unwrap_err();
        assert!(unready.code() == Code::INTERNAL && !unready.is_outcome());
    }
}
