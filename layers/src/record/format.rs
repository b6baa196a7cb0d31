//! The file of a recording: records with length and checksum, one after another. So the records that
//! were written before a process was killed can be read. The reader trusts nothing and never panics.
//!
//! A file is `OTRCALLS`, then records: the length of the body (u32), its CRC-32 (u32), the body. All numbers
//! are little-endian. The body begins with its kind. The first record is the header.

use std::fmt;
use std::io::{self, Read, Write};

use crate::Entry;

const MAGIC: &[u8; 8] = b"OTRCALLS";
/// Of the format. Another one is refused.
pub const VERSION: u32 = 2;
/// The longest body, in bytes: a longer one is no record.
const LONGEST: u32 = 64 << 20;
/// Bytes of memory are cut into pieces of this size.
pub(super) const PIECE: usize = 16 << 20;
/// The depth to which lists may lie in lists.
const DEPTH: u32 = 8;

/// An argument or an output of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// NULL, or nothing.
    Null,
    /// A number.
    Number(u64),
    /// An object, by its number in the recording. 0 is the driver.
    Object(u32),
    /// Device memory: the number of its allocation or reservation, and the offset in bytes.
    Address(u32, u64),
    /// Host memory of so many bytes. What stood there comes as [`Record::Data`].
    Host(u64),
    /// Bytes, as of a text.
    Bytes(Vec<u8>),
    /// Several values.
    List(Vec<Value>),
    /// A pointer that means nothing elsewhere.
    Pointer(u64),
}

/// One record of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The first one: what was recorded.
    Header {
        /// The name of the driver, as `"host"`.
        driver: String,
        /// The version of the driver.
        version: String,
        /// For each device, whether the host sees its memory.
        visible: Vec<bool>,
    },
    /// A call began.
    Call {
        /// The number of the call, from 0.
        number: u64,
        /// Of which entry.
        entry: Entry,
        /// The inputs, in the order of the contract; `Null` for an output that is NULL and `Number(0)` for
        /// one that is not.
        arguments: Vec<Value>,
    },
    /// A call returned.
    Return {
        /// The number of the call.
        number: u64,
        /// The code that the call answered.
        code: i32,
        /// The values that the call wrote into its outputs.
        outputs: Vec<Value>,
    },
    /// A host call ran, or the work of a copy.
    Ran {
        /// Of which call.
        number: u64,
        /// The failure before it, or 0.
        upstream: i32,
        /// The outcome.
        code: i32,
    },
    /// Host memory of a copy when it ran: before it, of a source, and after it, of a destination.
    Data {
        /// Of which call.
        number: u64,
        /// Whether it is the destination.
        destination: bool,
        /// The offset in the memory at which the piece begins.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// The reason why a file cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// The file is no recording, or one of another version.
    Foreign(String),
    /// The file was altered: a record does not have its checksum, or makes no sense.
    Damaged {
        /// The offset at which the record begins, in bytes.
        offset: u64,
        /// The problem of the record.
        problem: &'static str,
    },
    /// The system could not read it.
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign(problem) => f.write_str(problem),
            Self::Damaged { offset, problem } => {
                write!(f, "the record at byte {offset} is damaged: {problem}")
            }
            Self::Io(error) => write!(f, "it cannot be read: {error}"),
        }
    }
}

impl std::error::Error for ReadError {}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Writes records, each with one write.
pub struct Writer<W> {
    out: W,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// Of the system.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        Ok(Self {
            out,
            buffer: Vec::new(),
        })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// Of the system; `InvalidInput` for one that is too long to be read again.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.extend_from_slice(&[0; 8]);
        put_record(&mut self.buffer, record);
        let body = &self.buffer[8..];
        if body.len() > LONGEST as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (length, sum) = (body.len() as u32, crc32fast::hash(body));
        self.buffer[..4].copy_from_slice(&length.to_le_bytes());
        self.buffer[4..8].copy_from_slice(&sum.to_le_bytes());
        self.out.write_all(&self.buffer)
    }
}

impl<W> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

