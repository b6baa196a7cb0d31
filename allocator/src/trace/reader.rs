//! Reads a trace line by line: an iterator that checks what it reads.
//!
//! Every error names its line and says what would have been right. The reader must never hold more than
//! one line of the input, and never return a free without an allocation before it.

use std::collections::HashMap;
use std::io::{BufRead, Read};

use super::error::{Problem, TraceError};
use super::ids::{IdState, Ids};
use super::{Op, StreamId};

/// The longest line, in bytes: labels can be long, but a file without line ends is no trace.
const LONGEST_LINE: usize = 1 << 20;

const ALLOC: &str = "a <id> <bytes> <stream>";
const FREE: &str = "f <id>";
const RECORD: &str = "r <id> <stream>";
const OUT_OF_MEMORY: &str = "# oom <bytes> <stream>";

/// An iterator over the operations of a trace. It ends after the first error.
pub struct Reader<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    header: String,
    texts: Texts,
    ids: Ids,
    ended: bool,
}

/// Labels, each kept once.
#[derive(Default)]
struct Texts {
    numbers: HashMap<Box<str>, u32>,
    texts: Vec<Box<str>>,
}

impl Texts {
    fn number(&mut self, text: &[u8]) -> Result<u32, Problem> {
        let text = std::str::from_utf8(text).map_err(|_| Problem::NotText)?;
        if let Some(&number) = self.numbers.get(text) {
            return Ok(number);
        }
        // 2^32 different labels would not fit into memory.
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.texts.push(text.into());
        self.numbers.insert(text.into(), number);
        Ok(number)
    }
}

impl<R: BufRead> Reader<R> {
    /// A reader of decompressed text.
    pub fn new(input: R) -> Self {
        Self {
            input,
            line: Vec::new(),
            number: 0,
            header: String::new(),
            texts: Texts::default(),
            ids: Ids::default(),
            ended: false,
        }
    }

    /// The first line without its `#`, once the first operation has been read; empty if there is none.
    pub fn header(&self) -> &str {
        &self.header
    }

    /// The text with this number, which an operation of this reader carries; empty for any other.
    pub fn text(&self, text: u32) -> &str {
        self.texts.texts.get(text as usize).map_or("", |text| text)
    }

    /// The number of the line that was read last, from 1.
    pub fn line(&self) -> u64 {
        self.number
    }

    /// Header and texts.
    pub(super) fn into_parts(self) -> (String, Vec<Box<str>>) {
        (self.header, self.texts.texts)
    }

