//! Records of memory through the C ABI: labels, the ring of events, contexts of allocations, traces
//! that are replayed, snapshots. The tests run on devices of each driver under test.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use outrigger::ffi::*;
use outrigger::runtime::Code;
use outrigger_allocator::trace::{Op, Trace};
use outrigger_tests::abi::*;
use serde_json::Value;
use serial_test::serial;

const MIB: u64 = 1 << 20;

/// JSON that a call hands out, parsed and freed.
fn json(make: impl FnOnce(*mut *mut c_char) -> *mut otr_status_t) -> Value {
    let mut string = null_mut();
    ok(make(&mut string));
    let value = serde_json::from_str(&text(string)).expect("JSON");
    unsafe { otr_string_free(string) };
    value
}

fn snapshot(device: u32) -> Value {
    json(|out| unsafe { otr_memory_snapshot(device, out) })
}

/// The kept events of a device.
fn events(device: u32) -> Vec<Value> {
    let snapshot = snapshot(device);
    snapshot["device_traces"][device as usize]
        .as_array()
        .expect("a list")
        .clone()
}

/// The block of a snapshot that starts at an address.
fn block(device: u32, address: u64) -> Value {
    let snapshot = snapshot(device);
    let segments = snapshot["segments"].as_array().expect("a list");
    let mut blocks = segments
        .iter()
        .flat_map(|one| one["blocks"].as_array().expect("a list"));
    blocks
        .find(|one| one["address"] == address)
        .expect("a block")
        .clone()
}

fn free(address: u64) {
    ok(unsafe { otr_memory_free(address) });
}

fn push(label: &CStr) {
    ok(unsafe { otr_memory_label_push(label.as_ptr()) });
}

fn pop() {
    ok(unsafe { otr_memory_label_pop() });
}

