//! Records of memory over time: labels, the ring of events, contexts of the host, and traces.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::tests::host::bindings::*;
use outrigger_device::Code;
use serde_json::{Value, json as value};

use super::{alloc, fill, filled, finished, json, otr, refused, start, stream, text};
use crate::test::tests;
use crate::tests::kit::threads;
use crate::verdict::{check, equal};
use crate::{Context, Failure, Verdict};

tests! { "host-abi.history":
    /// Labels nest, are a thread's own, and tell who holds memory.
    labels: H15;
    /// The label of what holds memory is in the text of a request that is not met.
    labels_in_failures: H3 H15 H24;
    /// The latest events are kept, in their order, until they are forgotten or the history stops.
    events: H11;
    /// Events of threads are told in an order that is right for each address.
    events_of_threads: H11 H14 H15;
    /// Without room for events, what is live is known all the same.
    no_room_for_events: H15;
    /// Contexts are captured outside of locks, told in snapshots, and released once each.
    contexts: H11 H14 H16;
    /// Wrong options change nothing of a history that goes on.
    wrong_options: H2 H8 H9 H10;
    /// Pinned memory has labels and a history of its own.
    pinned_memory: H15;
    /// A trace has what is allocated and freed while it is written, and nothing else.
    traces: H2;
    /// A mark waits for the device.
    a_mark_waits: H18;
}

const MIB: u64 = 1 << 20;

/// Options without contexts.
pub(super) fn options(entries: u64) -> otr_history_options_t {
    otr_history_options_t {
        struct_size: size_of::<otr_history_options_t>(),
        entries,
        flags: 0,
        reserved: 0,
        capture: None,
        release: None,
        frames: None,
        user: null_mut(),
    }
}

fn free(address: u64) -> Verdict {
    Ok(otr!(memory_free, 0, address)?)
}

fn push(label: &CStr) -> Verdict {
    Ok(otr!(memory_label_push, label.as_ptr())?)
}

fn pop() -> Verdict {
    Ok(otr!(memory_label_pop)?)
}

/// Allocates under a label.
fn labelled(label: &CStr, size: u64, stream: u64) -> Verdict<u64> {
    push(label)?;
    let address = alloc(size, stream)?;
    pop()?;
    Ok(address)
}

fn label_of(address: u64) -> Verdict<Option<String>> {
    let info: otr_pointer_info_t = filled(|out| otr!(memory_pointer_info, 0, address, out))?;
    Ok(text(info.label))
}

fn holders(device: u32, count: u32) -> Verdict<Value> {
    json(|out| otr!(memory_holders, device, count, out))
}

/// The kept events of device 0, or of pinned memory.
fn kept(device: u32) -> Verdict<Vec<Value>> {
    let snapshot = json(|out| otr!(memory_snapshot, OTR_ALL_DEVICES, out))?;
    let events = match device {
        OTR_HOST_MEMORY => &snapshot["host_traces"],
        _ => &snapshot["device_traces"][0],
    };
    Ok(events.as_array().cloned().unwrap_or_default())
}

/// The block of a snapshot that starts at an address.
fn block(address: u64) -> Verdict<Value> {
    let snapshot = json(|out| otr!(memory_snapshot, 0, out))?;
    let segments = snapshot["segments"].as_array().into_iter().flatten();
    let mut blocks = segments
        .filter_map(|segment| segment["blocks"].as_array())
        .flatten();
    let found = blocks.find(|block| block["address"] == address).cloned();
    found.ok_or_else(|| Failure::new(format!("a block at {address:#x}, in {snapshot}")))
}

fn labels(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    push(c"model")?;
    let weights = labelled(c"weights", 6 * MIB, stream)?;
    let model = alloc(2 * MIB, stream)?;
    threads(1, |_| {
        let other = alloc(100, stream)?;
        equal!(label_of(other)?, None, "a label on another thread");
        refused(
            otr!(memory_label_pop),
            Code::INVALID_ARGUMENT,
            "a label less than none",
        )?;
        let own = labelled(c"other", 100, stream)?;
        equal!(label_of(own)?.as_deref(), Some("other"), "its own label");
        Ok(())
    })?;
    equal!(
        label_of(weights + 77)?.as_deref(),
        Some("weights"),
        "the inner label"
    );
    equal!(
        label_of(model)?.as_deref(),
        Some("model"),
        "the outer label"
    );
    pop()?;
    refused(
        otr!(memory_label_pop),
        Code::INVALID_ARGUMENT,
        "a label less than none",
    )?;
    let plain = alloc(3000, stream)?;
    equal!(label_of(plain)?, None, "a label after all were taken away");
    equal!(block(weights)?["label"], "weights", "a label in a snapshot");
    equal!(block(plain)?["label"], Value::Null, "and none");

    let most = holders(0, 2)?;
    equal!(
        (&most[0]["label"], &most[0]["blocks"], &most[1]["label"]),
        (&value!("weights"), &value!(1), &value!("model")),
        "who holds most"
    );
    check!(
        most[0]["bytes"].as_u64() >= Some(6 * MIB),
        "the bytes of the first, in {most}"
    );
    equal!(most.as_array().map(Vec::len), Some(2), "as many as asked");
    equal!(holders(0, 0)?, value!([]), "none asked");
    free(weights)?;
    equal!(holders(0, 1)?[0]["label"], "model", "who holds most now");
    Ok(())
}

