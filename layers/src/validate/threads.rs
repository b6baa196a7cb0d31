//! Facts that the thread of a call shows: whether it comes from a host call (R27), whether it
//! uses an object that another thread destroys (R8), and whether a host call runs within a submission
//! (R17).

use std::cell::Cell;

use outrigger_device::Code;
use parking_lot::Mutex;

use super::finding::{Finding, Side, Sink};
use crate::entry::{Gate, Handles};
use crate::{Entry, Next, fail};

thread_local! {
    /// The driver whose host call this thread runs; 0 for none.
    static WITHIN: Cell<usize> = const { Cell::new(0) };
    /// The driver to which this thread submits work; 0 for none.
    static SUBMITTING: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread is within a submission to the driver.
pub(super) fn submitting(driver: usize) -> bool {
    SUBMITTING.get() == driver
}

/// Runs a host call of the driver.
pub(super) fn host_call(driver: usize, call: impl FnOnce() -> i32) -> i32 {
    let outer = WITHIN.replace(driver);
    let code = call();
    WITHIN.set(outer);
    code
}

/// The calls of all threads.
pub(super) struct Threads {
    driver: usize,
    sink: Sink,
    calls: Mutex<Calls>,
}

/// The calls that have not returned.
#[derive(Default)]
struct Calls {
    /// So many began.
    begun: u64,
    /// The number of the call, a handle that it uses, and its entry.
    uses: Vec<(u64, usize, Entry)>,
}

impl Threads {
    pub(super) fn new(driver: usize, sink: Sink) -> Self {
        Self {
            driver,
            sink,
            calls: Mutex::default(),
        }
    }

    fn refuse(&self, code: Code, rule: &'static str, text: String) -> i32 {
        let message = format!("{rule}: {text}");
        (self.sink)(&Finding {
            side: Side::Host,
            rule,
            text,
        });
        fail(code, message)
    }
}

/// The handle that an entry takes away, of those that its call names.
fn destroyed(entry: Entry, handles: &[usize]) -> Option<usize> {
    match entry {
        Entry::close
        | Entry::queue_destroy
        | Entry::event_destroy
        | Entry::module_unload
        | Entry::operator_release
        | Entry::graph_destroy
        | Entry::comm_destroy => handles.first().copied(),
        Entry::virtual_destroy => handles.get(1).copied(),
        _ => None,
    }
}

/// Takes a call from the books when it has returned.
pub(super) struct Pass<'gate> {
    calls: &'gate Mutex<Calls>,
    number: u64,
    /// The queue that this thread submitted to before.
    outer: usize,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        SUBMITTING.set(self.outer);
        let mut calls = self.calls.lock();
        calls.uses.retain(|(number, ..)| *number != self.number);
    }
}

impl Gate for Threads {
    type Pass<'gate> = Pass<'gate>;

    fn pass(&self, _: &Next, entry: Entry, handles: Handles<'_>) -> Result<Pass<'_>, i32> {
        if WITHIN.get() == self.driver {
            let text = format!("{} was called from a host call", entry.name());
            return Err(self.refuse(Code::WOULD_DEADLOCK, "R27", text));
        }
        let destroyed = destroyed(entry, handles.all);
        let mut calls = self.calls.lock();
        let used = |(_, handle, _): &&(u64, usize, Entry)| Some(*handle) == destroyed;
        if let Some((.., other)) = calls.uses.iter().find(used).copied() {
            drop(calls);
            let text = format!(
                "{} of an object that a call of {} uses on another thread",
                entry.name(),
                other.name()
            );
            return Err(self.refuse(Code::BUSY, "R8", text));
        }
        calls.begun += 1;
        let number = calls.begun;
        // Not what is destroyed: its handle may be given out again before this call has returned.
        let used = handles.all.iter().copied();
        let used = used.filter(|handle| *handle != 0 && Some(*handle) != destroyed);
        calls
            .uses
            .extend(used.map(|handle| (number, handle, entry)));
        drop(calls);
        let outer = SUBMITTING.get();
        if entry.submits() {
            SUBMITTING.set(self.driver);
        }
        Ok(Pass {
            calls: &self.calls,
            number,
            outer,
        })
    }
}
