//! What differs between two runs of a recording, or between a run and what was recorded.

use std::fmt;

use outrigger_device::Code;

use super::player::{CallResult, Run};
use super::recording::{Recording, Step};
use crate::Entry;

/// The first difference between two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Of which step.
    pub step: usize,
    /// The number of the call in the first recording.
    pub number: u64,
    /// Its entry.
    pub entry: Entry,
    /// What differs.
    pub kind: DifferenceKind,
}

/// What differs: expected first, found second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DifferenceKind {
    /// The codes that the call answered.
    Code(i32, i32),
    /// What a copy gave: the first byte that differs, and both of its values; and of how many bytes how many
    /// differ.
    Bytes {
        /// The first byte that differs.
        at: usize,
        /// Its values, expected and found.
        values: (u8, u8),
        /// How many bytes differ.
        differing: usize,
        /// Of how many.
        of: usize,
    },
    /// The failures that a host call was given, one for each time it was called.
    HostCalls(Vec<i32>, Vec<i32>),
}

impl DifferenceKind {
    /// Whether both are differences of the same kind.
    pub fn same_kind(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}, {}: ", self.number, self.entry.name())?;
        match &self.kind {
            DifferenceKind::Code(expected, found) => write!(
                f,
                "{} was expected, and it answered {}",
                Code(*expected).name(),
                Code(*found).name()
            ),
            DifferenceKind::Bytes {
                at,
                values: (expected, found),
                differing,
                of,
            } => write!(
                f,
                "{differing} of {of} bytes differ; byte {at} is {found:#04x} and should be {expected:#04x}"
            ),
            DifferenceKind::HostCalls(expected, found) => write!(
                f,
                "the host call was called {} times with {expected:?} upstream, and now {} times with \
                 {found:?}",
                expected.len(),
                found.len()
            ),
        }
    }
}

/// Compares a run with what was recorded. What was not replayed is left out, and so is memory that work
/// which was not replayed may have written.
pub fn compare(recording: &Recording, run: &Run) -> Option<Difference> {
    let recorded = |step: &Step| CallResult {
        code: step.code,
        skipped: None,
        read: step.destination.first().cloned(),
        called: step.ran.iter().map(|(upstream, _)| *upstream).collect(),
        uncertain: false,
    };
    let pairs = recording.steps.iter().zip(&run.results);
    let pairs = pairs.map(|(step, found)| (recorded(step), found));
    first(recording, pairs, false)
}

/// Compares a run with one on a driver that is right, and that left out the same work.
pub fn compare_runs(recording: &Recording, expected: &Run, found: &Run) -> Option<Difference> {
    let pairs = expected.results.iter().cloned().zip(&found.results);
    first(recording, pairs, true)
}

fn first<'a>(
    recording: &Recording,
    pairs: impl Iterator<Item = (CallResult, &'a CallResult)>,
    both_replayed: bool,
) -> Option<Difference> {
    let differing = |(at, (expected, found)): (usize, (CallResult, &CallResult))| {
        let step = recording.steps.get(at)?;
        let kind = difference(step, &expected, found, both_replayed)?;
        Some(Difference {
            step: at,
            number: step.number,
            entry: step.entry,
            kind,
        })
    };
    pairs.enumerate().find_map(differing)
}

fn difference(
    step: &Step,
    expected: &CallResult,
    found: &CallResult,
    both_replayed: bool,
) -> Option<DifferenceKind> {
    let (Some(expected_code), Some(found_code)) = (expected.code, found.code) else {
        return None;
    };
    // Work may be further now than it was: that is no matter of right or wrong.
    let is_query = matches!(
        step.entry,
        Entry::queue_query | Entry::event_query | Entry::event_time
    );
    if expected_code != found_code && !(is_query && expected_code == Code::NOT_READY.0) {
        return Some(DifferenceKind::Code(expected_code, found_code));
    }
    if step.entry == Entry::host_call && expected.called != found.called {
        let (expected, found) = (expected.called.clone(), found.called.clone());
        return Some(DifferenceKind::HostCalls(expected, found));
    }
    let (Some(right), Some(read)) = (&expected.read, &found.read) else {
        return None;
    };
    if found.uncertain && !both_replayed {
        return None;
    }
    let mut differing = right
        .iter()
        .zip(read)
        .enumerate()
        .filter(|(_, (right, read))| right != read);
    let (at, (right_byte, read_byte)) = differing.next()?;
    Some(DifferenceKind::Bytes {
        at,
        values: (*right_byte, *read_byte),
        differing: differing.count() + 1,
        of: right.len(),
    })
}
