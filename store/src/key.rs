//! Names of entries. A name is the hash of everything that its value depends on, so that no entry can be stale: what
//! depends on something else has another name.

use std::fmt;

/// The sort of a value, and the version of their format: values of another version are never seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub(crate) name: &'static str,
    version: u32,
}

impl Kind {
    /// A kind by its name, which is a folder's: lower case letters, digits and `-`, beginning with a letter.
    ///
    /// # Panics
    /// For another name; at compile time in a constant.
    pub const fn new(name: &'static str, version: u32) -> Self {
        let bytes = name.as_bytes();
        assert!(
            !bytes.is_empty() && bytes[0].is_ascii_lowercase(),
            "the name of a kind begins with a lower case letter"
        );
        let mut at = 1;
        while at < bytes.len() {
            assert!(
                bytes[at].is_ascii_lowercase() || bytes[at].is_ascii_digit() || bytes[at] == b'-',
                "the name of a kind has lower case letters, digits and `-`"
            );
            at += 1;
        }
        Self { name, version }
    }

    /// Begins a key of this kind.
    pub fn key(self) -> KeyBuilder {
        // The context keeps these hashes apart from all others, and from those of another file format of ours.
        let mut hasher =
            blake3::Hasher::new_derive_key("outrigger store, names of entries, format 1");
        hasher.update(&self.version.to_le_bytes());
        KeyBuilder { kind: self, hasher }.part("kind", self.name.as_bytes())
    }
}

/// A [`Key`] in the making.
#[derive(Clone)]
pub struct KeyBuilder {
    kind: Kind,
    hasher: blake3::Hasher,
}

impl KeyBuilder {
    /// Adds something that the value depends on. The order counts.
    #[must_use]
    pub fn part(mut self, name: &str, value: &[u8]) -> Self {
        // Lengths stand in front, so that no two lists of parts are the same bytes.
        for bytes in [name.as_bytes(), value] {
            self.hasher.update(&(bytes.len() as u64).to_le_bytes());
            self.hasher.update(bytes);
        }
        self
    }

    /// The key.
    pub fn finish(self) -> Key {
        Key {
            kind: self.kind.name,
            digest: self.hasher.finalize().into(),
        }
    }
}

impl fmt::Debug for KeyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyBuilder")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// The name of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    kind: &'static str,
    digest: [u8; 32],
}

impl Key {
    /// The name of its kind.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The hash, as text.
    pub fn name(&self) -> String {
        blake3::Hash::from_bytes(self.digest).to_hex().to_string()
    }

    pub(crate) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The key with this name.
    pub(crate) fn named(kind: Kind, name: &[u8]) -> Option<Self> {
        let is_name = !name.iter().any(u8::is_ascii_uppercase);
        let hash = blake3::Hash::from_hex(name).ok().filter(|_| is_name)?;
        Some(Self {
            kind: kind.name,
            digest: hash.into(),
        })
    }

    /// Whether a file of this name is an entry.
    pub(crate) fn is_file_name(name: &[u8]) -> bool {
        blake3::Hash::from_hex(name).is_ok() && !name.iter().any(u8::is_ascii_uppercase)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, Kind};

    const KIND: Kind = Kind::new("test-1", 1);

    #[test]
    fn keys_differ_in_kind_version_names_values_borders_and_order_of_parts() {
        let keys = [
            KIND.key().part("a", b"xy").part("b", b"z"),
            KIND.key().part("a", b"x").part("b", b"yz"),
            KIND.key().part("b", b"z").part("a", b"xy"),
            KIND.key().part("a", b"xy").part("c", b"z"),
            KIND.key().part("a", b"xy").part("b", b"z").part("", b""),
            KIND.key().part("a", b"xy"),
            Kind::new("test-1", 2)
                .key()
                .part("a", b"xy")
                .part("b", b"z"),
            Kind::new("test-2", 1)
                .key()
                .part("a", b"xy")
                .part("b", b"z"),
        ]
        .map(|key| *key.finish().digest());
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[at + 1..].contains(key), "key {at} has a twin");
        }
    }

    #[test]
    fn a_key_is_the_same_in_every_process_and_version() {
        let name = KIND.key().part("source", b"text").finish().name();
        assert_eq!(
            name,
            "e34104a7eee2d0892bdff99312381ae3956cbd3c3970a2a42618e1fd643298ad"
        );
        assert!(Key::is_file_name(name.as_bytes()));
    }

    #[test]
    fn other_files_are_no_entries() {
        let upper = "A".repeat(64);
        for name in [".tmp-1-2", "", "lock", "abc", upper.as_str()] {
            assert!(!Key::is_file_name(name.as_bytes()), "{name}");
        }
    }

    #[test]
    #[should_panic(expected = "lower case")]
    fn a_kind_is_no_path() {
        let _ = Kind::new("a/../b", 1);
    }
}
