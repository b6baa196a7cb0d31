//! A device: its driver, streams, memory and kernels, and what is known of the work on its streams.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use outrigger_allocator::{Allocator, Config, History};
use outrigger_device::{Code, DeviceProperties, Driver};
use parking_lot::Mutex;

use crate::driver_operators::DriverOperators;
use crate::generator::{Generator, new_generator};
use crate::graph::Captures;
use crate::kernels::Kernels;
use crate::memory::{DeviceMemory, Imports, follow, start_trimming};
use crate::stream::Owner;
use crate::{Error, Result, Stream};

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
    pools: Mutex<HashMap<i32, Vec<Arc<Stream>>>>,
    next_pool_stream: AtomicUsize,
    captures: Captures,
    retired: Mutex<Vec<Retired>>,
    imports: Imports,
    bias: OnceLock<i64>,
    native_cheaper: OnceLock<bool>,
    // Made right after the device, which they refer to, and before anybody else sees it.
    default_stream: OnceLock<Arc<Stream>>,
    default_generator: OnceLock<Arc<Generator>>,
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
            pools: Mutex::default(),
            next_pool_stream: AtomicUsize::new(0),
            captures: Captures::default(),
            retired: Mutex::default(),
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
    pub fn default_stream(&self) -> &Arc<Stream> {
        self.default_stream
            .get()
            .expect("set before the device is published")
    }

    /// The generator that is used unless another one is named.
    pub fn default_generator(&self) -> &Arc<Generator> {
        self.default_generator
            .get()
            .expect("set before the device is published")
    }

    /// A stream of the device's pool, which the runtime owns: the next one in turn of that priority.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn pool_stream(&'static self, priority: i32) -> Result<Arc<Stream>> {
        let range = &self.properties;
        let priority = priority.clamp(range.priority_highest, range.priority_lowest);
        let mut pools = self.pools.lock();
        let pool = pools.entry(priority).or_default();
        if pool.len() < POOL_STREAMS {
            pool.push(Stream::make(self, priority, Owner::Runtime)?);
            return Ok(Arc::clone(&pool[pool.len() - 1]));
        }
        let turn = self.next_pool_stream.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::clone(&pool[turn % POOL_STREAMS]))
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

    /// Keeps something until the work of a stream so far has finished, and looks after what was kept
    /// before.
    pub(crate) fn retire(&self, stream: Option<u64>, kept: Box<dyn Send>) {
        let fence = stream.map(|stream| self.timelines.fence(stream));
        match fence {
            None | Some(Ok(None)) => drop(kept),
            Some(Ok(Some(fence))) => self.retired.lock().push(Retired { fence, kept }),
            Some(Err(error)) => {
                // Whether the work has finished cannot be known: better kept for good than freed early.
                tracing::error!(target: "outrigger::graph", %error, "memory of a graph is not given back");
                std::mem::forget(kept);
            }
        }
        self.sweep_retired();
    }

    /// Gives back what was kept for work that has finished.
    pub(crate) fn sweep_retired(&self) {
        let mut done = Vec::new();
        {
            let mut retired = self.retired.lock();
            let mut index = 0;
            while index < retired.len() {
                if matches!(retired[index].fence.query(), Ok(false)) {
                    index += 1;
                } else {
                    done.push(retired.swap_remove(index).kept);
                }
            }
        }
        // Outside of the lock: what is dropped may retire more.
        drop(done);
    }

    /// Checks that a range lies in one live allocation of this device.
    pub(crate) fn check_range(&self, what: &str, address: u64, size: u64) -> Result<()> {
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
    fence: Arc<outrigger_device::Event>,
    kept: Box<dyn Send>,
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
#[derive(Default)]
pub(crate) struct Timelines(Mutex<HashMap<u64, Timeline>>);

enum Timeline {
    Live(Weak<Stream>),
    Ended(Arc<outrigger_device::Event>),
}

impl Timelines {
    pub(crate) fn add(&self, stream: &Arc<Stream>) {
        self.0
            .lock()
            .insert(stream.id(), Timeline::Live(Arc::downgrade(stream)));
    }

    /// Keeps the end of a stream's work in place of the stream.
    pub(crate) fn end(&self, stream: &Stream) {
        let device = stream.device();
        let tail = device
            .driver()
            .event_create(device.ordinal(), false)
            .and_then(|event| {
                event.record(stream.queue())?;
                Ok(event)
            });
        let tail = tail.inspect_err(|_| {
            // Without an event for its end, waiting now is the only way to know.
            let _ = stream.synchronize();
        });
        let mut timelines = self.0.lock();
        timelines.retain(|_, one| match one {
            Timeline::Live(_) => true,
            Timeline::Ended(event) => matches!(event.query(), Ok(false)),
        });
        match tail {
            Ok(event) => timelines.insert(stream.id(), Timeline::Ended(Arc::new(event))),
            Err(_) => timelines.remove(&stream.id()),
        };
    }

    /// All streams that were not destroyed.
    pub(crate) fn live(&self) -> Vec<Arc<Stream>> {
        let timelines = self.0.lock();
        timelines
            .values()
            .filter_map(|one| match one {
                Timeline::Live(stream) => stream.upgrade(),
                Timeline::Ended(_) => None,
            })
            .collect()
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
            Some(Timeline::Live(stream)) => stream.upgrade(),
            Some(Timeline::Ended(event)) => return Ok(Some(Arc::clone(event))),
            None => None,
        };
        let Some(stream) = stream else {
            return Ok(None);
        };
        let device = stream.device();
        let event = device.driver().event_create(device.ordinal(), false)?;
        event.record(stream.queue())?;
        Ok(Some(Arc::new(event)))
    }
}
