//! Modules and kernels: code that a host loads on a device, and launches in stream order. `outrigger_modules` compiles it
//! once, and keeps the compiled form from process to process.

use std::collections::HashSet;
use std::ffi::{CStr, CString};

use outrigger_device::Code;
use outrigger_graph::{DeviceCall, Graph};
use outrigger_handles::{Kind, Ref, Table};
use outrigger_locks::{Mutex, Rank};
use outrigger_modules::{Modules, Pending, Source};

use crate::{Device, Error, Result, Stream};

static MODULES: Table<Module> = Table::new(Kind::Module);
static KERNELS: Table<Kernel> = Table::new(Kind::Kernel);

/// Code that is loaded on a device, or on its way there.
#[derive(Debug)]
pub struct Module {
    id: u64,
    device: &'static Device,
    pending: Pending,
}

/// A kernel of a module.
#[derive(Debug)]
pub struct Kernel {
    id: u64,
    device: &'static Device,
    kernel: outrigger_device::Kernel,
    name: &'static CStr,
}

/// A launch of a kernel, without its stream.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The groups and work items of the launch.
    pub grid: outrigger_device::Grid,
    /// The argument block, and the kind of each of its parts. Both are copied.
    pub args: outrigger_device::Arguments<'a>,
    /// Estimated time in nanoseconds; 0 if unknown.
    pub cost_ns: u32,
    /// A name for failures and pictures; without one it is the kernel's.
    pub label: Option<&'static CStr>,
}

/// A name that lives as long as the process. Equal names are one.
fn lasting(name: &CStr) -> &'static CStr {
    static NAMES: Mutex<Option<HashSet<&'static CStr>>> = Mutex::new(Rank::KernelNames, None);
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static CStr = Box::leak(CString::from(name).into_boxed_c_str());
    names.insert(name);
    name
}

/// The way in which the code of a module becomes ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading {
    /// The calling thread compiles the code.
    Now,
    /// Other threads compile the code.
    Background,
    /// Nobody compiles the code: another process has done that, and the store has the result.
    Stored,
}

impl Device {
    /// Loads code, in the way that is asked for.
    ///
    /// # Errors
    /// `UNSUPPORTED` for a format that the driver does not take; `INVALID_ARGUMENT` with the compiler's log for code that
    /// does not compile; `NOT_FOUND` for [`Loading::Stored`] where it would have to be compiled; what else the driver
    /// reports. In the background, [`Module::kernel`] and [`Module::query`] have these errors.
    pub fn load_module(&'static self, source: &Source, how: Loading) -> Result<Ref<Module>> {
        let (modules, driver, ordinal) = (Modules::of_process()?, self.driver(), self.ordinal());
        let pending = match how {
            Loading::Now => modules.load(driver, ordinal, source)?.into(),
            Loading::Background => modules.load_async(driver, ordinal, source)?,
            Loading::Stored => modules.load_stored(driver, ordinal, source)?.into(),
        };
        let module = MODULES.insert(|id| Module {
            id,
            device: self,
            pending,
        })?;
        Ok(module)
    }
}

impl Module {
    /// The id in the C ABI.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the code is loaded. Never waits.
    ///
    /// # Errors
    /// Why it cannot be loaded.
    pub fn query(&self) -> Result<bool> {
        match self.pending.poll() {
            None => Ok(false),
            Some(loaded) => loaded.map(|_| true).map_err(Error::from),
        }
    }

    /// A kernel by its name; without one, the only kernel of the module. Waits until the code is compiled.
    ///
    /// # Errors
    /// `NOT_FOUND` for a name that the module does not have; why the code cannot be loaded.
    pub fn kernel(&self, name: Option<&CStr>) -> Result<Ref<Kernel>> {
        let kernel = self.pending.wait()?.kernel(name)?;
        let name = lasting(name.unwrap_or(c"kernel"));
        let kernel = KERNELS.insert(|id| Kernel {
            id,
            device: self.device,
            kernel,
            name,
        })?;
        Ok(kernel)
    }
}

impl Kernel {
    /// The id in the C ABI.
    pub fn id(&self) -> u64 {
        self.id
    }

    fn call<'a>(&'a self, launch: &Launch<'a>) -> DeviceCall<'a> {
        DeviceCall {
            kernel: &self.kernel,
            grid: launch.grid,
            args: launch.args,
            cost_ns: launch.cost_ns,
            label: launch.label.unwrap_or(self.name),
        }
    }

    fn check_device(&self, device: u32, what: &str) -> Result<()> {
        let own = self.device.index();
        if own == device {
            return Ok(());
        }
        let text =
            format!("the kernel was loaded on device {own}, and the {what} is of device {device}");
        Err(Error::new(Code::INVALID_DEVICE, text))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // Launches of it may be running, on any stream.
        self.device.retire_behind_all(Box::new(self.kernel.clone()));
    }
}

impl Stream {
    /// Launches a kernel of a module in stream order, or records it.
    ///
    /// # Safety
    /// The kernel may run with these arguments, on the memory that they name, which is live until it has run (H22, H23).
    ///
    /// # Errors
    /// `INVALID_DEVICE` for a kernel of another device; `INVALID_ARGUMENT` for arguments that are not the kernel's;
    /// `BUSY` for memory of a pool that sleeps; what else the driver reports.
    pub unsafe fn launch_kernel(&self, kernel: &Kernel, launch: &Launch<'_>) -> Result<()> {
        let device = self.device();
        let checked = kernel.check_device(device.index(), "stream");
        checked.map_err(|error| self.not_recorded(error.on_stream(self.id())))?;
        let call = kernel.call(launch);
        if self.is_capturing()
            && let Some(recorded) = self.record(|steps| steps.device_kernel(&call))
        {
            return recorded;
        }
        if device.sleeping().any() {
            for (_, address) in call.addresses()? {
                device.check_awake(address)?;
            }
        }
        // SAFETY: this function's contract.
        unsafe { self.launch_device(&call) }
    }
}

/// Adds a kernel of a module to a graph. Returns the number of its node.
///
/// # Safety
/// At every replay the kernel may run with these arguments, on the memory that they name.
///
/// # Errors
/// `INVALID_DEVICE` for a kernel of another device; `INVALID_ARGUMENT` for unknown `deps`, or an address that is not in
/// live memory.
pub unsafe fn add_kernel_node(
    graph: &Graph,
    deps: &[u32],
    kernel: &Kernel,
    launch: &Launch<'_>,
) -> Result<u32> {
    kernel.check_device(graph.info().device, "graph")?;
    // SAFETY: this function's contract.
    unsafe { graph.add_device_kernel(deps, &kernel.call(launch)) }
}

/// The module with this id.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live module.
pub fn module(id: u64) -> Result<Ref<Module>> {
    Ok(MODULES.get(id)?)
}

/// Destroys a module. Its kernels live on.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live module.
pub fn destroy_module(id: u64) -> Result<()> {
    drop(MODULES.remove(id)?);
    Ok(())
}

/// The kernel with this id.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live kernel.
#[inline]
pub fn kernel(id: u64) -> Result<Ref<Kernel>> {
    Ok(KERNELS.get(id)?)
}

/// Destroys a kernel without waiting. Launches that were submitted still run.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live kernel.
pub fn destroy_kernel(id: u64) -> Result<()> {
    let found = KERNELS.remove(id)?;
    let device = found.device;
    drop(found);
    device.sweep_retired();
    Ok(())
}