fn options(entries: u64) -> otr_history_options_t {
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

/// A history that is on as long as this lives.
struct Recording(u32);

impl Recording {
    fn new(device: u32, options: &otr_history_options_t) -> Self {
        ok(unsafe { otr_memory_history_start(device, options) });
        Self(device)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        ok(unsafe { otr_memory_history_stop(self.0) });
    }
}

/// A limit that is lifted again, also where a test fails.
struct Limit(u32);

impl Limit {
    fn new(device: u32, bytes: u64) -> Self {
        ok(unsafe { otr_memory_set_limit(device, bytes) });
        Self(device)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        ok(unsafe { otr_memory_set_limit(self.0, u64::MAX) });
    }
}

#[test]
#[serial]
fn labels_say_who_holds_memory() {
    for &device in &*DEVICES {
        let stream = stream(device);
        push(c"model");
        push(c"weights");
        let weights = alloc(device, 5 * MIB, stream);
        pop();
        let model = alloc(device, 1000, stream);
        let other = std::thread::scope(|scope| {
            // Labels are a thread's own.
            scope
                .spawn(|| alloc(device, 100, stream))
                .join()
                .expect("no panic")
        });
        pop();
        let label = |address: u64| {
            let mut info: otr_pointer_info_t = unsafe { std::mem::zeroed() };
            info.struct_size = size_of::<otr_pointer_info_t>();
            ok(unsafe { otr_memory_pointer_info(address, &mut info) });
            (!info.label.is_null()).then(|| text(info.label))
        };
        assert_eq!(label(weights + 77).as_deref(), Some("weights"));
        assert_eq!(label(model).as_deref(), Some("model"));
        assert_eq!(label(other), None);
        assert_eq!(block(device, weights)["label"], "weights");
        assert_eq!(block(device, other)["label"], Value::Null);

        let holders = json(|out| unsafe { otr_memory_holders(device, 1, out) });
        assert_eq!(holders.as_array().expect("a list").len(), 1);
        assert_eq!(holders[0]["label"], "weights");
        assert!(holders[0]["bytes"].as_u64().expect("bytes") >= 5 * MIB);
        assert_eq!(holders[0]["blocks"], 1);

        // The error says who holds most.
        let limit = Limit::new(device, held(device).0);
        let mut address = 0;
        fails(
            unsafe { otr_memory_alloc(device, 64 * MIB, stream, &mut address) },
            Code::OUT_OF_MEMORY,
            &["64.00 MiB", "weights", "model"],
        );
        drop(limit);
        for address in [weights, model, other] {
            free(address);
        }
    }
    let status = std::thread::spawn(|| outcome(unsafe { otr_memory_label_pop() }));
    let (code, message) = status.join().expect("no panic").expect_err("no label");
    assert_eq!(code, Code::INVALID_ARGUMENT);
    assert!(message.contains("no label"), "{message}");
}

#[test]
#[serial]
fn the_ring_keeps_the_last_events() {
    for &device in &*DEVICES {
        let stream = stream(device);
        let recording = Recording::new(device, &options(12));
        for size in 1..=20 {
            free(alloc(device, size * 1000, stream));
        }
        let kept = events(device);
        assert_eq!(kept.len(), 12);
        let mut last_time = 0;
        for (index, event) in kept.iter().enumerate() {
            let action = ["alloc", "free_requested", "free_completed"][index % 3];
            assert_eq!(event["action"], action, "{event}");
            assert_eq!(event["requested_size"], (17 + index as u64 / 3) * 1000);
            assert_eq!(event["stream"], stream);
            assert!(event["size"].as_u64() >= event["requested_size"].as_u64());
            assert!(event["addr"].as_u64() > Some(0));
            let time = event["time_us"].as_u64().expect("a time");
            assert!(time >= last_time);
            last_time = time;
        }

        // A request that nobody can serve is an event, too, and so are segments.
        let mut address = 0;
        fails(
            unsafe { otr_memory_alloc(device, 1 << 60, stream, &mut address) },
            Code::OUT_OF_MEMORY,
            &[],
        );
        let oom = events(device).last().expect("an event").clone();
        assert_eq!(
            (&oom["action"], oom["size"].as_u64()),
            (&"oom".into(), Some(1 << 60))
        );
        assert!(oom["device_free"].is_u64() && oom["addr"].is_null());
        ok(unsafe { otr_memory_history_clear(device) });
        assert!(events(device).is_empty());
        held(device);
        free(alloc(device, 300 * MIB, stream));
        let actions = |device| -> Vec<_> {
            let events = events(device);
            events
                .iter()
                .map(|one| one["action"].as_str().expect("a name").to_owned())
                .collect()
        };
        let seen = actions(device);
        assert!(
            seen.iter().any(|one| one.starts_with("segment_")),
            "{seen:?}"
        );

        // With no events kept, live blocks are known all the same.
        ok(unsafe { otr_memory_history_start(device, &options(0)) });
        push(c"kept");
        let address = alloc(device, 10, stream);
        pop();
        assert!(events(device).is_empty());
        assert_eq!(block(device, address)["label"], "kept");
        free(address);
        drop(recording);
        free(alloc(device, 10, stream));
        assert!(events(device).is_empty());
    }
}

#[test]
fn wrong_options_are_named() {
    let device = DEVICES[0];
    let start = |options| unsafe { otr_memory_history_start(device, &options) };
    let small = otr_history_options_t {
        struct_size: 8,
        ..options(1)
    };
    fails(start(small), Code::INVALID_ARGUMENT, &["struct_size is 8"]);
    let flags = otr_history_options_t {
        flags: 6,
        ..options(1)
    };
    fails(start(flags), Code::INVALID_ARGUMENT, &["flags", "0x6"]);
    fails(
        unsafe { otr_memory_trace_start(device, c"/nowhere/at/all.trace".as_ptr()) },
        Code::INVALID_ARGUMENT,
        &["/nowhere/at/all.trace", "cannot be written"],
    );
}

/// A host that captures contexts: their number is that of the capture.
#[derive(Default)]
struct Contexts {
    captured: AtomicU64,
    alive: AtomicI64,
    stream: u64,
    device: u32,
}

unsafe extern "C" fn capture(user: *mut c_void) -> u64 {
    let contexts = unsafe { &*user.cast::<Contexts>() };
    // It may use the device's memory itself, without end.
    free(alloc(contexts.device, 1, contexts.stream));
    contexts.alive.fetch_add(1, Ordering::Relaxed);
    contexts.captured.fetch_add(1, Ordering::Relaxed) + 1
}

unsafe extern "C" fn release(user: *mut c_void, context: u64) {
    let contexts = unsafe { &*user.cast::<Contexts>() };
    assert!(context >= 1 && context <= contexts.captured.load(Ordering::Relaxed));
    contexts.alive.fetch_sub(1, Ordering::Relaxed);
}

unsafe extern "C" fn frames(
    _user: *mut c_void,
    context: u64,
    frame: otr_frame_fn,
    to: *mut c_void,
) {
    let frame = frame.expect("a function");
    let file = CString::new(format!("step{context}.py")).expect("no NUL");
    unsafe { frame(to, file.as_ptr(), context as u32, c"forward".as_ptr()) };
    unsafe { frame(to, std::ptr::null(), 0, c"main".as_ptr()) };
}

#[test]
#[serial]
fn contexts_tell_where_memory_was_allocated_and_are_given_back() {
    for &device in &*DEVICES {
        let contexts: &Contexts = Box::leak(Box::new(Contexts {
            stream: stream(device),
            device,
            ..Contexts::default()
        }));
        let stream = contexts.stream;
        let with = |flags, entries| otr_history_options_t {
            flags,
            capture: Some(capture),
            release: Some(release),
            frames: Some(frames),
            user: std::ptr::from_ref(contexts).cast_mut().cast(),
            ..options(entries)
        };
        let recording = Recording::new(device, &with(0, 100));
        let (first, second) = (alloc(device, 10, stream), alloc(device, 20, stream));
        assert_eq!(contexts.captured.load(Ordering::Relaxed), 2);
        let told = block(device, second);
        assert_eq!(
            told["frames"],
            serde_json::json!([
                {"filename": "step2.py", "line": 2, "name": "forward"},
                {"filename": "", "line": 0, "name": "main"},
            ])
        );
        free(first);
        for freed in events(device).iter().rev().take(2) {
            let action = freed["action"].as_str().expect("a name");
            assert!(action.starts_with("free_"), "{freed}");
            assert_eq!(freed["frames"][0]["line"], 1, "where it was allocated");
        }
        assert_eq!(
            contexts.captured.load(Ordering::Relaxed),
            2,
            "frees have none"
        );

        // Frees have their own on demand; what leaves the ring is given back.
        ok(unsafe { otr_memory_history_start(device, &with(OTR_HISTORY_CONTEXT_OF_FREES, 3)) });
        free(second);
        let requested = events(device)[1].clone();
        assert_eq!(requested["action"], "free_requested");
        assert_eq!(requested["frames"][0]["line"], 3, "where it was freed");
        for _ in 0..50 {
            free(alloc(device, 10, stream));
        }
        let alive = contexts.alive.load(Ordering::Relaxed);
        assert!(
            alive <= 10,
            "{alive} contexts for a ring of 3 events and no live block"
        );
        let live = alloc(device, 10, stream);
        drop(recording);
        assert_eq!(contexts.alive.load(Ordering::Relaxed), 0, "device {device}");
        free(live);
    }
}

#[test]
#[serial]
fn a_trace_replays_to_the_same_peaks() {
    let file = std::env::temp_dir().join(format!("outrigger-{}.trace", std::process::id()));
    let path = CString::new(file.to_str().expect("UTF-8")).expect("no NUL");
    for &device in &*DEVICES {
        let streams = [stream(device), stream(device)];
        let before = alloc(device, 4 * MIB, streams[0]); // not in the trace
        let fresh = || {
            held(device);
            ok(unsafe { otr_memory_reset_peak(device) });
            stats(device)
        };
        let start = fresh();
        ok(unsafe { otr_memory_trace_start(device, path.as_ptr()) });
        let mut live = Vec::new();
        let mut random = 12345_u64;
        for step in 0..400 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let pick = (random >> 33) as usize;
            if step % 100 == 0 {
                ok(unsafe { otr_memory_trace_mark(device, c"step".as_ptr()) });
            }
            if pick % 5 < 3 || live.is_empty() {
                let size = 1 + (random >> 20) % (3 * MIB);
                live.push(alloc(device, size, streams[pick % 2]));
            } else {
                let address = live.swap_remove(pick % live.len());
                if pick.is_multiple_of(7) {
                    ok(unsafe { otr_memory_record_stream(address, streams[pick % 2]) });
                }
                free(address);
            }
        }
        live.drain(..).for_each(free);
        ok(unsafe { otr_memory_trace_stop(device) });
        free(alloc(device, 1, streams[0])); // not in the trace
        let recorded = stats(device);

        let input = std::io::BufReader::new(std::fs::File::open(&file).expect("the trace"));
        let trace = Trace::load(input).expect("a well-formed trace");
        let marks = trace.ops.iter().filter(|op| matches!(op, Op::Mark { .. }));
        assert_eq!(marks.count(), 4);
        fresh();
        let mut addresses = HashMap::new();
        // Traces number streams in the order in which they come.
        let first = match trace.ops.iter().find(|op| matches!(op, Op::Alloc { .. })) {
            Some(Op::Alloc { stream, .. }) => *stream,
            _ => panic!("nothing was recorded"),
        };
        let stream_of = |id| streams[usize::from(id != first)];
        for op in &trace.ops {
            match *op {
                Op::Alloc { id, bytes, stream } => {
                    addresses.insert(id, alloc(device, bytes, stream_of(stream)));
                }
                Op::Free { id } => free(addresses.remove(&id).expect("live")),
                Op::Record { id, stream } => {
                    ok(unsafe { otr_memory_record_stream(addresses[&id], stream_of(stream)) });
                }
                Op::Mark { .. } => ok(unsafe { otr_device_synchronize(device) }),
                Op::Label { .. } | Op::OutOfMemory { .. } => {}
            }
        }
        assert!(
            addresses.is_empty(),
            "every allocation was freed in the trace"
        );
        let replayed = stats(device);
        assert_eq!(replayed.requested_bytes.peak, recorded.requested_bytes.peak);
        // How blocks are rounded depends a little on which ones are free.
        let (one, other) = (replayed.allocated_bytes.peak, recorded.allocated_bytes.peak);
        assert!(one.abs_diff(other) <= other / 10, "{one} and {other}");
        assert!(recorded.requested_bytes.peak > start.requested_bytes.current);
        free(before);
    }
    std::fs::remove_file(&file).expect("it was there");
}

