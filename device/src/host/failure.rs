//! The failures of a queue's timeline: from which point to which point its work counts as failed, and
//! why. What has failed once stays on record, since an event may be asked for it at any later time.

use std::ffi::{CStr, c_char};

use super::fault::Fault;
use super::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::Code;
use crate::error::failure_text;

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
    /// The failure as an error of a call on queue `here`.
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
        Fault::new(self.code, failure_text(&text, &label, self.submission))
    }
}

/// A stretch of failed work, both ends included.
#[derive(Debug)]
struct Interval {
    first: u64,
    /// `u64::MAX` while the failure has not been cleared.
    last: u64,
    failure: Failure,
}

/// All failures of a timeline.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// How many there are, so that a timeline without any costs one load.
    count: AtomicUsize,
    /// Whether the newest has not been cleared.
    open: AtomicBool,
    /// By their ends, and only the newest may be open.
    list: Mutex<Vec<Interval>>,
}

impl Failures {
    /// Whether the queue has a failure that was not cleared.
    #[inline]
    pub(super) fn open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// How many failures there were, for [`since`](Self::since). An open one does not count yet.
    #[inline]
    pub(super) fn mark(&self) -> usize {
        // A failure that opens in between is then counted as new, which it is.
        let count = self.count.load(Ordering::Acquire);
        if self.open() {
            count.saturating_sub(1)
        } else {
            count
        }
    }

    /// Whether there was no failure since `mark`.
    #[inline]
    pub(super) fn none_since(&self, mark: usize) -> bool {
        self.count.load(Ordering::Acquire) <= mark
    }

    /// The failure at the end of the list, if it has not been cleared.
    pub(super) fn current(&self) -> Option<Failure> {
        if !self.open() {
            return None;
        }
        self.list
            .lock()
            .last()
            .filter(|i| i.last == u64::MAX)
            .map(|i| i.failure)
    }

    /// Notes a failure of the command at `point`, unless one is open: the first one counts.
    #[cold]
    pub(super) fn add(&self, point: u64, failure: Failure) {
        let mut list = self.list.lock();
        if self.open() {
            return;
        }
        list.push(Interval {
            first: point,
            last: u64::MAX,
            failure,
        });
        self.open.store(true, Ordering::Relaxed);
        self.count.store(list.len(), Ordering::Release);
    }

    /// The failure of work that ends at `point`.
    #[inline]
    pub(super) fn at(&self, point: u64) -> Option<Failure> {
        if self.count.load(Ordering::Acquire) == 0 {
            None
        } else {
            self.find(point)
        }
    }

    #[cold]
    fn find(&self, point: u64) -> Option<Failure> {
        let list = self.list.lock();
        let index = list.partition_point(|interval| interval.last < point);
        list.get(index)
            .filter(|interval| interval.first <= point)
            .map(|interval| interval.failure)
    }

    /// The first failure since `mark` of work up to `point`.
    #[cold]
    pub(super) fn since(&self, mark: usize, point: u64) -> Option<Failure> {
        let list = self.list.lock();
        list[mark.min(list.len())..]
            .iter()
            .find(|i| i.first <= point)
            .map(|i| i.failure)
    }

    /// Ends the open failure: work behind `last` counts as good again.
    #[cold]
    pub(super) fn clear(&self, last: u64) {
        let mut list = self.list.lock();
        if let Some(interval) = list.last_mut().filter(|interval| interval.last == u64::MAX) {
            interval.last = last;
        }
        self.open.store(false, Ordering::Relaxed);
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
        assert_eq!(failures.since(mark, 5).unwrap().code.0, 11);
        assert!(failures.since(mark, 4).is_none());
        assert!(!failures.none_since(failures.mark()));
        failures.clear(8);
        assert!(failures.none_since(failures.mark()) && !failures.none_since(mark));
        assert!(failures.at(9).is_none() && failures.current().is_none());
        // Work that was submitted before the clearing and fails after it: the older failure counts.
        failures.add(7, failure(13));
        assert_eq!(failures.at(8).unwrap().code.0, 11);
        assert_eq!(failures.at(9).unwrap().code.0, 13);
    }
}
