//! Memory that two processes share, through the C ABI. The other process is this test program, started
//! again for the one test that imports.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::ffi::CString;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};
use std::sync::LazyLock;

use outrigger::ffi::*;
use outrigger::runtime::{Code, CopyKind};
use outrigger_tests::abi::*;
use serial_test::serial;

/// What the other process imports, as `device text`, is told by this variable of its environment.
const IMPORT: &str = "OUTRIGGER_TEST_IMPORT";

/// Devices of `host` that share their memory, unified and discrete: with virtual memory also where it has
/// to do with small pages.
static SHARING: LazyLock<[u32; 2]> = LazyLock::new(|| {
    let _ = DEVICES[0];
    [
        "host?virtual_memory=on",
        "host?virtual_memory=on&face=discrete",
    ]
    .map(|spec| {
        let mut first = 0;
        ok(unsafe { otr_device_count(&mut first) });
        let spec = CString::new(spec).expect("no NUL");
        ok(unsafe { otr_driver_load(spec.as_ptr()) });
        first
    })
});

/// 64-bit numbers in the shared allocation: more than one chunk of physical memory.
const COUNT: usize = 5 << 20;

fn export(address: u64) -> Result<String, (Code, String)> {
    let mut exported = null_mut();
    outcome(unsafe { otr_memory_export(address, &mut exported) })?;
    let told = text(exported);
    unsafe { otr_string_free(exported) };
    Ok(told)
}

fn import(device: u32, exported: &str) -> Result<(u64, u64), (Code, String)> {
    let (mut address, mut size) = (0, 0);
    let exported = CString::new(exported).expect("no NUL");
    outcome(unsafe { otr_memory_import(device, exported.as_ptr(), &mut address, &mut size) })?;
    Ok((address, size))
}

