//! `cargo xtask abi`: compares the two contracts, as the headers declare them and a C compiler lays
//! them out, with the baseline `tests/abi/baseline.txt`. Additions are accepted. Changes and removals
//! are refused, because they would break hosts and drivers that were compiled before. `--accept` makes
//! the present state the baseline.

mod header;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use clap::Args;

use crate::workspace::Workspace;
use header::{Declarations, Struct};

/// Options of the comparison.
#[derive(Args)]
pub(crate) struct Options {
    /// Make the present contracts the baseline, whatever changed
    #[arg(long)]
    accept: bool,
}

/// The headers of both contracts.
const HEADERS: [&str; 5] = [
    "base.h",
    "driver.h",
    "outrigger.h",
    "framework.h",
    "table.h",
];

/// The file of the baseline.
const BASELINE: &str = "tests/abi/baseline.txt";

/// The text at the top of the baseline.
const HEAD: &str = "\
# The binary interface of both contracts: numbers, layouts (bytes) and signatures. Compared by
# `cargo xtask abi`; written by `cargo xtask abi --accept`.
";

/// Structs that say no size, since they are elements of arrays or members of other structs (R1). They never change.
const FIXED: [&str; 8] = [
    "otr_address_range_t",
    "otr_argument_t",
    "otr_class_stats_t",
    "otr_scalar_t",
    "otr_stat_t",
    "otr_tensor_t",
    "otr_transfer_t",
    "otr_value_t",
];

/// Every fact of the interface by its name.
type Facts = BTreeMap<String, String>;

/// Compares, or accepts.
///
/// # Errors
/// If a header cannot be read or does not compile.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let present = facts(workspace)?;
    let lacking = unsized_structs(&present);
    ensure!(
        lacking.is_empty(),
        "structs that do not begin with `struct_size` or with an `ext` cannot grow (R1): {}",
        lacking.join(", ")
    );
    let path = workspace.path(BASELINE);
    if options.accept {
        let mut text = HEAD.to_owned();
        for (name, value) in &present {
            writeln!(text, "{name} = {value}")?;
        }
        fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
        println!("{BASELINE}: {} facts", present.len());
        return Ok(ExitCode::SUCCESS);
    }
    let text =
        fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let baseline = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            line.split_once(" = ")
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .with_context(|| format!("{BASELINE} has a line without a value: {line}"))
        })
        .collect::<anyhow::Result<Facts>>()?;
    let broken = breaks(&baseline, &present);
    for problem in &broken {
        println!("{problem}");
    }
    let added = present
        .keys()
        .filter(|name| !baseline.contains_key(*name))
        .count();
    if broken.is_empty() {
        println!(
            "abi: {} facts as they were, {added} are new",
            baseline.len()
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "abi: {} breaks. Old binaries would not run; if that is meant, raise the major number and run \
         `cargo xtask abi --accept`",
        broken.len()
    );
    Ok(ExitCode::FAILURE)
}

/// Changes that would break hosts or drivers which were compiled against the baseline.
fn breaks(baseline: &Facts, present: &Facts) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, old) in baseline {
        match present.get(name) {
            None => broken.push(format!("{name}: is gone (was {old})")),
            Some(new) if new == old => {}
            Some(new) if grows(name, old, new, baseline) => {}
            Some(new) => broken.push(format!("{name}: was {old}, is {new}")),
        }
    }
    // A new member must lie behind all that an old struct_size covers, padding too: else the other side
    // would take what an old host left there for a value.
    for (name, value) in present {
        let Some((owner, _)) = name
            .strip_prefix("member ")
            .and_then(|name| name.split_once('.'))
        else {
            continue;
        };
        let Some(old_size) = baseline.get(&format!("size {owner}")) else {
            continue;
        };
        let offset = value
            .split(' ')
            .nth(1)
            .and_then(|offset| offset.parse::<u64>().ok());
        if !baseline.contains_key(name) && offset < old_size.parse().ok() {
            broken.push(format!(
                "{name}: is new at {value}, within the {old_size} bytes of old binaries"
            ));
        }
    }
    broken
}

/// True where `name` is the size of a struct that says its own size, and it has grown.
fn grows(name: &str, old: &str, new: &str, baseline: &Facts) -> bool {
    let Some(owner) = name.strip_prefix("size ") else {
        return false;
    };
    let sizes = (old.parse::<u64>(), new.parse::<u64>());
    says_its_size(owner, baseline) && matches!(sizes, (Ok(old), Ok(new)) if new > old)
}

/// Whether a struct begins with its size. A record of a chain has it in its head.
fn says_its_size(owner: &str, facts: &Facts) -> bool {
    ["struct_size", "ext"].iter().any(|member| {
        facts
            .get(&format!("member {owner}.{member}"))
            .is_some_and(|place| place.starts_with("at 0 "))
    })
}

/// Structs that could never grow, though they are no elements of arrays.
fn unsized_structs(facts: &Facts) -> Vec<&str> {
    facts
        .keys()
        .filter_map(|name| name.strip_prefix("size "))
        .filter(|owner| !says_its_size(owner, facts) && !FIXED.contains(owner))
        .collect()
}

