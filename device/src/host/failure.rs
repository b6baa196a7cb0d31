//! The failures of a queue's timeline: from which point to which point its work counts as failed, and
//! why. A failure stays on record as long as an event may be asked for it.

use std::ffi::{CStr, c_char};

use super::fault::Fault;
use super::sync::{AtomicUsize, Mutex, Ordering};
use crate::Code;

/// The first failure of a stretch of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) code: Code,
    /// The label of the launch; NULL if it had none, or was none. Lives as long as the process.
    pub(super) label: *const c_char,
    /// The number of the failed command in its queue, from 1.
    pub(super) submission: u64,
    /// The number of the queue where it happened.
    pub(super) queue: u64,
}

// SAFETY: the label is a constant string of the process.
unsafe impl Send for Failure {}

impl Failure {
    /// The failure as the outcome of queue `here`.
    #[cold]
    pub(super) fn fault(&self, here: u64) -> Fault {
        let label = if self.label.is_null() {
            "".into()
        } else {
            // SAFETY: not NULL; NUL-terminated and static by the contract of otr_launch_t.
            unsafe { CStr::from_ptr(self.label) }.to_string_lossy()
        };
        let what = if label.is_empty() {
            "a command".into()
        } else {
            format!("`{label}`")
        };
        let origin = if self.queue == here {
            String::new()
        } else {
            format!(" on queue {}, which this work waited for,", self.queue)
        };
        let text = format!(
            "{what}{origin} failed: {} (code {})",
            self.code, self.code.0
        );
        Fault::of_work(self.code, text, label.into_owned(), self.submission)
    }
}

/// So many failures are on record before the first look for those that nobody names.
const MANY: usize = 64;

/// A stretch of failed work, both ends included.
#[derive(Debug)]
struct Interval {
    /// How many there were before it.
    number: usize,
    first: u64,
    /// Until the failure is cleared: the point that the queue has reached since.
    last: u64,
    failure: Failure,
}

/// The failures of a timeline.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// How often a failure began or was cleared. It is odd while a failure is open, that is, not
    /// cleared. As one number it shows both facts of the same moment. A timeline without failures costs
    /// one load.
    turns: AtomicUsize,
    list: Mutex<List>,
}

#[derive(Debug)]
struct List {
    /// By their ends. The newest is never forgotten, and only it may be open.
    intervals: Vec<Interval>,
    /// At so many it is asked who names them.
    limit: usize,
}

impl Default for List {
    fn default() -> Self {
        Self {
            intervals: Vec::new(),
            limit: MANY,
        }
    }
}

impl Failures {
    /// Whether the queue has a failure that was not cleared.
    #[inline]
    fn open(&self) -> bool {
        self.turns.load(Ordering::Relaxed) % 2 == 1
    }

    /// How many failures were cleared, for [`since`](Self::since).
    #[inline]
    pub(super) fn mark(&self) -> usize {
        self.turns.load(Ordering::Acquire) / 2
    }

    /// Whether there was no failure since `mark`.
    #[inline]
    pub(super) fn none_since(&self, mark: usize) -> bool {
        self.turns.load(Ordering::Acquire) <= 2 * mark
    }

    /// The failure that was not cleared, and its number for [`clear`](Self::clear).
    #[inline]
    pub(super) fn current(&self) -> Option<(usize, Failure)> {
        if self.open() { self.newest(None) } else { None }
    }

    /// The failure under which the command at `point` runs, whose turn it is.
    #[inline]
    pub(super) fn upstream(&self, point: u64) -> Option<Failure> {
        if self.open() {
            self.newest(Some(point)).map(|(_, failure)| failure)
        } else {
            None
        }
    }

    /// The open failure, which reaches to `point` from now on.
    #[cold]
    fn newest(&self, point: Option<u64>) -> Option<(usize, Failure)> {
        let mut list = self.list.lock();
        if !self.open() {
            return None;
        }
        let newest = list.intervals.last_mut()?;
        newest.last = point.unwrap_or(newest.last);
        Some((newest.number, newest.failure))
    }

    /// Notes a failure of the command at `point`, unless one is open: the first one counts.
    #[cold]
    pub(super) fn add(&self, point: u64, failure: Failure) {
        let mut list = self.list.lock();
        if self.open() {
            return;
        }
        let number = self.mark();
        list.intervals.push(Interval {
            number,
            first: point,
            last: point,
            failure,
        });
        self.turns.store(2 * number + 1, Ordering::Release);
    }

    /// The failure of work that ends at `point`.
    #[inline]
    pub(super) fn at(&self, point: u64) -> Option<Failure> {
        if self.were() { self.find(point) } else { None }
    }

    /// Whether there was a failure ever.
    #[inline]
    pub(super) fn were(&self) -> bool {
        self.turns.load(Ordering::Acquire) != 0
    }

