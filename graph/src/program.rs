//! A graph made ready to run: a flat array of kernels with prebuilt argument blocks, and the places in
//! them that a replay may change.
//!
//! A program runs on one replay at a time: the executable graph orders them. That is why `run` may
//! write to the argument blocks without a lock.

pub(crate) mod conditional;

use std::cell::UnsafeCell;
use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use outrigger_device::Code;
use outrigger_locks::{Mutex, Rank};
use outrigger_ops::{KernelFn, parallel};

use crate::Result;
use crate::dag::NodeId;
use crate::data::{GraphData, Work};
use crate::schedule::{Region, Schedule};
use crate::steps;

/// How often a thread that has nothing to claim looks again before it lets others run.
const SPINS: u32 = 1_000;

/// A kernel and its argument block.
#[derive(Clone, Copy)]
struct Step {
    function: KernelFn,
    args: *const c_void,
    size: u32,
    node: NodeId,
}

/// A word of an argument block that follows a buffer: where it is, and how far into the buffer it
/// points.
#[derive(Clone, Copy)]
pub(crate) struct Relocation {
    word: *mut u64,
    offset: u64,
}

/// Words of argument blocks that follow a generator.
struct DrawPlace {
    seed: *mut u64,
    offset: *mut u64,
    relative: u64,
    generator: u32,
}

/// What a replay changes before it runs: two numbers for one thing.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Patch {
    /// 0 to the number of slots: a buffer; from [`Patch::GENERATOR`] on: a generator; then a word.
    pub(crate) target: u64,
    pub(crate) first: u64,
    pub(crate) second: u64,
}

impl Patch {
    pub(crate) const GENERATOR: u64 = 1 << 32;
    pub(crate) const WORD: u64 = 2 << 32;
}

/// A graph that can run.
pub(crate) struct Program {
    steps: Vec<Step>,
    schedule: Arc<Schedule>,
    /// Shared, as pointers into it are: a box would claim to be the only way there.
    words: Arc<[UnsafeCell<u64>]>,
    /// By slot.
    relocations: Vec<Vec<Relocation>>,
    /// The address and size that each slot was recorded with.
    recorded: Vec<(u64, u64)>,
    draws: Vec<DrawPlace>,
    bodies: Vec<Vec<Program>>,
    data: Arc<GraphData>,
    threads: u32,
    pace: Pace,
    failed: Mutex<Option<NodeId>>,
    /// The number of the latest replay whose patches were taken over.
    pub(crate) applied: AtomicU64,
}

// SAFETY: the pointers are into `words` and bodies of the same program, which are heap memory that does
// not move; who may write there is decided by the executable graph, which runs one replay at a time.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("steps", &self.steps.len())
            .finish_non_exhaustive()
    }
}

impl Program {
    /// Makes a graph ready, in the order of a schedule. `slots` are the buffers that may be bound, by
    /// address and size. `like` is the program of a graph with the same commands and the same schedule, if
    /// there is one: then nothing but the blocks is looked at.
    pub(crate) fn new(
        data: &Arc<GraphData>,
        schedule: &Arc<Schedule>,
        threads: u32,
        slots: &[(u64, u64)],
        like: Option<&Self>,
    ) -> Result<Self> {
        let words: Arc<[UnsafeCell<u64>]> = data
            .store
            .words
            .iter()
            .copied()
            .map(UnsafeCell::new)
            .collect();
        let place = |word: u32| UnsafeCell::raw_get(&raw const words[word as usize]);
        let mut bodies = Vec::with_capacity(data.store.bodies.len());
        for one in &data.store.bodies {
            let programs = one.graphs.iter().map(|graph| {
                let schedule = Arc::new(graph.graph.schedule(threads));
                Self::new(graph, &schedule, threads, slots, None)
            });
            bodies.push(programs.collect::<Result<Vec<_>>>()?);
        }
        let nodes = data
            .graph
            .nodes()
            .take(if bodies.is_empty() { 0 } else { usize::MAX });
        for (_, node) in nodes {
            let command = &node.spec.command;
            if let Work::Conditional(index) = command.work {
                let pointer = place(command.words.start + conditional::BODIES);
                // SAFETY: a word of this program that nobody runs yet. The vector's memory does not
                // move when the vector of vectors does.
                unsafe { pointer.write(bodies[index].as_ptr() as u64) };
            }
        }
        let steps = match like {
            Some(like) => like.steps_over(&words),
            None => {
                let order = schedule.steps.iter();
                order.filter_map(|&id| step(data, &words, id)).collect()
            }
        };
        let mut relocations = vec![Vec::new(); slots.len()];
        if !slots.is_empty() {
            for one in &data.store.addresses {
                for (slot, &(address, size)) in slots.iter().enumerate() {
                    if one.address.wrapping_sub(address) < size {
                        relocations[slot].push(Relocation {
                            word: place(one.word),
                            offset: one.address - address,
                        });
                    }
                }
            }
            for body in bodies.iter().flatten() {
                for (slot, more) in body.relocations.iter().enumerate() {
                    relocations[slot].extend_from_slice(more);
                }
            }
        }
        let draws = data.store.draws.iter().map(|draw| DrawPlace {
            seed: place(draw.seed),
            offset: place(draw.offset),
            relative: draw.relative,
            generator: draw.generator,
        });
        let draws = draws.collect();
        Ok(Self {
            data: Arc::clone(data),
            steps,
            schedule: Arc::clone(schedule),
            relocations,
            recorded: slots.to_vec(),
            draws,
            bodies,
            words,
            threads,
            pace: Pace::default(),
            failed: Mutex::new(Rank::FailedNode, None),
            applied: AtomicU64::new(0),
        })
    }

