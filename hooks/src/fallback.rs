//! Counts of operators that ran on the CPU because the device has no kernel for them: how often, how long, and how many
//! bytes were staged. A mode makes each fallback an error.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use outrigger_device::Code;
use outrigger_locks::{Mutex, Rank};
use serde::Serialize;

use crate::current::current_device;
use crate::observer::{self, Observation, ObservationKinds};
use crate::{Error, Result};

/// What happens when an operator falls back (`OUTRIGGER_FALLBACK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FallbackMode {
    /// Fallbacks are counted.
    Silent = 0,
    /// Fallbacks are counted, and the first one of each operator is worth a warning.
    Warn = 1,
    /// Fallbacks are refused.
    Error = 2,
}

/// Figures of one operator's fallbacks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FallbackEntry {
    /// The operator, as its framework calls it.
    pub operator: String,
    /// How often it fell back.
    pub calls: u64,
    /// Time on the CPU, with the wait for its stream and with staging.
    pub seconds: f64,
    /// Bytes copied between device and host for it.
    pub staged_bytes: u64,
}

#[derive(Default)]
struct Count {
    calls: u64,
    nanoseconds: u64,
    staged_bytes: u64,
    warned: bool,
}

static COUNTS: Mutex<Option<HashMap<String, Count>>> = Mutex::new(Rank::Fallbacks, None);
static MODE: AtomicU32 = AtomicU32::new(FallbackMode::Silent as u32);

impl FallbackMode {
    /// The mode of a number of the C ABI.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for any other number than 0, 1 and 2.
    pub fn from_number(number: u32) -> Result<Self> {
        match number {
            0 => Ok(Self::Silent),
            1 => Ok(Self::Warn),
            2 => Ok(Self::Error),
            _ => Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "fallback mode {number} is unknown: it is 0 (silent), 1 (warn) or 2 (error)"
                ),
            )),
        }
    }

    /// The mode of a word of `OUTRIGGER_FALLBACK`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for any other word than silent, warn and error.
    pub fn from_word(word: &str) -> Result<Self> {
        match word {
            "silent" => Ok(Self::Silent),
            "warn" => Ok(Self::Warn),
            "error" => Ok(Self::Error),
            _ => Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!("OUTRIGGER_FALLBACK={word} is unknown: it is silent, warn or error"),
            )),
        }
    }
}

/// The mode in force.
pub fn fallback_mode() -> FallbackMode {
    match MODE.load(Ordering::Relaxed) {
        0 => FallbackMode::Silent,
        1 => FallbackMode::Warn,
        _ => FallbackMode::Error,
    }
}

/// Sets the mode for the whole process.
pub fn set_fallback_mode(mode: FallbackMode) {
    MODE.store(mode as u32, Ordering::Relaxed);
}

/// Asks for permission to run `operator` on the CPU. Returns true if the caller should warn: in mode `Warn`, the first
/// time for this operator.
///
/// # Errors
/// `UNSUPPORTED` in mode `Error`.
pub fn fallback_begin(operator: &str) -> Result<bool> {
    match fallback_mode() {
        FallbackMode::Silent => Ok(false),
        FallbackMode::Warn => {
            let mut counts = COUNTS.lock();
            let count = counts
                .get_or_insert_default()
                .entry(operator.to_owned())
                .or_default();
            Ok(!std::mem::replace(&mut count.warned, true))
        }
        FallbackMode::Error => Err(Error::new(
            Code::UNSUPPORTED,
            "the device has no kernel for this operator with these arguments, and \
             OUTRIGGER_FALLBACK=error forbids running it on the CPU (warn and silent allow it)",
        )
        .in_operator(operator)),
    }
}

/// Counts a fallback that has run.
pub fn fallback_end(operator: &str, nanoseconds: u64, staged_bytes: u64) {
    {
        let mut counts = COUNTS.lock();
        let counts = counts.get_or_insert_default();
        let count = match counts.get_mut(operator) {
            Some(count) => count,
            None => counts.entry(operator.to_owned()).or_default(),
        };
        count.calls += 1;
        count.nanoseconds += nanoseconds;
        count.staged_bytes += staged_bytes;
    }
    tracing::trace!(target: "outrigger::fallback", operator, nanoseconds, staged_bytes);
    if observer::listening(ObservationKinds::FALLBACK) {
        observer::observe(&Observation {
            kind: ObservationKinds::FALLBACK,
            device: current_device(),
            size: staged_bytes,
            name: operator,
            nanoseconds,
            ..Observation::default()
        });
    }
}

/// All operators that fell back, the most expensive first.
pub fn fallback_report() -> Vec<FallbackEntry> {
    let mut entries: Vec<_> = COUNTS
        .lock()
        .iter()
        .flatten()
        .filter(|(_, count)| count.calls > 0)
        .map(|(operator, count)| FallbackEntry {
            operator: operator.clone(),
            calls: count.calls,
            seconds: count.nanoseconds as f64 * 1e-9,
            staged_bytes: count.staged_bytes,
        })
        .collect();
    entries.sort_by(|a, b| {
        b.seconds
            .total_cmp(&a.seconds)
            .then(a.operator.cmp(&b.operator))
    });
    entries
}

/// Forgets all counts and warnings.
pub fn fallback_reset() {
    *COUNTS.lock() = None;
}
