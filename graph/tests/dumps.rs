//! Dumps of random graphs with hostile labels are valid in their formats. A JSON parser, an XML parser and a reader of
//! the used part of Graphviz's language read them back.

use std::collections::BTreeSet;
use std::sync::Arc;

use outrigger_graph::{Access, Buffer, Dag, Kind, NodeId, NodeSpec};
use proptest::collection::vec;
use proptest::prelude::*;

const KINDS: [Kind; 8] = [
    Kind::Kernel,
    Kind::Copy,
    Kind::Fill,
    Kind::Host,
    Kind::Empty,
    Kind::Alloc,
    Kind::Free,
    Kind::Conditional,
];

fn text() -> impl Strategy<Value = String> {
    let hostile = "\"\\<>&'\n\t\u{1}\u{1b}\u{7f}\u{fffe};[]{}->ä字n";
    let hostile: Vec<char> = hostile.chars().collect();
    let chars = prop_oneof![proptest::sample::select(hostile), any::<char>()];
    vec(chars, 0..40).prop_map(|chars| chars.into_iter().filter(|&c| c != '\0').collect())
}

fn graph() -> impl Strategy<Value = Dag<()>> {
    let node = (
        proptest::sample::select(&KINDS[..]),
        text(),
        proptest::option::of(text()),
        0..3u32,
        any::<bool>(),
        vec(any::<u32>(), 0..3),
    );
    vec(node, 0..12).prop_map(|nodes| {
        let mut graph = Dag::default();
        let buffer = graph.add_buffer(Buffer {
            address: 0x1000,
            size: 64,
            transient: true,
        });
        for (id, (kind, label, scope, cost_ns, effects, deps)) in nodes.into_iter().enumerate() {
            let spec = NodeSpec {
                kind,
                label: label.into(),
                scope: scope.map(Arc::from),
                cost_ns,
                effects,
                command: (),
            };
            let deps: BTreeSet<NodeId> = match id {
                0 => BTreeSet::new(),
                _ => deps.iter().map(|dep| dep % id as u32).collect(),
            };
            let deps: Vec<_> = deps.into_iter().collect();
            let access = Access {
                buffer,
                reads: true,
                writes: true,
            };
            graph.add(0, spec, &deps, &[access]).expect("all is known");
        }
        graph
    })
}

/// The shape of a graph: its edges as (from, to), and its nodes.
type Shape = (BTreeSet<u32>, BTreeSet<(u32, u32)>);

fn shape(graph: &Dag<()>) -> Shape {
    let nodes = graph.nodes().map(|(id, _)| id).collect();
    let edges = graph
        .nodes()
        .flat_map(|(id, node)| graph.deps(node).iter().map(move |&dep| (dep, id)))
        .collect();
    (nodes, edges)
}

/// A token of Graphviz's language: a name, a string without its quotes, or a sign.
#[derive(Clone, Debug, PartialEq)]
enum Word {
    Name(String),
    Text(String),
    Sign(&'static str),
}

fn words(dot: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = dot;
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_whitespace() {
            rest = &rest[1..];
        } else if let Some(sign) = ["->", "{", "}", "[", "]", "=", ",", ";"]
            .into_iter()
            .find(|sign| rest.starts_with(sign))
        {
            words.push(Word::Sign(sign));
            rest = &rest[sign.len()..];
        } else if first == '"' {
            let (mut value, mut chars) = (String::new(), rest[1..].char_indices());
            let end = loop {
                match chars.next() {
                    Some((at, '"')) => break at,
                    Some((_, '\\')) => value.extend(chars.next().map(|(_, next)| next)),
                    Some((_, other)) => value.push(other),
                    None => return Err(format!("a string without end: {rest}")),
                }
            };
            words.push(Word::Text(value));
            rest = &rest[end + 2..];
        } else {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            if end == 0 {
                return Err(format!("what is this: {rest}"));
            }
            words.push(Word::Name(rest[..end].to_owned()));
            rest = &rest[end..];
        }
    }
    Ok(words)
}

