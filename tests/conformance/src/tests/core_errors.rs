//! R4 to R6: error texts, to which thread they belong and how long they last, and that nothing is
//! printed; and which command an outcome names.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

use outrigger_device::{Code, NO_OUTCOME, params};

use super::kernels::{count, counter, launch_labelled};
use super::kit::{Bench, Log, block, fail, fill, note, threads};
use super::raw::{Raw, call, text};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Gate, Verdict};

tests! { "core.error":
    /// `last_error` is never NULL, also on a thread on which nothing has failed.
    a_text_is_never_null: R5;
    /// The text says what was wrong: it names the device that does not exist.
    a_text_names_what_was_wrong: R5;
    /// The text says what would be right: it names how many devices there are, or which.
    a_text_names_what_would_be_right: R5;
    /// The text is of the most recent failed call.
    a_text_is_of_the_last_failure: R5;
    /// A call that succeeds leaves the text of the last failure.
    success_leaves_the_text: R5;
    /// Each thread has a text of its own.
    a_text_belongs_to_its_thread: R5 R9;
    /// A call that fails on another thread does not touch the text that a thread is reading.
    a_text_lasts_until_the_next_call: R5 R9;
    /// Eight threads fail at the same time, and each reads its own text.
    many_threads_fail_at_once: R5 R8 R9;
    /// The outcome of a failed command has the number of its submission, where it has one at all.
    a_failed_command_is_numbered: R19 R20;
    /// The numbers of submissions go on behind a failure that was cleared.
    numbers_go_on: R19 R20;
    /// The outcome of a failed kernel has its label and its number.
    a_failed_kernel_is_named: R19 R20, needs HostKernels;
    /// The label of a kernel goes with its failure to events and other queues.
    a_label_goes_with_the_failure: R19 R23 R24, needs HostKernels;
    /// A driver prints nothing, whatever is asked of it.
    nothing_is_printed: R6;
}

fn failing_alloc(raw: &Raw, device: u32) -> Verdict {
    let mut address = 0;
    let answer = call!(
        raw.api(),
        memory_alloc,
        raw.handle(),
        device,
        &params::memory(64),
        &mut address
    );
    answers!(
        answer,
        Code::INVALID_DEVICE,
        "memory_alloc on device {device}"
    );
    Ok(())
}

fn a_text_is_never_null(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let driver = raw.driver();
    raw.text()?;
    threads(4, |_| {
        let raw = Raw::of(driver);
        raw.text()?;
        failing_alloc(&raw, 99_999)?;
        check!(!raw.text()?.is_empty(), "a failed call has a text");
        Ok(())
    })
}

fn a_text_names_what_was_wrong(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    for device in [4_000_001, 70_007] {
        failing_alloc(&raw, device)?;
        let text = raw.text()?;
        check!(
            text.contains(&device.to_string()),
            "the text names device {device}: {text:?}"
        );
    }
    Ok(())
}

fn a_text_names_what_would_be_right(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let count = raw.driver().device_count();
    failing_alloc(&raw, 4_000_001)?;
    let text = raw.text()?;
    let (count, last) = (count.to_string(), (count - 1).to_string());
    let rest = text.replace("4000001", "");
    check!(
        rest.contains(&count) || rest.contains(&last),
        "the text says that there are {count} devices, or 0 to {last}: {text:?}"
    );
    Ok(())
}

fn a_text_is_of_the_last_failure(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    failing_alloc(&raw, 4_000_001)?;
    failing_alloc(&raw, 5_000_001)?;
    let text = raw.text()?;
    check!(
        text.contains("5000001") && !text.contains("4000001"),
        "the second failure: {text:?}"
    );
    answers!(
        call!(raw.api(), queue_query, null_mut(), &mut { NO_OUTCOME }),
        Code::INVALID_HANDLE,
        "queue_query of NULL"
    );
    let text = raw.text()?;
    check!(
        !text.contains("5000001") && !text.is_empty(),
        "the third failure: {text:?}"
    );
    Ok(())
}

fn success_leaves_the_text(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    failing_alloc(&raw, 4_000_001)?;
    let mut found = 0;
    raw.takes(
        call!(raw.api(), device_count, raw.handle(), &mut found),
        "device_count",
    )?;
    let queue = raw.queue()?;
    raw.synchronize(queue)?;
    raw.destroy(queue, null_mut())?;
    let text = raw.text()?;
    check!(
        text.contains("4000001"),
        "the most recent failed call is still this: {text:?}"
    );
    Ok(())
}

