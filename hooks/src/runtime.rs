//! The runtime of the process: the drivers that were loaded, and their devices.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use outrigger_allocator::Config;
use outrigger_device::{Candidate, Code, DeviceProperties, Driver, LoadReport, Outcome};
use outrigger_device_ops::with_kernels;
#[cfg(feature = "layers")]
use outrigger_layers::Stack;
use outrigger_locks::{Mutex, Rank};
use outrigger_ops::OperatorId;

use crate::current::{MAX_DEVICES, choose_device, choose_stream, chosen_stream};
use crate::generator;
use crate::memory::trim::trimmer;
#[cfg(not(feature = "layers"))]
use crate::no_layers::Stack;
use crate::places::{FallbackPolicy, NanGuard, set_fallback_policy, set_nan_guard};
use crate::{Device, Error, Event, Generator, Graph, Pool, Ref, Result, Stream, stream};

/// The devices of all loaded drivers. There is one runtime; the first call of [`runtime`] makes it.
///
/// A driver finds its devices when it is loaded, and a device is opened when it is first used.
pub struct Runtime {
    found: [OnceLock<Found>; MAX_DEVICES],
    /// Devices that are open.
    devices: [OnceLock<&'static Device>; MAX_DEVICES],
    count: AtomicU32,
    config: Config,
    /// Operators that each new device keeps whole.
    whole: Vec<OperatorId>,
    search_path: Vec<PathBuf>,
    layers: Stack,
    // Held while drivers are loaded and devices are opened.
    loading: Mutex<()>,
    report: Mutex<LoadReport>,
}

/// A device that a driver has found, open or not.
#[derive(Debug)]
pub struct Found {
    driver: Driver,
    ordinal: u32,
    generator: Ref<Generator>,
}

impl Found {
    /// The driver that has it.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// The device's number within its driver.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The properties that the driver tells. Until the device is open, its priorities may be 0.
    ///
    /// # Errors
    /// None: the driver has the device.
    pub fn properties(&self) -> Result<DeviceProperties> {
        Ok(self.driver.properties(self.ordinal)?)
    }

    /// The generator that is used unless another one is named.
    pub fn default_generator(&self) -> &Ref<Generator> {
        &self.generator
    }
}

/// The drivers that [`set_default_drivers`] was given.
static DEFAULT_DRIVERS: Mutex<DefaultDrivers> = Mutex::new(
    Rank::DefaultDrivers,
    DefaultDrivers {
        specs: None,
        taken: false,
    },
);

/// The drivers that are loaded if the environment names none.
struct DefaultDrivers {
    specs: Option<String>,
    /// The runtime has asked, so a change would come too late.
    taken: bool,
}

/// Names the drivers that the runtime loads where the variable `OUTRIGGER_DRIVER` is not set, instead of the built-in
/// driver `host`. A package that brings a driver calls this before anybody uses a device.
///
/// # Errors
/// `INVALID_ARGUMENT` if `specs` is empty; `BUSY` if the runtime has started, because its drivers are loaded then.
pub fn set_default_drivers(specs: &str) -> Result<()> {
    if specs.is_empty() {
        let text = "no driver is named: give a path or a name, with options behind a `?`";
        return Err(Error::new(Code::INVALID_ARGUMENT, text));
    }
    let mut default = DEFAULT_DRIVERS.lock();
    if default.taken {
        let text = "the runtime has started, and its drivers are loaded: default drivers are named before the first \
                    use of a device; otr_driver_load loads one more";
        return Err(Error::new(Code::BUSY, text));
    }
    default.specs = Some(specs.to_owned());
    Ok(())
}

fn default_drivers() -> String {
    let mut default = DEFAULT_DRIVERS.lock();
    default.taken = true;
    default.specs.clone().unwrap_or_else(|| "host".to_owned())
}

/// The runtime. The first call reads the environment (docs/environment.md), and loads the drivers of `OUTRIGGER_DRIVER`,
/// or those of [`set_default_drivers`], or the built-in driver `host`.
///
/// # Errors
/// `INVALID_ARGUMENT` if a variable of the environment has a value that is not allowed; `FORKED` in a child of the
/// process that loaded the drivers.
#[inline]
pub fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Result<Runtime, (Code, String)>> = OnceLock::new();
    refuse_fork()?;
    match RUNTIME.get_or_init(|| {
        Runtime::from_environment().map_err(|error| (error.code(), error.message().to_owned()))
    }) {
        Ok(runtime) => Ok(runtime),
        Err((code, message)) => Err(Error::new(*code, message.clone())),
    }
}

