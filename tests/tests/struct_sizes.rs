//! H9 at the end of a page, behind which nothing can be read or written: a struct of a caller is touched as far as its
//! `struct_size` says. The header says which structs there are, and which functions take them.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself, or to memory of the test"
)]

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

use outrigger::ffi::*;
use outrigger::runtime::Code;
use outrigger_device::sys::{
    OTR_EXT_OPERATOR_ARGS, otr_ext_t, otr_launch_t, otr_operator_args_t, otr_operator_call_t,
};
use outrigger_tests::abi::*;

/// Memory that ends where a page ends; the page behind it is out of bounds.
struct Edge {
    base: *mut u8,
    page: usize,
}

impl Edge {
    fn new() -> Self {
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let (access, kind) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            );
            let base = libc::mmap(null_mut(), 2 * page, access, kind, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let base = base.cast::<u8>();
            assert_eq!(
                libc::mprotect(base.add(page).cast(), page, libc::PROT_NONE),
                0
            );
            Self { base, page }
        }
    }

    /// A struct of `room` bytes at the end, all zeros but for its size.
    fn put(&self, room: usize, struct_size: usize) -> *mut c_void {
        unsafe {
            self.base.write_bytes(0, self.page);
            let at = self.base.add(self.page - room);
            at.cast::<usize>().write(struct_size);
            at.cast()
        }
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.base.cast(), 2 * self.page) };
    }
}

type Call<'a> = Box<dyn Fn(*mut c_void) -> *mut otr_status_t + 'a>;

/// A function that takes a struct, by the names of both.
struct Case<'a> {
    function: &'static str,
    name: &'static str,
    size: usize,
    /// Whether the function fills the struct.
    filled: bool,
    call: Call<'a>,
}

/// Cases: what a function does with a struct; `it` is the struct.
macro_rules! cases {
    ($it:ident; $($function:ident($($argument:expr),*) $how:ident $type:ty;)*) => { vec![$(Case {
        function: stringify!($function),
        name: stringify!($type),
        size: size_of::<$type>(),
        filled: stringify!($how) == "fills",
        call: Box::new(move |at| {
            let $it = at.cast::<$type>();
            unsafe { $function($($argument),*) }
        }),
    }),*] };
}

fn cases<'a>() -> Vec<Case<'a>> {
    let (s, (graph, exec)) = (stream(0), empty(0));
    let address = alloc(0, 64, s);
    let pool = made(|out| unsafe { otr_pool_create(0, out) });
    let add = made(|out| unsafe { otr_operator_find(c"add".as_ptr(), out) });
    // A driver without code has no kernel. The struct is looked at first.
    let kernel = 0;
    let node = || std::ptr::from_mut(Box::leak(Box::new(0_u32)));
    let handle = || std::ptr::from_mut(Box::leak(Box::new(0_u64)));
    cases! { it;
        otr_host_kernel_launch(s, it) reads otr_host_kernel_call_t;
        otr_graph_add_host_kernel(graph, null(), 0, it, node()) reads otr_host_kernel_call_t;
        otr_host_node(s, it) reads otr_host_node_t;
        otr_graph_add_host(graph, null(), 0, it, node()) reads otr_host_node_t;
        otr_operator_call(s, add, it) reads otr_operator_call_t;
        otr_graph_add_operator(graph, null(), 0, add, it, node()) reads otr_operator_call_t;
        otr_kernel_launch(s, kernel, it) reads otr_launch_t;
        otr_graph_add_kernel(graph, null(), 0, kernel, it, node()) reads otr_launch_t;
        otr_communicator_create(0, it, handle()) reads otr_communicator_params_t;
        otr_memory_history_start(0, it) reads otr_history_options_t;
        otr_module_load(0, it, handle()) reads otr_module_params_t;
        otr_operator_register(it, handle()) reads otr_operator_registration_t;
        otr_tune_choose(0, it, node(), null_mut()) reads otr_tune_params_t;
        otr_device_info(0, it) fills otr_device_info_t;
        otr_memory_pointer_info(0, address, it) fills otr_pointer_info_t;
        otr_memory_stats(0, it) fills otr_memory_stats_t;
        otr_host_stats(it) fills otr_memory_stats_t;
        otr_pool_info(pool, it) fills otr_pool_info_t;
        otr_capture_info(s, it) fills otr_capture_info_t;
        otr_graph_info(graph, it) fills otr_graph_info_t;
        otr_graph_exec_info(exec, it) fills otr_graph_exec_info_t;
    }
}

