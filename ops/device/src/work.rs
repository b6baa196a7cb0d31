//! The work that an operator submits at a launch.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::c_void;

use outrigger_device::{Code, CopyKind, params, sys};
use outrigger_ops::Scalar;
use parking_lot::Mutex;

use crate::command::Command;
use crate::kernel::{Below, Kernel};

/// An operator of ours, made for a signature.
pub(crate) struct Prepared {
    /// The bytes that each launch needs for itself.
    pub(crate) workspace_bytes: u64,
    pub(crate) work: Work,
}

/// Submits the work of a launch.
pub(crate) type Work =
    Box<dyn Fn(&mut Launch<'_>) -> std::result::Result<(), i32> + Send + Sync + 'static>;

impl Prepared {
    pub(crate) fn new(
        work: impl Fn(&mut Launch<'_>) -> std::result::Result<(), i32> + Send + Sync + 'static,
    ) -> Self {
        Self::with_workspace(0, work)
    }

    pub(crate) fn with_workspace(
        workspace_bytes: u64,
        work: impl Fn(&mut Launch<'_>) -> std::result::Result<(), i32> + Send + Sync + 'static,
    ) -> Self {
        Self {
            workspace_bytes,
            work: Box::new(work),
        }
    }

    /// For a call that writes no element.
    pub(crate) fn nothing() -> Self {
        Self::new(|_| Ok(()))
    }
}

/// Bytes of a workspace in which kernels leave a wrong index: whether there is one, the index, and the number of those
/// that there are.
pub(crate) const WRONG: u64 = 256;

/// Looks whether a kernel has left a wrong index.
///
/// # Safety
/// `user` leads to the words that the kernel wrote, or to a copy of them, or is NULL.
unsafe extern "C" fn look(user: *mut c_void, upstream: i32) -> i32 {
    if upstream != Code::OK.0 || user.is_null() {
        return upstream;
    }
    // SAFETY: R47: workspace and operator are there until the launch has finished. The address of a workspace is a host
    // pointer where it is looked at (R15).
    match unsafe { user.cast::<i64>().read() } {
        0 => Code::OK.0,
        _ => Code::OUT_OF_RANGE.0,
    }
}

/// The place where the host looks for wrong indices: in the workspace of the launch if it sees that, else in a copy. A
/// queue has a copy of its own, so that launches on others do not write to it. Copies live as long as the operator,
/// since a graph of the driver may write to them again.
pub(crate) enum Checks {
    Seen,
    Copied(Mutex<HashMap<usize, Box<UnsafeCell<i64>>>>),
}

// SAFETY: only the driver writes to a copy, and only the host call behind reads it (R26).
unsafe impl Send for Checks {}
// SAFETY: as above.
unsafe impl Sync for Checks {}

impl Checks {
    pub(crate) fn new(host_visible: bool) -> Self {
        if host_visible {
            Self::Seen
        } else {
            Self::Copied(Mutex::default())
        }
    }
}

/// One launch: addresses and scalars of the call, and the queue that takes the work.
pub(crate) struct Launch<'a> {
    pub(crate) inputs: &'a [u64],
    pub(crate) outputs: &'a [u64],
    pub(crate) scalars: &'a [Scalar],
    pub(crate) workspace: u64,
    pub(crate) queue: *mut sys::otr_queue,
    pub(crate) below: &'a Below,
    /// The number of commands that were submitted.
    pub(crate) submitted: u32,
}

impl Launch<'_> {
    /// A scalar of the call, or what it is if it was left out.
    pub(crate) fn scalar(&self, at: usize, default: f64) -> Scalar {
        let given = self.scalars.get(at);
        given.copied().unwrap_or(Scalar::F64(default))
    }

    /// Launches a kernel. Nothing happens for 0 groups.
    pub(crate) fn run(
        &mut self,
        kernel: &Kernel,
        groups: u32,
        addresses: &[u64],
        words: &[u64],
    ) -> std::result::Result<(), i32> {
        if groups == 0 {
            return Ok(());
        }
        self.submitted += 1;
        // SAFETY: R46, R47: operands and workspace of the call are live until the launch has finished, and the words
        // were made for their sizes and strides when the operator was prepared.
        unsafe { kernel.launch(self.queue, groups, addresses, words) }
    }

    /// Runs another operator as a part of this one, without scalars. `workspace` is its own.
    pub(crate) fn part(
        &mut self,
        operator: &Prepared,
        inputs: &[u64],
        outputs: &[u64],
        workspace: u64,
    ) -> std::result::Result<(), i32> {
        let mut part = Launch {
            inputs,
            outputs,
            scalars: &[],
            workspace,
            ..*self
        };
        let outcome = (operator.work)(&mut part);
        self.submitted = part.submitted;
        outcome
    }

    /// Runs work that leaves wrong indices in the first bytes of the workspace, and lets the queue fail if it did.
    pub(crate) fn checked(
        &mut self,
        checks: &Checks,
        work: impl FnOnce(&mut Self, u64) -> std::result::Result<(), i32>,
    ) -> std::result::Result<(), i32> {
        let wrong = self.workspace;
        self.zero(wrong, WRONG)?;
        work(self, wrong)?;
        let api = self.below.raw().api();
        let (Some(host_call), Some(copy)) = (api.host_call, api.copy) else {
            return Err(Code::INTERNAL.0);
        };
        let place = match checks {
            Checks::Seen => wrong as *mut c_void,
            Checks::Copied(places) => {
                let mut places = places.lock();
                let place = places.entry(self.queue.addr()).or_default().get();
                drop(places);
                self.submitted += 1;
                let kind = CopyKind::DeviceToHost.raw();
                let params = params::copy(place as u64, wrong, 8, kind);
                match self.below.keep(self.queue, || Command::copy(Some(&params))) {
                    Some(kept) => kept?,
                    // SAFETY: R26: the place lives as long as the operator, which is released after its last launch (R47);
                    // only the host call behind the copy reads it.
                    None => match unsafe { copy(self.queue, &params) } {
                        0 => {}
                        code => return Err(code),
                    },
                }
                place.cast()
            }
        };
        let call = params::host_call(Some(look), place, 0);
        if let Some(kept) = self.below.keep(self.queue, || Command::call(Some(&call))) {
            return kept;
        }
        // SAFETY: R27: the function calls no driver and does not unwind; what it reads is there until it was called (R47).
        match unsafe { host_call(self.queue, &call) } {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Fills memory with zeros, or does nothing but check the queue for 0 bytes.
    pub(crate) fn zero(&mut self, address: u64, bytes: u64) -> std::result::Result<(), i32> {
        let Some(fill) = self.below.raw().api().fill else {
            return Err(Code::INTERNAL.0);
        };
        let pattern = [0_u8; 1];
        self.submitted += 1;
        let params = params::fill(address, bytes, pattern.as_ptr().cast(), 1);
        // SAFETY: the pattern has one byte.
        let command = || unsafe { Command::fill(Some(&params)) };
        if let Some(kept) = self.below.keep(self.queue, command) {
            return kept;
        }
        // SAFETY: R28: a pattern of one byte; R46: the memory is of the call.
        let code = unsafe { fill(self.queue, &params) };
        if code == Code::OK.0 {
            Ok(())
        } else {
            Err(code)
        }
    }
}
