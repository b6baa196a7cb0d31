//! The floors of a crate: a file imports only from files on lower floors. ARCHITECTURE.md lists them, lowest first,
//! under a heading "Floors of `CRATE/src`", which is what this reads: the list is true or the check fails.
//!
//! A module that is not listed itself stands on the floor of the module that it is a part of.

use std::collections::BTreeMap;

use anyhow::Context;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Path, UseTree, Visibility};

use super::Source;

/// The page with the lists.
const PAGE: &str = "ARCHITECTURE.md";

/// Before the folder in a list's heading.
const HEADING: &str = "Floors of `";

/// Every import that points upwards or sideways, and every file without a floor.
pub(super) fn check(sources: &[Source]) -> anyhow::Result<Vec<String>> {
    let page = sources.iter().find(|source| source.name == PAGE);
    let page = page.with_context(|| format!("there is no {PAGE}"))?;
    let mut problems = Vec::new();
    for (folder, floors) in lists(&page.text) {
        let prefix = format!("{folder}/");
        let mut files = BTreeMap::new();
        let mut root = None;
        for source in sources.iter().filter(|source| source.is(&["rs"])) {
            let Some(name) = source.name.strip_prefix(&prefix) else {
                continue;
            };
            let parsed = syn::parse_file(&source.text)
                .with_context(|| format!("{} cannot be parsed", source.name))?;
            match name.trim_end_matches(".rs") {
                "lib" => root = Some(parsed),
                module => drop(files.insert(module.to_owned(), parsed)),
            }
        }
        let root = root.with_context(|| format!("{folder} has no lib.rs"))?;
        let house = House::new(&floors, &files, &root);
        problems.extend(house.check(&files).map(|text| format!("{prefix}{text}")));
    }
    Ok(problems)
}

/// The folders that have floors, and the modules on each, lowest first.
fn lists(page: &str) -> Vec<(String, Vec<Vec<String>>)> {
    let mut found = Vec::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let folder = line
            .starts_with('#')
            .then(|| line.split_once(HEADING)?.1.split_once('`'));
        let Some(Some((folder, _))) = folder else {
            continue;
        };
        let mut floors: Vec<Vec<String>> = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let numbered = line.split_once(". ").filter(|(number, _)| {
                !number.is_empty() && number.chars().all(|digit| digit.is_ascii_digit())
            });
            if let Some((_, names)) = numbered {
                // The names are before the words that explain them.
                let names = names.split_once(':').map_or(names, |(names, _)| names);
                floors.push(
                    names
                        .split('`')
                        .skip(1)
                        .step_by(2)
                        .map(str::to_owned)
                        .collect(),
                );
            }
        }
        found.push((folder.to_owned(), floors));
    }
    found
}

/// A crate as its list has it.
struct House<'a> {
    /// By module: the number of its floor.
    floors: BTreeMap<&'a str, usize>,
    /// Names that the root of the crate re-exports, and the modules that they are from.
    exports: BTreeMap<String, String>,
    files: Vec<&'a str>,
}

impl<'a> House<'a> {
    fn new(
        floors: &'a [Vec<String>],
        files: &'a BTreeMap<String, syn::File>,
        root: &syn::File,
    ) -> Self {
        let floors = floors.iter().enumerate();
        let floors = floors.flat_map(|(at, names)| names.iter().map(move |name| (&**name, at)));
        let mut house = Self {
            floors: floors.collect(),
            exports: BTreeMap::new(),
            files: files.keys().map(|name| &**name).collect(),
        };
        for item in &root.items {
            if let Item::Use(one) = item
                && !matches!(one.vis, Visibility::Inherited)
            {
                for path in leaves(&one.tree) {
                    if let Some(module) = house.module_of(&path)
                        && let Some(name) = path.last()
                    {
                        house.exports.insert(name.clone(), module.to_owned());
                    }
                }
            }
        }
        house
    }

    /// The file that a path from the root of the crate leads to.
    fn module_of(&self, path: &[String]) -> Option<&str> {
        let whole = path.join("/");
        let leads = |name: &&&str| {
            whole
                .strip_prefix(**name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let module = self
            .files
            .iter()
            .filter(leads)
            .max_by_key(|name| name.len());
        module
            .copied()
            .or_else(|| Some(self.exports.get(path.first()?)?))
    }

    /// The listed module that a file is or is a part of, and its floor.
    fn floor_of<'b>(&self, file: &'b str) -> Option<(&'b str, usize)> {
        let mut name = file;
        loop {
            if let Some(&floor) = self.floors.get(name) {
                return Some((name, floor));
            }
            name = name.rsplit_once('/')?.0;
        }
    }

    fn check(&self, files: &BTreeMap<String, syn::File>) -> impl Iterator<Item = String> {
        let listed = self
            .floors
            .keys()
            .filter(|name| !files.contains_key(**name));
        let mut problems: Vec<_> = listed
            .map(|name| format!("{name}.rs: is on a floor in {PAGE}, but there is no such file"))
            .collect();
        for (file, parsed) in files {
            let Some((unit, floor)) = self.floor_of(file) else {
                problems.push(format!("{file}.rs: has no floor in {PAGE}"));
                continue;
            };
            let mut imports = Imports::of(file);
            imports.visit_file(parsed);
            imports.paths.sort();
            imports.paths.dedup();
            for path in &imports.paths {
                let Some(target) = self.module_of(path) else {
                    continue;
                };
                match self.floor_of(target) {
                    Some((other, at)) if other != unit && at >= floor => {
                        let where_ = if at > floor {
                            "above it"
                        } else {
                            "on the same floor"
                        };
                        problems.push(format!(
                            "{file}.rs: imports {}, of {target}.rs, which stands {where_}",
                            path.join("::")
                        ));
                    }
                    _ => {}
                }
            }
        }
        problems.into_iter()
    }
}

/// The paths into its own crate that a file names, as segments from the root. Tests do not count.
struct Imports {
    module: Vec<String>,
    paths: Vec<Vec<String>>,
}

impl Imports {
    fn of(file: &str) -> Self {
        Self {
            module: file.split('/').map(str::to_owned).collect(),
            paths: Vec::new(),
        }
    }

