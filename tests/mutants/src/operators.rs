//! Defects of operators that a driver brings.

use std::collections::HashMap;

use outrigger_device::{Code, NO_OUTCOME, params, sys};
use parking_lot::Mutex;

use crate::calls::key;
use crate::mutant::{mutants, types::*};

/// The call with all of its tensors as if they were dense, which is handed on.
///
/// # Safety
/// NULL, or a call as the contract has it.
unsafe fn dense(call: OperatorCall, hand_on: impl FnOnce(OperatorCall) -> i32) -> i32 {
    // SAFETY: NULL, or a call that is valid with all that it points to (R10).
    let Some(given) = (unsafe { call.as_ref() }) else {
        return hand_on(call);
    };
    let mut lists: Vec<Vec<i64>> = Vec::new();
    let mut tensors = |start: *const sys::otr_tensor, count: u32| -> Vec<sys::otr_tensor> {
        if start.is_null() {
            return Vec::new();
        }
        // SAFETY: not NULL, so there are as many tensors, with a size for each dimension.
        let tensors = unsafe { std::slice::from_raw_parts(start, count as usize) };
        let one = |tensor: &sys::otr_tensor| {
            let rank = tensor.rank as usize;
            let mut strides = vec![1; rank];
            for at in (1..rank).rev() {
                // SAFETY: as above.
                strides[at - 1] = strides[at] * unsafe { *tensor.sizes.add(at) };
            }
            lists.push(strides);
            sys::otr_tensor {
                strides: lists.last().map_or(tensor.strides, |list| list.as_ptr()),
                ..*tensor
            }
        };
        tensors.iter().map(one).collect()
    };
    let inputs = tensors(given.inputs, given.input_count);
    let outputs = tensors(given.outputs, given.output_count);
    let mut other = *given;
    if !inputs.is_empty() {
        other.inputs = inputs.as_ptr();
    }
    if !outputs.is_empty() {
        other.outputs = outputs.as_ptr();
    }
    hand_on(&other)
}

