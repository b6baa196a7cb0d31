//! Snapshots that begin in the middle of a program's life.
//!
//! The tests must never depend on how a page shows snapshots.

use super::super::story::What;
use super::*;

fn story(json: serde_json::Value) -> Story {
    let snapshot = serde_json::from_value(json).expect("a snapshot");
    tell(snapshot, 0).expect("of device 0")
}

/// Bytes handed out and bytes held after each operation.
fn course(story: &Story) -> Vec<(u64, u64)> {
    let (mut live, mut held, mut blocks, mut extents) = (0, 0, 0, 0);
    let mut course = vec![(0, 0); story.ops as usize + 1];
    let mut next = 0;
    for op in 0..=story.ops {
        while let Some(event) = story.events.get(next).filter(|event| event.op == op) {
            match event.what {
                What::Alloc => {
                    live += story.blocks[blocks].size;
                    blocks += 1;
                }
                What::Done(block) => live -= story.blocks[block as usize].size,
                What::Map => {
                    held += story.extents[extents].size;
                    extents += 1;
                }
                What::Unmap(extent) => held -= story.extents[extent as usize].size,
                What::Freed(_) | What::Mark | What::Failure => {}
            }
            next += 1;
        }
        course[op as usize] = (live, held);
    }
    course
}

#[test]
fn what_was_there_before_the_history_is_told() {
    let story = story(serde_json::json!({
        "segments": [
            {"device": 0, "address": 0x10000, "total_size": 0x8000, "stream": 0, "blocks": [
                {"size": 0x1000, "requested_size": 0xf00, "state": "active_allocated"}, // older
                {"size": 0x2000, "requested_size": 0x2000, "state": "active_allocated"}, // of the history
                {"size": 0x5000, "state": "inactive"}]},
        ],
        "device_traces": [[
            {"action": "free_requested", "addr": 0x40000, "size": 0x400, "time_us": 10}, // older
            {"action": "free_completed", "addr": 0x40000, "size": 0x400, "time_us": 11},
            {"action": "segment_free", "addr": 0x40000, "size": 0x4000, "time_us": 12}, // older
            {"action": "alloc", "addr": 0x11000, "size": 0x2000, "time_us": 13},
            {"action": "oom", "device_free": 77, "size": 0x900000, "time_us": 14},
        ]],
    }));
    let before = 0x1000 + 0x400;
    assert_eq!(
        course(&story),
        [
            (before, 0xc000),
            (before, 0xc000), // freed, not done
            (0x1000, 0xc000),
            (0x1000, 0x8000),
            (0x3000, 0x8000),
            (0x3000, 0x8000),
        ]
    );
    assert_eq!(story.times, [0, 1, 2, 3, 4]);
    assert_eq!(
        (story.failures[0].bytes, story.failures.len()),
        (0x900000, 1)
    );
    assert_eq!(story.figures().peak_reserved, 0xc000);
}

#[test]
fn a_snapshot_without_history_is_one_state() {
    let story = story(
        serde_json::json!({"segments": [{"address": 0, "total_size": 100, "blocks": [
        {"size": 60, "state": "active_allocated"},
        {"size": 30, "state": "active_pending_free"},
        {"size": 10, "state": "inactive"}]}]}),
    );
    assert_eq!((story.ops, story.blocks.len()), (0, 2));
    assert_eq!(story.figures().peak_requested, 60);
}

#[test]
fn segments_that_grow_and_shrink_keep_their_rest() {
    let story = story(serde_json::json!({
        "segments": [{"address": 0x1000, "total_size": 0x3000, "blocks": []}],
        "device_traces": [[
            {"action": "segment_map", "addr": 0x2000, "size": 0x2000},
            {"action": "segment_map", "addr": 0x4000, "size": 0x2000},
            {"action": "segment_unmap", "addr": 0x3000, "size": 0x2000}, // half of both
            {"action": "segment_unmap", "addr": 0x5000, "size": 0x1000},
            {"action": "segment_map", "addr": 0x3000, "size": 0x1000},
        ]],
    }));
    let held: Vec<_> = course(&story).iter().map(|&(_, held)| held).collect();
    assert_eq!(held, [0x1000, 0x3000, 0x5000, 0x3000, 0x2000, 0x3000]);
    // Addresses that are contiguous lie contiguously in the picture.
    let places: Vec<_> = story
        .extents
        .iter()
        .map(|extent| extent.place as i64 - extent.address as i64)
        .collect();
    assert!(places.iter().all(|&place| place == places[0]), "{places:?}");
}

#[test]
fn a_stack_is_named_by_the_users_own_code() {
    let named = |json| {
        serde_json::from_value::<form::Named>(json)
            .expect("frames")
            .0
    };
    let frames = serde_json::json!([
        {"filename": "??", "line": 0, "name": "c10::alloc"},
        {"filename": "/lib/torch/nn/linear.py", "line": 9, "name": "forward"},
        {"filename": "/app/model.py", "line": 42, "name": "block"},
        {"filename": "/app/train.py", "line": 7, "name": "main"},
    ]);
    assert_eq!(named(frames).as_deref(), Some("block (model.py:42)"));
    assert_eq!(named(serde_json::json!([])), None);
}
