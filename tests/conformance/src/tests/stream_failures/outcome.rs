//! R19: what a driver writes into an outcome, and when.

use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;

use outrigger_device::{NO_OUTCOME, params, sys};

use super::super::kernels::{count, counter, launch_labelled};
use super::super::raw::{Newer, Raw, call};
use super::*;

tests! { "stream.outcome":
    /// Of work that is well the code is written, and nothing else.
    of_good_work_is_its_code: R19;
    /// Of work that has not finished the code is written, and nothing else; the call itself has succeeded.
    of_unfinished_work_is_its_code: R19;
    /// Work that failed is no failure of the call: that answers OTR_OK, and leaves the text of the last failure.
    of_failed_work_is_no_answer: R5 R19 R20 R23;
    /// Both texts of a failure end in NUL.
    of_failed_work_has_texts_that_end: R19;
    /// A driver writes no further than the size of the struct that it knows.
    ends_where_the_struct_ends: R1 R19;
    /// A call that is refused writes none.
    is_not_written_by_a_refused_call: R4 R19;
    /// A wait that is refused clears no failure.
    a_refused_wait_clears_nothing: R4 R20;
    /// A label that is too long is cut in front of a character.
    a_long_label_is_cut: R19, needs HostKernels;
}

/// The byte that stands in a place before a driver writes there.
const MARK: u8 = 0x5a;

/// A place that shows what was written in it.
fn place() -> sys::otr_outcome {
    sys::otr_outcome {
        code: 0x5a5a,
        reserved: 0x5a5a,
        submission: 0x5a5a,
        label: [MARK as c_char; sys::OTR_LABEL_BYTES as usize],
        message: [MARK as c_char; sys::OTR_MESSAGE_BYTES as usize],
        ..NO_OUTCOME
    }
}

/// Whether nothing but the code was written.
fn is_its_code(outcome: &sys::otr_outcome, code: Code) -> bool {
    let expected = sys::otr_outcome {
        code: code.0,
        ..place()
    };
    format!("{outcome:?}") == format!("{expected:?}")
}

/// A queue and an event of a raw driver.
struct Pair {
    raw: Raw,
    queue: *mut sys::otr_queue,
    event: *mut sys::otr_drv_event,
}

impl Pair {
    fn new(context: &Context) -> Verdict<Self> {
        let raw = Raw::open(context)?;
        let (queue, event) = (raw.queue()?, raw.event()?);
        Ok(Self { raw, queue, event })
    }

    fn record(&self) -> Verdict {
        let answer = call!(self.raw.api(), event_record, self.event, self.queue);
        self.raw.takes(answer, "event_record")
    }

    /// Lets the queue fail, and the event behind it.
    fn fail(&self) -> Verdict {
        unsafe extern "C" fn fails(_: *mut std::ffi::c_void, _: i32) -> i32 {
            Code::OUT_OF_RANGE.0
        }
        let answer = call!(
            self.raw.api(),
            host_call,
            self.queue,
            &params::host_call(Some(fails), null_mut(), 0)
        );
        self.raw.takes(answer, "host_call")?;
        self.record()
    }

    /// The answer and the outcome of each question; the wait for the queue comes last, since it clears.
    fn ask(&self) -> Verdict<Vec<(&'static str, i32, sys::otr_outcome)>> {
        let api = self.raw.api();
        let mut all = Vec::new();
        let mut waited = place();
        let answer = call!(api, event_synchronize, self.event, &mut waited);
        all.push(("event_synchronize", answer, waited));
        let mut asked = place();
        let answer = call!(api, event_query, self.event, &mut asked);
        all.push(("event_query", answer, asked));
        // An event says nothing of when its queue notices.
        until(|| Ok(self.raw.query(self.queue)? != Code::NOT_READY))?;
        let mut asked = place();
        let answer = call!(api, queue_query, self.queue, &mut asked);
        all.push(("queue_query", answer, asked));
        let mut waited = place();
        let answer = call!(api, queue_synchronize, self.queue, &mut waited);
        all.push(("queue_synchronize", answer, waited));
        Ok(all)
    }

    fn finish(self) -> Verdict {
        self.raw.destroy(self.queue, self.event)
    }
}

fn of_good_work_is_its_code(context: &Context) -> Verdict {
    let pair = Pair::new(context)?;
    for round in 0..2 {
        for (what, answer, outcome) in pair.ask()? {
            pair.raw.takes(answer, what)?;
            check!(
                is_its_code(&outcome, Code::OK),
                "round {round}, {what} wrote the code alone: {outcome:?}"
            );
        }
        pair.record()?;
    }
    pair.finish()
}

fn of_unfinished_work_is_its_code(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event, gate) = (bench.queue()?, bench.event()?, Gate::new());
    let raw = Raw::of(bench.driver());
    block(&queue, &gate)?;
    event.record(&queue)?;
    let mut asked = place();
    let answer = call!(raw.api(), queue_query, queue.raw(), &mut asked);
    gate.open();
    raw.takes(answer, "queue_query of a queue that is busy")?;
    check!(
        is_its_code(&asked, Code::NOT_READY),
        "queue_query wrote the code alone: {asked:?}"
    );
    queue.synchronize()?;
    event.synchronize()?;
    bench.finish()
}

