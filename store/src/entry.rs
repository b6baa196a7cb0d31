//! The bytes of an entry's file: a mark, the length of the value, a checksum, the value. The checksum is over all of it
//! and the key, so that a file under a wrong name does not check either.

use crate::key::Key;

const MARK: &[u8; 8] = b"OTRSTOR1";
/// Mark, length, checksum.
const HEAD: usize = 8 + 8 + 32;

/// The file of a value.
pub(crate) fn encode(key: &Key, value: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEAD + value.len());
    file.extend_from_slice(MARK);
    file.extend_from_slice(&(value.len() as u64).to_le_bytes());
    file.extend_from_slice(checksum(key, value).as_bytes());
    file.extend_from_slice(value);
    file
}

/// The value of a file, or what is wrong with the file.
pub(crate) fn decode(key: &Key, mut file: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    let Some((head, value)) = file.split_at_checked(HEAD) else {
        return Err("it ends within its head");
    };
    let (mark, rest) = head.split_at(MARK.len());
    let (length, sum) = rest.split_at(8);
    if mark != MARK {
        return Err("it does not begin as an entry");
    }
    if length != (value.len() as u64).to_le_bytes() {
        return Err("it has another length than it says");
    }
    if sum != checksum(key, value).as_bytes() {
        return Err("its checksum is another one");
    }
    file.drain(..HEAD);
    Ok(file)
}

fn checksum(key: &Key, value: &[u8]) -> blake3::Hash {
    // Mark and length are compared as they are: what is left to protect is the value, and which one it is.
    blake3::Hasher::new_keyed(key.digest())
        .update(value)
        .finalize()
}
