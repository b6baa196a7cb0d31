//! Values of a host that last from process to process, in the project's one store.

use outrigger_store::{Key, Kind, Store};

use crate::{Code, Error, Result};

/// Values of hosts. The version changes with the parts of the key.
const HOSTS: Kind = Kind::new("hosts", 1);

fn place(key: &[u8]) -> Result<(Store, Key)> {
    let store = Store::of_process()
        .map_err(|error| Error::new(Code::INVALID_ARGUMENT, error.to_string()))?;
    Ok((store, HOSTS.key().part("key", key).finish()))
}

/// The value that a host has kept under a key; `None` if there is none that is whole and the user's own.
///
/// # Errors
/// `INVALID_ARGUMENT` if a variable of the environment has a value that makes no sense.
pub fn kept(key: &[u8]) -> Result<Option<Vec<u8>>> {
    let (store, key) = place(key)?;
    Ok(store.get(&key))
}

/// Keeps a value under a key, in place of one that the key may have. Answers whether it was kept.
///
/// # Errors
/// `INVALID_ARGUMENT` if a variable of the environment has a value that makes no sense.
pub fn keep(key: &[u8], value: &[u8]) -> Result<bool> {
    let (store, key) = place(key)?;
    Ok(store.put(&key, value))
}
