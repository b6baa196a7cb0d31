//! `cargo xtask tidy`: checks the invariants of ARCHITECTURE.md that the compiler does not know. It
//! reads only files that git knows or would add, and changes nothing.

mod comments;
mod floors;
mod glossary;
mod layers;
mod text;
mod variables;

use std::fs;
use std::process::ExitCode;

use crate::planted;
use crate::workspace::Workspace;

/// A text file of the repository.
pub(crate) struct Source {
    /// Path from the root, with slashes.
    pub(crate) name: String,
    /// The whole text.
    pub(crate) text: String,
}

impl Source {
    /// True if the name ends in one of these extensions.
    pub(crate) fn is(&self, extensions: &[&str]) -> bool {
        self.name
            .rsplit_once('.')
            .is_some_and(|(_, extension)| extensions.contains(&extension))
    }
}

/// Runs all checks and lists every place that breaks one.
///
/// # Errors
/// If the repository cannot be read.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let sources = sources(workspace)?;
    let mut problems = layers::check(workspace)?;
    problems.extend(floors::check(&sources)?);
    problems.extend(sources.iter().flat_map(text::check));
    problems.extend(text::check_allocator(&sources));
    problems.extend(comments::check(&sources));
    problems.extend(glossary::check(&sources));
    problems.extend(variables::check(&sources));
    problems.extend(planted::check(workspace)?);
    for problem in &problems {
        println!("{problem}");
    }
    if problems.is_empty() {
        println!("tidy: {} files hold to the rules", sources.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("tidy: {} problems", problems.len());
    Ok(ExitCode::FAILURE)
}

/// The text files that are in the repository or would be added to it.
fn sources(workspace: &Workspace) -> anyhow::Result<Vec<Source>> {
    let mut sources = Vec::new();
    for name in workspace.files()? {
        // Deleted but not yet committed, or not a text.
        let Ok(bytes) = fs::read(workspace.path(&name)) else {
            continue;
        };
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        sources.push(Source { name, text });
    }
    Ok(sources)
}
