//! Graphs. A launch runs the nodes one after the other, the newest first of those whose time has come: an edge that is
//! missing shows.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::calls::{api, misuse};
use crate::code::{Function, arguments, run};
use crate::machine::{Context, working};
use crate::memory::{device, pinned};
use crate::streams::{Stream, Work, add, attempt, live, remove, submit};

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Kernel,
    Copy,
    /// Of one row, or of several.
    Fill(bool),
    /// A graph of so many nodes.
    Graph(usize),
}

pub(crate) struct Graph {
    nodes: Mutex<Vec<*mut Node>>,
}

pub(crate) struct Node {
    graph: *mut Graph,
    behind: Vec<*mut Node>,
    kind: Kind,
    work: Work,
}

pub(crate) struct Exec {
    steps: Mutex<Vec<Step>>,
    /// Whether a thread is in a call that uses it.
    used: AtomicBool,
    /// The newest launch has ended.
    ended: Mutex<Arc<AtomicBool>>,
}

#[derive(Clone)]
struct Step {
    node: usize,
    behind: Vec<usize>,
    kind: Kind,
    work: Work,
}

#[repr(C)]
pub(crate) struct Kernel {
    function: *mut Function,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    places: *mut *mut c_void,
    extra: *mut *mut c_void,
}

#[repr(C)]
pub(crate) struct Fill {
    dst: u64,
    pitch: usize,
    value: c_uint,
    word: c_uint,
    width: usize,
    height: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Side {
    origin: [usize; 4],
    kind: c_int,
    host: *mut c_void,
    device: u64,
    array: *mut c_void,
    reserved: *mut c_void,
    pitch: usize,
    height: usize,
}

#[repr(C)]
pub(crate) struct Copy {
    src: Side,
    dst: Side,
    extent: [usize; 3],
}

/// # Safety
/// As for the functions of CUDA: the parameters are whole.
unsafe fn kernel(given: &Kernel) -> Result<(Kind, Work), c_int> {
    // SAFETY: this function's contract.
    let (function, block) = unsafe {
        let function = live(given.function, "a function")?;
        (function, arguments(function, given.places, given.extra)?)
    };
    let (name, device, shared) = (function.name.clone(), function.device, given.shared);
    // SAFETY: the driver promises that what the arguments name is live.
    let work = move || unsafe { run(&name, device, shared, &block) };
    Ok((Kind::Kernel, Arc::new(work)))
}

fn copy(given: &Copy) -> Result<(Kind, Work), c_int> {
    let [size, rows, planes] = given.extent;
    let address = |side: &Side| {
        let rest = (
            side.origin,
            side.array,
            side.reserved,
            side.pitch,
            side.height,
        );
        let none = std::ptr::null_mut();
        if rest != ([0; 4], none, none, 0, 0) || (rows, planes) != (1, 1) || size == 0 {
            return Err(misuse("a copy of more than a row, or of none".to_owned()));
        }
        match (side.kind, side.host.is_null(), side.device) {
            (1, false, 0) => pinned(side.host, size).map(|()| side.host as u64),
            (2, true, at) => device(at, size).map(|()| at),
            _ => Err(misuse(
                "a side of a copy that is neither host nor device".to_owned(),
            )),
        }
    };
    let (from, to) = (address(&given.src)?, address(&given.dst)?);
    // SAFETY: both ranges are live while the graph is, as the driver promises.
    let work = move || unsafe {
        std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, size);
    };
    Ok((Kind::Copy, Arc::new(work)))
}

fn fill(given: &Fill) -> Result<(Kind, Work), c_int> {
    let Fill {
        dst,
        pitch,
        value,
        word,
        width,
        height,
    } = *given;
    let word = word as usize;
    let is_aligned = |number: u64| matches!(word, 1 | 2 | 4) && number.is_multiple_of(word as u64);
    if !is_aligned(dst) || height > 1 && !is_aligned(pitch as u64) || width == 0 || height == 0 {
        return Err(misuse(format!(
            "{width} words of {word} bytes at {dst:#x}, {height} times"
        )));
    }
    device(dst, (height - 1) * pitch + width * word)?;
    let bytes = value.to_le_bytes();
    let work = move || {
        for row in 0..height {
            for at in 0..width {
                let place = dst as usize + row * pitch + at * word;
                // SAFETY: within the range of above, which is live while the graph is, as the driver promises.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place as *mut u8, word) };
            }
        }
    };
    Ok((Kind::Fill(height > 1), Arc::new(work)))
}

