//! The command that a failure is of, as outcomes name it.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::fmt;

/// The label of a launch.
#[derive(Clone, Copy)]
pub struct Label(*const c_char);

// SAFETY: the text is a constant of the process, as `otr_launch` has it.
unsafe impl Send for Label {}
// SAFETY: as above.
unsafe impl Sync for Label {}

impl Label {
    /// No label.
    pub const NONE: Self = Self(std::ptr::null());

    /// The label of a launch.
    ///
    /// # Safety
    /// NULL, or NUL-terminated and alive as long as the process.
    pub unsafe fn new(label: *const c_char) -> Self {
        Self(label)
    }

    fn text(&self) -> Cow<'static, str> {
        if self.0.is_null() {
            return "".into();
        }
        // SAFETY: not NULL, so what `new` was promised.
        unsafe { CStr::from_ptr(self.0) }.to_string_lossy()
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

/// The place of a command in its queue, and its name.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    label: Label,
    /// From 1.
    number: u64,
}

impl Origin {
    pub(crate) fn new(label: Label, number: u64) -> Self {
        Self { label, number }
    }

    /// The label of its launch; empty if it has none.
    pub fn label(&self) -> Cow<'static, str> {
        self.label.text()
    }

    /// The number of the command in its queue, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }
}