fn labels_in_failures(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let kept = labelled(c"activations of layer 7", 8 * MIB, stream)?;
    let told = refused(
        otr!(memory_alloc, 0, 1 << 50, stream, &mut 0),
        Code::OUT_OF_MEMORY,
        "too much memory",
    )?;
    check!(
        told.text.contains("activations of layer 7"),
        "the text says who holds memory: {}",
        told.text
    );
    free(kept)
}

fn events(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let early = alloc(500, stream)?;
    otr!(memory_history_start, 0, &options(12))?;
    for size in 1..=20 {
        free(labelled(c"step", size * 1000, stream)?)?;
    }
    let seen = kept(0)?;
    equal!(seen.len(), 12, "events of the 60 that there were");
    let mut last = 0;
    for (at, event) in seen.iter().enumerate() {
        let action = ["alloc", "free_requested", "free_completed"][at % 3];
        equal!(
            (&event["action"], &event["requested_size"], &event["stream"]),
            (
                &value!(action),
                &value!((17 + at as u64 / 3) * 1000),
                &value!(stream)
            ),
            "event {at}: what, of which size, on which stream"
        );
        equal!(event["label"], "step", "the label of event {at}");
        let time = event["time_us"].as_u64().unwrap_or_default();
        check!(
            time >= last && time > 0,
            "event {at} is not before the one before"
        );
        last = time;
    }
    refused(
        otr!(memory_alloc, 0, 1 << 50, stream, &mut 0),
        Code::OUT_OF_MEMORY,
        "too much memory",
    )?;
    let newest = kept(0)?.pop().unwrap_or_default();
    equal!(
        (&newest["action"], &newest["size"]),
        (&value!("oom"), &value!(1u64 << 50)),
        "the event of a request that was not met"
    );
    otr!(memory_history_clear, 0)?;
    equal!(kept(0)?.len(), 0, "events after they were forgotten");
    free(early)?;
    check!(!kept(0)?.is_empty(), "it goes on");
    super::held()?;
    free(alloc(40 * MIB, stream)?)?;
    let segment = |event: &Value| {
        event["action"]
            .as_str()
            .is_some_and(|one| one.starts_with("segment_"))
    };
    check!(
        kept(0)?.iter().any(segment),
        "the event of memory of the device"
    );
    otr!(memory_history_stop, 0)?;
    free(alloc(64, stream)?)?;
    equal!(kept(0)?.len(), 0, "events after it has stopped");
    otr!(memory_history_stop, 0)?;
    Ok(otr!(memory_history_clear, 0)?)
}

fn events_of_threads(context: &Context) -> Verdict {
    start(context)?;
    otr!(memory_history_start, 0, &options(100_000))?;
    let shared = stream()?;
    threads(4, |thread| {
        let (own, mut live) = (stream()?, Vec::new());
        push(&CString::new(format!("thread {thread}"))?)?;
        for step in 0..300u64 {
            let size = 1 + (thread as u64 * 7919 + step * 104_729) % 100_000;
            live.push(alloc(size, if step % 3 == 0 { shared } else { own })?);
            if step % 2 == 1 {
                free(live.swap_remove(step as usize % 5 % live.len()))?;
            }
        }
        live.into_iter().try_for_each(free)?;
        pop()
    })?;
    let (mut live, mut last) = (HashMap::new(), HashMap::new());
    let mut allocations = 0;
    for event in kept(0)? {
        let (action, address) = (
            event["action"].as_str().unwrap_or_default(),
            event["addr"].as_u64(),
        );
        let comes_after: &[Option<&str>] = match action {
            "alloc" => &[None, Some("free_completed")],
            "free_requested" => &[Some("alloc")],
            "free_completed" => &[Some("free_requested")],
            _ => continue,
        };
        let before: Option<String> = last.insert(address, action.to_owned());
        check!(
            comes_after.contains(&before.as_deref()),
            "{before:?} before {event}"
        );
        let block = (event["label"].clone(), event["size"].clone());
        match action {
            "alloc" => {
                allocations += 1;
                live.insert(address, block);
            }
            "free_requested" => equal!(
                live.remove(&address),
                Some(block),
                "label and size of {event}"
            ),
            _ => {}
        }
    }
    equal!(
        (allocations, live.len()),
        (1200, 0),
        "allocations, and what is live"
    );
    Ok(otr!(memory_history_stop, 0)?)
}

