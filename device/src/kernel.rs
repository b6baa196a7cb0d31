//! Kernels and operators of a driver, which a queue launches. This module loads and releases them; the
//! crates above decide which kernel serves an operator.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::ptr::NonNull;

use crate::fork::{forked, refuse_fork};
use crate::table::entry;
use crate::{Code, Driver, Error, Result, sys};

/// A kernel for devices whose memory is host memory behind another address, as in `driver.h`: the
/// argument block, its size in bytes, and the bias that turns a device address into a host address.
pub type HostKernelFn = unsafe extern "C" fn(args: *const c_void, args_size: u32, bias: i64) -> i32;

/// A loaded kernel of a device. Its last launch has finished before it is dropped.
pub struct Kernel {
    kernel: NonNull<sys::otr_kernel>,
    module: NonNull<sys::otr_module>,
    // Declared last: the driver stays open until the module is unloaded.
    driver: Driver,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    #[inline]
    pub(crate) fn raw(&self) -> *mut sys::otr_kernel {
        self.kernel.as_ptr()
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let group = self.driver.table().kernel.as_ref();
        let Some(unload) = group.and_then(|group| group.module_unload) else {
            return;
        };
        // SAFETY: the module is live, and its last launch has finished: a `Kernel` is dropped only then.
        if let Err(error) = self.driver.check(unsafe { unload(self.module.as_ptr()) }) {
            tracing::warn!(target: "outrigger::device", %error, "a module could not be unloaded");
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("driver", &self.driver.name())
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
        refuse_fork()?;
        self.check_device(device)?;
        let Some(group) = &self.table().kernel else {
            return Ok(None);
        };
        let (load, get) = (entry!(group, module_load), entry!(group, kernel_get));
        let mut module = std::ptr::null_mut();
        // SAFETY: the driver is open and `module` lives through the call. For this format `code` is
        // the function itself and the size 0.
        let code = unsafe {
            load(
                self.handle(),
                device,
                sys::OTR_CODE_HOST_FUNCTION,
                function as *const c_void,
                0,
                std::ptr::null(),
                &mut module,
            )
        };
        if Code(code) == Code::UNSUPPORTED {
            return Ok(None);
        }
        self.check(code)?;
        let Some(module) = NonNull::new(module) else {
            return Err(Error::new(
                Code::INTERNAL,
                "the driver gave NULL for a module",
            ));
        };
        let mut kernel = std::ptr::null_mut();
        // SAFETY: the module is live, a NULL name asks for its only kernel.
        let found = self.check(unsafe { get(module.as_ptr(), std::ptr::null(), &mut kernel) });
        let error = match (found, NonNull::new(kernel)) {
            (Ok(()), Some(kernel)) => {
                return Ok(Some(Kernel {
                    kernel,
                    module,
                    driver: self.clone(),
                }));
            }
            (Ok(()), None) => Error::new(Code::INTERNAL, "the driver gave NULL for a kernel"),
            (Err(error), _) => error,
        };
        let unload = entry!(group, module_unload);
        // SAFETY: the module is live and was never launched. The first error is the one to report.
        let _ = unsafe { unload(module.as_ptr()) };
        Err(error)
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
        self.driver.check_device(device)?;
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
        self.driver.check_device(device)?;
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
