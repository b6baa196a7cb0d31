//! Programs on streams: run at once, or captured. Events order the acts on the same buffer, and nothing
//! else.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicI64;

use outrigger::ffi::*;
use outrigger::runtime::DType;
use outrigger_tests::abi::{alloc, download, end, event, made, ok, stream, synchronize};

use super::commands::{To, emit, width};
use super::model::chosen;
use super::program::{
    Act, Block, Buffer, COUNT, Choice, DEPTH, GLOBALS, LANES, PREDICATES, Uses, Work,
};

/// The addresses of buffers, and their types.
pub(crate) type Places = HashMap<Buffer, (u64, DType)>;

/// Streams and events of a device, and where the host receives numbers.
pub(crate) struct Env {
    pub(crate) device: u32,
    /// The streams by depth.
    pub(crate) lanes: Vec<[u64; LANES]>,
    pub(crate) events: Vec<u64>,
    pub(crate) received: Box<[AtomicI64; COUNT]>,
}

impl Env {
    pub(crate) fn new(device: u32) -> Self {
        let lanes = (0..=DEPTH).map(|_| std::array::from_fn(|_| stream(device)));
        Self {
            device,
            lanes: lanes.collect(),
            events: (0..3).map(|_| event(device)).collect(),
            received: Box::new(std::array::from_fn(|_| AtomicI64::new(0))),
        }
    }

    /// Waits for everything.
    pub(crate) fn synchronize(&self) {
        self.lanes
            .iter()
            .flatten()
            .for_each(|&lane| synchronize(lane));
    }

    pub(crate) fn destroy(self) {
        for lane in self.lanes.into_iter().flatten() {
            ok(unsafe { otr_stream_destroy(lane) });
        }
        for event in self.events {
            ok(unsafe { otr_event_destroy(event) });
        }
    }
}

/// The number of a conditional in the ABI.
pub(crate) fn number(choice: Choice) -> u32 {
    match choice {
        Choice::If => OTR_GRAPH_IF,
        Choice::While => OTR_GRAPH_WHILE,
        Choice::Switch => OTR_GRAPH_SWITCH,
    }
}

/// The way in which a program runs on streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) capture: bool,
    /// Whether the buffers that are left at a block's end are freed after it.
    pub(crate) late: bool,
    /// The pool of the capture, or 0.
    pub(crate) pool: u64,
}

/// Runs a program, and leaves it to the caller to wait.
pub(crate) fn run(env: &Env, block: &Block, places: &Places, late: bool) {
    let how = How {
        capture: false,
        late,
        pool: 0,
    };
    let mut lanes = Lanes::new(env, how, 0, places.clone());
    lanes.whole(block);
    env.synchronize();
    lanes.free_late();
}

/// Captures a program. Gives its graph and the node of its named addition.
pub(crate) fn capture(env: &Env, block: &Block, places: &Places, how: How) -> (u64, Option<u32>) {
    capture_at(env, block, places, how, 0)
}

fn capture_at(
    env: &Env,
    block: &Block,
    places: &Places,
    how: How,
    depth: usize,
) -> (u64, Option<u32>) {
    let first = env.lanes[depth][0];
    ok(unsafe { otr_capture_begin(first, OTR_CAPTURE_GLOBAL, how.pool) });
    let mut lanes = Lanes::new(env, how, depth, places.clone());
    lanes.whole(block);
    let graph = end(first);
    lanes.free_late();
    (graph, lanes.named)
}

/// The streams of one block, and what is known of their order.
struct Lanes<'a> {
    env: &'a Env,
    how: How,
    depth: usize,
    places: Places,
    /// Lanes that the block has used: the first one, and those that wait for others.
    joined: [bool; LANES],
    /// The number of works so far.
    count: [usize; LANES],
    /// The number of works of each lane that come before what a lane does next.
    seen: [[usize; LANES]; LANES],
    writes: HashMap<Buffer, (usize, usize)>,
    reads: HashMap<Buffer, Vec<(usize, usize)>>,
    /// The last work of each lane that uses a buffer.
    users: HashMap<Buffer, BTreeMap<usize, usize>>,
    homes: HashMap<Buffer, usize>,
    next_event: usize,
    late: Vec<u64>,
    named: Option<u32>,
}

