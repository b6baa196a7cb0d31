//! `cargo xtask dist`: packs library, headers, command line, CMake and pkg-config files, examples and
//! licences into one archive that works wherever it is unpacked. It packs only what this run has built,
//! and must never write a path of this machine into it.

mod licences;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::Value;

use crate::native::PROGRAMS;
use crate::shell;
use crate::workspace::Workspace;

/// Options of the archive.
#[derive(Args)]
pub(crate) struct Options {
    /// Folder that the archive is written to
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Pack an unoptimized build: large and slow, but quickly made
    #[arg(long)]
    debug: bool,
}

/// Files that go in as they lie in the repository: from, to.
const COPIED: [(&str, &str); 11] = [
    ("include/outrigger", "include/outrigger"),
    ("LICENSE-APACHE", "share/outrigger/LICENSE-APACHE"),
    ("LICENSE-MIT", "share/outrigger/LICENSE-MIT"),
    (
        "examples/graph-c/graph.c",
        "share/outrigger/examples/graph-c/graph.c",
    ),
    (
        "examples/graph-c/CMakeLists.txt",
        "share/outrigger/examples/graph-c/CMakeLists.txt",
    ),
    ("examples/graph-cpp", "share/outrigger/examples/graph-cpp"),
    ("examples/hello-cpp", "share/outrigger/examples/hello-cpp"),
    (
        "examples/operators-c",
        "share/outrigger/examples/operators-c",
    ),
    ("examples/mlp-cpp", "share/outrigger/examples/mlp-cpp"),
    (
        "tests/drivers/dispatcher.c",
        "share/outrigger/tests/drivers/dispatcher.c",
    ),
    (
        "packaging/OutriggerConfig.cmake",
        "lib/cmake/Outrigger/OutriggerConfig.cmake",
    ),
];

/// The pages for those who write drivers and hosts, in the folder `docs`.
const PAGES: [&str; 15] = [
    "allocator.md",
    "command-line.md",
    "conformance.md",
    "device-code.md",
    "driver-mapping.md",
    "drivers.md",
    "environment.md",
    "graphs.md",
    "graph.svg",
    "hosts.md",
    "layers.md",
    "memory-page.png",
    "memory.md",
    "operators.md",
    "stability.md",
];

/// The drivers that are libraries of their own: packages, and files.
const DRIVERS: [(&str, &str); 2] = [
    (
        "--package=outrigger-driver-opencl",
        "liboutrigger_opencl.so",
    ),
    ("--package=outrigger-driver-cuda", "liboutrigger_cuda.so"),
];

/// Files that go in with the version filled in: from, to.
const FILLED: [(&str, &str); 3] = [
    (
        "packaging/OutriggerConfigVersion.cmake.in",
        "lib/cmake/Outrigger/OutriggerConfigVersion.cmake",
    ),
    ("packaging/outrigger.pc.in", "lib/pkgconfig/outrigger.pc"),
    ("packaging/README.md", "README.md"),
];

/// Builds and packs; prints where the archive is.
///
/// # Errors
/// If something does not build, or the archive cannot be written.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| workspace.target("dist"));
    let archive = pack(workspace, &out, options.debug)?;
    let size = fs::metadata(&archive)?.len();
    println!("{} ({:.1} MB)", archive.display(), size as f64 / 1e6);
    Ok(ExitCode::SUCCESS)
}

/// Builds, and packs into `out`; the path of the archive.
///
/// # Errors
/// As [`run`].
pub(crate) fn pack(workspace: &Workspace, out: &Path, debug: bool) -> anyhow::Result<PathBuf> {
    let (profile, built) = if debug {
        ("dev", "debug")
    } else {
        ("release", "release")
    };
    let mut build = workspace.cargo(&["build", "--profile", profile]);
    build.args(PROGRAMS);
    shell::step(workspace, "building library and command line", &mut build)?;

    let name = format!("outrigger-{}-{}", version(), target());
    let folder = out.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("{} cannot be removed", folder.display()))?;
    }
    let built = workspace.target(built);
    copy(
        &built.join("liboutrigger.so"),
        &folder.join("lib/liboutrigger.so"),
    )?;
    copy(&built.join("outrigger"), &folder.join("bin/outrigger"))?;
    for (_, driver) in DRIVERS {
        copy(&built.join(driver), &folder.join("lib").join(driver))?;
    }
    for (from, to) in COPIED {
        copy(&workspace.path(from), &folder.join(to))?;
    }
    // With the headers that it is built against, as every driver has them that is begun so.
    let example = folder.join("share/outrigger/examples/driver-c");
    let mut new = Command::new(folder.join("bin/outrigger"));
    new.args(["new", "example", "--to"]).arg(&example);
    shell::step(workspace, "writing the driver to begin with", &mut new)?;
    for (from, to) in FILLED {
        let text = fs::read_to_string(workspace.path(from)).with_context(|| from.to_owned())?;
        write(&folder.join(to), &text.replace("@VERSION@", version()))?;
    }
    let pages = folder.join("share/outrigger/doc");
    for page in PAGES {
        copy(&workspace.path("docs").join(page), &pages.join(page))?;
    }
    for page in PAGES.iter().filter(|page| page.ends_with(".md")) {
        let text = fs::read_to_string(pages.join(page))?;
        write(&pages.join(page), &with_links(&text, &pages))?;
    }
    bridge(workspace, profile, &folder)?;
    let third_party = licences::of_what_is_linked(workspace)?;
    write(
        &folder.join("share/outrigger/THIRD-PARTY.txt"),
        &third_party,
    )?;

    let archive = out.join(format!("{name}.tar.gz"));
    // The same contents make the same archive.
    let mut tar = Command::new("tar");
    tar.args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mtime=@0",
    ])
    .arg("-czf")
    .arg(&archive)
    .arg("-C")
    .arg(out)
    .arg(&name);
    shell::step(workspace, "packing", &mut tar)?;
    Ok(archive)
}

