//! Copies and fills as values: what a queue is given, and what a graph keeps.

/// A copy; the addresses are of the sides that the way says.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Copy {
    pub(crate) way: Way,
    pub(crate) dst: u64,
    pub(crate) src: u64,
    pub(crate) size: u64,
}

/// The way of a copy: from where to where.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Way {
    /// A copy from host memory, which is pinned or not.
    ToDevice {
        pinned: bool,
    },
    ToHost {
        pinned: bool,
    },
    Within,
    /// Between two devices, by their numbers.
    Peer {
        to: u32,
        from: u32,
    },
    OnHost,
}

/// A fill, with a pattern of `length` bytes.
#[derive(Clone, Copy)]
pub(crate) struct Fill {
    pub(crate) dst: u64,
    pub(crate) size: u64,
    pub(crate) pattern: [u8; 16],
    pub(crate) length: u64,
}

/// Words of a fill, one in each row of `pitch` bytes.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    pub(crate) dst: u64,
    /// Bytes of a word: 1, 2 or 4.
    pub(crate) word: usize,
    pub(crate) value: u32,
    pub(crate) pitch: usize,
    pub(crate) rows: usize,
}

impl Column {
    /// Whether the words lie one behind the other.
    pub(crate) fn is_dense(&self) -> bool {
        self.word == self.pitch
    }
}

impl Fill {
    /// CUDA fills with words of 1, 2 and 4 bytes, aligned as such. Any other pattern is some columns of words, each of
    /// which is filled with a stride.
    pub(crate) fn columns(&self) -> impl ExactSizeIterator<Item = Column> {
        let Self {
            dst, size, pattern, ..
        } = *self;
        let mut length = self.length as usize;
        // The shortest pattern that repeats to the same bytes.
        while length > 1 && pattern[..length / 2] == pattern[length / 2..length] {
            length /= 2;
        }
        let word = (length as u64).min(4).min(1 << dst.trailing_zeros().min(2)) as usize;
        let count = if size == 0 { 0 } else { length / word };
        (0..count).map(move |number| {
            let at = number * word;
            let mut bytes = [0; 4];
            bytes[..word].copy_from_slice(&pattern[at..at + word]);
            Column {
                dst: dst + at as u64,
                word,
                value: u32::from_le_bytes(bytes),
                pitch: length,
                rows: size as usize / length,
            }
        })
    }
}
