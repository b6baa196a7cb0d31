//! A folder of the store by its descriptor, and the calls of the system on it. Paths are used once, to open the root: what
//! was checked is what is used, also where somebody renames folders meanwhile.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

/// The beginning of the names of files that are being written.
const TEMPORARY: &str = ".tmp-";

/// Programs that make backups and know this convention leave the folder out.
const TAG: (&str, &[u8]) = (
    "CACHEDIR.TAG",
    b"Signature: 8a477f597d28d172789f06886806bc55\n# Outrigger keeps here what it can compute again.\n",
);

/// A folder that belongs to the user of the process, and which nobody else may write to.
#[derive(Debug)]
pub(crate) struct Folder(OwnedFd);

/// The bytes of a file, and the time when it was changed.
pub(crate) struct Contents {
    pub(crate) bytes: Vec<u8>,
    pub(crate) modified: Timespec,
}

/// An entry of a folder.
pub(crate) struct Item {
    pub(crate) name: Vec<u8>,
    pub(crate) stat: Stat,
}

impl Folder {
    /// The root of a store.
    ///
    /// # Errors
    /// `NotFound`; `PermissionDenied` for a folder of somebody else.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // The root may be a link, to a larger disk for example. What it leads to is what is checked.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::check(rustix::fs::open(path, flags, Mode::empty())?)
    }

    /// The same, made if it is missing.
    pub(crate) fn make(path: &Path) -> io::Result<Self> {
        match Self::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let root = Self::open(path)?;
        root.write(TAG.0, TAG.1)?;
        Ok(root)
    }

    /// A folder in this one.
    pub(crate) fn inner(&self, name: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Self::check(rustix::fs::openat(&self.0, name, flags, Mode::empty())?)
    }

    /// The same, made if it is missing.
    pub(crate) fn make_inner(&self, name: &str) -> io::Result<Self> {
        match self.inner(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        match rustix::fs::mkdirat(&self.0, name, Mode::RWXU) {
            Ok(()) => rustix::fs::fsync(&self.0)?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.inner(name)
    }

    fn check(folder: OwnedFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&folder)?;
        let user = rustix::process::geteuid().as_raw();
        let refuse = |text| Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        if stat.st_uid != user {
            return refuse(format!(
                "the folder belongs to user {}, and this process runs as user {user}: code is loaded from it, so it has \
                 to be the user's own",
                stat.st_uid
            ));
        }
        if Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
            return refuse(format!(
                "others may write to the folder (mode {:o}): code is loaded from it, so take that away (chmod go-w)",
                stat.st_mode & 0o7777
            ));
        }
        Ok(Self(folder))
    }

    /// All of a file.
    ///
    /// # Errors
    /// `NotFound`, also for what is not a plain file.
    pub(crate) fn read(&self, name: &str) -> io::Result<Contents> {
        // Without NONBLOCK, to open a pipe that somebody has put here would wait for ever.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut file = File::from(rustix::fs::openat(&self.0, name, flags, Mode::empty())?);
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut bytes = Vec::with_capacity(usize::try_from(stat.st_size).unwrap_or(0));
        file.read_to_end(&mut bytes)?;
        Ok(Contents {
            bytes,
            modified: modified(&stat),
        })
    }

    /// Makes a file, all of it or none, in place of one of that name. It is on the disk when this returns.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let (temporary, mut file) = self.create_temporary()?;
        let written = file.write_all(bytes).and_then(|()| {
            // By the clock itself: the time that the system writes down is that of its last tick.
            let now = now();
            rustix::fs::futimens(&file, &both(now))?;
            file.sync_all()?;
            rustix::fs::renameat(&self.0, &temporary, &self.0, name)?;
            Ok(())
        });
        if let Err(error) = written {
            let _ = self.unlink(&temporary);
            return Err(error);
        }
        rustix::fs::fsync(&self.0)?;
        Ok(())
    }

    fn create_temporary(&self) -> io::Result<(String, File)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        loop {
            // Numbers of processes repeat, in containers that share the folder for example. The next number is free.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{TEMPORARY}{}-{number}", std::process::id());
            match rustix::fs::openat(&self.0, &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok((name, file.into())),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Notes that a file was read, if the last note is older than `after`. Without success where that is not allowed: the
    /// file is removed a little earlier then.
    pub(crate) fn touch(&self, name: &str, modified: Timespec, after: Duration) {
        let now = now();
        if apart(now, modified) >= after {
            let _ = rustix::fs::utimensat(&self.0, name, &both(now), AtFlags::SYMLINK_NOFOLLOW);
        }
    }

    /// Removes a file.
    pub(crate) fn unlink(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// The entries of the folder, without those that go away meanwhile.
    pub(crate) fn list(&self) -> io::Result<Vec<Item>> {
        let mut items = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name();
            if [&b"."[..], b".."].contains(&name.to_bytes()) {
                continue;
            }
            if let Ok(stat) = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
                let name = name.to_bytes().to_vec();
                items.push(Item { name, stat });
            }
        }
        Ok(items)
    }

    /// A lock that one process holds at a time, until the file is closed; `None` if another has it.
    pub(crate) fn try_lock(&self, name: &str) -> io::Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            // Not every file system has locks. Then two may do the same work, which harms nobody.
            _ => Ok(Some(file.into())),
        }
    }
}

impl Item {
    pub(crate) fn is_folder(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Directory
    }

    pub(crate) fn is_file(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::RegularFile
    }

    /// Whether it was left over by a process that was killed: nobody writes at one file for that long.
    pub(crate) fn is_left_over(&self, after: Duration) -> bool {
        self.name.starts_with(TEMPORARY.as_bytes()) && apart(now(), modified(&self.stat)) >= after
    }

    pub(crate) fn modified(&self) -> Timespec {
        modified(&self.stat)
    }
}

fn now() -> Timespec {
    rustix::time::clock_gettime(rustix::time::ClockId::Realtime)
}

fn both(time: Timespec) -> Timestamps {
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn modified(stat: &Stat) -> Timespec {
    Timespec {
        tv_sec: stat.st_mtime,
        tv_nsec: stat.st_mtime_nsec as _,
    }
}

/// The distance of two times. A time in the future is as far away as one in the past: clocks are set.
fn apart(a: Timespec, b: Timespec) -> Duration {
    let nanoseconds =
        |time: Timespec| i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    let difference = nanoseconds(a).abs_diff(nanoseconds(b));
    Duration::from_nanos(u64::try_from(difference).unwrap_or(u64::MAX))
}
