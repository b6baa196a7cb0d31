//! Runs the calls of a recording on a driver, one after another on one thread. The player has its own
//! host memory and host calls, and waits as a correct host does. It reports what the driver answers,
//! and does not judge it.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{c_char, c_void};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use outrigger_device::{Code, Driver, Error, NO_OUTCOME, Result, params, sys};

use super::arguments::{self, Frame, Rebuilt, Skip, Things, list, number};
use super::recording::{Recording, Step};
use crate::entries::entries;
use crate::record::Value;
use crate::record::function::Place;
use crate::{Entry, Next};

/// The choices that a replay of a recording has.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplayOptions {
    /// Whether to run host functions that were launched as kernels. They are found by their place in a
    /// file, which is loaded. Only for recordings that you trust: they name the code that runs.
    pub host_functions: bool,
    /// Whether new memory gets a value, so that runs on two drivers can be compared.
    pub define_memory: bool,
}

/// The outcome of a run of a recording.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// For each call, in the order of the recording.
    pub results: Vec<CallResult>,
}

/// The outcome of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallResult {
    /// The code that the call answered; `None` if it was not replayed.
    pub code: Option<i32>,
    /// The code of the outcome that the call wrote, if it asked or waited for work.
    pub outcome: Option<i32>,
    /// The reason why the call was not replayed.
    pub skipped: Option<&'static str>,
    /// For a copy to host memory, what was there when the host could first know that it was.
    pub read: Option<Vec<u8>>,
    /// For a host call, the failure before it, each time it was called.
    pub called: Vec<i32>,
    /// Whether memory may differ from what was recorded, since work before it was not replayed.
    pub uncertain: bool,
}

/// A piece of host memory that work of the driver uses: kept until the driver is closed.
enum HostMemory {
    Bytes(Box<[u8]>),
    Call(Box<HostCall>),
}

struct HostCall {
    outcome: i32,
    called: Mutex<Vec<i32>>,
}

unsafe extern "C" fn host_call(user: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: a `HostCall` of the player, which keeps it until the driver is closed.
    let call = unsafe { &*user.cast::<HostCall>() };
    if let Ok(mut called) = call.called.lock() {
        called.push(upstream);
    }
    if upstream == Code::OK.0 {
        call.outcome
    } else {
        upstream
    }
}

/// Bytes of host memory that a copy may have: more was never there, and the copy was refused.
const LARGEST: u64 = 16 << 30;
const TOO_LARGE: Skip = "its host memory is too large";

/// A copy to host memory whose result nobody has looked at yet.
struct Pending {
    step: usize,
    queue: u64,
    memory: usize,
}

struct Player {
    next: Next,
    options: ReplayOptions,
    things: Things,
    /// The live objects with the entries that made them, in the order of making.
    alive: BTreeMap<u64, (Entry, u64)>,
    made: u64,
    host: Vec<HostMemory>,
    pending: Vec<Pending>,
    /// The piece of host memory of each call's host call.
    calls: Vec<(usize, usize)>,
    /// Queues with work that nobody has waited for.
    busy: HashSet<u64>,
    /// Each event with the queue and the step of its last record.
    events: Vec<(u64, u64, usize)>,
    /// Start and size of each mapping, and of each reservation.
    mapped: Vec<(u64, u64)>,
    reserved: Vec<(u64, u64)>,
    /// Size and device of each physical object.
    sizes: Vec<(u64, u64, u32)>,
    uncertain: bool,
    results: Vec<CallResult>,
}

/// Replays a recording on a driver that nobody else uses, and closes it.
///
/// # Errors
/// `BUSY` if the driver is in use. What the driver answers to the calls is in the result.
pub fn replay(recording: &Recording, driver: Driver, options: ReplayOptions) -> Result<Run> {
    let raw = driver.into_raw().map_err(|_| {
        Error::new(
            Code::BUSY,
            "a recording cannot be replayed on a driver that is in use",
        )
    })?;
    let handle = raw.handle().expose_provenance() as u64;
    let mut player = Player {
        next: Next::new(raw),
        options,
        things: Things::default(),
        alive: BTreeMap::new(),
        made: 0,
        host: Vec::new(),
        pending: Vec::new(),
        calls: Vec::new(),
        busy: HashSet::new(),
        events: Vec::new(),
        mapped: Vec::new(),
        reserved: Vec::new(),
        sizes: Vec::new(),
        uncertain: false,
        results: vec![CallResult::default(); recording.steps.len()],
    };
    player.things.objects.insert(0, handle);
    for (at, step) in recording.steps.iter().enumerate() {
        match player.step(at, step) {
            Ok(code) => player.results[at].code = Some(code),
            Err(reason) => {
                player.results[at].skipped = Some(reason);
                let updates = matches!(step.entry, Entry::graph_update | Entry::graph_update_part);
                player.uncertain |= step.entry.submits() || updates;
            }
        }
    }
    Ok(player.finish())
}