fn no_room_for_events(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    otr!(memory_history_start, 0, &options(0))?;
    let address = labelled(c"kept", 64, stream)?;
    equal!(kept(0)?.len(), 0, "events");
    equal!(
        block(address)?["label"],
        "kept",
        "the label of a live block"
    );
    free(address)
}

/// A host that captures contexts: each is the number of its capture.
#[derive(Default)]
struct Host {
    stream: u64,
    captured: AtomicU64,
    released: Mutex<Vec<u64>>,
}

unsafe extern "C" fn capture(user: *mut c_void) -> u64 {
    // SAFETY: the host below, which is never freed.
    let host = unsafe { &*user.cast::<Host>() };
    // The function may use the library, also calls that would capture, without end.
    let own = alloc(64, host.stream).and_then(free);
    assert!(own.is_ok(), "memory for the capture itself: {own:?}");
    host.captured.fetch_add(1, Ordering::SeqCst) + 1
}

unsafe extern "C" fn release(user: *mut c_void, context: u64) {
    // SAFETY: as above.
    let host = unsafe { &*user.cast::<Host>() };
    host.released.lock().expect("no panic").push(context);
}

unsafe extern "C" fn frames(_: *mut c_void, context: u64, frame: otr_frame_fn, to: *mut c_void) {
    let (Some(frame), Ok(file)) = (frame, CString::new(format!("step{context}.py"))) else {
        return;
    };
    // SAFETY: strings that outlive the calls, or NULL, and the pointer that came with the function.
    unsafe {
        frame(to, file.as_ptr(), context as u32, c"forward".as_ptr());
        frame(to, std::ptr::null(), 0, c"main".as_ptr());
    }
}

fn contexts(context: &Context) -> Verdict {
    start(context)?;
    let host: &'static Host = Box::leak(Box::new(Host {
        stream: stream()?,
        ..Host::default()
    }));
    let (stream, captured) = (host.stream, || host.captured.load(Ordering::SeqCst));
    let with = |flags, entries| otr_history_options_t {
        flags,
        capture: Some(capture),
        release: Some(release),
        frames: Some(frames),
        user: std::ptr::from_ref(host).cast_mut().cast(),
        ..options(entries)
    };
    otr!(memory_history_start, 0, &with(0, 50))?;
    let (first, second) = (alloc(100, stream)?, alloc(200, stream)?);
    equal!(captured(), 2, "contexts of two allocations");
    equal!(
        block(second)?["frames"],
        value!([
            {"filename": "step2.py", "line": 2, "name": "forward"},
            {"filename": "", "line": 0, "name": "main"},
        ]),
        "where the second was allocated, the innermost frame first"
    );
    free(first)?;
    let freed = kept(0)?.pop().unwrap_or_default();
    equal!(
        (&freed["action"], &freed["frames"][0]["line"]),
        (&value!("free_completed"), &value!(1)),
        "a free has the context of its allocation"
    );
    equal!(captured(), 2, "frees are not asked for theirs");

    otr!(
        memory_history_start,
        0,
        &with(OTR_HISTORY_CONTEXT_OF_FREES, 3)
    )?;
    free(second)?;
    equal!(captured(), 3, "frees are asked now");
    for _ in 0..30 {
        free(alloc(100, stream)?)?;
    }
    let released = || host.released.lock().expect("no panic").clone();
    check!(
        captured() - released().len() as u64 <= 6,
        "{} of {} contexts are kept by 3 events and no block",
        captured() - released().len() as u64,
        captured()
    );
    let live = alloc(100, stream)?;
    otr!(memory_history_stop, 0)?;
    let mut all = released();
    all.sort_unstable();
    equal!(
        all,
        (1..=captured()).collect::<Vec<_>>(),
        "contexts that were released, each once"
    );
    free(live)?;
    equal!(
        released().len() as u64,
        captured(),
        "nothing is asked or released after the stop"
    );
    Ok(())
}

fn wrong_options(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    otr!(memory_history_start, 0, &options(4))?;
    let wrong = [
        (
            "options that are too small",
            otr_history_options_t {
                struct_size: size_of::<otr_history_options_t>() - 8,
                ..options(1)
            },
        ),
        (
            "unknown flags",
            otr_history_options_t {
                flags: 6,
                ..options(1)
            },
        ),
        (
            "`reserved`",
            otr_history_options_t {
                reserved: 1,
                ..options(1)
            },
        ),
    ];
    for (what, options) in wrong {
        refused(
            otr!(memory_history_start, 0, &options),
            Code::INVALID_ARGUMENT,
            what,
        )?;
    }
    for size in 1..5 {
        free(alloc(size, stream)?)?;
    }
    equal!(kept(0)?.len(), 4, "events by the options that are in force");
    Ok(())
}

