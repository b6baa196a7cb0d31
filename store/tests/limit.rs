//! A store keeps to its limit, and what it removes is what was used least recently.

use std::time::{Duration, SystemTime};

use outrigger_store::{Key, Kind, Settings, Store, Usage};

const KIND: Kind = Kind::new("many", 1);
const OTHER: Kind = Kind::new("other", 1);
const LIMIT: u64 = 1 << 20;

fn open(path: &std::path::Path) -> Store {
    Store::open(Settings {
        limit: LIMIT,
        touch_after: Duration::ZERO,
        ..Settings::at(path)
    })
}

fn key(kind: Kind, number: u32) -> Key {
    kind.key().part("number", &number.to_le_bytes()).finish()
}

#[test]
fn the_limit_holds_after_every_write_and_the_newest_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    // Five pages each, with the head.
    let value = vec![7; 4 * 4096];
    for number in 0..100 {
        let kind = if number % 2 == 0 { KIND } else { OTHER };
        assert!(store.put(&key(kind, number), &value));
        let usage = store.usage().unwrap();
        assert!(usage.bytes <= LIMIT, "after {number}: {usage:?}");
        assert!(usage.entries >= u64::from(number + 1).min(LIMIT * 7 / 8 / (5 * 4096)));
    }
    let left = store.usage().unwrap().entries as u32;
    for number in 0..100 {
        let kind = if number % 2 == 0 { KIND } else { OTHER };
        let there = store.get(&key(kind, number)).is_some();
        assert_eq!(there, number >= 100 - left, "{number} of {left}");
    }
}

#[test]
fn what_is_read_stays() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let value = vec![7; 4 * 4096];
    for number in 0..120 {
        assert!(store.put(&key(KIND, number), &value));
        assert!(store.get(&key(KIND, 0)).is_some(), "after {number}");
    }
    assert!(store.get(&key(KIND, 1)).is_none());
}

#[test]
fn a_read_is_noted_once_in_a_while_only() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Settings::at(folder.path()));
    assert!(store.put(&key(KIND, 0), b"value"));
    let files = std::fs::read_dir(folder.path().join("many")).unwrap();
    let path = files.map(|file| file.unwrap().path()).next().unwrap();
    let modified = || std::fs::metadata(&path).unwrap().modified().unwrap();
    let written = modified();
    assert!(store.get(&key(KIND, 0)).is_some());
    assert_eq!(modified(), written);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3601))
        .unwrap();
    assert!(store.get(&key(KIND, 0)).is_some());
    assert!(modified() >= written);
}

#[test]
fn what_fills_the_store_alone_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    assert!(store.put(&key(KIND, 0), b"small"));
    assert!(!store.put(&key(KIND, 1), &vec![0; LIMIT as usize / 2]));
    assert!(store.put(&key(KIND, 2), &vec![0; LIMIT as usize / 2 - 4096]));
    assert!(store.get(&key(KIND, 0)).is_some());
}

#[test]
fn what_others_wrote_counts_at_the_first_write_of_a_process() {
    let folder = tempfile::tempdir().unwrap();
    let large = Store::open(Settings::at(folder.path()));
    for number in 0..300 {
        assert!(large.put(&key(KIND, number), b"value"));
    }
    let store = open(folder.path());
    assert_eq!(store.usage().unwrap().entries, 300);
    assert!(store.put(&key(KIND, 300), b"value"));
    let all = LIMIT / 8 * 7;
    assert_eq!(
        store.usage().unwrap(),
        Usage {
            entries: all / 4096,
            bytes: all
        }
    );
    assert!(store.get(&key(KIND, 300)).is_some() && store.get(&key(KIND, 299)).is_some());
    assert!(store.get(&key(KIND, 0)).is_none());
}

#[test]
fn files_of_killed_writers_go_and_those_of_others_stay() {
    let folder = tempfile::tempdir().unwrap();
    assert!(open(folder.path()).put(&key(KIND, 0), b"value"));
    let many = folder.path().join("many");
    let age = |path: &std::path::Path, seconds: u64| {
        std::fs::write(path, b"half").unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds))
            .unwrap();
    };
    let old = [many.join(".tmp-77-1"), folder.path().join(".tmp-77-2")];
    let kept = [
        many.join(".tmp-77-3"),
        many.join("notes.txt"),
        folder.path().join("notes.txt"),
    ];
    old.iter().for_each(|path| age(path, 3600));
    age(&kept[0], 5);
    kept[1..].iter().for_each(|path| age(path, 3600));
    // The first write of a store sweeps.
    assert!(open(folder.path()).put(&key(KIND, 1), b"value"));
    assert!(old.iter().all(|path| !path.exists()));
    assert!(kept.iter().all(|path| path.exists()));
}
