//! Runs operators on a device: the driver's own where it has them, then host kernels through the
//! driver's launch where the driver takes them, else as host calls in stream order where the memory is
//! visible to the host.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use outrigger_device::{Code, Kernel};
use outrigger_ops::{Call, KernelFn, OperatorId, Plan, PlanError};

use crate::{Device, Error, Result, Stream};

/// More than there are host kernels, so that probing stays short.
const SLOTS: usize = 4096;

/// The driver's kernels for our host functions, made at first use. Looking one up takes no lock.
pub(crate) struct Kernels(Box<[Slot]>);

/// A host function, and the driver's kernel for it.
type Slot = OnceLock<(usize, Option<Kernel>)>;

impl Kernels {
    pub(crate) fn new() -> Self {
        Self((0..SLOTS).map(|_| OnceLock::new()).collect())
    }

    /// The driver's kernel for `function`; `None` if the driver takes no host functions.
    #[inline]
    fn get(&self, device: &Device, function: KernelFn) -> Result<Option<&Kernel>> {
        let key = function as usize;
        let mut at = (key >> 4).wrapping_mul(0x9e37_79b9) % SLOTS;
        for _ in 0..SLOTS {
            match self.0[at].get() {
                Some((found, kernel)) if *found == key => return Ok(kernel.as_ref()),
                Some(_) => at = (at + 1) % SLOTS,
                None => {
                    let kernel = device.driver().host_kernel(device.ordinal(), function)?;
                    // If another thread was faster, the slot is looked at again.
                    let _ = self.0[at].set((key, kernel));
                }
            }
        }
        Err(Error::new(
            Code::INTERNAL,
            "the table of host kernels is full",
        ))
    }
}

impl Stream {
    /// Runs an operator in stream order, on operands in this device's memory. Returns at once.
    ///
    /// # Safety
    /// The operands lie in live memory of this stream's device, and no other stream touches them
    /// unordered with this one.
    ///
    /// # Errors
    /// `UNSUPPORTED` if there is no kernel for these arguments: nothing was done, and the host may run
    /// the operator elsewhere. `INVALID_ARGUMENT` if the operands do not fit the operator.
    #[inline]
    pub unsafe fn call(&self, operator: OperatorId, call: &Call<'_>) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        if unsafe { self.call_driver(operator, call) }? {
            return Ok(());
        }
        let plan =
            outrigger_ops::plan(operator, call).map_err(|error| self.refused(operator, error))?;
        match self.device().kernels().get(self.device(), plan.kernel)? {
            Some(kernel) => {
                // SAFETY: the block was made for this kernel by its own plan; operands are the
                // caller's promise.
                unsafe {
                    self.queue()
                        .launch(kernel, plan.args(), plan.cost_ns, plan.label)
                }
                .map_err(|error| self.failed(error))
            }
            None if self.device().properties().host_visible() => self.call_on_host(plan),
            None => Err(Error::new(
                Code::UNSUPPORTED,
                "the driver runs no host kernels and its memory is not visible to the host",
            )
            .in_operator(name(operator))
            .on_stream(self.id())),
        }
    }

    /// Runs a host kernel as a host call: for drivers that bring no kernels, over memory that the
    /// host sees.
    fn call_on_host(&self, plan: Plan) -> Result<()> {
        let failed = Arc::clone(self.failed_operator());
        self.host_call(move |upstream| {
            upstream?;
            let args = plan.args();
            // SAFETY: the block was made for this kernel by its own plan, and device addresses are
            // host pointers on this device, so that the bias is 0.
            let code =
                unsafe { (plan.kernel)(args.as_ptr().cast::<c_void>(), args.len() as u32, 0) };
            if code == Code::OK.0 {
                return Ok(());
            }
            failed.set(plan.label);
            Err(Code(code))
        })
    }

    #[cold]
    fn refused(&self, operator: OperatorId, error: PlanError) -> Error {
        let (code, reason) = match error {
            PlanError::Unsupported(reason) => (Code::UNSUPPORTED, reason),
            PlanError::Invalid(reason) => (Code::INVALID_ARGUMENT, reason),
        };
        Error::new(code, reason)
            .in_operator(name(operator))
            .on_stream(self.id())
    }
}

fn name(operator: OperatorId) -> String {
    operator.name().to_string_lossy().into_owned()
}
