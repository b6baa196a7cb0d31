//! A device: its driver, streams, memory and kernels, and what is known of the work on its streams.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use outrigger_allocator::{Allocator, Config, History};
use outrigger_device::{Code, DeviceProperties, Driver};
use outrigger_locks::{Mutex, Rank};

use crate::driver_operators::DriverOperators;
use crate::generator::{Generator, new_generator};
use crate::graph::Captures;
use crate::kernels::Kernels;
use crate::memory::{DeviceMemory, Imports, follow, start_trimming};
use crate::stream::Owner;
use crate::{Error, Ref, Result, Stream};

/// Streams of one priority in a device's pool: as many as PyTorch has for CUDA.
const POOL_STREAMS: usize = 32;

/// One device of one driver. Lives as long as the process.
pub struct Device {
    index: u32,
    ordinal: u32,
    driver: Driver,
    properties: DeviceProperties,
    timelines: Arc<Timelines>,
    allocator: Allocator<DeviceMemory>,
    kernels: Kernels,
    driver_operators: DriverOperators,
    pools: Mutex<HashMap<i32, Vec<Ref<Stream>>>>,
    next_pool_stream: AtomicUsize,
    captures: Captures,
    retired: Mutex<Vec<Retired>>,
    imports: Imports,
    bias: OnceLock<i64>,
    native_cheaper: OnceLock<bool>,
    // Made right after the device, which they refer to, and before anybody else sees it.
    default_stream: OnceLock<Ref<Stream>>,
    default_generator: OnceLock<Ref<Generator>>,
}

