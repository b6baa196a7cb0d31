//! The threads of a framework, which host kernels use.

use std::ffi::c_void;

use outrigger_hooks::ops::parallel;

/// Runs `body` over parts of a range.
pub type otr_parallel_body_fn = extern "C" fn(context: *mut c_void, begin: i64, end: i64);
/// Splits a range into parts of at least `grain`, runs `body` on each part, on any threads, and returns
/// when all have run.
pub type otr_parallel_for_fn = Option<
    extern "C" fn(
        begin: i64,
        end: i64,
        grain: i64,
        body: otr_parallel_body_fn,
        context: *mut c_void,
    ),
>;

api! {
    /// Lets host kernels use the threads of a framework, in the whole process; NULL returns to the
    /// built-in pool of threads. Work that runs already continues as it began.
    fn otr_set_parallel_for(function: otr_parallel_for_fn) {
        parallel::set(function);
        Ok(())
    }
}
