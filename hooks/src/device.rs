//! A device: its driver, its memory, its door to operators, and what is kept until work has finished.

use std::fmt;
use std::sync::{Arc, OnceLock};

use outrigger_allocator::{Allocator, BlockInfo, Config, History};
use outrigger_device::{Code, CopyKind, DeviceProperties, Driver, Tail};
use outrigger_graph::{Captures, check_pattern};
use outrigger_locks::{Mutex, Rank};
use outrigger_ops::{Door, OperatorId};

use crate::labels::follow;
use crate::memory::backend::DeviceMemory;
use crate::memory::imports::Imports;
use crate::memory::limit;
use crate::memory::sleeping::Sleeping;
use crate::places::{Place, host_kernel_begin};
use crate::timelines::Timelines;
use crate::{Error, Result};

/// One device of one driver. Lives as long as the process.
pub struct Device {
    index: u32,
    door: Door,
    properties: DeviceProperties,
    timelines: Arc<Timelines>,
    allocator: Allocator<DeviceMemory>,
    captures: Captures,
    retired: Mutex<Vec<Retired>>,
    imports: Imports,
    native_cheaper: OnceLock<bool>,
}

impl Device {
    /// Opens device `ordinal` of a driver as the device with number `index`, and makes its default stream. What the driver
    /// may refuse comes first, because the device lives from then on.
    pub(crate) fn open(
        index: u32,
        driver: &Driver,
        ordinal: u32,
        config: &Config,
    ) -> Result<&'static Self> {
        driver.open_device(ordinal)?;
        let properties = driver.properties(ordinal)?;
        let door = Door::new(driver, ordinal, &properties)?;
        let queue = driver.queue_create(ordinal, 0)?;
        let config = config.clone().for_device(properties.total_memory);
        let timelines = Timelines::of_new_device();
        let memory = DeviceMemory::new(
            index,
            driver.clone(),
            ordinal,
            Arc::clone(&timelines),
            &config,
            properties.total_memory,
        );
        // Leaked on purpose: streams, events and addresses that hosts hold refer to the device until the process ends.
        let device: &'static Self = Box::leak(Box::new(Self {
            index,
            door,
            properties,
            timelines,
            allocator: Allocator::new(memory, config),
            captures: Captures::default(),
            retired: Mutex::new(Rank::Retired, Vec::new()),
            imports: Imports::default(),
            native_cheaper: OnceLock::new(),
        }));
        device.begin_streams(queue)?;
        follow(device.history());
        limit::join(device);
        Ok(device)
    }

    /// The number under which hosts know it.
    #[inline]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The device's number within its driver.
    pub fn ordinal(&self) -> u32 {
        self.door.ordinal()
    }

    /// Whether the driver has an operator, for some operands.
    #[inline]
    pub fn offers(&self, operator: OperatorId) -> bool {
        self.door.offers(operator) || self.door.composes(operator)
    }

    /// Keeps operators whole: they are not made of others. Operators that were kept whole before are no longer.
    pub fn keep_whole(&self, operators: &[OperatorId]) {
        self.door.keep_whole(operators);
    }

    /// The place where a host kernel of this device counts as having run.
    #[inline]
    pub(crate) fn host_kernel_place(&self) -> Place {
        if self.door.is_cpu() {
            Place::Device
        } else {
            Place::HostKernel
        }
    }

    /// Lets an operator run as a host kernel.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the host forbids that on a device that is not the CPU.
    #[inline]
    pub(crate) fn admit_host_kernel(&self, operator: OperatorId) -> Result<()> {
        if self.door.is_cpu() {
            return Ok(());
        }
        host_kernel_begin(operator)
    }

    /// The driver that runs it.
    #[inline]
    pub fn driver(&self) -> &Driver {
        self.door.driver()
    }

    /// The properties that the driver reports.
    pub fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    /// Waits for all work submitted to any stream of the device, also to streams that were destroyed. What captures
    /// record is not waited for.
    ///
    /// # Errors
    /// The first failure that one of the streams reports, after all streams were waited for; why the work of a stream is
    /// not known to be over. `CAPTURE` on a thread that records a capture on this device, unless the capture is in
    /// relaxed mode.
    pub fn synchronize(&self) -> Result<()> {
        if self.captures.any() {
            self.captures.refuse_wait("a wait for the device")?;
        }
        let mut result = Ok(());
        for stream in self.timelines.live() {
            if stream.is_capturing() {
                continue;
            }
            // Another thread may begin a capture there now. What was submitted before still finishes.
            if !matches!(stream.queue().query(), Ok(true)) {
                result = result.and(stream.synchronize_now());
            }
        }
        // The loop has reported failures. Whether the work is over is another question, and asked of all streams.
        let over = self.timelines.wait();
        self.sweep_retired();
        result.and(over)
    }

    /// The memory of the device.
    #[inline]
    pub(crate) fn allocator(&self) -> &Allocator<DeviceMemory> {
        &self.allocator
    }

    /// The history of the device's memory.
    #[inline]
    pub(crate) fn history(&self) -> &History {
        self.allocator.history()
    }

    /// Memory that was imported from other processes.
    pub(crate) fn imports(&self) -> &Imports {
        &self.imports
    }

    /// The door through which kernels and operators reach the driver.
    #[inline]
    pub(crate) fn door(&self) -> &Door {
        &self.door
    }

    /// The pools of the device that sleep.
    #[inline]
    pub(crate) fn sleeping(&self) -> &Sleeping {
        &self.allocator.backend().sleeping
    }

    #[inline]
    pub(crate) fn timelines(&self) -> &Timelines {
        &self.timelines
    }

    #[inline]
    pub(crate) fn captures(&self) -> &Captures {
        &self.captures
    }

    pub(crate) fn native_cheaper(&self) -> &OnceLock<bool> {
        &self.native_cheaper
    }

    /// Keeps an object until the work that a stream was given so far has finished. The caller may hold a turn: this
    /// call drops nothing, only [`sweep_retired`](Self::sweep_retired) does.
    pub(crate) fn retire(&self, stream: Option<u64>, kept: Box<dyn Send>) {
        let behind = stream.map_or(Behind::Fences(Vec::new()), Behind::Stream);
        self.keep(behind, kept);
    }

    /// Keeps an object until all work that the device was given so far has finished.
    pub(crate) fn retire_behind_all(&self, kept: Box<dyn Send>) {
        self.keep(Behind::All, kept);
    }

    fn keep(&self, behind: Behind, kept: Box<dyn Send>) {
        let behind = self.fenced(behind);
        let _kept = kept;
        self.retired.lock().push(Retired { behind, _kept });
    }

    /// Takes fences where there are none yet, if the driver can make events now.
    fn fenced(&self, behind: Behind) -> Behind {
        let fences = match &behind {
            Behind::Stream(stream) => {
                let fence = self.timelines.fence(*stream);
                fence.map(|fence| fence.into_iter().collect())
            }
            Behind::All => self.timelines.fences(),
            Behind::Fences(_) => return behind,
        };
        // If the driver makes no event now, a later one serves as well, because it passes later.
        fences.map_or(behind, Behind::Fences)
    }

    /// Drops what was kept for work that has finished, and the queues of destroyed streams that are in no call. That
    /// may call functions of the host.
    pub(crate) fn sweep_retired(&self) {
        self.timelines.settle();
        for operator in self.door.take_ended() {
            // R47: launches of the operator may be running, on any stream.
            self.retire_behind_all(Box::new(operator));
        }
        // The list is not locked here: the driver is asked, and objects that are dropped may retire more.
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
            Some(block) if block.asleep => return Err(self.asleep(address, &block)),
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

    /// Checks the device ranges of a copy, as [`check_range`](Self::check_range) does.
    #[inline]
    pub(crate) fn check_copy(&self, dst: u64, src: u64, size: u64, kind: CopyKind) -> Result<()> {
        if kind.writes_device() {
            self.check_range("destination", dst, size)?;
        }
        if kind.reads_device() {
            self.check_range("source", src, size)?;
        }
        Ok(())
    }

    /// Checks pattern and range of a fill.
    #[inline]
    pub(crate) fn check_fill(&self, dst: u64, size: u64, pattern: &[u8]) -> Result<()> {
        check_pattern(size, pattern)?;
        self.check_range("destination", dst, size)
    }

    /// Refuses an address whose memory is of a pool that sleeps. Callers ask only if some pool sleeps.
    ///
    /// # Errors
    /// `BUSY` that names the pool.
    #[cold]
    pub(crate) fn check_awake(&self, address: u64) -> Result<()> {
        match self.allocator.lookup(address) {
            Some(block) if block.asleep => Err(self.asleep(address, &block)),
            _ => Ok(()),
        }
    }

    #[cold]
    fn asleep(&self, address: u64, block: &BlockInfo) -> Error {
        let pool = block.pool.map_or(0, |pool| pool.get());
        Error::new(
            Code::BUSY,
            format!(
                "the memory at {address:#x} on device {} is of pool {pool}, which sleeps: wake it first",
                self.index
            ),
        )
    }

    /// Gives all cached memory that is not in use back to the driver. Returns the number of bytes.
    pub fn empty_cache(&self) -> u64 {
        self.sweep_retired();
        self.allocator.empty_cache()
    }

    /// Gives cached memory that is not in use back to the driver until at most `keep` bytes stay cached, as far as
    /// whole segments or pieces are idle. Waits for the streams that used the memory. Returns the number of bytes.
    pub fn trim_cache(&self, keep: u64) -> u64 {
        self.sweep_retired();
        self.allocator.trim(keep)
    }
}

impl limit::Cache for Device {
    fn index(&self) -> u32 {
        self.index
    }

    fn give_back(&self) -> u64 {
        self.empty_cache()
    }
}

/// An object that is kept until work has finished.
struct Retired {
    behind: Behind,
    /// Dropped when the work has finished.
    _kept: Box<dyn Send>,
}

/// The work that has to finish.
enum Behind {
    /// The work of a stream, without a fence yet.
    Stream(u64),
    /// The work of all streams, without fences yet.
    All,
    /// The work before all of these points.
    Fences(Vec<Arc<Tail>>),
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
            .field("driver", &self.driver().name())
            .field("ordinal", &self.ordinal())
            .finish_non_exhaustive()
    }
}
