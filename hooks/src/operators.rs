//! Work of a stream that computes: operators, host kernels and host functions.

use std::ffi::c_void;
use std::sync::Once;
use std::time::Instant;

use outrigger_device::{Code, CopyKind, foreign_call};
use outrigger_graph::{Device as _, HostNode, KernelCall, Recording, Steps};
use outrigger_ops::guard::{self, Guard};
use outrigger_ops::{Call, Composition, OperatorId, Part, Prepared, numbers, refused};

use crate::places::{NanGuard, Place, count, count_timed, is_timing, is_watched, nan_guard};
use crate::{Result, Stream, registrations};

impl Stream {
    /// Runs an operator in stream order, on operands in this device's memory. Returns without waiting. Functions that a
    /// host registered are asked first, then the driver; what neither serves becomes a host kernel.
    ///
    /// # Safety
    /// The operands lie in live memory of this stream's device (H22, H23). Work of other streams on them is ordered
    /// with this call by events.
    ///
    /// # Errors
    /// `UNSUPPORTED` if there is no kernel for these arguments. Nothing was done then, and the host may run the
    /// operator elsewhere. `INVALID_ARGUMENT` if the operands do not fit the operator.
    #[inline]
    pub unsafe fn call(&self, operator: OperatorId, call: &Call<'_>) -> Result<()> {
        numbers::check(operator, call)
            .map_err(|error| self.not_recorded(error.on_stream(self.id())))?;
        if registrations::any() {
            // SAFETY: this function's contract.
            return unsafe { self.call_registered(operator, call) };
        }
        if self.is_capturing()
            && let Some(recorded) = self.record_call(operator, call, false)
        {
            return recorded;
        }
        self.check_awake(operator, call)?;
        if is_watched() {
            // SAFETY: this function's contract.
            return unsafe {
                self.call_watched(operator, call, is_timing(), || {
                    self.call_somewhere(operator, call)
                })
            };
        }
        // SAFETY: this function's contract.
        let place = unsafe { self.call_somewhere(operator, call) }?;
        count(operator, place, 1);
        Ok(())
    }

    /// Does what [`call`](Self::call) does, where a host has registered operators.
    ///
    /// # Safety
    /// The contract of [`call`](Self::call).
    #[cold]
    unsafe fn call_registered(&self, operator: OperatorId, call: &Call<'_>) -> Result<()> {
        if self.is_capturing()
            && let Some(recorded) = self.record_call(operator, call, true)
        {
            return recorded;
        }
        self.check_awake(operator, call)?;
        let run = || match self.ask_registered(operator, call)? {
            Some(place) => Ok(place),
            // SAFETY: this function's contract.
            None => unsafe { self.call_somewhere(operator, call) },
        };
        let timed = is_timing() && !registrations::is_part();
        // SAFETY: this function's contract.
        unsafe { self.call_watched(operator, call, timed, run) }
    }

    /// Records a call, and a guard behind it. With `registered`, functions that a host has registered are asked first.
    /// `None` if no capture takes the call any more: it is made then as on a stream that does not capture.
    #[cold]
    fn record_call(
        &self,
        operator: OperatorId,
        call: &Call<'_>,
        registered: bool,
    ) -> Option<Result<()>> {
        let place = self.recording()?;
        if registered {
            // The work that a function submits is recorded, and counted at replays.
            match self.ask_registered(operator, call) {
                Ok(Some(_)) => {
                    // Recorded with the function's work, or not at all.
                    let guarded = self.guarding().map(|infinite| {
                        place.record(|steps| self.record_guard(steps, operator, call, infinite))
                    });
                    return Some(guarded.and_then(|recorded| recorded.unwrap_or(Ok(()))));
                }
                Ok(None) => {}
                Err(error) => return Some(Err(self.not_recorded(error))),
            }
        }
        match self.record_somehow(&place, operator, call) {
            Ok(recorded) => recorded.map(Ok),
            Err(error) => Some(Err(error)),
        }
    }

    /// Records a call: in parts, over copies, or whole.
    fn record_somehow(
        &self,
        place: &Recording<'_>,
        operator: OperatorId,
        call: &Call<'_>,
    ) -> Result<Option<()>> {
        let infinite = self.guarding()?;
        let guard = |steps: &mut Steps<'_>| self.record_guard(steps, operator, call, infinite);
        let device = self.device();
        if device.door().composes(operator)
            && let Some(composition) = self.composition(operator, call)?
        {
            return self.record_parts(place, operator, call, &composition, guard);
        }
        if self.is_staged(operator, call)? {
            // Without a guard: the device runs no host kernels.
            return self.record_call_staged(place, operator, call);
        }
        let Some(mut driver) = place.find(operator, call).transpose()? else {
            return Ok(None);
        };
        let recorded = place.record(|steps| {
            steps.operator(operator, call, driver.as_mut())?;
            guard(steps)
        });
        recorded.transpose()
    }

