//! Operators that a driver brings as its own library. The driver is asked once per signature (name,
//! dtypes, sizes, strides), and the answer, also a no, is kept.
//!
//! An operator is released when nobody can launch it any more and all its launches have finished (R47).

use std::collections::HashMap;
use std::sync::Arc;

use arrayvec::ArrayVec;
use outrigger_allocator::StreamId;
use outrigger_device::sys::{otr_operator_call, otr_scalar, otr_scalar__bindgen_ty_1, otr_tensor};
use outrigger_device::{Code, DType, Operator, Queue};
use outrigger_locks::{Rank, RwLock};
use outrigger_ops::{Call, OperatorId, Scalar, Tensor};

use crate::graph::PoolRef;
use crate::kernels::refused;
use crate::{Device, Result, Stream};

/// Signatures that are kept before all are forgotten: programs with ever new shapes must not grow.
const KEPT: usize = 16_384;

/// The most operands or scalars of a call that is offered to a driver.
const OPERANDS: usize = 64;

/// Numbers of a signature: a few per operand.
type Signature = ArrayVec<i64, 512>;

/// What the driver of a device answered so far.
pub(crate) struct DriverOperators(RwLock<HashMap<Box<[i64]>, Answer>>);

impl Default for DriverOperators {
    fn default() -> Self {
        Self(RwLock::new(Rank::DriverOperators, HashMap::new()))
    }
}

/// `None`: the driver has no such operator.
type Answer = Option<Arc<Prepared>>;

/// An operator of the driver. Who launches it has a reference, so that every launch lies before its end.
#[derive(Debug)]
pub(crate) struct Prepared {
    device: &'static Device,
    /// Until the end.
    operator: Option<Operator>,
    workspace_bytes: u64,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(operator) = self.operator.take() {
            // R47: launches may be running, on any stream.
            self.device.retire_behind_all(Box::new(operator));
        }
    }
}

impl DriverOperators {
    /// The driver's operator for a call; `None` if it has none, or cannot be asked.
    fn get(
        &self,
        device: &'static Device,
        id: OperatorId,
        call: &Call<'_>,
        raw: &Raw,
    ) -> Result<Answer> {
        let Some(operators) = device.driver().operators() else {
            return Ok(None);
        };
        let Some(signature) = signature(id, call) else {
            return Ok(None);
        };
        if let Some(answer) = self.0.read().get(signature.as_slice()) {
            return Ok(answer.clone());
        }
        // A driver is asked for what can be only; a signature that is kept was.
        outrigger_ops::check(call).map_err(|error| refused(id, error))?;
        // SAFETY: the operands of `raw` point into `call`, which outlives this.
        let answer = unsafe { operators.prepare(device.ordinal(), &raw.call(id)) }?.map(
            |(operator, workspace_bytes)| {
                Arc::new(Prepared {
                    device,
                    operator: Some(operator),
                    workspace_bytes,
                })
            },
        );
        let forgotten = {
            let mut kept = self.0.write();
            let forgotten = if kept.len() >= KEPT {
                std::mem::take(&mut *kept)
            } else {
                HashMap::new()
            };
            kept.insert(signature.as_slice().into(), answer.clone());
            forgotten
        };
        if !forgotten.is_empty() {
            // Without the lock: their end asks the driver.
            drop(forgotten);
            device.sweep_retired();
        }
        Ok(answer)
    }
}

impl Stream {
    /// Runs a call by the driver's own operator. False if the driver has none for it.
    ///
    /// # Safety
    /// As for [`Stream::call`].
    pub(crate) unsafe fn call_driver(&self, id: OperatorId, call: &Call<'_>) -> Result<bool> {
        let device = self.device();
        if device.driver().operators().is_none() {
            return Ok(false);
        }
        let Some(raw) = Raw::new(call) else {
            return Ok(false);
        };
        let prepared = device.driver_operators().get(device, id, call, &raw);
        let Some(prepared) = prepared.map_err(|error| error.on_stream(self.id()))? else {
            return Ok(false);
        };
        // Freed at once: the next user of this memory is behind the launch in stream order.
        let workspace = device.alloc(prepared.workspace_bytes, self.id())?;
        // SAFETY: operands are the caller's promise; the workspace is as large as the driver asked.
        let launched = unsafe { prepared.launch_raw(self.queue(), &raw.call(id), workspace) };
        if workspace != 0 {
            device.free(workspace)?;
        }
        launched.map_err(|error| self.failed(error))?;
        Ok(true)
    }
}

impl Prepared {
    /// Launches the operator with a call that it was prepared for.
    ///
    /// # Safety
    /// As for [`Stream::call`]; the workspace has as many bytes as the operator asked for.
    pub(crate) unsafe fn launch(
        &self,
        queue: &Queue,
        id: OperatorId,
        call: &Call<'_>,
        workspace: u64,
    ) -> outrigger_device::Result<()> {
        let Some(raw) = Raw::new(call) else {
            let text = "a recorded call has too many operands";
            return Err(outrigger_device::Error::new(Code::INTERNAL, text));
        };
        // SAFETY: the caller's promise.
        unsafe { self.launch_raw(queue, &raw.call(id), workspace) }
    }

