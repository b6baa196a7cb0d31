//! Values that a host keeps from process to process, in the project's one store.

use std::ffi::c_void;

use outrigger_hooks as hooks;
use outrigger_hooks::{Code, Error, Result};

use crate::guard::{Out, null, slice};

/// Bytes of the host.
fn bytes<'a>(pointer: *const c_void, size: u64, name: &str) -> Result<&'a [u8]> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    slice(pointer.cast::<u8>(), size, name)
}

fn key<'a>(pointer: *const c_void, size: u64) -> Result<&'a [u8]> {
    let key = bytes(pointer, size, "key")?;
    if key.is_empty() {
        let text = "key_size is 0: give bytes that name all that the value depends on";
        return Err(Error::new(Code::INVALID_ARGUMENT, text));
    }
    Ok(key)
}

api! {
    /// Reads a value that a host has kept with otr_store_put, in this process or another one. `key` is all that the value
    /// depends on, as bytes, and begins with a name of the host; it is not empty. Sets `size` to the bytes of the
    /// value, and writes the value if it has at most `capacity` bytes; `value` may be NULL if `capacity` is 0.
    /// OTR_ERR_NOT_FOUND if there is no value that is whole. Nothing is read from a folder (OUTRIGGER_CACHE) that belongs to
    /// somebody else or that others may write to, so what is read may be run as code of the user.
    fn otr_store_get(
        key: *const c_void,
        key_size: u64,
        value: *mut c_void,
        capacity: u64,
        size: *mut u64,
    ) {
        let out = Out::new(size, "size")?;
        let key = self::key(key, key_size)?;
        if value.is_null() && capacity != 0 {
            return Err(null("value"));
        }
        hooks::runtime()?;
        let kept = hooks::kept(key)?.ok_or_else(|| {
            Error::new(Code::NOT_FOUND, "the store has no value for this key: otr_store_put keeps one")
        })?;
        let found = kept.len() as u64;
        if found <= capacity {
            // SAFETY: H6: not NULL unless `capacity` and with it `found` are 0, and valid for writes of `capacity` bytes;
            // `kept` is memory of this call.
            unsafe { value.cast::<u8>().copy_from(kept.as_ptr(), kept.len()) };
        }
        out.set(found);
        Ok(())
    }

    /// Keeps a value for otr_store_get, in place of one that the key has. Sets `kept` to 1, or to 0 if the value was not
    /// kept: OUTRIGGER_CACHE is `off`, its folder belongs to somebody else or others may write to it, the disk refuses
    /// the value, or it has more than half of OUTRIGGER_CACHE_BYTES. OUTRIGGER_LOG=outrigger::store=debug tells which.
    /// What was used least recently is removed first, so a value may be gone at any time.
    fn otr_store_put(
        key: *const c_void,
        key_size: u64,
        value: *const c_void,
        size: u64,
        kept: *mut u32,
    ) {
        let out = Out::new(kept, "kept")?;
        let key = self::key(key, key_size)?;
        let value = bytes(value, size, "value")?;
        hooks::runtime()?;
        out.set(hooks::keep(key, value)?.into());
        Ok(())
    }
}
