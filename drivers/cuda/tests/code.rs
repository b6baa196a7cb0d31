//! Code: CUDA C, PTX and compiled code, and launches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::bench::{Bench, block, free, read, refusal, write};
use outrigger_device::{Arguments, Code, Driver, Grid, Kernel, Queue, sys};
use serial_test::serial;

const TEXT: &str = "extern \"C\" __global__ void add(unsigned* p, unsigned n, unsigned value) {}";

fn load(
    driver: &Driver,
    device: u32,
    text: &str,
) -> outrigger_device::Result<outrigger_device::Module> {
    driver.module_load(device, sys::OTR_CODE_CUDA_C, text.as_bytes(), None)
}

fn part(offset: u32, size: u32, kind: u32) -> sys::otr_argument {
    sys::otr_argument { offset, size, kind }
}

/// Arguments of `add`, in another order than its parameters.
fn turned(memory: u64, count: u32, value: u32) -> ([u8; 16], [sys::otr_argument; 3]) {
    let mut block = [0; 16];
    block[..4].copy_from_slice(&value.to_le_bytes());
    block[4..8].copy_from_slice(&count.to_le_bytes());
    block[8..].copy_from_slice(&memory.to_le_bytes());
    let parts = [
        part(8, 8, sys::OTR_ARGUMENT_ADDRESS),
        part(4, 4, sys::OTR_ARGUMENT_VALUE),
        part(0, 4, sys::OTR_ARGUMENT_VALUE),
    ];
    (block, parts)
}

fn add(queue: &Queue, kernel: &Kernel, memory: u64, value: u32) {
    let (block, parts) = turned(memory, 4, value);
    let arguments = Arguments {
        block: &block,
        parts: &parts,
    };
    // SAFETY: the kernel adds to four numbers, which live until the queue has finished.
    unsafe { queue.launch_grid(kernel, &Grid::ONE, arguments, 0, c"add") }.unwrap();
}

fn numbers(queue: &Queue, memory: u64) -> Vec<u32> {
    let bytes = read(queue, memory, 16);
    bytes
        .chunks(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

#[test]
#[serial]
fn code_of_each_format_runs_on_each_device_and_is_told_as_a_binary() {
    let bench = Bench::new();
    let driver = bench.open();
    for device in 0..2 {
        let queue = driver.queue_create(device, 0).unwrap();
        let memory = driver.memory_alloc(device, 64).unwrap();
        write(&queue, memory, &[0; 64]);
        bench.calls();
        let of_text = load(&driver, device, TEXT).unwrap();
        let linked = bench.calls().contains(&"cuLinkCreate_v2".to_owned());
        assert_eq!(
            linked,
            device == 1,
            "the compiler does not know the second device"
        );
        let ptx = b".visible .entry add(.param .u64 p)\n";
        let of_ptx = driver
            .module_load(device, sys::OTR_CODE_PTX, ptx, None)
            .unwrap();
        let binary = of_text.binary().unwrap();
        let of_binary = driver
            .module_load(device, sys::OTR_CODE_ELF, &binary, None)
            .unwrap();
        assert_eq!(of_binary.binary().unwrap(), binary);
        for (value, module) in [(1, &of_text), (10, &of_ptx), (100, &of_binary)] {
            add(&queue, &module.kernel(Some(c"add")).unwrap(), memory, value);
            add(&queue, &module.kernel(None).unwrap(), memory, value);
        }
        assert_eq!(numbers(&queue, memory), [222; 4]);
        free(&driver, memory);
        drop(queue);
    }
    bench.finish(driver);
}

#[test]
#[serial]
fn a_launch_is_one_call_and_copies_its_arguments() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    write(&queue, memory, &[0; 64]);
    let module = load(&driver, 0, TEXT).unwrap();
    let kernel = module.kernel(Some(c"add")).unwrap();
    bench.calls();
    add(&queue, &kernel, memory, 1);
    assert_eq!(bench.calls(), ["cuLaunchKernel"]);
    // As the kernel has them, without a list of parts.
    let mut packed = [memory.to_le_bytes(), 0_u64.to_le_bytes()].concat();
    packed[8..12].copy_from_slice(&4_u32.to_le_bytes());
    packed[12..].copy_from_slice(&2_u32.to_le_bytes());
    // SAFETY: as for `add`.
    unsafe { queue.launch(&kernel, &packed, 0, c"packed") }.unwrap();
    // Behind a host call with an outcome launches wait in the list of the kit, with arguments of their own.
    let gate = block(&queue);
    queue.host_call(|upstream| upstream).unwrap();
    for value in [4, 8] {
        add(&queue, &kernel, memory, value);
    }
    // SAFETY: as for `add`.
    unsafe { queue.launch(&kernel, &packed, 0, c"packed") }.unwrap();
    packed.fill(0xff);
    gate.open();
    assert_eq!(numbers(&queue, memory), [1 + 2 + 4 + 8 + 2; 4]);
    free(&driver, memory);
    drop(queue);
    drop((kernel, module));
    bench.finish(driver);
}

#[test]
#[serial]
fn local_memory_is_shared_memory_of_the_launch() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    let module = load(&driver, 0, "__global__ void tell_shared(unsigned* p) {}").unwrap();
    let kernel = module.kernel(Some(c"tell_shared")).unwrap();
    let launch = |local: u32, shared_bytes: u32| {
        let parts = [
            part(0, 8, sys::OTR_ARGUMENT_ADDRESS),
            part(0, local, sys::OTR_ARGUMENT_LOCAL),
        ];
        let block = memory.to_le_bytes();
        let arguments = Arguments {
            block: &block,
            parts: &parts,
        };
        let grid = Grid {
            shared_bytes,
            ..Grid::ONE
        };
        // SAFETY: the kernel writes one number, which lives until the queue has finished.
        unsafe { queue.launch_grid(&kernel, &grid, arguments, 0, c"tell") }
    };
    launch(100, 16).unwrap();
    assert_eq!(numbers(&queue, memory)[0], 128);
    // 64 KiB, of which the kernel has 1 KiB for itself.
    launch(62 << 10, 0).unwrap();
    let (code, text) = refusal(launch(64 << 10, 0));
    assert_eq!(code, Code::INVALID_ARGUMENT);
    assert!(text.contains("64512"), "{text}");
    queue.synchronize().unwrap();
    free(&driver, memory);
    drop((kernel, module, queue));
    bench.finish(driver);
}

