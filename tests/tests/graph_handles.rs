//! Every function of the graph part of the C ABI, with stale handles, handles of another kind, and
//! missing pointers: each call says what is wrong, writes nothing, and changes nothing.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI, with pointers to locals or with what it must refuse"
)]

use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;

use outrigger::ffi::*;
use outrigger::runtime::{Code, CopyKind, DType};
use outrigger_tests::abi::*;
use serial_test::serial;

type Status = *mut otr_status_t;

#[test]
#[serial]
fn handles_that_are_not_of_live_things_are_refused() {
    let device = DEVICES[1];
    let (s, x) = (stream(device), alloc(device, 64, stream(device)));
    let (graph, exec) = empty(device);
    let (old_graph, old_exec) = empty(device);
    let pool: u64 = made(|out| unsafe { otr_pool_create(device, out) });
    let old_pool: u64 = made(|out| unsafe { otr_pool_create(device, out) });
    let old_stream = stream(device);
    ok(unsafe { otr_graph_exec_destroy(old_exec) });
    ok(unsafe { otr_graph_destroy(old_graph) });
    ok(unsafe { otr_pool_destroy(old_pool) });
    ok(unsafe { otr_stream_destroy(old_stream) });
    let id = made(|out| unsafe { otr_operator_find(c"add".as_ptr(), out) });
    let call = kernel();
    let host = host_node(counter());
    let number = scalar(DType::F32, 1);
    let d2d = CopyKind::DeviceToDevice.raw();

    // Outputs are written only on success.
    let (mut word, mut long, mut string) = (7u32, 7u64, null_mut());
    let (n, l, t) = (&raw mut word, &raw mut long, &raw mut string);
    let mut graph_info = otr_graph_info_t {
        struct_size: size_of::<otr_graph_info_t>(),
        nodes: 7,
        ..Default::default()
    };
    let gi = &raw mut graph_info;
    let mut exec_info = otr_graph_exec_info_t {
        struct_size: size_of::<otr_graph_exec_info_t>(),
        nodes: 7,
        ..Default::default()
    };
    let ei = &raw mut exec_info;
    let mut pool_info = otr_pool_info_t {
        struct_size: size_of::<otr_pool_info_t>(),
        users: 7,
        ..Default::default()
    };
    let pi = &raw mut pool_info;
    let mut capture_info = otr_capture_info_t {
        struct_size: size_of::<otr_capture_info_t>(),
        mode: 7,
        ..Default::default()
    };
    let ci = &raw mut capture_info;

    let of_graph: [(&str, &dyn Fn(u64) -> Status); 19] = [
        ("destroy", &|g| unsafe { otr_graph_destroy(g) }),
        ("info", &|g| unsafe { otr_graph_info(g, gi) }),
        ("dump", &|g| unsafe { otr_graph_dump(g, OTR_GRAPH_DOT, t) }),
        ("name_buffer", &|g| unsafe {
            otr_graph_name_buffer(g, c"x".as_ptr(), x, 64)
        }),
        ("name_scalar", &|g| unsafe {
            otr_graph_name_scalar(g, c"x".as_ptr(), 0, 0)
        }),
        ("add_kernel", &|g| unsafe {
            otr_graph_add_kernel(g, null(), 0, &call, n)
        }),
        ("add_operator", &|g| {
            with_add(DType::F32, (x, x, x), 16, 1, |id, call| unsafe {
                otr_graph_add_operator(g, null(), 0, id, call, n)
            })
        }),
        ("add_copy", &|g| unsafe {
            otr_graph_add_copy(g, null(), 0, x, x + 32, 32, d2d, n)
        }),
        ("add_fill", &|g| unsafe {
            otr_graph_add_fill(g, null(), 0, x, 64, c"a".as_ptr().cast(), 1, n)
        }),
        ("add_host", &|g| unsafe {
            otr_graph_add_host(g, null(), 0, &host, n)
        }),
        ("add_empty", &|g| unsafe {
            otr_graph_add_empty(g, null(), 0, n)
        }),
        ("add_child, parent", &|g| unsafe {
            otr_graph_add_child(g, null(), 0, graph, n)
        }),
        ("add_child, child", &|g| unsafe {
            otr_graph_add_child(graph, null(), 0, g, n)
        }),
        ("add_conditional", &|g| unsafe {
            otr_graph_add_conditional(g, null(), 0, OTR_GRAPH_IF, x, DType::I64.0, &graph, 1, n)
        }),
        ("add_conditional, body", &|g| unsafe {
            otr_graph_add_conditional(graph, null(), 0, OTR_GRAPH_IF, x, DType::I64.0, &g, 1, n)
        }),
        ("add_alloc", &|g| unsafe {
            otr_graph_add_alloc(g, null(), 0, 64, l, n)
        }),
        ("add_free", &|g| unsafe {
            otr_graph_add_free(g, null(), 0, x, n)
        }),
        ("instantiate", &|g| unsafe {
            otr_graph_instantiate(g, 0, l)
        }),
        ("update", &|g| unsafe { otr_graph_update(exec, g) }),
    ];
    let of_exec: [(&str, &dyn Fn(u64) -> Status); 9] = [
        ("exec_destroy", &|e| unsafe { otr_graph_exec_destroy(e) }),
        ("replay", &|e| unsafe { otr_graph_replay(e, s) }),
        ("slot", &|e| unsafe { otr_graph_slot(e, c"x".as_ptr(), n) }),
        ("bind", &|e| unsafe { otr_graph_bind(e, 0, x) }),
        ("bind_scalar", &|e| unsafe {
            otr_graph_bind_scalar(e, 0, &number)
        }),
        ("update", &|e| unsafe { otr_graph_update(e, graph) }),
        ("exec_info", &|e| unsafe { otr_graph_exec_info(e, ei) }),
        ("profile", &|e| unsafe { otr_graph_profile(e, s, t) }),
        ("check", &|e| unsafe { otr_graph_check(e, s) }),
    ];
    let of_stream: [(&str, &dyn Fn(u64) -> Status); 12] = [
        ("begin", &|s| unsafe {
            otr_capture_begin(s, OTR_CAPTURE_GLOBAL, 0)
        }),
        ("end", &|s| unsafe { otr_capture_end(s, l) }),
        ("abort", &|s| unsafe {
            otr_capture_abort(s, c"why".as_ptr())
        }),
        ("partial", &|s| unsafe { otr_capture_partial(s, l) }),
        ("capture_info", &|s| unsafe { otr_capture_info(s, ci) }),
        ("label", &|s| unsafe {
            otr_capture_label(s, c"part".as_ptr())
        }),
        ("conditional", &|s| unsafe {
            otr_capture_conditional(s, OTR_GRAPH_IF, x, DType::I64.0, &graph, 1)
        }),
        ("kernel_launch", &|s| unsafe { otr_kernel_launch(s, &call) }),
        ("host_node", &|s| unsafe { otr_host_node(s, &host) }),
        ("replay, stream", &|s| unsafe { otr_graph_replay(exec, s) }),
        ("profile, stream", &|s| unsafe {
            otr_graph_profile(exec, s, t)
        }),
        ("check, stream", &|s| unsafe { otr_graph_check(exec, s) }),
    ];
    let of_pool: [(&str, &dyn Fn(u64) -> Status); 2] = [
        ("pool_destroy", &|p| unsafe { otr_pool_destroy(p) }),
        ("pool_info", &|p| unsafe { otr_pool_info(p, pi) }),
    ];
    // 0 stands for a pool of its own there.
    let of_some_pool: [(&str, &dyn Fn(u64) -> Status); 2] = [
        ("begin, pool", &|p| unsafe {
            otr_capture_begin(s, OTR_CAPTURE_GLOBAL, p)
        }),
        ("create, pool", &|p| unsafe {
            otr_graph_create(device, p, l)
        }),
    ];
    let wrong = |calls: &[(&str, &dyn Fn(u64) -> Status)], handles: &[u64]| {
        for (what, call) in calls {
            for &handle in handles {
                let (code, message) = outcome(call(handle)).expect_err(what);
                assert_eq!(
                    code,
                    Code::INVALID_HANDLE,
                    "{what} of {handle:#x}: {message}"
                );
            }
        }
    };
    wrong(&of_graph, &[0, u64::MAX, old_graph, exec, s]);
    wrong(&of_exec, &[0, u64::MAX, old_exec, graph, pool]);
    wrong(&of_stream, &[0, u64::MAX, old_stream, graph, exec]);
    wrong(&of_pool, &[0, u64::MAX, old_pool, graph, s]);
    wrong(&of_some_pool, &[u64::MAX, old_pool, graph, s]);
    let known = unsafe {
        (
            (*n),
            (*l),
            (*t),
            (*gi).nodes,
            (*ei).nodes,
            (*pi).users,
            (*ci).mode,
        )
    };
    assert_eq!(known, (7, 7, null_mut(), 7, 7, 7, 7), "outputs");

    for device in [99, u32::MAX] {
        fails(
            unsafe { otr_graph_create(device, 0, l) },
            Code::INVALID_DEVICE,
            &[],
        );
        fails(
            unsafe { otr_pool_create(device, l) },
            Code::INVALID_DEVICE,
            &[],
        );
    }
    assert_eq!(nodes(graph), 0, "nothing was added");
    let status = unsafe { otr_graph_add_operator(graph, null(), 0, id, null(), n) };
    fails(status, Code::INVALID_ARGUMENT, &["call is NULL"]);
    replay(exec, s);
    synchronize(s);
}

