//! Tuning: which of several variants of a host's code is the fastest, measured once by a worker of the host.

use std::collections::HashSet;
use std::ffi::{c_char, c_void};
use std::time::Duration;

use outrigger_hooks as hooks;
use outrigger_hooks::{Asked, Code, Error, Question, Result};

use crate::guard::{Out, null, sized, slice, text, unused};

/// `flags` of a question: what is not known is measured, also with OUTRIGGER_TUNE=cached; never with
/// OUTRIGGER_TUNE=off.
pub const OTR_TUNE_MEASURE: u32 = 1;
/// `flags` of a question: as OTR_TUNE_MEASURE, and what is known is measured again, unless a person has pinned it.
pub const OTR_TUNE_AGAIN: u32 = 2;

/// The question which variant of code is the fastest. The library adds the driver, the device and its own version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct otr_tune_params_t {
    /// sizeof(otr_tune_params_t)
    pub struct_size: usize,
    /// NULL
    pub next: *const c_void,
    /// OTR_TUNE_*
    pub flags: u32,
    /// 0
    pub reserved: u32,
    /// The operation that is computed: "torch.mm".
    pub operation: *const c_char,
    /// The class of sizes and layouts. Not empty, as the other texts.
    pub sizes: *const c_char,
    /// The element type.
    pub dtype: *const c_char,
    /// All else that the answer depends on, such as a hash of the code and versions.
    pub code: *const c_char,
    /// The names of the variants. The first one is the default.
    pub candidates: *const *const c_char,
    /// The number of the variants, at least 1.
    pub candidate_count: u32,
    /// Milliseconds that the measurement of one variant may take, with its compilation; 0 for 30 seconds.
    pub limit_ms: u32,
    /// The command that starts a worker: a program, its arguments, and NULL behind the last. NULL: nothing is measured.
    pub worker: *const *const c_char,
    /// The measurement that the worker is to make, as JSON. NULL: nothing is measured.
    pub task: *const c_char,
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(Code::INVALID_ARGUMENT, text)
}

/// A text that must not be empty.
fn filled<'a>(pointer: *const c_char, name: &str) -> Result<&'a str> {
    let text = text(pointer, name)?;
    if text.is_empty() {
        return Err(invalid(format!("{name} is empty: give a text")));
    }
    Ok(text)
}

fn candidates(params: &otr_tune_params_t) -> Result<Vec<String>> {
    if params.candidate_count == 0 {
        return Err(invalid(
            "params->candidate_count is 0: name at least the default variant",
        ));
    }
    let pointers = slice(
        params.candidates,
        params.candidate_count as usize,
        "params->candidates",
    )?;
    let (mut names, mut seen) = (Vec::with_capacity(pointers.len()), HashSet::new());
    for (at, pointer) in pointers.iter().enumerate() {
        let name = filled(*pointer, &format!("params->candidates[{at}]"))?;
        if !seen.insert(name) {
            return Err(invalid(format!(
                "params->candidates[{at}] is `{name}`, as one before it: each variant has a name of its own"
            )));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// The words of a command, up to NULL.
fn command(pointer: *const *const c_char) -> Result<Option<Vec<String>>> {
    if pointer.is_null() {
        return Ok(None);
    }
    let mut words = Vec::new();
    loop {
        // SAFETY: H6: an array that outlives the call and ends with NULL, which was not met so far.
        let word = unsafe { pointer.add(words.len()).read() };
        if word.is_null() {
            break;
        }
        words.push(text(word, &format!("params->worker[{}]", words.len()))?.to_owned());
    }
    match words.first().map(String::as_str) {
        None => Err(null("params->worker[0]")),
        Some("") => Err(invalid("params->worker[0] is empty: name a program")),
        Some(_) => Ok(Some(words)),
    }
}

fn asked(params: *const otr_tune_params_t) -> Result<Asked> {
    let params = sized(params, "params")?;
    unused(params.next, params.reserved, "params")?;
    if params.flags & !(OTR_TUNE_MEASURE | OTR_TUNE_AGAIN) != 0 {
        return Err(invalid(format!(
            "params->flags {:#x} has bits without a meaning: those with one are OTR_TUNE_MEASURE and OTR_TUNE_AGAIN",
            params.flags
        )));
    }
    let task = if params.task.is_null() {
        None
    } else {
        let read = serde_json::from_str(text(params.task, "params->task")?);
        Some(read.map_err(|error| invalid(format!("params->task is not JSON: {error}")))?)
    };
    let question = Question {
        operator: filled(params.operation, "params->operation")?.to_owned(),
        class: filled(params.sizes, "params->sizes")?.to_owned(),
        dtype: filled(params.dtype, "params->dtype")?.to_owned(),
        code: filled(params.code, "params->code")?.to_owned(),
        ..Question::default()
    };
    Ok(Asked {
        question,
        candidates: candidates(params)?,
        limit: match params.limit_ms {
            0 => None,
            limit => Some(Duration::from_millis(limit.into())),
        },
        worker: command(params.worker)?,
        task,
        measure: params.flags & (OTR_TUNE_MEASURE | OTR_TUNE_AGAIN) != 0,
        again: params.flags & OTR_TUNE_AGAIN != 0,
    })
}

api! {
    /// Chooses one of several variants of the host's code for a device, and sets `chosen` to its number in `candidates`: the
    /// choice that is kept in the store (OUTRIGGER_CACHE); or, with OUTRIGGER_TUNE=on or a flag, the fastest variant after
    /// the worker has measured each (docs/device-code.md, Tuning), which is kept then. The default stays where another
    /// variant gains less than 3 percent. A variant has failed if the worker refuses it, crashes or takes too long. `chosen`
    /// is 0, the default, if all have failed, if no worker starts, or if nothing is known. A process measures a question
    /// once, unless OTR_TUNE_AGAIN is set, and one variant at a time. `times_ns` is NULL, or takes `candidate_count`
    /// nanoseconds: 0 for a variant that failed or was not measured. May take minutes. Submits nothing, so it may be
    /// called while streams capture.
    fn otr_tune_choose(
        device: u32,
        params: *const otr_tune_params_t,
        chosen: *mut u32,
        times_ns: *mut u64,
    ) {
        let out = Out::new(chosen, "chosen")?;
        let asked = asked(params)?;
        let answer = hooks::runtime()?.device(device)?.choose(asked)?;
        if !times_ns.is_null() {
            for (at, time) in answer.times.iter().enumerate() {
                // SAFETY: H6: not NULL, so there are `candidate_count` elements, and as many times.
                unsafe { times_ns.add(at).write(time.unwrap_or(0)) };
            }
        }
        out.set(answer.chosen as u32);
        Ok(())
    }
}