    /// The next operation; `None` at the end.
    fn read(&mut self) -> Result<Option<Op>, Problem> {
        loop {
            self.line.clear();
            let read = (&mut self.input)
                .take(LONGEST_LINE as u64 + 1)
                .read_until(b'\n', &mut self.line)
                .map_err(|error| {
                    self.number += 1;
                    Problem::Io(error)
                })?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
            } else if read > LONGEST_LINE {
                return Err(Problem::TooLong(LONGEST_LINE));
            }
            if self.line.last() == Some(&b'\r') {
                self.line.pop();
            }
            if self.number == 1 && self.line.first() == Some(&b'#') {
                self.read_header()?;
            } else if let Some(op) = self.parse()? {
                return Ok(Some(op));
            }
        }
    }

    fn read_header(&mut self) -> Result<(), Problem> {
        let text = String::from_utf8_lossy(&self.line[1..]);
        let header = text.trim();
        if let Some(rest) = header.strip_prefix("alloctrace")
            && rest.split([';', ' ']).find(|word| !word.is_empty()) != Some("v1")
        {
            let version = header.split(';').next().unwrap_or(header);
            return Err(Problem::Version(shortened(version.as_bytes())));
        }
        self.header = header.to_owned();
        Ok(())
    }

    /// The operation of the line; `None` for a comment or an empty line.
    fn parse(&mut self) -> Result<Option<Op>, Problem> {
        let line = self.line.as_slice();
        let Some((&letter, rest)) = line.split_first() else {
            return Ok(None);
        };
        let unknown = || Problem::UnknownOperation(shortened(line));
        if !matches!(rest.first(), None | Some(b' ')) && letter != b'#' {
            return Err(unknown());
        }
        let op = match letter {
            b'a' => {
                let (id, rest) = number(rest, "<id>", ALLOC)?;
                let (bytes, rest) = number(rest, "<bytes>", ALLOC)?;
                let (stream, rest) = number(rest, "<stream>", ALLOC)?;
                end(rest, ALLOC)?;
                if self.ids.state(id) != IdState::Unused {
                    return Err(Problem::Duplicate(id));
                }
                self.ids.allocate(id);
                Op::Alloc {
                    id,
                    bytes,
                    stream: StreamId(stream),
                }
            }
            b'f' => {
                let (id, rest) = number(rest, "<id>", FREE)?;
                end(rest, FREE)?;
                match self.ids.state(id) {
                    IdState::Live => self.ids.free(id),
                    IdState::Unused => return Err(Problem::Unknown(id)),
                    IdState::Freed => return Err(Problem::FreedTwice(id)),
                }
                Op::Free { id }
            }
            b'r' => {
                let (id, rest) = number(rest, "<id>", RECORD)?;
                let (stream, rest) = number(rest, "<stream>", RECORD)?;
                end(rest, RECORD)?;
                match self.ids.state(id) {
                    IdState::Live => {}
                    IdState::Unused => return Err(Problem::Unknown(id)),
                    IdState::Freed => return Err(Problem::UsedAfterFree(id)),
                }
                Op::Record {
                    id,
                    stream: StreamId(stream),
                }
            }
            b'm' => Op::Mark {
                text: self.texts.number(rest.trim_ascii())?,
            },
            b'#' => {
                if let Some(text) = after_word(rest, b" label") {
                    Op::Label {
                        text: self.texts.number(text.trim_ascii())?,
                    }
                } else if let Some(rest) = after_word(rest, b" oom") {
                    let (bytes, rest) = number(rest, "<bytes>", OUT_OF_MEMORY)?;
                    let (stream, rest) = number(rest, "<stream>", OUT_OF_MEMORY)?;
                    end(rest, OUT_OF_MEMORY)?;
                    Op::OutOfMemory {
                        bytes,
                        stream: StreamId(stream),
                    }
                } else {
                    return Ok(None);
                }
            }
            _ => return Err(unknown()),
        };
        Ok(Some(op))
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Op, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let read = self.read();
        self.ended = !matches!(read, Ok(Some(_)));
        let line = self.number;
        read.map_err(|problem| TraceError { line, problem })
            .transpose()
    }
}

/// The rest behind `word`, if the text begins with it and it ends there.
fn after_word<'a>(text: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    let rest = text.strip_prefix(word)?;
    matches!(rest.first(), None | Some(b' ')).then_some(rest)
}

/// A space and a number, and what follows.
fn number<'a>(
    text: &'a [u8],
    field: &'static str,
    form: &'static str,
) -> Result<(u64, &'a [u8]), Problem> {
    let text = match text.split_first() {
        Some((b' ', rest)) => rest.trim_ascii_start(),
        _ => return Err(Problem::Missing { field, form }),
    };
    let mut value = 0u64;
    let mut digits = 0;
    let mut fits = true;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        digits += 1;
        match value
            .checked_mul(10)
            .and_then(|value| value.checked_add(digit.into()))
        {
            Some(next) => value = next,
            None => fits = false,
        }
    }
    let rest = &text[digits..];
    if text.is_empty() {
        return Err(Problem::Missing { field, form });
    }
    if digits == 0 || !matches!(rest.first(), None | Some(b' ')) {
        let word = text.split(|&byte| byte == b' ').next().unwrap_or(text);
        let text = shortened(word);
        return Err(Problem::NoNumber { field, text, form });
    }
    if !fits {
        let text = shortened(&text[..digits]);
        return Err(Problem::TooLarge { field, text });
    }
    Ok((value, rest))
}

/// Nothing but spaces may be left.
fn end(rest: &[u8], form: &'static str) -> Result<(), Problem> {
    let rest = rest.trim_ascii();
    if rest.is_empty() {
        return Ok(());
    }
    let text = shortened(rest);
    Err(Problem::Trailing { text, form })
}

/// Text for a message, which must not fill a screen.
fn shortened(text: &[u8]) -> String {
    let mut short: String = String::from_utf8_lossy(text).chars().take(41).collect();
    if short.chars().count() > 40 {
        short.pop();
        short.push('…');
    }
    short
}