#[test]
#[serial]
fn what_cannot_be_launched_is_refused() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let module = load(&driver, 0, "__global__ void nothing() {}").unwrap();
    let kernel = module.kernel(None).unwrap();
    let launch = |queue: &Queue, groups, items| {
        let (block, parts) = (&[][..], &[][..]);
        let grid = Grid {
            groups,
            items,
            shared_bytes: 0,
        };
        // SAFETY: the kernel does nothing.
        unsafe { queue.launch_grid(&kernel, &grid, Arguments { block, parts }, 0, c"x") }
    };
    launch(&queue, [7, 1, 1], [256, 1, 1]).unwrap();
    for (groups, items) in [
        ([0, 1, 1], [1; 3]),
        ([1; 3], [1, 0, 1]),
        ([1; 3], [257, 1, 1]),
        ([1; 3], [1, 1, 65]),
        ([1; 3], [u32::MAX; 3]),
    ] {
        let (code, _) = refusal(launch(&queue, groups, items));
        assert_eq!(code, Code::INVALID_ARGUMENT, "{groups:?} {items:?}");
    }
    let other = driver.queue_create(1, 0).unwrap();
    assert_eq!(
        refusal(launch(&other, [1; 3], [1; 3])).0,
        Code::INVALID_DEVICE
    );
    queue.synchronize().unwrap();
    drop((kernel, module, queue, other));
    bench.finish(driver);
}

