//! Records of memory through the C ABI: traces, as the reader of this project replays them, and snapshots of several drivers.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::ptr::null_mut;

use outrigger::ffi::*;
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

fn free(device: u32, address: u64) {
    ok(unsafe { otr_memory_free(device, address) });
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
                    ok(unsafe { otr_memory_record_stream(device, address, streams[pick % 2]) });
                }
                free(device, address);
            }
        }
        live.drain(..).for_each(|address| free(device, address));
        ok(unsafe { otr_memory_trace_stop(device) });
        free(device, alloc(device, 1, streams[0])); // not in the trace
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
                Op::Free { id } => free(device, addresses.remove(&id).expect("live")),
                Op::Record { id, stream } => {
                    ok(unsafe {
                        otr_memory_record_stream(device, addresses[&id], stream_of(stream))
                    });
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
        // The rounding of blocks depends a little on which ones are free.
        let (one, other) = (replayed.allocated_bytes.peak, recorded.allocated_bytes.peak);
        assert!(one.abs_diff(other) <= other / 10, "{one} and {other}");
        assert!(recorded.requested_bytes.peak > start.requested_bytes.current);
        free(device, before);
    }
    std::fs::remove_file(&file).expect("it was there");
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
        free(device, address);
    }
    assert!(all["allocator_settings"].is_object());
}