/// A copy of a graph that was captured, whose nodes come one behind the other.
///
/// # Safety
/// A live handle is of its type.
unsafe fn whole(graph: *mut Graph) -> Result<(Kind, Work), c_int> {
    // SAFETY: this function's contract.
    let graph = unsafe { live(graph, "a graph")? };
    let nodes = graph.nodes.lock().unwrap();
    // SAFETY: nodes live as long as their graph.
    let works: Vec<Work> = (nodes.iter())
        .map(|node| unsafe { (**node).work.clone() })
        .collect();
    let kind = Kind::Graph(works.len());
    Ok((kind, Arc::new(move || works.iter().for_each(|work| work()))))
}

/// # Safety
/// Live handles are of their types, and there are so many nodes.
unsafe fn add_node(
    place: *mut *mut Node,
    graph: *mut Graph,
    behind: *const *mut Node,
    count: usize,
    made: Result<(Kind, Work), c_int>,
) -> c_int {
    attempt!(working());
    let (kind, work) = attempt!(made);
    // SAFETY: this function's contract.
    unsafe {
        let nodes = &attempt!(live(graph, "a graph")).nodes;
        let behind: Vec<_> = (0..count).map(|at| *behind.add(at)).collect();
        for (at, node) in behind.iter().enumerate() {
            if attempt!(live(*node, "a node")).graph != graph || behind[..at].contains(node) {
                return misuse(
                    "a node behind one of another graph, or twice behind one".to_owned(),
                );
            }
        }
        *place = add(Node {
            graph,
            behind,
            kind,
            work,
        });
        nodes.lock().unwrap().push(*place);
    }
    0
}

impl Exec {
    /// Notes two threads that use it at the same time.
    fn used<R>(&self, with: impl FnOnce() -> R) -> R {
        if self.used.swap(true, Ordering::SeqCst) {
            misuse("two threads use an executable graph at the same time".to_owned());
        }
        std::thread::yield_now();
        let result = with();
        self.used.store(false, Ordering::SeqCst);
        result
    }

    /// # Safety
    /// A live handle is of its type.
    unsafe fn set(&self, node: *mut Node, made: Result<(Kind, Work), c_int>) -> c_int {
        attempt!(working());
        let (kind, work) = attempt!(made);
        // SAFETY: this function's contract.
        attempt!(unsafe { live(node, "a node") });
        self.used(|| {
            let mut steps = self.steps.lock().unwrap();
            let step = steps.iter_mut().find(|step| step.node == node.addr());
            match step {
                Some(step) if step.kind == kind && kind != Kind::Fill(true) => {
                    step.work = work;
                    0
                }
                // CUDA changes fills of one row alone, and graphs of one shape.
                Some(step) if matches!((step.kind, kind), (Kind::Graph(_), Kind::Graph(_))) => 910,
                Some(step) if matches!((step.kind, kind), (Kind::Fill(_), Kind::Fill(_))) => 1,
                _ => misuse("a node is set that the graph does not have".to_owned()),
            }
        })
    }
}

fn run_all(steps: &[Step], context: &Context) {
    let places: HashMap<usize, usize> = (steps.iter().enumerate())
        .map(|(place, step)| (step.node, place))
        .collect();
    let mut left: Vec<usize> = steps.iter().map(|step| step.behind.len()).collect();
    let mut before = vec![Vec::new(); steps.len()];
    for (place, step) in steps.iter().enumerate() {
        for node in &step.behind {
            before[places[node]].push(place);
        }
    }
    let mut ready: Vec<usize> = (0..steps.len()).filter(|place| left[*place] == 0).collect();
    while context.lost() == 0
        && let Some(place) = ready.pop()
    {
        (steps[place].work)();
        for next in &before[place] {
            left[*next] -= 1;
            if left[*next] == 0 {
                ready.push(*next);
            }
        }
    }
}