    /// As [`launch`](Self::launch), for a call as the driver contract has it.
    ///
    /// # Safety
    /// As of [`launch`](Self::launch).
    unsafe fn launch_raw(
        &self,
        queue: &Queue,
        call: &otr_operator_call,
        workspace: u64,
    ) -> outrigger_device::Result<()> {
        let Some(operator) = &self.operator else {
            unreachable!("an operator is there until the end of what holds it");
        };
        // SAFETY: the caller's promise.
        unsafe { queue.launch_operator(operator, call, workspace) }
    }
}

impl Device {
    /// The driver's own operator for a call that a graph records; `None` if the driver has none. Asked before
    /// the graph is locked, since it calls the driver.
    pub(crate) fn prepare_operator(
        &'static self,
        id: OperatorId,
        call: &Call<'_>,
        pool: &Arc<PoolRef>,
    ) -> Result<Option<DriverCall>> {
        if self.driver().operators().is_none() {
            return Ok(None);
        }
        let Some(raw) = Raw::new(call) else {
            return Ok(None);
        };
        let Some(prepared) = self.driver_operators().get(self, id, call, &raw)? else {
            return Ok(None);
        };
        let workspace = match prepared.workspace_bytes {
            0 => 0,
            bytes => {
                let stream = StreamId(self.default_stream().id());
                self.alloc_in(pool, bytes, stream)?.address
            }
        };
        Ok(Some(DriverCall {
            prepared,
            workspace,
        }))
    }
}

/// A call that the driver runs, with memory of a graph's pool to work in, which is given back unless the graph
/// takes it.
pub(crate) struct DriverCall {
    prepared: Arc<Prepared>,
    workspace: u64,
}

impl DriverCall {
    /// Gives the operator and the address of its workspace, which the caller gives back from here on; 0 if it
    /// needs none.
    pub(crate) fn take(mut self) -> (Arc<Prepared>, u64) {
        let workspace = std::mem::take(&mut self.workspace);
        (Arc::clone(&self.prepared), workspace)
    }
}

impl Drop for DriverCall {
    fn drop(&mut self) {
        if self.workspace != 0 {
            self.prepared.device.free_block(self.workspace);
        }
    }
}

/// The operands of a call as the driver contract has them.
struct Raw {
    inputs: ArrayVec<otr_tensor, OPERANDS>,
    outputs: ArrayVec<otr_tensor, OPERANDS>,
    scalars: ArrayVec<otr_scalar, OPERANDS>,
}

impl Raw {
    /// `None` if there are too many, or one without as many strides as sizes.
    fn new(call: &Call<'_>) -> Option<Self> {
        let tensors = |tensors: &[Tensor<'_>]| {
            let mut out = ArrayVec::new();
            for tensor in tensors {
                if tensor.strides.len() != tensor.sizes.len() {
                    return None;
                }
                out.try_push(otr_tensor {
                    address: tensor.address,
                    dtype: tensor.dtype.0,
                    rank: u32::try_from(tensor.sizes.len()).ok()?,
                    sizes: tensor.sizes.as_ptr(),
                    strides: tensor.strides.as_ptr(),
                })
                .ok()?;
            }
            Some(out)
        };
        let mut scalars = ArrayVec::new();
        for scalar in call.scalars {
            let (dtype, value) = match *scalar {
                Scalar::F64(value) => (DType::F64, otr_scalar__bindgen_ty_1 { f64_: value }),
                Scalar::I64(value) => (DType::I64, otr_scalar__bindgen_ty_1 { i64_: value }),
            };
            scalars
                .try_push(otr_scalar {
                    dtype: dtype.0,
                    reserved: 0,
                    value,
                })
                .ok()?;
        }
        Some(Self {
            inputs: tensors(call.inputs)?,
            outputs: tensors(call.outputs)?,
            scalars,
        })
    }

    /// The call; it points into `self`.
    fn call(&self, id: OperatorId) -> otr_operator_call {
        otr_operator_call {
            struct_size: size_of::<otr_operator_call>(),
            next: std::ptr::null(),
            name: id.name().as_ptr(),
            inputs: self.inputs.as_ptr(),
            outputs: self.outputs.as_ptr(),
            scalars: self.scalars.as_ptr(),
            // At most OPERANDS each.
            input_count: self.inputs.len() as u32,
            output_count: self.outputs.len() as u32,
            scalar_count: self.scalars.len() as u32,
            reserved: 0,
        }
    }
}

/// What makes two calls the same to a driver; `None` if the call is larger than is worth keeping.
fn signature(id: OperatorId, call: &Call<'_>) -> Option<Signature> {
    let mut numbers = Signature::new();
    numbers.try_push(i64::from(id.index())).ok()?;
    numbers.try_push(call.inputs.len() as i64).ok()?;
    for tensor in call.inputs.iter().chain(call.outputs) {
        numbers.try_push(i64::from(tensor.dtype.0)).ok()?;
        numbers.try_push(tensor.sizes.len() as i64).ok()?;
        numbers.try_extend_from_slice(tensor.sizes).ok()?;
        numbers.try_extend_from_slice(tensor.strides).ok()?;
    }
    Some(numbers)
}
