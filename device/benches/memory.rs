//! What memory of the `host` driver costs: taking, mapping and touching it, and what a stream of adds
//! gets out of it. Allocated and mapped memory should be alike. `cargo bench -p outrigger-device`.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use outrigger_device::{Driver, Physical};

fn main() {
    divan::main();
}

/// Bytes of each operand of the add, and of what is touched first.
const SIZE: u64 = 64 << 20;
/// Addresses between two views, in bytes. Without it the operands of the add would lie 128 MiB apart, at
/// which the processor's translation of addresses is a third slower, mapped or not.
const GAP: u64 = 2 << 20;

fn driver() -> Driver {
    let spec = "host?devices=1&memory=1G&virtual_memory=on"
        .parse()
        .expect("a specification");
    Driver::open(&spec).expect("the built-in driver opens")
}

/// How memory comes to an address.
#[derive(Clone, Copy, Debug)]
enum How {
    Allocated,
    /// Objects of 2 MiB.
    MappedIn2M,
    /// Objects of 32 MiB.
    MappedIn32M,
    /// Objects of 2 MiB that are mapped elsewhere too, behind each other in another order.
    View,
}

const WAYS: [How; 4] = [How::Allocated, How::MappedIn2M, How::MappedIn32M, How::View];

/// Memory at an address, given back at its end.
struct Memory<'a> {
    driver: &'a Driver,
    address: u64,
    /// Where it is mapped besides.
    home: Option<u64>,
    size: u64,
    objects: Vec<Physical>,
}

impl<'a> Memory<'a> {
    fn new(driver: &'a Driver, how: How, size: u64) -> Self {
        let mut memory = Self {
            driver,
            address: 0,
            home: None,
            size,
            objects: Vec::new(),
        };
        if matches!(how, How::Allocated) {
            memory.address = driver.memory_alloc(0, size).expect("memory");
            return memory;
        }
        let object = if matches!(how, How::MappedIn32M) {
            32 << 20
        } else {
            2 << 20
        };
        let space = driver.virtual_memory().expect("virtual memory");
        memory.objects = (0..size / object)
            .map(|_| space.create(0, object).expect("an object"))
            .collect();
        if matches!(how, How::View) {
            let home = space.reserve(0, size + GAP, 0).expect("addresses");
            // SAFETY: live objects.
            unsafe { space.map(home, &memory.objects) }.expect("mapped");
            memory.home = Some(home);
            memory.objects.reverse();
        }
        memory.address = space.reserve(0, size, 0).expect("addresses");
        // SAFETY: live objects.
        unsafe { space.map(memory.address, &memory.objects) }.expect("mapped");
        memory
    }

    /// On the unified face a device address is a host pointer.
    fn touch(&self) {
        for page in (0..self.size).step_by(4096) {
            // SAFETY: memory of this size, used by nobody else.
            unsafe { ((self.address + page) as *mut u8).write_volatile(1) };
        }
    }

    fn floats(&self) -> *mut f32 {
        self.address as *mut f32
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing uses the memory any more; each handle is given back once.
        unsafe {
            if self.objects.is_empty() {
                self.driver.memory_free(self.address).expect("freed");
                return;
            }
            let space = self.driver.virtual_memory().expect("virtual memory");
            let home = self.home.map(|home| (home, self.size + GAP));
            for (address, reserved) in home.into_iter().chain([(self.address, self.size)]) {
                space.unmap(address, self.size).expect("unmapped");
                space.release(address, reserved).expect("released");
            }
            for object in &self.objects {
                space.destroy(*object).expect("destroyed");
            }
        }
    }
}

/// Taking 64 MiB and giving them back, untouched.
#[divan::bench(args = WAYS)]
fn take_and_give_back(bencher: Bencher<'_, '_>, how: How) {
    let driver = driver();
    bencher.bench_local(|| drop(Memory::new(&driver, how, SIZE)));
}

/// The first touch of each page.
#[divan::bench(args = WAYS)]
fn first_touch(bencher: Bencher<'_, '_>, how: How) {
    let driver = driver();
    bencher
        .counter(BytesCount::new(SIZE))
        .with_inputs(|| Memory::new(&driver, how, SIZE))
        .bench_local_values(|memory| {
            memory.touch();
            memory
        });
}

/// The first touch at a view of memory that has been touched at home: the page table alone.
#[divan::bench]
fn first_touch_of_a_view(bencher: Bencher<'_, '_>) {
    let driver = driver();
    let space = driver.virtual_memory().expect("virtual memory");
    let home = Memory::new(&driver, How::MappedIn2M, SIZE);
    home.touch();
    let view = space.reserve(0, SIZE, 0).expect("addresses");
    bencher
        .counter(BytesCount::new(SIZE))
        .with_inputs(|| {
            // SAFETY: nothing uses what was mapped there; live objects.
            unsafe {
                let _ = space.unmap(view, SIZE);
                space.map(view, &home.objects).expect("mapped");
            }
        })
        .bench_local_values(|()| {
            for page in (0..SIZE).step_by(4096) {
                // SAFETY: mapped above.
                unsafe { ((view + page) as *mut u8).write_volatile(1) };
            }
        });
    // SAFETY: nothing uses it any more.
    unsafe { space.unmap(view, SIZE) }.expect("unmapped");
    space.release(view, SIZE).expect("released");
}

/// One map of so many objects of 2 MiB, that are mapped elsewhere too, and one unmap.
#[divan::bench(args = [1, 8, 32, 128])]
fn map_and_unmap(bencher: Bencher<'_, '_>, objects: u64) {
    let driver = driver();
    let space = driver.virtual_memory().expect("virtual memory");
    let size = objects * (2 << 20);
    let home = Memory::new(&driver, How::View, size);
    let view = space.reserve(0, size, 0).expect("addresses");
    bencher.bench_local(|| {
        // SAFETY: live objects, and nothing uses them.
        unsafe {
            space
                .map(view, black_box(&home.objects))
                .and_then(|()| space.unmap(view, size))
        }
    });
    space.release(view, size).expect("released");
}

/// An add of two operands of 64 MiB into a third.
#[divan::bench(args = WAYS)]
fn add(bencher: Bencher<'_, '_>, how: How) {
    let driver = driver();
    let memory: [Memory<'_>; 3] = std::array::from_fn(|_| Memory::new(&driver, how, SIZE));
    memory.iter().for_each(Memory::touch);
    bencher.counter(BytesCount::new(3 * SIZE)).bench_local(|| {
        let count = SIZE as usize / size_of::<f32>();
        // SAFETY: three ranges of so many numbers, which do not overlap and nobody else uses.
        let (a, b, c) = unsafe {
            (
                std::slice::from_raw_parts(memory[0].floats(), count),
                std::slice::from_raw_parts(memory[1].floats(), count),
                std::slice::from_raw_parts_mut(memory[2].floats(), count),
            )
        };
        for ((c, a), b) in c.iter_mut().zip(a).zip(b) {
            *c = a + b;
        }
        black_box(c);
    });
}
