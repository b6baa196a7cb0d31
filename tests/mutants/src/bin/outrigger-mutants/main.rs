//! Lists the mutants, one JSON object in a line: name, what is wrong, and the rules it breaks. For programs
//! that run the conformance suite on each of them.

use std::io::Write;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for mutant in outrigger_mutants::mutants() {
        let line = serde_json::json!({
            "name": mutant.name,
            "about": mutant.about(),
            "rules": mutant.rules,
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}
