//! R59 and R61 to R63: semaphores.

use std::os::fd::AsFd;
use std::ptr::{null, null_mut};
use std::time::Duration;

use outrigger_device::{Code, FdKind, Queue, Semaphore, params, sys};

use super::super::kit::{Bench, block, fail, fails_once, fill, holds, until};
use super::super::raw::{Raw, call};
use super::{NOBODYS, external, heir, nothings};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Gate, Verdict};

tests! { "stream.semaphore":
    /// Work behind a wait starts with the signal, also where that comes later, and not before.
    a_wait_comes_before_its_signal: R61, needs ExternalSemaphores;
    /// A wait passes with the first number that is large enough, and where the number was there from the beginning.
    numbers_are_compared: R61, needs ExternalSemaphores;
    /// Two semaphores of one descriptor are one number, in another process too.
    a_semaphore_is_shared: R59 R61, needs ExternalSemaphores;
    /// What was submitted goes on without the handle.
    handles_may_go_first: R61, needs ExternalSemaphores;
    /// A signal behind a failure ends the waits for it, which fail with its code or pass.
    a_failed_queue_signals: R62, needs ExternalSemaphores;
    /// A queue that records refuses both, and the recording goes on.
    nothing_is_recorded: R63, needs ExternalSemaphores Graphs;
    /// Kinds that nobody has are unsupported, and descriptors of nothing are none.
    what_is_no_semaphore_is_refused: R59, needs ExternalSemaphores;
    /// NULL, other devices and other open drivers are refused, and nothing is written.
    wrong_arguments_are_refused: R4 R7 R61, needs ExternalSemaphores;
}

fn semaphore(bench: &Bench, initial: u64) -> Verdict<Semaphore> {
    Ok(external(bench)?.semaphore_create(0, initial)?)
}

/// Whether a queue has finished well.
fn idle(queue: &Queue) -> Verdict<bool> {
    Ok(queue.query()?)
}

fn a_wait_comes_before_its_signal(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, then, free) = (bench.queue()?, bench.queue()?, bench.queue()?);
    let (memory, semaphore) = (bench.memory(64)?, semaphore(&bench, 0)?);
    for value in 1..6 {
        let gate = Gate::new();
        then.wait_semaphore(&semaphore, value)?;
        fill(&then, memory, 64, &[2 * value as u8])?;
        then.flush()?;
        block(&first, &gate)?;
        fill(&first, memory, 64, &[1])?;
        first.signal(&semaphore, value)?;
        // Others go on meanwhile.
        fill(&free, bench.memory(64)?, 64, &[3])?;
        free.synchronize()?;
        check!(!idle(&then)?, "the work behind the wait has not begun");
        gate.open();
        // Nobody asks for the queue that signals: it was flushed.
        until(|| idle(&then))?;
        holds(&then, memory, 64, 2 * value as u8, "what came last")?;
        first.synchronize()?;
    }
    bench.finish()
}

fn numbers_are_compared(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (signals, waits) = (bench.queue()?, bench.queue()?);
    let semaphore = semaphore(&bench, 5)?;
    for value in [0, 1, 5] {
        waits.wait_semaphore(&semaphore, value)?;
    }
    waits.synchronize()?;
    waits.wait_semaphore(&semaphore, 7)?;
    fill(&waits, bench.memory(64)?, 64, &[1])?;
    signals.signal(&semaphore, 6)?;
    signals.synchronize()?;
    for _ in 0..20 {
        check!(!idle(&waits)?, "6 is not 7");
        std::thread::sleep(Duration::from_millis(1));
    }
    // 64 bits, and more than what was asked for.
    signals.signal(&semaphore, 1 << 40)?;
    signals.synchronize()?;
    waits.synchronize()?;
    waits.wait_semaphore(&semaphore, 1 << 40)?;
    waits.synchronize()?;
    bench.finish()
}

