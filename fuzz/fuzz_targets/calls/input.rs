//! Makes arguments from bytes. When the bytes are used up, all arguments are 0.

use super::world::World;

/// The rest of an input.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next byte, if there is one.
    pub(crate) fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// Any number, small ones more often.
    pub(crate) fn number(&mut self) -> u64 {
        let width = self.byte() % 9;
        (0..width).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// A size in bytes that can be had, mostly.
    pub(crate) fn size(&mut self) -> u64 {
        match self.byte() {
            255 => self.number(),
            many => u64::from(many) * u64::from(self.byte()),
        }
    }

    /// A device, mostly one that is there.
    pub(crate) fn device(&mut self) -> u32 {
        match self.byte() {
            255 => self.number() as u32,
            other => u32::from(other % 2),
        }
    }

    /// A copy kind, mostly one that is none.
    pub(crate) fn kind(&mut self) -> u32 {
        self.number() as u32
    }

    /// One of `of`.
    pub(crate) fn pick(&mut self, of: &[u64]) -> Option<u64> {
        let index = usize::from(self.byte());
        (!of.is_empty()).then(|| of[index % of.len()])
    }

    /// A handle: live or stale, of any kind; or made up.
    pub(crate) fn handle(&mut self, world: &World) -> u64 {
        match self.byte() {
            0 => 0,
            1 => self.number(),
            2 => self.pick(&world.handles).unwrap_or(0) ^ self.number(),
            _ => self.pick(&world.handles).unwrap_or(0),
        }
    }

    /// An address: in a live block, behind one, stale, or made up.
    pub(crate) fn address(&mut self, world: &World) -> u64 {
        let blocks: Vec<u64> = world.blocks.iter().map(|block| block.address).collect();
        match self.byte() {
            0 => self.number(),
            1 => self.pick(&world.stale).unwrap_or(0),
            2 => self.pick(&blocks).unwrap_or(0).wrapping_add(self.number()),
            _ => self.pick(&blocks).unwrap_or(0),
        }
    }
}
