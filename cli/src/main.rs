//! The command `outrigger`: parses the command line and reports errors. Each command is a module.
//!
//! Only this module and the chosen command may print.

mod conformance;
mod info;
mod memory;
mod new;
mod ops;
mod replay;
mod tune;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "outrigger",
    version,
    about = "Starts drivers, tests them and replays their calls; shows drivers, devices and memory"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Says whether a driver keeps the contract
    Conformance(Box<conformance::Options>),
    /// Checks that a report of `conformance` is whole and unaltered
    Verify(conformance::VerifyOptions),
    #[command(name = outrigger_conformance::TEST_COMMAND, hide = true)]
    ConformanceTest(conformance::Inner),
    #[command(name = outrigger_conformance::HELPER_COMMAND, hide = true)]
    ConformanceHelper(conformance::Inner),
    /// Lists drivers, their optional groups, and their devices
    Info(info::Options),
    /// Draws a trace or a snapshot of memory as one HTML page
    Memory(memory::Options),
    /// Writes a driver in C that works, for your device to be put in
    New(new::Options),
    /// Lists where each operator runs on a device, for each element type
    Ops(ops::Options),
    /// Runs a recording of driver calls on any driver, and shrinks a recording that fails
    Replay(replay::Options),
    /// Shows, measures, exports and pins the variants of kernels that are used
    Tune(tune::Options),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Conformance(options) => conformance::run(&options),
        Command::Verify(options) => conformance::verify(&options),
        Command::ConformanceTest(options) => conformance::test(&options),
        Command::ConformanceHelper(options) => conformance::helper(&options),
        Command::Info(options) => info::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Memory(options) => memory::run(&options).map(|()| ExitCode::SUCCESS),
        Command::New(options) => new::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Ops(options) => ops::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Replay(options) => replay::run(&options),
        Command::Tune(options) => tune::run(&options).map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // Nobody could be told that stderr is closed.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
