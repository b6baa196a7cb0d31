//! The report of the loader: what it tried, and why each candidate was taken or refused. This is data
//! with two texts, one for people and one in JSON. It decides nothing.

use std::fmt;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use crate::{Code, Driver};

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// All candidates of a load, in the order in which they were tried.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoadReport {
    /// One entry for each built-in driver, file or directory that was tried.
    pub candidates: Vec<Candidate>,
}

/// One thing that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// The specification that led to it.
    pub spec: String,
    /// How it was found.
    pub kind: CandidateKind,
    /// The file, where there is one.
    pub path: Option<PathBuf>,
    /// What became of it.
    pub outcome: Outcome,
}

/// How a candidate was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CandidateKind {
    /// A driver of this library.
    Builtin,
    /// The specification named the file.
    Path,
    /// A file on the search path, or left to the system's loader.
    Search,
    /// The specification could not be read, so that nothing was looked for.
    Specification,
}

/// What became of a candidate.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is open.
    Taken {
        /// The driver's own name.
        name: String,
        /// The driver's own version.
        version: String,
        /// The names of its devices; at least one.
        devices: Vec<String>,
        /// Major and minor number of the contract that the driver was compiled with.
        driver_api: (u32, u32),
        /// Major and minor number of the contract of this library.
        host_api: (u32, u32),
    },
    /// It was not used.
    Refused {
        /// The kind of failure.
        code: Code,
        /// What was wrong, and what would be right.
        reason: String,
    },
}

impl Outcome {
    pub(crate) fn taken(driver: &Driver) -> Self {
        Self::Taken {
            name: driver.name().to_owned(),
            version: driver.version().to_owned(),
            devices: (0..driver.device_count())
                .filter_map(|device| Some(driver.properties(device).ok()?.name))
                .collect(),
            driver_api: driver.api_version(),
            host_api: crate::loader::HOST_API,
        }
    }

    pub(crate) fn refused(error: &crate::Error) -> Self {
        Self::Refused {
            code: error.code(),
            reason: error.message().to_owned(),
        }
    }
}

impl LoadReport {
    /// The report as a JSON object: `{"candidates": [...]}`, with the fields of [`Candidate`].
    pub fn to_json(&self) -> String {
        // Strings, numbers and lists only: this cannot fail, and an empty object would say so.
        serde_json::to_string(self).unwrap_or_else(|_| "{}".to_owned())
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.candidates.is_empty() {
            return f.write_str("no driver was asked for");
        }
        for (index, candidate) in self.candidates.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{candidate}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.spec)?;
        match (self.kind, &self.path) {
            (CandidateKind::Builtin, _) => f.write_str(" (built in)")?,
            (_, Some(path)) => write!(f, " ({})", path.display())?,
            (_, None) => {}
        }
        match &self.outcome {
            Outcome::Taken {
                name,
                version,
                devices,
                driver_api,
                host_api,
            } => write!(
                f,
                ": taken: {name} {version}, {} device{}, contract {}.{} (ours {}.{})",
                devices.len(),
                if devices.len() == 1 { "" } else { "s" },
                driver_api.0,
                driver_api.1,
                host_api.0,
                host_api.1
            ),
            Outcome::Refused { code, reason } => write!(f, ": refused: {code}: {reason}"),
        }
    }
}
