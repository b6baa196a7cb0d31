//! The door to a device: the driver's own operators, and host kernels on the driver's queues.
//!
//! The driver is asked first. If it has no operator for a call, a host kernel runs in queue order: as a launch if the
//! driver takes host functions, else as a host call if the host sees the memory.

mod driver;
mod kernels;

use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

use outrigger_device::{Code, DeviceProperties, Driver, Kernel, Operator, Queue};

pub use driver::{Prepared, with_raw};

use crate::call::Call;
use crate::compose::{self, Composable, Composition};
use crate::failure::{Error, FailedOperator, Result};
use crate::plan::KernelFn;
use crate::registry::{OperatorId, check};
use driver::{Answers, Ended};
use kernels::Kernels;

/// The door to one device.
pub struct Door {
    driver: Driver,
    ordinal: u32,
    host_visible: bool,
    is_cpu: bool,
    kernels: Kernels,
    answers: Answers,
    composable: Composable,
    ended: Arc<Ended>,
    bias: OnceLock<i64>,
}

impl Door {
    /// The door of device `ordinal` of a driver.
    ///
    /// # Errors
    /// What the driver reports when it is asked which operators it has.
    pub fn new(driver: &Driver, ordinal: u32, properties: &DeviceProperties) -> Result<Self> {
        let answers = Answers::new(driver, ordinal)?;
        let is_cpu = properties.is_cpu();
        Ok(Self {
            driver: driver.clone(),
            ordinal,
            host_visible: properties.host_visible(),
            is_cpu,
            kernels: Kernels::new(),
            composable: Composable::new(|id| answers.offers(id), is_cpu),
            answers,
            ended: Arc::default(),
            bias: OnceLock::new(),
        })
    }

    /// The driver that runs the device.
    #[inline]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// The number of the device within its driver.
    #[inline]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The driver's own operator for a call; `None` if it has none.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if operands or arguments do not fit the operator; what the driver reports.
    #[inline]
    pub fn find(&self, id: OperatorId, call: &Call<'_>) -> Result<Option<Arc<Arc<Prepared>>>> {
        self.answers.find(self, id, call)
    }

    /// Whether the driver has operators of its own at all.
    #[inline]
    pub fn has_operators(&self) -> bool {
        self.answers.any()
    }

    /// Whether the driver has an operator, for some operands.
    #[inline]
    pub fn offers(&self, id: OperatorId) -> bool {
        self.answers.offers(id)
    }

    /// Whether an operator may be made of others on this device.
    #[inline]
    pub fn composes(&self, id: OperatorId) -> bool {
        self.composable.has(id)
    }

    /// The parts by which the driver serves a call; `None` if it does not, or the call asks for the whole. The caller
    /// has seen that the driver does not have the whole.
    ///
    /// # Errors
    /// What the driver reports when it is asked for a part.
    pub fn compose(&self, id: OperatorId, call: &Call<'_>) -> Result<Option<Composition>> {
        // The plan that the caller makes next says what is wrong with such a call.
        if call.whole || !self.composes(id) || check(id, call).is_err() {
            return Ok(None);
        }
        compose::compose(self, id, call)
    }

    /// Keeps operators whole: they are not made of others any more. Operators that were kept whole before are no longer.
    pub fn keep_whole(&self, ids: &[OperatorId]) {
        self.composable.keep_whole(ids);
    }

    /// Whether the device is the CPU, so that host kernels are its own.
    #[inline]
    pub fn is_cpu(&self) -> bool {
        self.is_cpu
    }

    /// Whether the driver's operator serves a call better than a host kernel. It does, unless the host sees the memory
    /// and the driver itself says that its operator takes longer than the kernel's estimate.
    #[inline]
    pub fn prefers(&self, prepared: &Prepared, id: OperatorId, call: &Call<'_>) -> bool {
        let cost = prepared.needs().cost_ns;
        cost == 0 || !self.host_visible || {
            let plan = crate::plan(id, call);
            plan.map_or(true, |plan| cost <= u64::from(plan.cost_ns))
        }
    }

