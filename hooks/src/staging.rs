//! Host kernels on devices whose memory nobody else reaches: the driver runs no host functions, and the host does not see
//! the memory. The operands are copied to host memory, the kernel runs there as a host call, and what it wrote is copied
//! back: all in stream order, and in graphs as nodes. Bytes that the kernel does not write are never written back.

use std::ffi::c_void;

use outrigger_device::{Code, CopyKind};
use outrigger_graph::{Device as _, KernelCall, Recording, Steps};
use outrigger_ops::{Call, OperatorId, Tensor, refused};

use crate::pinned::host_memory;
use crate::places::count_staged;
use crate::{Error, Result, Stream};

/// The alignment of a copy: the host address of a byte differs from its device address by a multiple of it.
const ALIGNMENT: u64 = 256;

/// The most pieces in which one operand is copied back.
const PIECES: usize = 4096;

/// Device memory that a kernel uses, and where its copy lies.
struct StagedRange {
    address: u64,
    bytes: u64,
    /// The place of the copy within the host memory.
    at: u64,
}

/// The copies that one kernel needs.
#[derive(Default)]
struct Stage {
    /// The copied ranges, in the order of their addresses, without overlap once they are placed.
    ranges: Vec<StagedRange>,
    /// The ranges that are copied back.
    written: Vec<(u64, u64)>,
    memory: u64,
}

impl Stage {
    fn read(&mut self, address: u64, bytes: u64) {
        if bytes > 0 {
            self.ranges.push(StagedRange {
                address,
                bytes,
                at: 0,
            });
        }
    }

    /// Gives each range its place. Returns the bytes of host memory that all need.
    fn place(&mut self) -> u64 {
        self.ranges.sort_by_key(|one| one.address);
        let mut merged: Vec<StagedRange> = Vec::with_capacity(self.ranges.len());
        for one in self.ranges.drain(..) {
            match merged.last_mut() {
                Some(last) if one.address < last.address + last.bytes => {
                    last.bytes = last.bytes.max(one.address + one.bytes - last.address);
                }
                _ => merged.push(one),
            }
        }
        let mut end = 0;
        for one in &mut merged {
            one.at = end + one.address % ALIGNMENT;
            end = (one.at + one.bytes).next_multiple_of(ALIGNMENT);
        }
        self.ranges = merged;
        end
    }

    /// The bytes that are copied, in both directions.
    fn bytes(&self) -> u64 {
        let read = self.ranges.iter().map(|one| one.bytes);
        read.chain(self.written.iter().map(|one| one.1)).sum()
    }

    /// The host address of a byte; the address itself for one that is not copied.
    fn host(&self, address: u64) -> u64 {
        let behind = self.ranges.partition_point(|one| one.address <= address);
        let found = self.ranges[..behind].last();
        let found = found.filter(|one| address < one.address + one.bytes);
        found.map_or(address, |one| {
            self.memory + one.at + (address - one.address)
        })
    }

    /// Copies in, puts the kernel behind that, and copies back. `copy` and `kernel` run or record on `steps`.
    fn run<S: ?Sized>(
        &self,
        steps: &mut S,
        copy: impl Fn(&mut S, (u64, u64, u64, CopyKind)) -> Result<()>,
        kernel: impl FnOnce(&mut S) -> Result<()>,
    ) -> Result<()> {
        for one in &self.ranges {
            let to = self.memory + one.at;
            copy(steps, (to, one.address, one.bytes, CopyKind::DeviceToHost))?;
        }
        kernel(steps)?;
        self.written.iter().try_for_each(|&(address, bytes)| {
            let from = self.host(address);
            copy(steps, (address, from, bytes, CopyKind::HostToDevice))
        })
    }
}

/// # Safety
/// `user` is an allocation of pinned memory that nothing uses any more.
unsafe extern "C" fn free(user: *mut c_void) {
    let freed = host_memory().and_then(|memory| memory.free(user));
    if let Err(error) = freed {
        tracing::error!(target: "outrigger::memory", %error, "memory of a staged kernel could not be freed");
    }
}