fn pinned_memory(context: &Context) -> Verdict {
    start(context)?;
    otr!(memory_history_start, OTR_HOST_MEMORY, &options(10))?;
    push(c"loader")?;
    let pointer = super::pinned::pinned(3000)?;
    pop()?;
    equal!(
        holders(OTR_HOST_MEMORY, 1)?[0]["label"],
        "loader",
        "who holds pinned memory"
    );
    equal!(
        holders(0, 9)?,
        value!([]),
        "nobody holds memory of the device"
    );
    otr!(host_free, pointer)?;
    let seen = kept(OTR_HOST_MEMORY)?;
    let allocated = seen.iter().find(|event| event["action"] == "alloc");
    let allocated = allocated.cloned().unwrap_or_default();
    equal!(
        (&allocated["requested_size"], &allocated["label"]),
        (&value!(3000), &value!("loader")),
        "the event of the allocation"
    );
    equal!(kept(0)?.len(), 0, "events of the device");
    otr!(memory_history_clear, OTR_HOST_MEMORY)?;
    equal!(
        kept(OTR_HOST_MEMORY)?.len(),
        0,
        "events that were forgotten"
    );
    Ok(otr!(memory_history_stop, OTR_HOST_MEMORY)?)
}

/// A file that is removed in the end.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Self {
        let name = format!("outrigger-conformance-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub(super) fn path(&self) -> Verdict<CString> {
        use std::os::unix::ffi::OsStrExt;
        Ok(CString::new(self.0.as_os_str().as_bytes())?)
    }

    pub(super) fn text(&self) -> Verdict<String> {
        Ok(std::fs::read_to_string(&self.0)?)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that fails may not have made it.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn traces(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let early = alloc(11, stream)?;
    refused(
        otr!(
            memory_trace_start,
            0,
            c"/nowhere/at/all/outrigger.trace".as_ptr()
        ),
        Code::INVALID_ARGUMENT,
        "a trace that cannot be written",
    )?;
    let (ended, file) = (Scratch::new("ended.trace"), Scratch::new("memory.trace"));
    otr!(memory_trace_start, 0, ended.path()?.as_ptr())?;
    free(alloc(22, stream)?)?;
    // Another trace of the device ends the one that is being written.
    otr!(memory_trace_start, 0, file.path()?.as_ptr())?;
    otr!(memory_trace_mark, 0, c"step0".as_ptr())?;
    let address = labelled(c"layer", 3333, stream)?;
    otr!(memory_record_stream, 0, address, super::stream()?)?;
    free(address)?;
    free(early)?;
    otr!(memory_trace_stop, 0)?;
    free(alloc(44, stream)?)?;
    // Without a trace there is nothing to end and nothing to note.
    otr!(memory_trace_stop, 0)?;
    otr!(memory_trace_mark, 0, c"step1".as_ptr())?;

    let written = file.text()?;
    let operations: Vec<&str> = written.lines().skip(1).collect();
    let kinds: Vec<&str> = operations
        .iter()
        .map(|line| line.split(' ').next().unwrap_or_default())
        .filter(|kind| *kind != "#")
        .collect();
    equal!(
        kinds,
        ["m", "a", "r", "f"],
        "operations of the trace\n{written}"
    );
    check!(operations.contains(&"m step0"), "the mark, in {written}");
    check!(
        operations.contains(&"# label layer"),
        "the label, in {written}"
    );
    check!(
        operations
            .iter()
            .any(|line| line.starts_with("a ") && line.contains(" 3333 ")),
        "the allocation, in {written}"
    );
    let before = ended.text()?;
    equal!(
        before.lines().filter(|line| line.starts_with("a ")).count(),
        1,
        "allocations of the trace that was ended\n{before}"
    );
    Ok(())
}

fn a_mark_waits(context: &Context) -> Verdict {
    start(context)?;
    let (first, second) = (stream()?, stream()?);
    let file = Scratch::new("mark.trace");
    otr!(memory_trace_start, 0, file.path()?.as_ptr())?;
    for round in 0..20u8 {
        for stream in [first, second] {
            let address = alloc(MIB, stream)?;
            fill(stream, address, MIB, &[round])?;
            free(address)?;
        }
        otr!(memory_trace_mark, 0, c"step".as_ptr())?;
        check!(
            finished(first)? && finished(second)?,
            "all streams of the device have finished in round {round}"
        );
    }
    Ok(otr!(memory_trace_stop, 0)?)
}