#[test]
#[serial]
fn events_of_threads_are_told_in_order_for_each_address() {
    for &device in &*DEVICES {
        let recording = Recording::new(device, &options(100_000));
        let shared = stream(device);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                scope.spawn(move || {
                    let own = stream(device);
                    push(&CString::new(format!("thread {thread}")).expect("no NUL"));
                    let mut live = Vec::new();
                    for step in 0..500_u64 {
                        let size = 1 + (thread * 7919 + step * 104_729) % 100_000;
                        let stream = if step % 3 == 0 { shared } else { own };
                        live.push(alloc(device, size, stream));
                        if step % 2 == 1 {
                            free(live.swap_remove((step % 5) as usize % live.len()));
                        }
                    }
                    live.into_iter().for_each(free);
                    pop();
                });
            }
        });
        let mut live = HashMap::new();
        let (mut allocs, mut last) = (0, HashMap::new());
        for event in events(device) {
            let action = event["action"].as_str().expect("a name").to_owned();
            let address = event["addr"].as_u64().expect("an address");
            let before = last.get(&address).map(String::as_str);
            match action.as_str() {
                "alloc" => {
                    assert!(matches!(before, None | Some("free_completed")), "{event}");
                    allocs += 1;
                    let label = event["label"].as_str().expect("a label").to_owned();
                    live.insert(address, (label, event["size"].clone()));
                }
                "free_requested" => {
                    assert_eq!(before, Some("alloc"), "{event}");
                    let (label, size) = live.remove(&address).expect("live");
                    assert_eq!(
                        (event["label"].as_str(), &event["size"]),
                        (Some(&*label), &size)
                    );
                }
                "free_completed" => assert_eq!(before, Some("free_requested"), "{event}"),
                _ => continue,
            }
            last.insert(address, action);
        }
        assert_eq!(allocs, 2000);
        assert!(live.is_empty());
        drop(recording);
    }
}

