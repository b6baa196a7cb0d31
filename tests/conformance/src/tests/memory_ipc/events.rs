//! Events of one process that another queries and waits for.

use std::ptr::{null, null_mut};

use outrigger_device::{Code, Event, IpcHandle, Queue, params};

use super::{Other, SIZE, format, ipc, parse, refusal, serve};
use crate::test::tests;
use crate::tests::kernels::{count, counter, launch_count};
use crate::tests::kit::{Bench, Log, block, fails_once, fill, note, note_upstream, read, until};
use crate::tests::raw::{Raw, call};
use crate::verdict::{Answer, answers, check, equal};
use crate::{Context, Failure, Gate, Verdict};

tests! { "memory.ipc_event":
    /// Work of one process starts after work of another, however long that takes.
    work_waits_for_another_process: R18 R24 R43, needs Ipc IpcEvents;
    /// Bytes that were written before the event are there behind it, in memory that both reach.
    memory_is_ordered_by_it: R24 R43, needs Ipc IpcEvents;
    /// An event that was never recorded counts as finished in other processes too.
    never_recorded_counts_as_finished: R22 R43, needs Ipc IpcEvents;
    /// An importer sees what was recorded before the export, and every record after it.
    it_is_where_it_was_recorded_last: R21 R43, needs Ipc IpcEvents;
    /// A wait that was made before the event was recorded again keeps the old point.
    waits_keep_their_point: R21 R43, needs Ipc IpcEvents;
    /// An event whose work failed gives its failure to queries, waits and queues of importers.
    a_failure_is_carried: R23 R24 R43, needs Ipc IpcEvents HostKernels;
    /// An event is recorded thousands of times, and importers follow.
    thousands_of_records: R8 R21 R43, needs Ipc IpcEvents;
    /// Bytes that are no handle, and handles of memory, are OTR_ERR_INVALID_HANDLE.
    handles_of_other_kinds_are_refused: R4 R42, needs Ipc IpcEvents;
    /// An import of a destroyed event answers OTR_ERR_NOT_FOUND; who imported it before may destroy it.
    a_destroyed_event_is_not_found: R11 R42 R44, needs Ipc IpcEvents;
    /// An event that an exporter has not reached when it ends fails with OTR_ERR_CANCELLED, also for those who wait by
    /// then.
    an_exporter_may_end: R44, needs Ipc IpcEvents;
    /// NULL, and events that cannot be shared, are refused, and nothing is written.
    wrong_arguments_are_refused: R4 R7 R42, needs Ipc IpcEvents;
}

/// The work of the other process: with an event of this one, or with one of its own.
pub(super) fn help(context: &Context) -> Verdict {
    let (mut imported, mut kept) = (None, Vec::new());
    // Never opened, not at the end of this process either: it is killed.
    let (gate, log) = (Box::leak(Box::new(Gate::new())), Log::default());
    let mut queue = None;
    let bench = Bench::new(context)?;
    serve(|words| {
        let queue = match &queue {
            Some(queue) => queue,
            None => queue.insert(bench.queue()?),
        };
        let event = || {
            imported
                .as_ref()
                .ok_or_else(|| Failure::new("there is no event"))
        };
        let said = |answer: outrigger_device::Result<()>| Ok(refusal(answer.code()));
        match *words {
            ["import", handle] => {
                let answer = ipc(bench.driver())?.event_import(&parse(handle)?);
                let text = refusal(answer.code());
                imported = answer.ok();
                Ok(text)
            }
            ["query"] => Ok(refusal(state(event()?))),
            ["synchronize"] => said(event()?.synchronize()),
            ["wait"] => {
                queue.wait_event(event()?)?;
                note_upstream(queue, &log)?;
                said(queue.flush())
            }
            ["ran"] => Ok(format!("{:?}", log.values())),
            ["finish"] => said(queue.synchronize()),
            ["record"] => said(event()?.record(queue)),
            ["destroy"] => {
                event()?;
                imported = None;
                Ok(refusal(Code::OK))
            }
            // An event behind work that never ends.
            ["offer"] => {
                let event = bench.event()?;
                block(queue, gate)?;
                event.record(queue)?;
                let handle = ipc(bench.driver())?.event_export(&event)?;
                kept.push(event);
                Ok(format(&handle))
            }
            // The first bytes of memory of the other process, behind the event.
            ["memory", handle] => {
                let ipc = ipc(bench.driver())?;
                let address = ipc.memory_import(0, &parse(handle)?)?.address;
                queue.wait_event(event()?)?;
                let bytes = read(queue, address, 4)?;
                // SAFETY: the work has finished.
                unsafe { ipc.memory_close(address) }?;
                Ok(format!("{bytes:?}"))
            }
            _ => Err(Failure::new(format!("the test said {words:?}"))),
        }
    })
}

