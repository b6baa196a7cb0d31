//! R4, R5 and R7: what each mandatory entry answers to NULL, to handles of another driver, and to devices
//! and flags that do not exist. A refused call has a text, writes no output and changes nothing.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use outrigger_device::{Code, NO_OUTCOME, params, sys};

use super::raw::{Bare, Raw, call, open_params, queue_params};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Verdict};

tests! { "core.null":
    /// `open` without a place for the driver is an invalid argument.
    open_output: R7 R5, run |c| argument(c, |raw| Ok(call!(raw.api(), open, &open_params(null()), null_mut())));
    /// `close` of NULL is an invalid handle.
    close_driver: R7 R5, run |c| handle(c, |raw| Ok(call!(raw.api(), close, null_mut())));
    /// `device_count` of NULL is an invalid handle, and writes nothing.
    device_count_driver: R7 R4, run |c| handle(c, |raw| unwritten(|out| Ok(call!(raw.api(), device_count, null_mut(), out))));
    /// `device_count` without a place for the number is an invalid argument.
    device_count_output: R7, run |c| argument(c, |raw| Ok(call!(raw.api(), device_count, raw.handle(), null_mut())));
    /// `device_properties` of NULL is an invalid handle.
    device_properties_driver: R7 R4, run device_properties_driver;
    /// `device_properties` without a struct is an invalid argument.
    device_properties_output: R7, run |c| argument(c, |raw| Ok(call!(raw.api(), device_properties, raw.handle(), 0, null_mut())));
    /// `memory_alloc` of NULL is an invalid handle, and writes no address.
    memory_alloc_driver: R7 R4, run |c| handle(c, |raw| unwritten(|out| Ok(call!(raw.api(), memory_alloc, null_mut(), 0, &params::memory(64), out))));
    /// `memory_alloc` without a place for the address is an invalid argument, and takes no memory.
    memory_alloc_output: R7 R4, run |c| argument(c, |raw| Ok(call!(raw.api(), memory_alloc, raw.handle(), 0, &params::memory(64), null_mut())));
    /// `memory_free` of NULL is an invalid handle.
    memory_free_driver: R7, run |c| handle(c, |raw| Ok(call!(raw.api(), memory_free, null_mut(), 64)));
    /// `queue_create` of NULL is an invalid handle, and writes no queue.
    queue_create_driver: R7 R4, run |c| handle(c, |raw| unwritten(|out| Ok(call!(raw.api(), queue_create, null_mut(), 0, null(), out))));
    /// `queue_create` without a place for the queue is an invalid argument.
    queue_create_output: R7, run |c| argument(c, |raw| Ok(call!(raw.api(), queue_create, raw.handle(), 0, null(), null_mut())));
    /// `queue_destroy` of NULL is an invalid handle.
    queue_destroy_queue: R7, run |c| handle(c, |raw| Ok(call!(raw.api(), queue_destroy, null_mut())));
    /// `queue_query` of NULL is an invalid handle.
    queue_query_queue: R7, run |c| handle(c, |raw| Ok(call!(raw.api(), queue_query, null_mut(), &mut { NO_OUTCOME })));
    /// `queue_query` without a place for the outcome is refused.
    queue_query_outcome: R7, run |c| argument(c, |raw| with_objects(raw, |queue, _| Ok(call!(raw.api(), queue_query, queue, null_mut()))));
    /// `queue_synchronize` of NULL is an invalid handle.
    queue_synchronize_queue: R7, run |c| handle(c, |raw| Ok(call!(raw.api(), queue_synchronize, null_mut(), &mut { NO_OUTCOME })));
    /// `queue_synchronize` without a place for the outcome is refused.
    queue_synchronize_outcome: R7, run |c| argument(c, |raw| with_objects(raw, |queue, _| Ok(call!(raw.api(), queue_synchronize, queue, null_mut()))));
    /// `queue_flush` of NULL is an invalid handle.
    queue_flush_queue: R7, needs Flush, run |c| handle(c, |raw| Ok(call!(raw.api(), queue_flush, null_mut())));
    /// `queue_wait_event` of a NULL queue is an invalid handle.
    queue_wait_event_queue: R7, run |c| handle(c, |raw| with_objects(raw, |_, event| Ok(call!(raw.api(), queue_wait_event, null_mut(), event))));
    /// `queue_wait_event` for a NULL event is an invalid handle.
    queue_wait_event_event: R7, run |c| handle(c, |raw| with_objects(raw, |queue, _| Ok(call!(raw.api(), queue_wait_event, queue, null_mut()))));
    /// `event_create` of NULL is an invalid handle, and writes no event.
    event_create_driver: R7 R4, run |c| handle(c, |raw| unwritten(|out| Ok(call!(raw.api(), event_create, null_mut(), 0, std::ptr::null(), out))));
    /// `event_create` without a place for the event is an invalid argument.
    event_create_output: R7, run |c| argument(c, |raw| Ok(call!(raw.api(), event_create, raw.handle(), 0, std::ptr::null(), null_mut())));
    /// `event_destroy` of NULL is an invalid handle.
    event_destroy_event: R7, run |c| handle(c, |raw| Ok(call!(raw.api(), event_destroy, null_mut())));
    /// `event_record` of a NULL event is an invalid handle.
    event_record_event: R7, run |c| handle(c, |raw| with_objects(raw, |queue, _| Ok(call!(raw.api(), event_record, null_mut(), queue))));
    /// `event_record` on a NULL queue is an invalid handle.
    event_record_queue: R7, run |c| handle(c, |raw| with_objects(raw, |_, event| Ok(call!(raw.api(), event_record, event, null_mut()))));
    /// `event_query` of NULL is an invalid handle.
    event_query_event: R7, run |c| handle(c, |raw| Ok(call!(raw.api(), event_query, null_mut(), &mut { NO_OUTCOME })));
    /// `event_query` without a place for the outcome is refused.
    event_query_outcome: R7, run |c| argument(c, |raw| with_objects(raw, |_, event| Ok(call!(raw.api(), event_query, event, null_mut()))));
    /// `event_synchronize` of NULL is an invalid handle.
    event_synchronize_event: R7, run |c| handle(c, |raw| Ok(call!(raw.api(), event_synchronize, null_mut(), &mut { NO_OUTCOME })));
    /// `event_synchronize` without a place for the outcome is refused.
    event_synchronize_outcome: R7, run |c| argument(c, |raw| with_objects(raw, |_, event| Ok(call!(raw.api(), event_synchronize, event, null_mut()))));
    /// `copy` on a NULL queue is an invalid handle.
    copy_queue: R7, run |c| handle(c, |raw| {
        let bytes = [0u8; 32];
        let at = bytes.as_ptr() as u64;
        Ok(call!(raw.api(), copy, null_mut(), &params::copy(at, at + 16, 16, sys::OTR_COPY_HOST_TO_HOST)))
    });
    /// `fill` on a NULL queue is an invalid handle.
    fill_queue: R7, run |c| handle(c, |raw| Ok(call!(raw.api(), fill, null_mut(), &params::fill(64, 16, [0u8; 4].as_ptr().cast(), 4))));
    /// `host_call` on a NULL queue is an invalid handle, and calls nothing.
    host_call_queue: R7 R27, run |c| handle(c, |raw| Ok(call!(raw.api(), host_call, null_mut(), &params::host_call(Some(never), null_mut(), 0))));
    /// `host_call` of no function is an invalid argument, and the queue stays idle.
    host_call_function: R7, run |c| argument(c, |raw| with_objects(raw, |queue, _| Ok(call!(raw.api(), host_call, queue, &params::host_call(None, null_mut(), 0)))));
    /// `host_call` with a flag that nobody knows is an invalid argument, and calls nothing.
    host_call_flags: R7 R27, run |c| argument(c, |raw| with_objects(raw, |queue, _| Ok(call!(raw.api(), host_call, queue, &params::host_call(Some(never), null_mut(), 0x8000_0000)))));
    /// `fill` with a pattern at NULL is an invalid argument, and the queue stays idle.
    fill_pattern: R7, run fill_pattern;
}

