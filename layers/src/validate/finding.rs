//! The findings of `validate` and where they go. A finding says which side broke which rule, and how.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use outrigger_device::{Code, Error, Result};
use parking_lot::Mutex;

/// The side that broke a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The caller of the driver: Outrigger, or a host of the driver contract.
    Host,
    /// The driver.
    Driver,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Finding {
    /// By whom.
    pub side: Side,
    /// The rule of `driver.h`, as `"R12"`.
    pub rule: &'static str,
    /// The finding, in words.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Host => "host",
            Side::Driver => "driver",
        };
        write!(f, "{}: {side}: {}", self.rule, self.text)
    }
}

/// Takes findings. Called from any thread, also from within work of the driver.
pub type Sink = Arc<dyn Fn(&Finding) + Send + Sync>;

/// Findings as `tracing` events of the target `outrigger::validate`: errors, for leaks warnings.
pub fn to_tracing() -> Sink {
    Arc::new(|finding| match finding.rule {
        "R10" => tracing::warn!(target: "outrigger::validate", "{finding}"),
        _ => tracing::error!(target: "outrigger::validate", "{finding}"),
    })
}

/// Findings as lines of a new file, and as `tracing` events. An old file is replaced.
///
/// # Errors
/// `INVALID_ARGUMENT` if the file cannot be made.
pub fn to_file(path: &Path) -> Result<Sink> {
    let file = std::fs::File::create(path).map_err(|error| {
        Error::new(
            Code::INVALID_ARGUMENT,
            format!("the findings {} cannot be written: {error}", path.display()),
        )
    })?;
    let (file, tracing) = (Mutex::new(file), to_tracing());
    Ok(Arc::new(move |finding| {
        tracing(finding);
        // The event has told it already.
        let _ = writeln!(file.lock(), "{finding}");
    }))
}