fn a_text_belongs_to_its_thread(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let driver = raw.driver();
    failing_alloc(&raw, 4_000_001)?;
    threads(3, |thread| {
        let raw = Raw::of(driver);
        let text = raw.text()?;
        check!(
            !text.contains("4000001"),
            "a new thread has no failure of another: {text:?}"
        );
        failing_alloc(&raw, 5_000_000 + thread as u32)
    })?;
    let text = raw.text()?;
    check!(
        text.contains("4000001"),
        "what fails elsewhere leaves this thread's text: {text:?}"
    );
    Ok(())
}

fn a_text_lasts_until_the_next_call(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let driver = raw.driver();
    failing_alloc(&raw, 4_000_001)?;
    let kept = call!(raw.api(), last_error);
    // SAFETY: R5: valid until this thread's next call.
    let before = unsafe { CStr::from_ptr(kept) }.to_owned();
    threads(4, |_| {
        let raw = Raw::of(driver);
        for device in 0..100 {
            failing_alloc(&raw, 6_000_000 + device)?;
        }
        Ok(())
    })?;
    // SAFETY: as above: this thread has made no call since.
    let answer = unsafe { CStr::from_ptr(kept) };
    equal!(
        answer,
        before.as_c_str(),
        "the text, after failures elsewhere"
    );
    Ok(())
}

fn many_threads_fail_at_once(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let driver = raw.driver();
    threads(8, |thread| {
        let raw = Raw::of(driver);
        for round in 0..300u32 {
            let device = 1_000_000 * (thread as u32 + 1) + round;
            failing_alloc(&raw, device)?;
            let text = text(raw.api())?;
            check!(
                text.contains(&device.to_string()),
                "the text of this thread names {device}: {text:?}"
            );
        }
        Ok(())
    })
}

/// The label and the number of the command that has failed, where the driver says them.
fn failed(queue: &outrigger_device::Queue, code: Code) -> Verdict<(Option<String>, Option<u64>)> {
    match queue.synchronize() {
        Ok(()) => Err(crate::Failure::new(format!(
            "the queue has to fail with {code:?}"
        ))),
        Err(error) => {
            equal!(error.code(), code, "the failure");
            Ok((error.label().map(str::to_owned), error.submission()))
        }
    }
}

fn a_failed_command_is_numbered(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = bench.memory(64)?;
    for before in [0, 1, 5, 100] {
        let (queue, log) = (bench.queue()?, Log::default());
        for i in 0..before {
            if i % 2 == 0 {
                fill(&queue, memory, 64, &[1])?;
            } else {
                note(&queue, &log, i)?;
            }
        }
        fail(&queue, Code::EXECUTION)?;
        fill(&queue, memory, 64, &[2])?;
        fail(&queue, Code::INTERNAL)?;
        if let (_, Some(number)) = failed(&queue, Code::EXECUTION)? {
            equal!(number, before + 1, "the submission that failed, from 1");
        } else {
            context.note("the outcomes of failed host calls have no number");
        }
    }
    bench.finish()
}

fn numbers_go_on(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    for i in 0..5 {
        note(&queue, &Log::default(), 0)?;
        fail(&queue, Code::EXECUTION)?;
        if let (_, Some(number)) = failed(&queue, Code::EXECUTION)? {
            equal!(number, 2 * (i + 1), "the submission that failed");
        }
    }
    bench.finish()
}

fn a_failed_kernel_is_named(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory) = (bench.queue()?, bench.memory(64)?);
    let Some(kernel) = bench.host_kernel(0, count)? else {
        return Err(crate::Failure::new("the driver takes host kernels"));
    };
    fill(&queue, memory, 64, &[1])?;
    launch_labelled(&queue, &kernel, counter(), 1, c"first_kernel")?;
    launch_labelled(
        &queue,
        &kernel,
        counter(),
        u64::MAX,
        c"second kernel, which fails",
    )?;
    launch_labelled(&queue, &kernel, counter(), u64::MAX, c"third_kernel")?;
    let (label, number) = failed(&queue, Code::OUT_OF_RANGE)?;
    equal!(
        label.as_deref(),
        Some("second kernel, which fails"),
        "the label in the outcome"
    );
    equal!(number, Some(3), "the number in the outcome");
    bench.finish()
}

