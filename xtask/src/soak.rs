//! `cargo xtask soak`: builds the program of tests/soak and runs it. It calls the host contract at
//! random from eight threads, by default with injected faults. All choices follow from its seed, which
//! is printed. A failure prints the command that repeats it.

use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;

use crate::native;
use crate::shell;
use crate::workspace::Workspace;

/// Options of the soak.
#[derive(Args)]
pub(crate) struct Options {
    /// Seconds
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// The seed of all choices; a new one each time by default
    #[arg(long)]
    seed: Option<u64>,
    /// Use drivers that do not fail
    #[arg(long)]
    no_faults: bool,
}

/// From how many threads it calls.
const THREADS: &str = "8";

/// A run that takes this much longer than requested counts as hanging.
const GRACE: Duration = Duration::from_secs(120);

/// Soaks as the options say.
///
/// # Errors
/// If the program does not build or cannot be started.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let passed = soak(workspace, options.seconds, options.seed, !options.no_faults)?;
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Soaks for `seconds`; whether nothing was found.
///
/// # Errors
/// As [`run`].
pub(crate) fn soak(
    workspace: &Workspace,
    seconds: u32,
    seed: Option<u64>,
    faults: bool,
) -> anyhow::Result<bool> {
    native::programs(workspace)?;
    let seed = seed.unwrap_or_else(some_seed);
    println!("soak: seed {seed}");
    let without_faults = (!faults).then_some("--no-faults");
    let [seconds_text, seed_text] = [seconds.to_string(), seed.to_string()];
    let mut command = Command::new(workspace.target("debug/outrigger-soak"));
    command
        .args(["--seconds", &seconds_text, "--seed", &seed_text])
        .args(["--threads", THREADS])
        .args(without_faults)
        .current_dir(workspace.root())
        .env("RUST_BACKTRACE", "1");
    let limit = Duration::from_secs(seconds.into()) + GRACE;
    let title = format!("soaking for {seconds} s");
    let finished = shell::attempt(workspace, &title, &mut command, Some(limit))?;
    if !finished.success() {
        eprintln!(
            "{}\nall of it: {}\nagain: cargo xtask soak --seconds {seconds} --seed {seed} {}",
            finished.tail(),
            finished.log.display(),
            without_faults.unwrap_or_default()
        );
    }
    Ok(finished.success())
}

/// A seed that is another one at each run.
fn some_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::from(now.subsec_nanos()) ^ now.as_secs())
}