impl Player {
    /// Makes one call and notes what it changed.
    fn step(&mut self, at: usize, step: &Step) -> Result<i32, Skip> {
        if step.code.is_none() {
            return Err("it never returned");
        }
        let mut frame = Frame::default();
        let code = match step.entry {
            Entry::close => return Err("the player closes the driver itself"),
            Entry::module_binary => return Err("a driver compiles to what it likes"),
            Entry::host_call => self.host_call(at, step)?,
            Entry::copy => self.copy(at, step)?,
            Entry::native_adopt => self.native_adopt(step, &mut frame)?,
            Entry::module_load => self.module_load(step, &mut frame)?,
            Entry::kernel_launch => self.kernel_launch(step, &mut frame)?,
            _ => {
                self.before(step.entry);
                let code = self.call(step, &mut frame)?;
                self.again(step, &mut frame, code)?
            }
        };
        self.results[at].outcome = frame.outcome().filter(|_| code == Code::OK.0);
        self.after(at, step, code, &frame);
        Ok(code)
    }

    /// Repeats a query if the recorded host got its outcome later than this one.
    fn again(&mut self, step: &Step, frame: &mut Frame, code: i32) -> Result<i32, Skip> {
        const LONGEST: Duration = Duration::from_secs(2);
        let unready = Some(Code::NOT_READY.0);
        let asks = matches!(step.entry, Entry::queue_query | Entry::event_query);
        let awaits = asks && step.outcome().is_some() && step.outcome() != unready;
        let (start, mut code) = (Instant::now(), code);
        while awaits
            && code == Code::OK.0
            && frame.outcome() == unready
            && start.elapsed() < LONGEST
        {
            std::thread::sleep(Duration::from_micros(50));
            code = self.call(step, frame)?;
        }
        Ok(code)
    }

    /// Waits as a host has to before it frees something (R12).
    fn before(&mut self, entry: Entry) {
        if matches!(
            entry,
            Entry::memory_free
                | Entry::pinned_free
                | Entry::virtual_unmap
                | Entry::module_unload
                | Entry::operator_release
                | Entry::graph_destroy
        ) {
            self.drain();
        }
    }

    fn after(&mut self, at: usize, step: &Step, code: i32, frame: &Frame) {
        let first = step
            .arguments
            .first()
            .map(|value| self.things.object(value));
        let first = first.and_then(Result::ok).unwrap_or(0);
        if step.entry.submits() {
            let queue = match step.entry {
                Entry::event_record => step.arguments.get(1),
                _ => step.arguments.first(),
            };
            if let Some(Ok(queue)) = queue.map(|queue| self.things.object(queue)) {
                self.busy.insert(queue);
                if step.entry == Entry::event_record && code == Code::OK.0 {
                    self.events.retain(|(event, ..)| *event != first);
                    self.events.push((first, queue, at));
                }
            }
        }
        let outcome = self.results[at].outcome;
        let is_over = outcome.is_some_and(|outcome| outcome != Code::NOT_READY.0);
        match step.entry {
            Entry::queue_synchronize if is_over => {
                self.busy.remove(&first);
                self.look(|pending| pending.queue == first);
            }
            Entry::queue_query if is_over => {
                self.look(|pending| pending.queue == first);
            }
            Entry::event_synchronize | Entry::event_query if is_over => {
                let known = self.events.iter().find(|(event, ..)| *event == first);
                if let Some((_, queue, recorded)) = known.copied() {
                    self.look(|pending| pending.queue == queue && pending.step < recorded);
                }
            }
            _ => {}
        }
        if code == Code::OK.0 {
            self.keep_books(step, frame);
        }
    }

