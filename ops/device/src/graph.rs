//! The group `graph` of a driver that has none: recorded commands become launches of persistent kernels (`plan.rs`).
//!
//! A launch finds its tables in memory of the device that no other launch uses at the time: it takes what an earlier launch
//! in front of it on the same queue had, or what a finished one had, or new memory. So launches of one graph never
//! wait for each other. What changed since is copied there in front of the launch.

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;

use outrigger_device::{Code, NO_OUTCOME, params, sys};
use parking_lot::Mutex;

use crate::call::{Refusal, Result};
use crate::command::{Body, Command};
use crate::group::Library;
use crate::plan::{Plan, Step};
use crate::recording::Recorder;
use crate::slots::{library, say, say_nothing};

type Queue = *mut sys::otr_queue;
type Handle = *mut sys::otr_drv_graph;

/// The first word of a graph, by which a foreign handle is known.
const MARK: u64 = 0x7461_736b_6772_6170;

/// A graph of the table.
#[repr(C)]
struct Graph {
    mark: u64,
    library: Arc<Library>,
    device: u32,
    /// A turn: it is held while commands are submitted, so that those of two launches do not mix up whose memory is whose.
    state: Mutex<State>,
}

struct State {
    body: Arc<Body>,
    /// The commands that launches of `body` submit; `None` after an update.
    plan: Option<Arc<Plan>>,
    places: Vec<Place>,
}

/// Memory of the device for the words of a plan.
struct Place {
    address: u64,
    /// The number of words.
    words: usize,
    /// The plan whose words are there, unless a copy has failed. It keeps the programs of the last launch.
    holds: Option<Arc<Plan>>,
    /// The queue of the last launch, and how many queues had been destroyed then: a later one may have the same handle.
    queue: (usize, u64),
    /// Behind the last launch.
    last: Event,
    /// The plans that copies read, each with the event behind the copy (R26).
    copies: VecDeque<(Event, Arc<Plan>)>,
}

/// An event of the driver.
struct Event {
    handle: *mut sys::otr_drv_event,
    library: Arc<Library>,
}

// SAFETY: R8: an event may be used on any thread.
unsafe impl Send for Event {}

impl Event {
    fn new(library: &Arc<Library>, device: u32) -> Answer<Self> {
        let raw = library.below.raw();
        let create = raw.api().event_create.ok_or(Failure::MISSING)?;
        let mut handle = null_mut();
        // SAFETY: the driver is open, and the place lives through the call.
        done(unsafe { create(raw.handle(), device, std::ptr::null(), &mut handle) })?;
        let library = Arc::clone(library);
        Ok(Self { handle, library })
    }

    fn record(&self, recorder: &Recorder, queue: Queue) -> Answer<()> {
        // SAFETY: R8: the host's queue, and an event that is not destroyed meanwhile.
        done(unsafe { (recorder.calls.event_record)(self.handle, queue) })
    }

    /// The outcome of the work in front of the event; `None` as long as nobody knows that it is over.
    fn outcome(&self, recorder: &Recorder) -> Option<Code> {
        let mut outcome = NO_OUTCOME;
        // SAFETY: R8: an event that is not destroyed meanwhile, and a place for the outcome.
        let code = unsafe { (recorder.calls.event_query)(self.handle, &mut outcome) };
        let told = (code == Code::OK.0).then_some(Code(outcome.code));
        told.filter(|told| *told != Code::NOT_READY)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(destroy) = self.library.below.raw().api().event_destroy {
            // SAFETY: made by `new`, and used by nobody else.
            unsafe { destroy(self.handle) };
        }
    }
}

/// The reason why a call fails: in the driver, which has a text, or here.
enum Failure {
    Below(i32),
    Ours(Refusal),
}

impl Failure {
    /// An entry that was there when the driver was opened.
    const MISSING: Self = Self::Below(Code::INTERNAL.0);
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Ours(refusal)
    }
}

type Answer<T> = std::result::Result<T, Failure>;

fn done(code: i32) -> Answer<()> {
    match code {
        0 => Ok(()),
        code => Err(Failure::Below(code)),
    }
}

/// Graphs that were destroyed while their launches ran: what these use.
#[derive(Default)]
pub(crate) struct Gone(Mutex<Vec<Place>>);

impl Gone {
    /// The number of places.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Gives back what no launch uses any more.
    pub(crate) fn sweep(&self, recorder: &Recorder) {
        let finished: Vec<_> = {
            let mut places = self.0.lock();
            places
                .extract_if(.., |place| place.last.outcome(recorder).is_some())
                .collect()
        };
        finished.into_iter().for_each(Place::free);
    }