impl<'a> Lanes<'a> {
    fn new(env: &'a Env, how: How, depth: usize, places: Places) -> Self {
        let mut joined = [false; LANES];
        joined[0] = true;
        Self {
            env,
            how,
            depth,
            places,
            joined,
            count: [0; LANES],
            seen: [[0; LANES]; LANES],
            writes: HashMap::new(),
            reads: HashMap::new(),
            users: HashMap::new(),
            homes: HashMap::new(),
            next_event: 0,
            late: Vec::new(),
            named: None,
        }
    }

    fn stream(&self, lane: usize) -> u64 {
        self.env.lanes[self.depth][lane]
    }

    fn address(&self, buffer: Buffer) -> u64 {
        self.places[&buffer].0
    }

    /// `lane` waits for all that `on` was given.
    fn wait(&mut self, lane: usize, on: usize) {
        if lane == on || !self.joined[on] {
            return;
        }
        let event = self.env.events[self.next_event % self.env.events.len()];
        self.next_event += 1;
        ok(unsafe { otr_event_record(event, self.stream(on)) });
        ok(unsafe { otr_stream_wait_event(self.stream(lane), event) });
        self.joined[lane] = true;
        let theirs = self.seen[on];
        for (mine, theirs) in self.seen[lane].iter_mut().zip(theirs) {
            *mine = (*mine).max(theirs);
        }
        self.seen[lane][on] = self.count[on];
    }

    fn enter(&mut self, lane: usize) {
        if !self.joined[lane] {
            self.wait(lane, 0);
        }
    }

    fn after(&mut self, lane: usize, (other, position): (usize, usize)) {
        if other != lane && self.seen[lane][other] < position {
            self.wait(lane, other);
        }
    }

    /// A work of `lane` comes after all that it must not run beside.
    fn order(&mut self, lane: usize, uses: &Uses) {
        self.enter(lane);
        for buffer in uses.reads.union(&uses.writes) {
            if let Some(&write) = self.writes.get(buffer) {
                self.after(lane, write);
            }
            if uses.writes.contains(buffer) {
                for read in self.reads.remove(buffer).unwrap_or_default() {
                    self.after(lane, read);
                }
            }
        }
        self.count[lane] += 1;
        let now = (lane, self.count[lane]);
        for &buffer in uses.reads.union(&uses.writes) {
            self.users.entry(buffer).or_default().insert(now.0, now.1);
            if uses.writes.contains(&buffer) {
                self.writes.insert(buffer, now);
            } else {
                self.reads.entry(buffer).or_default().push(now);
            }
        }
    }

    /// All of a block, joined to the first lane.
    fn whole(&mut self, block: &Block) {
        self.acts(block);
        if self.how.late {
            let left = block.left.iter().map(|&buffer| self.address(buffer));
            self.late = left.collect();
        } else {
            block
                .left
                .iter()
                .for_each(|&buffer| self.free(buffer, false));
        }
        for lane in 1..LANES {
            self.after(0, (lane, self.count[lane]));
        }
    }

    fn free_late(&mut self) {
        for address in self.late.drain(..) {
            ok(unsafe { otr_memory_free(self.env.device, address) });
        }
    }

    /// Frees a buffer of a lane's, which others may have used.
    fn free(&mut self, buffer: Buffer, join: bool) {
        let home = self.homes[&buffer];
        let address = self.address(buffer);
        for (lane, position) in self.users.remove(&buffer).unwrap_or_default() {
            if lane == home {
                continue;
            }
            if join {
                self.after(home, (lane, position));
            } else {
                ok(unsafe {
                    otr_memory_record_stream(self.env.device, address, self.stream(lane))
                });
            }
        }
        ok(unsafe { otr_memory_free(self.env.device, address) });
    }

