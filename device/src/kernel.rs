//! Kernels and operators of a driver, which a queue launches. This module loads and releases them; the
//! crates above decide which kernel serves an operator.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crate::fork::{forked, refuse_fork};
use crate::table::{entry, hole};
use crate::{Code, Driver, Error, Result, sys};

/// A kernel for devices whose memory is host memory behind another address, as in `driver.h`: the
/// argument block, its size in bytes, and the bias that turns a device address into a host address.
pub type HostKernelFn = unsafe extern "C" fn(args: *const c_void, args_size: u32, bias: i64) -> i32;

/// Code that is loaded on a device. Its kernels keep it, and the last launch of each has finished before the last of
/// them is dropped.
#[derive(Clone, Debug)]
pub struct Module(Arc<Loaded>);

/// A module that is not kept by this.
#[derive(Clone, Debug)]
pub struct WeakModule(Weak<Loaded>);

impl WeakModule {
    /// The module, if somebody keeps it.
    pub fn upgrade(&self) -> Option<Module> {
        self.0.upgrade().map(Module)
    }

    /// Whether somebody keeps the module. Unlike dropping what [`upgrade`](Self::upgrade) gives, this never calls the
    /// driver.
    pub fn is_kept(&self) -> bool {
        self.0.strong_count() > 0
    }
}

struct Loaded {
    module: NonNull<sys::otr_drv_module>,
    // Declared last: the driver stays open until the module is unloaded.
    driver: Driver,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Drop for Loaded {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let group = self.driver.table().kernel.as_ref();
        let Some(unload) = group.and_then(|group| group.module_unload) else {
            return;
        };
        // SAFETY: the module is live, and its last launch has finished: its kernels are dropped only then.
        if let Err(error) = self.driver.check(unsafe { unload(self.module.as_ptr()) }) {
            tracing::warn!(target: "outrigger::device", %error, "a module could not be unloaded");
        }
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("driver", &self.driver.name())
            .field("handle", &self.module)
            .finish()
    }
}

impl Module {
    /// The driver that loaded it.
    pub fn driver(&self) -> &Driver {
        &self.0.driver
    }

    /// The same module without keeping it.
    pub fn downgrade(&self) -> WeakModule {
        WeakModule(Arc::downgrade(&self.0))
    }

    /// A kernel by its name; without one, the only kernel of the module.
    ///
    /// # Errors
    /// `NOT_FOUND` for a name that the module does not have; what else the driver answers.
    pub fn kernel(&self, name: Option<&CStr>) -> Result<Kernel> {
        refuse_fork()?;
        let Loaded { module, driver } = &*self.0;
        let Some(group) = &driver.table().kernel else {
            return Err(hole("kernel"));
        };
        let get = entry!(group, kernel_get);
        let name = name.map_or(std::ptr::null(), CStr::as_ptr);
        let mut kernel = std::ptr::null_mut();
        // SAFETY: the module is live; the name is NULL or a string, and the output lives through the call.
        driver.check(unsafe { get(module.as_ptr(), name, &mut kernel) })?;
        let kernel = NonNull::new(kernel)
            .ok_or_else(|| Error::new(Code::INTERNAL, "the driver gave NULL for a kernel"))?;
        Ok(Kernel {
            kernel,
            module: self.clone(),
        })
    }

    /// The compiled form, which the same driver loads as `OTR_CODE_ELF`.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the driver does not tell it; what else the driver answers.
    pub fn binary(&self) -> Result<Vec<u8>> {
        refuse_fork()?;
        let Loaded { module, driver } = &*self.0;
        let group = driver.table().kernel.as_ref();
        let Some(tell) = group.and_then(|group| group.module_binary) else {
            let text = format!("the driver {} tells no compiled form", driver.name());
            return Err(Error::new(Code::UNSUPPORTED, text));
        };
        let mut size = 0;
        // SAFETY: the module is live, and the size lives through the call; NULL asks for it alone.
        driver.check(unsafe { tell(module.as_ptr(), std::ptr::null_mut(), &mut size) })?;
        let mut bytes = vec![0_u8; usize::try_from(size).unwrap_or(usize::MAX)];
        // SAFETY: as above, with room for that many bytes.
        driver.check(unsafe { tell(module.as_ptr(), bytes.as_mut_ptr().cast(), &mut size) })?;
        bytes.truncate(size as usize);
        Ok(bytes)
    }
}

