//! A stream's timeline: its queue, the id that errors name it by, and the operator that failed on it.

use std::ffi::CStr;
use std::sync::Arc;

use outrigger_device::{Code, Queue, Tail};
use outrigger_ops::{Door, Error, FailedOperator, KernelFn, Result};

use crate::kernel::DeviceCall;
use crate::memory::Device;

/// The queue of a stream, with what its errors name: the id of the stream and the operator that failed.
#[derive(Debug)]
pub struct Timeline {
    id: u64,
    device: &'static dyn Device,
    door: &'static Door,
    queue: Queue,
    failed: Arc<FailedOperator>,
}

impl Timeline {
    /// The timeline of a new queue of a device, for the stream `id`.
    pub fn new(id: u64, device: &'static dyn Device, queue: Queue) -> Self {
        Self {
            id,
            device,
            door: device.door(),
            queue,
            failed: Arc::default(),
        }
    }

    /// The id of the stream.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The device of the queue.
    #[inline]
    pub fn on(&self) -> &'static dyn Device {
        self.device
    }

    /// The queue.
    #[inline]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The place where a kernel that fails on the host notes its name.
    pub fn failed_operator(&self) -> &Arc<FailedOperator> {
        &self.failed
    }

    /// Turns a failure that the queue reports into an error that names the operator and the stream.
    #[cold]
    pub fn failed(&self, error: outrigger_device::Error) -> Error {
        self.failed.explain(error).on_stream(self.id)
    }

    /// Waits for all work submitted before.
    ///
    /// # Errors
    /// The first failure of that work. The queue takes work again then.
    pub fn synchronize_now(&self) -> Result<()> {
        self.reported(self.queue.synchronize())
    }

    /// Does what [`synchronize_now`](Self::synchronize_now) does. Returns besides whether the work is over, which a wait
    /// that itself has failed leaves open. Memory that the work uses stays until it is over.
    pub fn finish(&self) -> (Result<()>, bool) {
        let (finished, over) = self.queue.finish();
        (self.reported(finished), over)
    }

    /// The result of a wait. A failure of the work has been reported then.
    fn reported(&self, waited: outrigger_device::Result<()>) -> Result<()> {
        waited.map_err(|error| {
            let is_outcome = error.is_outcome();
            let error = self.failed(error);
            if is_outcome {
                self.failed.clear();
            }
            error
        })
    }

    /// Launches a host kernel; see [`outrigger_ops::Door::launch_host`].
    ///
    /// # Safety
    /// The contract of [`outrigger_ops::Door::launch_host`].
    ///
    /// # Errors
    /// Those of [`outrigger_ops::Door::launch_host`].
    #[inline(never)] // compiled once, with its callees inlined: its callers need their registers
    pub unsafe fn launch_host(
        &self,
        function: KernelFn,
        args: &[u8],
        cost_ns: u32,
        label: &'static CStr,
    ) -> Result<()> {
        // SAFETY: this function's contract is that of `Door::launch_host`.
        unsafe {
            self.door
                .launch_host(&self.queue, &self.failed, (function, args), cost_ns, label)
        }
        .map_err(|error| error.on_stream(self.id))
    }

    /// Launches a kernel of a module.
    ///
    /// # Safety
    /// The contract of [`outrigger_device::Queue::launch_grid`].
    ///
    /// # Errors
    /// What the driver reports.
    #[inline]
    pub unsafe fn launch_device(&self, call: &DeviceCall<'_>) -> Result<()> {
        let DeviceCall {
            kernel,
            grid,
            args,
            cost_ns,
            label,
        } = call;
        // SAFETY: this function's contract.
        unsafe { self.queue.launch_grid(kernel, grid, *args, *cost_ns, label) }
            .map_err(|error| self.failed(error))
    }

    /// The way to the driver's kernels.
    pub(crate) fn door(&self) -> &'static Door {
        self.door
    }

    /// Runs a host kernel over host pointers as a host call; see [`outrigger_ops::Door::call_on_host`].
    ///
    /// # Safety
    /// The contract of [`outrigger_ops::Door::call_on_host`].
    ///
    /// # Errors
    /// Those of [`outrigger_ops::Door::call_on_host`].
    pub unsafe fn call_on_host(
        &self,
        function: KernelFn,
        args: &[u8],
        label: &'static CStr,
    ) -> Result<()> {
        // SAFETY: this function's contract is that of `Door::call_on_host`.
        unsafe {
            self.door
                .call_on_host(&self.queue, &self.failed, (function, args), label)
        }
        .map_err(|error| error.on_stream(self.id))
    }

    /// Runs a function on the host in queue order, exactly once. The function gets the failure of the work before it,
    /// if any. If the function fails, the queue fails.
    ///
    /// # Errors
    /// What the driver reports; the function is dropped without having run.
    pub fn host_call_now(
        &self,
        function: impl FnOnce(Result<(), Code>) -> Result<(), Code> + Send + 'static,
    ) -> Result<()> {
        self.queue
            .host_call(function)
            .map_err(|error| self.failed(error))
    }

    /// The end of all work that the queue was given.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn tail(&self) -> outrigger_device::Result<Arc<Tail>> {
        Tail::of(&self.queue).map(Arc::new)
    }
}