    /// Waits for all launches, and gives everything back. What a launch uses of which nobody knows that it is over stays.
    pub(crate) fn clear(&self) {
        let places = std::mem::take(&mut *self.0.lock());
        for place in places {
            let wait = place.last.library.below.raw().api().event_synchronize;
            let waited = wait.is_some_and(|wait| {
                // SAFETY: R8: an event that is not destroyed meanwhile. A failure of the work is no news here.
                unsafe { wait(place.last.handle, &mut { NO_OUTCOME }) == Code::OK.0 }
            });
            if waited {
                place.free();
            }
        }
    }
}

impl Place {
    fn new(graph: &Graph, words: usize) -> Answer<Self> {
        let raw = graph.library.below.raw();
        let alloc = raw.api().memory_alloc.ok_or(Failure::MISSING)?;
        let last = Event::new(&graph.library, graph.device)?;
        let mut address = 0;
        let params = params::memory(words as u64 * 8);
        // SAFETY: the driver is open, and both structs live through the call.
        done(unsafe { alloc(raw.handle(), graph.device, &params, &mut address) })?;
        Ok(Self {
            address,
            words,
            holds: None,
            queue: (0, 0),
            last,
            copies: VecDeque::new(),
        })
    }

    /// Gives the memory back.
    fn free(self) {
        let raw = self.last.library.below.raw();
        if let Some(free) = raw.api().memory_free {
            // SAFETY: R12: the last launch has finished.
            unsafe { free(raw.handle(), self.address) };
        }
    }

    /// Copies what a plan has and this place does not.
    fn fill(
        &mut self,
        graph: &Graph,
        recorder: &Recorder,
        queue: Queue,
        plan: &Arc<Plan>,
    ) -> Answer<()> {
        let differs = match &self.holds {
            Some(holds) if Arc::ptr_eq(holds, plan) => return Ok(()),
            Some(holds) if holds.states == plan.states => difference(&holds.words, &plan.words),
            _ => 0..plan.words.len(),
        };
        // Until the copy is in the queue, nobody knows what is there.
        self.holds = None;
        if !differs.is_empty() {
            let behind = Event::new(&graph.library, graph.device)?;
            let from = plan.words[differs.clone()].as_ptr() as u64;
            let (to, size) = (
                self.address + differs.start as u64 * 8,
                differs.len() as u64 * 8,
            );
            let kind = sys::OTR_COPY_HOST_TO_DEVICE;
            // SAFETY: R26: the plan is kept in `copies` until the copy has finished.
            done(unsafe { (recorder.calls.copy)(queue, &params::copy(to, from, size, kind)) })?;
            let recorded = behind.record(recorder, queue);
            self.copies.push_back((behind, Arc::clone(plan)));
            recorded?;
        }
        self.holds = Some(Arc::clone(plan));
        Ok(())
    }
}

/// The words that differ, from the first to the last.
fn difference(old: &[u64], new: &[u64]) -> Range<usize> {
    let differ = |(one, other): (&u64, &u64)| one != other;
    let Some(first) = old.iter().zip(new).position(differ) else {
        return 0..0;
    };
    let last = old.iter().zip(new).rposition(differ).unwrap_or(first);
    first..last + 1
}

