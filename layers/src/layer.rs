//! The trait of a layer: one method for each entry of the table, which passes the call on unless the
//! layer overrides it. And the driver below, as a layer calls it.

use std::ffi::{CStr, CString, c_char, c_void};

use outrigger_device::{Code, RawDriver, sys};

use crate::entries::entries;
use crate::fail;

/// The driver below a layer, which may be another layer.
///
/// The methods have the names of those of [`Layer`]. If the driver lacks the entry, they fail with
/// `UNSUPPORTED`.
#[derive(Debug)]
pub struct Next {
    raw: RawDriver,
}

impl Next {
    pub(crate) fn new(raw: RawDriver) -> Self {
        Self { raw }
    }

    /// Table and handle.
    pub fn raw(&self) -> &RawDriver {
        &self.raw
    }

    /// The text of this thread's most recent failed call below (R5); `None` if the driver gave NULL.
    pub fn last_error(&self) -> Option<CString> {
        let last_error = self.raw.api().last_error?;
        // SAFETY: takes nothing.
        let text = unsafe { last_error() };
        // SAFETY: not NULL; NUL-terminated and valid until this thread's next call (R5).
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned())
    }
}

/// The groups of a driver by the names of the table; `core` is what has no group.
mod groups {
    use outrigger_device::{RawDriver, sys};

    pub(super) fn core(raw: &RawDriver) -> Option<&sys::otr_driver_api> {
        Some(raw.api())
    }

    macro_rules! groups {
        ($($name:ident: $type:ident)*) => {
            $(
                pub(super) fn $name(raw: &RawDriver) -> Option<&sys::$type> {
                    raw.$name()
                }
            )*
        };
    }

    groups! {
        memory_info: otr_memory_info_api
        virtual_memory: otr_virtual_memory_api
        pinned_memory: otr_pinned_memory_api
        peer: otr_peer_api
        timing: otr_timing_api
        kernel: otr_kernel_api
        operators: otr_operator_api
        graph: otr_graph_api
        ipc: otr_ipc_api
        collectives: otr_collective_api
        native_queue: otr_native_queue_api
        external: otr_external_api
    }
}

macro_rules! calls_below {
    ($($kind:ident $method:ident: $group:ident.$entry:ident($first:ident: $fty:ident
        $(, $arg:ident: $ty:ty)*) [$($out:ident: $oty:ident)?];)*) => {
        #[allow(clippy::too_many_arguments, reason = "the arguments are those of the contract")]
        impl Next {
            $(
                #[doc = concat!("Calls `", stringify!($entry), "` of `", stringify!($group),
                    "` of the driver below.")]
                ///
                /// # Safety
                /// The rules of the contract, with handles of the driver below.
                #[inline]
                pub unsafe fn $method(&self, $first: *mut sys::$fty $(, $arg: $ty)*
                    $(, $out: *mut *mut sys::$oty)?) -> i32 {
                    match groups::$group(&self.raw).and_then(|group| group.$entry) {
                        // SAFETY: the arguments keep the contract, and handles are of the driver below.
                        Some(entry) => unsafe { entry($first $(, $arg)* $(, $out)?) },
                        None => missing(stringify!($group), stringify!($entry)),
                    }
                }
            )*
        }
    };
}

macro_rules! layer {
    ($($kind:ident $method:ident: $group:ident.$entry:ident($first:ident: $fty:ident
        $(, $arg:ident: $ty:ty)*) [$($out:ident: $oty:ident)?];)*) => {
        /// A layer over a driver: one method for each entry, with the signature of the contract and the
        /// driver below as `next`.
        ///
        /// Handles are those of the driver below. A new handle that a method writes is one of the
        /// driver below, too; the handle of the host is made around it. A method that is not overridden
        /// passes the call on. Methods run on any thread and at the same time (R8), and return a code.
        /// A method that fails by itself gives its text with [`fail`]; otherwise the host gets the text
        /// of the driver below.
        ///
        /// A NULL or foreign handle in first place never reaches a method, because it names no layer:
        /// it is answered with `INVALID_HANDLE`. In any other place it is passed on unchanged.
        #[allow(clippy::too_many_arguments, reason = "the arguments are those of the contract")]
        pub trait Layer: Send + Sync + 'static {
            /// Whether the host gets a group or a chained table, by its name (`graph`, `collectives`), or an optional entry
            /// (`queue_flush`, `graph.update`, `pinned_memory.pin`), which the driver below has or has not. Asked once.
            fn offers(&self, what: &str, below: bool) -> bool {
                let _ = what;
                below
            }

            /// The text for a call that failed without a text of the layer; `None` is NULL.
            fn error_text(&self, next: &Next) -> Option<CString> {
                next.last_error()
            }

            $(
                #[doc = concat!("`", stringify!($entry), "` of `", stringify!($group), "`.")]
                ///
                /// # Safety
                /// The arguments are those of a host that keeps the contract as far as it is not checked
                /// (R7); handles are of the driver below.
                #[inline]
                unsafe fn $method(&self, next: &Next, $first: *mut sys::$fty $(, $arg: $ty)*
                    $(, $out: *mut *mut sys::$oty)?) -> i32 {
                    // SAFETY: R7: the host's own arguments, handed on.
                    unsafe { next.$method($first $(, $arg)* $(, $out)?) }
                }
            )*
        }
    };
}

entries!(calls_below);
entries!(layer);

#[cold]
fn missing(group: &str, entry: &str) -> i32 {
    fail(
        Code::UNSUPPORTED,
        format!("the driver has no `{entry}` of `{group}`"),
    )
}
