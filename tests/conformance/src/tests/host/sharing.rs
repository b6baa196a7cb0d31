//! Memory of one process in another, and copies between devices.

use std::ffi::{CStr, CString};
use std::io::Write;
use std::ptr::{null, null_mut};

use crate::tests::host::bindings::*;
use outrigger_device::{Code, CopyKind};

use super::{
    Filled, Refused, alloc, download, fill, filled, made, nodes, otr, raw, refused, start, stream,
    upload,
};
use crate::test::tests;
use crate::tests::kit::pattern;
use crate::tests::memory_ipc::Other;
use crate::verdict::{check, equal};
use crate::{Context, Failure, Helper, Need, Verdict};

tests! { "host-abi.sharing":
    /// Another process reads and writes an allocation that was exported, all of it and nothing else.
    another_process_uses_memory: H11 H21 H22, needs Ipc;
    /// Memory is exported, or that is OTR_ERR_UNSUPPORTED; what is no memory is not found.
    exported_or_unsupported: H2 H11, absent Ipc;
    /// A text that no export gave is refused, and what was not imported is not closed.
    what_was_not_exported: H2 H22;
    /// An address of one device is refused with another device, whose number the text has, and nothing changes.
    an_address_of_another_device: H2 H3 H21, needs TwoDevices;
    /// A copy between two devices is in the order of its stream, which is of either and of no other.
    copies_between_devices: H18 H22, needs TwoDevices;
    /// A copy between devices is refused where a range is of none; one within a device is a copy.
    wrong_copies_between_devices: H2 H22;
}

/// The work of the other process.
pub(in crate::tests) const HELPERS: &[Helper] = &[Helper {
    name: "host-memory",
    run: serve,
}];

const SIZE: u64 = 5 << 20;

