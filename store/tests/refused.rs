//! Folders that are not used, and systems without one: the store keeps nothing, and nobody fails.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outrigger_store::{Key, Kind, Settings, Store, Usage};

const KIND: Kind = Kind::new("refused", 1);

fn key() -> Key {
    KIND.key().part("source", b"x").finish()
}

fn keeps_nothing(store: &Store) -> bool {
    let kept = store.put(&key(), b"value");
    store.remove(&key());
    !kept && store.get(&key()).is_none()
}

#[test]
fn without_a_folder_nothing_is_kept() {
    let store = Store::open(Settings::off("for a test"));
    assert!(keeps_nothing(&store));
    assert_eq!(store.folder(), Err("for a test"));
    assert_eq!(store.usage().unwrap(), Usage::default());
}

#[test]
fn a_place_where_no_folder_can_be_made_keeps_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    assert!(keeps_nothing(&Store::open(Settings::at(
        file.join("cache")
    ))));
    assert!(keeps_nothing(&Store::open(Settings::at(
        "/proc/self/cache"
    ))));
    assert!(keeps_nothing(&Store::open(Settings::at("/dev/null"))));
}

#[test]
fn a_folder_of_somebody_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Settings::at(folder.path()));
    assert!(store.put(&key(), b"planted"));
    let foreign = if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(folder.path(), Some(1), None).unwrap();
        store
    } else {
        Store::open(Settings::at("/usr"))
    };
    assert!(keeps_nothing(&foreign));
    let text = foreign.usage().unwrap_err().to_string();
    assert!(text.contains("belongs to user"), "{text}");
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Settings::at(folder.path()));
    assert!(store.put(&key(), b"value"));
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for path in [folder.path(), &folder.path().join("refused")] {
        for mode in [0o770, 0o707] {
            set(path, mode);
            assert!(keeps_nothing(&store), "{mode:o}");
        }
        set(path, 0o755);
        assert!(store.put(&key(), b"value"));
    }
}

#[test]
fn what_is_made_is_for_the_user_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a").join("cache");
    assert!(Store::open(Settings::at(&path)).put(&key(), b"value"));
    let kind = path.join("refused");
    let file = std::fs::read_dir(&kind).unwrap().next().unwrap().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder.path().join("a")), 0o700);
    assert_eq!(mode(&path), 0o700);
    assert_eq!(mode(&kind), 0o700);
    assert_eq!(mode(&file.path()), 0o600);
    let tag = std::fs::read(path.join("CACHEDIR.TAG")).unwrap();
    assert!(tag.starts_with(b"Signature: 8a477f597d28d172789f06886806bc55"));
}

/// Counts warnings.
#[derive(Default)]
struct Warnings(Arc<AtomicU32>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_store_that_does_not_work_warns_once() {
    let warnings = Warnings::default();
    let count = warnings.0.clone();
    tracing::subscriber::with_default(warnings, || {
        assert!(keeps_nothing(&Store::open(Settings::off("for a test"))));
        assert_eq!(count.load(Ordering::Relaxed), 0);
        let store = Store::open(Settings::at("/proc/self/cache"));
        for _ in 0..3 {
            assert!(keeps_nothing(&store));
        }
    });
    assert_eq!(count.load(Ordering::Relaxed), 1);
}
