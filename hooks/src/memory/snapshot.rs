//! Snapshots: all segments, blocks and kept events of devices as JSON. The names are those of PyTorch's memory
//! snapshots, so that PyTorch's viewer and `outrigger memory` read them.
//!
//! Functions of the host are called with no lock held: contexts tell their frames after everything was copied.

use std::collections::HashMap;
use std::sync::Arc;

use outrigger_allocator::{BlockNote, BlockState, Context, HistoryEntry, HistoryKind, SegmentInfo};
use serde::Serialize;

use crate::memory::limit::process_memory_limit;
use crate::pinned::{HostMemory, made_host_memory};
use crate::{Device, Pool, Result, runtime};

#[derive(Serialize)]
struct Snapshot {
    segments: Vec<Segment>,
    /// The events of each device, by its number.
    device_traces: Vec<Vec<Trace>>,
    /// The segments of pinned host memory.
    host_segments: Vec<Segment>,
    host_traces: Vec<Trace>,
    allocator_settings: serde_json::Value,
    external_annotations: [(); 0],
}

#[derive(Serialize)]
struct Segment {
    device: u32,
    address: u64,
    total_size: u64,
    allocated_size: u64,
    active_size: u64,
    requested_size: u64,
    stream: u64,
    segment_type: &'static str,
    segment_pool_id: (u64, u64),
    is_expandable: bool,
    /// Whether the segment shows memory of other segments at other addresses. Its bytes do not count.
    is_view: bool,
    frames: [(); 0],
    blocks: Vec<Block>,
}

#[derive(Serialize)]
struct Block {
    address: u64,
    size: u64,
    requested_size: u64,
    state: &'static str,
    /// Whether a view shows this memory elsewhere, where it is in use. The bytes count here, but nobody uses this
    /// address.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_lent: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<Arc<str>>,
    frames: Arc<[FrameText]>,
}

#[derive(Serialize)]
struct Trace {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_free: Option<u64>,
    size: u64,
    requested_size: u64,
    stream: u64,
    time_us: u64,
    pool_id: (u64, u64),
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<Arc<str>>,
    frames: Arc<[FrameText]>,
}

#[derive(Serialize)]
struct FrameText {
    filename: Box<str>,
    line: u32,
    name: Box<str>,
}

/// The frames of each context. Thousands of events share few contexts, and a host may take long to tell one.
#[derive(Default)]
struct Frames {
    known: HashMap<(usize, u64), Arc<[FrameText]>>,
    none: Option<Arc<[FrameText]>>,
}

impl Frames {
    fn of(&mut self, context: Option<&Context>) -> Arc<[FrameText]> {
        let Some(context) = context else {
            return Arc::clone(self.none.get_or_insert_with(|| Arc::from([])));
        };
        let frames = self.known.entry(context.identity()).or_insert_with(|| {
            let mut frames = Vec::new();
            context.frames(&mut |frame| {
                frames.push(FrameText {
                    filename: frame.file.into(),
                    line: frame.line,
                    name: frame.name.into(),
                });
            });
            frames.into()
        });
        Arc::clone(frames)
    }
}

/// All segments, blocks and kept events of one device, or of all devices (`None`), as JSON with PyTorch's names:
/// `segments`, `device_traces` (a list for each device, by number) and `allocator_settings`. For all devices there are
/// also `host_segments` and `host_traces`, those of pinned memory. Not in PyTorch's snapshots: the `label` of blocks
/// and events, and `is_view` and `is_lent` for memory that is at several addresses.
///
/// # Errors
/// `INVALID_DEVICE`.
pub fn snapshot_json(device: Option<u32>) -> Result<String> {
    let runtime = runtime()?;
    let devices: Vec<_> = match device {
        Some(index) => vec![runtime.device(index)?],
        None => runtime.devices().collect(),
    };
    let host = made_host_memory().filter(|_| device.is_none());
    let traces = device.map_or(runtime.device_count(), |_| 0);
    Ok(json(&devices, traces as usize, host, |_| true))
}

impl Pool {
    /// The pool's segments and blocks as JSON; see [`snapshot_json`].
    pub fn snapshot_json(&self) -> String {
        let pool = Some(self.memory().pool());
        json(&[self.device()], 0, None, |segment| segment.pool == pool)
    }
}

