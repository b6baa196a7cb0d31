//! Several processes on one store, and processes that are killed in the middle of it. The processes are this test itself,
//! with the role that [`ROLE`] names.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outrigger_store::{Key, Kind, Settings, Store};

const ROLE: &str = "OUTRIGGER_TEST_STORE";
const KIND: Kind = Kind::new("shared", 1);
const KEYS: u32 = 24;

fn key(number: u32) -> Key {
    KIND.key().part("number", &number.to_le_bytes()).finish()
}

/// The value of a key that a writer with this seed writes: all of it follows from its first eight bytes.
fn value(number: u32, seed: u32) -> Vec<u8> {
    let mut value = Vec::new();
    value.extend_from_slice(&number.to_le_bytes());
    value.extend_from_slice(&seed.to_le_bytes());
    let mut state = u64::from(number) << 32 | u64::from(seed) | 1;
    let words = next(&mut state) % 20_000;
    for _ in 0..words {
        value.extend_from_slice(&next(&mut state).to_le_bytes());
    }
    value
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn is_right(number: u32, found: &[u8]) -> bool {
    found.len() >= 8
        && found[..4] == number.to_le_bytes()
        && found == value(number, u32::from_le_bytes(found[4..8].try_into().unwrap()))
}

/// Small enough that all keys do not fit, so that entries are removed all the time.
fn open(path: &Path) -> Store {
    Store::open(Settings {
        limit: 1 << 20,
        touch_after: Duration::ZERO,
        ..Settings::at(path)
    })
}

/// A process with a role on the store at `path`.
fn start(role: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "role", "--nocapture"])
        .env(ROLE, format!("{role} {}", path.display()))
        .stdout(Stdio::null());
    command
}

/// The work of the started processes; the test does nothing in the process that runs the tests.
#[test]
fn role() {
    let Ok(text) = std::env::var(ROLE) else {
        return;
    };
    let (role, path) = text.split_once(' ').unwrap();
    let store = open(Path::new(path));
    let mut state = u64::from(std::process::id()) << 20 | 1;
    match role {
        "hammer" => {
            let end = Instant::now() + Duration::from_secs(3);
            while Instant::now() < end {
                step(&store, &mut state);
            }
        }
        "endless" => loop {
            step(&store, &mut state);
        },
        "read-only" => {
            assert!(is_right(1, &store.get(&key(1)).unwrap()));
            assert!(!store.put(&key(2), b"value"));
            assert!(!store.put(&key(1), b"value"));
            store.remove(&key(1));
            assert!(store.get(&key(1)).is_some());
        }
        _ => panic!("no role {role}"),
    }
}

/// One random call, with a check of what it finds.
fn step(store: &Store, state: &mut u64) {
    let number = (next(state) % u64::from(KEYS)) as u32;
    match next(state) % 8 {
        0..=2 => {
            // Not kept is right where another process removes the folder or sweeps; wrong would be to find half of it.
            store.put(&key(number), &value(number, next(state) as u32));
        }
        3 => store.remove(&key(number)),
        _ => {
            if let Some(found) = store.get(&key(number)) {
                assert!(is_right(number, &found), "key {number} has a wrong value");
            }
        }
    }
}

/// Every file of an entry is whole: a store that finds a broken one removes it, so each file that is there before has to
/// give its value.
fn check_all(path: &Path) -> usize {
    let store = open(path);
    let mut whole = 0;
    for number in 0..KEYS {
        let name = format!("{:?}", key(number));
        let exists = path.join(&name).exists();
        let found = store.get(&key(number));
        assert_eq!(found.is_some(), exists, "{name}");
        if let Some(found) = found {
            assert!(is_right(number, &found), "key {number} has a wrong value");
            whole += 1;
        }
    }
    whole
}

#[test]
fn processes_share_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let spawn = || start("hammer", folder.path()).spawn().unwrap();
    let children: Vec<Child> = (0..4).map(|_| spawn()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert!(check_all(folder.path()) > 0);
    let usage = open(folder.path()).usage().unwrap();
    // Four writers, each of which may pass the limit by a sixteenth and its last value.
    assert!(
        usage.bytes <= (1 << 20) + 4 * ((1 << 16) + (160 << 10)),
        "{usage:?}"
    );
}

#[test]
fn a_kill_at_any_point_leaves_whole_entries() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut most = 0;
    for _ in 0..60 {
        let mut child = start("endless", folder.path()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(5_000 + next(&mut state) % 40_000));
        child.kill().unwrap();
        child.wait().unwrap();
        most = most.max(check_all(folder.path()));
    }
    assert!(most > 3, "the processes were killed before they wrote");
}

#[test]
fn a_store_that_may_only_be_read_is_read() {
    const NOBODY: u32 = 65534;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    assert!(open(&path).put(&key(1), &value(1, 1)));
    let kind = path.join("shared");
    let root = rustix::process::geteuid().is_root();
    for folder in [&kind, &path] {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o500)).unwrap();
    }
    let mut command = start("read-only", &path);
    if root {
        // Nothing is forbidden to root, so somebody else reads.
        for path in [folder.path(), &path, &kind] {
            std::os::unix::fs::chown(path, Some(NOBODY), None).unwrap();
        }
        for file in std::fs::read_dir(&kind).unwrap() {
            std::os::unix::fs::chown(file.unwrap().path(), Some(NOBODY), None).unwrap();
        }
        command.uid(NOBODY);
    }
    assert!(command.status().unwrap().success());
    for folder in [&path, &kind] {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
}
