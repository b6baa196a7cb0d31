//! Two queues against what they are to do, in random order of submissions. Their lists are run by whoever comes first.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::list::{Job, Lane, Order, Point, Trouble};
use super::threads::Threads;

/// A lane that does at once what it is given. A command or call that fails has its number as its failure.
struct Noting {
    log: Arc<Mutex<Vec<(u32, u32)>>>,
    threads: Threads,
}

struct Call {
    number: u32,
    fails: bool,
}

impl Lane for Noting {
    type Command = Call;
    type Call = Call;
    type Mark = ();
    type Failure = u32;
    type Refusal = ();

    fn issue(&self, command: Call) -> Result<(), u32> {
        self.log.lock().unwrap().push((command.number, 0));
        if command.fails {
            return Err(command.number);
        }
        Ok(())
    }

    fn call(&self, call: Call, upstream: Option<&u32>) -> Result<(), u32> {
        let upstream = upstream.copied().unwrap_or(0);
        self.log.lock().unwrap().push((call.number, upstream));
        if call.fails {
            return Err(call.number);
        }
        Ok(())
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
        self.threads.start(job);
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// A command; one that fails does so only where it is held, as one that the driver refuses late.
    Command(bool),
    Call(bool),
    Mark,
    /// Waits for one of the marks so far.
    Wait(usize),
    Ask,
    Synchronize,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => prop::bool::weighted(0.1).prop_map(Action::Command),
        3 => prop::bool::weighted(0.2).prop_map(Action::Call),
        2 => Just(Action::Mark),
        2 => any::<usize>().prop_map(Action::Wait),
        1 => Just(Action::Ask),
        1 => Just(Action::Synchronize),
    ]
}

/// What a queue is to have done.
#[derive(Default)]
struct Model {
    log: Vec<(u32, u32)>,
    failure: Option<u32>,
}

/// A queue, and a mark: its point where it was held, and the failure that it is to have.
type Queue = (Arc<Order<Noting>>, Arc<Mutex<Vec<(u32, u32)>>>, Model);
type Marked = (Option<Arc<Point<Noting>>>, Option<u32>);

fn queue(threads: &Threads) -> Queue {
    let log = Arc::<Mutex<Vec<_>>>::default();
    let lane = Noting {
        log: Arc::clone(&log),
        threads: threads.clone(),
    };
    (Order::new(lane), log, Model::default())
}

fn act(
    (order, _, model): &mut Queue,
    marks: &mut Vec<Marked>,
    (number, action): (u32, Action),
) -> Result<(), TestCaseError> {
    match action {
        Action::Command(fails) => {
            // Whether it is held depends on the threads; whether it runs does not.
            let fails = fails && model.failure.is_none() && !order.is_open();
            let call = Call { number, fails };
            if order.is_open() && !fails {
                order.lane().issue(call).unwrap();
            } else {
                order.keep(call);
            }
            if model.failure.is_none() {
                model.log.push((number, 0));
                model.failure = fails.then_some(number);
            }
        }
        Action::Call(fails) => {
            order.keep_call(Call { number, fails });
            model.log.push((number, model.failure.unwrap_or(0)));
            if fails {
                model.failure.get_or_insert(number);
            }
        }
        Action::Mark => {
            let point = (!order.is_open()).then(|| order.keep_mark(()).1);
            marks.push((point, model.failure));
        }
        Action::Wait(which) if !marks.is_empty() => {
            let (point, failure) = &marks[which % marks.len()];
            let point = point.clone().unwrap_or_else(|| Arc::new(Point::marked(())));
            order.keep_wait(point);
            model.failure = model.failure.or(*failure);
        }
        Action::Wait(_) => {}
        Action::Ask => order.ask(),
        Action::Synchronize => {
            let begun = order.begin();
            order.wait(begun.end()).unwrap();
            let told = order.report(begun, None, |_| true);
            prop_assert_eq!(told, model.failure.take());
            prop_assert!(order.is_open());
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn two_queues_do_what_they_are_to_do(
        actions in prop::collection::vec((any::<bool>(), action()), 0..80)
    ) {
        let threads = Threads::default();
        let mut queues = [queue(&threads), queue(&threads)];
        let mut marks = Vec::new();
        for (number, (second, action)) in (1..).zip(actions) {
            act(&mut queues[usize::from(second)], &mut marks, (number, action))?;
        }
        for queue in &mut queues {
            act(queue, &mut marks, (0, Action::Synchronize))?;
            prop_assert_eq!(&*queue.1.lock().unwrap(), &queue.2.log);
        }
        for (point, failure) in &marks {
            if let Some(point) = point {
                prop_assert_eq!(point.reached(), Some(failure.as_ref()));
            }
        }
        threads.finish();
    }
}
