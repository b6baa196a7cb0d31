//! Code as it is handed in, and what its compiled form depends on.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use outrigger_device::{Driver, Result, sys};
use outrigger_store::{Key, Kind};

/// Compiled forms of code. The version changes with what is stored, and with the parts of the key.
const MODULES: Kind = Kind::new("modules", 1);

/// Code for a device, with the options of its compiler. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Source {
    format: u32,
    code: Arc<[u8]>,
    options: Option<CString>,
}

impl Source {
    /// Code of a format, `OTR_CODE_*`.
    pub fn new(format: u32, code: impl Into<Arc<[u8]>>) -> Self {
        Self {
            format,
            code: code.into(),
            options: None,
        }
    }

    /// The same code with options for its compiler.
    #[must_use]
    pub fn with_options(mut self, options: impl Into<CString>) -> Self {
        self.options = Some(options.into());
        self
    }

    pub(crate) fn format(&self) -> u32 {
        self.format
    }

    pub(crate) fn code(&self) -> &[u8] {
        &self.code
    }

    pub(crate) fn options(&self) -> Option<&CStr> {
        self.options.as_deref()
    }

    /// Whether a driver compiles it, so that there is something to keep.
    pub(crate) fn is_compiled(&self) -> bool {
        self.format != sys::OTR_CODE_ELF
    }

    /// The name of the compiled form: a hash over all that it depends on.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub(crate) fn key(&self, driver: &Driver, device: u32) -> Result<Key> {
        let properties = driver.properties(device)?;
        let (major, minor) = driver.api_version();
        // No options and empty options may be two things to a driver.
        let options = self.options().map_or(&[][..], CStr::to_bytes_with_nul);
        Ok(MODULES
            .key()
            .part(
                "contract",
                &[major.to_le_bytes(), minor.to_le_bytes()].concat(),
            )
            .part("driver", driver.name().as_bytes())
            .part("driver version", driver.version().as_bytes())
            .part("device", properties.name.as_bytes())
            .part("uuid", &properties.uuid)
            .part("format", &self.format.to_le_bytes())
            .part("options", options)
            .part("code", &self.code)
            .finish())
    }
}
