//! Reads pickles as plain data: numbers, texts, lists, tuples and dictionaries.
//!
//! A pickle is a program for a small stack machine. This module executes the instructions that make
//! data. It refuses, by name, those that would import, call or build anything, so nothing in a file can
//! ever run. Values are in one table and refer to each other by number, because PyTorch shares one
//! captured stack among thousands of events. The instructions are those of protocols 2 to 5, as
//! Python's module `pickletools` documents them.

mod value;

use std::fmt;

use serde::de::DeserializeOwned;

/// The defect of a pickle that cannot be read, in words.
#[derive(Debug)]
pub(super) struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl serde::de::Error for Error {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self(text.to_string())
    }
}

/// A value; others are referred to by their number in the table.
enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// Above what `Int` holds.
    Large(u64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    List(Vec<u32>),
    Dict(Vec<(u32, u32)>),
}

/// Reads what a pickle holds.
///
/// # Errors
/// It is damaged, would do more than hold data, or does not hold a `T`.
pub(super) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let mut machine = Machine {
        bytes,
        next: 0,
        values: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
    };
    let root = machine.run().map_err(|Error(problem)| {
        Error(format!(
            "at byte {}: {problem}",
            machine.next.saturating_sub(1)
        ))
    })?;
    T::deserialize(value::Reader::new(&machine.values, root))
}

/// The stack machine.
struct Machine<'a> {
    bytes: &'a [u8],
    next: usize,
    values: Vec<Value<'a>>,
    stack: Vec<u32>,
    marks: Vec<usize>,
    memo: Vec<Option<u32>>,
}