#[test]
#[serial]
fn missing_pointers_are_named_and_nothing_happens() {
    let device = DEVICES[0];
    let s = stream(device);
    let x = alloc(device, 64, s);
    let (graph, exec) = empty(device);
    let pool: u64 = made(|out| unsafe { otr_pool_create(device, out) });
    let users = counter();
    let (call, host) = (kernel(), host_node(users));
    let (mut n, mut l) = (0u32, 0u64);
    let (mut short_kernel, mut short_host) = (call, host);
    (short_kernel.struct_size, short_host.struct_size) = (8, 8);
    let (mut no_kernel, mut no_host) = (call, host);
    (no_kernel.function, no_host.function) = (None, None);
    let mut no_args = call;
    no_args.args_size = 8;
    let outcomes = [
        ("graph is NULL", unsafe {
            otr_graph_create(device, 0, null_mut())
        }),
        ("info is NULL", unsafe { otr_graph_info(graph, null_mut()) }),
        ("text is NULL", unsafe {
            otr_graph_dump(graph, OTR_GRAPH_SVG, null_mut())
        }),
        ("format 9", unsafe {
            otr_graph_dump(graph, 9, &mut null_mut())
        }),
        ("name is NULL", unsafe {
            otr_graph_name_buffer(graph, null(), x, 64)
        }),
        ("empty or taken", unsafe {
            otr_graph_name_buffer(graph, c"".as_ptr(), x, 64)
        }),
        ("not valid UTF-8", unsafe {
            otr_graph_name_buffer(graph, c"\xff".as_ptr(), x, 64)
        }),
        ("name is NULL", unsafe {
            otr_graph_name_scalar(graph, null(), 0, 0)
        }),
        ("node is NULL", unsafe {
            otr_graph_add_kernel(graph, null(), 0, &call, null_mut())
        }),
        ("call is NULL", unsafe {
            otr_graph_add_kernel(graph, null(), 0, null(), &mut n)
        }),
        ("function is NULL", unsafe {
            otr_graph_add_kernel(graph, null(), 0, &no_kernel, &mut n)
        }),
        ("args is NULL", unsafe {
            otr_graph_add_kernel(graph, null(), 0, &no_args, &mut n)
        }),
        ("struct_size", unsafe {
            otr_graph_add_kernel(graph, null(), 0, &short_kernel, &mut n)
        }),
        ("deps is NULL", unsafe {
            otr_graph_add_kernel(graph, null(), 1, &call, &mut n)
        }),
        ("call is NULL", unsafe {
            otr_graph_add_operator(graph, null(), 0, 0, null(), &mut n)
        }),
        ("node is NULL", unsafe {
            otr_graph_add_copy(graph, null(), 0, x, x, 0, 1, null_mut())
        }),
        ("copy kind 9", unsafe {
            otr_graph_add_copy(graph, null(), 0, x, x, 0, 9, &mut n)
        }),
        ("pattern is NULL", unsafe {
            otr_graph_add_fill(graph, null(), 0, x, 64, null(), 4, &mut n)
        }),
        ("pattern of 3", unsafe {
            otr_graph_add_fill(graph, null(), 0, x, 63, c"abc".as_ptr().cast(), 3, &mut n)
        }),
        ("node is NULL", unsafe {
            otr_graph_add_host(graph, null(), 0, &host, null_mut())
        }),
        ("node is NULL", unsafe {
            otr_graph_add_host(graph, null(), 0, null(), &mut n)
        }),
        ("function is NULL", unsafe {
            otr_graph_add_host(graph, null(), 0, &no_host, &mut n)
        }),
        ("struct_size", unsafe {
            otr_graph_add_host(graph, null(), 0, &short_host, &mut n)
        }),
        ("node 5", unsafe {
            otr_graph_add_host(graph, &5, 1, &host, &mut n)
        }),
        ("node is NULL", unsafe {
            otr_graph_add_empty(graph, null(), 0, null_mut())
        }),
        ("node is NULL", unsafe {
            otr_graph_add_child(graph, null(), 0, graph, null_mut())
        }),
        ("graphs is NULL", unsafe {
            otr_graph_add_conditional(
                graph,
                null(),
                0,
                OTR_GRAPH_IF,
                x,
                DType::I64.0,
                null(),
                1,
                &mut n,
            )
        }),
        ("0 bodies", unsafe {
            otr_graph_add_conditional(
                graph,
                null(),
                0,
                OTR_GRAPH_IF,
                x,
                DType::I64.0,
                null(),
                0,
                &mut n,
            )
        }),
        ("kind 9", unsafe {
            otr_graph_add_conditional(graph, null(), 0, 9, x, DType::I64.0, &graph, 1, &mut n)
        }),
        ("not memory of this device", unsafe {
            otr_graph_add_conditional(
                graph,
                null(),
                0,
                OTR_GRAPH_IF,
                64,
                DType::I64.0,
                &graph,
                1,
                &mut n,
            )
        }),
        ("address is NULL", unsafe {
            otr_graph_add_alloc(graph, null(), 0, 64, null_mut(), &mut n)
        }),
        ("node is NULL", unsafe {
            otr_graph_add_alloc(graph, null(), 0, 64, &mut l, null_mut())
        }),
        ("node 5", unsafe {
            otr_graph_add_alloc(graph, &5, 1, 64, &mut l, &mut n)
        }),
        ("node is NULL", unsafe {
            otr_graph_add_free(graph, null(), 0, x, null_mut())
        }),
        ("exec is NULL", unsafe {
            otr_graph_instantiate(graph, 0, null_mut())
        }),
        ("flags 0x100", unsafe {
            otr_graph_instantiate(graph, 0x100, &mut l)
        }),
        ("slot is NULL", unsafe {
            otr_graph_slot(exec, c"x".as_ptr(), null_mut())
        }),
        ("name is NULL", unsafe {
            otr_graph_slot(exec, null(), &mut n)
        }),
        ("value is NULL", unsafe {
            otr_graph_bind_scalar(exec, 0, null())
        }),
        ("info is NULL", unsafe {
            otr_graph_exec_info(exec, null_mut())
        }),
        ("struct_size", unsafe {
            otr_graph_exec_info(exec, &mut otr_graph_exec_info_t::default())
        }),
        ("json is NULL", unsafe {
            otr_graph_profile(exec, s, null_mut())
        }),
        ("pool is NULL", unsafe {
            otr_pool_create(device, null_mut())
        }),
        ("info is NULL", unsafe { otr_pool_info(pool, null_mut()) }),
        ("mode 9", unsafe { otr_capture_begin(s, 9, 0) }),
        ("call is NULL", unsafe { otr_kernel_launch(s, null()) }),
        ("node is NULL", unsafe { otr_host_node(s, null()) }),
    ];
    for (needle, status) in outcomes {
        fails(status, Code::INVALID_ARGUMENT, &[needle]);
    }
    assert_eq!((n, l), (0, 0), "outputs");
    assert_eq!(nodes(graph), 0, "nothing was added");
    assert_eq!(
        users.load(Ordering::Relaxed),
        0,
        "user data stay the caller's"
    );

    // A capture goes on without the call.
    begin(s);
    fails(
        unsafe { otr_capture_end(s, null_mut()) },
        Code::INVALID_ARGUMENT,
        &["graph is NULL"],
    );
    fails(
        unsafe { otr_capture_partial(s, null_mut()) },
        Code::INVALID_ARGUMENT,
        &["graph is NULL"],
    );
    fails(
        unsafe { otr_capture_abort(s, null()) },
        Code::INVALID_ARGUMENT,
        &["reason is NULL"],
    );
    fails(
        unsafe { otr_capture_info(s, null_mut()) },
        Code::INVALID_ARGUMENT,
        &["info is NULL"],
    );
    ok(unsafe { otr_capture_label(s, null()) });
    assert_eq!(capture_info(s).status, OTR_CAPTURE_ACTIVE);
    ok(unsafe { otr_graph_destroy(end(s)) });
}
