//! The parts below a queue: the hardware queue, places in it, and calls of the host between its commands.

use std::ffi::c_void;

use outrigger_contract as c;

use crate::origin::Origin;
use crate::{Fault, Result};

/// The function of a host call.
pub type HostFn = unsafe extern "C" fn(*mut c_void, i32) -> i32;

/// A hardware queue, in order. All functions may be called from several threads at the same time. What `finish` and a
/// marker answer is about work: a fault that is an [end](Fault::is_end) says that the work has failed and ended. After any
/// other fault it may still run.
pub trait Lane: Send + Sync + Sized + 'static {
    /// A command that is kept until it may run.
    type Command: Send;
    /// A place in a hardware queue of the driver.
    type Marker: Marker;

    /// Puts a command into the hardware queue. Which one it is goes with its failure, where that is told later.
    ///
    /// # Errors
    /// The hardware refuses it, or a part of it where the fault says that it has [begun](Fault::begun).
    fn issue(&self, command: Self::Command, origin: Origin) -> Result;

    /// Marks the place behind all that was put into the hardware queue, with a timestamp if that is asked for.
    ///
    /// # Errors
    /// The hardware refuses it.
    fn mark(&self, timed: bool) -> Result<Self::Marker>;

    /// Whether `mark` can give a timestamp at any time. If not, the first is asked for while nobody else uses the lane.
    fn has_timestamps(&self) -> bool {
        true
    }

    /// Whether another library has made the hardware queue. It may destroy it as soon as it can know that the work of the
    /// queue, which was destroyed, has finished (R56).
    fn is_adopted(&self) -> bool {
        false
    }

    /// Lets what comes next start behind a marker of any queue of the driver. The answer is false if the hardware
    /// cannot: then the marker is waited for.
    ///
    /// # Errors
    /// The hardware refuses it.
    fn join(&self, marker: &Self::Marker) -> Result<bool>;

    /// Starts what was put into the hardware queue.
    ///
    /// # Errors
    /// The hardware refuses it.
    fn flush(&self) -> Result;

    /// Waits for all that was put into the hardware queue.
    ///
    /// # Errors
    /// Some of it failed, and all has [ended](Fault::ended): whoever waits for this lane next is not told again. The
    /// hardware refuses the wait.
    fn finish(&self) -> Result;
}

/// A place in a hardware queue.
pub trait Marker: Send + Sync + 'static {
    /// Whether it has been reached.
    ///
    /// # Errors
    /// The work before it failed, and has [ended](Fault::ended). The hardware refuses the question.
    fn is_done(&self) -> Result<bool>;

    /// Whether the work before it is known to have failed, although the hardware goes on. It is so for as long as the
    /// marker lives (R23).
    fn has_failed(&self) -> bool {
        false
    }

    /// Waits until it is reached.
    ///
    /// # Errors
    /// The work before it failed, and has [ended](Fault::ended). The hardware refuses the wait.
    fn wait(&self) -> Result;
}

/// A part of a submission.
pub enum Step<L: Lane> {
    /// For the hardware queue.
    Command(L::Command),
    /// Made when all before it has finished.
    HostCall(HostCall),
}

/// A host call with the pointer that it gets.
#[derive(Clone, Copy)]
pub struct HostCall {
    pub(super) function: HostFn,
    pub(super) user: *mut c_void,
    pub(super) cannot_fail: bool,
}

// SAFETY: R27: the host lets any thread call the function with its pointer.
unsafe impl Send for HostCall {}
// SAFETY: as above.
unsafe impl Sync for HostCall {}

impl HostCall {
    /// A call from what the host gave; `flags` are `OTR_HOST_CALL_*`.
    ///
    /// # Errors
    /// `OTR_ERR_INVALID_ARGUMENT` for NULL or an unknown flag.
    pub fn new(function: Option<HostFn>, user: *mut c_void, flags: u32) -> Result<Self> {
        let Some(function) = function else {
            return Err(crate::given::null("the function of a host call"));
        };
        if flags & !c::OTR_HOST_CALL_CANNOT_FAIL != 0 {
            return Err(Fault::argument(format!(
                "host call flags {flags:#x}; known is OTR_HOST_CALL_CANNOT_FAIL ({:#x})",
                c::OTR_HOST_CALL_CANNOT_FAIL
            )));
        }
        Ok(Self {
            function,
            user,
            cannot_fail: flags != 0,
        })
    }

    /// Whether another call is to the same function, with the same flags.
    pub fn is_alike(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.function, other.function) && self.cannot_fail == other.cannot_fail
    }
}