impl Stream {
    /// Whether a call that is recorded runs over copies.
    pub(crate) fn is_staged(&self, operator: OperatorId, call: &Call<'_>) -> Result<bool> {
        let device = self.device();
        Ok(!call.device_only
            && !device.door().runs_host_kernels()?
            && device.find_operator(operator, call)?.is_none())
    }

    /// Runs a call as a host kernel over copies of its operands.
    ///
    /// # Safety
    /// The contract of [`call`](Self::call).
    #[cold]
    pub(crate) unsafe fn call_staged(&self, operator: OperatorId, call: &Call<'_>) -> Result<()> {
        let mut stage = stage_of(operator, call).map_err(|error| error.on_stream(self.id()))?;
        let kernel = |stage: &Stage| {
            over(call, stage, |staged| {
                let plan = outrigger_ops::plan(operator, staged)
                    .map_err(|error| refused(operator, error).on_stream(self.id()))?;
                count_staged(operator, stage.bytes());
                // SAFETY: the plan made the block for this kernel, over the copies.
                unsafe { self.call_on_host(plan.kernel, plan.args(), plan.label) }
            })
        };
        // SAFETY: this function's contract.
        unsafe { self.stage_now(&mut stage, kernel) }
    }

    /// Records a call as a host kernel over copies of its operands. `None` if the capture has ended.
    #[cold]
    pub(crate) fn record_call_staged(
        &self,
        place: &Recording<'_>,
        operator: OperatorId,
        call: &Call<'_>,
    ) -> Result<Option<()>> {
        let mut stage = stage_of(operator, call).map_err(|error| error.on_stream(self.id()))?;
        self.device().admit_host_kernel(operator)?;
        self.stage_recorded(place, &mut stage, |stage, steps| {
            over(call, stage, |staged| {
                steps.operator_on_host(operator, staged)
            })
        })
    }

    /// Launches or records a host kernel over copies of the memory that its block names.
    ///
    /// # Safety
    /// The contract of [`launch`](Self::launch).
    #[cold]
    pub(crate) unsafe fn launch_staged(&self, call: &KernelCall<'_>) -> Result<()> {
        let addresses = call.addresses().map_err(|error| self.not_recorded(error))?;
        if addresses.len() != call.ranges.len() {
            let text = format!(
                "a kernel with {} addresses and {} ranges: there must be as many of each",
                addresses.len(),
                call.ranges.len()
            );
            return Err(self.not_recorded(Error::new(Code::INVALID_ARGUMENT, text)));
        }
        let mut stage = Stage::default();
        for (&(_, address), range) in addresses.iter().zip(call.ranges) {
            stage.read(address, range.bytes);
            if range.written && range.bytes > 0 {
                stage.written.push((address, range.bytes));
            }
        }
        let block = |stage: &Stage| {
            let mut args = call.args.to_vec();
            for &(word, address) in &addresses {
                let at = word as usize * 8;
                args[at..at + 8].copy_from_slice(&stage.host(address).to_ne_bytes());
            }
            args
        };
        if let Some(place) = self.recording() {
            let recorded = self.stage_recorded(&place, &mut stage, |stage, steps| {
                steps.kernel_on_host(&KernelCall {
                    args: &block(stage),
                    address_offsets: &[],
                    ranges: &[],
                    ..*call
                })
            });
            if let Some(()) = recorded? {
                return Ok(());
            }
        }
        // SAFETY: this function's contract: the kernel may run with the block, whose memory is the copies.
        unsafe {
            self.stage_now(&mut stage, |stage| {
                self.call_on_host(call.function, &block(stage), call.label)
            })
        }
    }

