//! The chores of the project: `cargo xtask --help` lists them. This module only parses the command
//! line; each chore is a module.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to a person"
)]

mod abi;
mod bench;
mod demo;
mod disk;
mod dist;
mod environment;
mod freeze;
mod fuzz;
mod generate;
mod gpu_pack;
mod hosts;
mod native;
mod opencl;
mod planted;
mod python;
mod setup;
mod shell;
mod soak;
mod suites;
mod tidy;
mod wheel;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    version,
    about = "The chores of Outrigger"
)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Train two real models in stock PyTorch on an Outrigger device and compare them with CPU tensors
    Demo(demo::Options),
    /// Run every test of the project, or some suites of them
    Test(suites::Options),
    /// Measure, against peers in the same run
    Bench(bench::Options),
    /// Regenerate the generated sources: driver bindings and headers
    Gen(generate::Options),
    /// Pack library, headers, command line and examples into an archive for C and C++ hosts
    Dist(dist::Options),
    /// Pack the wheels that pip installs: the devices in PyTorch, and the command line
    Wheel(wheel::Options),
    /// Pack a folder that tries Outrigger on a machine with an NVIDIA GPU and no network
    GpuPack(gpu_pack::Options),
    /// Search for inputs that break readers or the C ABI
    Fuzz(fuzz::Options),
    /// Call the host contract at random from many threads, with injected faults
    Soak(soak::Options),
    /// Plant known defects, one at a time, and say which tests notice; list them
    Planted(planted::Options),
    /// Compare the binary interface of both contracts with the baseline
    Abi(abi::Options),
    /// Keep the driver contract as it is now, with a driver that was compiled against it
    Freeze(freeze::Options),
    /// Check the invariants that ARCHITECTURE.md states
    Tidy,
    /// Run a Python where the wheel is installed: `cargo xtask python -- -c 'import torch'`
    Python(python::Options),
}

fn main() -> ExitCode {
    let outcome = Workspace::find().and_then(|workspace| match Cli::parse().chore {
        Chore::Demo(options) => demo::run(&workspace, &options),
        Chore::Test(options) => suites::run(&workspace, &options),
        Chore::Bench(options) => bench::run(&workspace, &options),
        Chore::Gen(options) => generate::run(&workspace, &options),
        Chore::Dist(options) => dist::run(&workspace, &options),
        Chore::Wheel(options) => wheel::run(&workspace, &options),
        Chore::GpuPack(options) => gpu_pack::run(&workspace, &options),
        Chore::Fuzz(options) => fuzz::run(&workspace, &options),
        Chore::Soak(options) => soak::run(&workspace, &options),
        Chore::Planted(options) => planted::run(&workspace, &options),
        Chore::Abi(options) => abi::run(&workspace, &options),
        Chore::Freeze(options) => freeze::run(&workspace, &options),
        Chore::Tidy => tidy::run(&workspace),
        Chore::Python(options) => python::run(&workspace, &options),
    });
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