/// The facts of the contracts as they are.
fn facts(workspace: &Workspace) -> anyhow::Result<Facts> {
    let include = workspace.path("include");
    let mut all = Declarations::default();
    for name in HEADERS {
        let path = include.join("outrigger").join(name);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        all.add(&text).with_context(|| name.to_owned())?;
    }
    let mut facts = Facts::new();
    for (name, signature) in &all.signatures {
        facts.insert(format!("signature {name}"), signature.clone());
    }
    for line in measure(workspace, &all)?.lines() {
        let (name, value) = line.split_once(" = ").context("the probe prints facts")?;
        facts.insert(name.to_owned(), value.to_owned());
    }
    Ok(facts)
}

/// Numbers and layouts, as a C compiler tells them.
fn measure(workspace: &Workspace, all: &Declarations) -> anyhow::Result<String> {
    let folder = workspace.target("xtask/abi");
    fs::create_dir_all(&folder)?;
    let (source, program) = (folder.join("probe.c"), folder.join("probe"));
    fs::write(&source, probe(all)?)?;
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compiled = Command::new(&compiler)
        .args(["-std=c11", "-Wall", "-Werror", "-I"])
        .arg(workspace.path("include"))
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .with_context(|| format!("{compiler} could not be started: layouts are a C compiler's"))?;
    if !compiled.status.success() {
        bail!(
            "{} does not compile:\n{}",
            source.display(),
            String::from_utf8_lossy(&compiled.stderr)
        );
    }
    let output = Command::new(&program)
        .output()
        .context("the probe does not run")?;
    ensure!(
        output.status.success(),
        "the probe failed: {}",
        output.status
    );
    String::from_utf8(output.stdout).context("the probe prints text")
}

/// A program in C that prints every number and layout.
fn probe(all: &Declarations) -> anyhow::Result<String> {
    let mut c = "#include <outrigger/driver.h>\n#include <outrigger/table.h>\n#include <stdio.h>\n\
                 int main(void) {\n"
        .to_owned();
    for name in &all.numbers {
        writeln!(
            c,
            "  printf(\"number {name} = %lld\\n\", (long long)({name}));"
        )?;
    }
    for (name, Struct { members }) in &all.structs {
        writeln!(c, "  printf(\"size {name} = %zu\\n\", sizeof({name}));")?;
        writeln!(c, "  printf(\"align {name} = %zu\\n\", _Alignof({name}));")?;
        for (member, kind) in members {
            writeln!(
                c,
                "  printf(\"member {name}.{member} = at %zu of %zu bytes: %s\\n\", offsetof({name}, {member}), \
                 sizeof((({name}*)0)->{member}), \"{kind}\");"
            )?;
        }
    }
    c.push_str("  return 0;\n}\n");
    Ok(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts_of(lines: &[(&str, &str)]) -> Facts {
        lines
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn additions_are_fine_and_everything_else_is_not() {
        let old = [
            ("number OTR_A", "1"),
            ("signature otr_f", "void otr_f(int)"),
            ("size otr_s_t", "24"),
            (
                "member otr_s_t.struct_size",
                "at 0 of 8 bytes: size_t struct_size",
            ),
            ("member otr_s_t.b", "at 8 of 4 bytes: uint32_t b"),
            ("size otr_fixed_t", "8"),
            ("size otr_record_t", "32"),
            ("member otr_record_t.ext", "at 0 of 24 bytes: otr_ext_t ext"),
        ];
        let problems = |change: &[(&str, &str)], gone: Option<&str>| {
            let mut present = facts_of(&old);
            present.extend(facts_of(change));
            if let Some(gone) = gone {
                present.remove(gone);
            }
            breaks(&facts_of(&old), &present).len()
        };
        assert_eq!(problems(&[], None), 0);
        assert_eq!(
            problems(
                &[
                    ("number OTR_B", "2"),
                    ("signature otr_g", "void otr_g(void)")
                ],
                None
            ),
            0
        );
        let grown = ("size otr_s_t", "32");
        assert_eq!(
            problems(&[grown, ("member otr_s_t.c", "at 24 of 8 bytes: x")], None),
            0
        );
        // In the padding of the old struct.
        assert_eq!(
            problems(&[grown, ("member otr_s_t.c", "at 12 of 4 bytes: x")], None),
            1
        );
        assert_eq!(problems(&[("size otr_s_t", "16")], None), 1);
        assert_eq!(problems(&[("size otr_record_t", "40")], None), 0);
        assert_eq!(
            problems(&[("size otr_fixed_t", "16")], None),
            1,
            "it does not say its size"
        );
        assert_eq!(problems(&[("number OTR_A", "2")], None), 1);
        assert_eq!(
            problems(&[("signature otr_f", "void otr_f(long)")], None),
            1
        );
        assert_eq!(
            problems(
                &[("member otr_s_t.b", "at 12 of 4 bytes: uint32_t b")],
                None
            ),
            1
        );
        assert_eq!(problems(&[], Some("signature otr_f")), 1);
    }

    #[test]
    fn a_struct_says_its_size_or_is_an_element() {
        let facts = facts_of(&[
            ("size otr_s_t", "24"),
            ("member otr_s_t.struct_size", "at 0 of 8 bytes: x"),
            ("size otr_record_t", "32"),
            ("member otr_record_t.ext", "at 0 of 24 bytes: x"),
            ("size otr_tensor_t", "32"),
            ("size otr_new_t", "16"),
            ("member otr_new_t.a", "at 0 of 8 bytes: x"),
            ("size otr_late_t", "16"),
            ("member otr_late_t.struct_size", "at 8 of 8 bytes: x"),
        ]);
        assert_eq!(unsized_structs(&facts), ["otr_late_t", "otr_new_t"]);
    }
}
