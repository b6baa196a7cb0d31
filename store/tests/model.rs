//! Random calls on a store, compared with a map in memory.

use std::collections::HashMap;

use outrigger_store::{Key, Kind, Settings, Store};
use proptest::prelude::*;

const KINDS: [Kind; 3] = [
    Kind::new("first", 1),
    Kind::new("first", 2),
    Kind::new("second", 1),
];

#[derive(Clone, Debug)]
enum Call {
    Put(Key, Vec<u8>),
    Get(Key),
    Remove(Key),
    /// Another process begins.
    Open,
    /// Somebody deletes the folder.
    Delete,
}

fn key() -> impl Strategy<Value = Key> {
    (0..KINDS.len(), 0..4_u8)
        .prop_map(|(kind, source)| KINDS[kind].key().part("source", &[source]).finish())
}

fn call() -> impl Strategy<Value = Call> {
    let value = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        (0..3_usize, any::<u8>()).prop_map(|(pages, byte)| vec![byte; pages * 4096]),
    ];
    prop_oneof![
        4 => (key(), value).prop_map(|(key, value)| Call::Put(key, value)),
        4 => key().prop_map(Call::Get),
        2 => key().prop_map(Call::Remove),
        1 => Just(Call::Open),
        1 => Just(Call::Delete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_store_is_a_map(calls in proptest::collection::vec(call(), 1..60)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join("cache");
        let mut store = Store::open(Settings::at(&path));
        let mut model: HashMap<Key, Vec<u8>> = HashMap::new();
        for call in calls {
            match call {
                Call::Put(key, value) => {
                    prop_assert!(store.put(&key, &value));
                    model.insert(key, value);
                }
                Call::Get(key) => prop_assert_eq!(store.get(&key), model.get(&key).cloned()),
                Call::Remove(key) => {
                    store.remove(&key);
                    model.remove(&key);
                }
                Call::Open => store = Store::open(Settings::at(&path)),
                Call::Delete => {
                    let _ = std::fs::remove_dir_all(&path);
                    model.clear();
                }
            }
            let usage = store.usage().unwrap();
            prop_assert_eq!(usage.entries, model.len() as u64);
            let bytes = model.values().map(|value| (value.len() as u64 + 48).next_multiple_of(4096));
            prop_assert_eq!(usage.bytes, bytes.sum::<u64>());
        }
    }
}