/// A host call that must not be made.
unsafe extern "C" fn never(_: *mut c_void, _: i32) -> i32 {
    std::process::abort()
}

fn handle(context: &Context, call: impl FnOnce(&Raw) -> Verdict<i32>) -> Verdict {
    refused(context, Code::INVALID_HANDLE, call)
}

fn argument(context: &Context, call: impl FnOnce(&Raw) -> Verdict<i32>) -> Verdict {
    refused(context, Code::INVALID_ARGUMENT, call)
}

/// Makes a call that must be refused, and then sees whether the driver is as usable as before.
fn refused(context: &Context, code: Code, call: impl FnOnce(&Raw) -> Verdict<i32>) -> Verdict {
    let raw = Raw::open(context)?;
    let before = super::kit::free(raw.driver())?;
    let answer = call(&raw)?;
    raw.refuses(answer, code, "the call")?;
    equal!(
        super::kit::free(raw.driver())?,
        before,
        "free memory after a refused call"
    );
    let queue = raw.driver().queue_create(0, 0)?;
    queue.synchronize()?;
    Ok(())
}

/// Gives a call a place for its output that must stay as it is.
fn unwritten<T>(call: impl FnOnce(*mut T) -> Verdict<i32>) -> Verdict<i32> {
    let mut place = [0x5a5a_5a5a_5a5a_5a5au64; 2];
    let answer = call(place.as_mut_ptr().cast())?;
    equal!(
        place,
        [0x5a5a_5a5a_5a5a_5a5a; 2],
        "R4: the output of a failed call"
    );
    Ok(answer)
}

