//! Counts what a store takes, and removes what was used least recently where that is too much. One process at a time does
//! it; nobody waits for it.

use std::io;
use std::time::Duration;

use crate::folder::{Folder, Item};
use crate::key::Key;

/// The file whose lock a process holds while it sweeps.
const LOCK: &str = "lock";

/// When a file that is being written counts as left over. Whoever is that slow finds its file gone and keeps nothing.
const LEFT_OVER: Duration = Duration::from_secs(600);

/// The room that entries take on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of entries.
    pub entries: u64,
    /// The bytes of the entries, in whole pages.
    pub bytes: u64,
}

/// The room that a file of this size counts as: file systems give whole pages, and thousands of small entries are
/// common.
pub(crate) fn cost(size: u64) -> u64 {
    size.next_multiple_of(4096)
}

/// The room that all entries take.
pub(crate) fn usage(root: &Folder) -> io::Result<Usage> {
    let mut usage = Usage::default();
    for (_, items) in folders(root)? {
        for item in items.iter().filter(|item| is_entry(item)) {
            usage.entries += 1;
            usage.bytes += cost(item.stat.st_size as u64);
        }
    }
    Ok(usage)
}

/// Removes left-over files, and the entries that were used least recently, if they take more than `limit`. Answers what
/// is left, or `None` if another process sweeps at this moment.
pub(crate) fn sweep(root: &Folder, limit: u64) -> io::Result<Option<u64>> {
    let Some(_lock) = root.try_lock(LOCK)? else {
        return Ok(None);
    };
    let is_left_over = |item: &&Item| item.is_file() && item.is_left_over(LEFT_OVER);
    for item in root.list()?.iter().filter(is_left_over) {
        gone(unlink(root, item))?;
    }
    let folders = folders(root)?;
    let mut entries = Vec::new();
    let mut total = 0;
    for (folder, items) in &folders {
        for item in items.iter().filter(is_left_over) {
            gone(unlink(folder, item))?;
        }
        for item in items.iter().filter(|item| is_entry(item)) {
            total += cost(item.stat.st_size as u64);
            entries.push((item, folder));
        }
    }
    if total <= limit {
        return Ok(Some(total));
    }
    // An eighth of room, so that not every write has to sweep.
    let target = limit - limit / 8;
    entries.sort_by_key(|(item, _)| {
        let used = item.modified();
        (used.tv_sec, used.tv_nsec)
    });
    let mut removed = 0_u64;
    for (item, folder) in entries {
        if total <= target {
            break;
        }
        gone(unlink(folder, item))?;
        total -= cost(item.stat.st_size as u64);
        removed += 1;
    }
    tracing::debug!(target: "outrigger::store", removed, left = total, limit,
        "entries that were used least recently are removed");
    Ok(Some(total))
}

/// The folders of all kinds, with what stands in them.
fn folders(root: &Folder) -> io::Result<Vec<(Folder, Vec<Item>)>> {
    let mut folders = Vec::new();
    for item in root.list()?.iter().filter(|item| item.is_folder()) {
        let Ok(name) = std::str::from_utf8(&item.name) else {
            continue;
        };
        // Folders that are not of a store, or that go away meanwhile, are not counted.
        if let Ok(folder) = root.inner(name)
            && let Ok(items) = folder.list()
        {
            folders.push((folder, items));
        }
    }
    Ok(folders)
}

fn is_entry(item: &Item) -> bool {
    item.is_file() && Key::is_file_name(&item.name)
}

fn unlink(folder: &Folder, item: &Item) -> io::Result<()> {
    // Names of entries and of files that are being written are plain text.
    folder.unlink(&String::from_utf8_lossy(&item.name))
}

/// A file that somebody else has removed is as good.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
