//! Defects of native graphs.

use std::collections::{HashMap, HashSet};

use outrigger_device::{Code, NO_OUTCOME};
use outrigger_layers::{Next, fail};
use parking_lot::Mutex;

use crate::calls::{Queues, callable, is_busy, key};
use crate::mutant::{mutants, types::*};
use crate::queues::Side;

/// Launches that were not handed on yet, by queue.
#[derive(Default)]
struct Held(Mutex<HashMap<usize, usize>>);

impl Held {
    /// Hands on what a queue is owed.
    ///
    /// # Safety
    /// The queue and its graph are live.
    unsafe fn release(&self, next: &Next, queue: Queue) {
        if let Some(graph) = self.0.lock().remove(&key(queue)) {
            // SAFETY: R31: the host keeps what the commands name valid; the call is handed on.
            unsafe { next.graph_launch(queue, std::ptr::with_exposed_provenance_mut(graph)) };
        }
    }
}

/// Queues that began a recording, and events that are points of one.
#[derive(Default)]
struct Points {
    queues: Queues,
    events: Mutex<HashSet<usize>>,
}

mutants! {
    /// Every second launch of a graph is lost.
    graph_launch_lost [R34] (Mutex<HashMap<usize, bool>>) {
        graph_launch(self, next, queue, graph) {
            let mut odd = self.state.lock();
            let lose = odd.entry(graph.addr()).or_insert(true);
            *lose = !*lose;
            if *lose && !graph.is_null() {
                return Code::OK.0;
            }
            next.graph_launch(queue, graph)
        }
    }

    /// A graph runs twice for each launch.
    graph_runs_twice [R34] (()) {
        graph_launch(self, next, queue, graph) {
            match next.graph_launch(queue, graph) {
                0 => next.graph_launch(queue, graph),
                code => code,
            }
        }
    }

    /// A graph overtakes what was submitted to its queue before.
    graph_overtakes [R34] (Side) {
        queue_create(self, next, driver, device, params, queue) {
            self.state.create(next, driver, device, params, queue)
        }
        queue_destroy(self, next, queue) { self.state.destroy(next, queue) }
        graph_launch(self, next, queue, graph) {
            self.state.beside(next, queue, |side| next.graph_launch(side, graph))
        }
    }

    /// An update succeeds and changes nothing.
    graph_update_ignored [R35] (()) {
        graph_update(self, _next, _graph, from) {
            if from.is_null() { Code::INVALID_HANDLE.0 } else { Code::OK.0 }
        }
    }

    /// A graph with other commands is taken for an update, which changes nothing.
    graph_update_of_others_taken [R35] (()) {
        graph_update(self, next, graph, from) {
            match next.graph_update(graph, from) {
                code if code == Code::INVALID_ARGUMENT.0 => Code::OK.0,
                code => code,
            }
        }
    }

    /// An update of a part succeeds and changes nothing.
    graph_part_ignored [R35] (()) {
        graph_update_part(self, _next, _graph, _first, from) {
            if from.is_null() { Code::INVALID_HANDLE.0 } else { Code::OK.0 }
        }
    }

    /// An update of a part begins at the first command.
    graph_part_from_the_start [R35] (()) {
        graph_update_part(self, next, graph, _first, from) {
            next.graph_update_part(graph, 0, from)
        }
    }

    /// A part that does not fit is taken, and changes nothing.
    graph_part_of_others_taken [R35] (()) {
        graph_update_part(self, next, graph, first, from) {
            match next.graph_update_part(graph, first, from) {
                code if code == Code::INVALID_ARGUMENT.0 => Code::OK.0,
                code => code,
            }
        }
    }

    /// An update also changes the launch that was submitted last.
    graph_update_changes_launches [R35] (Held) {
        graph_launch(self, next, queue, graph) {
            if graph.is_null() || next.queue_query(queue, &mut { NO_OUTCOME }) == Code::CAPTURE.0 {
                return next.graph_launch(queue, graph);
            }
            self.state.release(next, queue);
            self.state.0.lock().insert(key(queue), graph.expose_provenance());
            Code::OK.0
        }
        graph_destroy(self, next, graph) {
            let owed: Vec<_> = self.state.0.lock().extract_if(|_, held| *held == graph.addr()).collect();
            for (queue, _) in owed {
                next.graph_launch(std::ptr::with_exposed_provenance_mut(queue), graph);
            }
            next.graph_destroy(graph)
        }
        queue_destroy(self, next, queue) {
            self.state.release(next, queue);
            next.queue_destroy(queue)
        }
        queue_flush(self, next, queue) {
            self.state.release(next, queue);
            next.queue_flush(queue)
        }
        queue_query(self, next, queue, outcome) {
            self.state.release(next, queue);
            next.queue_query(queue, outcome)
        }
        queue_synchronize(self, next, queue, outcome) {
            self.state.release(next, queue);
            next.queue_synchronize(queue, outcome)
        }
        queue_wait_event(self, next, queue, event) {
            self.state.release(next, queue);
            next.queue_wait_event(queue, event)
        }
        event_record(self, next, event, queue) {
            self.state.release(next, queue);
            next.event_record(event, queue)
        }
        copy(self, next, queue, copy) {
            self.state.release(next, queue);
            next.copy(queue, copy)
        }
        fill(self, next, queue, fill) {
            self.state.release(next, queue);
            next.fill(queue, fill)
        }
        host_call(self, next, queue, call) {
            self.state.release(next, queue);
            next.host_call(queue, call)
        }
        kernel_launch(self, next, queue, kernel, launch) {
            self.state.release(next, queue);
            next.kernel_launch(queue, kernel, launch)
        }
    }

    /// Recorded work also runs at once.
    recording_runs [R31] (Queues) {
        graph_record_begin(self, next, queue) {
            let code = next.graph_record_begin(queue);
            if code == Code::OK.0 {
                self.state.put(key(queue));
            }
            code
        }
        graph_record_end(self, next, queue, graph) {
            self.state.take(key(queue));
            next.graph_record_end(queue, graph)
        }
        host_call(self, next, queue, call) {
            if let Some(original) = callable(call).filter(|_| self.state.has(key(queue))) {
                original(Code::OK.0);
            }
            next.host_call(queue, call)
        }
    }

    /// Recorded work runs at once, and the graph is empty.
    recording_keeps_nothing [R31] (Queues) {
        graph_record_begin(self, next, queue) {
            if queue.is_null() || self.state.has(key(queue)) {
                return next.graph_record_begin(queue);
            }
            self.state.put(key(queue));
            Code::OK.0
        }
        graph_record_end(self, next, queue, graph) {
            if self.state.take(key(queue)) {
                next.graph_record_begin(queue);
            }
            next.graph_record_end(queue, graph)
        }
        queue_destroy(self, next, queue) {
            self.state.take(key(queue));
            next.queue_destroy(queue)
        }
    }

    /// Waiting for a queue that records is answered as if it had finished.
    recording_is_idle [R33] (()) {
        queue_query(self, next, queue, outcome) {
            let code = next.queue_query(queue, outcome);
            if code != Code::CAPTURE.0 {
                return code;
            }
            (*outcome).code = Code::OK.0;
            Code::OK.0
        }
        queue_synchronize(self, next, queue, outcome) {
            let code = next.queue_synchronize(queue, outcome);
            if code != Code::CAPTURE.0 {
                return code;
            }
            (*outcome).code = Code::OK.0;
            Code::OK.0
        }
    }

    /// A call that is refused while a queue records has the code of a wrong argument.
    recording_has_the_wrong_code [R33] (()) {
        queue_synchronize(self, next, queue, outcome) {
            match next.queue_synchronize(queue, outcome) {
                code if code == Code::CAPTURE.0 => fail(Code::INVALID_ARGUMENT, "the queue records"),
                code => code,
            }
        }
    }

    /// A call that a recording refuses ends the recording.
    refusal_ends_the_recording [R33] (()) {
        queue_query(self, next, queue, outcome) {
            let code = next.queue_query(queue, outcome);
            let mut graph = std::ptr::null_mut();
            if code == Code::CAPTURE.0 && next.graph_record_end(queue, &mut graph) == Code::OK.0 {
                next.graph_destroy(graph);
            }
            code
        }
    }

    /// Destroying a graph waits for its launches.
    graph_destroy_waits [R36] (Mutex<HashMap<usize, usize>>) {
        graph_launch(self, next, queue, graph) {
            self.state.lock().insert(graph.addr(), queue.expose_provenance());
            next.graph_launch(queue, graph)
        }
        queue_destroy(self, next, queue) {
            self.state.lock().retain(|_, used| *used != queue.addr());
            next.queue_destroy(queue)
        }
        graph_destroy(self, next, graph) {
            let queue = self.state.lock().remove(&graph.addr());
            while let Some(queue) = queue
                && is_busy(next, std::ptr::with_exposed_provenance_mut(queue))
            {
                std::thread::yield_now();
            }
            next.graph_destroy(graph)
        }
    }

    /// A queue that waits for a point of a recording does not join it.
    join_lost [R32] (Points) {
        graph_record_begin(self, next, queue) {
            let code = next.graph_record_begin(queue);
            if code == Code::OK.0 {
                self.state.queues.put(key(queue));
            }
            code
        }
        graph_record_end(self, next, queue, graph) {
            self.state.queues.take(key(queue));
            self.state.events.lock().clear();
            next.graph_record_end(queue, graph)
        }
        event_record(self, next, event, queue) {
            let code = next.event_record(event, queue);
            let mut events = self.state.events.lock();
            if code == Code::OK.0 && self.state.queues.has(key(queue)) {
                events.insert(event.addr());
            } else {
                events.remove(&event.addr());
            }
            code
        }
        queue_wait_event(self, next, queue, event) {
            let point = self.state.events.lock().contains(&event.addr());
            if point && !self.state.queues.has(key(queue)) {
                return Code::OK.0;
            }
            next.queue_wait_event(queue, event)
        }
    }
}