#[test]
#[serial]
fn a_snapshot_of_all_devices_adds_up() {
    let kept: Vec<_> = DEVICES
        .iter()
        .map(|&device| alloc(device, 3 * MIB + 5, stream(device)))
        .collect();
    let all = json(|out| unsafe { otr_memory_snapshot(OTR_ALL_DEVICES, out) });
    for (&device, &address) in DEVICES.iter().zip(&kept) {
        let figures = stats(device);
        let segments: Vec<_> = all["segments"]
            .as_array()
            .expect("a list")
            .iter()
            .filter(|one| one["device"] == device)
            .collect();
        let sum = |name: &str| -> u64 {
            segments
                .iter()
                .map(|one| one[name].as_u64().expect("bytes"))
                .sum()
        };
        assert_eq!(sum("allocated_size"), figures.allocated_bytes.current);
        assert_eq!(sum("active_size"), figures.active_bytes.current);
        assert_eq!(sum("requested_size"), figures.requested_bytes.current);
        assert!(sum("total_size") >= figures.allocated_bytes.current);
        for segment in &segments {
            let blocks = segment["blocks"].as_array().expect("a list");
            let size: u64 = blocks
                .iter()
                .map(|one| one["size"].as_u64().expect("bytes"))
                .sum();
            assert_eq!(size, segment["total_size"], "blocks leave no gaps");
            assert!(
                ["small", "large"].contains(&segment["segment_type"].as_str().expect("a type"))
            );
        }
        let block = block(device, address);
        assert_eq!(
            (&block["state"], block["requested_size"].as_u64()),
            (&"active_allocated".into(), Some(3 * MIB + 5))
        );
        free(address);
    }
    assert!(all["allocator_settings"].is_object());
}