/// Makes a call with a live queue and event, which must be idle afterwards.
fn with_objects(
    raw: &Raw,
    call: impl FnOnce(*mut sys::otr_queue, *mut sys::otr_drv_event) -> Verdict<i32>,
) -> Verdict<i32> {
    let (queue, event) = (raw.queue()?, raw.event()?);
    let answer = call(queue, event)?;
    let text = raw.text()?;
    check!(!text.is_empty(), "R5: the refused call has a text");
    answers!(
        raw.query(queue)?,
        Code::OK,
        "queue_query after a refused call"
    );
    let mut outcome = NO_OUTCOME;
    let asked = call!(raw.api(), event_query, event, &mut outcome);
    raw.takes(asked, "event_query after a refused call")?;
    answers!(outcome.code, Code::OK, "the event after a refused call");
    raw.destroy(queue, event)?;
    Ok(answer)
}

fn device_properties_driver(context: &Context) -> Verdict {
    handle(context, |raw| {
        // SAFETY: zero is valid for all fields.
        let mut properties: sys::otr_device_properties = unsafe { std::mem::zeroed() };
        properties.struct_size = size_of_val(&properties);
        let answer = call!(raw.api(), device_properties, null_mut(), 0, &mut properties);
        check!(
            properties.name[0] == 0 && properties.total_memory == 0,
            "R4: nothing was written"
        );
        Ok(answer)
    })
}

fn fill_pattern(context: &Context) -> Verdict {
    argument(context, |raw| {
        let address = raw.driver().memory_alloc(0, 64)?;
        let answer = with_objects(raw, |queue, _| {
            Ok(call!(
                raw.api(),
                fill,
                queue,
                &params::fill(address, 64, null(), 4)
            ))
        })?;
        // The text is of the failed call as long as nothing else fails.
        // SAFETY: nothing was submitted.
        unsafe { raw.driver().memory_free(address) }?;
        Ok(answer)
    })
}

/// The rest of R7: wrong devices and flags, and handles of another open driver.
pub(super) mod range {
    use super::*;

