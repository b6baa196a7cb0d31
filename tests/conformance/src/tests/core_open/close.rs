//! R12: closing a driver, with and without live objects.

use super::*;

tests! { "core.close":
    /// A driver is closed once all that was made with it is gone, whatever that was.
    after_one_of_each: R10 R12;
    /// A failed call leaves nothing that keeps a driver from being closed.
    after_failed_calls: R4 R12;
    /// If `close` answers OTR_ERR_BUSY for a live queue, the driver is as usable as before.
    busy_with_a_queue: R4 R12, run |c| busy(c, Left::Queue);
    /// If `close` answers OTR_ERR_BUSY for a live event, the driver is as usable as before.
    busy_with_an_event: R4 R12, run |c| busy(c, Left::Event);
    /// If `close` answers OTR_ERR_BUSY for memory, the driver is as usable as before.
    busy_with_memory: R4 R12, run |c| busy(c, Left::Memory);
    /// `close` waits for the work of queues that were destroyed before.
    waits_for_destroyed_queues: R11 R12, limit 60;
    /// `close` does not lose work of a destroyed queue that waits for an event of another.
    waits_for_a_chain_of_destroyed_queues: R11 R12 R24, limit 60;
}

fn after_one_of_each(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = Bare::open(context, &raw)?;
    let queue = bare.queue()?;
    let (mut event, mut address) = (null_mut(), 0);
    raw.takes(
        call!(
            raw.api(),
            event_create,
            bare.handle,
            0,
            std::ptr::null(),
            &mut event
        ),
        "event_create",
    )?;
    raw.takes(
        call!(
            raw.api(),
            memory_alloc,
            bare.handle,
            0,
            &params::memory(4096),
            &mut address
        ),
        "memory_alloc",
    )?;
    raw.takes(
        call!(
            raw.api(),
            fill,
            queue,
            &params::fill(address, 4096, [1u8].as_ptr().cast(), 1)
        ),
        "fill",
    )?;
    raw.takes(call!(raw.api(), event_record, event, queue), "event_record")?;
    raw.takes(
        call!(raw.api(), queue_wait_event, queue, event),
        "queue_wait_event",
    )?;
    raw.synchronize(queue)?;
    raw.takes(
        call!(raw.api(), memory_free, bare.handle, address),
        "memory_free",
    )?;
    raw.destroy(queue, event)?;
    bare.close("close, after all was given back")
}

fn after_failed_calls(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = Bare::open(context, &raw)?;
    for device in [99, u32::MAX] {
        let (mut queue, mut event, mut address) = (null_mut(), null_mut(), 0);
        let made = call!(
            raw.api(),
            queue_create,
            bare.handle,
            device,
            null(),
            &mut queue
        );
        raw.refuses(made, Code::INVALID_DEVICE, "queue_create")?;
        let made = call!(
            raw.api(),
            event_create,
            bare.handle,
            device,
            std::ptr::null(),
            &mut event
        );
        raw.refuses(made, Code::INVALID_DEVICE, "event_create")?;
        let made = call!(
            raw.api(),
            memory_alloc,
            bare.handle,
            0,
            &params::memory(u64::MAX - 1),
            &mut address
        );
        raw.refuses(
            made,
            Code::OUT_OF_MEMORY,
            "memory_alloc of nearly all numbers",
        )?;
    }
    bare.close("close, after failed calls only")
}

enum Left {
    Queue,
    Event,
    Memory,
}

fn busy(context: &Context, left: Left) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = Bare::open(context, &raw)?;
    let (mut queue, mut event, mut address) = (null_mut(), null_mut(), 0);
    match left {
        Left::Queue => queue = bare.queue()?,
        Left::Event => {
            let made = call!(
                raw.api(),
                event_create,
                bare.handle,
                0,
                std::ptr::null(),
                &mut event
            );
            raw.takes(made, "event_create")?;
        }
        Left::Memory => {
            let made = call!(
                raw.api(),
                memory_alloc,
                bare.handle,
                0,
                &params::memory(4096),
                &mut address
            );
            raw.takes(made, "memory_alloc")?;
        }
    }
    let answer = call!(raw.api(), close, bare.handle);
    if answer == Code::OK.0 {
        // A driver need not count. What was alive went with it.
        context.note("close does not notice what is alive");
        return Ok(());
    }
    raw.refuses(answer, Code::BUSY, "close, while something is alive")?;
    let another = bare.queue()?;
    raw.synchronize(another)?;
    raw.destroy(another, null_mut())?;
    raw.destroy(queue, event)?;
    if address != 0 {
        raw.takes(
            call!(raw.api(), memory_free, bare.handle, address),
            "memory_free",
        )?;
    }
    bare.close("close, once nothing is alive")
}

fn waits_for_destroyed_queues(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    for _ in 0..5 {
        let bare = Bare::open(context, &raw)?;
        let queue = bare.queue()?;
        let done = Arc::new(AtomicBool::new(false));
        slow_call(&raw, queue, &done)?;
        raw.destroy(queue, null_mut())?;
        bare.close("close, while a destroyed queue works")?;
        check!(
            done.load(Ordering::Acquire),
            "the work was over when close returned"
        );
    }
    Ok(())
}

fn waits_for_a_chain_of_destroyed_queues(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = Bare::open(context, &raw)?;
    let (first, second) = (bare.queue()?, bare.queue()?);
    let mut event = null_mut();
    raw.takes(
        call!(
            raw.api(),
            event_create,
            bare.handle,
            0,
            std::ptr::null(),
            &mut event
        ),
        "event_create",
    )?;
    let (one, two) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    slow_call(&raw, first, &one)?;
    raw.takes(call!(raw.api(), event_record, event, first), "event_record")?;
    raw.takes(
        call!(raw.api(), queue_wait_event, second, event),
        "queue_wait_event",
    )?;
    slow_call(&raw, second, &two)?;
    raw.destroy(second, event)?;
    raw.destroy(first, null_mut())?;
    bare.close("close, while destroyed queues work")?;
    check!(
        one.load(Ordering::Acquire),
        "the first queue's work was over"
    );
    check!(
        two.load(Ordering::Acquire),
        "the second queue's work was over"
    );
    Ok(())
}

/// A host call that takes a while, and then says so.
fn slow_call(raw: &Raw, queue: *mut sys::otr_queue, done: &Arc<AtomicBool>) -> Verdict {
    unsafe extern "C" fn slow(user: *mut std::ffi::c_void, upstream: i32) -> i32 {
        std::thread::sleep(Duration::from_millis(30));
        // SAFETY: the reference that was given to this call.
        let done = unsafe { Arc::from_raw(user.cast::<AtomicBool>()) };
        done.store(true, Ordering::Release);
        upstream
    }
    let user = Arc::into_raw(done.clone()).cast_mut().cast();
    raw.takes(
        call!(
            raw.api(),
            host_call,
            queue,
            &params::host_call(Some(slow), user, 0)
        ),
        "host_call",
    )
}
