//! A graph as text: DOT for Graphviz, SVG as a picture for any browser, JSON for programs.

#![forbid(unsafe_code)]

use std::fmt::Write;

use serde_json::{Value, json};

use crate::dag::{Dag, Kind, Node, NodeId};

/// Sizes in the SVG picture, in pixels.
const BOX: (usize, usize) = (150, 30);
const GAP: (usize, usize) = (30, 30);

impl<C> Dag<C> {
    /// The graph in the language of Graphviz. Nodes that a schedule drops are dashed.
    pub fn to_dot(&self, name: &str) -> String {
        let mut out = format!(
            "digraph {} {{\n  node [shape=box, style=filled, fontname=\"sans-serif\"];\n",
            quoted(name)
        );
        let dropped = self.schedule(1).dropped;
        for (id, node) in self.nodes() {
            let style = if dropped.contains(&id) {
                ", style=\"filled,dashed\""
            } else {
                ""
            };
            let text = quoted(&self.caption(id, node));
            let colour = node.spec.kind.colour();
            _ = writeln!(
                out,
                "  n{id} [label={text}, fillcolor=\"{colour}\"{style}];"
            );
        }
        for (id, node) in self.nodes() {
            for dep in self.deps(node) {
                _ = writeln!(out, "  n{dep} -> n{id};");
            }
        }
        out.push_str("}\n");
        out
    }

    /// The graph as JSON: `nodes` with `id`, `kind`, `label`, `scope`, `lane`, `cost_ns`, `after`,
    /// `reads`, `writes`, `dropped`; `buffers` with `address`, `size` in bytes, `transient`.
    pub fn to_json(&self) -> Value {
        let dropped = self.schedule(1).dropped;
        let nodes = self.nodes().map(|(id, node)| {
            let buffers = |wanted: fn(&crate::Access) -> bool| -> Vec<u32> {
                let accesses = self.accesses(node).iter().filter(|access| wanted(access));
                accesses.map(|access| access.buffer).collect()
            };
            json!({
                "id": id,
                "kind": node.spec.kind.name(),
                "label": node.spec.label,
                "scope": node.spec.scope.as_deref(),
                "lane": node.lane,
                "cost_ns": node.spec.cost_ns,
                "after": self.deps(node),
                "reads": buffers(|access| access.reads),
                "writes": buffers(|access| access.writes),
                "dropped": dropped.binary_search(&id).is_ok(),
            })
        });
        let buffers = self.buffers().iter().map(|buffer| {
            json!({
                "address": format!("{:#x}", buffer.address),
                "size": buffer.size,
                "transient": buffer.transient,
            })
        });
        json!({
            "nodes": nodes.collect::<Vec<_>>(),
            "buffers": buffers.collect::<Vec<_>>(),
        })
    }

    /// The graph as an SVG picture. Time runs downwards, and nodes side by side may run at the same time.
    pub fn to_svg(&self) -> String {
        let dropped = self.schedule(1).dropped;
        let mut row_of = vec![0usize; self.len()];
        let mut rows: Vec<Vec<NodeId>> = Vec::new();
        for (id, node) in self.nodes() {
            let above = self.deps(node).iter().map(|&dep| row_of[dep as usize] + 1);
            let row = above.max().unwrap_or(0);
            row_of[id as usize] = row;
            if row == rows.len() {
                rows.push(Vec::new());
            }
            rows[row].push(id);
        }
        let lane = |id: &NodeId| self.node(*id).map(|node| (node.lane, *id));
        let mut corner = vec![(0usize, 0usize); self.len()];
        let width = rows.iter().map(Vec::len).max().unwrap_or(0);
        for (row, ids) in rows.iter_mut().enumerate() {
            ids.sort_unstable_by_key(lane);
            let left = (width - ids.len()) * (BOX.0 + GAP.0) / 2;
            for (column, &id) in ids.iter().enumerate() {
                let x = GAP.0 + left + column * (BOX.0 + GAP.0);
                corner[id as usize] = (x, GAP.1 + row * (BOX.1 + GAP.1));
            }
        }
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n",
            GAP.0 + width * (BOX.0 + GAP.0),
            GAP.1 + rows.len() * (BOX.1 + GAP.1),
        );
        for (id, node) in self.nodes() {
            let to = corner[id as usize];
            for &dep in self.deps(node) {
                let from = corner[dep as usize];
                _ = writeln!(
                    out,
                    "<path d=\"M{} {} L{} {}\" stroke=\"#888\"/>",
                    from.0 + BOX.0 / 2,
                    from.1 + BOX.1,
                    to.0 + BOX.0 / 2,
                    to.1
                );
            }
        }
        for (id, node) in self.nodes() {
            let (x, y) = corner[id as usize];
            let dash = if dropped.binary_search(&id).is_ok() {
                " stroke-dasharray=\"4 3\""
            } else {
                ""
            };
            let text = escaped(&self.caption(id, node));
            _ = writeln!(
                out,
                "<g><title>{text}</title><rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"4\" \
                 fill=\"{}\" stroke=\"#555\"{dash}/><text x=\"{}\" y=\"{}\" \
                 text-anchor=\"middle\">{}</text></g>",
                BOX.0,
                BOX.1,
                node.spec.kind.colour(),
                x + BOX.0 / 2,
                y + BOX.1 / 2 + 4,
                escaped(&shortened(&node.spec.label, 24)),
            );
        }
        out.push_str("</svg>\n");
        out
    }

    /// One line that describes a node.
    fn caption(&self, id: NodeId, node: &Node<C>) -> String {
        let spec = &node.spec;
        let mut text = format!("{id} {}", spec.label);
        if spec.kind != Kind::Kernel && spec.label != spec.kind.name() {
            _ = write!(text, " ({})", spec.kind.name());
        }
        if let Some(scope) = &spec.scope {
            _ = write!(text, " in {scope}");
        }
        if spec.cost_ns > 0 {
            _ = write!(text, ", about {} ns", spec.cost_ns);
        }
        text
    }
}

fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 3).chain("...".chars()).collect()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Escapes a text for XML. A character that XML cannot hold becomes U+FFFD.
fn escaped(text: &str) -> String {
    let allowed =
        |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..=char::MAX);
    text.replace(|c| !allowed(c), "\u{fffd}")
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
