//! One thread of the soak, with its random numbers and its own objects. It chooses actions by their
//! weights until the round ends.

use std::sync::{Arc, PoisonError};

use fastrand::Rng;

use crate::actions::{ACTIONS, Action};
use crate::library::{call, made};
use crate::world::{Block, BlockHeld, Pool, Stream, World};

/// Streams with memory that a device has at most, beside those of the runtime.
const PLAIN: usize = 4;

/// A thread.
pub(crate) struct Actor {
    pub(crate) world: &'static World,
    pub(crate) rng: Rng,
    /// Labels that were pushed.
    pub(crate) labels: usize,
    /// Uses of pools that were begun, the last one last.
    pub(crate) uses: Vec<Arc<Pool>>,
    /// A stream of each device that nobody else knows, made when it is needed.
    private: Vec<Option<Arc<Stream>>>,
    /// An event of each device, likewise.
    joints: Vec<Option<u64>>,
    /// Memory whose contents this thread knows.
    pub(crate) kept: Vec<crate::actions::private::Kept>,
}

impl Actor {
    pub(crate) fn new(world: &'static World, seed: u64) -> Self {
        let devices = world.devices as usize;
        Self {
            world,
            rng: Rng::with_seed(seed),
            labels: 0,
            uses: Vec::new(),
            private: vec![None; devices],
            joints: vec![None; devices],
            kept: Vec::new(),
        }
    }