    fn acts(&mut self, block: &Block) {
        for act in &block.acts {
            match act {
                Act::Work(lane, work) => {
                    self.order(*lane, &act.uses());
                    if let Work::Add { named: true, .. } = work
                        && self.how.capture
                    {
                        let mut info = otr_capture_info_t {
                            struct_size: size_of::<otr_capture_info_t>(),
                            ..Default::default()
                        };
                        ok(unsafe { otr_capture_info(self.stream(*lane), &mut info) });
                        self.named = Some(info.node_count);
                    }
                    let place = |buffer| self.places[&buffer];
                    emit(
                        To::Stream(self.stream(*lane)),
                        work,
                        place,
                        &self.env.received,
                    );
                }
                Act::Alloc(lane, buffer, dtype) => {
                    self.enter(*lane);
                    let size = COUNT as u64 * width(*dtype);
                    let address = alloc(self.env.device, size, self.stream(*lane));
                    self.places.insert(*buffer, (address, *dtype));
                    self.homes.insert(*buffer, *lane);
                }
                Act::Free(buffer, join) => self.free(*buffer, *join),
                Act::Wait(lane, on) => self.wait(*lane, *on),
                Act::Child(body) => {
                    self.acts(body);
                    body.left
                        .iter()
                        .for_each(|&buffer| self.free(buffer, false));
                }
                Act::Choose(lane, choice, place, bodies) => {
                    let predicate = self.address(PREDICATES) + 8 * *place as u64;
                    if self.how.capture {
                        self.record(*lane, *choice, predicate, bodies, &act.uses());
                    } else {
                        self.order(*lane, &act.uses());
                        self.choose(*lane, *choice, predicate, bodies);
                    }
                }
            }
        }
    }

    /// Records a conditional, whose bodies are captured on streams of their own meanwhile.
    fn record(
        &mut self,
        lane: usize,
        choice: Choice,
        predicate: u64,
        bodies: &[Block],
        uses: &Uses,
    ) {
        let how = How {
            pool: 0,
            ..self.how
        };
        let graphs: Vec<u64> = bodies
            .iter()
            .map(|body| capture_at(self.env, body, &self.places, how, self.depth + 1).0)
            .collect();
        self.order(lane, uses);
        ok(unsafe {
            otr_capture_conditional(
                self.stream(lane),
                number(choice),
                predicate,
                DType::I64.0,
                graphs.as_ptr(),
                graphs.len() as u32,
            )
        });
        for graph in graphs {
            ok(unsafe { otr_graph_destroy(graph) });
        }
    }

    /// Runs what a predicate chooses: the host looks at it.
    fn choose(&mut self, lane: usize, choice: Choice, predicate: u64, bodies: &[Block]) {
        loop {
            self.env.synchronize();
            let value = download::<i64>(self.stream(lane), predicate, 1)[0];
            if choice == Choice::While && value == 0 {
                return;
            }
            let body = chosen(choice, value).and_then(|index| bodies.get(index));
            if let Some(body) = body {
                let mut lanes = Lanes::new(self.env, self.how, self.depth + 1, self.places.clone());
                lanes.whole(body);
                self.env.synchronize();
                lanes.free_late();
            }
            if choice != Choice::While {
                return;
            }
        }
    }
}

/// Programs built node by node: a node runs after those that it must not run beside.
pub(crate) fn build(env: &Env, block: &Block, places: &Places) -> (u64, Option<u32>) {
    let graph = made(|out| unsafe { otr_graph_create(env.device, 0, out) });
    let mut nodes = Nodes {
        env,
        graph,
        places: places.clone(),
        writes: HashMap::new(),
        reads: HashMap::new(),
        last: None,
        named: None,
    };
    block.acts.iter().for_each(|act| nodes.act(act));
    (graph, nodes.named)
}

