//! The codes that both contracts share: a newtype over the integer of `base.h`. It must never be an
//! enum, because a newer driver may answer with a number that this version does not know.

use std::fmt;

use crate::sys;

/// What a call answered. Any number is valid; one that is not listed here is a failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub i32);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:path, $text:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The name of the constant, or `"UNKNOWN"`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                    _ => "UNKNOWN",
                }
            }

            /// The code of a name as [`name`](Self::name) gives it.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($name) => Some(Self::$name),)*
                    _ => None,
                }
            }

            fn text(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Success.
    OK = sys::OTR_OK, "success";
    /// An answer, not a failure: the work has not finished.
    NOT_READY = sys::OTR_NOT_READY, "not finished yet";
    /// An argument is out of its documented range.
    INVALID_ARGUMENT = sys::OTR_ERR_INVALID_ARGUMENT, "invalid argument";
    /// A handle is NULL, stale, or of another runtime.
    INVALID_HANDLE = sys::OTR_ERR_INVALID_HANDLE, "invalid handle";
    /// There is no device with this index.
    INVALID_DEVICE = sys::OTR_ERR_INVALID_DEVICE, "invalid device index";
    /// Device memory is exhausted.
    OUT_OF_MEMORY = sys::OTR_ERR_OUT_OF_MEMORY, "out of device memory";
    /// Host memory or another host resource is exhausted.
    OUT_OF_HOST_MEMORY = sys::OTR_ERR_OUT_OF_HOST_MEMORY, "out of host memory";
    /// The feature is absent; nothing was done.
    UNSUPPORTED = sys::OTR_ERR_UNSUPPORTED, "not supported";
    /// A named thing does not exist.
    NOT_FOUND = sys::OTR_ERR_NOT_FOUND, "not found";
    /// The two sides speak different major versions.
    VERSION = sys::OTR_ERR_VERSION, "incompatible version";
    /// The device no longer answers; only closing it is left.
    DEVICE_LOST = sys::OTR_ERR_DEVICE_LOST, "device lost";
    /// Submitted work failed.
    EXECUTION = sys::OTR_ERR_EXECUTION, "submitted work failed";
    /// Submitted work met an index or address outside its bounds.
    OUT_OF_RANGE = sys::OTR_ERR_OUT_OF_RANGE, "index or address out of range";
    /// The call would wait for work that waits for the caller.
    WOULD_DEADLOCK = sys::OTR_ERR_WOULD_DEADLOCK, "the call would deadlock";
    /// The object is in use in a way that forbids the call.
    BUSY = sys::OTR_ERR_BUSY, "in use";
    /// The runtime was made in the parent of this process.
    FORKED = sys::OTR_ERR_FORKED, "not usable in a forked child";
    /// Work was given up: its queue was destroyed or had failed, or its communicator was aborted.
    CANCELLED = sys::OTR_ERR_CANCELLED, "cancelled";
    /// A driver could not be loaded.
    LOAD = sys::OTR_ERR_LOAD, "a driver could not be loaded";
    /// A defect of the side that reports it.
    INTERNAL = sys::OTR_ERR_INTERNAL, "internal error";
    /// Not possible while a stream captures, or the capture failed.
    CAPTURE = sys::OTR_ERR_CAPTURE, "not possible in a capture";
    /// Another rank of a communicator has ended, failed, or not come in time.
    PEER_LOST = sys::OTR_ERR_PEER_LOST, "another rank was lost";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "unknown code {}", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn an_unknown_number_keeps_its_value() {
        assert_eq!(Code(77).to_string(), "unknown code 77");
        assert_eq!(format!("{:?}", Code(77)), "UNKNOWN(77)");
        assert_eq!(format!("{:?}", Code::BUSY), "BUSY(14)");
    }
}