/// Refuses a call in a child of the process that loaded the drivers. A lock that another thread of the parent held at the
/// fork is held in the child for ever, so whoever takes any asks first.
///
/// # Errors
/// `FORKED` in such a child.
#[inline]
pub fn refuse_fork() -> Result<()> {
    if outrigger_device::forked() {
        return Err(forked());
    }
    Ok(())
}

#[cold]
fn forked() -> Error {
    Error::new(
        Code::FORKED,
        "this process was forked after the drivers had been loaded, and no driver survives that: \
         start workers with the spawn or forkserver method, or load after the fork",
    )
}

impl Runtime {
    fn from_environment() -> Result<Self> {
        if let Some(word) = variable("OUTRIGGER_FALLBACK")? {
            set_fallback_policy(FallbackPolicy::parse(&word)?);
        }
        if let Some(word) = variable("OUTRIGGER_NAN_GUARD")? {
            set_nan_guard(NanGuard::parse(&word)?);
        }
        let config = match variable("OUTRIGGER_ALLOC")? {
            Some(text) => Config::parse(&text).map_err(|error| {
                Error::new(
                    Code::INVALID_ARGUMENT,
                    format!("OUTRIGGER_ALLOC={text}: {error}"),
                )
            })?,
            None => Config::default(),
        };
        let runtime = Self {
            found: [const { OnceLock::new() }; MAX_DEVICES],
            devices: [const { OnceLock::new() }; MAX_DEVICES],
            count: AtomicU32::new(0),
            config,
            whole: whole(&variable("OUTRIGGER_WHOLE")?.unwrap_or_default())?,
            search_path: outrigger_device::default_search_path(),
            layers: Stack::from_environment()?,
            loading: Mutex::new(Rank::Loading, ()),
            report: Mutex::new(Rank::LoadReport, LoadReport::default()),
        };
        let specs = variable("OUTRIGGER_DRIVER")?;
        // Asked for in any case: it is too late to change them now.
        let default = default_drivers();
        let specs = specs.unwrap_or(default);
        // Refusals are in the report. A call that asks for a device reports them if there is none.
        let _ = runtime.load(&specs);
        Ok(runtime)
    }

    /// Loads drivers (`name-or-path?key=value&...`, several separated by commas), and adds their devices after the
    /// present ones. Returns the number of devices that were added.
    ///
    /// # Errors
    /// `LOAD` with the reason for each driver or device that was refused. The other devices were added.
    pub fn load(&self, specs: &str) -> Result<u32> {
        let _loading = self.loading.lock();
        let (drivers, news) = outrigger_device::load(specs, &self.search_path);
        let before = self.device_count();
        let mut drivers = drivers.into_iter();
        let mut candidates = Vec::new();
        for mut candidate in news.candidates {
            if let Outcome::Taken { devices, .. } = &mut candidate.outcome
                && let Some(driver) = drivers.next()
            {
                let refused = self.add_driver(driver, devices);
                let is_used = !devices.is_empty();
                let refused = refused.into_iter().map(|(code, reason)| Candidate {
                    outcome: Outcome::Refused { code, reason },
                    ..candidate.clone()
                });
                candidates.extend(refused);
                if is_used {
                    candidates.push(candidate);
                }
            } else {
                candidates.push(candidate);
            }
        }
        let refusals: Vec<_> = candidates
            .iter()
            .filter(|candidate| matches!(candidate.outcome, Outcome::Refused { .. }))
            .map(ToString::to_string)
            .collect();
        self.report.lock().candidates.extend(candidates);
        if refusals.is_empty() {
            return Ok(self.device_count() - before);
        }
        let refusals = refusals.join("\n");
        tracing::warn!(target: "outrigger::load", "{refusals}");
        Err(Error::new(Code::LOAD, refusals))
    }

