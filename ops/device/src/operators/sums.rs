//! Elements that kernels add to atomically, in any order.

use outrigger_device::DType;
use outrigger_ops::{Scalar, Tensor};

use super::elementwise::{Pass, copy_pass};
use crate::call::{Result, unsupported};
use crate::device::Device;
use crate::layout::dense;
use crate::work::Launch;

/// The elements of an output while they are added to: in place, or as wider numbers in the workspace if the device does not add
/// such elements. Those are rounded once, at the end.
pub(crate) struct Sums {
    /// The type of the sums.
    pub(crate) dtype: DType,
    /// The strides of the sums.
    pub(crate) strides: Vec<i64>,
    bytes: u64,
    /// The pass that writes the values before the first addition; zeros if there is none.
    first: Option<Pass>,
    last: Option<Pass>,
}

impl Sums {
    /// Of an output that begins as `input`, or with zeros, and is dense then.
    pub(crate) fn new(
        device: &Device,
        input: Option<&Tensor<'_>>,
        out: &Tensor<'_>,
    ) -> Result<Self> {
        device.class(out.dtype())?;
        let (dtype, adds) = match out.dtype() {
            DType::F32 | DType::I32 => (out.dtype(), true),
            DType::F64 | DType::I64 if device.has_atomic64 => (out.dtype(), true),
            DType::F16 | DType::BF16 => (DType::F32, false),
            DType::I16 | DType::I8 | DType::U8 | DType::BOOL => (DType::I32, false),
            other => return unsupported(format!("the device does not add {other} atomically")),
        };
        let strides = if adds {
            out.strides().to_vec()
        } else {
            dense(out.sizes())
        };
        let sums = Tensor::new(64, dtype, out.sizes(), &strides);
        let first = input.map(|input| copy_pass(device, input, &sums));
        let last = (!adds).then(|| copy_pass(device, &sums, out));
        let bytes = out.numel().unsigned_abs() * dtype.size().unwrap_or(0) as u64;
        Ok(Self {
            dtype,
            bytes,
            first: first.transpose()?,
            last: last.transpose()?,
            strides,
        })
    }

    /// Bytes of the workspace.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        if self.last.is_some() { self.bytes } else { 0 }
    }

    /// Puts into place what is added to, and gives its address. `from` is the address of the input, if there is one.
    pub(crate) fn begin(
        &self,
        launch: &mut Launch<'_>,
        from: u64,
        out: u64,
        workspace: u64,
    ) -> std::result::Result<u64, i32> {
        let place = if self.last.is_some() { workspace } else { out };
        match &self.first {
            // In place there is nothing to copy.
            Some(_) if from == place => {}
            Some(pass) => pass.run(launch, &[from, place], [Scalar::I64(0); 4])?,
            None => launch.zero(place, self.bytes)?,
        }
        Ok(place)
    }

    /// Stores sums of the workspace as elements.
    pub(crate) fn finish(
        &self,
        launch: &mut Launch<'_>,
        place: u64,
        out: u64,
    ) -> std::result::Result<(), i32> {
        match &self.last {
            Some(pass) => pass.run(launch, &[place, out], [Scalar::I64(0); 4]),
            None => Ok(()),
        }
    }
}
