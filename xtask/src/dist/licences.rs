//! The licences of all packages that are linked into the library and the command line, from Cargo's
//! metadata and from the files of the packages. It must never leave a package out silently: a package
//! without a licence is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::workspace::Workspace;

/// The packages whose dependencies are linked.
const PRODUCTS: [&str; 2] = ["outrigger", "outrigger-cli"];

/// A package that is linked.
pub(super) struct Package {
    pub(super) name: String,
    version: String,
    licence: Option<String>,
    repository: String,
    /// The folder of the package's sources.
    pub(super) folder: PathBuf,
}

/// A text with the licences of all packages of others that are linked.
///
/// # Errors
/// If Cargo cannot tell, or a package has no licence.
pub(super) fn of_what_is_linked(workspace: &Workspace) -> anyhow::Result<String> {
    let mut summary = "What is linked into Outrigger, and its licences\n\n".to_owned();
    // Many packages have the same text: each is told once.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages(workspace)? {
        let Package {
            name,
            version,
            repository,
            ..
        } = &package;
        let licence = package
            .licence
            .as_ref()
            .with_context(|| format!("{name} {version} states no licence"))?;
        writeln!(summary, "{name} {version}: {licence}  {repository}")?;
        for text in licence_files(&package.folder)? {
            texts
                .entry(text)
                .or_default()
                .push(format!("{name} {version}"));
        }
    }
    for (text, users) in texts {
        write!(
            summary,
            "\n\n==== {} ====\n\n{}\n",
            users.join(", "),
            text.trim_end()
        )?;
    }
    Ok(summary)
}

/// All packages of others that are linked on this machine, sorted by name.
///
/// # Errors
/// If Cargo cannot tell.
pub(super) fn packages(workspace: &Workspace) -> anyhow::Result<Vec<Package>> {
    let output = workspace
        .cargo(&["metadata", "--format-version=1", "--filter-platform"])
        .arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
        .output()
        .context("Cargo could not be started")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let known: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (text(&package["id"]), package))
        .collect();
    let edges: BTreeMap<String, Vec<Value>> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|node| (text(&node["id"]), list(&node["deps"])))
        .collect();
    let mut open: Vec<String> = known
        .iter()
        .filter(|(_, package)| PRODUCTS.iter().any(|name| package["name"] == *name))
        .map(|(id, _)| id.clone())
        .collect();
    let mut linked = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !linked.insert(id.clone()) {
            continue;
        }
        for edge in edges.get(&id).into_iter().flatten() {
            // Normal dependencies have the kind null; those of builds and tests are not linked.
            if list(&edge["dep_kinds"])
                .iter()
                .any(|kind| kind["kind"].is_null())
            {
                open.push(text(&edge["pkg"]));
            }
        }
    }
    let mut packages: Vec<Package> = linked
        .iter()
        .filter_map(|id| known.get(id))
        .filter(|package| !package["source"].is_null()) // ours have none
        .map(|package| Package {
            name: text(&package["name"]),
            version: text(&package["version"]),
            licence: package["license"].as_str().map(str::to_owned),
            repository: text(&package["repository"]),
            folder: Path::new(&text(&package["manifest_path"]))
                .parent()
                .map(Path::to_owned)
                .unwrap_or_default(),
        })
        .collect();
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(packages)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The texts of the files in `folder` that are about licences.
fn licence_files(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| format!("{} cannot be read", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .to_uppercase();
            let about = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];
            path.is_file() && about.iter().any(|start| name.starts_with(start))
        })
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| {
            fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
        })
        .collect()
}