    /// Gives a stage its memory, and runs it. `kernel` submits the kernel.
    ///
    /// # Safety
    /// The ranges are live memory of the stream's device, and `kernel` submits nothing that uses other host memory than
    /// that of the stage.
    unsafe fn stage_now(
        &self,
        stage: &mut Stage,
        kernel: impl FnOnce(&Stage) -> Result<()>,
    ) -> Result<()> {
        let memory = host_memory()?;
        let pointer = memory.alloc(stage.place())?;
        stage.memory = pointer as u64;
        let stage = &*stage;
        let copy = |_: &mut (), (dst, src, size, kind)| {
            // SAFETY: this function's contract. The host memory is kept until the stream has passed.
            unsafe { self.copy_now(dst, src, size, kind) }
        };
        let ran = stage.run(&mut (), copy, |()| kernel(stage));
        if !pointer.is_null() {
            // The work that was submitted runs on, also if the rest was refused.
            memory.used_by(pointer, self)?;
            memory.free(pointer)?;
        }
        ran
    }

    /// Gives a stage its memory, and records it. `kernel` records the kernel. `None` if the capture has ended.
    fn stage_recorded(
        &self,
        place: &Recording<'_>,
        stage: &mut Stage,
        kernel: impl FnOnce(&Stage, &mut Steps<'_>) -> Result<()>,
    ) -> Result<Option<()>> {
        let pointer = host_memory()?.alloc(stage.place())?;
        stage.memory = pointer as u64;
        let (stage, device) = (&*stage, self.device());
        let recorded = place.record(|steps| {
            let copy = |steps: &mut Steps<'_>, (dst, src, size, kind)| {
                device.check_copy(dst, src, size, kind)?;
                steps.copy(dst, src, size, kind)
            };
            stage.run(steps, copy, |steps| kernel(stage, steps))?;
            if !pointer.is_null() {
                steps.own(pointer, free);
            }
            Ok(())
        });
        if !matches!(recorded, Some(Ok(()))) && !pointer.is_null() {
            // SAFETY: nothing was recorded, or the capture has failed and makes no graph.
            unsafe { free(pointer) };
        }
        recorded.transpose()
    }
}

/// The copies that an operator needs.
///
/// # Errors
/// `UNSUPPORTED` if there is no kernel for the call, or an output lies in too many pieces.
fn stage_of(operator: OperatorId, call: &Call<'_>) -> Result<Stage> {
    // A call without a kernel is refused before anything is submitted.
    outrigger_ops::plan(operator, call).map_err(|error| refused(operator, error))?;
    let mut stage = Stage::default();
    for operand in call.inputs.iter().chain(call.outputs) {
        let (low, bytes) = operand.reach();
        stage.read(operand.address().wrapping_add_signed(low), bytes);
    }
    for output in call.outputs {
        let outcome = pieces(output, &mut stage.written);
        outcome.map_err(|error| error.in_operator(operator.name().to_string_lossy()))?;
    }
    Ok(stage)
}

/// Calls `with` with the call over the copies.
fn over<R>(call: &Call<'_>, stage: &Stage, with: impl FnOnce(&Call<'_>) -> R) -> R {
    let host = |tensors: &[Tensor<'_>]| -> Vec<_> {
        let moved = tensors.iter().map(|one| one.at(stage.moved(one)));
        // The lists of sizes and strides are the caller's.
        moved.map(|one| *one.raw()).collect()
    };
    let (inputs, outputs) = (host(call.inputs), host(call.outputs));
    // SAFETY: sizes and strides are those of operands that were checked, and live as long as the call.
    let (inputs, outputs) = unsafe { (Tensor::of_raw(&inputs), Tensor::of_raw(&outputs)) };
    with(&Call {
        inputs: inputs.unwrap_or_default(),
        outputs: outputs.unwrap_or_default(),
        ..*call
    })
}

impl Stage {
    /// The address of an operand in the copy.
    fn moved(&self, tensor: &Tensor<'_>) -> u64 {
        let (low, bytes) = tensor.reach();
        if bytes == 0 {
            return tensor.address();
        }
        let first = tensor.address().wrapping_add_signed(low);
        self.host(first).wrapping_add_signed(-low)
    }
}