    /// Notes what a call that succeeded has made or taken.
    fn keep_books(&mut self, step: &Step, frame: &Frame) {
        let written: Vec<_> = frame.written().collect();
        for (at, value) in written.iter().copied().enumerate() {
            let is_thing = match step.outputs.get(at) {
                Some(Value::Object(id)) => {
                    self.things.objects.insert(*id, value);
                    true
                }
                Some(Value::Address(id, _)) => {
                    self.things.memory.insert(*id, value);
                    self.define(step, value);
                    true
                }
                Some(_) => false,
                // A call that failed when it was recorded gives back at the end what it made now.
                None => at + 1 == written.len(),
            };
            if is_thing && given_by(step.entry) != step.entry {
                self.made += 1;
                self.alive.insert(self.made, (step.entry, value));
            }
        }
        let argument = |at: usize| {
            let value = step.arguments.get(at)?;
            let things = &self.things;
            things.object(value).or_else(|_| things.address(value)).ok()
        };
        let number = |at: usize| match step.arguments.get(at) {
            Some(Value::Number(number)) => *number,
            _ => 0,
        };
        match step.entry {
            Entry::virtual_create => {
                let (device, size) = (number(1) as u32, made_size(step));
                self.sizes
                    .extend(written.iter().map(|handle| (*handle, size, device)));
            }
            Entry::virtual_reserve => {
                let size = made_size(step);
                self.reserved
                    .extend(written.iter().map(|address| (*address, size)));
            }
            Entry::virtual_release => {
                let address = argument(1);
                self.reserved.retain(|(start, _)| Some(*start) != address);
            }
            Entry::virtual_map => {
                if let Some(Value::List(params)) = step.arguments.get(1)
                    && let [address, Value::List(objects), ..] = &params[..]
                    && let Ok(address) = self.things.address(address)
                {
                    let known = |object| {
                        let handle = self.things.object(object).ok()?;
                        self.sizes.iter().rev().find(|(other, ..)| *other == handle)
                    };
                    let objects: Vec<_> = objects.iter().filter_map(known).copied().collect();
                    let size = objects.iter().map(|(_, size, _)| size).sum();
                    self.mapped.push((address, size));
                    let device = objects.first().map_or(0, |(.., device)| *device);
                    self.define_range(address, size, device);
                }
            }
            Entry::virtual_unmap => {
                if let Some(address) = argument(1) {
                    let end = address + number(2);
                    self.mapped
                        .retain(|(start, size)| *start >= end || start + size <= address);
                }
            }
            entry => {
                let taken = match entry {
                    Entry::queue_destroy
                    | Entry::event_destroy
                    | Entry::module_unload
                    | Entry::operator_release
                    | Entry::graph_destroy => argument(0),
                    Entry::memory_free | Entry::pinned_free | Entry::virtual_destroy => argument(1),
                    _ => None,
                };
                if let Some(taken) = taken {
                    self.alive
                        .retain(|_, (made, value)| *value != taken || given_by(*made) != entry);
                    if entry == Entry::queue_destroy {
                        self.busy.remove(&taken);
                    }
                }
            }
        }
    }

    /// Takes what copies gave, where the host may look at it now.
    fn look(&mut self, now: impl Fn(&Pending) -> bool) {
        let (results, host) = (&mut self.results, &self.host);
        self.pending.retain(|pending| {
            if !now(pending) {
                return true;
            }
            if let Some(HostMemory::Bytes(bytes)) = host.get(pending.memory) {
                // Work that should have finished may not have: what is there now is read as it is.
                let read = bytes.iter().map(|byte| {
                    // SAFETY: a reference to a byte that lives; volatile, since a driver that is wrong may
                    // still write there.
                    unsafe { std::ptr::read_volatile(byte) }
                });
                results[pending.step].read = Some(read.collect());
            }
            false
        });
    }

