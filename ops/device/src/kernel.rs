//! Kernels of a device's driver: loaded once for each specialization, launched with addresses and words.

use std::ffi::{CStr, CString};
use std::ptr::null;
use std::sync::Arc;

use outrigger_device::{Code, Driver, Error, RawDriver, sys};
use outrigger_modules::{Modules, Source};
use outrigger_tuner::Tuner;

use crate::call::{Refusal, Result};
use crate::command::{Command, Stored};
use crate::recording::Recorder;
use crate::tune;
use crate::unit::Unit;

/// The driver below, of which all handles but those of operators are, and what loads code on it.
pub(crate) struct Below {
    pub(crate) driver: Driver,
    pub(crate) modules: &'static Modules,
    pub(crate) tuner: &'static Tuner,
    /// The recorder of queues, if this crate gives the driver graphs.
    pub(crate) recorder: Option<Recorder>,
}

impl Below {
    /// The driver, with what loads code and chooses variants in this process.
    pub(crate) fn new(
        driver: Driver,
        recorder: Option<Recorder>,
    ) -> outrigger_device::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            driver,
            modules: Modules::of_process()?,
            tuner: tune::tuner()?,
            recorder,
        }))
    }

    /// The recorder, if the queue records.
    #[inline]
    pub(crate) fn records(&self, queue: *mut sys::otr_queue) -> Option<&Recorder> {
        let recorder = self
            .recorder
            .as_ref()
            .filter(|recorder| !recorder.is_idle())?;
        recorder.table().records(queue.addr()).then_some(recorder)
    }

    /// Keeps a command if the queue records; `None` if it does not.
    pub(crate) fn keep(
        &self,
        queue: *mut sys::otr_queue,
        command: impl FnOnce() -> Result<Command>,
    ) -> Option<std::result::Result<(), i32>> {
        let recorder = self.records(queue)?;
        let kept = command().and_then(|command| recorder.keep(queue, command));
        Some(kept.map_err(|refusal| refusal.code.0))
    }

    /// The driver's entries.
    pub(crate) fn raw(&self) -> &RawDriver {
        self.driver.as_raw()
    }

    /// The text of this thread's most recent failed call below.
    pub(crate) fn last_error(&self) -> Option<CString> {
        let last_error = self.raw().api().last_error?;
        // SAFETY: takes nothing.
        let text = unsafe { last_error() };
        // SAFETY: R5: not NULL, so it ends with a NUL and is valid until this thread's next call.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned())
    }
}

impl From<Error> for Refusal {
    #[cold]
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.message())
    }
}

/// A kernel, and what each of its parameters is. It keeps its module.
pub(crate) struct Kernel {
    kernel: outrigger_device::Kernel,
    addresses: usize,
    words: usize,
    arguments: Vec<sys::otr_argument>,
    group: u32,
    label: &'static CStr,
    /// The unit that the kernel is in a program.
    unit: Option<Arc<Unit>>,
    below: Arc<Below>,
}

/// The arguments that a kernel takes: the number of addresses, then that of words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters {
    pub(crate) addresses: usize,
    pub(crate) words: usize,
}

/// Words of a launch that are packed without the heap.
const PACKED: usize = 96;

impl Kernel {
    /// Loads a text on a device: from the store, or by its compiler.
    pub(crate) fn load(
        below: &Arc<Below>,
        device: u32,
        source: &Source,
        label: &'static CStr,
        group: u32,
        takes: Parameters,
        unit: Option<Arc<Unit>>,
    ) -> Result<Self> {
        let module = below.modules.load(&below.driver, device, source)?;
        let kernel = module.kernel(Some(label))?;
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
            kernel,
            unit,
            addresses: takes.addresses,
            words: takes.words,
            arguments,
            group,
            label,
            below: Arc::clone(below),
        })
    }

    /// The unit that the kernel is in a program.
    #[cfg(test)]
    pub(crate) fn unit(&self) -> Option<Arc<Unit>> {
        self.unit.clone()
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
        // SAFETY: the launch lives through the call.
        let stored = || unsafe { Stored::of(self.kernel.raw(), self.unit.clone(), &launch) };
        let command = || Ok(Command::Launch(Arc::new(stored()?)));
        if let Some(kept) = self.below.keep(queue, command) {
            return kept;
        }
        let entry = self.below.raw().kernel().and_then(|group| group.launch);
        let Some(entry) = entry else {
            return Err(Code::INTERNAL.0);
        };
        // SAFETY: the kernel lives as long as this; R30: block and descriptions are copied during the call. The queue
        // is the host's, and checked by the driver (R7). This function's contract covers the addresses.
        match unsafe { entry(queue, self.kernel.raw(), &launch) } {
            0 => Ok(()),
            code => Err(code),
        }
    }
}
