//! Files that are not what was written: each of them is absent, goes away, and can be written again.

use std::path::{Path, PathBuf};

use outrigger_store::{Key, Kind, Settings, Store};

const KIND: Kind = Kind::new("damaged", 1);

struct Bench {
    _folder: tempfile::TempDir,
    store: Store,
    key: Key,
    file: PathBuf,
}

impl Bench {
    fn new(value: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(Settings::at(folder.path()));
        let key = KIND.key().part("source", b"x").finish();
        assert!(store.put(&key, value));
        let mut files = std::fs::read_dir(folder.path().join("damaged")).unwrap();
        let file = files.next().unwrap().unwrap().path();
        assert!(files.next().is_none());
        Self {
            _folder: folder,
            store,
            key,
            file,
        }
    }

    fn is_absent_and_removed(&self) -> bool {
        self.store.get(&self.key).is_none() && !self.file.exists()
    }
}

#[test]
fn a_flipped_bit_anywhere_is_seen() {
    let bench = Bench::new(b"a small value");
    let whole = std::fs::read(&bench.file).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut broken = whole.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&bench.file, broken).unwrap();
        assert!(bench.is_absent_and_removed(), "bit {bit}");
    }
    assert!(bench.store.put(&bench.key, b"new"));
    assert_eq!(bench.store.get(&bench.key).unwrap(), b"new");
}

#[test]
fn a_file_that_was_cut_or_has_more_is_seen() {
    let bench = Bench::new(b"a small value");
    let whole = std::fs::read(&bench.file).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&bench.file, &whole[..length]).unwrap();
        assert!(bench.is_absent_and_removed(), "cut to {length}");
    }
    std::fs::write(&bench.file, [&whole[..], b"x"].concat()).unwrap();
    assert!(bench.is_absent_and_removed(), "one byte more");
    // Zeros are what a file system leaves where data was not yet written when the power went.
    std::fs::write(&bench.file, vec![0; whole.len()]).unwrap();
    assert!(bench.is_absent_and_removed(), "zeros");
}

#[test]
fn a_whole_file_under_another_name_is_not_taken() {
    let bench = Bench::new(b"for x");
    let other = KIND.key().part("source", b"y").finish();
    assert!(bench.store.put(&other, b"for y"));
    let files: Vec<_> = std::fs::read_dir(bench.file.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let other_file = files.iter().find(|file| **file != bench.file).unwrap();
    std::fs::copy(other_file, &bench.file).unwrap();
    assert!(bench.is_absent_and_removed());
    assert_eq!(bench.store.get(&other).unwrap(), b"for y");
}

#[test]
fn what_is_no_file_does_not_stop_anybody() {
    let bench = Bench::new(b"value");
    let whole = std::fs::read(&bench.file).unwrap();
    let replace = |make: &dyn Fn(&Path)| {
        let _ = std::fs::remove_file(&bench.file);
        make(&bench.file);
        assert_eq!(bench.store.get(&bench.key), None);
    };
    // To open a pipe to read waits for a writer.
    replace(&|path| {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    });
    let elsewhere = bench.file.with_extension("elsewhere");
    std::fs::write(&elsewhere, &whole).unwrap();
    replace(&|path| std::os::unix::fs::symlink(&elsewhere, path).unwrap());
    replace(&|path| std::fs::create_dir(path).unwrap());
}

#[test]
fn files_that_a_process_of_the_same_number_writes_are_left_alone() {
    let bench = Bench::new(b"value");
    let folder = bench.file.parent().unwrap();
    // A process in another container has the same number, and counts from 0 too.
    let theirs = |number| folder.join(format!(".tmp-{}-{number}", std::process::id()));
    for number in 0..200 {
        std::fs::write(theirs(number), b"theirs").unwrap();
    }
    assert!(bench.store.put(&bench.key, b"new"));
    assert_eq!(bench.store.get(&bench.key).unwrap(), b"new");
    for number in 0..200 {
        assert_eq!(
            std::fs::read(theirs(number)).unwrap(),
            b"theirs",
            "{number}"
        );
    }
}
