//! Any bytes as a recording of driver calls: the reader returns records, or says which one is damaged;
//! it never panics. If the first byte is 1, the rest is cut into bodies that get correct lengths and
//! checksums, because random bytes would not get past these. The records are then written again, and
//! must be the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use outrigger_layers::record::{Reader, Record, Writer};

fuzz_target!(|data: &[u8]| {
    match data.split_first() {
        Some((1, bodies)) => {
            let records = read(&framed(bodies));
            let mut again = Vec::new();
            let mut writer = Writer::new(&mut again).expect("memory takes all");
            for record in &records {
                writer.write(record).expect("memory takes all");
            }
            drop(writer);
            assert_eq!(
                read(&again),
                records,
                "what was read is not what is written"
            );
        }
        _ => drop(read(data)),
    }
});

/// All records up to the first that is damaged.
fn read(file: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    if let Ok(mut reader) = Reader::new(file) {
        while let Ok(Some(record)) = reader.next_record() {
            records.push(record);
        }
    }
    records
}

/// A file whose bodies are the parts of `data`, each behind its length in two bytes.
fn framed(mut data: &[u8]) -> Vec<u8> {
    let mut file = b"OTRCALLS".to_vec();
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (body, rest) = rest.split_at(length);
        file.extend((length as u32).to_le_bytes());
        file.extend(crc32fast::hash(body).to_le_bytes());
        file.extend(body);
        data = rest;
    }
    file
}
