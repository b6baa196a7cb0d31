//! A graph that is ready to run: a flat array of kernels with their argument blocks, and the words of the blocks that a
//! replay may change.
//!
//! One replay of a program runs at a time: the executable graph orders replays. That is why a replay may write to the
//! argument blocks without a lock.

pub(crate) mod conditional;

use std::cell::UnsafeCell;
use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use outrigger_device::Code;
use outrigger_locks::{Mutex, Rank};
use outrigger_ops::{KernelFn, packed, parallel};

use crate::Result;
use crate::dag::NodeId;
use crate::data::{GraphData, Work};
use crate::schedule::{Region, Schedule};
use crate::steps;

/// The number of times that a thread without a chunk looks for one before it yields the processor.
const SPINS: u32 = 1_000;

/// A kernel and its argument block.
#[derive(Clone, Copy)]
struct Step {
    function: KernelFn,
    args: *const c_void,
    size: u32,
    node: NodeId,
}

/// A word of an argument block that is an address in a buffer, and its offset in the buffer.
#[derive(Clone, Copy)]
pub(crate) struct Relocation {
    word: *mut u64,
    offset: u64,
}

/// The words of an argument block that follow a generator.
struct DrawPlace {
    seed: *mut u64,
    offset: *mut u64,
    relative: u64,
    generator: u32,
}

/// One change that a replay makes to the argument blocks before it runs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Patch {
    /// The thing that changes. Below [`Patch::GENERATOR`]: the slot of a buffer, and `first` is its address. From there
    /// on: a generator, and the numbers are seed and offset. From [`Patch::WORD`] on: a word, and `first` is its value.
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
    pub(crate) schedule: Arc<Schedule>,
    /// An `Arc`, not a box: other pointers into the words exist, and a box would claim to be the only one.
    words: Arc<[UnsafeCell<u64>]>,
    /// The words that follow the buffer of each slot.
    relocations: Vec<Vec<Relocation>>,
    /// The recorded address and size of the buffer of each slot.
    recorded: Vec<(u64, u64)>,
    draws: Vec<DrawPlace>,
    /// The bodies of each conditional node, by the index that its command has.
    pub(crate) bodies: Vec<Vec<Program>>,
    pub(crate) data: Arc<GraphData>,
    threads: u32,
    pace: Pace,
    failed: Mutex<Option<NodeId>>,
    /// The number of the latest replay whose patches were written.
    pub(crate) applied: AtomicU64,
}

// SAFETY: the pointers lead into `words` and `bodies` of the same program, which lie on the heap and do not move. The
// executable graph runs one replay at a time, so no two threads write to them at once.
unsafe impl Send for Program {}
// SAFETY: as for `Send`: `words` are written only by a replay, and replays do not overlap.
unsafe impl Sync for Program {}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("steps", &self.steps.len())
            .finish_non_exhaustive()
    }
}

impl Program {
    /// Makes a graph ready to run in the order of a schedule. `slots` are the address and size of each buffer that may
    /// be bound. `like` is the program of a graph with the same commands and the same schedule, if there is one: its
    /// steps are taken over, and only the argument blocks are new.
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
        let in_place = data.store.packed || !bodies.is_empty();
        for (_, node) in data.graph.nodes().filter(|_| in_place) {
            let command = &node.spec.command;
            match command.work {
                Work::Conditional(index) => {
                    let pointer = place(command.words.start + conditional::BODIES);
                    // SAFETY: a word of this program, which nobody runs yet. The bodies of one node do not move when
                    // the vector that holds their vector moves.
                    unsafe { pointer.write(bodies[index].as_ptr() as u64) };
                }
                Work::Operator(..) => {
                    let block = words.as_ptr().wrapping_add(command.words.start as usize);
                    // SAFETY: the block of a driver's operator, in words that nobody uses yet and that do not move. A
                    // cell may be written through a shared reference.
                    unsafe { packed::fix(UnsafeCell::raw_get(block)) };
                }
                Work::None | Work::Kernel(_) | Work::Device(_) => {}
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

    /// The steps of this program over the argument blocks of another one with the same layout.
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

    /// The argument block of a node, with the changes of the latest replay.
    ///
    /// # Safety
    /// No replay is running, and none starts while the result is used.
    pub(crate) unsafe fn block(&self, words: std::ops::Range<u32>) -> &[u64] {
        let cells = &self.words[words.start as usize..words.end as usize];
        // SAFETY: this function's contract: nobody writes to the words meanwhile. A cell is laid out as its contents.
        unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) }
    }

