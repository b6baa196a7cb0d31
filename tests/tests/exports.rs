//! The exports of the built library: every function of the C ABI goes through the panic guard, nothing
//! else is exported, and the header declares exactly what the library has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol};

use super::library_folder;

/// The exports that cannot fail or panic: they read or free what they are given, or hand out a constant, and have no
/// guard.
const UNGUARDED: [&str; 10] = [
    "otr_host_api",
    "otr_status_code",
    "otr_status_free",
    "otr_status_message",
    "otr_status_new",
    "otr_status_operator",
    "otr_status_stream",
    "otr_status_submission",
    "otr_string_free",
    "otr_version",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("a workspace member")
        .to_owned()
}

fn exported() -> BTreeSet<String> {
    let bytes = std::fs::read(library_folder().join("liboutrigger.so")).expect("readable");
    let file = object::File::parse(&*bytes).expect("a shared library");
    file.dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
        .collect()
}

/// The sources in a folder and in those within it.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of the crate");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .collect()
}

/// Functions that the macro `api!` declares, and those that are declared without it.
fn declared() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut guarded, mut bare) = (BTreeSet::new(), BTreeSet::new());
    for path in sources(&root().join("ffi/src")) {
        let text = std::fs::read_to_string(path).expect("source");
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("    fn otr_") {
                guarded.insert(format!("otr_{}", rest.split('(').next().expect("a name")));
            }
            for prefix in ["pub unsafe extern \"C\" fn ", "pub extern \"C\" fn "] {
                if let Some(rest) = line.strip_prefix(prefix) {
                    bare.insert(rest.split('(').next().expect("a name").to_owned());
                }
            }
        }
    }
    (guarded, bare)
}

#[test]
fn every_export_is_guarded_and_declared_in_the_header() {
    let (guarded, bare) = declared();
    assert_eq!(
        bare,
        UNGUARDED.map(str::to_owned).into(),
        "declare it with api!"
    );
    let exported: BTreeSet<_> = exported()
        .into_iter()
        .filter(|name| name.starts_with("otr_"))
        .collect();
    let declared: BTreeSet<_> = guarded.union(&bare).cloned().collect();
    assert_eq!(
        exported, declared,
        "exported on the left, declared in ffi/ on the right"
    );
    let headers = ["outrigger.h", "framework.h", "table.h"].map(|name| {
        let path = root().join("include/outrigger").join(name);
        (name, std::fs::read_to_string(path).expect("a header"))
    });
    for name in &declared {
        let having = headers
            .iter()
            .filter(|(_, header)| header.contains(&format!("{name}(")));
        let having: Vec<_> = having.map(|(header, _)| *header).collect();
        let right = match name.as_str() {
            "otr_host_api" => "table.h",
            _ if of_frameworks(name) => "framework.h",
            _ => "outrigger.h",
        };
        assert_eq!(having, [right], "the headers that declare {name}");
    }
}

/// True for an export in the folder of those that frameworks alone need.
fn of_frameworks(name: &str) -> bool {
    let sources = sources(&root().join("ffi/src/framework"));
    sources.iter().any(|path| {
        let text = std::fs::read_to_string(path).expect("source");
        text.contains(&format!("    fn {name}("))
    })
}

#[test]
fn nothing_else_is_exported() {
    let foreign: Vec<_> = exported()
        .into_iter()
        // The C++ bridge and its runtime have names of their own.
        .filter(|name| !name.starts_with("otr_") && !name.contains("cxxbridge1"))
        .filter(|name| name != "rust_eh_personality")
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}
