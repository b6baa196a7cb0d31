//! `outrigger`, the command line: parses it, and says what went wrong. Each command is a module.
//!
//! It must never print anywhere else than here and in the command that was asked for.

mod info;
mod memory;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "outrigger",
    version,
    about = "Looks into Outrigger: its memory, its devices"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the drivers, what they offer, and their devices
    Info(info::Options),
    /// Draws a trace or a snapshot of memory as one HTML page
    Memory(memory::Options),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Info(options) => info::run(&options),
        Command::Memory(options) => memory::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
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
