//! Graphs (R31 to R36): the entries. What queues record is the kit's; what a graph is made of, `body` knows.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_contract as c;
use outrigger_driver_kit::given::Out;
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::origin::Label;
use outrigger_driver_kit::queue::Step;
use outrigger_driver_kit::{Fault, Result};
use parking_lot::Mutex;

use crate::body::{Body, Part, Recorded};
use crate::driver::Open;
use crate::lane::{Command, Lane};
use crate::queue::get as get_queue;

/// The handle of a graph.
pub(crate) struct Graph {
    open: Arc<Open>,
    device: u32,
    /// The commands of later launches. The lock is held while an update changes them, and no longer than it takes to
    /// share them by a launch.
    body: Mutex<Arc<Body>>,
}

impl Object for Graph {
    type Raw = c::otr_drv_graph;
    const KIND: u64 = 0x6375_6461_6772_6170;
    const NAME: &'static str = "the graph";
}

/// # Safety
/// R8.
pub(crate) unsafe fn record_begin(queue: *mut c::otr_queue) -> Result {
    // SAFETY: this function's contract.
    unsafe { get_queue(queue)? }.recorder.begin()
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn record_end(
    queue: *mut c::otr_queue,
    place: *mut *mut c::otr_drv_graph,
) -> Result {
    // SAFETY: this function's contract.
    let queue = unsafe { get_queue(queue)? };
    let place = Out::new(place, "the place for the graph")?;
    let recorded = queue.recorder.end()?;
    let device = queue.open.device(queue.device)?;
    let _entered = device.enter()?;
    let body = Body::of(&queue.open, queue.device, recorded)?;
    device.live.graphs.fetch_add(1, Ordering::Relaxed);
    place.give(handle::give(Graph {
        open: Arc::clone(&queue.open),
        device: queue.device,
        body: Mutex::new(Arc::new(body)),
    }));
    Ok(())
}

/// # Safety
/// R8, R31: what the graph names is live.
pub(crate) unsafe fn launch(queue: *mut c::otr_queue, graph: *mut c::otr_drv_graph) -> Result {
    // SAFETY: this function's contract.
    let (queue, graph) = unsafe { (get_queue(queue)?, handle::get::<Graph>(graph)?) };
    if !Arc::ptr_eq(&queue.open, &graph.open) {
        return Err(Fault::handle(
            "the graph and the queue are of two open drivers",
        ));
    }
    if queue.device != graph.device {
        return Err(Fault::new(
            c::OTR_ERR_INVALID_DEVICE,
            format!(
                "a graph of device {} on a queue of device {}",
                graph.device, queue.device
            ),
        ));
    }
    let body = Arc::clone(&graph.body.lock());
    if queue.keeps(|| Ok(Recorded::Graph(Arc::clone(&body))))? {
        return Ok(());
    }
    let is_call = |part: &Part| matches!(part, Part::HostCall(_));
    if body.parts().iter().any(is_call) {
        return queue.ordered.submit_row(steps(&body));
    }
    let all = 0..body.parts().len();
    queue.ordered.submit(
        Label::NONE,
        |lane, _| lane.parts(&body, all.clone()),
        |_| Ok(Command::Parts(Arc::clone(&body), all.clone())),
    )
}

/// The host calls of a graph, and all that is between two of them as one step.
fn steps(body: &Arc<Body>) -> Vec<Step<Lane>> {
    let mut steps = Vec::new();
    let mut between = 0..0;
    let give = |steps: &mut Vec<Step<Lane>>, parts: Range<usize>| {
        if !parts.is_empty() {
            steps.push(Step::Command(Command::Parts(Arc::clone(body), parts)));
        }
    };
    for (number, part) in body.parts().iter().enumerate() {
        if let Part::HostCall(call) = part {
            give(&mut steps, between);
            steps.push(Step::HostCall(*call));
            between = number + 1..number + 1;
        } else {
            between.end = number + 1;
        }
    }
    give(&mut steps, between);
    steps
}

/// # Safety
/// R8.
pub(crate) unsafe fn update(graph: *mut c::otr_drv_graph, from: *mut c::otr_drv_graph) -> Result {
    // SAFETY: this function's contract.
    unsafe { exchange(graph, 0, from, true) }
}

/// # Safety
/// R8.
pub(crate) unsafe fn update_part(
    graph: *mut c::otr_drv_graph,
    first: u32,
    from: *mut c::otr_drv_graph,
) -> Result {
    // SAFETY: this function's contract.
    unsafe { exchange(graph, first as usize, from, false) }
}

/// # Safety
/// R8.
unsafe fn exchange(
    graph: *mut c::otr_drv_graph,
    first: usize,
    from: *mut c::otr_drv_graph,
    whole: bool,
) -> Result {
    // SAFETY: this function's contract.
    let (graph, from) = unsafe { (handle::get::<Graph>(graph)?, handle::get::<Graph>(from)?) };
    if !Arc::ptr_eq(&graph.open, &from.open) {
        return Err(Fault::handle("the graphs are of two open drivers"));
    }
    if graph.device != from.device {
        return Err(Fault::argument(format!(
            "the graph is of device {}, and the other one of device {}",
            graph.device, from.device
        )));
    }
    let other = Arc::clone(&from.body.lock());
    let _entered = graph.open.device(graph.device)?.enter()?;
    let mut body = graph.body.lock();
    Body::update(&mut body, (&graph.open, graph.device), first, &other, whole)
}

/// # Safety
/// R8: no other call uses the graph.
pub(crate) unsafe fn destroy(graph: *mut c::otr_drv_graph) -> Result {
    // SAFETY: this function's contract.
    let Graph { open, device, body } = unsafe { handle::take::<Graph>(graph)? };
    // Launches that CUDA does not have yet share the body, and CUDA lets those run that it has (R36).
    drop(body);
    let live = &open.devices[device as usize].live;
    live.graphs.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}
