//! Work of a stream that computes: operators, host kernels, and functions of the host.

use std::ffi::c_void;

use outrigger_device::{Code, foreign_call};
use outrigger_graph::{HostNode, KernelCall};
use outrigger_ops::{Call, DriverCall, OperatorId, refused};

use crate::{Result, Stream};

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
        let device = self.device();
        if device.sleeping().any() {
            for operand in call.inputs.iter().chain(call.outputs) {
                let awake = device.check_awake(operand.address);
                awake.map_err(|error| {
                    let name = operator.name().to_string_lossy();
                    error.in_operator(name).on_stream(self.id())
                })?;
            }
        }
        // SAFETY: the operands are live and ordered, by this function's contract.
        if device.door().has_operators() && unsafe { self.call_driver(operator, call) }? {
            return Ok(());
        }
        let plan = outrigger_ops::plan(operator, call)
            .map_err(|error| refused(operator, error).on_stream(self.id()))?;
        // SAFETY: the plan made the block for this kernel; its operands are live and ordered, as above.
        unsafe { self.launch_host(plan.kernel, plan.args(), plan.cost_ns, plan.label) }
    }

    /// Runs a call by the driver's own operator. False if the driver has none for it.
    ///
    /// # Safety
    /// As for [`call`](Self::call).
    unsafe fn call_driver(&self, operator: OperatorId, call: &Call<'_>) -> Result<bool> {
        let device = self.device();
        let Some(call) = DriverCall::new(operator, call) else {
            return Ok(false);
        };
        let found = device.door().find(&call)?;
        if device.door().has_ended() {
            device.sweep_retired();
        }
        let Some(prepared) = found else {
            return Ok(false);
        };
        // Memory of this stream: it is used again behind the launch, in stream order.
        let workspace = device.alloc(prepared.workspace_bytes(), self.id())?;
        // SAFETY: the operands are live and ordered, by this function's contract; the workspace is as large as the
        // driver asked.
        let launched = unsafe { prepared.launch(self.queue(), &call, workspace) };
        if workspace != 0 {
            device.free(workspace)?;
        }
        launched.map_err(|error| self.failed(error))?;
        Ok(true)
    }

    /// Launches a host kernel in stream order, through the driver's launch where it takes host
    /// functions, else as a host call where the memory is visible to the host.
    ///
    /// # Safety
    /// The kernel may run with this block, and the memory that it names is live until it has.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the device can do neither; `INVALID_ARGUMENT` for a wrong place of an address.
    #[inline]
    pub unsafe fn launch(&self, call: &KernelCall<'_>) -> Result<()> {
        if self.is_capturing() {
            return self.record_kernel(call);
        }
        // SAFETY: by this function's contract.
        unsafe { self.launch_host(call.function, call.args, call.cost_ns, call.label) }
    }

    /// Runs a function on the host in stream order: once, or at every replay where the stream captures.
    ///
    /// # Safety
    /// The function may be called with its user data, from any thread, until `destroy` is called.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the host cannot reach the device's memory. The function was not and will not be
    /// called then, nor `destroy`.
    pub unsafe fn host_node(&self, node: &HostNode<'_>) -> Result<()> {
        if self.is_capturing() {
            return self.record_host_node(node);
        }
        let bias = self.device().door().host_bias();
        let bias = bias.map_err(|error| error.on_stream(self.id()))?;
        let (function, user, destroy) = (node.function, node.user as usize, node.destroy);
        self.host_call_now(move |upstream| {
            let upstream = upstream.err().unwrap_or(Code::OK);
            // SAFETY: the caller's promise.
            let code = unsafe { foreign_call!(function, user as *mut c_void, bias, upstream.0) };
            if let Some(destroy) = destroy {
                // SAFETY: as above, and this is the only call of it.
                unsafe { foreign_call!(destroy, user as *mut c_void) };
            }
            if code == Code::OK.0 {
                Ok(())
            } else {
                Err(Code(code))
            }
        })
    }
}
