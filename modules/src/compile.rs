//! The making of a module: from the store, or by the driver's compiler.

use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_device::{Code, Error, Module, Result, sys};
use outrigger_store::{Key, Store};

use crate::compiler_log;
use crate::job::Request;

/// The numbers of modules by their origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Modules that were loaded already.
    pub found: u64,
    /// Another process had compiled them.
    pub restored: u64,
    /// The driver compiled them.
    pub compiled: u64,
    /// Modules that could not be loaded.
    pub failed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    found: AtomicU64,
    restored: AtomicU64,
    compiled: AtomicU64,
    failed: AtomicU64,
}

impl Counters {
    pub(crate) fn found(&self) {
        self.found.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Counts {
        Counts {
            found: self.found.load(Ordering::Relaxed),
            restored: self.restored.load(Ordering::Relaxed),
            compiled: self.compiled.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }
}

/// Loads code that this process has not loaded.
pub(crate) fn produce(
    store: &Store,
    counts: &Counters,
    key: &Key,
    request: &Request,
) -> Result<Module> {
    let count = |counter: &AtomicU64| {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    if let Some(module) = restored(store, counts, key, request)? {
        return Ok(module);
    }
    let Request {
        driver,
        device,
        source,
    } = request;
    let loaded = driver.module_load(*device, source.format(), source.code(), source.options());
    match loaded {
        Ok(module) => {
            count(&counts.compiled);
            keep(store, key, request, &module);
            Ok(module)
        }
        Err(error) => {
            count(&counts.failed);
            Err(with_lines(error, source.code()))
        }
    }
}

/// Loads what another process has compiled; `None` if the store does not have it.
pub(crate) fn restored(
    store: &Store,
    counts: &Counters,
    key: &Key,
    request: &Request,
) -> Result<Option<Module>> {
    let restored = restore(store, key, request);
    let counter = match &restored {
        Ok(Some(_)) => &counts.restored,
        Ok(None) => return Ok(None),
        Err(_) => &counts.failed,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    restored
}

/// The module from what another process has compiled.
fn restore(store: &Store, key: &Key, request: &Request) -> Result<Option<Module>> {
    let Some(binary) = request
        .source
        .is_compiled()
        .then(|| store.get(key))
        .flatten()
    else {
        return Ok(None);
    };
    let loaded = request
        .driver
        .module_load(request.device, sys::OTR_CODE_ELF, &binary, None);
    match loaded {
        Ok(module) => Ok(Some(module)),
        // Such a failure is not the binary's fault, and the source would fare no better.
        Err(error)
            if [
                Code::OUT_OF_MEMORY,
                Code::OUT_OF_HOST_MEMORY,
                Code::DEVICE_LOST,
            ]
            .contains(&error.code()) =>
        {
            Err(error)
        }
        Err(error) => {
            tracing::info!(target: "outrigger::modules", driver = request.driver.name(), %error,
                "the driver refuses what was compiled for it before; the source is compiled anew");
            store.remove(key);
            Ok(None)
        }
    }
}

/// Keeps the compiled form for other processes, where the driver tells it.
fn keep(store: &Store, key: &Key, request: &Request, module: &Module) {
    if !request.source.is_compiled() || store.folder().is_err() {
        return;
    }
    match module.binary() {
        Ok(binary) => {
            store.put(key, &binary);
        }
        Err(error) if error.code() == Code::UNSUPPORTED => {}
        Err(error) => {
            tracing::warn!(target: "outrigger::modules", driver = request.driver.name(), %error,
                "a compiled module cannot be kept: every process compiles it");
        }
    }
}

/// An error of a compiler, with the lines of the source that its log names.
fn with_lines(error: Error, code: &[u8]) -> Error {
    if error.code() != Code::INVALID_ARGUMENT {
        return error;
    }
    let Ok(source) = std::str::from_utf8(code) else {
        return error;
    };
    let lines = compiler_log::lines(error.message(), source);
    if lines.is_empty() {
        return error;
    }
    Error::new(
        error.code(),
        format!("{}\n{lines}", error.message().trim_end()),
    )
}
