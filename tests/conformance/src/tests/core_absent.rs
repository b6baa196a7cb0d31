//! What holds with an optional part of the contract and without it: the mandatory part works, and a
//! missing part is refused with the documented code. These tests run on every driver, so no driver
//! passes because nothing was tested.

use std::mem::offset_of;

use outrigger_device::{Code, CopyKind, params as sys_params, sys};

use super::kernels::count;
use super::kit::{Bench, HostBytes, Log, copy, fill, note, pattern, read, write};
use super::raw::{Raw, call};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Verdict};

tests! { "core.absent":
    /// With or without `memory_info`, more memory than a device has is refused, and less is given.
    memory_info: R4 R29, absent MemoryInfo;
    /// Memory without addresses is shared only by a driver that has such memory, and in both directions.
    virtual_memory: R1 R42, absent VirtualMemory IpcPhysical;
    /// With or without `ipc`, two open drivers share nothing.
    ipc: R10, absent Ipc IpcEvents;
    /// With or without `pin`, host memory of any size and alignment serves copies.
    pin: R26, absent Pin;
    /// With or without `peer`, bytes go from each device to each by way of the host.
    peer: R16 R24, absent Peer;
    /// A queue has a native one that stays the same; without the group, handing it out is refused.
    native_queue: R1 R55, absent NativeQueue;
    /// Without the table `external`, or entries of it, what needs them is refused by its name.
    external: R1 R59, absent External ExternalMemory ExternalSemaphores;
    /// Host functions are taken as kernels, or refused with OTR_ERR_UNSUPPORTED and nothing written.
    host_kernels: R4, absent HostKernels Kernel;
    /// With or without `graph`, what is submitted to a queue that records nothing runs by itself.
    graphs: R18, absent Graphs GraphUpdate GraphUpdatePart;
    /// With or without `queue_flush`, waiting for a queue makes its work run.
    flush: R18, absent Flush;
    /// With or without `operators`, a copy and a fill are all that a host needs to bring its own.
    operators: R16 R28, absent Operators;
    /// With or without `collectives`, sums over all devices are made by way of the host.
    collectives: R16, absent Collectives CollectivesExchange;
}

/// Whether a group is there, reaches as far as an entry, and has it.
macro_rules! has {
    ($group:expr, $type:ident, $entry:ident) => {{
        let group: *const sys::$type = $group;
        let end = offset_of!(sys::$type, $entry) + size_of::<usize>();
        !group.is_null()
            // SAFETY: a group that is not NULL is as large as its first word says (R1).
            && unsafe {
                group.cast::<usize>().read() >= end && (&raw const (*group).$entry).read().is_some()
            }
    }};
}

fn memory_info(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    for device in 0..bench.driver().device_count() {
        let total = bench.driver().properties(device)?.total_memory;
        let refused = bench.driver().memory_alloc(device, total.saturating_mul(2));
        answers!(
            refused,
            Code::OUT_OF_MEMORY,
            "twice the memory of device {device}"
        );
        bench.memory_on(device, 4096)?;
    }
    bench.finish()
}

fn virtual_memory(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let ipc = raw.api().ipc;
    let exports = has!(ipc, otr_ipc_api, physical_export);
    let imports = has!(ipc, otr_ipc_api, physical_import);
    equal!(imports, exports, "physical_import, where physical_export");
    let there = !raw.api().virtual_memory.is_null();
    check!(there || !exports, "what is exported can be made");
    equal!(
        raw.driver().virtual_memory().is_some(),
        there,
        "the group is offered"
    );
    Ok(())
}

fn ipc(context: &Context) -> Verdict {
    let (one, other) = (Bench::new(context)?, Bench::new(context)?);
    let (queue, memory) = (one.queue()?, one.memory(512)?);
    let (its_queue, its_memory) = (other.queue()?, other.memory(512)?);
    fill(&queue, memory, 512, &[1])?;
    fill(&its_queue, its_memory, 512, &[2])?;
    equal!(read(&queue, memory, 512)?, vec![1; 512], "of one driver");
    equal!(
        read(&its_queue, its_memory, 512)?,
        vec![2; 512],
        "of the other"
    );
    other.finish()?;
    one.finish()
}

fn pin(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory) = (bench.queue()?, bench.memory(70_000)?);
    for (size, offset) in [(1, 0), (63, 1), (4097, 3), (65_537, 4095)] {
        let host = HostBytes::new(pattern(size + offset, size as u64));
        let back = HostBytes::of(size + offset, 0);
        let bytes = size as u64;
        copy(
            &queue,
            memory,
            host.at(offset),
            bytes,
            CopyKind::HostToDevice,
        )?;
        copy(
            &queue,
            back.at(offset),
            memory,
            bytes,
            CopyKind::DeviceToHost,
        )?;
        queue.synchronize()?;
        equal!(
            back.get()[offset..],
            host.get()[offset..],
            "{size} bytes at an offset of {offset}"
        );
    }
    bench.finish()
}

fn peer(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let devices = bench.driver().device_count();
    for from in 0..devices {
        for to in 0..devices {
            let (source, target) = (bench.queue_on(from)?, bench.queue_on(to)?);
            let (here, there) = (bench.memory_on(from, 1000)?, bench.memory_on(to, 1000)?);
            let bytes = pattern(1000, u64::from(from * devices + to));
            write(&source, here, &bytes)?;
            let between = read(&source, here, 1000)?;
            write(&target, there, &between)?;
            equal!(
                read(&target, there, 1000)?,
                bytes,
                "from device {from} to {to}"
            );
        }
    }
    bench.finish()
}

