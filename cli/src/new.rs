//! `outrigger new`: writes a folder with a driver in C that builds, loads and passes the conformance suite. Its device is
//! host memory, until a vendor puts another one in its place.
//!
//! The template is `examples/driver-c`, in which the word `example` must stand for nothing but the driver's name. The headers
//! go with it: the folder builds on machines that have nothing of Outrigger, against the contract that it was written for.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::Args;
use outrigger_conformance::report::quoted;

/// The options of `outrigger new`.
#[derive(Args)]
pub(crate) struct Options {
    /// The driver's name, as `acme`: it is found and shown by it
    #[arg(value_parser = name)]
    name: String,
    /// The folder to write; it is new or empty [default: a new one with the driver's name]
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

/// Files in which the name is filled in.
const TEMPLATE: [(&str, &str); 7] = [
    (
        ".github/workflows/conformance.yml",
        include_str!("../../examples/driver-c/.github/workflows/conformance.yml"),
    ),
    (
        ".gitignore",
        include_str!("../../examples/driver-c/.gitignore"),
    ),
    ("Makefile", include_str!("../../examples/driver-c/Makefile")),
    (
        "README.md",
        include_str!("../../examples/driver-c/README.md"),
    ),
    ("device.h", include_str!("../../examples/driver-c/device.h")),
    ("driver.c", include_str!("../../examples/driver-c/driver.c")),
    (
        "expect.toml",
        include_str!("../../examples/driver-c/expect.toml"),
    ),
];

/// The driver contract.
const HEADERS: [(&str, &str); 2] = [
    (
        "include/outrigger/base.h",
        include_str!("../../include/outrigger/base.h"),
    ),
    (
        "include/outrigger/driver.h",
        include_str!("../../include/outrigger/driver.h"),
    ),
];

/// The name of the template's driver.
const EXAMPLE: &str = "example";

/// Names of the project's own drivers, which are found first or beside.
const TAKEN: [&str; 3] = ["host", "cuda", "opencl"];

/// Characters of a name. It is part of texts of limited length.
const LONGEST: usize = 32;

fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !text.chars().all(plain)
        || !text.starts_with(|c: char| c.is_ascii_lowercase())
        || text.len() > LONGEST
    {
        return Err(format!(
            "a driver's name has lower-case letters, digits and underscores, a letter first, and at most {LONGEST} of them"
        ));
    }
    if TAKEN.contains(&text) {
        return Err("Outrigger has a driver of this name".to_owned());
    }
    Ok(text.to_owned())
}

/// Writes the folder, and says what to do in it.
///
/// # Errors
/// If there is something in the folder already, or it cannot be written; nothing of it is left then.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let name = &options.name;
    let folder = options.to.clone().unwrap_or_else(|| PathBuf::from(name));
    let shown = folder.display();
    let existed = match fs::read_dir(&folder) {
        Ok(mut entries) => {
            ensure!(
                entries.next().is_none(),
                "{shown} is not empty: name another folder by --to"
            );
            true
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fs::create_dir(&folder).with_context(|| format!("{shown} cannot be made"))?;
            false
        }
        Err(error) => {
            return Err(error).with_context(|| format!("{shown} is no folder that can be used"));
        }
    };
    if let Err(error) = write(name, &folder) {
        // The error says more than a second one from here would.
        let _ = fs::remove_dir_all(&folder);
        if existed {
            let _ = fs::create_dir(&folder);
        }
        return Err(error);
    }
    let program = match std::env::args().next() {
        // A program that was called by its path may be in no folder where make would find it by its name.
        Some(called) if called.contains('/') => {
            let program =
                std::env::current_exe().context("this program's own file is not known")?;
            // Once for this shell, and once for the one that make starts.
            let program = quoted(&program.display().to_string());
            format!(" {}", quoted(&format!("OUTRIGGER={program}")))
        }
        _ => String::new(),
    };
    let make = format!("make -C {}", quoted(&shown.to_string()));
    let text = format!(
        "{shown} has the driver {name}, whose device is host memory\n\
         to build it:                      {make}\n\
         to test its mandatory entries:    {make} check{program}\n\
         README.md there says in which order to put your device in its place\n"
    );
    // A reader that has closed the output does not want the rest.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(())
}

/// Writes all files below `folder`.
fn write(name: &str, folder: &Path) -> anyhow::Result<()> {
    let named = TEMPLATE.map(|(path, text)| (path, text.replace(EXAMPLE, name)));
    let as_they_are = HEADERS.map(|(path, text)| (path, text.to_owned()));
    for (path, text) in named.into_iter().chain(as_they_are) {
        let file = folder.join(path);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("{} cannot be made", parent.display()))?;
        }
        fs::write(&file, text).with_context(|| format!("{} cannot be written", file.display()))?;
    }
    Ok(())
}