fn put_record(out: &mut Vec<u8>, record: &Record) {
    let number = |out: &mut Vec<u8>, value: u64| out.extend_from_slice(&value.to_le_bytes());
    let code = |out: &mut Vec<u8>, value: i32| out.extend_from_slice(&value.to_le_bytes());
    match record {
        Record::Header {
            driver,
            version,
            visible,
        } => {
            out.push(0);
            out.extend_from_slice(&VERSION.to_le_bytes());
            put_bytes(out, driver.as_bytes());
            put_bytes(out, version.as_bytes());
            let visible: Vec<u8> = visible.iter().map(|v| u8::from(*v)).collect();
            put_bytes(out, &visible);
        }
        Record::Call {
            number: n,
            entry,
            arguments,
        } => {
            out.push(1);
            number(out, *n);
            // By name: the list of entries grows.
            put_bytes(out, entry.name().as_bytes());
            put_values(out, arguments);
        }
        Record::Return {
            number: n,
            code: c,
            outputs,
        } => {
            out.push(2);
            number(out, *n);
            code(out, *c);
            put_values(out, outputs);
        }
        Record::Ran {
            number: n,
            upstream,
            code: c,
        } => {
            out.push(3);
            number(out, *n);
            code(out, *upstream);
            code(out, *c);
        }
        Record::Data {
            number: n,
            destination,
            offset,
            bytes,
        } => {
            out.push(4);
            number(out, *n);
            out.push(u8::from(*destination));
            number(out, *offset);
            put_bytes(out, bytes);
        }
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_values(out: &mut Vec<u8>, values: &[Value]) {
    out.extend_from_slice(&(values.len() as u32).to_le_bytes());
    for value in values {
        match value {
            Value::Null => out.push(0),
            Value::Number(number) => {
                out.push(1);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Value::Object(id) => {
                out.push(2);
                out.extend_from_slice(&id.to_le_bytes());
            }
            Value::Address(id, offset) => {
                out.push(3);
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&offset.to_le_bytes());
            }
            Value::Host(size) => {
                out.push(4);
                out.extend_from_slice(&size.to_le_bytes());
            }
            Value::Bytes(bytes) => {
                out.push(5);
                put_bytes(out, bytes);
            }
            Value::List(values) => {
                out.push(6);
                put_values(out, values);
            }
            Value::Pointer(address) => {
                out.push(7);
                out.extend_from_slice(&address.to_le_bytes());
            }
        }
    }
}

/// Reads records.
///
/// A file that ends within a record was written by a process that was killed: it ends before that
/// record, and [`cut`](Self::cut) says so.
pub struct Reader<R> {
    input: R,
    offset: u64,
    begun: bool,
    cut: bool,
}

impl<R: Read> Reader<R> {
    /// A reader of a file.
    ///
    /// # Errors
    /// `Foreign` for what does not begin as a recording; of the system.
    pub fn new(mut input: R) -> Result<Self, ReadError> {
        let mut magic = Vec::new();
        input.by_ref().take(8).read_to_end(&mut magic)?;
        if magic != MAGIC {
            return Err(ReadError::Foreign("it is no recording of calls".into()));
        }
        Ok(Self {
            input,
            offset: 8,
            begun: false,
            cut: false,
        })
    }

    /// Whether the end of the file is missing.
    pub fn cut(&self) -> bool {
        self.cut
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// `Damaged` or `Foreign`, after which nothing more is to be had; of the system.
    pub fn next_record(&mut self) -> Result<Option<Record>, ReadError> {
        if self.cut {
            return Ok(None);
        }
        let offset = self.offset;
        let damaged = |problem| ReadError::Damaged { offset, problem };
        let mut head = Vec::new();
        self.input.by_ref().take(8).read_to_end(&mut head)?;
        let [a, b, c, d, e, f, g, h] = head[..] else {
            self.cut = !head.is_empty();
            return Ok(None);
        };
        let length = u32::from_le_bytes([a, b, c, d]);
        if length > LONGEST {
            return Err(damaged("it is too long"));
        }
        // Grows with what is there, not with what a damaged length says.
        let mut body = Vec::new();
        let length = u64::from(length);
        self.input.by_ref().take(length).read_to_end(&mut body)?;
        if (body.len() as u64) < length {
            self.cut = true;
            return Ok(None);
        }
        if crc32fast::hash(&body) != u32::from_le_bytes([e, f, g, h]) {
            return Err(damaged("its checksum is another"));
        }
        let mut cursor = Cursor { rest: &body };
        let record = cursor.record().ok_or(damaged("it makes no sense"))??;
        if !cursor.rest.is_empty() {
            return Err(damaged("it is longer than what it holds"));
        }
        let header = matches!(record, Record::Header { .. });
        if header == self.begun {
            return Err(damaged("the header is missing, or not the first record"));
        }
        self.begun = true;
        self.offset += 8 + length;
        Ok(Some(record))
    }
}

impl<R> fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

/// The rest of a body.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// A record; `None` where the body ends too early, or a tag is unknown.
    fn record(&mut self) -> Option<Result<Record, ReadError>> {
        Some(Ok(match self.u8()? {
            0 => {
                let version = self.u32()?;
                if version != VERSION {
                    return Some(Err(ReadError::Foreign(format!(
                        "it has version {version} of the format, and this Outrigger reads {VERSION}"
                    ))));
                }
                Record::Header {
                    driver: self.text()?,
                    version: self.text()?,
                    visible: self.bytes()?.iter().map(|v| *v != 0).collect(),
                }
            }
            1 => Record::Call {
                number: self.u64()?,
                entry: {
                    let name = self.text()?;
                    match Entry::from_name(&name) {
                        Some(entry) => entry,
                        None => {
                            return Some(Err(ReadError::Foreign(format!(
                                "it has calls of `{name}`, which this Outrigger does not know"
                            ))));
                        }
                    }
                },
                arguments: self.values(0)?,
            },
            2 => Record::Return {
                number: self.u64()?,
                code: self.i32()?,
                outputs: self.values(0)?,
            },
            3 => Record::Ran {
                number: self.u64()?,
                upstream: self.i32()?,
                code: self.i32()?,
            },
            4 => Record::Data {
                number: self.u64()?,
                destination: self.u8()? != 0,
                offset: self.u64()?,
                bytes: self.bytes()?.to_vec(),
            },
            _ => return None,
        }))
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        let (head, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(head)
    }

    fn text(&mut self) -> Option<String> {
        self.bytes()
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    fn values(&mut self, depth: u32) -> Option<Vec<Value>> {
        let count = self.u32()? as usize;
        // Each takes a byte at least.
        if depth > DEPTH || count > self.rest.len() {
            return None;
        }
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(match self.u8()? {
                0 => Value::Null,
                1 => Value::Number(self.u64()?),
                2 => Value::Object(self.u32()?),
                3 => Value::Address(self.u32()?, self.u64()?),
                4 => Value::Host(self.u64()?),
                5 => Value::Bytes(self.bytes()?.to_vec()),
                6 => Value::List(self.values(depth + 1)?),
                7 => Value::Pointer(self.u64()?),
                _ => return None,
            });
        }
        Some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::{ReadError, Reader, Record, Value, Writer};
    use crate::Entry;

    fn records() -> Vec<Record> {
        vec![
            Record::Header {
                driver: "host".into(),
                version: "1".into(),
                visible: vec![true, false],
            },
            Record::Call {
                number: 3,
                entry: Entry::copy,
                arguments: vec![
                    Value::Object(7),
                    Value::Address(2, 96),
                    Value::Host(12),
                    Value::List(vec![Value::Bytes(vec![1, 2]), Value::Null]),
                    Value::Number(u64::MAX),
                    Value::Pointer(9),
                ],
            },
            Record::Data {
                number: 3,
                destination: true,
                offset: 1 << 40,
                bytes: vec![9; 300],
            },
            Record::Ran {
                number: 4,
                upstream: 0,
                code: -3,
            },
            Record::Return {
                number: 3,
                code: 11,
                outputs: vec![Value::Number(1)],
            },
        ]
    }

    fn file() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        for record in records() {
            writer.write(&record).unwrap();
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Result<(Vec<Record>, bool), ReadError> {
        let mut reader = Reader::new(bytes)?;
        let mut records = Vec::new();
        while let Some(record) = reader.next_record()? {
            records.push(record);
        }
        Ok((records, reader.cut()))
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(read(&file()).unwrap(), (records(), false));
    }

    #[test]
    fn a_file_that_was_cut_anywhere_gives_its_whole_records() {
        let (file, records) = (file(), records());
        for length in 8..file.len() {
            let (some, cut) = read(&file[..length]).unwrap();
            assert_eq!(some, records[..some.len()]);
            // Between two records nothing shows that more would come.
            let between = !cut;
            assert!(some.len() < records.len() && (cut || between));
        }
        assert!(matches!(read(&file[..5]), Err(ReadError::Foreign(_))));
    }

    #[test]
    fn no_altered_byte_goes_unseen() {
        let file = file();
        for at in 0..file.len() {
            let mut altered = file.clone();
            altered[at] ^= 0x10;
            match read(&altered) {
                Err(_) => {}
                // A length that grew past the end reads as a file that was cut.
                Ok((records, cut)) => assert!(cut && records.len() < 5, "byte {at}"),
            }
        }
    }
}