    /// Acts until it is told to stop, then gives back what is the thread's alone.
    pub(crate) fn run(mut self, only: &[&'static Action], mut go_on: impl FnMut() -> bool) {
        let total: u32 = only.iter().map(|action| action.weight).sum();
        while go_on() {
            let mut ticket = self.rng.u32(..total);
            for action in only {
                if ticket < action.weight {
                    let _awake = action.uses_any_pool().then(|| {
                        let lock = &self.world.falling_asleep;
                        lock.read().unwrap_or_else(PoisonError::into_inner)
                    });
                    (action.act)(&mut self);
                    break;
                }
                ticket -= action.weight;
            }
        }
        self.give_back();
    }

    fn give_back(&mut self) {
        for _ in 0..std::mem::take(&mut self.labels) {
            let _ = call!(memory_label_pop());
        }
        while let Some(pool) = self.uses.pop() {
            let _ = call!(pool_end_use(pool.id));
        }
        for kept in std::mem::take(&mut self.kept) {
            kept.give_back();
        }
        for event in self.joints.iter_mut().filter_map(Option::take) {
            let _ = call!(event_destroy(event));
        }
        for stream in std::mem::take(&mut self.private).into_iter().flatten() {
            let _ = call!(stream_destroy(stream.id));
        }
    }

    /// One in `many`.
    pub(crate) fn chance(&mut self, many: u32) -> bool {
        self.rng.u32(..many) == 0
    }

    /// A device that is there.
    pub(crate) fn device(&mut self) -> u32 {
        self.rng.u32(..self.world.devices)
    }

    /// Mostly a device that is there.
    pub(crate) fn any_device(&mut self) -> u32 {
        if self.chance(50) {
            return *self
                .rng
                .choice(&[self.world.devices + 50, u32::MAX, 1 << 20])
                .unwrap_or(&99);
        }
        self.device()
    }

    /// A size in bytes: mostly small, sometimes more than there is.
    pub(crate) fn size(&mut self) -> u64 {
        match self.rng.u32(..100) {
            0..50 => self.rng.u64(1..4096),
            50..85 => self.rng.u64(4096..1 << 18),
            85..97 => self.rng.u64(1 << 18..4 << 20),
            97..99 => self.rng.u64(4 << 20..48 << 20),
            _ => self.rng.u64(1 << 30..1 << 50),
        }
    }

    /// `handle`, or sometimes one that is 0, made up, or was given back.
    pub(crate) fn or_garbage(&mut self, handle: Option<u64>) -> u64 {
        let chance = self.rng.u32(..40);
        match (handle, chance) {
            (Some(handle), 1..) => handle,
            _ => self.garbage(),
        }
    }

    /// No handle of a live thing.
    pub(crate) fn garbage(&mut self) -> u64 {
        match self.rng.u32(..4) {
            0 => 0,
            1 => self.rng.u64(..) | 1 << 63,
            2 => u64::MAX,
            _ => self.world.stale(&mut self.rng),
        }
    }

    /// A stream with memory, of any device or of one.
    pub(crate) fn plain(&mut self, device: Option<u32>) -> Option<Arc<Stream>> {
        let fits = |stream: &Stream| device.is_none_or(|device| stream.device == device);
        let found = self.world.plain.pick_where(&mut self.rng, fits);
        found.or_else(|| self.add_plain(device))
    }

    /// Adds a stream with memory, if there is room for one.
    pub(crate) fn add_plain(&mut self, device: Option<u32>) -> Option<Arc<Stream>> {
        let device = device.unwrap_or_else(|| self.device());
        if self.world.plain.len() >= PLAIN * self.world.devices as usize {
            return None;
        }
        let priority = self.rng.i32(-3..3);
        let (id, owned) = match self.rng.u32(..8) {
            0 => (made(|out| call!(stream_default(device, out))).ok()?, false),
            1 => (
                made(|out| call!(stream_from_pool(device, priority, out))).ok()?,
                false,
            ),
            _ => (
                made(|out| call!(stream_create(device, priority, out))).ok()?,
                true,
            ),
        };
        Some(self.world.plain.add(Stream { id, device, owned }))
    }

    /// The stream of this thread alone.
    pub(crate) fn private(&mut self, device: u32) -> Option<Arc<Stream>> {
        let index = device as usize;
        if self.private[index].is_none() {
            self.private[index] = self.world.stream(device, 0).map(Arc::new);
        }
        self.private[index].clone()
    }

    /// An event of this thread alone.
    pub(crate) fn joint(&mut self, device: u32) -> Option<u64> {
        let index = device as usize;
        if self.joints[index].is_none() {
            self.joints[index] = made(|out| call!(event_create(device, 0, out))).ok();
        }
        self.joints[index]
    }

    /// A block that nobody else submits work on, of at least so many bytes.
    pub(crate) fn block(&mut self, bytes: u64, fits: impl Fn(&Block) -> bool) -> Option<BlockHeld> {
        let fits = |block: &Block| block.size >= bytes && fits(block);
        self.world.blocks.pick_where(&mut self.rng, fits)?.hold()
    }

    /// Submits work of a stream on a block of another, ordered by events before and after. `None` if the
    /// work could not be ordered, or failed.
    pub(crate) fn visit(
        &mut self,
        held: &BlockHeld,
        stream: &Stream,
        work: impl FnOnce(&mut Self) -> bool,
    ) -> Option<()> {
        let block = &held.block;
        if block.home.id == stream.id {
            return work(self).then_some(());
        }
        let there = self.joint(block.home.device)?;
        let back = self.joint(stream.device)?;
        call!(event_record(there, block.home.id)).ok()?;
        call!(stream_wait_event(stream.id, there)).ok()?;
        let done = work(self);
        let joined = call!(event_record(back, stream.id))
            .and_then(|()| call!(stream_wait_event(block.home.id, back)));
        if joined.is_err() {
            block.spoil();
            // The call says so where it can; the block is freed when all work has ended.
            let _ = call!(memory_record_stream(
                block.home.device,
                block.address,
                stream.id
            ));
        }
        done.then_some(())
    }
}

/// The actions of the groups that are asked for.
pub(crate) fn chosen(only: &[String], without: &[String]) -> Vec<&'static Action> {
    let asked = |action: &&Action| {
        let group = action.group.to_owned();
        (only.is_empty() || only.contains(&group)) && !without.contains(&group)
    };
    ACTIONS
        .iter()
        .flat_map(|group| group.iter())
        .filter(asked)
        .collect()
}