/// Reads `digraph "name" { statements }`, and returns the shape and the labels.
fn read_dot(dot: &str) -> Result<(Shape, Vec<String>), String> {
    use Word::{Name, Sign, Text};
    let words = words(dot)?;
    let [Name(digraph), Text(_), Sign("{"), body @ .., Sign("}")] = &words[..] else {
        return Err("it is no digraph with a body".to_owned());
    };
    if digraph != "digraph" {
        return Err(format!("{digraph} is not digraph"));
    }
    let id = |name: &str| -> Result<u32, String> {
        let number = name
            .strip_prefix('n')
            .and_then(|digits| digits.parse().ok());
        number.ok_or_else(|| format!("{name} is not a node"))
    };
    let mut shape = Shape::default();
    let mut labels = Vec::new();
    let mut statements = body.split(|word| *word == Sign(";"));
    // The text after the last semicolon.
    if statements.next_back().is_some_and(|rest| !rest.is_empty()) {
        return Err("a statement without end".to_owned());
    }
    for statement in statements {
        match statement {
            [Name(from), Sign("->"), Name(to)] => {
                shape.1.insert((id(from)?, id(to)?));
            }
            [Name(name), Sign("["), attributes @ .., Sign("]")] => {
                for attribute in attributes.split(|word| *word == Sign(",")) {
                    let [Name(key), Sign("="), Name(value) | Text(value)] = attribute else {
                        return Err(format!("no attribute: {attribute:?}"));
                    };
                    if key == "label" {
                        labels.push(value.clone());
                    }
                }
                if name != "node" && !shape.0.insert(id(name)?) {
                    return Err(format!("{name} twice"));
                }
            }
            other => return Err(format!("no statement: {other:?}")),
        }
    }
    Ok((shape, labels))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn dot_holds_all_nodes_edges_and_labels(graph in graph(), name in text()) {
        let dot = graph.to_dot(&name);
        let (found, labels) = read_dot(&dot).map_err(TestCaseError::fail)?;
        prop_assert_eq!(found, shape(&graph));
        for ((id, node), label) in graph.nodes().zip(labels) {
            let start = format!("{id} {}", node.spec.label);
            prop_assert!(label.starts_with(&start), "{label:?} does not start with {start:?}");
        }
    }

    #[test]
    fn json_holds_all_nodes_edges_and_labels(graph in graph()) {
        let json: serde_json::Value = serde_json::from_str(&graph.to_json().to_string()).expect("JSON");
        let nodes = json["nodes"].as_array().expect("an array");
        let number = |value: &serde_json::Value| value.as_u64().expect("a number") as u32;
        let mut found = Shape::default();
        for (node, (_, known)) in nodes.iter().zip(graph.nodes()) {
            let id = number(&node["id"]);
            found.0.insert(id);
            let after = node["after"].as_array().expect("an array");
            found.1.extend(after.iter().map(|dep| (number(dep), id)));
            prop_assert_eq!(&node["label"], &*known.spec.label);
            prop_assert_eq!(node["scope"].as_str(), known.spec.scope.as_deref());
            prop_assert_eq!(&node["kind"], known.spec.kind.name());
        }
        prop_assert_eq!(nodes.len(), graph.len());
        prop_assert_eq!(found, shape(&graph));
        let dropped = nodes.iter().filter(|node| node["dropped"] == true).map(|node| number(&node["id"]));
        prop_assert_eq!(dropped.collect::<Vec<_>>(), graph.schedule(1).dropped);
        prop_assert_eq!(json["buffers"].as_array().map(Vec::len), Some(graph.buffers().len()));
    }

    #[test]
    fn svg_is_xml_with_a_box_for_each_node_and_a_line_for_each_edge(graph in graph()) {
        let svg = graph.to_svg();
        let xml = roxmltree::Document::parse(&svg).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let count = |name: &str| xml.descendants().filter(|one| one.has_tag_name(("http://www.w3.org/2000/svg", name))).count();
        prop_assert_eq!(count("rect"), graph.len());
        prop_assert_eq!(count("path"), graph.edge_count());
        let titles = xml.descendants().filter(|one| one.tag_name().name() == "title");
        for (title, (id, node)) in titles.zip(graph.nodes()) {
            let text = title.text().unwrap_or_default();
            prop_assert!(text.starts_with(&format!("{id} ")), "{text:?}");
            // Characters that XML cannot hold are replaced, and no others.
            let plain = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect::<String>();
            let start = plain(&format!("{id} {}", node.spec.label));
            prop_assert!(plain(text).starts_with(&start), "{text:?}");
        }
        // No two boxes of a picture overlap.
        let rects = xml.descendants().filter(|one| one.tag_name().name() == "rect");
        let corners: Vec<_> = rects.map(|one| (one.attribute("x"), one.attribute("y"))).collect();
        prop_assert_eq!(corners.iter().collect::<BTreeSet<_>>().len(), graph.len());
    }
}
