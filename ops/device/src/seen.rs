//! Entries of a driver that recordings see: a command of a queue that records is kept, a call that would wait
//! is refused, and everything else is the driver's (R31 to R33).

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use outrigger_device::{Code, NO_OUTCOME, sys};

use crate::call::{Refusal, Result};
use crate::command::{Command, Stored};
use crate::recording::{Answer, KnownKernel, Recorder};
use crate::unit::{Unit, own_text};

type Driver = *mut sys::otr_driver;
type Queue = *mut sys::otr_queue;
type Event = *mut sys::otr_drv_event;
type Outcome = *mut sys::otr_outcome;
type Module = *mut sys::otr_drv_module;
type Kernel = *mut sys::otr_drv_kernel;

/// # Safety
/// R8: the host's arguments.
pub(crate) unsafe fn queue_query(
    recorder: &Recorder,
    queue: Queue,
    outcome: Outcome,
) -> Result<i32> {
    recorder.table().refuse_queue(queue.addr(), "queue_query")?;
    // SAFETY: this function's contract.
    Ok(unsafe { (recorder.calls.queue_query)(queue, outcome) })
}

/// # Safety
/// R8: the host's arguments.
pub(crate) unsafe fn native_handle(
    recorder: &Recorder,
    queue: Queue,
    native: *mut u64,
) -> Result<i32> {
    recorder
        .table()
        .refuse_queue(queue.addr(), "the native queue")?;
    // SAFETY: this function's contract.
    Ok(unsafe { (recorder.calls.native_handle)(queue, native) })
}

/// # Safety
/// R8: the host's arguments.
pub(crate) unsafe fn queue_synchronize(
    recorder: &Recorder,
    queue: Queue,
    outcome: Outcome,
) -> Result<i32> {
    recorder
        .table()
        .refuse_queue(queue.addr(), "queue_synchronize")?;
    // SAFETY: this function's contract.
    let code = unsafe { (recorder.calls.queue_synchronize)(queue, outcome) };
    // Memory of graphs that were destroyed meanwhile is idle now.
    if code == Code::OK.0 && recorder.gone.count() > 0 {
        recorder.sweep();
    }
    Ok(code)
}

/// # Safety
/// R8: the host's arguments.
pub(crate) unsafe fn queue_wait_event(
    recorder: &Recorder,
    queue: Queue,
    event: Event,
) -> Result<i32> {
    let records = recorder.table().records(queue.addr());
    let mut outcome = NO_OUTCOME;
    if records {
        // SAFETY: this function's contract, and a place for the outcome.
        let code = unsafe { (recorder.calls.event_query)(event, &mut outcome) };
        if code != Code::OK.0 {
            return Ok(code);
        }
    }
    let is_well = outcome.code == Code::OK.0;
    match recorder.with(|table| table.wait(queue.addr(), event.addr(), is_well))? {
        // SAFETY: this function's contract.
        Answer::Pass => Ok(unsafe { (recorder.calls.queue_wait_event)(queue, event) }),
        Answer::Done => Ok(Code::OK.0),
    }
}

/// # Safety
/// R8: the host's arguments.
pub(crate) unsafe fn event_destroy(recorder: &Recorder, event: Event) -> Result<i32> {
    recorder.with(|table| table.unmark(event.addr()));
    // SAFETY: this function's contract.
    Ok(unsafe { (recorder.calls.event_destroy)(event) })
}

/// # Safety
/// R8: the host's arguments.
pub(crate) unsafe fn event_record(recorder: &Recorder, event: Event, queue: Queue) -> Result<i32> {
    if recorder.table().records(queue.addr()) {
        // SAFETY: this function's contract, and a place for the outcome.
        let code = unsafe { (recorder.calls.event_query)(event, &mut { NO_OUTCOME }) };
        if code == Code::INVALID_HANDLE.0 {
            return Ok(code);
        }
        recorder.with(|table| table.mark(event.addr(), queue.addr()));
        return Ok(Code::OK.0);
    }
    // SAFETY: this function's contract.
    let code = unsafe { (recorder.calls.event_record)(event, queue) };
    if code == Code::OK.0 {
        recorder.with(|table| table.unmark(event.addr()));
    }
    Ok(code)
}

