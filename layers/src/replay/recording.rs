//! A recording in memory: its calls with all that is known of them. It can be replayed, cut and written
//! again.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use crate::Entry;
use crate::record::{ReadError, Reader, Record, Value, Writer};

/// The calls of a recording, in the order in which they began.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The name of the driver that was recorded.
    pub driver: String,
    /// The version of the driver.
    pub version: String,
    /// For each device, whether the host sees its memory.
    pub visible: Vec<bool>,
    /// The calls.
    pub steps: Vec<Step>,
    /// Whether the end of the file is missing.
    pub cut: bool,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Step {
    /// The number of the call in the first recording.
    pub number: u64,
    /// Of which entry.
    pub entry: Entry,
    /// The inputs.
    pub arguments: Vec<Value>,
    /// The code that the call answered; `None` for a call that never returned.
    pub code: Option<i32>,
    /// The values that the call wrote.
    pub outputs: Vec<Value>,
    /// For a host call, each time it was called: the failure before it, and its outcome.
    pub ran: Vec<(i32, i32)>,
    /// For a copy from host memory, what it read, each time it ran.
    pub source: Vec<Vec<u8>>,
    /// For a copy to host memory, what it gave, each time it ran.
    pub destination: Vec<Vec<u8>>,
}

impl Recording {
    /// Reads a whole recording.
    ///
    /// # Errors
    /// Of the reader. A recording whose end is missing is read up to there.
    pub fn read(input: impl Read) -> Result<Self, ReadError> {
        let mut reader = Reader::new(input)?;
        let mut recording = Self::default();
        let mut places = HashMap::new();
        while let Some(record) = reader.next_record()? {
            recording.add(record, &mut places);
        }
        recording.cut = reader.cut();
        Ok(recording)
    }

    fn add(&mut self, record: Record, places: &mut HashMap<u64, usize>) {
        if let Record::Call { number, .. } = record {
            places.insert(number, self.steps.len());
        }
        let steps = &mut self.steps;
        match record {
            Record::Header {
                driver,
                version,
                visible,
            } => {
                (self.driver, self.version, self.visible) = (driver, version, visible);
            }
            Record::Call {
                number,
                entry,
                arguments,
            } => {
                steps.push(Step {
                    number,
                    entry,
                    arguments,
                    code: None,
                    outputs: Vec::new(),
                    ran: Vec::new(),
                    source: Vec::new(),
                    destination: Vec::new(),
                });
            }
            Record::Return {
                number,
                code,
                outputs,
            } => {
                if let Some(step) = places.get(&number).and_then(|at| steps.get_mut(*at)) {
                    (step.code, step.outputs) = (Some(code), outputs);
                }
            }
            Record::Ran {
                number,
                upstream,
                code,
            } => {
                if let Some(step) = places.get(&number).and_then(|at| steps.get_mut(*at)) {
                    step.ran.push((upstream, code));
                }
            }
            Record::Data {
                number,
                destination,
                offset,
                bytes,
            } => {
                let Some(step) = places.get(&number).and_then(|at| steps.get_mut(*at)) else {
                    return;
                };
                let runs = if destination {
                    &mut step.destination
                } else {
                    &mut step.source
                };
                match runs.last_mut() {
                    // Pieces come one behind the other.
                    Some(run) if offset == run.len() as u64 && offset != 0 => run.extend(bytes),
                    _ if offset == 0 => runs.push(bytes),
                    _ => {}
                }
            }
        }
    }

    /// Writes the recording.
    ///
    /// # Errors
    /// Of the system.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        const PIECE: usize = 16 << 20;
        let mut writer = Writer::new(out)?;
        writer.write(&Record::Header {
            driver: self.driver.clone(),
            version: self.version.clone(),
            visible: self.visible.clone(),
        })?;
        for step in &self.steps {
            let number = step.number;
            writer.write(&Record::Call {
                number,
                entry: step.entry,
                arguments: step.arguments.clone(),
            })?;
            for (destination, runs) in [(false, &step.source), (true, &step.destination)] {
                for (at, bytes) in runs.iter().flat_map(|run| run.chunks(PIECE).enumerate()) {
                    writer.write(&Record::Data {
                        number,
                        destination,
                        offset: (at * PIECE) as u64,
                        bytes: bytes.to_vec(),
                    })?;
                }
            }
            for (upstream, code) in &step.ran {
                writer.write(&Record::Ran {
                    number,
                    upstream: *upstream,
                    code: *code,
                })?;
            }
            if let Some(code) = step.code {
                writer.write(&Record::Return {
                    number,
                    code,
                    outputs: step.outputs.clone(),
                })?;
            }
        }
        Ok(())
    }
}

impl Step {
    /// The outcome that the call has written, where it asked or waited for work.
    pub fn outcome(&self) -> Option<i32> {
        let lists = self.outputs.iter().filter_map(|value| match value {
            Value::List(fields) => fields.first(),
            _ => None,
        });
        lists.into_iter().find_map(|code| match code {
            Value::Number(code) => Some(*code as u32 as i32),
            _ => None,
        })
    }

    /// The objects and memory that the call made.
    pub(super) fn makes(&self) -> impl Iterator<Item = u32> + '_ {
        // A kernel that is asked for again is made by the first call.
        self.outputs.iter().filter_map(|value| match value {
            Value::Object(id) | Value::Address(id, _) => Some(*id),
            _ => None,
        })
    }

    /// The objects and memory that the call needs.
    pub(super) fn uses(&self) -> Vec<u32> {
        fn collect(values: &[Value], into: &mut Vec<u32>) {
            for value in values {
                match value {
                    Value::Object(id) | Value::Address(id, _) => into.push(*id),
                    Value::List(values) => collect(values, into),
                    _ => {}
                }
            }
        }
        let mut uses = Vec::new();
        collect(&self.arguments, &mut uses);
        uses
    }
}