fn a_label_goes_with_the_failure(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, events) = (
        bench.queue()?,
        bench.queue()?,
        [bench.event()?, bench.event()?],
    );
    let Some(kernel) = bench.host_kernel(0, count)? else {
        return Err(crate::Failure::new("the driver takes host kernels"));
    };
    let gate = Gate::new();
    block(&first, &gate)?;
    launch_labelled(&first, &kernel, counter(), u64::MAX, c"the_culprit")?;
    events[0].record(&first)?;
    second.wait_event(&events[0])?;
    events[1].record(&second)?;
    gate.open();
    for event in &events {
        let error = event.synchronize();
        let label = error
            .as_ref()
            .err()
            .and_then(|e| e.label().map(str::to_owned));
        equal!(
            label.as_deref(),
            Some("the_culprit"),
            "the label in the outcome of an event"
        );
    }
    let (label, _) = failed(&second, Code::OUT_OF_RANGE)?;
    equal!(
        label.as_deref(),
        Some("the_culprit"),
        "the label in the outcome of the queue that waits"
    );
    bench.finish()
}

/// Standard output and error of this process, turned to a file as long as it lives.
struct Hushed {
    file: File,
    kept: Vec<(i32, OwnedFd)>,
}

impl Hushed {
    fn new() -> Verdict<Self> {
        let name = c"conformance-output";
        // SAFETY: a terminated name; the new descriptor is nobody else's.
        let file = unsafe {
            let number = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
            if number < 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            File::from_raw_fd(number)
        };
        let kept = vec![
            (1, std::io::stdout().as_fd().try_clone_to_owned()?),
            (2, std::io::stderr().as_fd().try_clone_to_owned()?),
        ];
        let hushed = Self { file, kept };
        for (number, _) in &hushed.kept {
            hushed.turn(*number, hushed.file.as_fd())?;
        }
        Ok(hushed)
    }

    fn turn(&self, number: i32, to: std::os::fd::BorrowedFd<'_>) -> Verdict {
        use std::os::fd::AsRawFd;
        // SAFETY: both are open; 1 and 2 stay open, to something else.
        if unsafe { libc::dup2(to.as_raw_fd(), number) } < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(())
    }

    /// Turns them back, and gives what was written.
    fn end(mut self) -> Verdict<String> {
        for (number, kept) in &self.kept {
            self.turn(*number, kept.as_fd())?;
        }
        let mut bytes = Vec::new();
        self.file.rewind()?;
        self.file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn nothing_is_printed(context: &Context) -> Verdict {
    let hushed = Hushed::new()?;
    let outcome = noisy(context);
    let printed = hushed.end()?;
    outcome?;
    equal!(printed, "", "what was written to standard output and error");
    Ok(())
}

/// All sorts of calls, right and wrong.
fn noisy(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let raw = Raw::of(bench.driver());
    let (queue, event, memory) = (bench.queue()?, bench.event()?, bench.memory(4096)?);
    failing_alloc(&raw, 99_999)?;
    answers!(
        bench.driver().memory_alloc(0, u64::MAX),
        Code::OUT_OF_MEMORY,
        "too much memory"
    );
    fill(&queue, memory, 4096, &[1])?;
    event.record(&queue)?;
    fail(&queue, Code::EXECUTION)?;
    note(&queue, &Log::default(), 1)?;
    answers!(queue.synchronize(), Code::EXECUTION, "queue_synchronize");
    answers!(
        call!(raw.api(), queue_query, null_mut(), &mut { NO_OUTCOME }),
        Code::INVALID_HANDLE,
        "queue_query of NULL"
    );
    answers!(
        call!(raw.api(), memory_free, raw.handle(), 7),
        Code::INVALID_ARGUMENT,
        "memory_free of nothing"
    );
    let options = super::raw::open_params(c"conformance_nonsense=1".as_ptr());
    let mut other = null_mut();
    answers!(
        call!(raw.api(), open, &options, &mut other),
        Code::INVALID_ARGUMENT,
        "open"
    );
    drop((queue, event));
    bench.finish()
}
