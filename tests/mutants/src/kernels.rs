//! Defects of launches.

use std::ffi::c_void;

use outrigger_device::{Code, sys};

use crate::calls::Numbers;
use crate::mutant::{mutants, types::*};

/// A trampoline's argument: the function of a launch, and the launch's arguments, which are read only when it runs.
#[repr(C)]
#[derive(Clone, Copy)]
struct Late {
    function: usize,
    args: usize,
    size: u32,
}

/// Runs the function of a late launch with what is at its arguments by now.
unsafe extern "C" fn run_late(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: only launches of `args_read_late` have this kernel, and they give such a block.
    unsafe {
        let late = args.cast::<Late>().read_unaligned();
        // SAFETY: the address is that of a host function, which the module was loaded with.
        let function = std::mem::transmute::<
            usize,
            unsafe extern "C" fn(*const c_void, u32, i64) -> i32,
        >(late.function);
        // The host may have freed them: that is the defect.
        function(
            std::ptr::with_exposed_provenance(late.args),
            late.size,
            bias,
        )
    }
}

/// Runs the function of a launch, and answers that all went well.
unsafe extern "C" fn run_well(args: *const c_void, size: u32, bias: i64) -> i32 {
    // SAFETY: as for the function that it runs.
    unsafe { run_late(args, size, bias) };
    Code::OK.0
}

/// Modules of one trampoline for all functions, and the functions that modules stand for.
#[derive(Default)]
struct Functions(Numbers);

impl Functions {
    /// Loads a trampoline instead of a host function.
    ///
    /// # Safety
    /// That of `module_load`.
    #[allow(
        clippy::too_many_arguments,
        reason = "the arguments are those of the contract"
    )]
    unsafe fn load(
        &self,
        next: &outrigger_layers::Next,
        driver: Driver,
        device: u32,
        format: u32,
        code: Bytes,
        size: usize,
        options: Text,
        module: *mut Module,
        trampoline: unsafe extern "C" fn(*const c_void, u32, i64) -> i32,
    ) -> i32 {
        let host = format == sys::OTR_CODE_HOST_FUNCTION && !code.is_null();
        let loaded = if host {
            trampoline as *const c_void
        } else {
            code
        };
        // SAFETY: R7: the host's own arguments, handed on; a host function may stand for another.
        unsafe {
            let result = next.module_load(driver, device, format, loaded, size, options, module);
            let mut kernel = std::ptr::null_mut();
            if result == Code::OK.0
                && host
                && next.kernel_get(*module, std::ptr::null(), &mut kernel) == Code::OK.0
            {
                self.0.put(kernel.addr(), code.expose_provenance() as i64);
            }
            result
        }
    }

    /// Launches the trampoline for a function.
    ///
    /// # Safety
    /// That of `launch`.
    unsafe fn launch(
        &self,
        next: &outrigger_layers::Next,
        queue: Queue,
        kernel: Kernel,
        launch: Launch,
        args: impl FnOnce(&sys::otr_launch) -> *const c_void,
    ) -> i32 {
        // SAFETY: R30: the block is copied by the driver below.
        unsafe {
            let (Some(function), Some(given)) = (self.0.get(kernel.addr()), launch.as_ref()) else {
                return next.kernel_launch(queue, kernel, launch);
            };
            let late = Late {
                function: function as usize,
                args: args(given).expose_provenance(),
                size: given.args_size,
            };
            let mut other = *given;
            other.args = (&raw const late).cast();
            other.args_size = size_of::<Late>() as u32;
            next.kernel_launch(queue, kernel, &other)
        }
    }
}

mutants! {
    /// Arguments of a launch are read when it runs, not when it is submitted.
    args_read_late [R30] (Functions) {
        module_load(self, next, driver, device, format, code, size, options, module) {
            self.state.load(next, driver, device, format, code, size, options, module, run_late)
        }
        kernel_launch(self, next, queue, kernel, launch) {
            self.state.launch(next, queue, kernel, launch, |launch| launch.args)
        }
    }

    /// The answer of a kernel is not looked at.
    kernel_outcome_lost [R20] (Functions) {
        module_load(self, next, driver, device, format, code, size, options, module) {
            self.state.load(next, driver, device, format, code, size, options, module, run_well)
        }
        kernel_launch(self, next, queue, kernel, launch) {
            self.state.launch(next, queue, kernel, launch, |launch| {
                // Kept for ever, since a graph may run it again.
                let size = launch.args_size as usize;
                let bytes = if size == 0 {
                    Vec::new()
                } else {
                    std::slice::from_raw_parts(launch.args.cast::<u8>(), size).to_vec()
                };
                bytes.leak().as_ptr().cast()
            })
        }
    }

    /// The failure of a launch does not name its label.
    label_lost [R19] (()) {
        kernel_launch(self, next, queue, kernel, launch) {
            let Some(given) = launch.as_ref() else {
                return next.kernel_launch(queue, kernel, launch);
            };
            let mut other = *given;
            other.label = std::ptr::null();
            next.kernel_launch(queue, kernel, &other)
        }
    }
}
