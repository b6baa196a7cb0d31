//! `cargo xtask gen`: makes the generated sources anew, or with `--check` only compares. They are
//! committed, so that a plain `cargo build` needs no generator. The generators are pinned in
//! xtask/Cargo.toml, behind the feature `gen`.

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Args;

use crate::environment;
use crate::r#gen;
use crate::workspace::Workspace;

/// How to generate.
#[derive(Args)]
pub(crate) struct Options {
    /// Write nothing; fail if a file differs from what would be written
    #[arg(long)]
    check: bool,
}

type Generator = fn(&Workspace) -> anyhow::Result<String>;

/// Every generated file and what makes its text.
const GENERATED: [(&str, Generator); 4] = [
    ("device/src/sys.rs", driver_bindings),
    // From what is written above.
    ("layers/src/entries.rs", layer_entries),
    ("ffi/src/table.rs", host_table),
    ("include/outrigger/outrigger.h", host_header),
];

/// Writes or compares all generated files.
///
/// # Errors
/// If a generator fails, or with `--check` if a file differs.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let mut differing = Vec::new();
    for (name, generate) in GENERATED {
        let path = workspace.path(name);
        let fresh = generate(workspace).with_context(|| format!("{name} cannot be generated"))?;
        let present = fs::read_to_string(&path).unwrap_or_default();
        if fresh == present {
            println!("    ok {name}");
        } else if options.check {
            println!("differs {name}: {}", first_difference(&present, &fresh));
            differing.push(name);
        } else {
            fs::write(&path, fresh).with_context(|| format!("{name} cannot be written"))?;
            println!(" wrote {name}");
        }
    }
    if !differing.is_empty() {
        bail!(
            "{} must be generated anew: cargo xtask gen",
            differing.join(", ")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The first line that is not the same, both ways.
fn first_difference(present: &str, fresh: &str) -> String {
    let (mut old, mut new) = (present.lines(), fresh.lines());
    let mut number = 1;
    loop {
        match (old.next(), new.next()) {
            (Some(a), Some(b)) if a == b => number += 1,
            (None, None) => return "the ends of lines".to_owned(),
            (a, b) => {
                let (a, b) = (a.unwrap_or("(end)"), b.unwrap_or("(end)"));
                return format!("line {number} is `{a}`, would be `{b}`");
            }
        }
    }
}

/// The text of `sys.rs`, with the libclang of the project's environment where the machine names no other.
fn driver_bindings(workspace: &Workspace) -> anyhow::Result<String> {
    let libclang = match std::env::var_os("LIBCLANG_PATH") {
        Some(_) => None,
        None => environment::libclang(workspace),
    };
    r#gen::driver_bindings(workspace.root(), libclang.as_deref())
}

/// The text of `entries.rs`.
fn layer_entries(workspace: &Workspace) -> anyhow::Result<String> {
    let sys = workspace.path("device/src/sys.rs");
    printed(workspace, "layer-entries", |command| command.arg(sys))
}

/// The text of `outrigger.h`.
fn host_header(workspace: &Workspace) -> anyhow::Result<String> {
    host_contract(workspace, &[])
}

/// The text of `table.rs`, with new functions behind those that it has.
fn host_table(workspace: &Workspace) -> anyhow::Result<String> {
    host_contract(workspace, &["--table"])
}

/// What this package's program `host-header` prints.
fn host_contract(workspace: &Workspace, flags: &[&str]) -> anyhow::Result<String> {
    let folder = workspace.target("xtask/header");
    printed(workspace, "host-header", |command| {
        command.arg(folder).args(flags)
    })
}

/// What a generator of this package prints.
fn printed(
    workspace: &Workspace,
    generator: &str,
    arguments: impl FnOnce(&mut Command) -> &mut Command,
) -> anyhow::Result<String> {
    let mut command = workspace.cargo(&["run", "--quiet", "--package", "xtask"]);
    command.args(["--features", "gen", "--bin", generator, "--"]);
    let output = arguments(&mut command)
        .env("RUST_BACKTRACE", "0") // its errors are for people
        .output()
        .context("Cargo could not be started")?;
    if !output.status.success() {
        bail!("{generator}:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).with_context(|| format!("{generator} wrote no text"))
}

/// Copies of generated headers as earlier versions had them.
const EARLIER: &str = "tests/abi/v";

/// True for the path, from the root, of a generated file, or of what was one.
pub(crate) fn is_generated(name: &str) -> bool {
    name.starts_with(EARLIER) && name.ends_with("/outrigger.h")
        || GENERATED.iter().any(|(generated, _)| *generated == name)
}