impl Device {
    /// Makes device `ordinal` of a driver known under `index`.
    pub(crate) fn open(
        index: u32,
        driver: &Driver,
        ordinal: u32,
        config: &Config,
    ) -> Result<&'static Self> {
        let properties = driver.properties(ordinal)?;
        let config = config.clone().for_device(properties.total_memory);
        if let Some(after) = config.trim_after() {
            start_trimming(after)?;
        }
        let timelines = Arc::new(Timelines::default());
        let memory = DeviceMemory::new(
            index,
            driver.clone(),
            ordinal,
            Arc::clone(&timelines),
            &config,
            properties.total_memory,
        );
        // Leaked on purpose: streams, events and addresses that hosts hold refer to devices until the
        // process ends.
        let device: &'static Self = Box::leak(Box::new(Self {
            index,
            ordinal,
            driver: driver.clone(),
            properties,
            timelines,
            allocator: Allocator::new(memory, config),
            kernels: Kernels::new(),
            driver_operators: DriverOperators::default(),
            pools: Mutex::new(Rank::PoolStreams, HashMap::new()),
            next_pool_stream: AtomicUsize::new(0),
            captures: Captures::default(),
            retired: Mutex::new(Rank::Retired, Vec::new()),
            imports: Imports::default(),
            bias: OnceLock::new(),
            native_cheaper: OnceLock::new(),
            default_stream: OnceLock::new(),
            default_generator: OnceLock::new(),
        }));
        let stream = Stream::make(device, 0, Owner::Runtime)?;
        let generator = new_generator(index)?;
        follow(device.history());
        device.default_stream.get_or_init(|| stream);
        device.default_generator.get_or_init(|| generator);
        Ok(device)
    }

    /// The number under which hosts know it.
    #[inline]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its number within its driver.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The driver that runs it.
    #[inline]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// What the driver says of it.
    pub fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    /// The stream that work goes to unless another one is named.
    #[inline]
    pub fn default_stream(&self) -> &Ref<Stream> {
        self.default_stream
            .get()
            .expect("set before the device is published")
    }

    /// The generator that is used unless another one is named.
    pub fn default_generator(&self) -> &Ref<Generator> {
        self.default_generator
            .get()
            .expect("set before the device is published")
    }

    /// A stream of the device's pool, which the runtime owns: the next one in turn of that priority.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn pool_stream(&'static self, priority: i32) -> Result<Ref<Stream>> {
        let range = &self.properties;
        let priority = priority.clamp(range.priority_highest, range.priority_lowest);
        if let Some(pool) = self.pools.lock().get(&priority)
            && pool.len() >= POOL_STREAMS
        {
            let turn = self.next_pool_stream.fetch_add(1, Ordering::Relaxed);
            return Ok(pool[turn % pool.len()].clone());
        }
        // Without the lock: the driver makes it. Threads that ask at the same moment may add a few more.
        let stream = Stream::make(self, priority, Owner::Runtime)?;
        let mut pools = self.pools.lock();
        pools.entry(priority).or_default().push(stream.clone());
        Ok(stream)
    }

    /// Waits for all work submitted to any stream of the device.
    ///
    /// # Errors
    /// The first failure that one of the streams reports; the others are waited for all the same.
    /// `CAPTURE` on a thread that records a capture on this device, unless that is in relaxed mode.
    pub fn synchronize(&self) -> Result<()> {
        if self.captures.any() {
            self.captures.refuse_wait("a wait for the device")?;
        }
        let mut result = Ok(());
        for stream in self.timelines.live() {
            if stream.is_capturing() {
                continue;
            }
            // Another thread may begin a capture there by now: what was submitted before still ends.
            if !matches!(stream.queue().query(), Ok(true)) {
                result = result.and(stream.synchronize_now());
            }
        }
        self.sweep_retired();
        result
    }

    /// The memory of the device.
    #[inline]
    pub(crate) fn allocator(&self) -> &Allocator<DeviceMemory> {
        &self.allocator
    }

    /// What the memory of the device records of its life.
    #[inline]
    pub(crate) fn history(&self) -> &History {
        self.allocator.history()
    }

    /// Memory of other processes.
    pub(crate) fn imports(&self) -> &Imports {
        &self.imports
    }

    #[inline]
    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    #[inline]
    pub(crate) fn driver_operators(&self) -> &DriverOperators {
        &self.driver_operators
    }

    #[inline]
    pub(crate) fn timelines(&self) -> &Timelines {
        &self.timelines
    }

    #[inline]
    pub(crate) fn captures(&self) -> &Captures {
        &self.captures
    }

    pub(crate) fn known_bias(&self) -> &OnceLock<i64> {
        &self.bias
    }

    pub(crate) fn native_cheaper(&self) -> &OnceLock<bool> {
        &self.native_cheaper
    }

    /// Keeps something until the work of a stream so far has finished. Who calls it may hold a turn: nothing is
    /// given back here, but by [`sweep_retired`](Self::sweep_retired).
    pub(crate) fn retire(&self, stream: Option<u64>, kept: Box<dyn Send>) {
        let behind = stream.map_or(Behind::Fences(Vec::new()), Behind::Stream);
        self.keep(behind, kept);
    }

    /// Keeps something until all work of the device so far has finished, as [`retire`](Self::retire) does.
    pub(crate) fn retire_behind_all(&self, kept: Box<dyn Send>) {
        self.keep(Behind::All, kept);
    }

    fn keep(&self, behind: Behind, kept: Box<dyn Send>) {
        let behind = self.fenced(behind);
        let _kept = kept;
        self.retired.lock().push(Retired { behind, _kept });
    }

    /// Takes fences, if there are none yet and the driver gives some.
    fn fenced(&self, behind: Behind) -> Behind {
        let fences = match &behind {
            Behind::Stream(stream) => {
                let fence = self.timelines.fence(*stream);
                fence.map(|fence| fence.into_iter().collect())
            }
            Behind::All => self.timelines.fences(),
            Behind::Fences(_) => return behind,
        };
        // Where the driver gives none, a later one does as well.
        fences.map_or(behind, Behind::Fences)
    }

    /// Gives back what was kept for work that has finished, and what streams need that nobody uses any more.
    /// Functions of the host may be called for that.
    pub(crate) fn sweep_retired(&self) {
        self.timelines.settle();
        // Not under the lock: the driver is asked, and what is dropped may retire more.
        let all = std::mem::take(&mut *self.retired.lock());
        if all.is_empty() {
            return;
        }
        let fenced = all.into_iter().map(|mut one| {
            one.behind = self.fenced(one.behind);
            one
        });
        let (done, waiting): (Vec<_>, Vec<_>) = fenced.partition(Retired::is_over);
        self.retired.lock().extend(waiting);
        drop(done);
    }

    /// Checks that a range lies in one live allocation of this device.
    pub(crate) fn check_range(
        &self,
        what: impl fmt::Display,
        address: u64,
        size: u64,
    ) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        let problem = match self.allocator.lookup(address) {
            Some(block) if block.asleep => return self.check_awake(address),
            Some(block) if block.free => {
                format!(
                    "was freed (it lies in a free block of {} bytes)",
                    block.size
                )
            }
            Some(block) if size <= block.base + block.size - address => return Ok(()),
            Some(block) => format!(
                "overruns its allocation of {} bytes at {:#x} by {} bytes",
                block.size,
                block.base,
                size - (block.base + block.size - address)
            ),
            None => match self.imports.around(address) {
                Some((base, bytes)) if size <= base + bytes - address => return Ok(()),
                Some((base, bytes)) => format!(
                    "overruns the imported allocation of {bytes} bytes at {base:#x} by {} bytes",
                    size - (base + bytes - address)
                ),
                None => "is not memory of this device".to_owned(),
            },
        };
        Err(Error::new(
            Code::INVALID_ARGUMENT,
            format!(
                "the {what} of {size} bytes at {address:#x} on device {} {problem}",
                self.index
            ),
        ))
    }
}

