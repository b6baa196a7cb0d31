//! What stands for the layers in a build without them: whoever asks for one is told so.

use outrigger_device::{Code, Driver, Error, Result};

/// No layers.
pub(crate) struct Stack;

impl Stack {
    /// As of `outrigger_layers`.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the variable names a layer.
    pub(crate) fn from_environment() -> Result<Self> {
        match std::env::var_os("OUTRIGGER_LAYERS") {
            Some(layers) if !layers.is_empty() => Err(Error::new(
                Code::UNSUPPORTED,
                "OUTRIGGER_LAYERS: this build has no layers: it was made without the feature `layers`",
            )),
            _ => Ok(Self),
        }
    }

    /// The driver as it is.
    ///
    /// # Errors
    /// None.
    pub(crate) fn apply(&self, driver: Driver) -> Result<Driver> {
        Ok(driver)
    }
}