    #[cold]
    fn find(&self, point: u64) -> Option<Failure> {
        let list = &self.list.lock().intervals;
        let index = list.partition_point(|interval| interval.last < point);
        // Work behind an open failure fails by it, whatever comes.
        let found = match list.get(index) {
            None if self.open() => list.last(),
            found => found,
        };
        found
            .filter(|interval| interval.first <= point)
            .map(|interval| interval.failure)
    }

    /// The first failure since `mark` of work up to `point`, and its number. In the place of one that was forgotten
    /// since then stands the oldest that was not.
    #[cold]
    pub(super) fn since(&self, mark: usize, point: u64) -> Option<(usize, Failure)> {
        let list = &self.list.lock().intervals;
        let later = &list[list.partition_point(|interval| interval.number < mark)..];
        later
            .first()
            .filter(|interval| interval.first <= point || interval.number > mark)
            .map(|interval| (interval.number, interval.failure))
    }

    /// Ends a failure, unless that was done before: commands whose turn is yet to come are executed. Whether there are
    /// so many by now that [`forget`](Self::forget) is worth its while.
    #[cold]
    pub(super) fn clear(&self, number: usize) -> bool {
        let list = self.list.lock();
        if self.open() && self.mark() == number {
            self.turns.store(2 * (number + 1), Ordering::Release);
        }
        list.intervals.len() >= list.limit
    }

    #[cfg(test)]
    pub(super) fn on_record(&self) -> usize {
        self.list.lock().intervals.len()
    }

    /// Forgets what was cleared, but for the failures of the `named` points.
    pub(super) fn forget(&self, mut named: Vec<u64>) {
        named.sort_unstable();
        let mut list = self.list.lock();
        let newest = list.intervals.last().map(|interval| interval.number);
        list.intervals.retain(|interval| {
            let next = named.get(named.partition_point(|point| *point < interval.first));
            Some(interval.number) == newest || next.is_some_and(|point| *point <= interval.last)
        });
        list.limit = MANY.max(2 * list.intervals.len());
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, Failures};
    use crate::Code;

    fn failure(code: i32) -> Failure {
        Failure {
            code: Code(code),
            label: std::ptr::null(),
            submission: 1,
            queue: 1,
        }
    }

    #[test]
    fn a_point_keeps_its_failure_and_later_work_is_good() {
        let failures = Failures::default();
        let mark = failures.mark();
        assert!(failures.at(9).is_none() && failures.none_since(mark));
        failures.add(5, failure(11));
        failures.add(6, failure(12));
        assert_eq!(failures.at(7).unwrap().code.0, 11);
        assert!(failures.at(4).is_none());
        assert_eq!(failures.since(mark, 5).unwrap().1.code.0, 11);
        assert!(failures.since(mark, 4).is_none());
        assert!(!failures.none_since(failures.mark()));
        assert_eq!(failures.upstream(8).unwrap().code.0, 11);
        failures.clear(0);
        assert!(failures.none_since(failures.mark()) && !failures.none_since(mark));
        assert!(failures.at(9).is_none() && failures.current().is_none());
        assert_eq!(failures.at(8).unwrap().code.0, 11);
        // The turn of the next command comes after the clearing: its failure is a new one.
        failures.add(9, failure(13));
        assert_eq!(failures.at(8).unwrap().code.0, 11);
        assert_eq!(failures.at(9).unwrap().code.0, 13);
    }

    #[test]
    fn who_clears_late_clears_what_it_has_reported_and_nothing_newer() {
        let failures = Failures::default();
        let mark = failures.mark();
        failures.add(5, failure(11));
        let (late, _) = failures.since(mark, 5).unwrap();
        failures.clear(failures.current().unwrap().0);
        failures.add(7, failure(12));
        failures.clear(late);
        assert_eq!(failures.current().unwrap().1.code.0, 12);
        assert_eq!(failures.at(7).unwrap().code.0, 12);
    }

    #[test]
    fn what_is_forgotten_is_what_was_cleared_and_is_named_by_no_point() {
        let failures = Failures::default();
        let mark = failures.mark();
        for number in 0..5 {
            failures.add(10 * number + 1, failure(number as i32 + 1));
            failures.upstream(10 * number + 3);
            failures.clear(number as usize);
        }
        // Between two failures, at both ends of one, and behind all.
        failures.forget(vec![45, 13, 5, 21]);
        let code = |point| failures.at(point).map_or(0, |failure| failure.code.0);
        assert_eq!([3, 5, 11, 13, 21, 31, 43].map(code), [0, 0, 2, 2, 3, 0, 5]);
        // Who has waited all the while is told of one that is left.
        assert_eq!(failures.since(mark, 3).unwrap().1.code.0, 2);
        assert_eq!(failures.since(3, 33).unwrap().1.code.0, 5);
        assert!(failures.since(4, 33).is_none() && failures.since(5, 99).is_none());
        failures.add(51, failure(6));
        assert_eq!(failures.current().unwrap().0, 5);
    }
}