/// Has another process import what was exported, look at it and change it. The text goes through a
/// pipe: it may be longer than a variable can be.
fn another_process_changes(device: u32, exported: &str) {
    let mut process = Command::new(std::env::current_exe().expect("a path"))
        .args([
            "--exact",
            "the_other_process",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(IMPORT, device.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts");
    let mut input = process.stdin.take().expect("piped");
    input.write_all(exported.as_bytes()).expect("read");
    drop(input);
    let output = process.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}"
    );
}

/// Does nothing where it is run as one of the tests.
#[test]
fn the_other_process() {
    let Ok(device) = std::env::var(IMPORT) else {
        return;
    };
    let device: u32 = device.parse().expect("a number");
    let _ = SHARING[0];
    let mut exported = String::new();
    std::io::stdin()
        .read_to_string(&mut exported)
        .expect("UTF-8");
    let (address, size) = import(device, &exported).expect("it can be imported");
    assert!(size >= (COUNT * 8) as u64);
    let stream = stream(device);
    let mut info: otr_pointer_info_t = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<otr_pointer_info_t>();
    ok(unsafe { otr_memory_pointer_info(address + 9, &mut info) });
    assert_eq!((info.base, info.size, info.device), (address, size, device));
    let seen: Vec<u64> = download(stream, address, COUNT);
    assert!(
        seen.iter()
            .enumerate()
            .all(|(index, &one)| one == index as u64)
    );
    let changed: Vec<u64> = seen.iter().map(|one| one * 3).collect();
    upload(stream, address, &changed);
    // Not beyond its end, and not by a graph, which could not keep it.
    fails(
        unsafe { otr_copy(stream, address + size - 4, changed.as_ptr() as u64, 8, 1) },
        Code::INVALID_ARGUMENT,
        &["overruns the imported allocation"],
    );
    a_refused_node_leaves_nothing_in_its_graph(device, stream, address);
    // A stream may be recorded on it, and it cannot be passed on.
    let other = self::stream(device);
    ok(unsafe { otr_memory_record_stream(address + 9, other) });
    ok(unsafe { otr_memory_record_stream_on(device, address, other) });
    let (code, message) = export(address).expect_err("imported");
    assert_eq!(code, Code::UNSUPPORTED, "{message}");
    fails(
        unsafe { otr_memory_free(address) },
        Code::INVALID_ARGUMENT,
        &["was not allocated"],
    );
    ok(unsafe { otr_memory_close(device, address) });
    fails(
        unsafe { otr_memory_close(device, address) },
        Code::INVALID_ARGUMENT,
        &["no memory was imported"],
    );
    fails(
        unsafe { otr_memory_pointer_info(address, &mut info) },
        Code::NOT_FOUND,
        &[],
    );
}

/// A graph refuses imported memory, and is afterwards as if it had not been asked (H2): of the same shape as a graph
/// that was not.
fn a_refused_node_leaves_nothing_in_its_graph(device: u32, stream: u64, imported: u64) {
    let own = alloc(device, 64, stream);
    let to_device = CopyKind::DeviceToDevice.raw();
    let filled = |refused: bool| {
        let graph = made(|out| unsafe { otr_graph_create(device, 0, out) });
        let fill = |address, out: &mut u32| unsafe {
            otr_graph_add_fill(graph, null(), 0, address, 64, c"a".as_ptr().cast(), 1, out)
        };
        let copy = |to, from, out: &mut u32| unsafe {
            otr_graph_add_copy(graph, null(), 0, to, from, 64, to_device, out)
        };
        let mut node = 7;
        if refused {
            for status in [
                fill(imported, &mut node),
                copy(imported, own, &mut node),
                copy(own, imported, &mut node),
            ] {
                fails(status, Code::INVALID_ARGUMENT, &["not in live memory"]);
            }
            assert_eq!(node, 7, "outputs are written on success");
        }
        ok(fill(own, &mut node));
        assert_eq!(node, 0);
        graph
    };
    let (asked, plain) = (filled(true), filled(false));
    let exec = instantiate(asked, 0);
    ok(unsafe { otr_graph_update(exec, plain) });
    ok(unsafe { otr_graph_exec_destroy(exec) });
    for graph in [asked, plain] {
        ok(unsafe { otr_graph_destroy(graph) });
    }
    ok(unsafe { otr_memory_free(own) });
}

#[test]
#[serial]
fn another_process_reads_and_writes_what_was_exported() {
    for device in *SHARING {
        let before = held(device);
        let stream = stream(device);
        // A neighbour in the same piece of memory, and an allocation that does not start a piece.
        let neighbour = alloc(device, 3 << 20, stream);
        let shared = alloc(device, (COUNT * 8) as u64, stream);
        ok(unsafe { otr_fill(stream, neighbour, 3 << 20, [0x77_u8].as_ptr().cast(), 1) });
        let numbers: Vec<u64> = (0..COUNT as u64).collect();
        upload(stream, shared, &numbers);
        let exported = export(shared + 1000).expect("the host driver shares memory");
        another_process_changes(device, &exported);
        let changed: Vec<u64> = download(stream, shared, COUNT);
        assert!(
            changed
                .iter()
                .enumerate()
                .all(|(index, &one)| one == 3 * index as u64)
        );
        let beside: Vec<u8> = download(stream, neighbour, 3 << 20);
        assert!(
            beside.iter().all(|&byte| byte == 0x77),
            "the neighbour is as it was"
        );
        for address in [neighbour, shared] {
            ok(unsafe { otr_memory_free(address) });
        }
        assert_eq!(held(device), before, "device {device}");
    }
}

#[test]
#[serial]
fn what_cannot_be_shared_is_told() {
    let (unified, discrete, c_driver) = (SHARING[0], SHARING[1], DEVICES[2]);
    let streams = [unified, discrete, c_driver].map(stream);
    let plain = alloc(c_driver, 100, streams[2]);
    let (code, message) = export(plain).expect_err("the C template shares no memory");
    assert_eq!(code, Code::UNSUPPORTED);
    assert!(message.contains("does not share memory"), "{message}");
    assert_eq!(export(0x1234).expect_err("nowhere").0, Code::NOT_FOUND);

    let address = alloc(unified, 100, streams[0]);
    let exported = export(address).expect("shared");
    let (code, message) = import(c_driver, &exported).expect_err("another driver");
    assert_eq!(code, Code::INVALID_HANDLE);
    assert!(message.contains("cannot be memory of device"), "{message}");
    let words: Vec<_> = exported.split(' ').collect();
    let larger = exported.replace(
        &format!(" {} ", words[2]),
        &format!(" {} ", words[2].parse::<u64>().expect("the size") << 20),
    );
    for damaged in ["", "nonsense", &exported[..exported.len() - 2], &larger] {
        let (code, message) = import(unified, damaged).expect_err("damaged");
        assert_eq!(code, Code::INVALID_HANDLE, "{message}");
        assert!(message.contains("unchanged"), "{message}");
    }
    for address in [plain, address] {
        ok(unsafe { otr_memory_free(address) });
    }
}