    /// The present address of each named buffer that steps use, and the address and size that were recorded.
    ///
    /// # Safety
    /// No replay is running.
    pub(crate) unsafe fn bindings(&self) -> Vec<(u64, (u64, u64))> {
        let slots = self.relocations.iter().zip(&self.recorded);
        slots
            .filter_map(|(words, &recorded)| {
                let first = words.first()?;
                // SAFETY: a word of this program or of one of its bodies. This function's contract: nobody writes to
                // it.
                let now = unsafe { first.word.read() };
                Some((now.wrapping_sub(first.offset), recorded))
            })
            .collect()
    }

    /// Writes the changes of a replay into the argument blocks.
    ///
    /// # Safety
    /// No other replay of the program is running.
    #[inline]
    pub(crate) unsafe fn patch(&self, patches: &[Patch]) {
        for patch in patches {
            // SAFETY: a word of this program or of a body. This function's contract: no replay uses it.
            self.each_change(patch, |word, value| unsafe { word.write(value) });
        }
    }

    /// The words that the changes of a replay write, as indexes. Words of bodies are left out.
    pub(crate) fn words_of(&self, patches: &[Patch]) -> Vec<u32> {
        let words = self.words.as_ptr_range();
        let mut found = Vec::new();
        for patch in patches {
            self.each_change(patch, |word, _| {
                let word = word.cast_const().cast();
                if words.contains(&word) {
                    let offset = word as usize - words.start as usize;
                    found.push((offset / size_of::<u64>()) as u32);
                }
            });
        }
        found
    }

    /// Calls `with` for each word that a change writes, with the value.
    #[inline]
    fn each_change(&self, patch: &Patch, mut with: impl FnMut(*mut u64, u64)) {
        let index = patch.target as u32;
        match patch.target & !u64::from(u32::MAX) {
            0 => {
                for one in &self.relocations[index as usize] {
                    with(one.word, patch.first.wrapping_add(one.offset));
                }
            }
            Patch::GENERATOR => {
                for draw in self.draws.iter().filter(|draw| draw.generator == index) {
                    with(draw.seed, patch.first);
                    with(draw.offset, patch.second.wrapping_add(draw.relative));
                }
            }
            _ => with(self.words[index as usize].get(), patch.first),
        }
    }

    /// Runs all steps, and returns the code of the first failure. [`Program::take_failed_label`] names the node.
    ///
    /// # Safety
    /// - The memory that the steps name is live, after `bias` was added to device addresses.
    /// - No other replay of this program is running.
    #[inline]
    pub(crate) unsafe fn run(&self, bias: i64) -> i32 {
        if self.threads < 2 || !self.schedule.is_parallel() {
            // SAFETY: this function's contract: the memory is live, and no other replay is running.
            return unsafe { self.run_steps(&self.steps, bias, Code::OK.0) };
        }
        let team = self.pace.team();
        let begun = Instant::now();
        let mut code = Code::OK.0;
        if team {
            for region in &self.schedule.regions {
                // SAFETY: this function's contract: the memory is live, and no other replay is running.
                code = unsafe { self.run_region(region, bias, code) };
            }
        } else {
            // SAFETY: this function's contract: the memory is live, and no other replay is running.
            code = unsafe { self.run_steps(&self.steps, bias, code) };
        }
        self.pace.note(team, begun.elapsed());
        code
    }