/// The answer of a query.
fn state(event: &Event) -> Code {
    match event.query() {
        Ok(false) => Code::NOT_READY,
        answer => answer.code(),
    }
}

/// An event that another process has imported.
struct Shared {
    bench: Bench,
    queue: Queue,
    event: Event,
    handle: IpcHandle,
    other: Other,
}

impl Shared {
    fn new(context: &Context) -> Verdict<Self> {
        Self::after(context, |_, _| Ok(()))
    }

    /// Exported after something was done with it.
    fn after(context: &Context, before: impl FnOnce(&Queue, &Event) -> Verdict) -> Verdict<Self> {
        let bench = Bench::new(context)?;
        let (queue, event) = (bench.queue()?, bench.event()?);
        before(&queue, &event)?;
        let handle = ipc(bench.driver())?.event_export(&event)?;
        let mut shared = Self {
            bench,
            queue,
            event,
            handle,
            other: Other::with(context, "ipc-events")?,
        };
        let question = format!("import {}", format(&handle));
        shared.says(&question, Code::OK, "an import")?;
        Ok(shared)
    }

    /// Checks the code with which the other process answers.
    #[track_caller]
    fn says(&mut self, question: &str, code: Code, what: &str) -> Verdict {
        equal!(self.other.ask(question)?, refusal(code), "{what}");
        Ok(())
    }

    /// Checks with which codes the host calls behind the waits of the other process were called.
    #[track_caller]
    fn ran(&mut self, codes: &[Code], what: &str) -> Verdict {
        let codes: Vec<_> = codes.iter().map(|code| code.0).collect();
        equal!(self.other.ask("ran")?, format!("{codes:?}"), "{what}");
        Ok(())
    }

    #[track_caller]
    fn end(mut self) -> Verdict {
        self.says("destroy", Code::OK, "event_destroy of the import")?;
        self.other.end()?;
        drop(self.event);
        self.queue.synchronize()?;
        self.bench.finish()
    }
}

fn work_waits_for_another_process(context: &Context) -> Verdict {
    let mut shared = Shared::new(context)?;
    for round in 1..=3 {
        let gate = Gate::new();
        block(&shared.queue, &gate)?;
        shared.event.record(&shared.queue)?;
        shared.says("wait", Code::OK, "queue_wait_event")?;
        shared.says("query", Code::NOT_READY, "event_query before the point")?;
        shared.ran(&vec![Code::OK; round - 1], "what ran before the point")?;
        gate.open();
        // Nobody asks for this queue: its record has flushed it.
        shared.says("synchronize", Code::OK, "event_synchronize")?;
        shared.says("query", Code::OK, "event_query behind the point")?;
        shared.says("finish", Code::OK, "the queue that waited")?;
        shared.ran(&vec![Code::OK; round], "what ran behind the point")?;
    }
    shared.end()
}

fn memory_is_ordered_by_it(context: &Context) -> Verdict {
    let mut shared = Shared::new(context)?;
    let memory = shared.bench.memory(SIZE)?;
    let handle = ipc(shared.bench.driver())?.memory_export(memory);
    if let Err(error) = &handle {
        answers!(error.code(), Code::UNSUPPORTED, "memory_export");
        context.note("allocations cannot be shared");
        return shared.end();
    }
    let question = format!("memory {}", format(&handle?));
    for value in 1..=20u8 {
        let gate = Gate::new();
        block(&shared.queue, &gate)?;
        fill(&shared.queue, memory, SIZE, &[value])?;
        shared.event.record(&shared.queue)?;
        let opener = std::thread::spawn(move || gate.open());
        let found = shared.other.ask(&question)?;
        equal!(
            found,
            format!("{:?}", [value; 4]),
            "the bytes behind the event"
        );
        opener
            .join()
            .map_err(|_| Failure::new("a thread of the test panicked"))?;
    }
    shared.end()
}

fn never_recorded_counts_as_finished(context: &Context) -> Verdict {
    let mut shared = Shared::new(context)?;
    shared.says("query", Code::OK, "event_query")?;
    shared.says("synchronize", Code::OK, "event_synchronize")?;
    shared.says("wait", Code::OK, "queue_wait_event")?;
    shared.says("finish", Code::OK, "the queue that waited")?;
    shared.ran(&[Code::OK], "what ran")?;
    shared.end()
}