fn a_semaphore_is_shared(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (signals, waits) = (bench.queue()?, bench.queue()?);
    let semaphore = semaphore(&bench, 3)?;
    let fd = semaphore.export(FdKind::OPAQUE)?;
    let imported = external(&bench)?.semaphore_import(0, fd.as_fd(), FdKind::OPAQUE)?;
    waits.wait_semaphore(&imported, 3)?;
    waits.synchronize()?;
    waits.wait_semaphore(&imported, 4)?;
    signals.signal(&semaphore, 4)?;
    waits.synchronize()?;
    let (mut other, number) = heir(context, &fd)?;
    // It waits here for the other process, and the other one for this.
    waits.wait_semaphore(&semaphore, 10)?;
    equal!(
        other.ask(&format!("signal {number} 10"))?,
        "signalled",
        "the other process"
    );
    waits.synchronize()?;
    signals.signal(&imported, 11)?;
    equal!(
        other.ask(&format!("wait {number} 11"))?,
        "waited",
        "the other process"
    );
    other.end()?;
    signals.synchronize()?;
    bench.finish()
}

fn handles_may_go_first(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (signals, waits) = (bench.queue()?, bench.queue()?);
    let (memory, gate) = (bench.memory(64)?, Gate::new());
    let made = semaphore(&bench, 0)?;
    block(&signals, &gate)?;
    waits.wait_semaphore(&made, 1)?;
    fill(&waits, memory, 64, &[9])?;
    signals.signal(&made, 1)?;
    drop(made);
    gate.open();
    holds(&waits, memory, 64, 9, "the work behind the wait")?;
    signals.synchronize()?;
    bench.finish()
}

fn a_failed_queue_signals(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (signals, waits) = (bench.queue()?, bench.queue()?);
    let semaphore = semaphore(&bench, 0)?;
    waits.wait_semaphore(&semaphore, 1)?;
    fail(&signals, Code::EXECUTION)?;
    until(|| Ok(!matches!(signals.query(), Ok(false))))?;
    signals.signal(&semaphore, 2)?;
    let ended = |what: &str| -> Verdict<Code> {
        let code = waits
            .synchronize()
            .map_or_else(|error| error.code(), |()| Code::OK);
        check!(
            [Code::OK, Code::EXECUTION].contains(&code),
            "{what} ends with {code:?}: it passes, or fails with the code of the failure"
        );
        Ok(code)
    };
    let first = ended("a wait that was submitted before")?;
    waits.wait_semaphore(&semaphore, 2)?;
    equal!(
        ended("a wait behind it")?,
        first,
        "whether the failure is carried"
    );
    fails_once(&signals, Code::EXECUTION, "the queue that signalled")?;
    signals.signal(&semaphore, 3)?;
    waits.wait_semaphore(&semaphore, 3)?;
    equal!(
        ended("a wait for a larger number")?,
        first,
        "whether the failure is carried"
    );
    signals.synchronize()?;
    bench.finish()
}

fn nothing_is_recorded(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, semaphore) = (bench.queue()?, semaphore(&bench, 0)?);
    let raw = Raw::of(bench.driver());
    // SAFETY: the group is there, and as large as the loader has found.
    let graph = unsafe { &*raw.api().graph };
    raw.takes(call!(graph, record_begin, queue.raw()), "record_begin")?;
    answers!(
        queue.signal(&semaphore, 1),
        Code::UNSUPPORTED,
        "a signal on a queue that records"
    );
    answers!(
        queue.wait_semaphore(&semaphore, 0),
        Code::UNSUPPORTED,
        "a wait on a queue that records"
    );
    let mut made = null_mut();
    raw.takes(
        call!(graph, record_end, queue.raw(), &mut made),
        "record_end",
    )?;
    raw.takes(call!(graph, destroy, made), "destroy")?;
    queue.signal(&semaphore, 1)?;
    queue.synchronize()?;
    bench.finish()
}

