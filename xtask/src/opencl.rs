//! The OpenCL that a program finds. The loader of OpenCL takes all implementations that the system has installed; the
//! environment variables of this module make it take one.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::environment;
use crate::workspace::Workspace;

/// Intel's OpenCL for CPUs. Versions are pinned, so that two runs can be compared.
const INTEL: &[&str] = &["intel-opencl-rt==2026.2.0", "intel-cmplr-lib-rt==2026.2.0"];

/// The variable with the folders of libraries.
pub(crate) const LIBRARIES: &str = "LD_LIBRARY_PATH";

/// Environment variables of a program.
pub(crate) type Environment = BTreeMap<&'static str, String>;

/// True if the system has Intel's OpenCL.
pub(crate) fn has_intel() -> bool {
    let entries = fs::read_dir("/etc/OpenCL/vendors");
    entries.is_ok_and(|entries| {
        let mut names = entries.flatten().map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().contains("intel"))
    })
}

/// Installs Intel's OpenCL for CPUs below the target folder; the variables that make a program find it and no other.
///
/// # Errors
/// If it cannot be fetched from PyPI; the message is one line.
pub(crate) fn intel(workspace: &Workspace) -> anyhow::Result<Environment> {
    let folder = workspace.target("xtask/intel-opencl");
    environment::ensure_packages(workspace, &folder, INTEL)?;
    let libraries = folder.join("lib");
    let library = libraries.join("libintelocl.so");
    ensure!(library.is_file(), "{} was not installed", library.display());
    let vendors = vendors(&folder.join("vendors"), library.as_os_str())?;
    Ok(environment(&vendors, &libraries))
}

/// Makes a folder with the one entry from which the loader takes an implementation.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn vendors(folder: &Path, library: &OsStr) -> anyhow::Result<PathBuf> {
    let entry = folder.join("outrigger.icd");
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&entry, format!("{}\n", library.display())))
        .with_context(|| format!("{} cannot be written", entry.display()))?;
    Ok(folder.to_owned())
}

/// The variables that make the loader take the implementations of the folder `vendors` and nothing else.
pub(crate) fn environment(vendors: &Path, libraries: &Path) -> Environment {
    BTreeMap::from([
        ("OCL_ICD_VENDORS", vendors.display().to_string()),
        (LIBRARIES, libraries.display().to_string()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_implementation_is_chosen_by_its_entry() -> anyhow::Result<()> {
        let folder = std::env::temp_dir().join(format!("outrigger-opencl-{}", std::process::id()));
        let vendors = vendors(&folder, "libacme.so".as_ref())?;
        let entries: Vec<_> = fs::read_dir(&vendors)?.collect::<Result<_, _>>()?;
        assert_eq!(entries.len(), 1, "the loader takes every entry");
        assert_eq!(fs::read_to_string(entries[0].path())?, "libacme.so\n");
        let chosen = environment(&vendors, Path::new("/lib/acme"));
        assert_eq!(chosen["OCL_ICD_VENDORS"], folder.display().to_string());
        assert_eq!(chosen["LD_LIBRARY_PATH"], "/lib/acme");
        fs::remove_dir_all(&folder)?;
        Ok(())
    }
}