fn json(
    devices: &[&Device],
    traces: usize,
    host: Option<&HostMemory>,
    wanted: impl Fn(&SegmentInfo) -> bool,
) -> String {
    let mut snapshot = Snapshot {
        segments: Vec::new(),
        device_traces: Vec::new(),
        host_segments: Vec::new(),
        host_traces: Vec::new(),
        allocator_settings: settings(devices),
        external_annotations: [],
    };
    let mut frames = Frames::default();
    for device in devices {
        let notes = device.history().notes();
        let segments = device.memory_snapshot().segments;
        let segments = segments.iter().filter(|segment| wanted(segment));
        snapshot
            .segments
            .extend(segments.map(|one| segment(device.index(), one, &notes, &mut frames)));
        let index = device.index() as usize;
        snapshot.device_traces.resize_with(index + 1, Vec::new);
        let entries = device.history().entries();
        snapshot.device_traces[index] = entries.iter().map(|one| trace(one, &mut frames)).collect();
    }
    let traces = traces.max(snapshot.device_traces.len());
    snapshot.device_traces.resize_with(traces, Vec::new);
    if let Some(host) = host {
        let notes = host.history().notes();
        let segments = host.snapshot().segments;
        let segments = segments.iter();
        snapshot.host_segments = segments
            .map(|one| segment(0, one, &notes, &mut frames))
            .collect();
        let entries = host.history().entries();
        snapshot.host_traces = entries.iter().map(|one| trace(one, &mut frames)).collect();
    }
    // The snapshot has only strings and numbers, so this cannot fail.
    serde_json::to_string(&snapshot).unwrap_or_default()
}

fn segment(
    device: u32,
    segment: &SegmentInfo,
    notes: &HashMap<u64, BlockNote>,
    frames: &mut Frames,
) -> Segment {
    let bytes = |states: &[BlockState]| {
        let counted = segment.blocks.iter();
        let counted = counted.filter(|block| states.contains(&block.state));
        counted.map(|block| block.size).sum()
    };
    Segment {
        device,
        address: segment.address,
        total_size: segment.size,
        allocated_size: bytes(&[BlockState::Allocated]),
        active_size: bytes(&[BlockState::Allocated, BlockState::Pending]),
        requested_size: segment.blocks.iter().map(|block| block.requested).sum(),
        stream: segment.stream.0,
        segment_type: if segment.large { "large" } else { "small" },
        segment_pool_id: (0, segment.pool.map_or(0, |pool| pool.get())),
        is_expandable: segment.expandable,
        is_view: segment.view,
        frames: [],
        blocks: segment
            .blocks
            .iter()
            .map(|block| {
                // The note may be of a block that was freed between the copies of notes and segments.
                let note = notes
                    .get(&block.address)
                    .filter(|_| block.state != BlockState::Free);
                Block {
                    address: block.address,
                    size: block.size,
                    requested_size: block.requested,
                    state: block.state.name(),
                    is_lent: block.state == BlockState::Lent,
                    label: note.and_then(|note| note.label).map(|label| label.name()),
                    frames: frames.of(note.and_then(|note| note.context.as_ref())),
                }
            })
            .collect(),
    }
}

fn trace(entry: &HistoryEntry, frames: &mut Frames) -> Trace {
    let oom = entry.kind == HistoryKind::OutOfMemory;
    let (at, block) = (entry.block.address, &entry.block);
    Trace {
        action: entry.kind.name(),
        addr: (!oom).then_some(at),
        device_free: oom.then_some(at),
        size: block.size,
        requested_size: block.requested,
        stream: block.stream.0,
        time_us: entry.time_ns / 1000,
        pool_id: (0, block.pool.map_or(0, |pool| pool.get())),
        label: entry.label.map(|label| label.name()),
        frames: frames.of(entry.context.as_ref()),
    }
}

/// The settings of the allocators, under the names of `OUTRIGGER_ALLOC`.
fn settings(devices: &[&Device]) -> serde_json::Value {
    let limits: serde_json::Map<_, _> = devices
        .iter()
        .filter(|device| device.memory_limit() != u64::MAX)
        .map(|device| (device.index().to_string(), device.memory_limit().into()))
        .collect();
    serde_json::json!({
        "OUTRIGGER_ALLOC": std::env::var("OUTRIGGER_ALLOC").unwrap_or_default(),
        "limits": limits,
        "process_limit": match process_memory_limit() {
            u64::MAX => None,
            bytes => Some(bytes),
        },
    })
}