/// A kernel of a module.
#[derive(Clone)]
pub struct Kernel {
    kernel: NonNull<sys::otr_drv_kernel>,
    module: Module,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// The handle, for who calls the driver's table itself.
    #[inline]
    pub fn raw(&self) -> *mut sys::otr_drv_kernel {
        self.kernel.as_ptr()
    }
}

/// Two names of one kernel of one module.
impl PartialEq for Kernel {
    fn eq(&self, other: &Self) -> bool {
        self.kernel == other.kernel && Arc::ptr_eq(&self.module.0, &other.module.0)
    }
}

impl Eq for Kernel {}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("module", &self.module)
            .field("handle", &self.kernel)
            .finish()
    }
}

impl Driver {
    /// Makes a host function launchable on a device; `None` if the driver takes no host functions.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or what else the driver answers.
    pub fn host_kernel(&self, device: u32, function: HostKernelFn) -> Result<Option<Kernel>> {
        let code = (function as *const c_void, 0);
        // SAFETY: for this format `code` is the function itself and the size 0.
        match unsafe { self.load(device, sys::OTR_CODE_HOST_FUNCTION, code, None) } {
            Ok(module) => module.kernel(None).map(Some),
            Err(error) if error.code() == Code::UNSUPPORTED => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Loads code on a device. `format` is one of `OTR_CODE_*` but for host functions, and `options` are for its
    /// compiler.
    ///
    /// # Errors
    /// `UNSUPPORTED` for a format that the driver does not take, `INVALID_ARGUMENT` with the compiler's log for code
    /// that does not compile, `INVALID_DEVICE`, or what else the driver answers.
    pub fn module_load(
        &self,
        device: u32,
        format: u32,
        code: &[u8],
        options: Option<&CStr>,
    ) -> Result<Module> {
        if format == sys::OTR_CODE_HOST_FUNCTION {
            let text = "a host function is no code: see `host_kernel`";
            return Err(Error::new(Code::INVALID_ARGUMENT, text));
        }
        // A NUL behind it, as source needs one.
        let terminated = [code, &[0]].concat();
        let code = (terminated.as_ptr().cast(), code.len());
        // SAFETY: as many bytes as are counted.
        unsafe { self.load(device, format, code, options) }
    }

    /// # Safety
    /// `code` is what the format says.
    unsafe fn load(
        &self,
        device: u32,
        format: u32,
        (code, size): (*const c_void, usize),
        options: Option<&CStr>,
    ) -> Result<Module> {
        refuse_fork()?;
        self.open_device(device)?;
        let Some(group) = &self.table().kernel else {
            let text = format!("the driver {} takes no code", self.name());
            return Err(Error::new(Code::UNSUPPORTED, text));
        };
        let load = entry!(group, module_load);
        let options = options.map_or(std::ptr::null(), CStr::as_ptr);
        let mut module = std::ptr::null_mut();
        let driver = self.handle();
        // SAFETY: the driver is open, and the output lives through the call; this function's contract.
        self.check(unsafe { load(driver, device, format, code, size, options, &mut module) })?;
        let module = NonNull::new(module)
            .ok_or_else(|| Error::new(Code::INTERNAL, "the driver gave NULL for a module"))?;
        let driver = self.clone();
        Ok(Module(Arc::new(Loaded { module, driver })))
    }

    /// The driver's own operators; `None` if it brings none.
    pub fn operators(&self) -> Option<Operators<'_>> {
        self.table().operators.as_ref().map(|group| Operators {
            driver: self,
            group,
        })
    }
}

/// The operator library of a driver.
#[derive(Clone, Copy, Debug)]
pub struct Operators<'a> {
    driver: &'a Driver,
    group: &'a sys::otr_operator_api,
}