fn what_is_no_semaphore_is_refused(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let external = external(&bench)?;
    let made = semaphore(&bench, 0)?;
    answers!(
        made.export(NOBODYS),
        Code::UNSUPPORTED,
        "an export of a kind that nobody has"
    );
    let fd = made.export(FdKind::OPAQUE)?;
    answers!(
        external.semaphore_import(0, fd.as_fd(), NOBODYS),
        Code::UNSUPPORTED,
        "an import of a kind that nobody has"
    );
    for fd in &nothings()? {
        answers!(
            external.semaphore_import(0, fd.as_fd(), FdKind::OPAQUE),
            Code::INVALID_HANDLE,
            "an import of a descriptor of nothing"
        );
    }
    bench.finish()
}

fn wrong_arguments_are_refused(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let raw = Raw::of(bench.driver());
    let (group, driver, queue) = (raw.external()?, raw.handle(), raw.queue()?);
    let count = raw.driver().device_count();
    let known = 0x5a5a_usize;
    let mut place = std::ptr::with_exposed_provenance_mut(known);
    let mut made = null_mut();
    raw.takes(
        call!(group, semaphore_create, driver, 0, null(), &mut made),
        "semaphore_create without parameters",
    )?;
    let flags = sys::otr_semaphore_params {
        flags: 1 << 30,
        ..params::semaphore(0)
    };
    let none = params::fd(-1, sys::OTR_FD_OPAQUE);
    for (code, expected, what) in [
        (
            call!(group, semaphore_create, driver, count, null(), &mut place),
            Code::INVALID_DEVICE,
            "semaphore_create for no device",
        ),
        (
            call!(group, semaphore_create, driver, 0, &flags, &mut place),
            Code::INVALID_ARGUMENT,
            "semaphore_create with unknown flags",
        ),
        (
            call!(group, semaphore_create, driver, 0, null(), null_mut()),
            Code::INVALID_ARGUMENT,
            "semaphore_create without a place",
        ),
        (
            call!(group, semaphore_import, driver, 0, null(), &mut place),
            Code::INVALID_ARGUMENT,
            "semaphore_import of NULL",
        ),
        (
            call!(group, semaphore_import, driver, 0, &none, &mut place),
            Code::INVALID_HANDLE,
            "semaphore_import of -1",
        ),
        (
            call!(group, semaphore_export, null_mut(), &mut { none }),
            Code::INVALID_HANDLE,
            "semaphore_export of NULL",
        ),
        (
            call!(group, semaphore_export, made, null_mut()),
            Code::INVALID_ARGUMENT,
            "semaphore_export without a place",
        ),
        (
            call!(group, semaphore_destroy, null_mut()),
            Code::INVALID_HANDLE,
            "semaphore_destroy of NULL",
        ),
        (
            call!(group, signal, null_mut(), made, 1),
            Code::INVALID_HANDLE,
            "signal without a queue",
        ),
        (
            call!(group, signal, queue, null_mut(), 1),
            Code::INVALID_HANDLE,
            "signal without a semaphore",
        ),
        (
            call!(group, wait, null_mut(), made, 1),
            Code::INVALID_HANDLE,
            "wait without a queue",
        ),
        (
            call!(group, wait, queue, null_mut(), 1),
            Code::INVALID_HANDLE,
            "wait without a semaphore",
        ),
    ] {
        raw.refuses(code, expected, what)?;
    }
    equal!(place.addr(), known, "R4: the output of failed calls");
    if count > 1 {
        let elsewhere = bench.queue_on(1)?;
        raw.refuses(
            call!(group, signal, elsewhere.raw(), made, 1),
            Code::INVALID_DEVICE,
            "signal on a queue of another device",
        )?;
    }
    let other = Raw::open(context)?;
    let foreign = other.queue()?;
    raw.refuses(
        call!(group, wait, foreign, made, 1),
        Code::INVALID_HANDLE,
        "wait on a queue of another open driver",
    )?;
    other.destroy(foreign, null_mut())?;
    raw.takes(call!(group, semaphore_destroy, made), "semaphore_destroy")?;
    raw.destroy(queue, null_mut())?;
    bench.finish()
}
