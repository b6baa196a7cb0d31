//! The order of a queue under loom: all interleavings of a few threads. It compiles the list of `src/order` with loom's
//! primitives, over a lane that notes what it is given.
//!
//! Checked are: that everything runs once and in the order of its thread's submissions, whoever runs the list; that what is
//! submitted behind a held call never overtakes it; that a failure skips commands and no calls, and is told to all who
//! waited; that a wait for a point of another list ends.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the sources of the list are compiled, and a part of it is run"
)]

#[path = "../../src/order/list.rs"]
mod list;
#[path = "../model/sync.rs"]
#[allow(
    unused_imports,
    unused_macros,
    reason = "the primitives of the driver `host` are in there, too"
)]
mod sync;

use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use loom::thread;

use list::{Job, Lane, Order, Trouble};

fn main() {
    let models: [(&str, fn()); 5] = [
        (
            "two_who_wait_run_each_item_once",
            two_who_wait_run_each_item_once,
        ),
        (
            "what_comes_behind_a_call_does_not_overtake_it",
            what_comes_behind_a_call_does_not_overtake_it,
        ),
        (
            "a_failure_is_told_to_all_who_waited",
            a_failure_is_told_to_all_who_waited,
        ),
        ("a_point_of_another_list_is_met", a_point_is_met),
        ("what_is_asked_for_runs", what_is_asked_for_runs),
    ];
    let trials = models.map(|(name, model)| {
        Trial::test(format!("model::{name}"), move || {
            let mut builder = loom::model::Builder::new();
            builder.preemption_bound = Some(2);
            builder.max_branches = 20_000;
            builder.check(model);
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}

/// What lanes were given, in order.
#[derive(Clone, Default)]
struct Log(Arc<sync::Mutex<Vec<u32>>>);

impl Log {
    fn push(&self, value: u32) {
        self.0.lock().push(value);
    }

    fn values(&self) -> Vec<u32> {
        self.0.lock().clone()
    }
}

/// A lane that does at once what it is given, and starts a thread for each job.
struct Noting(Log);

/// A host call: the number that it notes, and its outcome.
struct Call(u32, Option<u32>);

impl Lane for Noting {
    type Command = u32;
    type Call = Call;
    type Mark = ();
    type Failure = u32;
    type Refusal = ();

    fn issue(&self, command: u32) -> Result<(), u32> {
        self.0.push(command);
        Ok(())
    }

    fn call(&self, call: Call, upstream: Option<&u32>) -> Result<(), u32> {
        self.0.push(call.0 + 100 * upstream.unwrap_or(&0));
        call.1.map_or(Ok(()), Err)
    }

    fn drain(&self) -> Result<(), Trouble<Self>> {
        Ok(())
    }

    fn mark(&self, (): &()) -> Result<(), ()> {
        Ok(())
    }

    fn join(&self, (): &()) -> Result<(), Trouble<Self>> {
        Ok(())
    }

    fn flush(&self) {}

    fn start(&self, job: Job) {
        drop(thread::spawn(job));
    }
}

fn order() -> (Arc<Order<Noting>>, Log) {
    let log = Log::default();
    (Order::new(Noting(log.clone())), log)
}

/// Submits a command as a queue does.
fn submit(order: &Arc<Order<Noting>>, value: u32) {
    if order.is_open() {
        order.lane().issue(value).unwrap();
    } else {
        order.keep(value);
    }
}

/// Waits as a queue does.
fn synchronize(order: &Arc<Order<Noting>>) -> Option<u32> {
    let begun = order.begin();
    order.wait(begun.end()).unwrap();
    order.report(begun, None, |_| true)
}

fn two_who_wait_run_each_item_once() {
    let (order, log) = order();
    order.keep_call(Call(1, None));
    submit(&order, 2);
    order.keep_call(Call(3, None));
    let other = Arc::clone(&order);
    let thread = thread::spawn(move || synchronize(&other));
    assert_eq!(synchronize(&order), None);
    assert_eq!(log.values(), [1, 2, 3]);
    assert_eq!(thread.join().unwrap(), None);
    assert!(order.is_open());
}

fn what_comes_behind_a_call_does_not_overtake_it() {
    let (order, log) = order();
    let other = Arc::clone(&order);
    // The list may run, and open, at any moment of this thread's submissions.
    order.keep_call(Call(1, None));
    let thread = thread::spawn(move || synchronize(&other));
    submit(&order, 2);
    order.keep_call(Call(3, None));
    submit(&order, 4);
    thread.join().unwrap();
    synchronize(&order);
    assert_eq!(log.values(), [1, 2, 3, 4]);
}

fn a_failure_is_told_to_all_who_waited() {
    let (order, log) = order();
    order.keep_call(Call(1, Some(7)));
    submit(&order, 2);
    order.keep_call(Call(3, None));
    let begun = order.begin();
    let other = Arc::clone(&order);
    let thread = thread::spawn(move || {
        other.wait(begun.end()).unwrap();
        other.report(begun, None, |_| true)
    });
    order.wait(begun.end()).unwrap();
    assert_eq!(order.report(begun, None, |_| true), Some(7));
    assert_eq!(thread.join().unwrap(), Some(7));
    assert_eq!(log.values(), [1, 703]);
    assert!(order.is_open() && synchronize(&order).is_none());
}

fn a_point_is_met() {
    let (first, _) = order();
    let (second, log) = order();
    first.keep_call(Call(1, Some(5)));
    let (_, point) = first.keep_mark(());
    second.keep_wait(point);
    submit(&second, 2);
    second.keep_call(Call(3, None));
    let other = Arc::clone(&first);
    let thread = thread::spawn(move || synchronize(&other));
    assert_eq!(synchronize(&second), Some(5));
    assert_eq!(log.values(), [503]);
    assert_eq!(thread.join().unwrap(), Some(5));
}

fn what_is_asked_for_runs() {
    let (order, log) = order();
    order.keep_call(Call(1, None));
    let (_, point) = order.keep_mark(());
    point.ask();
    submit(&order, 2);
    order.ask();
    point.wait().unwrap();
    assert!(point.reached() == Some(None) && log.values().starts_with(&[1]));
    synchronize(&order);
    assert_eq!(log.values(), [1, 2]);
}
