//! The project's one store on disk, for everything that was computed once and is worth keeping for the next process:
//! compiled modules, tuned choices, compiled code.
//!
//! An entry is one file: its name is the hash of everything that the value depends on ([`Key`]), and its content carries
//! a checksum. So there is nothing to keep consistent between files, an entry never changes its meaning, and what does
//! not check is absent. The file is written beside its place, flushed and renamed: any process sees all of it or
//! nothing, whoever is killed when.
//!
//! A store is a help, never a condition. What goes wrong on the disk costs the help and nothing else: [`Store::get`] then
//! answers `None` and [`Store::put`] `false`, with one warning. Reading takes no lock. The folder may be deleted at any
//! time, also while programs use it.
//!
//! Code is loaded from here. So the folder has to belong to the user of the process, and nobody else may write to it.
//!
//! ```
//! use outrigger_store::{Kind, Settings, Store};
//!
//! const MODULES: Kind = Kind::new("modules", 1);
//!
//! # let folder = tempfile::tempdir().unwrap();
//! let store = Store::open(Settings::at(folder.path()));
//! let key = MODULES.key().part("source", b"int main;").part("options", b"-O2").finish();
//! assert_eq!(store.get(&key), None);
//! store.put(&key, b"compiled");
//! assert_eq!(store.get(&key).as_deref(), Some(&b"compiled"[..]));
//! ```

#![forbid(unsafe_code)]

mod entry;
mod folder;
mod key;
mod settings;
mod sweep;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use folder::Folder;
pub use key::{Key, KeyBuilder, Kind};
pub use settings::{DEFAULT_LIMIT, Settings, SettingsError};
pub use sweep::Usage;

/// The place where values are kept from process to process. Cheap to clone; all clones are one store.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    /// Bytes that all entries took when they were last counted; [`UNKNOWN`] before.
    counted: AtomicU64,
    /// Bytes that this process has written since.
    written: AtomicU64,
    warned: AtomicBool,
}

const UNKNOWN: u64 = u64::MAX;

impl Store {
    /// The store with these settings. Nothing is read or made before the first use.
    pub fn open(settings: Settings) -> Self {
        if let Err(reason) = &settings.folder {
            tracing::debug!(target: "outrigger::store", reason, "nothing is kept from process to process");
        }
        Self(Arc::new(Inner {
            settings,
            counted: AtomicU64::new(UNKNOWN),
            written: AtomicU64::new(0),
            warned: AtomicBool::new(false),
        }))
    }

    /// The store of this process, which the environment names. The first call reads it.
    ///
    /// # Errors
    /// Names the variable whose value makes no sense.
    pub fn of_process() -> Result<Self, SettingsError> {
        static STORE: OnceLock<Result<Store, SettingsError>> = OnceLock::new();
        let store = STORE.get_or_init(|| Settings::from_environment().map(Self::open));
        store.clone()
    }

    /// The folder of the store, or why there is none.
    pub fn folder(&self) -> Result<&Path, &str> {
        match &self.0.settings.folder {
            Ok(folder) => Ok(folder),
            Err(reason) => Err(reason),
        }
    }