fn header(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../include/outrigger/");
    std::fs::read_to_string(format!("{folder}{name}")).expect("a header")
}

/// The structs that begin with their size and that a caller makes.
fn sized() -> BTreeSet<String> {
    let header = header("outrigger.h") + &header("framework.h");
    let marks = header.split("// sizeof(").skip(1);
    let of_caller = marks.filter_map(|text| text.lines().next()?.strip_suffix(')'));
    // Structs that drivers get, too.
    let shared = ["otr_operator_call_t", "otr_launch_t"].map(str::to_owned);
    of_caller.map(str::to_owned).chain(shared).collect()
}

#[test]
fn every_function_that_takes_a_struct_with_its_size_is_here() {
    let (sized, header) = (sized(), header("table.h"));
    let (_, table) = header
        .split_once("// sizeof(otr_host_api_t)")
        .expect("the table");
    let (table, _) = table.split_once("} otr_host_api_t;").expect("its end");
    let takes = |declared: &str| {
        let (_, declared) = declared.split_once("(*")?;
        let (function, parameters) = declared.split_once(")(")?;
        let mut words = parameters.split([' ', ',', '(', ')', '\n']);
        let name = words.find(|word| sized.contains(*word))?;
        Some((format!("otr_{function}"), name.to_owned()))
    };
    let declared: BTreeSet<_> = table.split(';').filter_map(takes).collect();
    let of_case = |case: &Case<'_>| (case.function.to_owned(), case.name.to_owned());
    let tested: BTreeSet<_> = cases().iter().map(of_case).collect();
    assert_eq!(
        tested, declared,
        "those of this test, and those of the header"
    );
    let of_header: BTreeSet<_> = declared.into_iter().map(|(_, name)| name).collect();
    assert_eq!(of_header, sized, "each struct is some function's");
}

#[test]
fn no_byte_behind_the_size_of_a_struct_is_touched() {
    let edge = Edge::new();
    for case in cases() {
        let what = format!("{} of {}", case.name, case.function);
        for size in (0..8).chain((8..=case.size).step_by(8)) {
            let at = edge.put(size.max(8), size);
            let status = (case.call)(at);
            let enough = if case.filled { 8 } else { case.size };
            if size < enough {
                fails(
                    status,
                    Code::INVALID_ARGUMENT,
                    &["struct_size", &size.to_string()],
                );
            } else if case.filled {
                ok(status);
            } else if let Err((_, text)) = outcome(status) {
                assert!(!text.contains("struct_size"), "{what}: {text}");
            }
            assert_eq!(
                unsafe { at.cast::<usize>().read() },
                size,
                "the size of {what}"
            );
        }
    }
    ok(unsafe { otr_memory_history_stop(0) });
}

#[test]
fn no_byte_behind_a_record_of_a_chain_is_touched() {
    let (s, edge) = (stream(0), Edge::new());
    let (address, head) = (alloc(0, 64, s), size_of::<otr_ext_t>());
    let called_with = |record| {
        with_add(
            outrigger::runtime::DType::F32,
            (address, address, address),
            16,
            1,
            |id, call| {
                let call = otr_operator_call_t {
                    next: record,
                    ..*call
                };
                unsafe { otr_operator_call(s, id, &call) }
            },
        )
    };
    for size in [0, 8] {
        let record = edge.put(8, size).cast::<otr_ext_t>();
        let said = ["call->next", &format!("{size} bytes")];
        fails(called_with(record), Code::INVALID_ARGUMENT, &said);
    }
    let ring = edge.put(head, head).cast::<otr_ext_t>();
    unsafe { (*ring).type_ = 0x8000_0001 };
    unsafe { (*ring).next = ring };
    fails(
        called_with(ring),
        Code::INVALID_ARGUMENT,
        &["call->next", "1000 records"],
    );
    for type_ in [OTR_EXT_OPERATOR_ARGS, 0x8000_0001] {
        for size in (head..=size_of::<otr_operator_args_t>()).step_by(8) {
            let record = edge.put(size, size).cast::<otr_ext_t>();
            unsafe { (*record).type_ = type_ };
            let status = called_with(record);
            let short = size < size_of::<otr_operator_args_t>();
            match type_ == OTR_EXT_OPERATOR_ARGS && short {
                true => fails(
                    status,
                    Code::INVALID_ARGUMENT,
                    &["args->struct_size", &size.to_string()],
                ),
                false => ok(status),
            }
        }
    }
    synchronize(s);
}