/// # Safety
/// R8: the host's arguments.
pub(crate) unsafe fn event_query(
    recorder: &Recorder,
    event: Event,
    outcome: Outcome,
) -> Result<i32> {
    let answer = recorder.table().look(event.addr(), "event_query")?;
    match answer {
        // SAFETY: this function's contract.
        Answer::Pass => Ok(unsafe { (recorder.calls.event_query)(event, outcome) }),
        // SAFETY: as above.
        Answer::Done => unsafe { finished(outcome) },
    }
}

/// The outcome of an event that counts as never recorded (R22).
///
/// # Safety
/// NULL, or writable.
unsafe fn finished(outcome: Outcome) -> Result<i32> {
    if outcome.is_null() {
        return Err(Refusal::new(Code::INVALID_ARGUMENT, "the outcome is NULL"));
    }
    // SAFETY: not NULL, so writable.
    unsafe { (*outcome).code = Code::OK.0 };
    Ok(Code::OK.0)
}

/// # Safety
/// R8: the host's arguments.
pub(crate) unsafe fn event_synchronize(
    recorder: &Recorder,
    event: Event,
    outcome: Outcome,
) -> Result<i32> {
    let answer = recorder.table().look(event.addr(), "event_synchronize")?;
    match answer {
        // SAFETY: this function's contract.
        Answer::Pass => Ok(unsafe { (recorder.calls.event_synchronize)(event, outcome) }),
        // SAFETY: as above.
        Answer::Done => unsafe { finished(outcome) },
    }
}

/// # Safety
/// R8: the host's arguments.
pub(crate) unsafe fn event_time(
    recorder: &Recorder,
    event: Event,
    outcome: Outcome,
    nanoseconds: *mut u64,
) -> Result<i32> {
    let answer = recorder.table().look(event.addr(), "event_time")?;
    match answer {
        // SAFETY: this function's contract.
        Answer::Pass => Ok(unsafe { (recorder.calls.event_time)(event, outcome, nanoseconds) }),
        Answer::Done => Err(Refusal::new(
            Code::INVALID_ARGUMENT,
            "the event was recorded in a recording alone, so it counts as never recorded",
        )),
    }
}

/// Keeps a command if the queue records, else submits it. `command` checks it.
///
/// # Safety
/// R8, R31: the host's arguments.
unsafe fn keep_or(
    recorder: &Recorder,
    queue: Queue,
    command: impl FnOnce() -> Result<Command>,
    below: impl FnOnce() -> i32,
) -> Result<i32> {
    if !recorder.table().records(queue.addr()) {
        return Ok(below());
    }
    let command = command()?;
    recorder.keep(queue, command)?;
    Ok(Code::OK.0)
}

/// # Safety
/// R8, R31: the host's arguments.
pub(crate) unsafe fn copy(
    recorder: &Recorder,
    queue: Queue,
    copy: *const sys::otr_copy,
) -> Result<i32> {
    // SAFETY: this function's contract, here and in the closures.
    unsafe {
        let below = || (recorder.calls.copy)(queue, copy);
        keep_or(recorder, queue, || Command::copy(copy.as_ref()), below)
    }
}

/// # Safety
/// R8, R31: the host's arguments.
pub(crate) unsafe fn fill(
    recorder: &Recorder,
    queue: Queue,
    fill: *const sys::otr_fill,
) -> Result<i32> {
    // SAFETY: this function's contract, here and in the closures.
    unsafe {
        let below = || (recorder.calls.fill)(queue, fill);
        keep_or(recorder, queue, || Command::fill(fill.as_ref()), below)
    }
}

/// # Safety
/// R8, R27, R31: the host's arguments.
pub(crate) unsafe fn host_call(
    recorder: &Recorder,
    queue: Queue,
    call: *const sys::otr_host_call,
) -> Result<i32> {
    // SAFETY: this function's contract, here and in the closures.
    unsafe {
        let below = || (recorder.calls.host_call)(queue, call);
        keep_or(recorder, queue, || Command::call(call.as_ref()), below)
    }
}

