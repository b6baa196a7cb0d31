//! Names of the entries, and a gate through which all of them pass: for layers that treat many entries
//! alike.

use std::ffi::{CString, c_char, c_void};

use outrigger_device::sys;

use crate::entries::entries;
use crate::{Layer, Next};

macro_rules! names {
    ($($kind:ident $method:ident: $group:ident.$entry:ident($first:ident: $fty:ident
        $(, $arg:ident: $ty:ty)*) [$($out:ident: $oty:ident)?];)*) => {
        /// An entry of the table, by the name of its method of [`Layer`].
        #[allow(non_camel_case_types, reason = "the names are those of the methods")]
        #[allow(missing_docs, reason = "the contract documents the entries")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Entry {
            $($method,)*
        }

        impl Entry {
            /// All entries.
            pub const ALL: &'static [Self] = &[$(Self::$method,)*];

            /// The name, as `queue_create` or `graph_launch`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$method => stringify!($method),)*
                }
            }
        }
    };
}

entries!(names);

impl Entry {
    /// The entry of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|entry| entry.name() == name)
    }

    /// Whether the entry puts work into a queue.
    pub const fn submits(self) -> bool {
        matches!(
            self,
            Self::queue_wait_event
                | Self::event_record
                | Self::copy
                | Self::fill
                | Self::host_call
                | Self::peer_copy
                | Self::kernel_launch
                | Self::operator_launch
                | Self::graph_launch
                | Self::comm_all_reduce
                | Self::comm_reduce
                | Self::comm_reduce_scatter
                | Self::comm_broadcast
                | Self::comm_all_gather
                | Self::comm_exchange
                | Self::external_signal
                | Self::external_wait
        )
    }

    /// Whether the entry gives something back that the host owned.
    pub const fn gives_back(self) -> bool {
        matches!(
            self,
            Self::close
                | Self::device_close
                | Self::memory_free
                | Self::queue_destroy
                | Self::event_destroy
                | Self::virtual_release
                | Self::virtual_destroy
                | Self::virtual_unmap
                | Self::pinned_free
                | Self::pinned_unpin
                | Self::module_unload
                | Self::operator_release
                | Self::graph_destroy
                | Self::ipc_memory_close
                | Self::comm_destroy
                | Self::external_memory_close
                | Self::external_semaphore_destroy
        )
    }
}

/// A gate that each call passes first.
pub(crate) trait Gate: Send + Sync + 'static {
    /// A value that is kept until the call returns.
    type Pass<'gate>;

    /// Lets a call through, or answers it with a code.
    fn pass(&self, next: &Next, entry: Entry, handles: Handles<'_>) -> Result<Self::Pass<'_>, i32>;
}

/// The handles that a call names.
#[derive(Clone, Copy)]
pub(crate) struct Handles<'call> {
    /// The queue of an entry that submits.
    pub(crate) queue: *mut sys::otr_queue,
    /// The address of each, in the order of the arguments; 0 for an argument that is none.
    pub(crate) all: &'call [usize],
}

/// A layer behind a gate.
pub(crate) struct Gated<G, L> {
    pub(crate) gate: G,
    pub(crate) layer: L,
}

/// The part of an argument that is of interest: a handle, or the place for an outcome.
pub(crate) trait MaybeHandle: Copy {
    fn handle(self) -> usize {
        0
    }

    fn queue(self) -> *mut sys::otr_queue {
        std::ptr::null_mut()
    }

    fn outcome(self) -> *mut sys::otr_outcome {
        std::ptr::null_mut()
    }
}

impl MaybeHandle for *mut sys::otr_outcome {
    fn outcome(self) -> *mut sys::otr_outcome {
        self
    }
}

impl MaybeHandle for *mut sys::otr_queue {
    fn handle(self) -> usize {
        self.addr()
    }

    fn queue(self) -> *mut sys::otr_queue {
        self
    }
}

macro_rules! handles {
    ($($type:ident)*) => {
        $(
            impl MaybeHandle for *mut sys::$type {
                fn handle(self) -> usize {
                    self.addr()
                }
            }
        )*
    };
}

handles! {
    otr_driver otr_drv_event otr_drv_module otr_drv_kernel otr_operator otr_drv_graph otr_physical
    otr_drv_comm otr_drv_semaphore
}

macro_rules! no_handles {
    ($($type:ty)*) => { $(impl MaybeHandle for $type {})* };
}

no_handles! {
    u32 u64 usize *mut u32 *mut u64 *mut c_void *mut *mut c_void *const c_void *const c_char
    *mut sys::otr_device_properties *const sys::otr_device_params *mut sys::otr_ipc_handle
    *const sys::otr_ipc_handle
    *const sys::otr_queue_params *const sys::otr_event_params *const sys::otr_memory_params
    *const sys::otr_reserve_params *const sys::otr_map_params *const sys::otr_copy
    *const sys::otr_fill *const sys::otr_host_call *const sys::otr_launch
    *const sys::otr_operator_call *mut *const *const c_char *mut sys::otr_operator_answer
    *mut sys::otr_imported *const sys::otr_comm_params *const sys::otr_exchange
    *const sys::otr_fd *mut sys::otr_fd *const sys::otr_semaphore_params
}

macro_rules! gated {
    ($($kind:ident $method:ident: $group:ident.$entry:ident($first:ident: $fty:ident
        $(, $arg:ident: $ty:ty)*) [$($out:ident: $oty:ident)?];)*) => {
        impl<G: Gate, L: Layer> Layer for Gated<G, L> {
            fn offers(&self, what: &str, below: bool) -> bool {
                self.layer.offers(what, below)
            }

            fn error_text(&self, next: &Next) -> Option<CString> {
                self.layer.error_text(next)
            }

            $(
                unsafe fn $method(&self, next: &Next, $first: *mut sys::$fty $(, $arg: $ty)*
                    $(, $out: *mut *mut sys::$oty)?) -> i32 {
                    let queues = [$first.queue() $(, $arg.queue())*];
                    let queue = queues
                        .into_iter()
                        .find(|queue| !queue.is_null())
                        .unwrap_or(std::ptr::null_mut());
                    let all = &[$first.handle() $(, $arg.handle())*];
                    match self.gate.pass(next, Entry::$method, Handles { queue, all }) {
                        // SAFETY: R7: the host's own arguments, handed on.
                        Ok(_pass) => unsafe {
                            self.layer.$method(next, $first $(, $arg)* $(, $out)?)
                        },
                        Err(code) => code,
                    }
                }
            )*
        }
    };
}

entries!(gated);

#[cfg(test)]
mod tests {
    use super::Entry;

    #[test]
    fn names_lead_back_to_their_entries() {
        for entry in Entry::ALL {
            assert_eq!(Entry::from_name(entry.name()), Some(*entry));
        }
        assert_eq!(Entry::from_name("open"), None);
    }
}