fn of_failed_work_is_no_answer(context: &Context) -> Verdict {
    let pair = Pair::new(context)?;
    // A failed call, whose text stays.
    let refused = call!(pair.raw.api(), queue_destroy, null_mut());
    pair.raw
        .refuses(refused, Code::INVALID_HANDLE, "queue_destroy of NULL")?;
    let text = pair.raw.text()?;
    pair.fail()?;
    for (what, answer, outcome) in pair.ask()? {
        answers!(answer, Code::OK, "{what} of work that failed");
        answers!(
            outcome.code,
            Code::OUT_OF_RANGE,
            "the outcome that {what} wrote"
        );
        equal!(pair.raw.text()?, text, "R5: the text after {what}");
    }
    answers!(
        pair.raw.query(pair.queue)?,
        Code::OK,
        "the queue, once it was reported"
    );
    pair.finish()
}

/// A text in a field.
fn text(field: &[c_char]) -> Verdict<String> {
    let bytes: Vec<u8> = field.iter().map(|byte| *byte as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes);
    let text = text.map_err(|_| crate::Failure::new("a text ends in NUL"))?;
    let text = text.to_str();
    Ok(text
        .map_err(|_| crate::Failure::new("a text is UTF-8"))?
        .to_owned())
}

fn of_failed_work_has_texts_that_end(context: &Context) -> Verdict {
    let pair = Pair::new(context)?;
    pair.fail()?;
    for (what, _, outcome) in pair.ask()? {
        let (label, message) = (text(&outcome.label)?, text(&outcome.message)?);
        check!(!message.is_empty(), "{what} wrote a message");
        check!(
            !label.contains(MARK as char),
            "{what} wrote a label, or an empty one: {label:?}"
        );
        check!(
            outcome.submission <= 1,
            "{what} says that it was the first command, or does not know: {}",
            outcome.submission
        );
        equal!(
            (outcome.struct_size, outcome.next),
            (size_of::<sys::otr_outcome>(), null_mut()),
            "what is the host's, after {what}"
        );
    }
    pair.finish()
}

fn ends_where_the_struct_ends(context: &Context) -> Verdict {
    let pair = Pair::new(context)?;
    pair.fail()?;
    let mut asked = Newer::new(place());
    asked.known.struct_size = Newer::<sys::otr_outcome>::SIZE;
    let api = pair.raw.api();
    let answer = call!(api, event_synchronize, pair.event, &mut asked.known);
    pair.raw.takes(answer, "event_synchronize")?;
    answers!(asked.known.code, Code::OUT_OF_RANGE, "the outcome");
    check!(
        asked.is_untouched(),
        "nothing is written behind the fields that the driver knows"
    );
    let mut waited = NO_OUTCOME;
    call!(api, queue_synchronize, pair.queue, &mut waited);
    pair.finish()
}

fn is_not_written_by_a_refused_call(context: &Context) -> Verdict {
    let pair = Pair::new(context)?;
    let api = pair.raw.api();
    let mut outcome = place();
    for (answer, what) in [
        (
            call!(api, queue_query, null_mut(), &mut outcome),
            "queue_query",
        ),
        (
            call!(api, queue_synchronize, null_mut(), &mut outcome),
            "queue_synchronize",
        ),
        (
            call!(api, event_query, null_mut(), &mut outcome),
            "event_query",
        ),
        (
            call!(api, event_synchronize, null_mut(), &mut outcome),
            "event_synchronize",
        ),
    ] {
        pair.raw.refuses(answer, Code::INVALID_HANDLE, what)?;
    }
    let untouched = format!("{:?}", place());
    equal!(
        format!("{outcome:?}"),
        untouched,
        "the outcome of refused calls"
    );
    pair.finish()
}

fn a_refused_wait_clears_nothing(context: &Context) -> Verdict {
    let pair = Pair::new(context)?;
    pair.fail()?;
    let api = pair.raw.api();
    let refused = call!(api, queue_synchronize, pair.queue, null_mut());
    pair.raw
        .refuses(refused, Code::INVALID_ARGUMENT, "a wait without a place")?;
    let mut outcome = place();
    let answer = call!(api, queue_synchronize, pair.queue, &mut outcome);
    pair.raw.takes(answer, "queue_synchronize")?;
    answers!(
        outcome.code,
        Code::OUT_OF_RANGE,
        "the outcome that was not reported before"
    );
    pair.raw.synchronize(pair.queue)?;
    pair.finish()
}

fn a_long_label_is_cut(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let Some(kernel) = bench.host_kernel(0, count)? else {
        return Err(crate::Failure::new("the driver takes host kernels"));
    };
    let whole = "\u{e9}".repeat(sys::OTR_LABEL_BYTES as usize);
    // R30: a label lives as long as the process.
    let label = Box::leak(CString::new(whole.clone())?.into_boxed_c_str());
    launch_labelled(&queue, &kernel, counter(), u64::MAX, label)?;
    let failed = queue.synchronize();
    answers!(failed, Code::OUT_OF_RANGE, "queue_synchronize");
    let label = failed
        .err()
        .and_then(|error| error.label().map(str::to_owned));
    let label = label.unwrap_or_default();
    check!(
        whole.starts_with(&label) && label.len() < sys::OTR_LABEL_BYTES as usize,
        "the beginning of the label, cut in front of a character: {label:?}"
    );
    check!(
        label.len() > 100,
        "as much of it as there is room for: {label:?}"
    );
    bench.finish()
}