    /// Records a call as other operators of the driver, or as commands that every driver has.
    fn record_parts(
        &self,
        place: &Recording<'_>,
        operator: OperatorId,
        call: &Call<'_>,
        composition: &Composition,
        guard: impl FnOnce(&mut Steps<'_>) -> Result<()>,
    ) -> Result<Option<()>> {
        let device = self.device();
        let scratch = device.alloc_recorded(composition.scratch_bytes(), place);
        let Some(scratch) = scratch.transpose()? else {
            return Ok(None);
        };
        // Before the parts are recorded: this calls the driver and observers.
        let mut found = Vec::new();
        let mut ended = false;
        let asked = composition.run(call, scratch, &mut |part| {
            if let Part::Operator { id, call, .. } = part {
                match place.find(id, call).transpose()? {
                    Some(driver) => found.push(driver),
                    None => ended = true,
                }
            }
            Ok(())
        });
        let recorded = match asked {
            Ok(()) if ended => None,
            Ok(()) => place.record(|steps| {
                let mut found = found.iter_mut();
                composition.run(call, scratch, &mut |part| match part {
                    Part::Operator { id, call, .. } => {
                        steps.operator(id, call, found.next().and_then(Option::as_mut))
                    }
                    Part::Copy { dst, src, bytes } => {
                        let kind = CopyKind::DeviceToDevice;
                        device.check_copy(dst, src, bytes, kind)?;
                        steps.copy(dst, src, bytes, kind)
                    }
                    Part::Fill {
                        dst,
                        bytes,
                        pattern,
                    } => {
                        device.check_fill(dst, bytes, pattern)?;
                        steps.fill(dst, bytes, pattern)
                    }
                })?;
                guard(steps)
            }),
            Err(error) => Some(Err(error)),
        };
        if scratch != 0 {
            device.free(scratch)?;
        }
        let recorded = recorded.transpose();
        recorded.map_err(|error| error.in_operator(operator.name().to_string_lossy()))
    }

    /// Asks the functions that are registered for a call. Returns where the work of the one that served it ran.
    fn ask_registered(&self, operator: OperatorId, call: &Call<'_>) -> Result<Option<Place>> {
        if !registrations::is_registered(operator) {
            return Ok(None);
        }
        let found = registrations::find(operator, self.device().index());
        if !found.any() {
            return Ok(None);
        }
        outrigger_ops::check(operator, call)
            .map_err(|error| refused(operator, error).on_stream(self.id()))?;
        registrations::ask(&found, self, operator, call)
    }

    /// Refuses operands in memory of pools that sleep.
    #[inline]
    fn check_awake(&self, operator: OperatorId, call: &Call<'_>) -> Result<()> {
        let device = self.device();
        if device.sleeping().any() {
            for operand in call.inputs.iter().chain(call.outputs) {
                let awake = device.check_awake(operand.address());
                awake.map_err(|error| {
                    let name = operator.name().to_string_lossy();
                    error.in_operator(name).on_stream(self.id())
                })?;
            }
        }
        Ok(())
    }

    /// Runs a call as `run` does, times it or counts it, and puts a guard behind it.
    ///
    /// # Safety
    /// The contract of [`call`](Self::call).
    #[cold]
    unsafe fn call_watched(
        &self,
        operator: OperatorId,
        call: &Call<'_>,
        timed: bool,
        run: impl FnOnce() -> Result<Place>,
    ) -> Result<()> {
        if timed {
            self.timed(operator, run)?;
        } else {
            let place = run()?;
            if !registrations::is_part_at(place) {
                count(operator, place, 1);
            }
        }
        // SAFETY: this function's contract.
        unsafe { self.guard(operator, call) }
    }

    /// Puts a guard behind a call, if there are to be guards and host kernels run on the device.
    ///
    /// # Safety
    /// The contract of [`call`](Self::call).
    #[cold]
    unsafe fn guard(&self, operator: OperatorId, call: &Call<'_>) -> Result<()> {
        let Some(infinite) = self.guarding()? else {
            return Ok(());
        };
        let Some(guard) = Guard::of(operator, call, None, infinite) else {
            return Ok(());
        };
        // SAFETY: the block is the guard's; its memory is live by this function's contract.
        unsafe { self.launch_host(guard::guard, guard.args(), 0, operator.name()) }
    }

    /// Records a guard behind the last node, if there are to be guards.
    fn record_guard(
        &self,
        steps: &mut Steps<'_>,
        operator: OperatorId,
        call: &Call<'_>,
        infinite: Option<bool>,
    ) -> Result<()> {
        let Some(infinite) = infinite else {
            return Ok(());
        };
        let node = Some(steps.nodes().saturating_sub(1));
        let Some(guard) = Guard::of(operator, call, node, infinite) else {
            return Ok(());
        };
        steps.kernel(&KernelCall {
            function: guard::guard,
            args: guard.args(),
            cost_ns: 0,
            label: operator.name(),
            address_offsets: &guard.addresses,
            ranges: &[],
        })
    }

    /// Whether guards look for infinite numbers, too; `None` if there are to be no guards, or the device runs no host
    /// kernels.
    fn guarding(&self) -> Result<Option<bool>> {
        let infinite = match nan_guard() {
            NanGuard::Off => return Ok(None),
            found => found == NanGuard::NanAndInfinite,
        };
        if !self.device().door().runs_host_kernels()? {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                tracing::warn!(target: "outrigger::ops", device = self.device().index(),
                    "no guard looks for NaN: the device runs no host kernels");
            });
            return Ok(None);
        }
        Ok(Some(infinite))
    }

    /// Runs a call on its own, and times it.
    #[cold]
    fn timed(&self, operator: OperatorId, run: impl FnOnce() -> Result<Place>) -> Result<()> {
        self.synchronize_now()?;
        let start = Instant::now();
        let place = run()?;
        let outcome = self.synchronize_now();
        let nanoseconds = start.elapsed().as_nanos();
        count_timed(
            operator,
            place,
            u64::try_from(nanoseconds).unwrap_or(u64::MAX),
        );
        outcome
    }

    /// Runs a call as the driver's own operator, or else as a host kernel. Returns where it runs.
    ///
    /// # Safety
    /// The contract of [`call`](Self::call).
    #[inline]
    unsafe fn call_somewhere(&self, operator: OperatorId, call: &Call<'_>) -> Result<Place> {
        let device = self.device();
        // SAFETY: this function's contract is that of `call_driver`.
        if device.door().offers(operator) && unsafe { self.call_driver(operator, call) }? {
            return Ok(Place::Device);
        }
        // SAFETY: this function's contract is that of `call_parts`.
        if device.door().composes(operator) && unsafe { self.call_parts(operator, call) }? {
            return Ok(Place::Device);
        }
        let plan = outrigger_ops::plan(operator, call)
            .map_err(|error| refused(operator, error).on_stream(self.id()))?;
        device.admit_host_kernel(operator)?;
        // SAFETY: the plan made the block for this kernel. This function's contract: its operands are live and ordered.
        match unsafe { self.launch_host(plan.kernel, plan.args(), plan.cost_ns, plan.label) } {
            Ok(()) => {}
            // SAFETY: this function's contract.
            Err(_) if !device.door().runs_host_kernels()? => unsafe {
                self.call_staged(operator, call)?;
            },
            Err(error) => return Err(error),
        }
        Ok(device.host_kernel_place())
    }

    /// Runs a call as the driver's own operator. Returns false if the driver has none for it, or a host kernel is
    /// better.
    ///
    /// # Safety
    /// The contract of [`call`](Self::call).
    unsafe fn call_driver(&self, operator: OperatorId, call: &Call<'_>) -> Result<bool> {
        let device = self.device();
        let Some(prepared) = device.find_operator(operator, call)? else {
            return Ok(false);
        };
        // SAFETY: this function's contract.
        unsafe { self.launch_prepared(&prepared, operator, call) }?;
        Ok(true)
    }

    /// Launches an operator of the driver.
    ///
    /// # Safety
    /// The contract of [`call`](Self::call).
    #[inline]
    unsafe fn launch_prepared(
        &self,
        prepared: &Prepared,
        operator: OperatorId,
        call: &Call<'_>,
    ) -> Result<()> {
        let device = self.device();
        // The workspace is memory of this stream, so it may be freed at once: it is reused in stream order.
        let workspace = match prepared.needs().workspace_bytes {
            0 => 0,
            bytes => device.alloc_now(bytes, self.id())?,
        };
        // SAFETY: this function's contract: the operands are live and ordered. R47: the workspace has as many bytes as
        // the driver asked for, and is reused only behind this launch, in stream order.
        let launched = unsafe { prepared.launch(self.queue(), operator, call, workspace) };
        if workspace != 0 {
            device.free(workspace)?;
        }
        launched.map_err(|error| self.failed(error))
    }

    /// The parts of a call that is made of other operators of the driver, or of commands that every driver has; `None`
    /// if the driver has the whole, or does not have all parts.
    #[cold]
    fn composition(&self, operator: OperatorId, call: &Call<'_>) -> Result<Option<Composition>> {
        let device = self.device();
        if call.whole || device.find_operator(operator, call)?.is_some() {
            return Ok(None);
        }
        let composition = device.door().compose(operator, call);
        composition.map_err(|error| error.on_stream(self.id()))
    }

    /// Runs a call in parts. Returns false if it is not made of parts.
    ///
    /// # Safety
    /// The contract of [`call`](Self::call).
    #[cold]
    unsafe fn call_parts(&self, operator: OperatorId, call: &Call<'_>) -> Result<bool> {
        let Some(composition) = self.composition(operator, call)? else {
            return Ok(false);
        };
        let device = self.device();
        // As with a workspace: what is freed at once is reused in stream order.
        let scratch = device.alloc_now(composition.scratch_bytes(), self.id())?;
        let ran = composition.run(call, scratch, &mut |part| {
            // SAFETY: this function's contract: the operands are live and ordered; what lies between the parts is in the
            // scratch memory.
            unsafe {
                match part {
                    Part::Operator { id, call, prepared } => {
                        self.launch_prepared(prepared, id, call)
                    }
                    Part::Copy { dst, src, bytes } => {
                        self.copy_now(dst, src, bytes, CopyKind::DeviceToDevice)
                    }
                    Part::Fill {
                        dst,
                        bytes,
                        pattern,
                    } => self.fill_now(dst, bytes, pattern),
                }
            }
        });
        if scratch != 0 {
            device.free(scratch)?;
        }
        ran.map(|()| true)
            .map_err(|error| error.in_operator(operator.name().to_string_lossy()))
    }

    /// Launches a host kernel in stream order. It becomes a launch where the driver takes host functions, and a host
    /// call where the host sees the device's memory. Elsewhere it is a host call over copies, if the call says how many
    /// bytes to copy.
    ///
    /// # Safety
    /// The kernel may run with this block, and the memory that the block names is live until it has run.
    ///
    /// # Errors
    /// `UNSUPPORTED` if there is no way to run it; `INVALID_ARGUMENT` for an address offset that is wrong.
    #[inline]
    pub unsafe fn launch_host_kernel(&self, call: &KernelCall<'_>) -> Result<()> {
        if !call.ranges.is_empty() && !self.device().door().runs_host_kernels()? {
            // SAFETY: this function's contract.
            return unsafe { self.launch_staged(call) };
        }
        if self.is_capturing()
            && let Some(recorded) = self.record(|steps| steps.kernel(call))
        {
            return recorded;
        }
        // SAFETY: this function's contract: the kernel may run with this block, whose memory is live.
        unsafe { self.launch_host(call.function, call.args, call.cost_ns, call.label) }
    }

    /// Runs a host function in stream order: once, or at every replay if the stream captures.
    ///
    /// # Safety
    /// The function may be called with its user data, from any thread, until `destroy` is called.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the node names memory and the host cannot reach it. Then neither the function nor `destroy` is
    /// called.
    pub unsafe fn host_node(&self, node: &HostNode<'_>) -> Result<()> {
        let bias = match self.device().door().host_bias() {
            Ok(bias) => bias,
            Err(_) if node.reads.is_empty() && node.writes.is_empty() => 0,
            Err(error) => return Err(self.not_recorded(error)),
        };
        if self.is_capturing()
            && let Some(recorded) = self.record(|steps| steps.host_node(node))
        {
            return recorded;
        }
        let (function, user, destroy) = (node.function, node.user as usize, node.destroy);
        self.host_call_now(move |upstream| {
            let upstream = upstream.err().unwrap_or(Code::OK);
            // SAFETY: this function's contract: the function may be called with its user data until `destroy` is
            // called.
            let code = unsafe { foreign_call!(function, user as *mut c_void, bias, upstream.0) };
            if let Some(destroy) = destroy {
                // SAFETY: `destroy` is called once, after the last call of the function.
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