    /// Whether there are operators for [`take_ended`](Self::take_ended).
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.ended.any()
    }

    /// The driver's operators that nobody can launch any more. The caller drops them when all work that the device was
    /// given so far has finished (R47).
    pub fn take_ended(&self) -> Vec<Operator> {
        self.ended.take()
    }

    /// The driver's kernel for a host function; `None` if the driver takes none.
    ///
    /// # Errors
    /// What the driver reports.
    #[inline]
    pub fn host_kernel(&self, function: KernelFn) -> Result<Option<&Kernel>> {
        self.kernels.get(&self.driver, self.ordinal, function)
    }

    /// Whether host kernels can run in queue order: by launches of the driver, or as host calls.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn runs_host_kernels(&self) -> Result<bool> {
        Ok(self.host_visible || self.host_kernel(kernels::tell_bias)?.is_some())
    }

    /// Launches a host kernel in queue order. If a kernel fails as a host call, its name is noted in `failed`, because
    /// a driver cannot tell one host call from another.
    ///
    /// # Safety
    /// The kernel may run with this argument block, and the memory that the block names is live until it has run.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the driver takes no host functions and the host does not see its memory; what the driver
    /// reports.
    #[inline(always)] // its one caller has most arguments in registers
    pub unsafe fn launch_host(
        &self,
        queue: &Queue,
        failed: &Arc<FailedOperator>,
        (function, args): (KernelFn, &[u8]),
        cost_ns: u32,
        label: &'static CStr,
    ) -> Result<()> {
        if let Some(kernel) = self.host_kernel(function)? {
            // SAFETY: this function's contract: the block is the kernel's, and its memory is live.
            return unsafe { queue.launch(kernel, args, cost_ns, label) }.map_err(Error::from);
        }
        if !self.host_visible {
            return Err(no_way().in_operator(label.to_string_lossy()));
        }
        // SAFETY: this function's contract. R15: device addresses are host pointers.
        unsafe { self.call_on_host(queue, failed, (function, args), label) }
    }

    /// Runs a host kernel as a host call, over addresses of the host.
    ///
    /// # Safety
    /// The kernel may run with this argument block, whose addresses are host pointers to memory that is live until it has
    /// run.
    ///
    /// # Errors
    /// What the driver reports.
    #[cold]
    pub unsafe fn call_on_host(
        &self,
        queue: &Queue,
        failed: &Arc<FailedOperator>,
        (function, args): (KernelFn, &[u8]),
        label: &'static CStr,
    ) -> Result<()> {
        let args = args.to_vec();
        let noted = Arc::clone(failed);
        let call = move |upstream: Result<(), Code>| {
            upstream?;
            // SAFETY: this function's contract: the block is the kernel's, and its memory is live. Its addresses are
            // host pointers, so the bias is 0.
            let code = unsafe { function(args.as_ptr().cast(), args.len() as u32, 0) };
            if code == Code::OK.0 {
                return Ok(());
            }
            noted.set(label.into());
            Err(Code(code))
        };
        Ok(queue.host_call_named(label, call)?)
    }

    /// The number that a thread of the driver adds to a device address to reach its bytes.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the host cannot reach them; what the driver reports.
    pub fn host_bias(&self) -> Result<i64> {
        if self.host_visible {
            return Ok(0);
        }
        if let Some(&known) = self.bias.get() {
            return Ok(known);
        }
        let Some(kernel) = self.host_kernel(kernels::tell_bias)? else {
            return Err(Error::new(
                Code::UNSUPPORTED,
                "the driver does not let the host reach the device's memory",
            ));
        };
        let bias = kernels::ask_bias(&self.driver, self.ordinal, kernel)?;
        Ok(*self.bias.get_or_init(|| bias))
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door")
            .field("driver", &self.driver.name())
            .field("ordinal", &self.ordinal)
            .finish_non_exhaustive()
    }
}

#[cold]
fn no_way() -> Error {
    Error::new(
        Code::UNSUPPORTED,
        "the driver runs no host kernels and its memory is not visible to the host",
    )
}
