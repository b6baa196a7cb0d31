//! Operators that a driver brings as a library. The driver is asked once for each signature (name, dtypes, sizes and
//! strides), and its answer is kept, also if it has no operator.
//!
//! An operator is released when nobody can launch it any more and all its launches have finished (R47).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use outrigger_device::sys::{otr_operator_call, otr_scalar, otr_scalar__bindgen_ty_1, otr_tensor};
use outrigger_device::{DType, Operator, Queue};
use outrigger_locks::{Mutex, Rank, RwLock};

use super::Door;
use crate::call::{Call, Scalar, Tensor};
use crate::failure::{Result, refused};
use crate::registry::OperatorId;

/// The most signatures that are kept. Then all are dropped, so that a program with ever new shapes does not grow.
const KEPT: usize = 16_384;

/// The most operands or scalars of a call that is offered to a driver.
const OPERANDS: usize = 64;

/// The numbers of a signature: a few for each operand.
type Signature = ArrayVec<i64, 512>;

/// The answers of a device's driver so far.
pub(super) struct Answers(RwLock<HashMap<Box<[i64]>, Answer>>);

impl Default for Answers {
    fn default() -> Self {
        Self(RwLock::new(Rank::DriverOperators, HashMap::new()))
    }
}

/// The driver's operator; `None` if it has none.
type Answer = Option<Arc<Prepared>>;

/// The driver's operators that nobody can launch any more.
pub(super) struct Ended {
    any: AtomicBool,
    operators: Mutex<Vec<Operator>>,
}

impl Default for Ended {
    fn default() -> Self {
        Self {
            any: AtomicBool::new(false),
            operators: Mutex::new(Rank::EndedOperators, Vec::new()),
        }
    }
}

impl Ended {
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self) -> Vec<Operator> {
        let mut operators = self.operators.lock();
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *operators)
    }

    fn add(&self, operator: Operator) {
        let mut operators = self.operators.lock();
        operators.push(operator);
        self.any.store(true, Ordering::Relaxed);
    }
}

/// An operator of the driver. Whoever launches it has a reference, so all launches come before its end.
pub struct Prepared {
    /// `None` only while this is being dropped.
    operator: Option<Operator>,
    workspace_bytes: u64,
    ended: Arc<Ended>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(operator) = self.operator.take() {
            // R47: launches may be running, on any queue.
            self.ended.add(operator);
        }
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared")
            .field("workspace_bytes", &self.workspace_bytes)
            .finish_non_exhaustive()
    }
}

impl Answers {
    /// The driver's operator for a call; `None` if it has none, or the call is too large to ask for.
    pub(super) fn find(&self, door: &Door, call: &DriverCall<'_>) -> Result<Answer> {
        let Some(operators) = door.driver().operators() else {
            return Ok(None);
        };
        let Some(signature) = call.signature() else {
            return Ok(None);
        };
        if let Some(answer) = self.0.read().get(signature.as_slice()) {
            return Ok(answer.clone());
        }
        // A driver is asked only for calls that are well-formed. A signature that is kept was checked.
        crate::check(call.call).map_err(|error| refused(call.id, error))?;
        // SAFETY: the operands of the raw call point into `call`, which outlives this statement.
        let answer = unsafe { operators.prepare(door.ordinal(), &call.raw()) }?.map(
            |(operator, workspace_bytes)| {
                Arc::new(Prepared {
                    operator: Some(operator),
                    workspace_bytes,
                    ended: Arc::clone(&door.ended),
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
        // Not under the lock: dropping an operator takes another one.
        drop(forgotten);
        Ok(answer)
    }
}

impl Prepared {
    /// The bytes of workspace that a launch needs.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }

    /// Launches the operator with a call that it was prepared for, or one of the same signature.
    ///
    /// # Safety
    /// The operands lie in live memory of the queue's device until the launch has finished, and nothing that is not
    /// ordered with the queue touches them. R47: the workspace has [`workspace_bytes`](Self::workspace_bytes) bytes,
    /// and is the launch's alone until it has finished.
    ///
    /// # Errors
    /// What the driver reports.
    pub unsafe fn launch(
        &self,
        queue: &Queue,
        call: &DriverCall<'_>,
        workspace: u64,
    ) -> outrigger_device::Result<()> {
        let Some(operator) = &self.operator else {
            unreachable!("an operator is there until the end of what holds it");
        };
        // SAFETY: this function's contract: operands and workspace are live. `raw` points into `call`.
        unsafe { queue.launch_operator(operator, &call.raw(), workspace) }
    }
}

/// A call in the structs of the driver contract.
pub struct DriverCall<'a> {
    id: OperatorId,
    call: &'a Call<'a>,
    inputs: ArrayVec<otr_tensor, OPERANDS>,
    outputs: ArrayVec<otr_tensor, OPERANDS>,
    scalars: ArrayVec<otr_scalar, OPERANDS>,
}

impl<'a> DriverCall<'a> {
    /// Returns `None` if there are too many operands or scalars, or if an operand has not as many strides as sizes.
    #[inline]
    pub fn new(id: OperatorId, call: &'a Call<'a>) -> Option<Self> {
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
            id,
            call,
            inputs: tensors(call.inputs)?,
            outputs: tensors(call.outputs)?,
            scalars,
        })
    }

    /// The call as a struct that points into `self`.
    fn raw(&self) -> otr_operator_call {
        otr_operator_call {
            struct_size: size_of::<otr_operator_call>(),
            next: std::ptr::null(),
            name: self.id.name().as_ptr(),
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

    /// The numbers in which two calls differ for a driver; `None` if there are too many to keep.
    fn signature(&self) -> Option<Signature> {
        let call = self.call;
        let mut numbers = Signature::new();
        numbers.try_push(i64::from(self.id.index())).ok()?;
        numbers.try_push(call.inputs.len() as i64).ok()?;
        for tensor in call.inputs.iter().chain(call.outputs) {
            numbers.try_push(i64::from(tensor.dtype.0)).ok()?;
            numbers.try_push(tensor.sizes.len() as i64).ok()?;
            numbers.try_extend_from_slice(tensor.sizes).ok()?;
            numbers.try_extend_from_slice(tensor.strides).ok()?;
        }
        Some(numbers)
    }
}