    /// The steps of this program over other blocks, which lie as its own do.
    fn steps_over(&self, words: &[UnsafeCell<u64>]) -> Vec<Step> {
        let moved = |step: &Step| {
            let mut step = *step;
            if !step.args.is_null() {
                let offset = step.args as usize - self.words.as_ptr() as usize;
                step.args = words.as_ptr().cast::<c_void>().wrapping_byte_add(offset);
            }
            step
        };
        self.steps.iter().map(moved).collect()
    }

    /// The argument block of a node, as it is now.
    ///
    /// # Safety
    /// No replay is running.
    pub(crate) unsafe fn block(&self, words: std::ops::Range<u32>) -> &[u64] {
        let cells = &self.words[words.start as usize..words.end as usize];
        // SAFETY: nobody writes meanwhile, by the caller's promise; a cell is laid out as its contents.
        unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) }
    }

    /// Where each named buffer that steps use lies now, and the address and size that it was recorded
    /// with.
    ///
    /// # Safety
    /// No replay is running.
    pub(crate) unsafe fn bindings(&self) -> Vec<(u64, (u64, u64))> {
        let slots = self.relocations.iter().zip(&self.recorded);
        slots
            .filter_map(|(words, &recorded)| {
                let first = words.first()?;
                // SAFETY: a word of this program or of a body; nobody writes meanwhile.
                let now = unsafe { first.word.read() };
                Some((now.wrapping_sub(first.offset), recorded))
            })
            .collect()
    }

    /// Changes what a replay was given.
    ///
    /// # Safety
    /// No other replay is running.
    #[inline]
    pub(crate) unsafe fn patch(&self, patches: &[Patch]) {
        for patch in patches {
            let index = patch.target as u32;
            match patch.target & !u64::from(u32::MAX) {
                0 => {
                    for one in &self.relocations[index as usize] {
                        // SAFETY: a word of this program; nobody else uses it now.
                        unsafe { one.word.write(patch.first.wrapping_add(one.offset)) };
                    }
                }
                Patch::GENERATOR => {
                    for draw in self.draws.iter().filter(|draw| draw.generator == index) {
                        // SAFETY: as above.
                        unsafe {
                            draw.seed.write(patch.first);
                            draw.offset.write(patch.second.wrapping_add(draw.relative));
                        }
                    }
                }
                _ => {
                    // SAFETY: as above.
                    unsafe { self.words[index as usize].get().write(patch.first) };
                }
            }
        }
    }

    /// Runs all steps. The result is a code; [`Program::failed_label`] tells which node failed.
    ///
    /// # Safety
    /// The memory that the steps name is live, where device addresses are moved by `bias`, and no other
    /// replay of this program is running.
    #[inline]
    pub(crate) unsafe fn run(&self, bias: i64) -> i32 {
        if self.threads < 2 || !self.schedule.is_parallel() {
            // SAFETY: the caller's promise.
            return unsafe { self.run_steps(&self.steps, bias, Code::OK.0) };
        }
        let team = self.pace.team();
        let begun = Instant::now();
        let mut code = Code::OK.0;
        if team {
            for region in &self.schedule.regions {
                // SAFETY: the caller's promise.
                code = unsafe { self.run_region(region, bias, code) };
            }
        } else {
            // SAFETY: the caller's promise.
            code = unsafe { self.run_steps(&self.steps, bias, code) };
        }
        self.pace.note(team, begun.elapsed());
        code
    }

    /// Runs one region, after a failure as `run_steps` does.
    ///
    /// # Safety
    /// As for [`Program::run`].
    unsafe fn run_region(&self, region: &Region, bias: i64, upstream: i32) -> i32 {
        let schedule = &self.schedule;
        let (first, last) = (region.segments.start, region.segments.end - 1);
        let chunks = schedule.segments[first as usize].start..schedule.segments[last as usize].end;
        if !region.team {
            let steps = chunks.map(|chunk| self.steps_of(chunk));
            // SAFETY: the caller's promise.
            return steps.fold(upstream, |code, steps| unsafe {
                self.run_steps(steps, bias, code)
            });
        }
        let team = Team {
            program: self,
            bias,
            segment: first,
            end: chunks.end,
            next: CachePadded::new(AtomicU32::new(chunks.start)),
            done: CachePadded::new(AtomicU32::new(chunks.start)),
            code: AtomicI32::new(upstream),
        };
        // Each part is one thread that looks for chunks until there are none; one alone does all.
        parallel::for_range(0, i64::from(self.threads), 1, &|_, _| team.work());
        team.code.load(Ordering::Relaxed)
    }

    fn steps_of(&self, chunk: u32) -> &[Step] {
        let range = &self.schedule.chunks[chunk as usize];
        &self.steps[range.start as usize..range.end as usize]
    }

    /// Runs steps in order. After a failure (`upstream` is one that happened before) only host
    /// functions are called, with it.
    ///
    /// # Safety
    /// As for [`Program::run`].
    #[inline(never)] // inlined, the loop costs one instruction more for each step
    unsafe fn run_steps(&self, steps: &[Step], bias: i64, upstream: i32) -> i32 {
        let mut code = upstream;
        let mut rest = steps.iter();
        if code == Code::OK.0 {
            let failed = rest.find(|step| {
                // SAFETY: the caller's promise; the block was made for this kernel.
                code = unsafe { (step.function)(step.args, step.size, bias) };
                code != Code::OK.0
            });
            let Some(failed) = failed else {
                return code;
            };
            self.fail(failed.node);
        }
        // SAFETY: as above.
        unsafe { call_rest(rest.as_slice(), bias, code) };
        code
    }

    /// Runs all steps on this thread, in the order of the schedule, and tells each node's beginning and
    /// end to `watch`.
    ///
    /// # Safety
    /// As for [`Program::run`].
    pub(crate) unsafe fn run_watched(&self, bias: i64, watch: &mut dyn FnMut(NodeId, bool)) -> i32 {
        for step in &self.steps {
            watch(step.node, false);
            // SAFETY: the caller's promise.
            let code = unsafe { (step.function)(step.args, step.size, bias) };
            watch(step.node, true);
            if code != Code::OK.0 {
                self.fail(step.node);
                return code;
            }
        }
        Code::OK.0
    }

    /// Runs nodes in the given order, also such that the schedule drops, and tells the end of each.
    ///
    /// # Safety
    /// As for [`Program::run`].
    pub(crate) unsafe fn run_in_order(
        &self,
        nodes: impl Iterator<Item = NodeId>,
        bias: i64,
        ended: &mut dyn FnMut(NodeId),
    ) -> i32 {
        for step in nodes.filter_map(|id| step(&self.data, &self.words, id)) {
            // SAFETY: the caller's promise.
            let code = unsafe { (step.function)(step.args, step.size, bias) };
            ended(step.node);
            if code != Code::OK.0 {
                return code;
            }
        }
        Code::OK.0
    }

    #[cold]
    fn fail(&self, node: NodeId) {
        self.failed.lock().get_or_insert(node);
    }

    /// The name of the first node that failed since the last call: of a body, if it was one.
    #[cold]
    pub(crate) fn take_failed_label(&self) -> Option<CString> {
        let bodies = self.bodies.iter().flatten();
        let inner = bodies.filter_map(|body| body.take_failed_label()).next();
        let node = self.failed.lock().take();
        inner.or_else(|| {
            let label = &self.data.graph.node(node?)?.spec.label;
            CString::new(label.as_bytes()).ok()
        })
    }
}

