//! Gives the suite a hash of its own sources, so that a report says which versions of the tests its ids
//! mean.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let source = root.join("src");
    println!("cargo:rerun-if-changed={}", source.display());
    let mut files = Vec::new();
    collect(&source, &mut files);
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let name = file.strip_prefix(&root).unwrap_or(&file);
        let text = std::fs::read(&file)
            .unwrap_or_else(|error| panic!("{} cannot be read: {error}", file.display()));
        hash.update(name.to_string_lossy().as_bytes());
        hash.update([0]);
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    let digits: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    println!("cargo:rustc-env=OUTRIGGER_SUITE_SOURCES={digits}");
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{} cannot be listed: {error}", folder.display()));
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}
