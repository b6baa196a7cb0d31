//! Kernels of a device's driver: loaded once for each specialization, launched with addresses and words.

use std::ffi::{CStr, CString};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use outrigger_device::{Code, RawDriver, sys};

use crate::call::{Refusal, Result};

/// The driver below, of which all handles but those of operators are.
pub(crate) struct Below {
    pub(crate) raw: RawDriver,
}

impl Below {
    /// The text of this thread's most recent failed call below.
    pub(crate) fn last_error(&self) -> Option<CString> {
        let last_error = self.raw.api().last_error?;
        // SAFETY: takes nothing.
        let text = unsafe { last_error() };
        // SAFETY: R5: not NULL, so it ends with a NUL and is valid until this thread's next call.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned())
    }

    /// The refusal of a call that has just failed.
    #[cold]
    fn refused(&self, code: i32) -> Refusal {
        let text = self.last_error().unwrap_or_default();
        Refusal::new(Code(code), text.to_string_lossy())
    }
}

/// A kernel, and what each of its parameters is. It keeps its module.
pub(crate) struct Kernel {
    module: NonNull<sys::otr_drv_module>,
    kernel: NonNull<sys::otr_drv_kernel>,
    addresses: usize,
    words: usize,
    arguments: Vec<sys::otr_argument>,
    group: u32,
    label: &'static CStr,
    below: Arc<Below>,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Drop for Kernel {
    fn drop(&mut self) {
        let unload = self
            .below
            .raw
            .kernel()
            .and_then(|group| group.module_unload);
        if let Some(unload) = unload
            && !outrigger_device::forked()
        {
            // SAFETY: R47: the operators that launch the kernel were released, after their last launch had finished.
            let code = unsafe { unload(self.module.as_ptr()) };
            if code != Code::OK.0 {
                tracing::warn!(target: "outrigger::device", code, "a module could not be unloaded");
            }
        }
    }
}

/// What a kernel takes: how many addresses, then how many words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters {
    pub(crate) addresses: usize,
    pub(crate) words: usize,
}

/// Words of a launch that are packed without the heap.
const PACKED: usize = 96;

impl Kernel {
    /// Loads a text on a device. This is the one place where code is compiled.
    pub(crate) fn load(
        below: &Arc<Below>,
        device: u32,
        format: u32,
        text: &CStr,
        label: &'static CStr,
        group: u32,
        takes: Parameters,
    ) -> Result<Self> {
        let missing = || Refusal::new(Code::UNSUPPORTED, "the driver takes no code");
        let api = below.raw.kernel().ok_or_else(missing)?;
        let load = api.module_load.ok_or_else(missing)?;
        let get = api.kernel_get.ok_or_else(missing)?;
        let unload = api.module_unload.ok_or_else(missing)?;
        let (code, size) = (text.as_ptr().cast(), text.to_bytes().len());
        let (mut module, mut kernel) = (null_mut(), null_mut());
        // SAFETY: the driver is open; the text has `size` bytes and a NUL behind them, and the output lives through
        // the call.
        let answer = unsafe {
            load(
                below.raw.handle(),
                device,
                format,
                code,
                size,
                null(),
                &mut module,
            )
        };
        if answer != Code::OK.0 {
            return Err(below.refused(answer));
        }
        // SAFETY: the module was just loaded, and the output lives through the call.
        let answer = unsafe { get(module, label.as_ptr(), &mut kernel) };
        let handles = NonNull::new(module).zip(NonNull::new(kernel));
        let Some((module, kernel)) = handles.filter(|_| answer == Code::OK.0) else {
            let refusal = below.refused(answer);
            if !module.is_null() {
                // SAFETY: the module is live, and nothing of it was launched.
                unsafe { unload(module) };
            }
            return Err(refusal);
        };
        let word = 8;
        let address = |at: usize| sys::otr_argument {
            offset: at as u32 * word,
            size: word,
            kind: sys::OTR_ARGUMENT_ADDRESS,
        };
        let mut arguments: Vec<_> = (0..takes.addresses).map(address).collect();
        arguments.push(sys::otr_argument {
            offset: takes.addresses as u32 * word,
            size: takes.words as u32 * word,
            kind: sys::OTR_ARGUMENT_VALUE,
        });
        Ok(Self {
            module,
            kernel,
            addresses: takes.addresses,
            words: takes.words,
            arguments,
            group,
            label,
            below: Arc::clone(below),
        })
    }

    /// Puts a launch of so many groups into a queue.
    ///
    /// # Safety
    /// R46: the addresses lie in live memory of the queue's device, as far as the kernel reads and writes with these
    /// words.
    pub(crate) unsafe fn launch(
        &self,
        queue: *mut sys::otr_queue,
        groups: u32,
        addresses: &[u64],
        words: &[u64],
    ) -> std::result::Result<(), i32> {
        let mut packed = [0_u64; PACKED];
        let count = self.addresses + self.words;
        let fits = addresses.len() == self.addresses && words.len() == self.words;
        debug_assert!(fits && count <= PACKED, "{:?}", self.label);
        if !fits || count > PACKED {
            return Err(Code::INTERNAL.0);
        }
        packed[..self.addresses].copy_from_slice(addresses);
        packed[self.addresses..count].copy_from_slice(words);
        let launch = sys::otr_launch {
            struct_size: size_of::<sys::otr_launch>(),
            next: null(),
            grid: [groups, 1, 1],
            block: [self.group, 1, 1],
            shared_bytes: 0,
            args_size: count as u32 * 8,
            args: packed.as_ptr().cast(),
            arguments: self.arguments.as_ptr(),
            argument_count: self.arguments.len() as u32,
            cost_ns: 0,
            label: self.label.as_ptr(),
        };
        let entry = self.below.raw.kernel().and_then(|group| group.launch);
        let Some(entry) = entry else {
            return Err(Code::INTERNAL.0);
        };
        // SAFETY: the kernel lives as long as this; R30: block and descriptions are copied during the call. The queue
        // is the host's, and checked by the driver (R7). This function's contract covers the addresses.
        match unsafe { entry(queue, self.kernel.as_ptr(), &launch) } {
            0 => Ok(()),
            code => Err(code),
        }
    }
}