/// A node as a step; `None` if nothing of it runs here.
fn step(data: &GraphData, words: &[UnsafeCell<u64>], id: NodeId) -> Option<Step> {
    let command = &data.graph.node(id)?.spec.command;
    let function = match command.work {
        Work::Kernel(function) => function,
        Work::Conditional(_) => conditional::conditional,
        Work::None | Work::Operator(..) => return None,
    };
    // A pointer to the whole block, not to its first word alone.
    let args = words
        .get(command.words.start as usize..)
        .filter(|rest| !rest.is_empty())
        .map_or(std::ptr::null(), |rest| rest.as_ptr().cast::<c_void>());
    Some(Step {
        function,
        args,
        size: command.size,
        node: id,
    })
}

/// Calls the host functions among steps that are not run.
///
/// # Safety
/// As for [`Program::run`].
#[cold]
unsafe fn call_rest(steps: &[Step], bias: i64, upstream: i32) {
    for step in steps.iter().filter(|step| steps::is_host(step.function)) {
        // SAFETY: the block is of a host function, as just checked.
        unsafe { steps::call_host(step.function, step.args, bias, upstream) };
    }
}

/// How long replays take with a team and alone. Estimates say where a team could pay; whether it does is
/// seen: where other programs keep the processors busy, a thread that waits for a descheduled one loses
/// more than a second one gains.
#[derive(Default)]
struct Pace {
    /// Moving averages in nanoseconds; 0: not tried yet.
    team: AtomicU64,
    alone: AtomicU64,
    runs: AtomicU32,
}