fn it_is_where_it_was_recorded_last(context: &Context) -> Verdict {
    let gate = Gate::new();
    let mut shared = Shared::after(context, |queue, event| {
        block(queue, &gate)?;
        Ok(event.record(queue)?)
    })?;
    shared.says("query", Code::NOT_READY, "recorded before the export")?;
    gate.open();
    shared.says("synchronize", Code::OK, "once that has passed")?;
    let (gate, other_queue) = (Gate::new(), shared.bench.queue()?);
    block(&other_queue, &gate)?;
    shared.event.record(&other_queue)?;
    shared.says("query", Code::NOT_READY, "recorded on another queue")?;
    shared.event.record(&shared.queue)?;
    shared.says(
        "synchronize",
        Code::OK,
        "recorded once more, where nothing waits",
    )?;
    gate.open();
    other_queue.synchronize()?;
    shared.says("query", Code::OK, "when all has passed")?;
    shared.end()
}

fn waits_keep_their_point(context: &Context) -> Verdict {
    let mut shared = Shared::new(context)?;
    let (first, second, late) = (Gate::new(), Gate::new(), shared.bench.queue()?);
    block(&shared.queue, &first)?;
    shared.event.record(&shared.queue)?;
    shared.says("wait", Code::OK, "queue_wait_event")?;
    block(&late, &second)?;
    shared.event.record(&late)?;
    first.open();
    shared.says(
        "finish",
        Code::OK,
        "the queue that waited for the old point",
    )?;
    shared.says("query", Code::NOT_READY, "event_query of the new point")?;
    second.open();
    late.synchronize()?;
    shared.says(
        "synchronize",
        Code::OK,
        "event_synchronize of the new point",
    )?;
    shared.ran(&[Code::OK], "what ran")?;
    shared.end()
}

fn a_failure_is_carried(context: &Context) -> Verdict {
    let mut shared = Shared::new(context)?;
    let gate = Gate::new();
    let Some(kernel) = shared.bench.host_kernel(0, count)? else {
        return Err(Failure::new("the driver takes host kernels"));
    };
    block(&shared.queue, &gate)?;
    // The device's own work: a failure of a host call is the host's, and no event of the driver's carries it.
    launch_count(&shared.queue, &kernel, counter(), u64::MAX)?;
    shared.event.record(&shared.queue)?;
    shared.says("wait", Code::OK, "queue_wait_event before the failure")?;
    gate.open();
    shared.says("synchronize", Code::OUT_OF_RANGE, "event_synchronize")?;
    fails_once(&shared.queue, Code::OUT_OF_RANGE, "the exporter's queue")?;
    shared.says(
        "query",
        Code::OUT_OF_RANGE,
        "event_query, once the queue has told",
    )?;
    shared.says("finish", Code::OUT_OF_RANGE, "the queue that waited")?;
    shared.says("wait", Code::OK, "queue_wait_event after the failure")?;
    shared.says(
        "finish",
        Code::OUT_OF_RANGE,
        "a queue that waits afterwards",
    )?;
    shared.ran(&[Code::OUT_OF_RANGE; 2], "what host calls were told")?;
    shared.event.record(&shared.queue)?;
    shared.says("synchronize", Code::OK, "recorded again, after the failure")?;
    shared.end()
}

fn thousands_of_records(context: &Context) -> Verdict {
    let mut shared = Shared::new(context)?;
    let log = Log::default();
    for round in 0..40 {
        for _ in 0..100 {
            note(&shared.queue, &log, round)?;
            // A driver may hold a limited number of points for importers.
            until(|| match shared.event.record(&shared.queue) {
                Err(error) if error.code() == Code::OUT_OF_HOST_MEMORY => Ok(false),
                recorded => Ok(recorded.map(|()| true)?),
            })?;
        }
        shared.says("wait", Code::OK, "queue_wait_event")?;
        shared.says("finish", Code::OK, "the queue that waited")?;
        equal!(
            log.values().len() as u64,
            100 * (round + 1),
            "host calls in front of the event"
        );
    }
    shared.says("query", Code::OK, "event_query in the end")?;
    shared.end()
}