    /// Adds the devices of a driver. Leaves in `names` those of the devices that were added; says why the others were not.
    fn add_driver(&self, driver: Driver, names: &mut Vec<String>) -> Vec<(Code, String)> {
        names.clear();
        // Below the layers, so that these see operators of kernels as they see a driver's own.
        let driver = match with_kernels(driver) {
            Ok(driver) => driver,
            Err(error) => return vec![(error.code(), format!("its kernels: {error}"))],
        };
        let driver = match self.layers.apply(driver) {
            Ok(driver) => driver,
            Err(error) => return vec![(error.code(), format!("its layers: {error}"))],
        };
        let mut refused = Vec::new();
        for ordinal in 0..driver.device_count() {
            match self.add_device(&driver, ordinal) {
                Ok(name) => names.push(name),
                Err(error) => {
                    refused.push((error.code(), format!("its device {ordinal}: {error}")))
                }
            }
        }
        refused
    }

    /// Adds a device of a driver under the next number, and gives its name. Every step that can fail comes before
    /// anything is kept by that number.
    fn add_device(&self, driver: &Driver, ordinal: u32) -> Result<String> {
        let index = self.device_count();
        let Some(slot) = self.found.get(index as usize) else {
            let text = format!("a process has at most {MAX_DEVICES} devices");
            return Err(Error::new(Code::LOAD, text));
        };
        let name = driver.properties(ordinal)?.name;
        let generator = generator::make(index, true)?;
        slot.get_or_init(|| Found {
            driver: driver.clone(),
            ordinal,
            generator,
        });
        self.count.store(index + 1, Ordering::Release);
        Ok(name)
    }

    /// Opens a device at its first use. After a failure nothing of it is left, and the next use tries again.
    #[cold]
    fn open_device(&self, index: u32) -> Result<&'static Device> {
        let found = self.found(index)?;
        let _loading = self.loading.lock();
        let slot = &self.devices[index as usize];
        if let Some(device) = slot.get() {
            return Ok(device);
        }
        let trimmer = self.config.trim_after().map(trimmer).transpose()?;
        let opened = Device::open(index, &found.driver, found.ordinal, &self.config);
        let device = opened.map_err(|error| {
            // One that did not come so far is not open, which the driver says.
            let _ = found.driver.close_device(found.ordinal);
            let text = format!("device {index} cannot be opened: {}", error.message());
            Error::new(error.code(), text)
        })?;
        device.keep_whole(&self.whole);
        if let Some(trimmer) = trimmer {
            // The send cannot fail, because the thread never ends.
            let _ = trimmer.send(device);
        }
        Ok(slot.get_or_init(|| device))
    }

    /// The drivers that were tried so far, and why each was taken or refused.
    pub fn load_report(&self) -> LoadReport {
        self.report.lock().clone()
    }

    /// The number of devices.
    #[inline]
    pub fn device_count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// The device with this number, which the first call opens.
    ///
    /// # Errors
    /// `INVALID_DEVICE`. If there is no device at all, the text has the reasons. Why the device cannot be opened: a later
    /// call tries again.
    #[inline]
    pub fn device(&self, index: u32) -> Result<&'static Device> {
        match self.devices.get(index as usize).and_then(OnceLock::get) {
            Some(device) => Ok(device),
            None => self.open_device(index),
        }
    }

    /// The device with this number, if it is open: for calls that have nothing to do otherwise.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn opened(&self, index: u32) -> Result<Option<&'static Device>> {
        self.found(index)?;
        Ok(self.devices[index as usize].get().copied())
    }

    /// The device with this number as its driver has found it, which is not opened for that.
    ///
    /// # Errors
    /// `INVALID_DEVICE`. If there is no device at all, the text has the reasons.
    pub fn found(&self, index: u32) -> Result<&Found> {
        let found = self.found.get(index as usize).and_then(OnceLock::get);
        found.ok_or_else(|| self.no_device(index))
    }

    /// All devices that are open, in order.
    pub fn devices(&self) -> impl Iterator<Item = &'static Device> {
        self.devices.iter().filter_map(|slot| slot.get().copied())
    }

    /// The first driver for which something holds.
    pub(crate) fn find_driver(&self, holds: impl Fn(&Driver) -> bool) -> Option<&Found> {
        let found = self.found.iter().map_while(OnceLock::get);
        found.into_iter().find(|found| holds(&found.driver))
    }

    #[cold]
    fn no_device(&self, index: u32) -> Error {
        let text = match self.device_count() {
            0 => format!(
                "there is no device: no driver could be loaded\n{}",
                *self.report.lock()
            ),
            1 => format!("there is no device {index}: the only one is 0"),
            count => format!("there is no device {index}: there are 0 to {}", count - 1),
        };
        Error::new(Code::INVALID_DEVICE, text)
    }
}