impl Pace {
    /// Whether the next run is a team's: the faster way, and now and then the other one.
    fn team(&self) -> bool {
        let (team, alone) = (
            self.team.load(Ordering::Relaxed),
            self.alone.load(Ordering::Relaxed),
        );
        if team == 0 || alone == 0 {
            return team == 0;
        }
        let (faster, slower) = (team.min(alone), team.max(alone));
        let every = if slower > faster + faster / 2 { 64 } else { 16 };
        let other = self.runs.fetch_add(1, Ordering::Relaxed) % every == every - 1;
        (team <= alone) != other
    }

    fn note(&self, team: bool, time: Duration) {
        let average = if team { &self.team } else { &self.alone };
        let now = (time.as_nanos() as u64).max(1);
        let next = match average.load(Ordering::Relaxed) {
            0 => now,
            old => (old * 3 + now) / 4,
        };
        average.store(next.max(1), Ordering::Relaxed);
    }
}

/// Threads that run one region together. A chunk is claimed only when it can run at once, so that
/// whoever holds one is running, and one thread alone can do all that nobody has claimed.
struct Team<'a> {
    program: &'a Program,
    bias: i64,
    /// The first segment of the region.
    segment: u32,
    /// The end of its chunks.
    end: u32,
    /// The chunk that is claimed next.
    next: CachePadded<AtomicU32>,
    /// The chunk up to which as many are done.
    done: CachePadded<AtomicU32>,
    /// The first failure.
    code: AtomicI32,
}

/// Looks again soon; after some microseconds lets others run first. On a busy machine giving the
/// processor away costs milliseconds, much more than chunks mostly take.
#[inline]
fn wait(waits: &mut u32) {
    *waits += 1;
    if *waits < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

impl Team<'_> {
    fn work(&self) {
        let segments = &self.program.schedule.segments;
        let mut segment = self.segment as usize;
        let mut waits = 0;
        loop {
            let chunk = self.next.load(Ordering::Relaxed);
            if chunk >= self.end {
                return;
            }
            while segments[segment].end <= chunk {
                segment += 1;
            }
            // Acquire: what those chunks have written lies before what this one reads.
            if self.done.load(Ordering::Acquire) < segments[segment].start {
                wait(&mut waits);
                continue;
            }
            let (now, missed) = (Ordering::Relaxed, Ordering::Relaxed);
            let claimed = self.next.compare_exchange(chunk, chunk + 1, now, missed);
            if claimed.is_err() {
                continue;
            }
            waits = 0;
            self.run(chunk);
            self.done.fetch_add(1, Ordering::Release);
        }
    }

    #[inline]
    fn run(&self, chunk: u32) {
        let steps = self.program.steps_of(chunk);
        let before = self.code.load(Ordering::Relaxed);
        // SAFETY: `Program::run` was promised all of this, and has not returned yet. Each chunk is
        // claimed once.
        let code = unsafe { self.program.run_steps(steps, self.bias, before) };
        if code != before {
            let (now, missed) = (Ordering::Relaxed, Ordering::Relaxed);
            _ = self.code.compare_exchange(Code::OK.0, code, now, missed);
        }
    }
}