    fn host_call(&mut self, at: usize, step: &Step) -> Result<i32, Skip> {
        let [queue, call] = &step.arguments[..] else {
            return Err("it is incomplete");
        };
        let queue = std::ptr::with_exposed_provenance_mut(self.things.object(queue)? as usize);
        if *call == Value::Null {
            // SAFETY: a live queue of this driver, or NULL, which it has to refuse, as it has the call.
            return Ok(unsafe { self.next.host_call(queue, std::ptr::null()) });
        }
        let [function, _, flags] = list(call)? else {
            return Err("it is incomplete");
        };
        let flags = u32::try_from(number(flags)?).map_err(|_| "its flags are out of range")?;
        if *function == Value::Null {
            let call = params::host_call(None, std::ptr::null_mut(), flags);
            // SAFETY: as above.
            return Ok(unsafe { self.next.host_call(queue, &call) });
        }
        let outcome = step
            .ran
            .iter()
            .find(|(upstream, _)| *upstream == Code::OK.0);
        let call = Box::new(HostCall {
            outcome: outcome.map_or(Code::OK.0, |(_, code)| *code),
            called: Mutex::default(),
        });
        let user = std::ptr::from_ref(&*call).cast_mut().cast();
        self.calls.push((at, self.host.len()));
        self.host.push(HostMemory::Call(call));
        // SAFETY: as above, and the data is kept until the driver is closed.
        Ok(unsafe {
            let call = params::host_call(Some(host_call), user, flags);
            self.next.host_call(queue, &call)
        })
    }

    fn copy(&mut self, at: usize, step: &Step) -> Result<i32, Skip> {
        let [queue, copy] = &step.arguments[..] else {
            return Err("it is incomplete");
        };
        let handle = self.things.object(queue)?;
        let queue = std::ptr::with_exposed_provenance_mut(handle as usize);
        if *copy == Value::Null {
            // SAFETY: a live queue, or NULL; both are to be refused.
            return Ok(unsafe { self.next.copy(queue, std::ptr::null()) });
        }
        let (dst, src, mut copy) = arguments::copy(copy)?;
        let mut end = |value: &Value, bytes: Option<&Vec<u8>>| match value {
            Value::Host(size) => {
                let size = Some(*size)
                    .filter(|size| *size <= LARGEST)
                    .ok_or(TOO_LARGE)?;
                let size = usize::try_from(size).map_err(|_| TOO_LARGE)?;
                let mut memory = Vec::new();
                memory.try_reserve_exact(size).map_err(|_| TOO_LARGE)?;
                memory.resize(size, 0xC5);
                let mut memory: Box<[u8]> = memory.into_boxed_slice();
                if let Some(bytes) = bytes {
                    let both = size.min(bytes.len());
                    memory[..both].copy_from_slice(&bytes[..both]);
                }
                let address = memory.as_mut_ptr().expose_provenance() as u64;
                self.host.push(HostMemory::Bytes(memory));
                Ok((address, Some(self.host.len() - 1)))
            }
            value => self.things.address(value).map(|address| (address, None)),
        };
        let (source, row_source) = end(src, step.source.first())?;
        if matches!(src, Value::Host(1..)) && step.source.is_empty() && step.code == Some(0) {
            self.uncertain = true;
        }
        let (destination, memory) = end(dst, None)?;
        (copy.dst, copy.src) = (destination, source);
        // Rows of host memory were recorded without what lies between them.
        if row_source.is_some() {
            copy.src_pitch = copy.size;
        }
        if memory.is_some() {
            copy.dst_pitch = copy.size;
        }
        // SAFETY: a live queue; device ends as they were recorded, and host ends that are kept until the
        // driver is closed.
        let code = unsafe { self.next.copy(queue, &copy) };
        self.results[at].uncertain = self.uncertain;
        if let (Some(memory), Code::OK) = (memory, Code(code)) {
            self.pending.push(Pending {
                step: at,
                queue: handle,
                memory,
            });
        }
        Ok(code)
    }

    fn module_load(&mut self, step: &Step, frame: &mut Frame) -> Result<i32, Skip> {
        if !matches!(step.arguments.get(2), Some(Value::Number(format))
            if *format == u64::from(sys::OTR_CODE_HOST_FUNCTION))
        {
            return self.call(step, frame);
        }
        if !self.options.host_functions {
            return Err("it is a host function; these run only with --host-functions");
        }
        let place = step.arguments.get(3).and_then(Place::from_value);
        let function = place.and_then(|place| place.find());
        let function =
            function.ok_or("the file of its host function is missing, or is another one")?;
        let [driver, device, _, _, _, options, module] = &step.arguments[..] else {
            return Err("it is incomplete");
        };
        let things = &self.things;
        let driver = Rebuilt::rebuild(driver, "driver", things, frame)?;
        let device = Rebuilt::rebuild(device, "device", things, frame)?;
        let options = Rebuilt::rebuild(options, "options", things, frame)?;
        let module = Rebuilt::rebuild(module, "module", things, frame)?;
        let format = sys::OTR_CODE_HOST_FUNCTION;
        // SAFETY: for this format `code` is the function itself; outputs live in the frame.
        Ok(unsafe {
            self.next
                .module_load(driver, device, format, function, 0, options, module)
        })
    }