impl Graph {
    /// The place for a launch: one behind whose last launch this one comes.
    fn place<'a>(
        &self,
        places: &'a mut Vec<Place>,
        recorder: &Recorder,
        queue: (usize, u64),
        words: usize,
    ) -> Answer<&'a mut Place> {
        let mut found = None;
        let mut at = 0;
        while at < places.len() {
            let place = &mut places[at];
            let outcome = place.last.outcome(recorder);
            let is_finished = outcome.is_some();
            if outcome.is_some_and(|outcome| outcome != Code::OK) {
                // A launch or a copy was left out, so nobody knows what is there.
                place.holds = None;
            }
            let finished = |copy: &(Event, Arc<Plan>)| copy.0.outcome(recorder).is_some();
            while place.copies.front().is_some_and(finished) {
                place.copies.pop_front();
            }
            if place.words != words {
                if is_finished {
                    places.swap_remove(at).free();
                    continue;
                }
            } else if place.queue == queue {
                found = Some(at);
                break;
            } else if is_finished {
                found = Some(at);
            }
            at += 1;
        }
        let at = match found {
            Some(at) => at,
            None => {
                recorder.sweep();
                places.push(Place::new(self, words)?);
                places.len() - 1
            }
        };
        Ok(&mut places[at])
    }

    /// # Safety
    /// R31: all that the commands name is live until the launch has finished.
    unsafe fn launch(&self, recorder: &Recorder, queue: Queue) -> Answer<()> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let plan = state.plan.get_or_insert_with(|| self.planned(&state.body));
        if plan.steps.is_empty() {
            // The driver checks the queue (R7), and the order is kept (R25).
            let pattern = [0_u8];
            let fill = params::fill(0, 0, pattern.as_ptr().cast(), 1);
            // SAFETY: nothing is filled.
            return done(unsafe { (recorder.calls.fill)(queue, &fill) });
        }
        if plan.words.is_empty() {
            // SAFETY: this function's contract.
            return unsafe { submit(plan, 0, recorder, queue) };
        }
        let on = (queue.addr(), recorder.destroyed());
        let place = self.place(&mut state.places, recorder, on, plan.words.len())?;
        place.fill(self, recorder, queue, plan)?;
        // SAFETY: this function's contract.
        let submitted = unsafe { submit(plan, place.address, recorder, queue) };
        place.queue = on;
        let recorded = place.last.record(recorder, queue);
        submitted.and(recorded)
    }

    fn planned(&self, body: &Body) -> Arc<Plan> {
        let device = self.library.device(self.device);
        Arc::new(device.map_or_else(Plan::default, |device| Plan::of(body, device)))
    }
}

/// Submits the steps of a plan.
///
/// # Safety
/// R31: all that the commands name is live until the launch has finished; the words of the plan are at `address`.
unsafe fn submit(plan: &Plan, address: u64, recorder: &Recorder, queue: Queue) -> Answer<()> {
    if plan.steps.len() > 1 || !plan.words.is_empty() {
        recorder.set_split();
    }
    for step in &plan.steps {
        match step {
            Step::Part(part) => {
                let addresses = [address + part.table, address + part.state];
                // SAFETY: this function's contract.
                let launched = unsafe {
                    part.program
                        .launch(queue, part.workers, &addresses, &part.words())
                };
                launched.map_err(Failure::Below)?;
            }
            // SAFETY: this function's contract.
            Step::Command(command) => done(unsafe { command.submit(recorder, queue) })?,
        }
    }
    Ok(())
}

/// Keeps the launch of a graph on a queue that records.
fn keep(graph: &Graph, recorder: &Recorder, queue: Queue) -> Answer<()> {
    let body = Arc::clone(&graph.state.lock().body);
    Ok(recorder.keep(queue, Command::Graph(body))?)
}

/// The graph behind a handle.
///
/// # Safety
/// `handle` is NULL, or leads to a readable word; one of ours was not destroyed.
unsafe fn graph<'a>(handle: Handle) -> Answer<&'a Graph> {
    // SAFETY: this function's contract; the first field of a graph is the mark.
    let known = !handle.is_null() && unsafe { handle.cast::<u64>().read() } == MARK;
    if !known {
        let text = "the graph is NULL, or none of this driver";
        return Err(Refusal::new(Code::INVALID_HANDLE, text).into());
    }
    // SAFETY: one of ours, which was not destroyed.
    Ok(unsafe { &*handle.cast::<Graph>() })
}

/// The answer of an entry, with its text.
fn answer(slot: usize, library: &Library, outcome: Answer<()>) -> i32 {
    match outcome {
        Ok(()) => say_nothing(0),
        Err(Failure::Below(code)) => say_nothing(code),
        Err(Failure::Ours(refusal)) => say(slot, library, refusal.code, &refusal.text),
    }
}

/// Runs an entry of a slot.
fn of_slot(slot: usize, with: impl FnOnce(&Arc<Library>, &Recorder) -> Answer<()>) -> i32 {
    let Some(library) = library(slot) else {
        return Code::INVALID_HANDLE.0;
    };
    match &library.below.recorder {
        Some(recorder) => answer(slot, &library, with(&library, recorder)),
        None => Code::INTERNAL.0,
    }
}

/// The group of a slot.
pub(crate) const fn group<const SLOT: usize>() -> sys::otr_graph_api {
    sys::otr_graph_api {
        struct_size: size_of::<sys::otr_graph_api>(),
        record_begin: Some(record_begin::<SLOT>),
        record_end: Some(record_end::<SLOT>),
        launch: Some(launch::<SLOT>),
        update: Some(update::<SLOT>),
        destroy: Some(destroy::<SLOT>),
        update_part: Some(update_part::<SLOT>),
    }
}