/// The other process: a line is a size and an exported text, and is answered once the memory was used and
/// closed.
fn serve(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lines() {
        let line = line?;
        let answer = match line.split_once(' ') {
            Some((size, text)) => use_memory(size.parse()?, &CString::new(text)?, stream),
            None => Err(Failure::new(format!("the test said {line:?}"))),
        };
        let answer = answer.unwrap_or_else(|failure| format!("failed: {failure}"));
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(())
}

fn import(exported: &CString) -> Result<(u64, u64), Refused> {
    let (mut address, mut size) = (0, 0);
    let text = exported.as_ptr();
    otr!(memory_import, 0, text, &mut address, &mut size)?;
    Ok((address, size))
}

/// Adds one to all bytes of imported memory, and says which byte it began with.
fn use_memory(expected: u64, exported: &CString, stream: u64) -> Verdict<String> {
    let (address, size) = import(exported)?;
    equal!(size, expected, "bytes that are imported");
    let info: otr_pointer_info_t = filled(|out| otr!(memory_pointer_info, 0, address + 9, out))?;
    equal!(
        (info.base, info.size),
        (address, size),
        "facts of imported memory"
    );
    let device = made(|out| otr!(memory_find, address + 9, out))?;
    equal!(device, 0, "the device of imported memory");
    let mut bytes: Vec<u8> = download(stream, address, SIZE as usize)?;
    let first = bytes[0];
    bytes
        .iter_mut()
        .for_each(|byte| *byte = byte.wrapping_add(1));
    upload(stream, address, &bytes)?;
    refused(
        otr!(
            fill,
            stream,
            address + size - 32,
            64,
            [1u8].as_ptr().cast(),
            1
        ),
        Code::INVALID_ARGUMENT,
        "a fill beyond the end of imported memory",
    )?;
    refused(
        otr!(memory_free, 0, address),
        Code::INVALID_ARGUMENT,
        "a free of imported memory",
    )?;
    // A stream may be said to use it. It is not passed on, and no graph could keep it.
    otr!(memory_record_stream, 0, address + 9, self::stream()?)?;
    otr!(memory_record_stream, 0, address, stream)?;
    refused(
        export(address),
        Code::UNSUPPORTED,
        "an export of imported memory",
    )?;
    let (graph, mut node) = (made(|out| otr!(graph_create, 0, 0, out))?, 0x5a);
    let d2d = CopyKind::DeviceToDevice.raw();
    let (pattern, own) = ([1u8], alloc(64, stream)?);
    for (what, answer) in [
        (
            "a fill in a graph",
            otr!(
                graph_add_fill,
                graph,
                null(),
                0,
                address,
                64,
                pattern.as_ptr().cast(),
                1,
                &mut node
            ),
        ),
        (
            "a copy in a graph",
            otr!(
                graph_add_copy,
                graph,
                null(),
                0,
                own,
                address,
                64,
                d2d,
                &mut node
            ),
        ),
    ] {
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    equal!((node, nodes(graph)?), (0x5a, 0), "the output, and nodes");
    otr!(memory_close, 0, address)?;
    refused(
        otr!(memory_close, 0, address),
        Code::INVALID_ARGUMENT,
        "a second close",
    )?;
    let mut info = otr_pointer_info_t::sized(size_of::<otr_pointer_info_t>());
    refused(
        otr!(memory_pointer_info, 0, address, &mut info),
        Code::NOT_FOUND,
        "facts of closed memory",
    )?;
    Ok(format!("began with {first}"))
}

fn export(address: u64) -> Result<CString, Refused> {
    let mut exported = null_mut();
    otr!(memory_export, 0, address, &mut exported)?;
    // SAFETY: a string that was handed out just now, and is freed once.
    unsafe {
        let text = CStr::from_ptr(exported).to_owned();
        raw!(string_free, exported);
        Ok(text)
    }
}

/// The handle of exported memory; `None` where the driver shares no memory of this kind.
fn exported(context: &Context, address: u64) -> Verdict<Option<CString>> {
    match export(address) {
        Ok(text) => Ok(Some(text)),
        Err(answer) => {
            refused::<()>(Err(answer), Code::UNSUPPORTED, "an export")?;
            context.note("allocations cannot be shared");
            Ok(None)
        }
    }
}

fn another_process_uses_memory(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    // Neighbours in the same piece of memory, within which the one that is exported lies.
    let mut three = [
        alloc(SIZE, stream)?,
        alloc(SIZE, stream)?,
        alloc(SIZE, stream)?,
    ];
    three.sort_unstable();
    let [before, shared, behind] = three;
    for address in [before, behind] {
        fill(stream, address, SIZE, &[0x77])?;
    }
    let mut bytes = pattern(SIZE as usize, context.seed());
    upload(stream, shared, &bytes)?;
    let Some(text) = exported(context, shared + 1000)? else {
        return Ok(());
    };
    let usable =
        filled::<otr_pointer_info_t>(|out| otr!(memory_pointer_info, 0, shared, out))?.size;
    let question = format!("{usable} {}", text.to_string_lossy());
    let mut other = Other::with(context, "host-memory")?;
    for round in 0..2 {
        equal!(
            other.ask(&question)?,
            format!("began with {}", bytes[0]),
            "what the other process says in round {round}"
        );
        bytes
            .iter_mut()
            .for_each(|byte| *byte = byte.wrapping_add(1));
        equal!(
            download::<u8>(stream, shared, SIZE as usize)?,
            bytes,
            "what it wrote"
        );
    }
    other.end()?;
    for address in [before, behind] {
        equal!(
            download::<u8>(stream, address, SIZE as usize)?,
            vec![0x77; SIZE as usize],
            "memory beside it"
        );
    }
    Ok(otr!(memory_free, 0, shared)?)
}

fn exported_or_unsupported(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(5000, stream)?;
    let declared = context.has(&context.open()?, Need::Ipc);
    let text = exported(context, address)?;
    check!(
        text.is_none() || declared,
        "a driver that does not declare it shares no memory"
    );
    for (what, nowhere) in [("address 0", 0), ("all ones", u64::MAX)] {
        let mut out = null_mut();
        refused(
            otr!(memory_export, 0, nowhere, &mut out),
            Code::NOT_FOUND,
            what,
        )?;
        check!(out.is_null(), "H2: the output of a failed call");
    }
    fill(stream, address, 5000, &[1])?;
    Ok(otr!(stream_synchronize, stream)?)
}

fn what_was_not_exported(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(5000, stream)?;
    let mut texts = vec![
        ("no text".to_owned(), CString::default()),
        ("nonsense".to_owned(), CString::new("nonsense")?),
        (
            "another driver".to_owned(),
            CString::new(format!("otr-memory-1 nobodys 64 0 0:{}", "00".repeat(64)))?,
        ),
    ];
    if let Ok(text) = export(address) {
        let whole = text.into_string()?;
        let foreign = whole.replacen(' ', " not_", 1);
        let short = &whole[..whole.len() - 2];
        texts.push((
            "memory of another driver".to_owned(),
            CString::new(foreign)?,
        ));
        texts.push(("a text cut short".to_owned(), CString::new(short)?));
        let mut words: Vec<String> = whole.split(' ').map(str::to_owned).collect();
        words[2] = (words[2].parse::<u64>()? << 20).to_string();
        texts.push((
            "a size that is too large".to_owned(),
            CString::new(words.join(" "))?,
        ));
    }
    for (what, text) in texts {
        let (mut out, mut size) = (0x5a, 0x5a);
        refused(
            otr!(memory_import, 0, text.as_ptr(), &mut out, &mut size),
            Code::INVALID_HANDLE,
            &what,
        )?;
        equal!((out, size), (0x5a, 0x5a), "H2: outputs of a failed call");
    }
    for (what, wrong) in [("an allocation", address), ("address 0", 0)] {
        refused(otr!(memory_close, 0, wrong), Code::INVALID_ARGUMENT, what)?;
    }
    fill(stream, address, 5000, &[1])?;
    Ok(otr!(stream_synchronize, stream)?)
}

/// A stream of device 1, and memory of it.
fn beside(size: u64) -> Verdict<(u64, u64)> {
    let stream = made(|out| otr!(stream_create, 1, 0, out))?;
    let address = made(|out| otr!(memory_alloc, 1, size, stream, out))?;
    Ok((stream, address))
}

fn an_address_of_another_device(context: &Context) -> Verdict {
    start(context)?;
    let size = 100_000;
    let (here, (there, far)) = (stream()?, beside(size)?);
    let near = alloc(size, here)?;
    fill(there, far, size, &[5])?;
    let in_use = || -> Verdict<[u64; 2]> {
        let of = |device| {
            let told = filled::<otr_memory_stats_t>(|out| otr!(memory_stats, device, out))?;
            Verdict::Ok(told.allocated_bytes.current)
        };
        Ok([of(0)?, of(1)?])
    };
    let before = in_use()?;
    let found = made(|out| otr!(memory_find, far + 9, out))?;
    equal!(found, 1, "the device of the number alone");
    let mut info = otr_pointer_info_t::sized(size_of::<otr_pointer_info_t>());
    for (what, answer, code) in [
        ("a free", otr!(memory_free, 0, far), Code::INVALID_ARGUMENT),
        (
            "a use by a stream",
            otr!(memory_record_stream, 0, far, there),
            Code::INVALID_ARGUMENT,
        ),
        (
            "facts",
            otr!(memory_pointer_info, 0, far, &mut info),
            Code::NOT_FOUND,
        ),
        (
            "a close",
            otr!(memory_close, 0, far),
            Code::INVALID_ARGUMENT,
        ),
        (
            "a copy from it",
            otr!(copy_peer, here, 0, near, 0, far, size),
            Code::INVALID_ARGUMENT,
        ),
        (
            "a copy to it",
            otr!(copy_peer, here, 0, far, 0, near, size),
            Code::INVALID_ARGUMENT,
        ),
        (
            "a copy whose devices are the wrong way round",
            otr!(copy_peer, here, 0, far, 1, near, size),
            Code::INVALID_ARGUMENT,
        ),
    ] {
        let text = refused(answer, code, what)?.text;
        check!(
            text.contains("device 0"),
            "H3: the device that was named in {text}"
        );
    }
    equal!(info.base, 0, "H2: the output of a failed call");
    equal!(in_use()?, before, "bytes in use on both devices");
    equal!(
        download::<u8>(there, far, size as usize)?,
        vec![5; size as usize],
        "the memory"
    );
    otr!(memory_free, 1, far)?;
    Ok(otr!(memory_free, 0, near)?)
}

fn copies_between_devices(context: &Context) -> Verdict {
    start(context)?;
    let size = 100_000;
    let (here, (there, far)) = (stream()?, beside(size)?);
    let near = alloc(size, here)?;
    for round in 1..20u8 {
        fill(here, near, size, &[round])?;
        otr!(copy_peer, here, 1, far, 0, near, size)?;
        fill(here, near, size, &[0])?;
        otr!(stream_synchronize, here)?;
        equal!(
            download::<u8>(there, far, size as usize)?,
            vec![round; size as usize],
            "what was copied to the other device"
        );
        fill(there, far, size, &[round + 100])?;
        otr!(copy_peer, there, 0, near, 1, far, size)?;
        fill(there, far, size, &[0])?;
        otr!(stream_synchronize, there)?;
        equal!(
            download::<u8>(here, near, size as usize)?,
            vec![round + 100; size as usize],
            "what was copied back"
        );
    }
    refused(
        otr!(copy_peer, here, 1, far, 0, near, size + (1 << 30)),
        Code::INVALID_ARGUMENT,
        "a copy beyond the end",
    )?;
    otr!(copy_peer, here, 1, far, 0, near, 0)?;
    // A third device has to do with neither.
    let third = made(|out| otr!(device_count, out))?;
    let spec = CString::new(context.spec())?;
    otr!(driver_load, spec.as_ptr())?;
    let elsewhere = made(|out| otr!(stream_create, third, 0, out))?;
    refused(
        otr!(copy_peer, elsewhere, 1, far, 0, near, 64),
        Code::INVALID_ARGUMENT,
        "a copy on a stream of neither device",
    )?;
    Ok(())
}

fn wrong_copies_between_devices(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(4096, stream)?;
    fill(stream, address, 64, &[3])?;
    otr!(copy_peer, stream, 0, address + 64, 0, address, 64)?;
    equal!(
        download::<u8>(stream, address, 128)?,
        [3; 128],
        "a copy within a device"
    );
    let on_stack = std::ptr::from_ref(&address) as u64;
    for (what, to, from) in [
        ("a copy to host memory", on_stack, address),
        ("a copy from host memory", address, on_stack),
        ("a copy to address 0", 0, address),
        ("a copy beyond the end", address + 4090, address),
    ] {
        refused(
            otr!(copy_peer, stream, 0, to, 0, from, 64),
            Code::INVALID_ARGUMENT,
            what,
        )?;
    }
    otr!(copy_peer, stream, 0, 0, 0, 0, 0)?;
    otr!(memory_free, 0, address)?;
    refused(
        otr!(copy_peer, stream, 0, address, 0, address + 64, 64),
        Code::INVALID_ARGUMENT,
        "a copy of freed memory",
    )?;
    Ok(())
}
