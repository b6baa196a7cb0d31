//! The table of `docs/operators.md` and the registry have the same operators.

use std::collections::BTreeSet;

use outrigger_ops::OperatorId;

#[test]
fn the_table_lists_what_the_registry_has() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operators.md");
    let text = std::fs::read_to_string(path).expect("docs/operators.md stands in the repository");
    let listed: Vec<String> = text
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned()))
        .collect();
    let names: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(names.len(), listed.len(), "an operator is listed twice");
    let known: BTreeSet<_> = OperatorId::all()
        .map(|id| id.name().to_string_lossy().into_owned())
        .collect();
    let unlisted: Vec<_> = known.difference(&names).collect();
    let unknown: Vec<_> = names.difference(&known).collect();
    assert!(
        unlisted.is_empty() && unknown.is_empty(),
        "not listed {unlisted:?}, unknown {unknown:?}"
    );
    for id in OperatorId::all() {
        assert_eq!(OperatorId::find(id.name()), Some(id));
        assert_eq!(OperatorId::from_index(id.index()), Some(id));
    }
    assert_eq!(OperatorId::find(c"no such operator"), None);
    assert_eq!(OperatorId::from_index(u32::MAX), None);
}
