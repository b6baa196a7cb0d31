//! The macros that declare the entries of a table.

/// Declares functions of a driver's table: C functions that call a Rust function each, within the guard that keeps
/// panics and errors from the host. No entry can be without it, since there is no other way to write one.
///
/// ```
/// use outrigger_driver_kit::{Result, entries, given::Out};
///
/// fn count(place: *mut u32) -> Result {
///     Out::new(place, "the place for the count")?.give(1);
///     Ok(())
/// }
///
/// entries! {
///     fn device_count(place: *mut u32) = count;
/// }
///
/// let mut found = 0;
/// // SAFETY: the place lives through the call.
/// assert_eq!(unsafe { device_count(&mut found) }, 0);
/// assert_eq!(found, 1);
/// ```
#[macro_export]
macro_rules! entries {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) = $($body:ident)::+;)*) => {$(
        unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
            // An entry whose body is a safe function needs no block.
            #[allow(unused_unsafe, reason = "the same line calls safe and unsafe functions")]
            // SAFETY: the rules of the contract are what the body asks for, and the host keeps them.
            $crate::guard(|| unsafe { $($body)::+($($argument),*) })
        }
    )*};
}

/// The same for entries that ask or wait for work. The body is not given the place for the outcome, which stands behind
/// the first argument: what it answers is written there.
#[macro_export]
macro_rules! outcomes {
    ($(fn $name:ident($first:ident: $handle:ty $(, $argument:ident: $type:ty)* $(,)?) = $($body:ident)::+;)*) => {$(
        unsafe extern "C" fn $name(
            $first: $handle,
            outcome: *mut $crate::contract::otr_outcome
            $(, $argument: $type)*
        ) -> i32 {
            // SAFETY: R1: the host's struct is as large as it says; the rules of the contract are what the body asks for,
            // and the host keeps them.
            unsafe { $crate::tell(outcome, || $($body)::+($first $(, $argument)*)) }
        }
    )*};
}