    /// The value of a key; `None` if there is none that is whole.
    pub fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.folder().ok()?;
        match self.read(path, key) {
            Ok(value) => value,
            Err(error) => {
                self.warn(path, "read", &error);
                None
            }
        }
    }

    /// Keeps a value, in place of one that the key may have. Answers whether it was kept: not where the store is off, the
    /// disk refuses it, or it is larger than half of the limit.
    pub fn put(&self, key: &Key, value: &[u8]) -> bool {
        let Ok(path) = self.folder() else {
            return false;
        };
        let file = entry::encode(key, value);
        let cost = sweep::cost(file.len() as u64);
        if cost > self.0.settings.limit / 2 {
            tracing::debug!(target: "outrigger::store", kind = key.kind(), bytes = value.len(),
                limit = self.0.settings.limit, "a value is too large to be kept");
            return false;
        }
        if let Err(error) = self.write(path, key, &file) {
            self.warn(path, "written", &error);
            return false;
        }
        self.grown(path, cost);
        true
    }

    /// Removes the value of a key, as one does with a value that turned out to be of no use.
    pub fn remove(&self, key: &Key) {
        let Ok(path) = self.folder() else {
            return;
        };
        let removed = Folder::open(path)
            .and_then(|root| root.inner(key.kind()))
            .and_then(|folder| folder.unlink(&key.name()));
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.warn(path, "removed", &error);
            }
            _ => {}
        }
    }

    /// The values of all keys of a kind, in no order. Other versions of the kind have theirs among them.
    ///
    /// # Errors
    /// What the system answers where the folder cannot be read.
    pub fn values(&self, kind: Kind) -> io::Result<Vec<Vec<u8>>> {
        let listed = self.folder().map_or(Ok(Vec::new()), |path| {
            Folder::open(path)?.inner(kind.name)?.list()
        });
        let items = match listed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed?,
        };
        let keys = items.iter().filter_map(|item| Key::named(kind, &item.name));
        Ok(keys.filter_map(|key| self.get(&key)).collect())
    }

    /// The room that the entries take on the disk now.
    ///
    /// # Errors
    /// What the system answers where the folder cannot be read.
    pub fn usage(&self) -> io::Result<Usage> {
        let Ok(path) = self.folder() else {
            return Ok(Usage::default());
        };
        match Folder::open(path) {
            Ok(root) => sweep::usage(&root),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Usage::default()),
            Err(error) => Err(error),
        }
    }

    fn read(&self, path: &Path, key: &Key) -> io::Result<Option<Vec<u8>>> {
        let name = key.name();
        let absent = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            _ => Err(error),
        };
        let folder = match Folder::open(path).and_then(|root| root.inner(key.kind())) {
            Ok(folder) => folder,
            Err(error) => return absent(error),
        };
        let file = match folder.read(&name) {
            Ok(file) => file,
            Err(error) => return absent(error),
        };
        match entry::decode(key, file.bytes) {
            Ok(value) => {
                folder.touch(&name, file.modified, self.0.settings.touch_after);
                Ok(Some(value))
            }
            Err(problem) => {
                tracing::warn!(target: "outrigger::store", kind = key.kind(), name, problem,
                    "a broken entry is removed");
                // If another process has just put a whole entry in its place, that one is removed: it counts as absent,
                // which is always allowed.
                folder
                    .unlink(&name)
                    .or_else(|error| absent(error).map(drop))?;
                Ok(None)
            }
        }
    }

    fn write(&self, path: &Path, key: &Key, file: &[u8]) -> io::Result<()> {
        let folder = Folder::make(path)?.make_inner(key.kind())?;
        folder.write(&key.name(), file)
    }

    /// Counts what was written, and makes room where the limit may have been passed.
    fn grown(&self, path: &Path, cost: u64) {
        let Inner {
            settings,
            counted,
            written,
            ..
        } = &*self.0;
        let mine = written.fetch_add(cost, Ordering::Relaxed) + cost;
        let before = counted.load(Ordering::Relaxed);
        // Others write too, and are not heard of until all is counted again.
        let stale = before == UNKNOWN || mine > settings.limit / 16;
        if !stale && before + mine <= settings.limit {
            return;
        }
        match Folder::open(path).and_then(|root| sweep::sweep(&root, settings.limit)) {
            Ok(Some(left)) => {
                counted.store(left, Ordering::Relaxed);
                written.store(0, Ordering::Relaxed);
            }
            // Another process does it at this moment. The next write asks again.
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.warn(path, "swept", &error),
        }
    }

    /// Says once that the store is of no help.
    fn warn(&self, path: &Path, what: &str, error: &io::Error) {
        if self.0.warned.swap(true, Ordering::Relaxed) {
            tracing::debug!(target: "outrigger::store", %error, "an entry could not be {what}");
        } else {
            tracing::warn!(target: "outrigger::store", folder = %path.display(), %error,
                "an entry could not be {what}; work goes on without what is kept from process to process");
        }
    }
}