/// Makes `device` the current one of this thread, without opening it.
///
/// # Errors
/// `INVALID_DEVICE` if there is no such device.
pub fn set_current_device(device: u32) -> Result<()> {
    runtime()?.found(device)?;
    choose_device(device);
    Ok(())
}

/// The id of the current stream of this thread on `device`. It is the default stream until another one is set.
///
/// # Errors
/// `INVALID_DEVICE` if there is no such device.
#[inline]
pub fn current_stream(device: u32) -> Result<u64> {
    match chosen_stream(device) {
        Some(chosen) => Ok(chosen),
        None => Ok(runtime()?.device(device)?.default_stream().id()),
    }
}

/// Makes a stream of a device; see [`Device::create_stream`].
///
/// # Errors
/// Those of [`Device::create_stream`]; `INVALID_DEVICE`.
pub fn create_stream(device: u32, priority: i32) -> Result<Ref<Stream>> {
    runtime()?.device(device)?.create_stream(priority)
}

/// Makes an event of a device; see [`Device::create_event`].
///
/// # Errors
/// Those of [`Device::create_event`]; `INVALID_DEVICE`.
pub fn create_event(device: u32, timing: bool) -> Result<&'static Event> {
    runtime()?.device(device)?.create_event(timing)
}

/// Makes a pool of a device's memory; see [`Device::create_pool`].
///
/// # Errors
/// Those of [`Device::create_pool`]; `INVALID_DEVICE`.
pub fn create_pool(device: u32) -> Result<Ref<Pool>> {
    runtime()?.device(device)?.create_pool()
}

/// Makes an empty graph for a device; see [`Device::create_graph`].
///
/// # Errors
/// Those of [`Device::create_graph`]; `INVALID_DEVICE`.
pub fn create_graph(device: u32, pool: Option<&Pool>) -> Result<Ref<Graph>> {
    runtime()?.device(device)?.create_graph(pool)
}

/// Makes a generator for a device, which is not opened for that.
///
/// # Errors
/// `INVALID_DEVICE`; `OUT_OF_HOST_MEMORY` if too many are alive.
pub fn create_generator(device: u32) -> Result<Ref<Generator>> {
    runtime()?.found(device)?;
    generator::make(device, false)
}

/// Makes a stream the current one of this thread on the stream's device.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live stream.
pub fn set_current_stream(id: u64) -> Result<()> {
    choose_stream(stream::stream(id)?.device().index(), id);
    Ok(())
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("devices", &self.device_count())
            .finish_non_exhaustive()
    }
}

/// The operators of a list with commas.
fn whole(names: &str) -> Result<Vec<OperatorId>> {
    let names = names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let find = |name: &str| {
        let found = CString::new(name)
            .ok()
            .and_then(|name| OperatorId::find(&name));
        found.ok_or_else(|| {
            let text = format!("OUTRIGGER_WHOLE: there is no operator named '{name}'");
            Error::new(Code::INVALID_ARGUMENT, text)
        })
    };
    names.map(find).collect()
}

/// The value of a variable of the environment. An empty value counts as unset.
fn variable(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(Error::new(
            Code::INVALID_ARGUMENT,
            format!("{name} is not valid UTF-8"),
        )),
    }
}