    tests! { "core.range":
        /// `device_properties` of a device behind the last is an invalid device.
        device_properties_device: R7, run |c| devices(c, |raw, device| {
            // SAFETY: zero is valid for all fields.
            let mut properties: sys::otr_device_properties = unsafe { std::mem::zeroed() };
            properties.struct_size = size_of_val(&properties);
            let answer = call!(raw.api(), device_properties, raw.handle(), device, &mut properties);
            check!(properties.name[0] == 0, "R4: nothing was written");
            Ok(answer)
        });
        /// `memory_alloc` on a device behind the last is an invalid device, and writes no address.
        memory_alloc_device: R7 R4, run |c| devices(c, |raw, device| unwritten(|out| Ok(call!(raw.api(), memory_alloc, raw.handle(), device, &params::memory(64), out))));
        /// `queue_create` on a device behind the last is an invalid device, and writes no queue.
        queue_create_device: R7 R4, run |c| devices(c, |raw, device| unwritten(|out| Ok(call!(raw.api(), queue_create, raw.handle(), device, null(), out))));
        /// `event_create` on a device behind the last is an invalid device, and writes no event.
        event_create_device: R7 R4, run |c| devices(c, |raw, device| unwritten(|out| Ok(call!(raw.api(), event_create, raw.handle(), device, std::ptr::null(), out))));
        /// `queue_create` refuses flags that are not known.
        queue_create_flags: R7 R4, run |c| argument(c, |raw| {
            for flags in [1, 2, 0x8000_0000u32] {
                let params = queue_params(0, flags);
                let answer = unwritten(|out| Ok(call!(raw.api(), queue_create, raw.handle(), 0, &params, out)))?;
                raw.refuses(answer, Code::INVALID_ARGUMENT, &format!("queue flags {flags:#x}"))?;
            }
            Ok(Code::INVALID_ARGUMENT.0)
        });
        /// `event_create` refuses flags that are not known.
        event_create_flags: R7 R4, run |c| argument(c, |raw| {
            for flags in [2, 4, 0x4000_0000, 0x8000_0000u32] {
                let answer = unwritten(|out| Ok(call!(raw.api(), event_create, raw.handle(), 0, &params::event(flags), out)))?;
                raw.refuses(answer, Code::INVALID_ARGUMENT, &format!("event flags {flags:#x}"))?;
            }
            Ok(Code::INVALID_ARGUMENT.0)
        });
        /// `event_create` with a known and an unknown flag is refused too.
        event_create_mixed_flags: R7 R4, run |c| argument(c, |raw| unwritten(|out| Ok(call!(raw.api(), event_create, raw.handle(), 0, &params::event(sys::OTR_EVENT_TIMING | 2), out))));
        /// `memory_alloc` of 0 bytes is an invalid argument, and writes no address.
        memory_alloc_of_nothing: R7 R4, run |c| argument(c, |raw| unwritten(|out| Ok(call!(raw.api(), memory_alloc, raw.handle(), 0, &params::memory(0), out))));
        /// An event of another open driver cannot be recorded: its handle is foreign.
        event_record_foreign_event: R7, run |c| foreign(c, |raw, _, event, queue, _| Ok(call!(raw.api(), event_record, event, queue)));
        /// A queue of another open driver cannot record an event.
        event_record_foreign_queue: R7, run |c| foreign(c, |raw, queue, _, _, event| Ok(call!(raw.api(), event_record, event, queue)));
        /// A queue cannot wait for an event of another open driver.
        queue_wait_foreign_event: R7, run |c| foreign(c, |raw, _, event, queue, _| Ok(call!(raw.api(), queue_wait_event, queue, event)));
    }

    fn devices(context: &Context, make: impl Fn(&Raw, u32) -> Verdict<i32>) -> Verdict {
        let raw = Raw::open(context)?;
        let before = crate::tests::kit::free(raw.driver())?;
        let count = raw.driver().device_count();
        for device in [count, count + 1, 1 << 16, i32::MAX as u32, u32::MAX] {
            let answer = make(&raw, device)?;
            raw.refuses(
                answer,
                Code::INVALID_DEVICE,
                &format!("device {device} of {count}"),
            )?;
        }
        equal!(
            crate::tests::kit::free(raw.driver())?,
            before,
            "free memory after refused calls"
        );
        Ok(())
    }

    type Objects = fn(
        &Raw,
        *mut sys::otr_queue,
        *mut sys::otr_drv_event,
        *mut sys::otr_queue,
        *mut sys::otr_drv_event,
    ) -> Verdict<i32>;

    /// Mixes the queue and the event of one open driver with those of another.
    fn foreign(context: &Context, call: Objects) -> Verdict {
        let raw = Raw::open(context)?;
        let other = Bare::open(context, &raw)?;
        let (queue, event) = (raw.queue()?, raw.event()?);
        let theirs = other.queue()?;
        let mut point = null_mut();
        let made = call!(
            raw.api(),
            event_create,
            other.handle,
            0,
            std::ptr::null(),
            &mut point
        );
        raw.takes(made, "event_create")?;
        let answer = call(&raw, theirs, point, queue, event)?;
        raw.refuses(
            answer,
            Code::INVALID_HANDLE,
            "handles of two open drivers in one call",
        )?;
        for queue in [queue, theirs] {
            answers!(raw.query(queue)?, Code::OK, "queue_query afterwards");
        }
        raw.destroy(queue, event)?;
        raw.destroy(theirs, point)?;
        other.close("close, after all of it was destroyed")
    }
}