mutants! {
    /// Scalars of a launch are taken to be their defaults.
    operator_scalars_ignored [R46] (()) {
        operator_launch(self, next, queue, operator, call, workspace) {
            let Some(given) = call.as_ref() else {
                return next.operator_launch(queue, operator, call, workspace);
            };
            let mut other = *given;
            other.scalar_count = 0;
            next.operator_launch(queue, operator, &other, workspace)
        }
    }

    /// Tensors are taken to be dense, whatever their strides.
    operator_strides_ignored [R46] (()) {
        operator_prepare(self, next, driver, device, call, answer, operator) {
            dense(call, |call| next.operator_prepare(driver, device, call, answer, operator))
        }
        operator_launch(self, next, queue, operator, call, workspace) {
            dense(call, |call| next.operator_launch(queue, operator, call, workspace))
        }
    }

    /// The first output is where it was at the first launch.
    operator_keeps_its_output [R46] (Mutex<HashMap<usize, u64>>) {
        operator_launch(self, next, queue, operator, call, workspace) {
            let kept = self.state.lock().get(&operator.addr()).copied();
            let (Some(given), Some(kept)) = (call.as_ref(), kept) else {
                let code = next.operator_launch(queue, operator, call, workspace);
                if code == Code::OK.0 {
                    self.state.lock().insert(operator.addr(), (*(*call).outputs).address);
                }
                return code;
            };
            let mut output = *given.outputs;
            output.address = kept;
            let mut other = *given;
            other.outputs = &raw const output;
            next.operator_launch(queue, operator, &other, workspace)
        }
        operator_release(self, next, operator) {
            self.state.lock().remove(&operator.addr());
            next.operator_release(operator)
        }
    }

    /// A byte behind the last element of a dense output is written.
    operator_writes_behind [R46] (()) {
        operator_launch(self, next, queue, operator, call, workspace) {
            let code = next.operator_launch(queue, operator, call, workspace);
            if code == Code::OK.0 {
                let output = *(*call).outputs;
                let sizes = std::slice::from_raw_parts(output.sizes, output.rank as usize);
                let end = output.address + 4 * sizes.iter().product::<i64>() as u64;
                next.fill(queue, &params::fill(end, 1, [0u8].as_ptr().cast(), 1));
            }
            code
        }
    }

    /// The workspace that is asked for is too small by a row.
    operator_workspace_too_small [R47] (()) {
        operator_prepare(self, next, driver, device, call, answer, operator) {
            let code = next.operator_prepare(driver, device, call, answer, operator);
            if code == Code::OK.0 {
                (*answer).workspace_bytes = (*answer).workspace_bytes.saturating_sub(64);
            }
            code
        }
    }

    /// An operator that the driver does not have is answered with one for something else.
    operator_takes_what_it_has_not [R45] (()) {
        operator_prepare(self, next, driver, device, call, answer, operator) {
            let code = next.operator_prepare(driver, device, call, answer, operator);
            if code != Code::UNSUPPORTED.0 {
                return code;
            }
            let mut tensor = *(*call).inputs;
            tensor.rank = 0;
            tensor.dtype = sys::OTR_DTYPE_F32;
            let tensors = [tensor, tensor];
            let mut other = *call;
            (other.name, other.inputs, other.outputs) =
                (c"add".as_ptr(), tensors.as_ptr(), tensors.as_ptr());
            (other.input_count, other.output_count) = (2, 1);
            next.operator_prepare(driver, device, &other, answer, operator)
        }
    }

    /// The last operator is missing in the list of names.
    operator_name_left_out [R45] (()) {
        operator_names(self, next, driver, device, names, count) {
            let code = next.operator_names(driver, device, names, count);
            if code == Code::OK.0 {
                *count -= 1;
            }
            code
        }
    }

    /// The list of names has one operator twice.
    operator_name_twice [R45] (()) {
        operator_names(self, next, driver, device, names, count) {
            let code = next.operator_names(driver, device, names, count);
            if code == Code::OK.0 {
                let list = std::slice::from_raw_parts(*names, *count as usize);
                let twice: Vec<_> = list.iter().chain(list).copied().collect();
                *count *= 2;
                *names = twice.leak().as_ptr();
            }
            code
        }
    }

    /// An operator that is not there has the code of a wrong argument.
    operator_absent_has_the_wrong_code [R45] (()) {
        operator_prepare(self, next, driver, device, call, answer, operator) {
            match next.operator_prepare(driver, device, call, answer, operator) {
                code if code == Code::UNSUPPORTED.0 => Code::NOT_FOUND.0,
                code => code,
            }
        }
    }

    /// Launches run at once, on a queue of their own, in front of what the queue has to do.
    operator_jumps_the_queue [R16] (Mutex<HashMap<usize, usize>>) {
        queue_create(self, next, driver, device, params, queue) {
            let code = next.queue_create(driver, device, params, queue);
            let mut own = std::ptr::null_mut();
            if code == Code::OK.0
                && next.queue_create(driver, device, std::ptr::null(), &mut own) == Code::OK.0
            {
                self.state.lock().insert(key(*queue), key(own));
            }
            code
        }
        queue_destroy(self, next, queue) {
            if let Some(own) = self.state.lock().remove(&key(queue)) {
                next.queue_destroy(std::ptr::with_exposed_provenance_mut(own));
            }
            next.queue_destroy(queue)
        }
        operator_launch(self, next, queue, operator, call, workspace) {
            let own = self.state.lock().get(&key(queue)).copied();
            let own = own.map_or(queue, std::ptr::with_exposed_provenance_mut);
            let code = next.operator_launch(own, operator, call, workspace);
            if code == Code::OK.0 {
                next.queue_synchronize(own, &mut { NO_OUTCOME });
            }
            code
        }
    }
}