impl<'a> Machine<'a> {
    /// Carries out all instructions; returns the number of the result.
    fn run(&mut self) -> Result<u32, Error> {
        loop {
            let instruction = self.byte()?;
            match instruction {
                0x80 => {
                    let protocol = self.byte()?;
                    if !(2..=5).contains(&protocol) {
                        return Err(Error(format!("protocol {protocol} is not known")));
                    }
                }
                0x95 => drop(self.take(8)?), // a frame: its length says nothing new
                b'.' => return self.pop(),
                b'(' => self.marks.push(self.stack.len()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.above_mark()?),
                b'2' => {
                    let top = self.pop()?;
                    self.stack.extend([top, top]);
                }
                b'N' => self.push(Value::None)?,
                0x88 => self.push(Value::Bool(true))?,
                0x89 => self.push(Value::Bool(false))?,
                b'K' => {
                    let number = self.byte()?;
                    self.push(Value::Int(number.into()))?;
                }
                b'M' => {
                    let number = u16::from_le_bytes(self.array()?);
                    self.push(Value::Int(number.into()))?;
                }
                b'J' => {
                    let number = i32::from_le_bytes(self.array()?);
                    self.push(Value::Int(number.into()))?;
                }
                0x8a => {
                    let length = self.byte()?;
                    let digits = self.take(length.into())?;
                    self.push(whole(digits)?)?;
                }
                b'G' => {
                    let number = f64::from_be_bytes(self.array()?);
                    self.push(Value::Float(number))?;
                }
                0x8c | b'X' | 0x8d => {
                    let length = self.length(instruction)?;
                    let text = std::str::from_utf8(self.take(length)?)
                        .map_err(|_| Error("a text is not UTF-8".to_owned()))?;
                    self.push(Value::Text(text))?;
                }
                b'C' | b'B' | 0x8e => {
                    let length = self.length(instruction)?;
                    let bytes = self.take(length)?;
                    self.push(Value::Bytes(bytes))?;
                }
                b']' | b')' => self.push(Value::List(Vec::new()))?,
                b'}' => self.push(Value::Dict(Vec::new()))?,
                b'l' | b't' => {
                    let items = self.above_mark()?;
                    self.push(Value::List(items))?;
                }
                0x85..=0x87 => {
                    let length = usize::from(instruction - 0x84);
                    let start = self.stack.len().checked_sub(length).ok_or_else(underflow)?;
                    let items = self.stack.split_off(start);
                    self.push(Value::List(items))?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.list()?.push(item);
                }
                b'e' => {
                    let items = self.above_mark()?;
                    self.list()?.extend(items);
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.dict()?.push((key, value));
                }
                b'u' => {
                    let items = self.above_mark()?;
                    let pairs = items.chunks_exact(2).map(|pair| (pair[0], pair[1]));
                    self.dict()?.extend(pairs);
                }
                0x94 => self.memoize(self.memo.len())?,
                b'q' => {
                    let key = self.byte()?;
                    self.memoize(key.into())?;
                }
                b'r' => {
                    let key = u32::from_le_bytes(self.array()?);
                    self.memoize(key as usize)?;
                }
                b'h' => {
                    let key = self.byte()?;
                    self.recall(key.into())?;
                }
                b'j' => {
                    let key = u32::from_le_bytes(self.array()?);
                    self.recall(key as usize)?;
                }
                b'c'
                | 0x93
                | b'R'
                | b'b'
                | 0x81
                | 0x92
                | b'i'
                | b'o'
                | b'P'
                | b'Q'
                | 0x82..=0x84 => {
                    return Err(Error(
                        "it would make an object; only plain data is read".to_owned(),
                    ));
                }
                other => return Err(Error(format!("instruction {other:#04x} is not known"))),
            }
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let rest = self.bytes.get(self.next..).unwrap_or_default();
        let taken = rest
            .get(..length)
            .ok_or_else(|| Error("it ends in the middle".to_owned()))?;
        self.next += length;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Error> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// The length of a text or of bytes: one, four or eight bytes, by instruction.
    fn length(&mut self, instruction: u8) -> Result<usize, Error> {
        let length = match instruction {
            0x8c | b'C' => self.byte()?.into(),
            b'X' | b'B' => u32::from_le_bytes(self.array()?).into(),
            _ => u64::from_le_bytes(self.array()?),
        };
        Ok(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), Error> {
        let number = u32::try_from(self.values.len())
            .map_err(|_| Error("it holds too many values".to_owned()))?;
        self.values.push(value);
        self.stack.push(number);
        Ok(())
    }

    fn pop(&mut self) -> Result<u32, Error> {
        self.stack.pop().ok_or_else(underflow)
    }

    fn above_mark(&mut self) -> Result<Vec<u32>, Error> {
        let mark = self.marks.pop().ok_or_else(underflow)?;
        if mark > self.stack.len() {
            return Err(underflow());
        }
        Ok(self.stack.split_off(mark))
    }

    /// The list on top of the stack.
    fn list(&mut self) -> Result<&mut Vec<u32>, Error> {
        match self.top()? {
            Value::List(items) => Ok(items),
            _ => Err(Error("items are put into what is no list".to_owned())),
        }
    }

    /// The dictionary on top of the stack.
    fn dict(&mut self) -> Result<&mut Vec<(u32, u32)>, Error> {
        match self.top()? {
            Value::Dict(pairs) => Ok(pairs),
            _ => Err(Error(
                "it adds items to a value that is not a dictionary".to_owned(),
            )),
        }
    }

    fn top(&mut self) -> Result<&mut Value<'a>, Error> {
        let top = *self.stack.last().ok_or_else(underflow)?;
        // Every number on the stack was put there with its value in the table.
        self.values.get_mut(top as usize).ok_or_else(underflow)
    }

    fn memoize(&mut self, key: usize) -> Result<(), Error> {
        let top = *self.stack.last().ok_or_else(underflow)?;
        // Keys count up; one far beyond would only serve to waste memory.
        if key > self.values.len() {
            return Err(Error(format!("memo {key} is out of order")));
        }
        if key >= self.memo.len() {
            self.memo.resize(key + 1, None);
        }
        self.memo[key] = Some(top);
        Ok(())
    }

    fn recall(&mut self, key: usize) -> Result<(), Error> {
        let number = self.memo.get(key).copied().flatten();
        let number = number.ok_or_else(|| Error(format!("memo {key} was never filled")))?;
        self.stack.push(number);
        Ok(())
    }
}

fn underflow() -> Error {
    Error("it takes more values than the stack has".to_owned())
}

/// A whole number of up to eight bytes with a sign, or of 64 bits without.
fn whole(digits: &[u8]) -> Result<Value<'static>, Error> {
    let negative = digits.last().is_some_and(|&byte| byte >= 0x80);
    let mut bytes = [if negative { 0xff } else { 0 }; 16];
    bytes
        .get_mut(..digits.len())
        .ok_or_else(|| Error("a number has more than 64 bits".to_owned()))?
        .copy_from_slice(digits);
    let number = i128::from_le_bytes(bytes);
    if let Ok(number) = i64::try_from(number) {
        return Ok(Value::Int(number));
    }
    match u64::try_from(number) {
        Ok(number) => Ok(Value::Large(number)),
        Err(_) => Err(Error("a number has more than 64 bits".to_owned())),
    }
}

#[cfg(test)]
mod tests;
