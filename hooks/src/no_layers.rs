//! Takes the place of the layers in a build without them. A host that asks for a layer gets an error.

use outrigger_device::{Code, Driver, Error, Result};

/// The stack without layers.
pub(crate) struct Stack;

impl Stack {
    /// Reads `OUTRIGGER_LAYERS`, as `outrigger_layers` does.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the variable names a layer.
    pub(crate) fn from_environment() -> Result<Self> {
        match std::env::var_os("OUTRIGGER_LAYERS") {
            Some(layers) if !layers.is_empty() => Err(Error::new(
                Code::UNSUPPORTED,
                "OUTRIGGER_LAYERS: this build has no layers, because it was made without the feature `layers`",
            )),
            _ => Ok(Self),
        }
    }

    /// The driver without changes.
    ///
    /// # Errors
    /// None.
    pub(crate) fn apply(&self, driver: Driver) -> Result<Driver> {
        Ok(driver)
    }
}