/// The ranges of memory that the elements of an operand fill without a gap.
///
/// # Errors
/// `UNSUPPORTED` if there are too many.
fn pieces(tensor: &Tensor<'_>, into: &mut Vec<(u64, u64)>) -> Result<()> {
    let (low, bytes) = tensor.reach();
    if bytes == 0 {
        return Ok(());
    }
    let first = tensor.address().wrapping_add_signed(low);
    let size = tensor.dtype().size().unwrap_or(0) as u64;
    let mut dims: Vec<(u64, u64)> = tensor
        .sizes()
        .iter()
        .zip(tensor.strides())
        .map(|(&size, &stride)| (size as u64, stride.unsigned_abs()))
        .filter(|&(size, stride)| size != 1 && stride != 0)
        .collect();
    dims.sort_by_key(|&(_, stride)| stride);
    // The innermost dimensions make one piece for as long as they lie side by side.
    let mut piece = 1;
    let mut outer = dims.as_slice();
    while let [(size, stride), rest @ ..] = outer
        && *stride <= piece
    {
        piece += (size - 1) * stride;
        outer = rest;
    }
    let count = outer
        .iter()
        .try_fold(1u64, |count, &(size, _)| count.checked_mul(size));
    if count.is_none_or(|count| count > PIECES as u64) {
        return Err(Error::new(
            Code::UNSUPPORTED,
            format!(
                "an output of sizes {:?} and strides {:?} lies in more than {PIECES} pieces, and is not copied back to \
                 memory that only the device reaches",
                tensor.sizes(),
                tensor.strides()
            ),
        ));
    }
    let mut starts = vec![0u64];
    for &(extent, stride) in outer {
        starts = starts
            .iter()
            .flat_map(|start| (0..extent).map(move |index| start + index * stride))
            .collect();
    }
    into.extend(
        starts
            .into_iter()
            .map(|start| (first + start * size, piece * size)),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use outrigger_device::DType;

    use super::*;

    fn pieces_of(sizes: &[i64], strides: &[i64]) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let address = 1 << 20;
        pieces(
            &Tensor::new(address, DType::F32, sizes, strides),
            &mut found,
        )
        .unwrap();
        found.iter_mut().for_each(|one| one.0 -= address);
        found
    }

    #[test]
    fn what_lies_dense_in_any_order_is_one_piece() {
        assert_eq!(pieces_of(&[2, 3, 4], &[12, 4, 1]), [(0, 96)]);
        assert_eq!(pieces_of(&[4, 3, 2], &[1, 4, 12]), [(0, 96)]);
        assert_eq!(pieces_of(&[], &[]), [(0, 4)]);
        assert_eq!(pieces_of(&[5, 1], &[1, 77]), [(0, 20)]);
    }

    #[test]
    fn gaps_are_left_out() {
        assert_eq!(pieces_of(&[2, 3], &[5, 1]), [(0, 12), (20, 12)]);
        assert_eq!(pieces_of(&[3], &[2]), [(0, 4), (8, 4), (16, 4)]);
        assert_eq!(pieces_of(&[0, 3], &[5, 1]), []);
    }

    #[test]
    fn too_many_pieces_are_refused() {
        let sizes = [PIECES as i64 + 1];
        let tensor = Tensor::new(1 << 20, DType::U8, &sizes, &[2]);
        let error = pieces(&tensor, &mut Vec::new()).unwrap_err();
        assert_eq!(error.code(), Code::UNSUPPORTED);
    }

    #[test]
    fn overlapping_operands_share_their_copy() {
        let mut stage = Stage::default();
        for (address, bytes) in [(5000, 100), (1001, 64), (1050, 40), (1089, 1)] {
            stage.read(address, bytes);
        }
        let bytes = stage.place();
        stage.memory = 1 << 20;
        let of = |stage: &Stage| -> Vec<_> {
            stage
                .ranges
                .iter()
                .map(|one| (one.address, one.bytes))
                .collect()
        };
        assert_eq!(of(&stage), [(1001, 89), (5000, 100)]);
        assert_eq!(stage.host(1060) - stage.host(1001), 59);
        for address in [1001, 1089, 5000, 5099] {
            let host = stage.host(address);
            assert_eq!(host % ALIGNMENT, address % ALIGNMENT);
            assert!((stage.memory..stage.memory + bytes).contains(&host));
        }
        assert_eq!(stage.host(4000), 4000, "not copied");
    }
}
