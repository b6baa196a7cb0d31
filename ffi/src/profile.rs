//! Profiles: what streams were given, by whom, and when it ran.

use std::ffi::{CString, c_char, c_void};

use outrigger_device::foreign_call;
use outrigger_device::profile::{self, Clock, Work, WorkKind};
use outrigger_hooks::Error;

use crate::guard::{Out, null};
use crate::otr_stream_t;

/// A kernel.
pub const OTR_WORK_KERNEL: u32 = 1;
/// An operator of the driver.
pub const OTR_WORK_OPERATOR: u32 = 2;
/// A copy.
pub const OTR_WORK_COPY: u32 = 3;
/// A fill.
pub const OTR_WORK_FILL: u32 = 4;
/// A function of the host, in stream order.
pub const OTR_WORK_HOST_CALL: u32 = 5;
/// A graph that the driver replays, as a whole.
pub const OTR_WORK_GRAPH: u32 = 6;
/// Work that several devices do together.
pub const OTR_WORK_COLLECTIVE: u32 = 7;

/// The device has measured when the work ran.
pub const OTR_CLOCK_DEVICE: u32 = 0;
/// The driver has no timestamps: the host has measured when the work was submitted and when it had finished.
pub const OTR_CLOCK_HOST: u32 = 1;

/// One piece of work that a stream was given. Times are nanoseconds of the host's clock since 1970; those that a
/// device has measured are converted to it. It lives as long as the call that tells it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct otr_profiled_work_t {
    /// sizeof(otr_profiled_work_t), of the library
    pub struct_size: usize,
    /// One of OTR_WORK_*.
    pub kind: u32,
    /// The device.
    pub device: u32,
    /// The stream, which may have been destroyed since.
    pub stream: otr_stream_t,
    /// The number that the thread had chosen by otr_profile_correlate.
    pub correlation: u64,
    /// The thread that submitted the work, by the number of the operating system.
    pub thread: u64,
    /// The name of the kernel or operator, or what the work does.
    pub name: *const c_char,
    /// The bytes that are moved or written; 0 for other kinds.
    pub bytes: u64,
    /// The time when the submission began.
    pub submit_begin: u64,
    /// The time when the submission ended.
    pub submit_end: u64,
    /// The time when the work began; 0 unless `outcome` is OTR_OK.
    pub begin: u64,
    /// The time when the work ended; 0 unless `outcome` is OTR_OK.
    pub end: u64,
    /// One of OTR_CLOCK_*.
    pub clock: u32,
    /// OTR_NOT_READY if the work had not finished when the profile ended; else OTR_OK, or the failure of its stream.
    pub outcome: i32,
}

/// Is told one piece of work, on the thread that stops the profile. It must not throw.
pub type otr_profile_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, work: *const otr_profiled_work_t)>;

api! {
    /// Starts a profile: from now on it is noted what the streams of all devices are given. There is one profile at a
    /// time, else OTR_ERR_BUSY. Replays of graphs are told as what they submit: node by node, or as one.
    fn otr_profile_start() {
        Ok(profile::start()?)
    }

    /// Ends the profile, and tells each piece of work to `function`, in the order of submission. Does not wait: what has
    /// not finished is told as such, so wait for the streams first.
    fn otr_profile_stop(function: otr_profile_fn, user: *mut c_void) {
        let function = function.ok_or_else(|| null("function"))?;
        for work in profile::stop()? {
            let name = CString::new(work.name.as_bytes()).unwrap_or_default();
            let told = told(&work, &name);
            // SAFETY: the host lets this be called until otr_profile_stop returns.
            unsafe { foreign_call!(function, user, &raw const told) }
        }
        Ok(())
    }

    /// Chooses the number with which the profile tells what this thread submits from now on, so that a host finds its
    /// own operators again. `previous` receives the one before, which is 0 at first.
    fn otr_profile_correlate(id: u64, previous: *mut u64) {
        let out = Out::new(previous, "previous")?;
        out.set(profile::correlate(id));
        Ok::<(), Error>(())
    }
}

fn told(work: &Work, name: &CString) -> otr_profiled_work_t {
    let (begin, end) = work.ran.unwrap_or_default();
    otr_profiled_work_t {
        struct_size: size_of::<otr_profiled_work_t>(),
        kind: match work.kind {
            WorkKind::Kernel => OTR_WORK_KERNEL,
            WorkKind::Operator => OTR_WORK_OPERATOR,
            WorkKind::Copy => OTR_WORK_COPY,
            WorkKind::Fill => OTR_WORK_FILL,
            WorkKind::HostCall => OTR_WORK_HOST_CALL,
            WorkKind::Graph => OTR_WORK_GRAPH,
            WorkKind::Collective => OTR_WORK_COLLECTIVE,
        },
        device: work.stream.device,
        stream: work.stream.id,
        correlation: work.correlation,
        thread: work.thread,
        name: name.as_ptr(),
        bytes: work.bytes,
        submit_begin: work.submitted.0,
        submit_end: work.submitted.1,
        begin,
        end,
        clock: match work.clock {
            Clock::Device => OTR_CLOCK_DEVICE,
            Clock::Host => OTR_CLOCK_HOST,
        },
        outcome: work.outcome.0,
    }
}
