//! Loads device code. Each code is compiled once: who asks for one that is loaded gets the same module, who asks for one
//! that is being compiled waits for it, and what another process has compiled comes from the store.
//!
//! [`Modules::load`] does it at once, [`Modules::load_async`] on a few threads of its own, so that a program can hand in all
//! of its code and go on. A module is kept by those who hold it, never by this crate.
//!
//! This crate never looks into code: what a format or an option means is between its caller and the driver. Of a
//! compiler's log it reads the line numbers, to show the lines.
//!
//! ```no_run
//! use outrigger_device::{Driver, sys};
//! use outrigger_modules::{Modules, Source};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let driver = Driver::open(&"opencl".parse()?)?;
//! let modules = Modules::of_process()?;
//! let text = "kernel void twice(global float* x) { x[get_global_id(0)] *= 2; }";
//! let source = Source::new(sys::OTR_CODE_OPENCL_C, text.as_bytes());
//! let kernel = modules.load(&driver, 0, &source)?.kernel(Some(c"twice"))?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod compile;
mod compiler_log;
mod job;
mod pool;
mod source;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use outrigger_device::{Code, Driver, Error, Module, Result, WeakModule};
use outrigger_locks::{Mutex, Rank};
use outrigger_store::{Key, Store};

pub use compile::Counts;
pub use job::Pending;
use job::{Job, Request};
use pool::{Pool, threads_from_environment};
pub use source::Source;

/// The modules of a process, over a store.
#[derive(Debug)]
pub struct Modules {
    shared: Arc<Shared>,
    pool: Pool,
}

/// The parts that jobs need, on whichever thread they run.
#[derive(Debug)]
struct Shared {
    store: Store,
    counts: compile::Counters,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    slots: HashMap<Place, Slot>,
    /// With this many slots, those whose modules are gone are removed.
    clean_at: usize,
}

const FEWEST_SLOTS: usize = 64;

/// The identity of a module within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    /// The address of the open driver: a driver that wraps another may have the same handle. It may come again after
    /// the driver was closed; but a module keeps its driver open, so a module that is found belongs to the driver that
    /// was asked for.
    driver: usize,
    device: u32,
    key: Key,
}

impl Place {
    fn of(driver: &Driver, device: u32, source: &Source) -> Result<Self> {
        Ok(Self {
            driver: std::ptr::from_ref(driver.as_raw()).addr(),
            device,
            key: source.key(driver, device)?,
        })
    }
}

#[derive(Debug)]
enum Slot {
    Compiling(Arc<Job>),
    Loaded(WeakModule),
}