    /// Runs one region. After a failure `upstream`, only its host functions are called.
    ///
    /// # Safety
    /// The contract of [`Program::run`].
    unsafe fn run_region(&self, region: &Region, bias: i64, upstream: i32) -> i32 {
        let schedule = &self.schedule;
        let (first, last) = (region.segments.start, region.segments.end - 1);
        let chunks = schedule.segments[first as usize].start..schedule.segments[last as usize].end;
        if !region.team {
            let steps = chunks.map(|chunk| self.steps_of(chunk));
            // SAFETY: this function's contract is that of `run`, and `run_steps` needs no more.
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
        // Each of these calls runs chunks until none is left. If only one thread comes, it runs all of them.
        parallel::for_range(0, i64::from(self.threads), 1, &|_, _| team.work());
        team.code.load(Ordering::Relaxed)
    }

    fn steps_of(&self, chunk: u32) -> &[Step] {
        let range = &self.schedule.chunks[chunk as usize];
        &self.steps[range.start as usize..range.end as usize]
    }

    /// Runs steps in order. After a failure, before these steps (`upstream`) or in one of them, only host functions are
    /// called, and are told the failure.
    ///
    /// # Safety
    /// The contract of [`Program::run`].
    #[inline(never)] // inlined, the loop costs one instruction more for each step
    unsafe fn run_steps(&self, steps: &[Step], bias: i64, upstream: i32) -> i32 {
        let mut code = upstream;
        let mut rest = steps.iter();
        if code == Code::OK.0 {
            let failed = rest.find(|step| {
                // SAFETY: this function's contract: the memory is live. The block was made for this kernel.
                code = unsafe { (step.function)(step.args, step.size, bias) };
                code != Code::OK.0
            });
            let Some(failed) = failed else {
                return code;
            };
            self.fail(failed.node);
        }
        // SAFETY: this function's contract is that of `run`, and `call_rest` needs no more.
        unsafe { call_rest(rest.as_slice(), bias, code) };
        code
    }

    /// Runs all steps on this thread, in the order of the schedule. Tells `watch` when each node begins (`false`) and
    /// ends (`true`).
    ///
    /// # Safety
    /// The contract of [`Program::run`].
    pub(crate) unsafe fn run_watched(&self, bias: i64, watch: &mut dyn FnMut(NodeId, bool)) -> i32 {
        for step in &self.steps {
            watch(step.node, false);
            // SAFETY: this function's contract: the memory is live. The block was made for this kernel.
            let code = unsafe { (step.function)(step.args, step.size, bias) };
            watch(step.node, true);
            if code != Code::OK.0 {
                self.fail(step.node);
                return code;
            }
        }
        Code::OK.0
    }

    #[cold]
    fn fail(&self, node: NodeId) {
        self.failed.lock().get_or_insert(node);
    }

    /// The name of the first node that failed since the last call. If the node was in a body, its name is given.
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

/// A node as a step; `None` if the node does not run in this program.
fn step(data: &GraphData, words: &[UnsafeCell<u64>], id: NodeId) -> Option<Step> {
    let command = &data.graph.node(id)?.spec.command;
    let function = match command.work {
        Work::Kernel(function) => function,
        Work::Conditional(_) => conditional::conditional,
        Work::None | Work::Operator(..) | Work::Device(_) => return None,
    };
    // A pointer that may reach the whole block: a pointer to its first word could not.
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

/// Calls the host functions among steps that do not run because of a failure.
///
/// # Safety
/// The contract of [`Program::run`].
#[cold]
unsafe fn call_rest(steps: &[Step], bias: i64, upstream: i32) {
    for step in steps.iter().filter(|step| steps::is_host(step.function)) {
        // SAFETY: `is_host`: the step has a block of `host_block`. This function's contract: it may be called.
        unsafe { steps::call_host(step.function, step.args, bias, upstream) };
    }
}

/// Measured times of replays with a team and alone. Estimates say where a team could pay, and these times say whether
/// it does. On busy processors it often does not: a thread that waits for a descheduled thread loses more than a second
/// thread gains.
#[derive(Default)]
struct Pace {
    /// Moving averages in nanoseconds; 0 before the first run.
    team: AtomicU64,
    alone: AtomicU64,
    runs: AtomicU32,
}

impl Pace {
    /// Whether the next run uses a team. The faster way is taken, and the other one is tried from time to time.
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

/// Threads that run one region together. A thread claims a chunk only when the chunk can run at once. So whoever has
/// claimed a chunk is running it, and one thread alone can run all chunks that nobody has claimed.
struct Team<'a> {
    program: &'a Program,
    bias: i64,
    /// The first segment of the region.
    segment: u32,
    /// The end of the region's chunks.
    end: u32,
    /// The chunk that is claimed next.
    next: CachePadded<AtomicU32>,
    /// The first chunk of the region plus the number of chunks that are done.
    done: CachePadded<AtomicU32>,
    /// The first failure.
    code: AtomicI32,
}

/// Waits a moment: spins at first, and yields the processor after some microseconds. On a busy machine a yield costs
/// milliseconds, much more than most chunks take.
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
            // Acquire: this chunk sees what the chunks of the segments before it have written.
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
        // SAFETY: the contract of `Program::run`, which waits for this team before it returns. `next` gives each chunk
        // to one thread.
        let code = unsafe { self.program.run_steps(steps, self.bias, before) };
        if code != before {
            let (now, missed) = (Ordering::Relaxed, Ordering::Relaxed);
            _ = self.code.compare_exchange(Code::OK.0, code, now, missed);
        }
    }
}
