//! Measures an allocation and its free when the cache serves them: the price that a framework pays for
//! every tensor.

use outrigger_allocator::{Allocator, Backend, Config, StreamId};

fn main() {
    divan::main();
}

/// A device with endless memory, whose work is always done.
struct Endless(std::sync::atomic::AtomicU64);

impl Backend for Endless {
    type Error = std::convert::Infallible;
    type Fence = ();

    fn segment_alloc(&self, size: u64) -> Result<u64, Self::Error> {
        Ok(self.0.fetch_add(size, std::sync::atomic::Ordering::Relaxed))
    }

    fn segment_free(&self, _: u64) {}

    fn is_out_of_memory(&self, error: &Self::Error) -> bool {
        match *error {}
    }

    fn fence(&self, _: StreamId) -> Result<(), Self::Error> {
        Ok(())
    }

    fn fence_done(&self, (): &()) -> bool {
        true
    }

    fn fence_wait(&self, (): &()) -> Result<(), Self::Error> {
        Ok(())
    }
}

fn allocator() -> Allocator<Endless> {
    Allocator::new(Endless((1 << 40).into()), Config::default())
}

/// One block, allocated and freed again and again: it is split off and joined each time.
#[divan::bench(args = [512, 100_000, 5 << 20, 100 << 20])]
fn pair(bencher: divan::Bencher, size: u64) {
    let allocator = allocator();
    bencher.bench_local(|| {
        let block = allocator.alloc(size, StreamId(0)).unwrap();
        allocator.free(block.address).unwrap();
    });
}

/// 1000 blocks of mixed sizes in use; each step replaces one of them.
#[divan::bench]
fn pair_among_1000(bencher: divan::Bencher) {
    let allocator = allocator();
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let size = |random: u64| 1 + (random >> 32) % (1 << (9 + random % 13));
    let mut blocks: Vec<u64> = (0..1000)
        .map(|_| allocator.alloc(size(next()), StreamId(0)).unwrap().address)
        .collect();
    bencher.bench_local(|| {
        let random = next();
        let place = (random >> 20) as usize % blocks.len();
        allocator.free(blocks[place]).unwrap();
        blocks[place] = allocator.alloc(size(random), StreamId(0)).unwrap().address;
    });
}

/// Pairs on two streams in turn.
#[divan::bench]
fn pair_on_two_streams(bencher: divan::Bencher) {
    let allocator = allocator();
    let mut stream = 0;
    bencher.bench_local(|| {
        stream ^= 1;
        let block = allocator.alloc(4096, StreamId(stream)).unwrap();
        allocator.free(block.address).unwrap();
    });
}

/// Finding the block around an address inside of it.
#[divan::bench]
fn lookup(bencher: divan::Bencher) {
    let allocator = allocator();
    let blocks: Vec<u64> = (0..1000)
        .map(|_| allocator.alloc(100_000, StreamId(0)).unwrap().address)
        .collect();
    let mut at = 0;
    bencher.bench_local(|| {
        at = (at + 7) % blocks.len();
        allocator.lookup(blocks[at] + 5000)
    });
}
