//! The permission of the tuner to measure, and the place of its worker: from the environment, as the user of a program
//! sets it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use outrigger_store::Store;

use crate::{Problem, Starter, Tuner};

/// The variable that says what the tuner may do.
pub const MODE_VARIABLE: &str = "OUTRIGGER_TUNE";

/// The variable that says where the worker's program is.
pub const WORKER_VARIABLE: &str = "OUTRIGGER_TUNE_WORKER";

/// The worker's program, beside the library or in the folder `bin` beside the library's.
const PROGRAM: &str = "outrigger";

/// The permission of the tuner to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: the defaults are used.
    Off,
    /// Choices that are kept are used, and nothing is measured.
    Cached,
    /// A question without a choice is measured, once.
    On,
}

impl Mode {
    /// The mode of a word; [`Mode::Cached`] for an empty one.
    ///
    /// # Errors
    /// Names the variable, for any other word.
    pub fn parse(word: &str) -> Result<Self, Problem> {
        match word {
            "off" => Ok(Self::Off),
            "" | "cached" => Ok(Self::Cached),
            "on" => Ok(Self::On),
            _ => Err(Problem(format!(
                "{MODE_VARIABLE} is `{word}`; give `off`, `cached` or `on`"
            ))),
        }
    }
}

impl Tuner {
    /// The tuner of this process, over its store. The first call reads the environment; `beside` is asked then for the
    /// folders in which the worker's program may be.
    ///
    /// # Errors
    /// Names the variable whose value makes no sense.
    pub fn of_process(beside: impl FnOnce() -> Vec<PathBuf>) -> Result<&'static Self, Problem> {
        static TUNER: OnceLock<Result<Tuner, String>> = OnceLock::new();
        let made = TUNER.get_or_init(|| {
            let word = std::env::var_os(MODE_VARIABLE).unwrap_or_default();
            let mode = Mode::parse(&word.to_string_lossy()).map_err(|problem| problem.0)?;
            let store = Store::of_process().map_err(|error| error.to_string())?;
            Ok(Self::new(store, mode, starter(beside())))
        });
        made.as_ref().map_err(|text| Problem(text.clone()))
    }
}

/// The command that starts `outrigger tune --worker`: the program that the environment names, else one beside the
/// library.
pub(crate) fn starter(beside: Vec<PathBuf>) -> Starter {
    Box::new(move || {
        let program = match std::env::var_os(WORKER_VARIABLE).filter(|value| !value.is_empty()) {
            Some(path) => PathBuf::from(path),
            None => {
                let places = beside.iter().flat_map(|folder| {
                    let bin = folder.parent().map(|above| above.join("bin").join(PROGRAM));
                    std::iter::once(folder.join(PROGRAM)).chain(bin)
                });
                places.into_iter().find(|path| is_program(path)).ok_or_else(|| {
                    format!("there is no program `{PROGRAM}` beside the library, and {WORKER_VARIABLE} names none")
                })?
            }
        };
        let mut command = Command::new(program);
        command.args(["tune", "--worker"]);
        Ok(command)
    })
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::Mode;

    #[test]
    fn a_mode_is_one_of_three_words() {
        assert_eq!(Mode::parse("").unwrap(), Mode::Cached);
        assert_eq!(Mode::parse("off").unwrap(), Mode::Off);
        assert_eq!(Mode::parse("on").unwrap(), Mode::On);
        let problem = Mode::parse("1").unwrap_err().to_string();
        assert_eq!(
            problem,
            "OUTRIGGER_TUNE is `1`; give `off`, `cached` or `on`"
        );
    }
}
