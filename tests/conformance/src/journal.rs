//! The journal of a run: a file with one line for its head, and one for each test, written when the
//! test ends. A run that was killed continues where the journal ends.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::record::Record;
use crate::report::{Head, Sealed};
use crate::seal;

/// A journal that is written.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    link: seal::Link,
}

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct First {
    head: Head,
    link: seal::Link,
}

/// A journal that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct BadJournal {
    path: PathBuf,
    reason: String,
}

impl Journal {
    /// Starts the journal of a new run.
    pub(crate) fn create(path: &Path, head: &Head) -> Result<Self, BadJournal> {
        let bad = |error: std::io::Error| BadJournal {
            path: path.to_owned(),
            reason: format!("it cannot be written: {error}"),
        };
        let mut journal = Self {
            path: path.to_owned(),
            file: File::create(path).map_err(bad)?,
            link: seal::head(head),
        };
        let first = First {
            head: head.clone(),
            link: journal.link.clone(),
        };
        journal.write(&first)?;
        Ok(journal)
    }

    /// Reads the journal of a run that was killed, and goes on behind its last whole line.
    pub(crate) fn resume(path: &Path) -> Result<(Self, Head, Vec<Sealed>), BadJournal> {
        let bad = |reason: String| BadJournal {
            path: path.to_owned(),
            reason,
        };
        let io = |error: std::io::Error| bad(format!("it cannot be read or written: {error}"));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(io)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(io)?;
        // The line that was being written when the run was killed.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64).map_err(io)?;
        file.seek(SeekFrom::End(0)).map_err(io)?;
        let mut lines = text[..whole].lines();
        let first = lines.next().unwrap_or_default();
        let First { head, link } = serde_json::from_str(first)
            .map_err(|error| bad(format!("its first line is no head of a run: {error}")))?;
        let mut last = seal::head(&head);
        if last != link {
            return Err(bad("its head was altered".to_owned()));
        }
        let mut records = Vec::new();
        for (number, line) in lines.enumerate() {
            let sealed: Sealed = serde_json::from_str(line)
                .map_err(|error| bad(format!("line {}: {error}", number + 2)))?;
            last = seal::link(&last, &sealed.record);
            if last != sealed.link {
                return Err(bad(format!(
                    "line {} was altered or is of another run",
                    number + 2
                )));
            }
            records.push(sealed);
        }
        let journal = Self {
            path: path.to_owned(),
            file,
            link: last,
        };
        Ok((journal, head, records))
    }

    /// Writes down one test more, and gives it with its link.
    pub(crate) fn add(&mut self, record: Record) -> Result<Sealed, BadJournal> {
        self.link = seal::link(&self.link, &record);
        let sealed = Sealed {
            record,
            link: self.link.clone(),
        };
        self.write(&sealed)?;
        Ok(sealed)
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), BadJournal> {
        let mut bytes = serde_json::to_vec(line).expect("plain structs with text keys become JSON");
        bytes.push(b'\n');
        self.file.write_all(&bytes).map_err(|error| BadJournal {
            path: self.path.clone(),
            reason: format!("it cannot be written: {error}"),
        })
    }
}