api! {
    fn cuGraphCreate(place: *mut *mut Graph, flags: c_uint) {
        *place = add(Graph { nodes: Mutex::default() });
        flags as c_int
    }

    fn cuGraphDestroy(graph: *mut Graph) {
        let graph = attempt!(remove(graph, "a graph"));
        for node in graph.nodes.into_inner().unwrap() {
            attempt!(remove(node, "a node"));
        }
        0
    }

    fn cuGraphAddKernelNode(place: *mut *mut Node, graph: *mut Graph, behind: *const *mut Node, count: usize, given: *const Kernel) {
        add_node(place, graph, behind, count, kernel(&*given))
    }

    fn cuGraphAddMemcpyNode(place: *mut *mut Node, graph: *mut Graph, behind: *const *mut Node, count: usize, given: *const Copy, _context: *mut Context) {
        add_node(place, graph, behind, count, copy(&*given))
    }

    fn cuGraphAddMemsetNode(place: *mut *mut Node, graph: *mut Graph, behind: *const *mut Node, count: usize, given: *const Fill, _context: *mut Context) {
        add_node(place, graph, behind, count, fill(&*given))
    }

    fn cuStreamBeginCapture_v2(stream: *mut Stream, mode: c_int) {
        let stream = attempt!(live(stream, "a stream"));
        attempt!(working());
        if mode != 2 || stream.captured.lock().unwrap().replace(Vec::new()).is_some() {
            return misuse(format!("a capture in mode {mode}, or within another one"));
        }
        0
    }

    fn cuStreamEndCapture(stream: *mut Stream, place: *mut *mut Graph) {
        let stream = attempt!(live(stream, "a stream"));
        let Some(works) = stream.captured.lock().unwrap().take() else {
            return misuse("a capture ends that has not begun".to_owned());
        };
        let graph = add(Graph { nodes: Mutex::default() });
        let mut behind = Vec::new();
        for work in works {
            let node = add(Node { graph, behind, kind: Kind::Kernel, work });
            (*graph).nodes.lock().unwrap().push(node);
            behind = vec![node];
        }
        *place = graph;
        0
    }

    fn cuGraphAddChildGraphNode(place: *mut *mut Node, graph: *mut Graph, behind: *const *mut Node, count: usize, child: *mut Graph) {
        add_node(place, graph, behind, count, whole(child))
    }

    fn cuGraphExecChildGraphNodeSetParams(exec: *mut Exec, node: *mut Node, child: *mut Graph) {
        attempt!(live(exec, "an executable graph")).set(node, whole(child))
    }

    fn cuGraphInstantiateWithFlags(place: *mut *mut Exec, graph: *mut Graph, flags: c_ulonglong) {
        attempt!(working());
        let nodes = attempt!(live(graph, "a graph")).nodes.lock().unwrap();
        let addresses = |nodes: &[*mut Node]| nodes.iter().map(|node| node.addr()).collect();
        let step = |node: &*mut Node| {
            let Node { behind, kind, work, .. } = &**node;
            Step { node: node.addr(), behind: addresses(behind), kind: *kind, work: work.clone() }
        };
        *place = add(Exec {
            steps: Mutex::new(nodes.iter().map(step).collect()),
            used: AtomicBool::new(false),
            ended: Mutex::new(Arc::new(AtomicBool::new(true))),
        });
        flags as c_int
    }

    fn cuGraphExecDestroy(exec: *mut Exec) {
        attempt!(remove(exec, "an executable graph"));
        0
    }

    fn cuGraphExecKernelNodeSetParams(exec: *mut Exec, node: *mut Node, given: *const Kernel) {
        attempt!(live(exec, "an executable graph")).set(node, kernel(&*given))
    }

    fn cuGraphExecMemcpyNodeSetParams(exec: *mut Exec, node: *mut Node, given: *const Copy, _context: *mut Context) {
        attempt!(live(exec, "an executable graph")).set(node, copy(&*given))
    }

    fn cuGraphExecMemsetNodeSetParams(exec: *mut Exec, node: *mut Node, given: *const Fill, _context: *mut Context) {
        attempt!(live(exec, "an executable graph")).set(node, fill(&*given))
    }

    fn cuGraphLaunch(exec: *mut Exec, stream: *mut Stream) {
        let exec = attempt!(live(exec, "an executable graph"));
        let context = attempt!(working());
        exec.used(|| {
            let steps = exec.steps.lock().unwrap().clone();
            let own = Arc::new(AtomicBool::new(false));
            let before = std::mem::replace(&mut *exec.ended.lock().unwrap(), own.clone());
            submit(stream, move || {
                // Launches of one graph come one behind the other, also on several streams.
                while !before.load(Ordering::Acquire) && context.lost() == 0 {
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
                run_all(&steps, context);
                own.store(true, Ordering::Release);
            })
        })
    }
}