struct Nodes<'a> {
    env: &'a Env,
    graph: u64,
    places: Places,
    writes: HashMap<Buffer, u32>,
    reads: HashMap<Buffer, Vec<u32>>,
    last: Option<u32>,
    named: Option<u32>,
}

impl Nodes<'_> {
    fn deps(&self, uses: &Uses) -> Vec<u32> {
        let mut deps = BTreeSet::new();
        for buffer in uses.reads.union(&uses.writes) {
            deps.extend(self.writes.get(buffer));
            if uses.writes.contains(buffer) {
                deps.extend(self.reads.get(buffer).into_iter().flatten());
            }
        }
        deps.into_iter().collect()
    }

    fn added(&mut self, node: u32, uses: &Uses) {
        self.last = Some(node);
        for &buffer in &uses.writes {
            self.writes.insert(buffer, node);
            self.reads.remove(&buffer);
        }
        for &buffer in uses.reads.difference(&uses.writes) {
            self.reads.entry(buffer).or_default().push(node);
        }
    }

    fn act(&mut self, act: &Act) {
        let uses = act.uses();
        let deps = self.deps(&uses);
        let (graph, count) = (self.graph, deps.len() as u32);
        let node = match act {
            Act::Work(_, work) => {
                let place = |buffer| self.places[&buffer];
                let node = emit(To::Graph(graph, &deps), work, place, &self.env.received);
                if let Work::Add { named: true, .. } = work {
                    self.named = Some(node);
                }
                node
            }
            Act::Alloc(_, buffer, dtype) => {
                let (mut address, size) = (0, COUNT as u64 * width(*dtype));
                let node = made(|node| unsafe {
                    otr_graph_add_alloc(graph, deps.as_ptr(), count, size, &mut address, node)
                });
                self.places.insert(*buffer, (address, *dtype));
                self.writes.insert(*buffer, node);
                node
            }
            // Others are the graph's until it ends.
            Act::Free(buffer, true) => {
                let own = Uses {
                    writes: BTreeSet::from([*buffer]),
                    ..Uses::default()
                };
                let (deps, address) = (self.deps(&own), self.places[buffer].0);
                made(|node| unsafe {
                    otr_graph_add_free(graph, deps.as_ptr(), deps.len() as u32, address, node)
                })
            }
            Act::Free(_, false) => return,
            Act::Wait(..) => {
                let deps: Vec<u32> = self.last.into_iter().collect();
                made(|node| unsafe {
                    otr_graph_add_empty(graph, deps.as_ptr(), deps.len() as u32, node)
                })
            }
            Act::Child(body) => {
                let (child, _) = build(self.env, body, &self.places);
                let node = made(|node| unsafe {
                    otr_graph_add_child(graph, deps.as_ptr(), count, child, node)
                });
                ok(unsafe { otr_graph_destroy(child) });
                node
            }
            Act::Choose(_, choice, place, bodies) => {
                let built = bodies
                    .iter()
                    .map(|body| build(self.env, body, &self.places).0);
                let graphs: Vec<u64> = built.collect();
                let predicate = self.places[&PREDICATES].0 + 8 * *place as u64;
                let node = made(|node| unsafe {
                    otr_graph_add_conditional(
                        graph,
                        deps.as_ptr(),
                        count,
                        number(*choice),
                        predicate,
                        DType::I64.0,
                        graphs.as_ptr(),
                        graphs.len() as u32,
                        node,
                    )
                });
                for graph in graphs {
                    ok(unsafe { otr_graph_destroy(graph) });
                }
                node
            }
        };
        self.added(node, &uses);
    }
}

/// The places of the buffers that a program is given.
pub(crate) fn places(sets: &[[u64; GLOBALS]; 2], map: &[usize; GLOBALS]) -> Places {
    (0..GLOBALS)
        .map(|buffer| {
            let address = sets[map[buffer]][buffer];
            (buffer, (address, super::commands::dtype(buffer)))
        })
        .collect()
}