unsafe extern "C" fn record_begin<const SLOT: usize>(queue: Queue) -> i32 {
    of_slot(SLOT, |_, recorder| {
        recorder.sweep();
        Ok(recorder.with(|table| table.begin(queue.addr()))?)
    })
}

unsafe extern "C" fn record_end<const SLOT: usize>(queue: Queue, place: *mut Handle) -> i32 {
    of_slot(SLOT, |library, recorder| {
        recorder.table().device(queue.addr())?;
        if place.is_null() {
            return Err(
                Refusal::new(Code::INVALID_ARGUMENT, "the place for the graph is NULL").into(),
            );
        }
        let (body, device) = recorder.with(|table| table.end(queue.addr()))?;
        let graph = Graph {
            mark: MARK,
            library: Arc::clone(library),
            device,
            state: Mutex::new(State {
                body: Arc::new(body),
                plan: None,
                places: Vec::new(),
            }),
        };
        // Now, because it may compile: a launch does not.
        let mut state = graph.state.lock();
        state.plan = Some(graph.planned(&state.body));
        drop(state);
        // SAFETY: not NULL, so writable.
        unsafe { *place = Box::into_raw(Box::new(graph)).cast() };
        Ok(())
    })
}

unsafe extern "C" fn launch<const SLOT: usize>(queue: Queue, handle: Handle) -> i32 {
    of_slot(SLOT, |_, recorder| {
        // SAFETY: R8: NULL, or a graph that is not destroyed meanwhile.
        let graph = unsafe { graph(handle) }?;
        let table = recorder.table();
        let (device, records) = (table.device(queue.addr())?, table.records(queue.addr()));
        drop(table);
        if device != graph.device {
            let text = format!(
                "the graph was recorded on device {}, not on device {device}, of which the queue is",
                graph.device
            );
            return Err(Refusal::new(Code::INVALID_DEVICE, text).into());
        }
        match records {
            true => keep(graph, recorder, queue),
            // SAFETY: R31: all that the commands name is live until the launch has finished.
            false => unsafe { graph.launch(recorder, queue) },
        }
    })
}

unsafe extern "C" fn update<const SLOT: usize>(handle: Handle, from: Handle) -> i32 {
    // SAFETY: the host's arguments.
    of_slot(SLOT, |_, _| unsafe {
        exchange(handle, from, 0, |own, other| {
            let count = |body: &Body| body.commands.len();
            if count(own) > count(other) {
                let text = format!(
                    "the graph has {} commands, not {}",
                    count(own),
                    count(other)
                );
                return Err(Refusal::new(Code::INVALID_ARGUMENT, text));
            }
            Ok(())
        })
    })
}

unsafe extern "C" fn update_part<const SLOT: usize>(
    handle: Handle,
    first: u32,
    from: Handle,
) -> i32 {
    // SAFETY: the host's arguments.
    of_slot(SLOT, |_, _| unsafe {
        exchange(handle, from, first as usize, |_, _| Ok(()))
    })
}

/// Gives later launches of a graph the arguments of another one's commands, from number `first` on.
///
/// # Safety
/// R8: each handle is NULL, or a graph that is not destroyed meanwhile.
unsafe fn exchange(
    handle: Handle,
    from: Handle,
    first: usize,
    check: impl FnOnce(&Body, &Body) -> Result<()>,
) -> Answer<()> {
    // SAFETY: this function's contract.
    let (graph, from) = unsafe { (graph(handle)?, graph(from)?) };
    if graph.device != from.device {
        return Err(Refusal::new(Code::INVALID_ARGUMENT, "the graphs are of two devices").into());
    }
    let other = Arc::clone(&from.state.lock().body);
    let mut state = graph.state.lock();
    check(&state.body, &other)?;
    state.body.check_same(first, &other)?;
    // A copy only where another graph has these commands too.
    Arc::make_mut(&mut state.body).replace(first, &other);
    state.plan = None;
    Ok(())
}

unsafe extern "C" fn destroy<const SLOT: usize>(handle: Handle) -> i32 {
    of_slot(SLOT, |_, recorder| {
        // SAFETY: R8: NULL, or a graph that nothing else uses.
        unsafe { graph(handle) }?;
        // SAFETY: made by `Box::into_raw` in `record_end`, and given back by the host.
        let mut gone = unsafe { Box::from_raw(handle.cast::<Graph>()) };
        gone.mark = 0;
        recorder
            .gone
            .0
            .lock()
            .append(&mut gone.state.get_mut().places);
        recorder.sweep();
        Ok(())
    })
}