    /// The native queue was one of the recorded process: a queue of the driver takes its place.
    fn native_adopt(&mut self, step: &Step, frame: &mut Frame) -> Result<i32, Skip> {
        let [driver, device, _, queue] = &step.arguments[..] else {
            return Err("it is incomplete");
        };
        let things = &self.things;
        let driver = Rebuilt::rebuild(driver, "driver", things, frame)?;
        let device = Rebuilt::rebuild(device, "device", things, frame)?;
        let queue = Rebuilt::rebuild(queue, "queue", things, frame)?;
        // SAFETY: the driver is open, and outputs live in the frame.
        Ok(unsafe {
            self.next
                .queue_create(driver, device, std::ptr::null(), queue)
        })
    }

    fn kernel_launch(&mut self, step: &Step, frame: &mut Frame) -> Result<i32, Skip> {
        if let Some(Value::List(launch)) = step.arguments.get(2)
            && matches!(launch.last(), Some(Value::Number(1..)))
        {
            return Err("its arguments hold pointers of the recorded process");
        }
        self.call(step, frame)
    }

    /// Gives new memory a value, by a queue of its own. It is checked, and given in another way if it did
    /// not arrive: what is tested is the recording.
    fn define(&mut self, step: &Step, address: u64) {
        let number = |at: usize| match step.arguments.get(at) {
            Some(Value::Number(number)) => *number,
            _ => 0,
        };
        if step.entry == Entry::memory_alloc {
            self.define_range(address, made_size(step), number(1) as u32);
        }
    }

    fn define_range(&mut self, address: u64, size: u64, device: u32) {
        if !self.options.define_memory || size == 0 {
            return;
        }
        let driver = self.next.raw().handle();
        let mut queue = std::ptr::null_mut();
        let value = vec![0u8; size as usize].into_boxed_slice();
        let mut back = vec![0xC5u8; size as usize].into_boxed_slice();
        // SAFETY: the memory is new and has the size; the host memory is kept until the driver is closed.
        unsafe {
            if self
                .next
                .queue_create(driver, device, std::ptr::null(), &mut queue)
                != Code::OK.0
            {
                return;
            }
            let from = value.as_ptr().expose_provenance() as u64;
            let to = back.as_mut_ptr().expose_provenance() as u64;
            let next = &self.next;
            let check = |back: &[u8]| {
                let copy = params::copy(to, address, size, sys::OTR_COPY_DEVICE_TO_HOST);
                let _ = next.copy(queue, &copy);
                let _ = next.queue_synchronize(queue, &mut { NO_OUTCOME });
                back.iter().all(|byte| *byte == 0)
            };
            let copy = params::copy(address, from, size, sys::OTR_COPY_HOST_TO_DEVICE);
            let _ = next.copy(queue, &copy);
            if !check(&back) {
                let fill = params::fill(address, size, [0u8].as_ptr().cast(), 1);
                let _ = next.fill(queue, &fill);
                check(&back);
            }
            let _ = next.queue_destroy(queue);
        }
        self.host.push(HostMemory::Bytes(value));
        self.host.push(HostMemory::Bytes(back));
    }

    /// Waits until all work has finished, without taking failures away.
    fn drain(&mut self) {
        for queue in std::mem::take(&mut self.busy) {
            self.drain_queue(queue);
        }
    }