#[test]
#[serial]
fn code_that_does_not_compile_or_load_is_refused_with_the_log() {
    let bench = Bench::new();
    let driver = bench.open();
    let (code, text) = refusal(load(&driver, 0, "first\nthis is wrong\n"));
    assert_eq!(code, Code::INVALID_ARGUMENT);
    assert!(text.contains("kernel.cu(2): error: it is wrong"), "{text}");
    let with = |format, code: &[u8]| refusal(driver.module_load(0, format, code, None));
    let (code, text) = with(sys::OTR_CODE_PTX, b"first\nsecond\nwrong");
    assert_eq!(code, Code::INVALID_ARGUMENT);
    assert!(
        text.contains("CUDA_ERROR_INVALID_PTX") && text.contains("line 3; error"),
        "{text}"
    );
    let options = driver.module_load(0, sys::OTR_CODE_CUDA_C, TEXT.as_bytes(), Some(c"--unknown"));
    assert!(refusal(options).1.contains("invalid value"));
    for bytes in [&b"no ELF file"[..], b"\x7fELF\x02\x01"] {
        let (code, text) = with(sys::OTR_CODE_ELF, bytes);
        assert_eq!(code, Code::INVALID_ARGUMENT);
        assert!(text.contains("cubin"), "{text}");
    }
    let whole = load(&driver, 0, TEXT).unwrap().binary().unwrap();
    assert_eq!(
        with(sys::OTR_CODE_ELF, &whole[..whole.len() - 1]).0,
        Code::INVALID_ARGUMENT
    );
    assert_eq!(with(sys::OTR_CODE_SPIRV, b"x").0, Code::UNSUPPORTED);
    assert_eq!(
        with(sys::OTR_CODE_CUDA_C, b"a\0b").0,
        Code::INVALID_ARGUMENT
    );
    let refused = load(&driver, 0, "__global__ void refused() {}");
    assert_eq!(refusal(refused).0, Code::INVALID_ARGUMENT);
    bench.finish(driver);
}

#[test]
#[serial]
fn kernels_are_found_by_name() {
    let bench = Bench::new();
    let driver = bench.open();
    let two = load(
        &driver,
        0,
        "__global__ void one() {}\n__global__ void two() {}",
    )
    .unwrap();
    assert!(two.kernel(Some(c"one")).is_ok() && two.kernel(Some(c"two")).is_ok());
    let (code, text) = refusal(two.kernel(Some(c"three")));
    assert_eq!(code, Code::NOT_FOUND);
    assert!(
        text.contains("three") && text.contains("extern \"C\""),
        "{text}"
    );
    let (code, text) = refusal(two.kernel(None));
    assert_eq!(code, Code::NOT_FOUND);
    assert!(text.contains("2 kernels"), "{text}");
    drop(two);
    bench.finish(driver);
}

#[test]
#[serial]
fn a_kernel_that_crashes_loses_its_device_alone() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let module = load(&driver, 0, "__global__ void crash() {}").unwrap();
    let kernel = module.kernel(None).unwrap();
    // SAFETY: it names no memory.
    unsafe { queue.launch(&kernel, &[], 0, c"crash") }.unwrap();
    assert_eq!(refusal(queue.synchronize()).0, Code::DEVICE_LOST);
    let other = driver.queue_create(1, 0).unwrap();
    let memory = driver.memory_alloc(1, 16).unwrap();
    write(&other, memory, &[5; 16]);
    assert_eq!(read(&other, memory, 16), [5; 16]);
    free(&driver, memory);
    drop((kernel, module, queue, other));
    drop(driver);
    assert_eq!(bench.retained(), 0);
}

#[test]
#[serial]
fn a_host_call_comes_behind_the_work_before_it_and_before_what_is_behind() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    write(&queue, memory, &[0; 64]);
    let module = load(&driver, 0, "__global__ void add_slowly() {}").unwrap();
    let kernel = module.kernel(None).unwrap();
    let seen = Arc::new(AtomicU32::new(99));
    add(&queue, &kernel, memory, 1);
    let own = seen.clone();
    queue
        .callback(move |_| {
            // The memory of the stand-in is the host's.
            // SAFETY: the allocation lives until the queue has finished, and nothing else works on it now.
            let number = unsafe { (memory as *const u32).read() };
            std::thread::sleep(Duration::from_millis(20));
            own.store(number, Ordering::SeqCst);
            // SAFETY: as above.
            unsafe { (memory as *mut u32).write(10) };
        })
        .unwrap();
    add(&queue, &kernel, memory, 1);
    assert_eq!(numbers(&queue, memory), [11, 2, 2, 2]);
    assert_eq!(seen.load(Ordering::SeqCst), 1);
    free(&driver, memory);
    drop((kernel, module, queue));
    bench.finish(driver);
}