fn native_queue(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    if bench.driver().shares_native_queues() {
        equal!(queue.native()?, queue.native()?, "asked again");
    } else {
        answers!(
            queue.native(),
            Code::UNSUPPORTED,
            "a native queue without the group"
        );
    }
    let memory = bench.memory(1000)?;
    fill(&queue, memory, 1000, &[7])?;
    equal!(read(&queue, memory, 1000)?, vec![7; 1000], "work goes on");
    bench.finish()
}

fn external(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let params = sys::otr_memory_params {
        flags: sys::OTR_MEMORY_EXPORTABLE_FD,
        ..sys_params::memory(4096)
    };
    let raw = Raw::of(bench.driver());
    let exports = match bench.driver().external() {
        Ok(external) => {
            if !external.makes_semaphores() {
                answers!(
                    external.semaphore_create(0, 0).map(drop),
                    Code::UNSUPPORTED,
                    "a semaphore of a driver that makes none"
                );
            }
            external.exports_memory()
        }
        Err(error) => {
            answers!(
                error.code(),
                Code::UNSUPPORTED,
                "the table that there is not"
            );
            false
        }
    };
    let mut address = 0;
    let answer = call!(
        raw.api(),
        memory_alloc,
        raw.handle(),
        0,
        &params,
        &mut address
    );
    if exports {
        raw.takes(answer, "memory_alloc of memory to export")?;
        bench.keep(address);
    } else {
        raw.refuses(
            answer,
            Code::INVALID_ARGUMENT,
            "memory_alloc with a flag whose table is not there",
        )?;
    }
    bench.finish()
}

fn host_kernels(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    // SAFETY: NULL, or a group that the loader found whole: its mandatory entries are within it.
    let Some(group) = (unsafe { raw.api().kernel.as_ref() }) else {
        check!(
            raw.driver().host_kernel(0, count)?.is_none(),
            "without the group there are no host kernels"
        );
        return Ok(());
    };
    let untouched = 0x51 as *mut sys::otr_drv_module;
    let mut module = untouched;
    let answer = call!(
        group,
        module_load,
        raw.handle(),
        0,
        sys::OTR_CODE_HOST_FUNCTION,
        count as *const std::ffi::c_void,
        0,
        std::ptr::null(),
        &mut module
    );
    if answer == Code::OK.0 {
        check!(
            module != untouched && !module.is_null(),
            "a module was given"
        );
        return raw.takes(call!(group, module_unload, module), "module_unload");
    }
    raw.refuses(answer, Code::UNSUPPORTED, "a host function as a kernel")?;
    equal!(module, untouched, "the output of the refused call");
    Ok(())
}

fn graphs(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory, log) = (bench.queue()?, bench.memory(64)?, Log::default());
    fill(&queue, memory, 64, &[9])?;
    note(&queue, &log, 1)?;
    equal!(read(&queue, memory, 64)?, vec![9; 64], "what was filled");
    equal!(log.values(), vec![1], "the host calls that ran");
    bench.finish()
}

fn flush(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    for value in 0..100 {
        note(&queue, &log, value)?;
    }
    queue.synchronize()?;
    equal!(
        log.values(),
        (0..100).collect::<Vec<u64>>(),
        "the host calls that ran"
    );
    bench.finish()
}

fn operators(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory) = (bench.queue()?, bench.memory(4096)?);
    // As a host does that computes by itself: it takes the bytes, and gives others back.
    fill(&queue, memory, 4096, &1.5f32.to_ne_bytes())?;
    let doubled: Vec<u8> = read(&queue, memory, 4096)?
        .chunks_exact(4)
        .flat_map(|word| {
            (2.0 * f32::from_ne_bytes([word[0], word[1], word[2], word[3]])).to_ne_bytes()
        })
        .collect();
    write(&queue, memory, &doubled)?;
    equal!(
        read(&queue, memory, 4096)?,
        3f32.to_ne_bytes().repeat(1024),
        "the doubled numbers"
    );
    bench.finish()
}

fn collectives(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let raw = Raw::of(bench.driver());
    let there = raw
        .collectives()
        .is_ok_and(|table| table.major == sys::OTR_COLLECTIVES_MAJOR);
    equal!(
        bench.driver().collectives().is_some(),
        there,
        "the table is offered"
    );
    let mut places = Vec::new();
    let mut sums = vec![0u32; 256];
    for device in 0..bench.driver().device_count() {
        let (queue, memory) = (bench.queue_on(device)?, bench.memory_on(device, 1024)?);
        fill(&queue, memory, 1024, &(device + 1).to_ne_bytes())?;
        for (sum, word) in sums
            .iter_mut()
            .zip(read(&queue, memory, 1024)?.chunks_exact(4))
        {
            *sum += u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        }
        places.push((queue, memory));
    }
    let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_ne_bytes()).collect();
    let count = bench.driver().device_count();
    let right = (count * (count + 1) / 2).to_ne_bytes().repeat(256);
    for (queue, memory) in &places {
        write(queue, *memory, &bytes)?;
        equal!(
            read(queue, *memory, 1024)?,
            right,
            "the sums of all devices"
        );
    }
    bench.finish()
}