impl Operators<'_> {
    /// The operators that the driver has on a device: names of the contract, and schema names of frameworks.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or what else the driver answers; `INTERNAL` for a name that is NULL.
    pub fn names(&self, device: u32) -> Result<Vec<CString>> {
        refuse_fork()?;
        self.driver.place(device)?;
        let names = entry!(self.group, names);
        let (mut list, mut count) = (std::ptr::null(), 0);
        // SAFETY: the driver is open, and both outputs live through the call.
        let code = unsafe { names(self.driver.handle(), device, &mut list, &mut count) };
        self.driver.check(code)?;
        let name = |at: u32| {
            let missing = || {
                let text = format!("the driver gave NULL for name {at} of its {count} operators");
                Error::new(Code::INTERNAL, text)
            };
            if list.is_null() {
                return Err(missing());
            }
            // SAFETY: R45: the list has `count` names, each NUL-terminated, while the driver is open.
            unsafe {
                let name = *list.add(at as usize);
                let name = (!name.is_null()).then(|| CStr::from_ptr(name).to_owned());
                name.ok_or_else(missing)
            }
        };
        (0..count).map(name).collect()
    }

    /// Asks for an operator of this signature; `None` if the driver has none. With it comes what a launch needs.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or what else the driver answers.
    ///
    /// # Safety
    /// The pointers in `call` are valid during the call, and their counts are right.
    pub unsafe fn prepare(
        &self,
        device: u32,
        call: &sys::otr_operator_call,
    ) -> Result<Option<(Operator, Needs)>> {
        refuse_fork()?;
        self.driver.open_device(device)?;
        let prepare = entry!(self.group, prepare);
        let mut answer = sys::otr_operator_answer {
            struct_size: size_of::<sys::otr_operator_answer>(),
            next: std::ptr::null(),
            workspace_bytes: 0,
            cost_ns: 0,
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver is open, both outputs live through the call; the pointers in `call` are
        // valid during it (R10).
        let code = unsafe { prepare(self.driver.handle(), device, call, &mut answer, &mut handle) };
        if Code(code) == Code::UNSUPPORTED {
            return Ok(None);
        }
        self.driver.check(code)?;
        match NonNull::new(handle) {
            Some(handle) => Ok(Some((
                Operator {
                    handle,
                    driver: self.driver.clone(),
                },
                Needs {
                    workspace_bytes: answer.workspace_bytes,
                    cost_ns: answer.cost_ns,
                },
            ))),
            None => Err(Error::new(
                Code::INTERNAL,
                "the driver returned NULL for an operator",
            )),
        }
    }
}

/// What a driver says of an operator that it prepared.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// The bytes of workspace that each launch needs.
    pub workspace_bytes: u64,
    /// The estimated time of a launch in nanoseconds; 0 if the driver does not know it.
    pub cost_ns: u64,
}

/// An operator that a driver has prepared. Its last launch has finished before it is dropped.
pub struct Operator {
    handle: NonNull<sys::otr_operator>,
    // Declared last: the driver stays open until the operator is released.
    driver: Driver,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Operator {}
// SAFETY: as above.
unsafe impl Sync for Operator {}

impl Operator {
    pub(crate) fn raw(&self) -> *mut sys::otr_operator {
        self.handle.as_ptr()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let group = self.driver.table().operators.as_ref();
        let Some(release) = group.and_then(|group| group.release) else {
            return;
        };
        // SAFETY: R47: the operator is live, and its last launch has finished: an `Operator` is dropped
        // only then.
        if let Err(error) = self.driver.check(unsafe { release(self.raw()) }) {
            tracing::warn!(target: "outrigger::device", %error, "an operator could not be released");
        }
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator")
            .field("driver", &self.driver.name())
            .field("handle", &self.handle)
            .finish()
    }
}
