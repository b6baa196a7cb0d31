//! Operators by name and by number.

use std::collections::HashSet;

use outrigger_ops::OperatorId;

#[test]
fn operators_of_the_catalog_are_found_by_their_names_and_by_what_they_serve() {
    let mut names = HashSet::new();
    for id in OperatorId::all() {
        let entry = id.entry().expect("it is of the catalog");
        for name in std::iter::once(&entry.name).chain(entry.serves) {
            assert!(names.insert(*name), "{name:?} stands in the catalog twice");
            assert_eq!(OperatorId::find(name), Some(id));
        }
        assert_eq!(OperatorId::from_index(id.index()), Some(id));
        assert_eq!(id.name(), entry.name);
    }
    assert_eq!(OperatorId::find(c"no such operator"), None);
    assert_eq!(OperatorId::from_index(u32::MAX), None);
}

#[test]
fn operators_of_a_framework_get_a_number_of_their_own() {
    let one = OperatorId::find(c"aten::grid_sampler_2d").expect("a schema name");
    let other = OperatorId::find(c"mine::grid_sampler_2d").expect("a schema name");
    assert_ne!(one, other);
    assert_eq!(OperatorId::find(c"aten::grid_sampler_2d"), Some(one));
    assert_eq!(one.name(), c"aten::grid_sampler_2d");
    assert_eq!(OperatorId::from_index(one.index()), Some(one));
    assert!(one.entry().is_none());
    assert_eq!(OperatorId::from_index(one.index() + 4000), None);
}