/// # Safety
/// R8: the host's arguments.
pub(crate) unsafe fn peer_copy(
    recorder: &Recorder,
    queue: Queue,
    copy: *const sys::otr_copy,
) -> Result<i32> {
    let refused = || {
        Err(Refusal::new(
            Code::UNSUPPORTED,
            "a graph keeps no copy between devices",
        ))
    };
    // SAFETY: this function's contract, here and in the closure.
    unsafe {
        let below = || (recorder.calls.peer_copy)(queue, copy);
        keep_or(recorder, queue, refused, below)
    }
}

/// # Safety
/// R8, R30, R31: the host's arguments.
pub(crate) unsafe fn launch(
    recorder: &Recorder,
    queue: Queue,
    kernel: Kernel,
    launch: *const sys::otr_launch,
) -> Result<i32> {
    let command = || {
        let unit = match recorder.table().kernels.get(&kernel.addr()) {
            Some(known) => known.unit.clone(),
            None => {
                let text = "the kernel is NULL, or none of this driver";
                return Err(Refusal::new(Code::INVALID_HANDLE, text));
            }
        };
        // SAFETY: this function's contract.
        let stored = unsafe { Stored::of(kernel, unit, launch) }?;
        Ok(Command::Launch(Arc::new(stored)))
    };
    // SAFETY: this function's contract, here and in the closure.
    unsafe {
        keep_or(recorder, queue, command, || {
            (recorder.calls.launch)(queue, kernel, launch)
        })
    }
}

/// # Safety
/// The host's arguments.
pub(crate) unsafe fn queue_create(
    recorder: &Recorder,
    driver: Driver,
    device: u32,
    params: *const sys::otr_queue_params,
    place: *mut Queue,
) -> Result<i32> {
    // SAFETY: this function's contract. Where the driver succeeds, the place was written.
    unsafe {
        let code = (recorder.calls.queue_create)(driver, device, params, place);
        if code == Code::OK.0 {
            recorder.with(|table| table.queues.insert((*place).addr(), device));
        }
        Ok(code)
    }
}

/// # Safety
/// R56: the host's arguments.
pub(crate) unsafe fn native_adopt(
    recorder: &Recorder,
    driver: Driver,
    device: u32,
    native: u64,
    place: *mut Queue,
) -> Result<i32> {
    // SAFETY: this function's contract. Where the driver succeeds, the place was written.
    unsafe {
        let code = (recorder.calls.native_adopt)(driver, device, native, place);
        if code == Code::OK.0 {
            recorder.with(|table| table.queues.insert((*place).addr(), device));
        }
        Ok(code)
    }
}

/// # Safety
/// R8: the host's arguments.
pub(crate) unsafe fn queue_destroy(recorder: &Recorder, queue: Queue) -> Result<i32> {
    recorder.forget_queue(queue);
    // SAFETY: this function's contract.
    Ok(unsafe { (recorder.calls.queue_destroy)(queue) })
}

/// The mark between the compiled form of a module and the text that it was made of, which lies behind, with its length.
const MARK: &[u8; 16] = b"outrigger text 1";

/// # Safety
/// R10: the host's arguments.
#[allow(clippy::too_many_arguments, reason = "they are those of the entry")]
pub(crate) unsafe fn module_load(
    recorder: &Recorder,
    driver: Driver,
    device: u32,
    format: u32,
    code: *const c_void,
    size: usize,
    options: *const c_char,
    place: *mut Module,
) -> Result<i32> {
    let is_source = [sys::OTR_CODE_OPENCL_C, sys::OTR_CODE_CUDA_C].contains(&format);
    let is_compiled = format == sys::OTR_CODE_ELF;
    let bytes = match code.is_null() || !(is_source || is_compiled) {
        true => &[],
        // SAFETY: R10: source or compiled code has `size` bytes.
        false => unsafe { std::slice::from_raw_parts(code.cast::<u8>(), size) },
    };
    // SAFETY: R10: NULL or a string.
    let plain = options.is_null() || unsafe { CStr::from_ptr(options) }.is_empty();
    let (text, size) = match is_compiled {
        true => match apart(bytes) {
            Some((binary, text)) => (Some(text.to_owned()), binary.len()),
            None => (None, size),
        },
        false if plain => (std::str::from_utf8(bytes).ok().and_then(own_text), size),
        false => (None, size),
    };
    // SAFETY: this function's contract. Where the driver succeeds, the place was written.
    unsafe {
        let answer =
            (recorder.calls.module_load)(driver, device, format, code, size, options, place);
        if answer == Code::OK.0
            && let Some(text) = text
        {
            recorder
                .table()
                .modules
                .insert((*place).addr(), text.into());
        }
        Ok(answer)
    }
}