/// The version of everything that is packed.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// For which machines, as the name of the archive has it.
fn target() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

/// Headers and sources of the cxx bridge, which its generator has left in Cargo's folders.
fn bridge(workspace: &Workspace, profile: &str, folder: &Path) -> anyhow::Result<()> {
    // All is built: this only asks where.
    let output = workspace
        .cargo(&["build", "--profile", profile, "--message-format=json"])
        .args(PROGRAMS)
        .output()
        .context("Cargo could not be started")?;
    let generated = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "build-script-executed")
        .filter_map(|message| Some(Path::new(message["out_dir"].as_str()?).join("cxxbridge")))
        .find(|folder| folder.join("include/outrigger/src/bridge.rs.h").exists())
        .context("the build of the bridge has left no headers")?;
    let sources = folder.join("share/outrigger/bridge");
    for (from, to) in [
        (
            "include/outrigger/src/bridge.rs.h",
            folder.join("include/outrigger/src/bridge.rs.h"),
        ),
        ("include/rust/cxx.h", folder.join("include/rust/cxx.h")),
        (
            "sources/outrigger/src/bridge.rs.cc",
            sources.join("bridge.rs.cc"),
        ),
    ] {
        copy(&generated.join(from), &to)?;
    }
    let cxx = licences::packages(workspace)?
        .into_iter()
        .find(|package| package.name == "cxx")
        .context("the bridge depends on cxx")?;
    // The file includes its header by a path of its own repository.
    let runtime = fs::read_to_string(cxx.folder.join("src/cxx.cc"))?;
    let there = "#include \"../include/cxx.h\"";
    ensure!(
        runtime.contains(there),
        "cxx.cc no longer has the line {there}"
    );
    write(
        &sources.join("cxx.cc"),
        &runtime.replace(there, "#include <rust/cxx.h>"),
    )
}

/// A page as it stands in `folder` of the archive: a link to the headers finds them there, and of a link to what the archive
/// does not have the text is left.
fn with_links(page: &str, folder: &Path) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some(middle) = rest.find("](") {
        let (before, behind) = (&rest[..middle], &rest[middle + 2..]);
        let (Some(open), Some(end)) = (before.rfind('['), behind.find(')')) else {
            break;
        };
        let target = &behind[..end];
        let file = target.split('#').next().unwrap_or_default();
        let header = target.strip_prefix("../include/");
        text.push_str(&before[..open]);
        if let Some(header) = header {
            text.push_str(&format!("{}](../../../include/{header})", &before[open..]));
        } else if target.contains("://") || file.is_empty() || folder.join(file).exists() {
            text.push_str(&format!("{}]({target})", &before[open..]));
        } else {
            text.push_str(&before[open + 1..]);
        }
        rest = &behind[end + 1..];
    }
    text.push_str(rest);
    text
}

/// Copies a file, or a folder with all that git would take of it.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if !from.is_dir() {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        return fs::copy(from, to)
            .map(drop)
            .with_context(|| format!("{} cannot be copied to {}", from.display(), to.display()));
    }
    let listed = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(from)
        .output()
        .context("git could not be started: what it knows is packed")?;
    ensure!(
        listed.status.success(),
        "git ls-files failed in {}",
        from.display()
    );
    let names = String::from_utf8(listed.stdout).context("a file name is not UTF-8")?;
    for name in names.split_terminator('\0') {
        copy(&from.join(name), &to.join(name))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_a_page_lead_somewhere_in_the_archive() {
        let folder = Workspace::find().expect("the repository").path("docs");
        let page = "See [`base.h`](../include/outrigger/base.h), [it](drivers.md#test-it),\n[the kit](../nowhere/kit) and \
                    [this](https://example.org/a).";
        assert_eq!(
            with_links(page, &folder),
            "See [`base.h`](../../../include/outrigger/base.h), [it](drivers.md#test-it),\nthe kit and \
             [this](https://example.org/a)."
        );
    }
}