    fn drain_queue(&self, queue: u64) {
        const LONGEST: Duration = Duration::from_secs(10);
        let queue = std::ptr::with_exposed_provenance_mut(queue as usize);
        let start = Instant::now();
        let mut outcome = NO_OUTCOME;
        // SAFETY: a live queue, and a place for the outcome.
        unsafe {
            let _ = self.next.queue_flush(queue);
            while self.next.queue_query(queue, &mut outcome) == Code::OK.0
                && outcome.code == Code::NOT_READY.0
                && start.elapsed() < LONGEST
            {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Compares what is left, gives everything back, and closes the driver.
    fn finish(mut self) -> Run {
        let driver = self.next.raw().handle();
        let queues = self
            .alive
            .values()
            .filter(|(made, _)| *made == Entry::queue_create);
        for (_, queue) in queues {
            self.drain_queue(*queue);
        }
        self.look(|_| true);
        let next = &self.next;
        // SAFETY: all of it is live, and its work has finished.
        unsafe {
            for (address, size) in &self.mapped {
                let _ = next.virtual_unmap(driver, *address, *size);
            }
            for (made, value) in self.alive.values().rev() {
                let (made, value) = (*made, *value);
                let handle = std::ptr::with_exposed_provenance_mut::<c_void>(value as usize);
                let _ = match given_by(made) {
                    Entry::queue_destroy => next.queue_destroy(handle.cast()),
                    Entry::event_destroy => next.event_destroy(handle.cast()),
                    Entry::module_unload => next.module_unload(handle.cast()),
                    Entry::operator_release => next.operator_release(handle.cast()),
                    Entry::graph_destroy => next.graph_destroy(handle.cast()),
                    Entry::virtual_destroy => next.virtual_destroy(driver, handle.cast()),
                    Entry::memory_free => next.memory_free(driver, value),
                    Entry::pinned_free => next.pinned_free(driver, handle),
                    _ => Code::OK.0,
                };
            }
            for (address, size) in &self.reserved {
                let _ = next.virtual_release(driver, *address, *size);
            }
        }
        let Self {
            next,
            host,
            calls,
            mut results,
            ..
        } = self;
        // Closes the driver, which waits for what still runs; only then the host memory may go.
        drop(next);
        for (step, place) in calls {
            if let Some(HostMemory::Call(call)) = host.get(place)
                && let Ok(called) = call.called.lock()
            {
                results[step].called.clone_from(&called);
            }
        }
        Run { results }
    }
}

/// The bytes of what a call with parameters has made: memory, an object, or a range.
fn made_size(step: &Step) -> u64 {
    match step.arguments.get(2) {
        Some(Value::List(params)) => match params.first() {
            Some(Value::Number(size)) => *size,
            _ => 0,
        },
        _ => 0,
    }
}

/// The entry that gives back what this one made; itself if it makes nothing of the kind.
fn given_by(entry: Entry) -> Entry {
    match entry {
        Entry::queue_create | Entry::native_adopt => Entry::queue_destroy,
        Entry::event_create => Entry::event_destroy,
        Entry::module_load => Entry::module_unload,
        Entry::operator_prepare => Entry::operator_release,
        Entry::graph_record_end => Entry::graph_destroy,
        Entry::virtual_create => Entry::virtual_destroy,
        Entry::memory_alloc => Entry::memory_free,
        Entry::pinned_alloc => Entry::pinned_free,
        other => other,
    }
}

macro_rules! played {
    ($($kind:ident $method:ident: $group:ident.$entry:ident($first:ident: $fty:ident
        $(, $arg:ident: $ty:ty)*) [$($out:ident: $oty:ident)?];)*) => {
        impl Player {
            /// Makes the call of a step with its arguments rebuilt.
            fn call(&mut self, step: &Step, frame: &mut Frame) -> Result<i32, Skip> {
                let mut values = step.arguments.iter();
                let things = &self.things;
                match step.entry {
                    $(Entry::$method => {
                        let $first = <*mut sys::$fty>::rebuild(
                            values.next().ok_or("it is incomplete")?,
                            stringify!($first), things, frame)?;
                        $(let $arg = <$ty>::rebuild(
                            values.next().ok_or("it is incomplete")?,
                            stringify!($arg), things, frame)?;)*
                        $(let $out = <*mut *mut sys::$oty>::rebuild(
                            values.next().ok_or("it is incomplete")?,
                            stringify!($out), things, frame)?;)?
                        // SAFETY: handles and memory are live on this driver, as they were when the call
                        // was recorded; structs and places for outputs live in the frame.
                        Ok(unsafe { self.next.$method($first $(, $arg)* $(, $out)?) })
                    })*
                }
            }
        }
    };
}

entries!(played);