    fn add(&mut self, path: &[String]) {
        let parents = path.iter().take_while(|one| *one == "super").count();
        let start = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super") => self.module[..self.module.len().saturating_sub(parents)].to_vec(),
            _ => return,
        };
        let rest = &path[parents.max(1)..];
        self.paths
            .push(start.into_iter().chain(rest.iter().cloned()).collect());
    }
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !module.attrs.iter().any(is_test) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        leaves(&item.tree).iter().for_each(|path| self.add(path));
    }

    // `pub(super)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast Path) {
        let segments = path.segments.iter().map(|one| one.ident.to_string());
        self.add(&segments.collect::<Vec<_>>());
        visit::visit_path(self, path);
    }
}

fn is_test(attribute: &Attribute) -> bool {
    let list = attribute.meta.require_list();
    attribute.path().is_ident("cfg") && list.is_ok_and(|list| list.tokens.to_string() == "test")
}

/// All paths of a `use`.
fn leaves(tree: &UseTree) -> Vec<Vec<String>> {
    let below = |name: &syn::Ident, tree: &UseTree| -> Vec<Vec<String>> {
        let with = |path: Vec<String>| std::iter::once(name.to_string()).chain(path).collect();
        leaves(tree).into_iter().map(with).collect()
    };
    match tree {
        UseTree::Path(path) => below(&path.ident, &path.tree),
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
        UseTree::Name(name) if name.ident == "self" => vec![Vec::new()],
        UseTree::Name(name) => vec![vec![name.ident.to_string()]],
        UseTree::Rename(name) => vec![vec![name.ident.to_string()]],
        UseTree::Glob(_) => vec![Vec::new()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
### Floors of `house/src`, lowest first

1. `cellar`: what all stand on.
2. `hall`, `hall/stairs`
3. `roof`

### Another part

1. `attic`
";

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let page = [(PAGE, LIST), ("house/src/lib.rs", "pub use hall::Hall;")];
        let files = page.iter().chain(files).map(|(name, text)| Source {
            name: (*name).to_owned(),
            text: (*text).to_owned(),
        });
        check(&files.collect::<Vec<_>>()).expect("it parses")
    }

    #[test]
    fn imports_downwards_and_of_its_own_parts_are_right() {
        let right = [
            (
                "house/src/cellar.rs",
                "use std::fmt; use outrigger_ops::roof;",
            ),
            (
                "house/src/hall.rs",
                "mod carpet; use crate::cellar::{self, Wine}; fn f() { carpet::g() }",
            ),
            (
                "house/src/hall/carpet.rs",
                "use super::Hall; use crate::cellar;",
            ),
            (
                "house/src/hall/stairs.rs",
                "use crate::cellar::Wine; pub(super) fn up() {}",
            ),
            (
                "house/src/roof.rs",
                "use crate::Hall; #[cfg(test)] mod tests { use crate::nothing; }",
            ),
        ];
        assert_eq!(problems(&right), [""; 0]);
    }

    #[test]
    fn imports_upwards_and_sideways_are_found() {
        let wrong = [
            (
                "house/src/cellar.rs",
                "use crate::{Hall, x::Y}; fn f() -> crate::roof::Tile { loop {} }",
            ),
            ("house/src/hall.rs", "use crate::hall::stairs::Step;"),
            ("house/src/hall/stairs.rs", "use super::Hall;"),
            ("house/src/shed.rs", ""),
        ];
        assert_eq!(
            problems(&wrong),
            [
                "house/src/roof.rs: is on a floor in ARCHITECTURE.md, but there is no such file",
                "house/src/cellar.rs: imports Hall, of hall.rs, which stands above it",
                "house/src/hall.rs: imports hall::stairs::Step, of hall/stairs.rs, which stands on the same floor",
                "house/src/hall/stairs.rs: imports hall::Hall, of hall.rs, which stands on the same floor",
                "house/src/shed.rs: has no floor in ARCHITECTURE.md",
            ]
        );
    }
}