/// A compiled form and the text behind it, if there is one.
fn apart(bytes: &[u8]) -> Option<(&[u8], &str)> {
    let (rest, size) = bytes.strip_suffix(MARK)?.split_last_chunk::<8>()?;
    let at = rest
        .len()
        .checked_sub(usize::try_from(u64::from_le_bytes(*size)).ok()?)?;
    let (binary, text) = rest.split_at(at);
    Some((binary, std::str::from_utf8(text).ok()?))
}

/// # Safety
/// R10: the host's arguments.
pub(crate) unsafe fn module_unload(recorder: &Recorder, module: Module) -> Result<i32> {
    recorder.with(|table| {
        table.modules.remove(&module.addr());
        table
            .kernels
            .retain(|_, kernel| kernel.module != module.addr());
    });
    // SAFETY: this function's contract.
    Ok(unsafe { (recorder.calls.module_unload)(module) })
}

/// The compiled form, and the text behind it: another process that loads it records its kernels as this one does.
///
/// # Safety
/// R10: the host's arguments.
pub(crate) unsafe fn module_binary(
    recorder: &Recorder,
    module: Module,
    binary: *mut c_void,
    size: *mut u64,
) -> Result<i32> {
    let text = recorder.table().modules.get(&module.addr()).cloned();
    // SAFETY: this function's contract: NULL or writable.
    let (Some(text), Some(size)) = (text, unsafe { size.as_mut() }) else {
        // SAFETY: this function's contract.
        return Ok(unsafe { (recorder.calls.module_binary)(module, binary, size) });
    };
    let tail = [text.as_bytes(), &(text.len() as u64).to_le_bytes(), MARK].concat();
    let room = *size;
    let mut own = room.saturating_sub(tail.len() as u64);
    // SAFETY: this function's contract: `binary` is NULL or has as much room as `size` says, of which this is a part.
    let code = unsafe { (recorder.calls.module_binary)(module, binary, &mut own) };
    if code == Code::OK.0 {
        let whole = own + tail.len() as u64;
        if !binary.is_null() && whole <= room {
            // SAFETY: there is room for the tail behind what the driver wrote.
            unsafe {
                let behind = binary.cast::<u8>().add(own as usize);
                std::ptr::copy_nonoverlapping(tail.as_ptr(), behind, tail.len());
            }
        }
        *size = whole;
    }
    Ok(code)
}

/// # Safety
/// R10: the host's arguments.
pub(crate) unsafe fn kernel_get(
    recorder: &Recorder,
    module: Module,
    name: *const c_char,
    place: *mut Kernel,
) -> Result<i32> {
    // SAFETY: this function's contract. Where the driver succeeds, the place was written.
    unsafe {
        let code = (recorder.calls.kernel_get)(module, name, place);
        if code == Code::OK.0 {
            let text = recorder.table().modules.get(&module.addr()).cloned();
            let given = (!name.is_null()).then(|| CStr::from_ptr(name));
            let unit = text.zip(given.and_then(|name| name.to_str().ok()));
            let unit = unit.and_then(|(text, name)| Unit::of(&text, name));
            let known = KnownKernel {
                module: module.addr(),
                unit,
            };
            recorder.table().kernels.insert((*place).addr(), known);
        }
        Ok(code)
    }
}
