//! Packs a story into one HTML file with markup, style, programs and data. It needs nothing from a
//! network.
//!
//! The data are columns of whole numbers. Each number takes as few bytes as it needs; the columns are
//! compressed together and written as base64. A column whose neighbours are alike holds differences.
//! `page/data.js` reads this form. A page must never contain text of the input that a browser could
//! take for markup.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::DeflateEncoder;

use super::story::{Story, What};

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// In the order in which they run; each is a function of its own namespace.
const PROGRAMS: [&str; 7] = [
    include_str!("page/data.js"),
    include_str!("page/state.js"),
    include_str!("page/draw.js"),
    include_str!("page/timeline.js"),
    include_str!("page/map.js"),
    include_str!("page/holders.js"),
    include_str!("page/main.js"),
];

/// The page.
///
/// # Errors
/// None in practice: memory takes what is written.
pub(super) fn render(story: &Story) -> anyhow::Result<String> {
    let mut columns = Columns::default();
    columns.story(story);
    let about = serde_json::json!({
        "title": story.title,
        "about": story.about,
        "operations": story.ops,
        "labels": story.labels,
        "streams": story.streams.iter().map(u64::to_string).collect::<Vec<_>>(),
        "pools": story.pools,
        "marks": story.marks,
        "base": columns.base.to_string(),
        "tape": story.tape,
        "columns": columns.index,
    });
    // Inside of a script element only `</script` and `<!--` mean something.
    let about = about.to_string().replace('<', "\\u003c");
    let mut deflate = DeflateEncoder::new(Vec::new(), Compression::new(7));
    deflate.write_all(&columns.bytes)?;
    let data = STANDARD.encode(deflate.finish()?);
    let title = story.title.replace('&', "&amp;").replace('<', "&lt;");
    Ok(fill(&[
        ("{{title}}", &title),
        ("{{style}}", STYLE),
        ("{{about}}", &about),
        ("{{data}}", &data),
        ("{{programs}}", &PROGRAMS.concat()),
    ]))
}

/// The template with its places filled, each once and in order.
fn fill(values: &[(&str, &str)]) -> String {
    let mut page = String::new();
    let mut rest = TEMPLATE;
    for (place, value) in values {
        if let Some((before, after)) = rest.split_once(place) {
            page.push_str(before);
            page.push_str(value);
            rest = after;
        }
    }
    page + rest
}

#[derive(Default)]
struct Columns {
    bytes: Vec<u8>,
    index: Vec<serde_json::Value>,
    base: u64, // addresses are told as distances from it
}

impl Columns {
    fn story(&mut self, story: &Story) {
        let addresses = || {
            let blocks = story.blocks.iter().map(|block| block.address);
            blocks.chain(story.extents.iter().map(|extent| extent.address))
        };
        self.base = addresses().min().unwrap_or(0);
        let base = self.base;
        self.differences("event.op", story.events.iter().map(|event| event.op.into()));
        let (mut blocks, mut extents) = (0u64, 0u64);
        self.column(
            "event.what",
            story.events.iter().map(|event| {
                // The kind in the low three bits; above, how long ago what ends has begun.
                let (kind, ago) = match event.what {
                    What::Alloc => {
                        blocks += 1;
                        (0, 0)
                    }
                    What::Freed(block) => (1, blocks - 1 - u64::from(block)),
                    What::Done(block) => (2, blocks - 1 - u64::from(block)),
                    What::Map => {
                        extents += 1;
                        (3, 0)
                    }
                    What::Unmap(extent) => (4, extents - 1 - u64::from(extent)),
                    What::Mark => (5, 0),
                    What::Failure => (6, 0),
                };
                kind | ago << 3
            }),
        );
        let all = &story.blocks;
        self.differences(
            "block.address",
            all.iter().map(|block| block.address - base),
        );
        self.column("block.requested", all.iter().map(|block| block.requested));
        self.column(
            "block.rounding",
            all.iter()
                .map(|block| block.size.saturating_sub(block.requested)),
        );
        self.column("block.label", all.iter().map(|block| block.label.into()));
        self.column("block.stream", all.iter().map(|block| block.stream.into()));
        self.column("block.pool", all.iter().map(|block| block.pool.into()));
        let all = &story.extents;
        self.differences(
            "extent.address",
            all.iter().map(|extent| extent.address - base),
        );
        self.column("extent.size", all.iter().map(|extent| extent.size));
        self.differences("extent.place", all.iter().map(|extent| extent.place));
        self.column(
            "extent.stream",
            all.iter().map(|extent| extent.stream.into()),
        );
        self.column("extent.pool", all.iter().map(|extent| extent.pool.into()));
        self.column("extent.view", all.iter().map(|extent| extent.view.into()));
        let all = &story.failures;
        self.column("failure.bytes", all.iter().map(|failure| failure.bytes));
        self.column(
            "failure.stream",
            all.iter().map(|failure| failure.stream.into()),
        );
        self.differences("time", story.times.iter().copied());
    }

    fn column(&mut self, name: &str, values: impl Iterator<Item = u64>) {
        let start = self.bytes.len();
        let mut count = 0u64;
        for mut value in values {
            count += 1;
            while value >= 0x80 {
                self.bytes.push(value as u8 | 0x80);
                value >>= 7;
            }
            self.bytes.push(value as u8);
        }
        let bytes = self.bytes.len() - start;
        self.index
            .push(serde_json::json!({"name": name, "count": count, "bytes": bytes}));
    }

    /// A column of numbers that are near their neighbours: differences, the sign in the lowest bit.
    fn differences(&mut self, name: &str, values: impl Iterator<Item = u64>) {
        let mut last = 0u64;
        self.column(
            name,
            values.map(|value| {
                let difference = value.wrapping_sub(last).cast_signed();
                last = value;
                (difference << 1 ^ difference >> 63).cast_unsigned()
            }),
        );
    }
}
