//! Runs operators on a device: the driver's own where it has them, then host kernels through the
//! driver's launch where the driver takes them, else as host calls in stream order where the memory is
//! visible to the host.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use outrigger_device::{Code, Kernel};
use outrigger_ops::{Call, KernelFn, OperatorId, PlanError};

use crate::{Device, Error, Result, Stream};

/// Slots of the first shelf, several for each of our own host functions. Shelf n has 2^n times as many.
const SLOTS: usize = 4096;

/// More than any process has functions for.
const SHELVES: usize = 32;

/// A function may stand in so many slots of a shelf: where all are taken it goes to the next shelf.
const PROBES: usize = 8;

/// The driver's kernels for host functions, made at first use and kept: a host may launch ever new ones.
/// Looking one up takes no lock.
pub(crate) struct Kernels([OnceLock<Box<[Slot]>>; SHELVES]);

/// A host function, and the driver's kernel for it.
type Slot = OnceLock<(usize, Option<Kernel>)>;

impl Kernels {
    pub(crate) fn new() -> Self {
        Self([const { OnceLock::new() }; SHELVES])
    }

    #[inline]
    fn shelf(&self, at: usize) -> &[Slot] {
        self.0[at].get_or_init(|| (0..SLOTS << at).map(|_| OnceLock::new()).collect())
    }

    /// The driver's kernel for `function`; `None` if the driver takes no host functions.
    #[inline]
    fn get(&self, device: &Device, function: KernelFn) -> Result<Option<&Kernel>> {
        let key = function as usize;
        let first = (key >> 4).wrapping_mul(0x9e37_79b9);
        for number in 0..SHELVES {
            let shelf = self.shelf(number);
            for probe in 0..PROBES {
                let slot = &shelf[first.wrapping_add(probe) & (shelf.len() - 1)];
                if slot.get().is_none() {
                    let kernel = device.driver().host_kernel(device.ordinal(), function)?;
                    // Another thread may have been faster, with this function or another one.
                    let _ = slot.set((key, kernel));
                }
                if let Some((found, kernel)) = slot.get()
                    && *found == key
                {
                    return Ok(kernel.as_ref());
                }
            }
        }
        Err(Error::new(
            Code::OUT_OF_HOST_MEMORY,
            "there are more host kernels than can be told apart",
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
        if self.is_capturing() {
            return self.record_call(operator, call);
        }
        if self.device().any_asleep() {
            for operand in call.inputs.iter().chain(call.outputs) {
                let awake = self.device().check_awake(operand.address);
                awake.map_err(|error| error.in_operator(name(operator)).on_stream(self.id()))?;
            }
        }
        // SAFETY: the caller's promise is the same.
        if unsafe { self.call_driver(operator, call) }? {
            return Ok(());
        }
        let plan = outrigger_ops::plan(operator, call)
            .map_err(|error| refused(operator, error).on_stream(self.id()))?;
        // SAFETY: the block was made for this kernel by its own plan; operands are the caller's promise.
        unsafe { self.launch_host(plan.kernel, plan.args(), plan.cost_ns, plan.label) }
    }

    /// Launches a host kernel, captured or not; see [`Stream::launch`].
    ///
    /// # Safety
    /// As for [`Stream::launch`].
    #[inline]
    pub(crate) unsafe fn launch_host(
        &self,
        function: KernelFn,
        args: &[u8],
        cost_ns: u32,
        label: &'static CStr,
    ) -> Result<()> {
        let device = self.device();
        if let Some(kernel) = device.kernels().get(device, function)? {
            // SAFETY: the caller's promise.
            return unsafe { self.queue().launch(kernel, args, cost_ns, label) }
                .map_err(|error| self.failed(error));
        }
        if !device.properties().host_visible() {
            return Err(no_way()
                .in_operator(label.to_string_lossy())
                .on_stream(self.id()));
        }
        // SAFETY: as above.
        unsafe { self.call_on_host(function, args, label) }
    }

    /// Runs a host kernel as a host call: for drivers that take no host functions, over memory that the host sees.
    ///
    /// # Safety
    /// As for [`Stream::launch`].
    #[cold]
    unsafe fn call_on_host(
        &self,
        function: KernelFn,
        args: &[u8],
        label: &'static CStr,
    ) -> Result<()> {
        let args = args.to_vec();
        let failed = Arc::clone(self.failed_operator());
        self.host_call_now(move |upstream| {
            upstream?;
            // SAFETY: the caller's promise; device addresses are host pointers, so that the bias is 0.
            let code = unsafe { function(args.as_ptr().cast(), args.len() as u32, 0) };
            if code == Code::OK.0 {
                return Ok(());
            }
            failed.set(label.into());
            Err(Code(code))
        })
    }
}

/// Why there is no plan for a call.
#[cold]
pub(crate) fn refused(operator: OperatorId, error: PlanError) -> Error {
    let (code, reason) = match error {
        PlanError::Unsupported(reason) => (Code::UNSUPPORTED, reason),
        PlanError::Invalid(reason) => (Code::INVALID_ARGUMENT, reason),
    };
    Error::new(code, reason).in_operator(name(operator))
}

#[cold]
fn no_way() -> Error {
    Error::new(
        Code::UNSUPPORTED,
        "the driver runs no host kernels and its memory is not visible to the host",
    )
}

/// Writes its bias where its block says.
///
/// # Safety
/// `args` holds the address of an `AtomicI64` that is alive.
unsafe extern "C" fn tell_bias(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: the caller's promise.
    let place = unsafe { &*(args.cast::<u64>().read_unaligned() as *const AtomicI64) };
    place.store(bias, Ordering::Release);
    Code::OK.0
}

impl Device {
    /// Whether host kernels can run in stream order: by launches of the driver, or as host calls.
    pub(crate) fn runs_host_kernels(&self) -> Result<bool> {
        Ok(self.properties().host_visible() || self.kernels().get(self, tell_bias)?.is_some())
    }

    /// The driver's kernel for a host function; `None` if it takes none.
    pub(crate) fn host_kernel(&self, function: KernelFn) -> Result<Option<&Kernel>> {
        self.kernels().get(self, function)
    }

    /// What to add to an address of the device to reach its bytes from the host, on a thread that the
    /// driver runs.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the host cannot; what the driver reports.
    pub(crate) fn host_bias(&self) -> Result<i64> {
        if self.properties().host_visible() {
            return Ok(0);
        }
        if let Some(&known) = self.known_bias().get() {
            return Ok(known);
        }
        let Some(kernel) = self.kernels().get(self, tell_bias)? else {
            return Err(Error::new(
                Code::UNSUPPORTED,
                "the driver does not let the host reach the device's memory",
            ));
        };
        // A queue of its own: streams of the host may capture, or have failed.
        let queue = self.driver().queue_create(self.ordinal(), 0)?;
        let place = Arc::new(AtomicI64::new(0));
        let args = (Arc::as_ptr(&place) as u64).to_ne_bytes();
        // SAFETY: the block is what the kernel expects, and the place outlives the launch: it is waited for, or the
        // place is never given back.
        unsafe { queue.launch(kernel, &args, 0, c"bias") }?;
        if let Err(error) = queue.synchronize() {
            std::mem::forget(place);
            return Err(error.into());
        }
        Ok(*self
            .known_bias()
            .get_or_init(|| place.load(Ordering::Acquire)))
    }
}

fn name(operator: OperatorId) -> String {
    operator.name().to_string_lossy().into_owned()
}
