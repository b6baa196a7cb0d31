//! Finds differences between two runs of a recording, or between a run and the recorded results.

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
    /// The entry of the call.
    pub entry: Entry,
    /// The difference.
    pub kind: DifferenceKind,
}

/// A difference: expected first, found second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DifferenceKind {
    /// The codes that the call answered.
    Code(i32, i32),
    /// The codes that the call wrote into an outcome.
    Outcome(i32, i32),
    /// The bytes that a copy gave: the first one that differs, with both of its values, and the number of
    /// those that differ.
    Bytes {
        /// The first byte that differs.
        at: usize,
        /// The values of that byte, expected and found.
        values: (u8, u8),
        /// The number of bytes that differ.
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
                "{} was expected, but it answered {}",
                Code(*expected).name(),
                Code(*found).name()
            ),
            DifferenceKind::Outcome(expected, found) => write!(
                f,
                "the outcome {} was expected, but it was {}",
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
        outcome: step.outcome(),
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
        let kind = difference(recording, at, &expected, found, both_replayed)?;
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
    recording: &Recording,
    at: usize,
    expected: &CallResult,
    found: &CallResult,
    both_replayed: bool,
) -> Option<DifferenceKind> {
    let step = recording.steps.get(at)?;
    let (Some(expected_code), Some(found_code)) = (expected.code, found.code) else {
        return None;
    };
    if expected_code != found_code {
        return Some(DifferenceKind::Code(expected_code, found_code));
    }
    // Work may be further now than it was: that is no matter of right or wrong.
    if let (Some(right), Some(told)) = (expected.outcome, found.outcome)
        && right != told
        && right != Code::NOT_READY.0
    {
        return Some(DifferenceKind::Outcome(right, told));
    }
    let was_to_come = || !both_replayed && expected.called.is_empty() && !awaited(recording, at);
    if step.entry == Entry::host_call && expected.called != found.called && !was_to_come() {
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

/// Whether a recording shows that the work of a step was waited for: of its queue, or of all by closing
/// the driver. The process may have ended before other work ran.
fn awaited(recording: &Recording, at: usize) -> bool {
    let (before, after) = recording.steps.split_at(at + 1);
    let queue = before[at].arguments.first();
    after.iter().any(|later| match later.entry {
        Entry::close => later.code.is_some(),
        Entry::queue_synchronize => {
            later.arguments.first() == queue && later.code == Some(Code::OK.0)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Value;

    fn step(entry: Entry, queue: u32) -> Step {
        Step {
            number: 0,
            entry,
            arguments: vec![Value::Object(queue)],
            code: Some(0),
            outputs: Vec::new(),
            ran: Vec::new(),
            source: Vec::new(),
            destination: Vec::new(),
        }
    }

    /// Whether it is a difference that a host call of queue 1, which was never called before these steps were
    /// recorded, is called now.
    fn differs(later: Step) -> bool {
        let code = later.code;
        let recording = Recording {
            steps: vec![step(Entry::host_call, 1), later],
            ..Recording::default()
        };
        let result = |code, called: &[i32]| CallResult {
            code,
            outcome: None,
            skipped: None,
            read: None,
            called: called.to_vec(),
            uncertain: false,
        };
        let run = Run {
            results: vec![result(Some(0), &[0]), result(code, &[])],
        };
        compare(&recording, &run).is_some()
    }

    #[test]
    fn only_what_was_waited_for_must_have_been_called() {
        assert!(differs(step(Entry::queue_synchronize, 1)));
        assert!(differs(step(Entry::close, 0)));
        assert!(!differs(step(Entry::queue_synchronize, 2)));
        assert!(!differs(step(Entry::queue_query, 1)));
        let refused = Step {
            code: Some(Code::CAPTURE.0),
            ..step(Entry::queue_synchronize, 1)
        };
        assert!(!differs(refused));
    }
}