impl Modules {
    /// The modules of this process, over its store. The first call reads the environment.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if a variable of the environment has a value that makes no sense.
    pub fn of_process() -> Result<&'static Self> {
        static MODULES: OnceLock<Result<Modules, String>> = OnceLock::new();
        let made = MODULES.get_or_init(|| {
            let store = Store::of_process().map_err(|error| error.to_string())?;
            let threads = threads_from_environment().map_err(|error| error.to_string())?;
            Ok(Self::new(store, threads))
        });
        match made {
            Ok(modules) => Ok(modules),
            Err(text) => Err(Error::new(Code::INVALID_ARGUMENT, text.clone())),
        }
    }

    /// Modules over a store, compiled in the background by at most so many threads; `None`: by one for each of the
    /// machine's cores.
    pub fn new(store: Store, threads: Option<usize>) -> Self {
        let table = Table {
            slots: HashMap::new(),
            clean_at: FEWEST_SLOTS,
        };
        Self {
            shared: Arc::new(Shared {
                store,
                counts: compile::Counters::default(),
                table: Mutex::new(Rank::Modules, table),
            }),
            pool: Pool::new(threads),
        }
    }

    /// Loads code on a device; if it is not known, compiles it on this thread. Code that waits for a thread of the
    /// background is taken over.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with the compiler's log and the lines that it names, for code that does not compile;
    /// `UNSUPPORTED` for a format that the driver does not take; `INVALID_DEVICE`; or what else the driver answers.
    pub fn load(&self, driver: &Driver, device: u32, source: &Source) -> Result<Module> {
        match self.find(driver, device, source)? {
            Found::Module(module) => Ok(module),
            Found::Job { job, .. } => job.finish(),
        }
    }

    /// Begins to load code on a device, and returns at once.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; all else comes from [`Pending::wait`].
    pub fn load_async(&self, driver: &Driver, device: u32, source: &Source) -> Result<Pending> {
        match self.find(driver, device, source)? {
            Found::Module(module) => Ok(module.into()),
            Found::Job { job, new } => {
                if new {
                    self.pool.submit(&job);
                }
                Ok(Pending::of(job))
            }
        }
    }

    /// Loads code that is loaded already, or that the store has in compiled form. Nothing is compiled.
    ///
    /// # Errors
    /// `NOT_FOUND` for other code; what else the driver answers.
    pub fn load_stored(&self, driver: &Driver, device: u32, source: &Source) -> Result<Module> {
        if !source.is_compiled() {
            return self.load(driver, device, source);
        }
        let place = Place::of(driver, device, source)?;
        if let Some(module) = self.shared.loaded(place) {
            self.shared.counts.found();
            return Ok(module);
        }
        let request = Request {
            driver: driver.clone(),
            device,
            source: source.clone(),
        };
        match compile::restored(
            &self.shared.store,
            &self.shared.counts,
            &place.key,
            &request,
        )? {
            Some(module) => Ok(self.shared.kept(place, module)),
            None => Err(Error::new(
                Code::NOT_FOUND,
                "the compiled form of the code is not in the store, and nothing is to be compiled",
            )),
        }
    }

    /// The origins of this process's modules so far.
    pub fn counts(&self) -> Counts {
        self.shared.counts.read()
    }

    fn find(&self, driver: &Driver, device: u32, source: &Source) -> Result<Found> {
        let place = Place::of(driver, device, source)?;
        let mut table = self.shared.table.lock();
        match table.slots.get(&place) {
            Some(Slot::Loaded(module)) => {
                if let Some(module) = module.upgrade() {
                    drop(table);
                    self.shared.counts.found();
                    return Ok(Found::Module(module));
                }
            }
            Some(Slot::Compiling(job)) => {
                let job = job.clone();
                return Ok(Found::Job { job, new: false });
            }
            None => {}
        }
        if table.slots.len() >= table.clean_at {
            table.slots.retain(|_, slot| match slot {
                Slot::Loaded(module) => module.is_kept(),
                Slot::Compiling(_) => true,
            });
            table.clean_at = (table.slots.len() * 2).max(FEWEST_SLOTS);
        }
        let job = Arc::new(Job::new(
            self.shared.clone(),
            place,
            Request {
                driver: driver.clone(),
                device,
                source: source.clone(),
            },
        ));
        table.slots.insert(place, Slot::Compiling(job.clone()));
        Ok(Found::Job { job, new: true })
    }
}

enum Found {
    Module(Module),
    Job { job: Arc<Job>, new: bool },
}

impl Shared {
    /// The module of a place, if it is loaded.
    fn loaded(&self, place: Place) -> Option<Module> {
        match self.table.lock().slots.get(&place) {
            Some(Slot::Loaded(module)) => module.upgrade(),
            _ => None,
        }
    }

    /// Notes a module that no job has loaded. If another thread was faster, it is that one's.
    fn kept(&self, place: Place, module: Module) -> Module {
        let slots = &mut self.table.lock().slots;
        let same = match slots.get(&place) {
            Some(Slot::Loaded(module)) => module.upgrade(),
            // A job tells those who wait for it, and takes the place when it is done.
            Some(Slot::Compiling(_)) => return module,
            None => None,
        };
        if let Some(same) = same {
            return same;
        }
        slots.insert(place, Slot::Loaded(module.downgrade()));
        module
    }

    /// Notes what became of the job of a place. Who asks from now on gets the module; or a new try, if it failed.
    fn finished(&self, place: Place, result: &Result<Module>) {
        let mut table = self.table.lock();
        let ended = match result {
            Ok(module) => table.slots.insert(place, Slot::Loaded(module.downgrade())),
            Err(_) => table.slots.remove(&place),
        };
        drop(table);
        // The job keeps its driver, which must not be closed while a lock is held.
        drop(ended);
    }
}
