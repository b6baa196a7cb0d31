//! Checks the order of the crates: a crate depends only on crates below it. Cargo refuses cycles; this
//! check refuses every dependency in the wrong direction.

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::workspace::Workspace;

/// All crates of the workspace, lowest layer first. A new crate is put in here, which is the moment to
/// think about where it belongs.
const LAYERS: [&str; 28] = [
    "outrigger-contract",
    "outrigger-driver-kit",
    "outrigger-driver-opencl",
    "outrigger-locks",
    "outrigger-store",
    "outrigger-device",
    "outrigger-handles",
    "outrigger-trace",
    "outrigger-layers",
    "outrigger-modules",
    "outrigger-tuner",
    "outrigger-dialect-driver",
    "outrigger-allocator",
    "outrigger-ops",
    "outrigger-device-ops",
    "outrigger-graph",
    "outrigger-hooks",
    "outrigger-ffi",
    "outrigger",
    "outrigger-conformance",
    "outrigger-library-driver",
    "outrigger-mutants",
    "outrigger-tests",
    "outrigger-soak",
    "outrigger-bench-alloc",
    "outrigger-cli",
    "outrigger-driver-cuda",
    "xtask",
];

/// Every dependency that points upwards, and every crate that has no place.
pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let output = workspace
        .cargo(&["metadata", "--no-deps", "--format-version=1"])
        .output()
        .context("Cargo could not be started")?;
    ensure!(output.status.success(), "cargo metadata failed");
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"]
        .as_array()
        .context("Cargo names no packages")?;
    Ok(packages.iter().flat_map(problems_of).collect())
}

fn problems_of(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let Some(layer) = layer_of(name) else {
        return vec![format!(
            "{name}: has no place in the order of layers (xtask/src/tidy/layers.rs)"
        )];
    };
    let dependencies = package["dependencies"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let names = dependencies
        .iter()
        .filter_map(|dependency| dependency["name"].as_str());
    names
        .filter(|dependency| layer_of(dependency).is_some_and(|other| other >= layer))
        .map(|dependency| format!("{name}: depends on {dependency}, which is not below it"))
        .collect()
}

fn layer_of(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_upwards_is_found() {
        let package = serde_json::json!({
            "name": "outrigger-ops",
            "dependencies": [{"name": "outrigger-device"}, {"name": "outrigger-hooks"}, {"name": "half"}],
        });
        assert_eq!(
            problems_of(&package),
            ["outrigger-ops: depends on outrigger-hooks, which is not below it"]
        );
    }

    #[test]
    fn a_crate_without_a_place_is_found() {
        assert_eq!(
            problems_of(&serde_json::json!({"name": "outrigger-new", "dependencies": []})).len(),
            1
        );
    }
}
