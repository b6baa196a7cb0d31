//! The report as one HTML page: markup, style, program and data in one file that needs no network. The
//! page must never take text of a driver for markup.

use std::collections::BTreeMap;

use serde_json::json;

use crate::record::Record;
use crate::report::Report;
use crate::{find, rules};

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const PROGRAM: &str = include_str!("page/page.js");

impl Report {
    /// The report as an HTML page.
    pub fn to_html(&self) -> String {
        let head = &self.head;
        let texts: BTreeMap<String, String> = rules::all()
            .into_iter()
            .map(|rule| (rule.name, rule.text))
            .collect();
        let tests: Vec<_> = self.in_order().into_iter().map(|r| self.row(r)).collect();
        let data = json!({
            "conclusion": self.conclusion,
            "sentence": self.conclusion.sentence(),
            "totals": self.totals,
            "driver": head.driver,
            "suite": head.suite,
            // Numbers of a browser have 53 bits.
            "seed": head.seed.to_string(),
            "started": head.started,
            "host": head.host,
            "layers": head.layers,
            "digest": self.digest,
            "rules": texts,
            "suspects": self.suspects(),
            "tests": tests,
        });
        // Inside of a script element only `</script` and `<!--` mean something.
        let data = data.to_string().replace('<', "\\u003c");
        let title = format!("{}: conformance", head.driver.name);
        let title = title.replace('&', "&amp;").replace('<', "&lt;");
        let mut page = String::new();
        let mut rest = TEMPLATE;
        for (place, value) in [
            ("{{title}}", title.as_str()),
            ("{{style}}", STYLE),
            ("{{data}}", &data),
            ("{{program}}", PROGRAM),
        ] {
            let (before, after) = rest
                .split_once(place)
                .expect("the template has each place once, in this order");
            page.push_str(before);
            page.push_str(value);
            rest = after;
        }
        page + rest
    }

    fn row(&self, record: &Record) -> serde_json::Value {
        let test = find(&record.id);
        json!({
            "record": record,
            "about": test.map(|test| test.about()),
            "rules": test.map(|test| test.rules),
            "again": self.rerun(&record.id),
        })
    }
}
