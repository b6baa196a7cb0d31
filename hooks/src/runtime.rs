//! The runtime of the process: which drivers were loaded, and the devices that they brought.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use outrigger_allocator::Config;
use outrigger_device::{Code, LoadReport, Outcome};
#[cfg(feature = "layers")]
use outrigger_layers::Stack;
use outrigger_locks::{Mutex, Rank};

#[cfg(not(feature = "layers"))]
use crate::no_layers::Stack;
use crate::{Device, Error, FallbackMode, Result, set_fallback_mode};

/// How many devices a process may have: frameworks keep their numbers in signed bytes.
pub const MAX_DEVICES: usize = 128;

/// The devices of all loaded drivers. There is one runtime, made at the first call of [`runtime`].
pub struct Runtime {
    devices: [OnceLock<&'static Device>; MAX_DEVICES],
    count: AtomicU32,
    /// Drivers that have memory which the host does not see.
    unseen: AtomicU32,
    config: Config,
    search_path: Vec<PathBuf>,
    layers: Stack,
    // Held while drivers are loaded and their devices added.
    loading: Mutex<()>,
    report: Mutex<LoadReport>,
}

/// The runtime. The first call reads the environment (docs/environment.md) and loads the drivers of
/// `OUTRIGGER_DRIVER`, or the built-in `host` driver.
///
/// # Errors
/// `INVALID_ARGUMENT` if a variable of the environment makes no sense; `FORKED` in a child of the
/// process that loaded the drivers.
#[inline]
pub fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Result<Runtime, (Code, String)>> = OnceLock::new();
    if outrigger_device::forked() {
        return Err(forked());
    }
    match RUNTIME.get_or_init(|| {
        Runtime::from_environment().map_err(|error| (error.code(), error.message().to_owned()))
    }) {
        Ok(runtime) => Ok(runtime),
        Err((code, message)) => Err(Error::new(*code, message.clone())),
    }
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
            set_fallback_mode(FallbackMode::from_word(&word)?);
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
            devices: [const { OnceLock::new() }; MAX_DEVICES],
            count: AtomicU32::new(0),
            unseen: AtomicU32::new(0),
            config,
            search_path: outrigger_device::default_search_path(),
            layers: Stack::from_environment()?,
            loading: Mutex::new(Rank::Loading, ()),
            report: Mutex::new(Rank::LoadReport, LoadReport::default()),
        };
        let specs = variable("OUTRIGGER_DRIVER")?.unwrap_or_else(|| "host".to_owned());
        // What was refused is in the report; whoever asks for a device is told of it.
        let _ = runtime.load(&specs);
        Ok(runtime)
    }

    /// Loads drivers (`name-or-path?key=value&...`, several separated by commas) and adds their
    /// devices behind those that are there. Returns how many were added.
    ///
    /// # Errors
    /// `LOAD` with the reason for each driver that was refused; the others' devices were added.
    pub fn load(&self, specs: &str) -> Result<u32> {
        let _loading = self.loading.lock();
        let (drivers, news) = outrigger_device::load(specs, &self.search_path);
        let mut refusals: Vec<_> = news
            .candidates
            .iter()
            .filter(|candidate| matches!(candidate.outcome, Outcome::Refused { .. }))
            .map(ToString::to_string)
            .collect();
        self.report.lock().candidates.extend(news.candidates);
        let mut added = 0;
        for driver in drivers {
            let name = driver.name().to_owned();
            let driver = match self.layers.apply(driver) {
                Ok(driver) => driver,
                Err(error) => {
                    refusals.push(format!("the layers of the driver {name}: {error}"));
                    continue;
                }
            };
            let mut seen = true;
            for ordinal in 0..driver.device_count() {
                let index = self.count.load(Ordering::Acquire);
                let Some(slot) = self.devices.get(index as usize) else {
                    return Err(Error::new(
                        Code::LOAD,
                        format!("a process has at most {MAX_DEVICES} devices"),
                    ));
                };
                let device = Device::open(index, &driver, ordinal, &self.config)?;
                if seen && !device.properties().host_visible() {
                    seen = false;
                    self.unseen.fetch_add(1, Ordering::Relaxed);
                }
                slot.get_or_init(|| device);
                self.count.store(index + 1, Ordering::Release);
                added += 1;
            }
        }
        if refusals.is_empty() {
            return Ok(added);
        }
        let refusals = refusals.join("\n");
        tracing::warn!(target: "outrigger::load", "{refusals}");
        Err(Error::new(Code::LOAD, refusals))
    }

    /// What was tried, taken and refused so far, and why.
    pub fn load_report(&self) -> LoadReport {
        self.report.lock().clone()
    }

    /// How many devices there are.
    #[inline]
    pub fn device_count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// The device of this number.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; if there is no device at all, with the reasons.
    #[inline]
    pub fn device(&self, index: u32) -> Result<&'static Device> {
        match self.devices.get(index as usize).and_then(OnceLock::get) {
            Some(device) => Ok(device),
            None => Err(self.no_device(index)),
        }
    }

    /// Whether two devices may give the same address. A driver's addresses differ from each other and from
    /// those of the host's memory (R13), which those of memory that the host sees are (R15).
    #[inline]
    pub(crate) fn addresses_may_repeat(&self) -> bool {
        self.unseen.load(Ordering::Relaxed) > 1
    }

    /// All devices, in order.
    pub fn devices(&self) -> impl Iterator<Item = &'static Device> {
        self.devices.iter().map_while(|slot| slot.get().copied())
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

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("devices", &self.device_count())
            .finish_non_exhaustive()
    }
}

/// A variable of the environment; an empty one counts as unset.
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