fn handles_of_other_kinds_are_refused(context: &Context) -> Verdict {
    let mut shared = Shared::new(context)?;
    let memory = shared.bench.memory(SIZE)?;
    let mut wrong = vec![
        IpcHandle([0; _]),
        IpcHandle([0x5a; _]),
        IpcHandle([0xff; _]),
    ];
    let driver = shared.bench.driver().clone();
    if let Ok(handle) = ipc(&driver)?.memory_export(memory) {
        wrong.push(handle);
        let answer = ipc(&driver)?.memory_import(0, &shared.handle);
        answers!(answer, Code::INVALID_HANDLE, "memory_import of an event");
    }
    for handle in wrong {
        let question = format!("import {}", format(&handle));
        shared.says(&question, Code::INVALID_HANDLE, "event_import of no event")?;
        let answer = ipc(&driver)?.event_import(&handle);
        answers!(answer, Code::INVALID_HANDLE, "event_import of no event");
    }
    let question = format!("import {}", format(&shared.handle));
    shared.says(&question, Code::OK, "event_import again")?;
    shared.end()
}

fn a_destroyed_event_is_not_found(context: &Context) -> Verdict {
    let mut shared = Shared::new(context)?;
    let gate = Gate::new();
    block(&shared.queue, &gate)?;
    shared.event.record(&shared.queue)?;
    shared.says("wait", Code::OK, "queue_wait_event")?;
    shared.event = shared.bench.event()?;
    gate.open();
    shared.says(
        "finish",
        Code::OK,
        "a queue that waits for a destroyed event",
    )?;
    shared.says("destroy", Code::OK, "event_destroy of the import")?;
    let question = format!("import {}", format(&shared.handle));
    shared.says(&question, Code::NOT_FOUND, "an import of a destroyed event")?;
    let handle = ipc(shared.bench.driver())?.event_export(&shared.event)?;
    check!(handle != shared.handle, "a new event has a new handle");
    shared.says(&question, Code::NOT_FOUND, "an import by the old handle")?;
    let question = format!("import {}", format(&handle));
    shared.says(&question, Code::OK, "an import of the new event")?;
    shared.end()
}

fn an_exporter_may_end(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    let mut other = Other::with(context, "ipc-events")?;
    let handle = parse(&other.ask("offer")?)?;
    let event = ipc(bench.driver())?.event_import(&handle)?;
    answers!(
        state(&event),
        Code::NOT_READY,
        "what the exporter has not reached"
    );
    queue.wait_event(&event)?;
    note_upstream(&queue, &log)?;
    queue.flush()?;
    // The other process is killed.
    drop(other);
    fails_once(
        &queue,
        Code::CANCELLED,
        "a queue that waits for an exporter that has ended",
    )?;
    equal!(
        log.values(),
        [Code::CANCELLED.0 as u64],
        "what the host call was told"
    );
    answers!(state(&event), Code::CANCELLED, "event_query");
    answers!(event.synchronize(), Code::CANCELLED, "event_synchronize");
    drop(event);
    let answer = ipc(bench.driver())?.event_import(&handle);
    answers!(
        answer,
        Code::NOT_FOUND,
        "an import from a process that has ended"
    );
    bench.finish()
}

fn wrong_arguments_are_refused(context: &Context) -> Verdict {
    let mut shared = Shared::new(context)?;
    // The shared event may be recorded by all, or by its exporter alone.
    let recorded = shared.other.ask("record")?;
    check!(
        [Code::OK, Code::UNSUPPORTED]
            .map(refusal)
            .contains(&recorded),
        "event_record of an import is taken or OTR_ERR_UNSUPPORTED"
    );
    let raw = Raw::of(shared.bench.driver());
    // SAFETY: the group is there, and as large as these entries by the test's needs.
    let group = unsafe { &*raw.api().ipc };
    let (mut bytes, mut event) = (params::ipc_handle([7; _]), 0x5a5a as *mut _);
    let own = raw.event()?;
    raw.refuses(
        call!(group, event_export, null_mut(), &mut bytes),
        Code::INVALID_HANDLE,
        "event_export of NULL",
    )?;
    raw.refuses(
        call!(group, event_export, own, null_mut()),
        Code::INVALID_ARGUMENT,
        "event_export without a place",
    )?;
    let handle = params::ipc_handle(shared.handle.0);
    raw.refuses(
        call!(group, event_import, null_mut(), &handle, &mut event),
        Code::INVALID_HANDLE,
        "event_import of NULL",
    )?;
    raw.refuses(
        call!(group, event_import, raw.handle(), null(), &mut event),
        Code::INVALID_ARGUMENT,
        "event_import without a handle",
    )?;
    raw.refuses(
        call!(group, event_import, raw.handle(), &handle, null_mut()),
        Code::INVALID_ARGUMENT,
        "event_import without a place",
    )?;
    check!(
        bytes.bytes == [7; _] && event == 0x5a5a as *mut _,
        "R4: the outputs of failed calls"
    );
    raw.destroy(null_mut(), own)?;
    shared.end()
}
