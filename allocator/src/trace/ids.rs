//! The ids that a trace has used, and those of them that are still allocated: two bits for each.
//!
//! Ids mostly count up, so neighbours share a page, and the last page is remembered. A scattered id
//! costs one page of 64 bytes. The set must never grow with the value of an id.

use std::collections::HashMap;

/// The number of ids in a page.
const PAGE: u64 = 256;

/// Two bits of 256 ids: the word of `used`, and of `live`.
#[derive(Clone, Copy, Default)]
struct Page {
    used: [u64; 4],
    live: [u64; 4],
}

/// The state of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdState {
    Unused,
    Live,
    Freed,
}

/// The set of ids.
#[derive(Default)]
pub(super) struct Ids {
    numbers: HashMap<u64, usize>,
    pages: Vec<Page>,
    last: Option<(u64, usize)>, // of `numbers`
}

impl Ids {
    pub(super) fn state(&mut self, id: u64) -> IdState {
        let Some(page) = self.find(id / PAGE) else {
            return IdState::Unused;
        };
        let (word, bit) = place(id);
        let page = &self.pages[page];
        match (page.used[word] & bit != 0, page.live[word] & bit != 0) {
            (false, _) => IdState::Unused,
            (true, true) => IdState::Live,
            (true, false) => IdState::Freed,
        }
    }

    /// Marks an id as used and allocated.
    pub(super) fn allocate(&mut self, id: u64) {
        let key = id / PAGE;
        let page = self.find(key).unwrap_or_else(|| {
            let page = self.pages.len();
            self.pages.push(Page::default());
            self.numbers.insert(key, page);
            self.last = Some((key, page));
            page
        });
        let (word, bit) = place(id);
        self.pages[page].used[word] |= bit;
        self.pages[page].live[word] |= bit;
    }

    /// Marks a used id as freed.
    pub(super) fn free(&mut self, id: u64) {
        if let Some(page) = self.find(id / PAGE) {
            let (word, bit) = place(id);
            self.pages[page].live[word] &= !bit;
        }
    }

    fn find(&mut self, key: u64) -> Option<usize> {
        if let Some((last, page)) = self.last
            && last == key
        {
            return Some(page);
        }
        let page = *self.numbers.get(&key)?;
        self.last = Some((key, page));
        Some(page)
    }
}

fn place(id: u64) -> (usize, u64) {
    ((id % PAGE / 64) as usize, 1 << (id % 64))
}
