//! Operator calls in one flat array. A node keeps its call so that another scalar can be bound, and so that a driver's
//! operator can be launched.

use outrigger_device::DType;
use outrigger_ops::{Call, OperatorId, Scalar, Tensor};

/// The place of a call in the array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredCall {
    first: u32,
}

// A call is stored as words: the operator, then the counts of inputs, outputs and scalars. Each tensor follows as
// address, dtype, rank, sizes and strides; each scalar as 1 for a float or 0 for an integer, and its bits.
const HEAD: usize = 4;

impl StoredCall {
    pub(crate) fn store(calls: &mut Vec<u64>, id: OperatorId, call: &Call<'_>) -> Self {
        let first = calls.len() as u32;
        calls.push(u64::from(id.index()));
        for count in [call.inputs.len(), call.outputs.len(), call.scalars.len()] {
            calls.push(count as u64);
        }
        for tensor in call.inputs.iter().chain(call.outputs) {
            calls.extend([
                tensor.address,
                u64::from(tensor.dtype.0),
                tensor.sizes.len() as u64,
            ]);
            calls.extend(tensor.sizes.iter().map(|&size| size as u64));
            calls.extend(tensor.strides.iter().map(|&stride| stride as u64));
        }
        for scalar in call.scalars {
            calls.extend(match *scalar {
                Scalar::F64(value) => [1, value.to_bits()],
                Scalar::I64(value) => [0, value as u64],
            });
        }
        Self { first }
    }

    /// The same call after its array was appended to another one of `by` words.
    pub(crate) fn moved(self, by: u32) -> Self {
        Self {
            first: self.first + by,
        }
    }

    /// The operator that the call is of.
    pub(crate) fn operator(self, calls: &[u64]) -> OperatorId {
        OperatorId::from_index(calls[self.first as usize] as u32)
            .unwrap_or_else(|| unreachable!("stored from an operator"))
    }

    /// Runs `with` on the stored call.
    pub(crate) fn with<R>(self, calls: &[u64], with: impl FnOnce(OperatorId, &Call<'_>) -> R) -> R {
        let mut rest = &calls[self.first as usize..];
        let mut take = |count: usize| {
            let (front, back) = rest.split_at(count);
            rest = back;
            front
        };
        let head = take(HEAD);
        let mut tensors = |count: u64| {
            let mut out: Vec<Tensor<'_>> = Vec::with_capacity(count as usize);
            for _ in 0..count {
                let fixed = take(3);
                let rank = fixed[2] as usize;
                out.push(Tensor {
                    address: fixed[0],
                    dtype: DType(fixed[1] as u32),
                    sizes: bytemuck::cast_slice(take(rank)),
                    strides: bytemuck::cast_slice(take(rank)),
                });
            }
            out
        };
        let (inputs, outputs) = (tensors(head[1]), tensors(head[2]));
        let scalars: Vec<Scalar> = take(2 * head[3] as usize)
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&[float, bits]| match float {
                1 => Scalar::F64(f64::from_bits(bits)),
                _ => Scalar::I64(bits as i64),
            })
            .collect();
        with(
            self.operator(calls),
            &Call {
                inputs: &inputs,
                outputs: &outputs,
                scalars: &scalars,
            },
        )
    }
}