/// What is kept until work has finished.
struct Retired {
    behind: Behind,
    /// Dropped with this.
    _kept: Box<dyn Send>,
}

/// Which work that is.
enum Behind {
    /// That of a stream, for which there is no fence yet.
    Stream(u64),
    /// That of all streams, likewise.
    All,
    /// What lies before all of these.
    Fences(Vec<Arc<outrigger_device::Event>>),
}

impl Retired {
    fn is_over(&self) -> bool {
        match &self.behind {
            Behind::Fences(fences) => fences.iter().all(|fence| fence.is_over()),
            Behind::Stream(_) | Behind::All => false,
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("index", &self.index)
            .field("driver", &self.driver.name())
            .field("ordinal", &self.ordinal)
            .finish_non_exhaustive()
    }
}

/// Where each stream of a device stands, also those that were destroyed while they were busy: the
/// allocator asks when memory that a stream used may be used by another one, or be given back.
pub(crate) struct Timelines(Mutex<HashMap<u64, Timeline>>);

enum Timeline {
    /// Also while its handle is destroyed, but a call on it is not over: that call may submit work yet.
    Stream(Ref<Stream>),
    /// Nobody can submit any more.
    Ended(Arc<outrigger_device::Event>),
}

impl Default for Timelines {
    fn default() -> Self {
        Self(Mutex::new(Rank::Timelines, HashMap::new()))
    }
}

impl Timelines {
    pub(crate) fn add(&self, stream: &Ref<Stream>) {
        let timeline = Timeline::Stream(stream.clone());
        self.0.lock().insert(stream.id(), timeline);
    }

    /// Keeps the end of their work in place of streams that were destroyed and that nobody uses any more, and
    /// forgets those ends that have passed.
    pub(crate) fn settle(&self) {
        let (mut unused, mut ended) = (Vec::new(), Vec::new());
        for (&id, timeline) in self.0.lock().iter() {
            match timeline {
                // The reference here is the last: no other can come to be, but by `live` and `fence`, which submit
                // nothing.
                Timeline::Stream(stream) if Ref::references(stream) == 1 => {
                    unused.push(stream.clone());
                }
                Timeline::Stream(_) => {}
                Timeline::Ended(event) => ended.push((id, Arc::clone(event))),
            }
        }
        for stream in unused {
            // Where the driver gives no event for its end, it stays, and the next call tries again.
            let Ok(tail) = tail_of(&stream) else { continue };
            let replaced = self.0.lock().insert(stream.id(), Timeline::Ended(tail));
            // The queue goes to the driver without the lock.
            drop(replaced);
        }
        ended.retain(|(_, event)| event.is_over());
        if !ended.is_empty() {
            let mut timelines = self.0.lock();
            ended.iter().for_each(|(id, _)| drop(timelines.remove(id)));
        }
    }

    /// All streams that work may still be submitted to.
    pub(crate) fn live(&self) -> Vec<Ref<Stream>> {
        let timelines = self.0.lock();
        let streams = timelines.values().filter_map(|one| match one {
            Timeline::Stream(stream) => Some(stream.clone()),
            Timeline::Ended(_) => None,
        });
        streams.collect()
    }

    /// Events after all work that all streams have been given, also those that were destroyed.
    pub(crate) fn fences(&self) -> Result<Vec<Arc<outrigger_device::Event>>> {
        let ids: Vec<u64> = self.0.lock().keys().copied().collect();
        let fences = ids.into_iter().map(|id| self.fence(id));
        fences.filter_map(Result::transpose).collect()
    }

    /// An event after all work that the stream has been given; `None` if that work is known to be done.
    pub(crate) fn fence(&self, id: u64) -> Result<Option<Arc<outrigger_device::Event>>> {
        let stream = match self.0.lock().get(&id) {
            Some(Timeline::Stream(stream)) => stream.clone(),
            Some(Timeline::Ended(event)) => return Ok(Some(Arc::clone(event))),
            None => return Ok(None),
        };
        tail_of(&stream).map(Some).map_err(Error::from)
    }
}

/// An event after all work that a stream has been given.
fn tail_of(stream: &Stream) -> outrigger_device::Result<Arc<outrigger_device::Event>> {
    let device = stream.device();
    let event = device.driver().event_create(device.ordinal(), false)?;
    event.record(stream.queue())?;
    Ok(Arc::new(event))
}
