//! Variants of a host's code: questions that are right and wrong. None of them is measured here.

use std::ffi::c_char;
use std::ptr::{null, null_mut};

use crate::tests::host::bindings::*;
use outrigger_device::Code;

use super::{Refused, alloc, begin, end, otr, refused, start, stream};
use crate::test::tests;
use crate::verdict::equal;
use crate::{Context, Verdict};

tests! { "host-abi.tuning":
    /// Without a worker the default is chosen, and nothing was measured. It is legal in a capture.
    the_default: H2 H6 H25;
    /// Unknown flags, empty texts, names that occur twice and tasks that are no JSON are refused.
    wrong_questions: H2 H3 H6 H7 H8 H9 H10;
}

/// The names of two variants.
struct Names([*const c_char; 2]);

// SAFETY: they point to constants.
unsafe impl Sync for Names {}

static NAMES: Names = Names([c"one".as_ptr(), c"two".as_ptr()]);
static TWICE: Names = Names([c"one".as_ptr(), c"one".as_ptr()]);
static EMPTY: Names = Names([c"one".as_ptr(), c"".as_ptr()]);
static FOREIGN: Names = Names([c"one".as_ptr(), c"\xff".as_ptr()]);
static ENDED: Names = Names([c"one".as_ptr(), null()]);
static NO_PROGRAM: Names = Names([c"".as_ptr(), null()]);
static NO_WORD: Names = Names([null(), null()]);

/// A question that is right. Nobody can measure it.
pub(super) fn tune_params() -> otr_tune_params_t {
    otr_tune_params_t {
        struct_size: size_of::<otr_tune_params_t>(),
        next: null(),
        flags: OTR_TUNE_MEASURE,
        reserved: 0,
        operation: c"conformance".as_ptr(),
        sizes: c"of no size".as_ptr(),
        dtype: c"f32".as_ptr(),
        code: c"0".as_ptr(),
        candidates: NAMES.0.as_ptr(),
        candidate_count: 2,
        limit_ms: 1000,
        worker: null(),
        task: c"{}".as_ptr(),
    }
}

pub(super) fn tune(params: &otr_tune_params_t, chosen: *mut u32) -> Result<(), Refused> {
    otr!(tune_choose, 0, params, chosen, null_mut())
}

fn the_default(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    // Memory of the capture, so that its graph is not empty.
    begin(stream)?;
    alloc(64, stream)?;
    let (mut chosen, mut times) = (7, [7; 2]);
    otr!(
        tune_choose,
        0,
        &tune_params(),
        &mut chosen,
        times.as_mut_ptr()
    )?;
    equal!(
        (chosen, times),
        (0, [0; 2]),
        "the chosen variant and the times"
    );
    end(stream)?;
    let mut chosen = 7;
    tune(&tune_params(), &mut chosen)?;
    equal!(chosen, 0, "without a place for times");
    Ok(())
}

fn wrong_questions(context: &Context) -> Verdict {
    start(context)?;
    let right = tune_params;
    let wrong = [
        (
            "an unknown flag",
            otr_tune_params_t {
                flags: 4,
                ..right()
            },
        ),
        (
            "`reserved`",
            otr_tune_params_t {
                reserved: 1,
                ..right()
            },
        ),
        (
            "`next`",
            otr_tune_params_t {
                next: (&raw const NAMES).cast(),
                ..right()
            },
        ),
        (
            "a struct that is too small",
            otr_tune_params_t {
                struct_size: 8,
                ..right()
            },
        ),
        (
            "no operation",
            otr_tune_params_t {
                operation: null(),
                ..right()
            },
        ),
        (
            "empty sizes",
            otr_tune_params_t {
                sizes: c"".as_ptr(),
                ..right()
            },
        ),
        (
            "a type that is not UTF-8",
            otr_tune_params_t {
                dtype: c"\xff".as_ptr(),
                ..right()
            },
        ),
        (
            "no code",
            otr_tune_params_t {
                code: null(),
                ..right()
            },
        ),
        (
            "no candidates",
            otr_tune_params_t {
                candidate_count: 0,
                ..right()
            },
        ),
        (
            "NULL as candidates",
            otr_tune_params_t {
                candidates: null(),
                ..right()
            },
        ),
        (
            "a name twice",
            otr_tune_params_t {
                candidates: TWICE.0.as_ptr(),
                ..right()
            },
        ),
        (
            "an empty name",
            otr_tune_params_t {
                candidates: EMPTY.0.as_ptr(),
                ..right()
            },
        ),
        (
            "a name that is not UTF-8",
            otr_tune_params_t {
                candidates: FOREIGN.0.as_ptr(),
                ..right()
            },
        ),
        (
            "NULL as a name",
            otr_tune_params_t {
                candidates: ENDED.0.as_ptr(),
                ..right()
            },
        ),
        (
            "a worker whose program is empty",
            otr_tune_params_t {
                worker: NO_PROGRAM.0.as_ptr(),
                ..right()
            },
        ),
        (
            "a word of a worker that is not UTF-8",
            otr_tune_params_t {
                worker: FOREIGN.0.as_ptr(),
                ..right()
            },
        ),
        (
            "a worker without a program",
            otr_tune_params_t {
                worker: NO_WORD.0.as_ptr(),
                ..right()
            },
        ),
        (
            "a task that is no JSON",
            otr_tune_params_t {
                task: c"{".as_ptr(),
                ..right()
            },
        ),
    ];
    let (mut chosen, mut times) = (7, [7; 2]);
    for (what, params) in &wrong {
        let answer = otr!(tune_choose, 0, params, &mut chosen, times.as_mut_ptr());
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    refused(
        otr!(
            tune_choose,
            u32::MAX,
            &right(),
            &mut chosen,
            times.as_mut_ptr()
        ),
        Code::INVALID_DEVICE,
        "a device that there is not",
    )?;
    equal!(
        (chosen, times),
        (7, [7; 2]),
        "H2: the outputs of failed calls"
    );
    Ok(())
}
