//! Code of the host on the device: modules, kernels and launches, eager and in graphs.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use crate::tests::host::bindings::*;
use outrigger_device::{Code, sys};

use super::{
    Refused, alloc, begin, download, end, executable, fill, made, otr, refused, start, stream,
    tried,
};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Need, Verdict};

tests! { "host-abi.code":
    /// Code in OpenCL C is loaded, or refused with nothing written.
    formats_that_are_not_taken: H2 H29, absent OpenclC;
    /// NULL, unknown flags and host functions are no code.
    wrong_parameters: H2 H6 H8;
    /// Handles of modules and kernels are checked, also once they are stale.
    stale_handles: H5 H11;
    /// A kernel gets addresses, values and local memory, in stream order, and its arguments are copied.
    a_kernel_runs: H11 H18, needs OpenclC;
    /// A kernel that is destroyed runs to its end, and so does one whose module is gone.
    destroyed_kernels_run: H13, needs OpenclC;
    /// Code that does not compile is shown with the line.
    code_that_does_not_compile: H2 H3, needs OpenclC, lets compiler print;
    /// In the background, a module says that it does not compile to everyone who asks.
    failures_in_the_background: H3, needs OpenclC, lets compiler print;
    /// Code that is to be taken from the store alone is not compiled; what is loaded already is taken.
    stored_code_alone: H2, needs OpenclC;
    /// Arguments that are not those of the kernel are refused, and nothing runs.
    wrong_arguments: H2 H18, needs OpenclC;
    /// A graph binds buffers and arguments, two of one word too, and needs no kernel any more.
    a_graph_binds_them: H27 H28, needs OpenclC;
    /// A launch is captured, replayed and updated.
    a_captured_launch: H25 H28, needs OpenclC;
    /// An address that no graph could change fails its capture.
    a_capture_fails: H26, needs OpenclC;
    /// Only values of kernels have names as arguments.
    names_of_arguments: H2, needs OpenclC;
}

const SOURCE: &CStr = c"
__kernel void affine(__global float* x, int by, int plus) {
  x[get_global_id(0)] = x[get_global_id(0)] * by + plus;
}
__kernel void sums(__global float* to, __global const float* from, __local float* group) {
  size_t own = get_local_id(0);
  group[own] = from[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum = 0;
  for (size_t i = 0; i < get_local_size(0); i++) sum += group[i];
  to[get_global_id(0)] = sum;
}
";

const COUNT: usize = 64;
const BYTES: u64 = 4 * COUNT as u64;
const GROUPS: u32 = 4;

fn params(code: &CStr) -> otr_module_params_t {
    otr_module_params_t {
        struct_size: size_of::<otr_module_params_t>(),
        next: null(),
        code: code.as_ptr().cast(),
        size: code.to_bytes().len() as u64,
        options: null(),
        format: sys::OTR_CODE_OPENCL_C,
        flags: 0,
    }
}

fn load(params: &otr_module_params_t) -> Result<otr_module_t, Refused> {
    tried(|out| otr!(module_load, 0, params, out))
}

/// A kernel whose module is gone.
fn kernel(name: &CStr) -> Verdict<otr_kernel_t> {
    let module = load(&params(SOURCE))?;
    let kernel = made(|out| otr!(kernel_get, module, name.as_ptr(), out))?;
    otr!(module_destroy, module)?;
    Ok(kernel)
}

/// Memory with numbers of one value.
fn numbers(stream: u64, value: f32) -> Verdict<u64> {
    let address = alloc(BYTES, stream)?;
    fill(stream, address, BYTES, &value.to_ne_bytes())?;
    Ok(address)
}

#[track_caller]
fn holds(stream: u64, address: u64, value: f32, what: &str) -> Verdict {
    let found = download::<f32>(stream, address, COUNT)?;
    equal!(found, vec![value; COUNT], "{what}");
    Ok(())
}

fn part(offset: u32, size: u32, kind: u32) -> sys::otr_argument {
    sys::otr_argument { offset, size, kind }
}

/// A block, and what stands where in it.
struct Arguments {
    block: Vec<u8>,
    parts: Vec<sys::otr_argument>,
}

impl Arguments {
    fn raw(&self) -> sys::otr_launch {
        sys::otr_launch {
            struct_size: size_of::<sys::otr_launch>(),
            next: null(),
            grid: [GROUPS, 1, 1],
            block: [COUNT as u32 / GROUPS, 1, 1],
            shared_bytes: 0,
            args_size: self.block.len() as u32,
            args: self.block.as_ptr().cast(),
            arguments: self.parts.as_ptr(),
            argument_count: self.parts.len() as u32,
            cost_ns: 0,
            label: null(),
        }
    }
}

/// x * by + plus; the two numbers share a word of the block.
fn affine(address: u64, by: i32, plus: i32) -> Arguments {
    let block = [
        &address.to_ne_bytes()[..],
        &by.to_ne_bytes(),
        &plus.to_ne_bytes(),
    ];
    let parts = vec![
        part(0, 8, sys::OTR_ARGUMENT_ADDRESS),
        part(8, 4, sys::OTR_ARGUMENT_VALUE),
        part(12, 4, sys::OTR_ARGUMENT_VALUE),
    ];
    let block = block.concat();
    Arguments { block, parts }
}

fn launch(stream: u64, kernel: u64, arguments: &Arguments) -> Result<(), Refused> {
    otr!(kernel_launch, stream, kernel, &arguments.raw())
}

fn formats_that_are_not_taken(context: &Context) -> Verdict {
    start(context)?;
    if context.has(&context.open()?, Need::OpenclC) {
        let module = load(&params(SOURCE))?;
        return Ok(otr!(module_destroy, module)?);
    }
    let answer = load(&params(SOURCE));
    refused(answer, Code::UNSUPPORTED, "code in OpenCL C").map(drop)
}

fn wrong_parameters(context: &Context) -> Verdict {
    start(context)?;
    let mut module = 7;
    let right = params(SOURCE);
    let wrong = [
        ("unknown flags", otr_module_params_t { flags: 8, ..right }),
        (
            "flags that exclude each other",
            otr_module_params_t {
                flags: OTR_MODULE_BACKGROUND | OTR_MODULE_STORED,
                ..right
            },
        ),
        (
            "a host function",
            otr_module_params_t {
                format: sys::OTR_CODE_HOST_FUNCTION,
                ..right
            },
        ),
        (
            "NULL as code",
            otr_module_params_t {
                code: null(),
                ..right
            },
        ),
        (
            "a struct that is too small",
            otr_module_params_t {
                struct_size: 8,
                ..right
            },
        ),
    ];
    for (what, params) in &wrong {
        let answer = otr!(module_load, 0, params, &mut module);
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    let answer = otr!(module_load, 0, null(), &mut module);
    refused(answer, Code::INVALID_ARGUMENT, "NULL as parameters")?;
    let answer = otr!(module_load, 0, &right, null_mut());
    refused(answer, Code::INVALID_ARGUMENT, "NULL as output")?;
    let answer = otr!(module_load, u32::MAX, &right, &mut module);
    refused(answer, Code::INVALID_DEVICE, "no device")?;
    equal!(module, 7, "H2: the output of failed calls");
    Ok(())
}

fn stale_handles(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let mut wrong = vec![0, stream, u64::MAX >> 1];
    if let Ok(module) = load(&params(SOURCE)) {
        otr!(module_destroy, module)?;
        wrong.push(module);
        let kernel = kernel(c"affine")?;
        otr!(kernel_destroy, kernel)?;
        wrong.push(kernel);
    }
    let address = alloc(BYTES, stream)?;
    let graph = made(|out| otr!(graph_create, 0, 0, out))?;
    let raw = affine(address, 1, 1).raw();
    for id in wrong {
        let answers = [
            otr!(module_destroy, id),
            otr!(module_query, id, &mut 0),
            otr!(kernel_get, id, null(), &mut 0),
            otr!(kernel_destroy, id),
            otr!(kernel_launch, stream, id, &raw),
            otr!(graph_add_kernel, graph, null(), 0, id, &raw, &mut 0),
        ];
        for answer in answers {
            refused(answer, Code::INVALID_HANDLE, "a handle that is none")?;
        }
    }
    Ok(())
}

fn a_kernel_runs(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (scale, sums) = (kernel(c"affine")?, kernel(c"sums")?);
    let (x, y) = (numbers(stream, 1.0)?, numbers(stream, 0.0)?);
    let mut first = affine(x, 3, 4);
    launch(stream, scale, &first)?;
    first.block.fill(0xff);
    let own = COUNT as u32 / GROUPS;
    let second = Arguments {
        block: [y.to_ne_bytes(), x.to_ne_bytes()].concat(),
        parts: vec![
            part(0, 8, sys::OTR_ARGUMENT_ADDRESS),
            part(8, 8, sys::OTR_ARGUMENT_ADDRESS),
            part(0, 4 * own, sys::OTR_ARGUMENT_LOCAL),
        ],
    };
    launch(stream, sums, &second)?;
    holds(stream, y, 7.0 * own as f32, "sums of groups")
}

fn destroyed_kernels_run(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let x = numbers(stream, 0.0)?;
    for _ in 0..50 {
        let kernel = kernel(c"affine")?;
        launch(stream, kernel, &affine(x, 1, 1))?;
        otr!(kernel_destroy, kernel)?;
    }
    holds(stream, x, 50.0, "what all launches added")
}

const BROKEN: &CStr = c"__kernel void f(__global int* x) {\n  x[0] = not_declared;\n}\n";

fn code_that_does_not_compile(context: &Context) -> Verdict {
    start(context)?;
    let answer = load(&params(BROKEN));
    let said = refused(answer, Code::INVALID_ARGUMENT, "code that does not compile")?;
    check!(
        said.text.contains("x[0] = not_declared;"),
        "the text has the line: {}",
        said.text
    );
    Ok(())
}

fn stored_code_alone(context: &Context) -> Verdict {
    start(context)?;
    // A text that no store has.
    let now = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0, |now| now.as_nanos());
    let source = format!("__kernel void unheard_of_{now}(__global float* x) {{ x[0] = 1; }}");
    let right = otr_module_params_t {
        code: source.as_ptr().cast(),
        size: source.len() as u64,
        ..params(SOURCE)
    };
    let stored = otr_module_params_t {
        flags: OTR_MODULE_STORED,
        ..right
    };
    let mut module = 7;
    let answer = otr!(module_load, 0, &stored, &mut module);
    refused(answer, Code::NOT_FOUND, "code that nobody has compiled")?;
    equal!(module, 7, "H2: the output of a failed call");
    let _kept = load(&right)?;
    let module = load(&stored)?;
    equal!(
        made(|out: *mut u32| otr!(module_query, module, out))?,
        1,
        "whether it is loaded"
    );
    Ok(())
}

fn failures_in_the_background(context: &Context) -> Verdict {
    start(context)?;
    let background = |code| otr_module_params_t {
        flags: OTR_MODULE_BACKGROUND,
        ..params(code)
    };
    let module = load(&background(BROKEN))?;
    let mut loaded = 7;
    let failure = loop {
        match otr!(module_query, module, &mut loaded) {
            Ok(()) => equal!(loaded, 0, "whether code that cannot be loaded is loaded"),
            failure => break failure,
        }
    };
    refused(failure, Code::INVALID_ARGUMENT, "the query")?;
    for _ in 0..2 {
        let kernel = tried(|out| otr!(kernel_get, module, null(), out));
        refused(kernel, Code::INVALID_ARGUMENT, "its kernel")?;
    }
    let module = load(&background(SOURCE))?;
    // Waits for it.
    let _: u64 = made(|out| otr!(kernel_get, module, c"sums".as_ptr(), out))?;
    equal!(
        made(|out: *mut u32| otr!(module_query, module, out))?,
        1,
        "whether it is loaded"
    );
    let other = tried(|out| otr!(kernel_get, module, c"other".as_ptr(), out));
    refused(other, Code::NOT_FOUND, "a kernel that it has not").map(drop)
}

fn wrong_arguments(context: &Context) -> Verdict {
    start(context)?;
    let (stream, kernel) = (stream()?, kernel(c"affine")?);
    let x = numbers(stream, 1.0)?;
    let value = sys::OTR_ARGUMENT_VALUE;
    for (what, at, other) in [
        ("too few", 2, None),
        ("behind the block", 2, Some(part(16, 4, value))),
        ("of another size", 1, Some(part(8, 2, value))),
        ("of an unknown kind", 1, Some(part(8, 4, 9))),
    ] {
        let mut wrong = affine(x, 2, 3);
        wrong.parts.remove(at);
        wrong.parts.splice(at..at, other);
        let answer = launch(stream, kernel, &wrong);
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    let answer = otr!(kernel_launch, stream, kernel, null());
    refused(answer, Code::INVALID_ARGUMENT, "NULL as launch")?;
    holds(stream, x, 1.0, "what no launch has changed")?;
    launch(stream, kernel, &affine(x, 2, 3))?;
    holds(stream, x, 5.0, "after one that is right")
}

fn slot(exec: u64, name: &CStr) -> Verdict<u32> {
    made(|out| otr!(graph_slot, exec, name.as_ptr(), out))
}

fn bind(exec: u64, name: &CStr, value: &[u8]) -> Verdict<Result<(), Refused>> {
    let (bytes, size) = (value.as_ptr().cast(), value.len() as u32);
    Ok(otr!(
        graph_bind_argument,
        exec,
        slot(exec, name)?,
        bytes,
        size
    ))
}

/// A graph of one launch, and its node.
fn graph_of(kernel: u64, arguments: &Arguments) -> Verdict<(u64, u32)> {
    let graph = made(|out| otr!(graph_create, 0, 0, out))?;
    let raw = arguments.raw();
    let node = made(|out| otr!(graph_add_kernel, graph, null(), 0, kernel, &raw, out))?;
    Ok((graph, node))
}

fn a_graph_binds_them(context: &Context) -> Verdict {
    start(context)?;
    let (stream, kernel) = (stream()?, kernel(c"affine")?);
    let (x, other) = (numbers(stream, 1.0)?, numbers(stream, 10.0)?);
    let (graph, node) = graph_of(kernel, &affine(x, 2, 3))?;
    otr!(graph_name_argument, graph, c"by".as_ptr(), node, 1)?;
    otr!(graph_name_argument, graph, c"plus".as_ptr(), node, 2)?;
    otr!(graph_name_buffer, graph, c"x".as_ptr(), x, BYTES)?;
    let exec = executable(graph)?;
    otr!(graph_destroy, graph)?;
    otr!(kernel_destroy, kernel)?;
    otr!(graph_replay, exec, stream)?;
    holds(stream, x, 5.0, "as it was recorded")?;
    bind(exec, c"plus", &7_i32.to_ne_bytes())??;
    otr!(graph_replay, exec, stream)?;
    holds(stream, x, 17.0, "with another summand")?;
    bind(exec, c"by", &3_i32.to_ne_bytes())??;
    otr!(graph_bind, exec, slot(exec, c"x")?, other)?;
    otr!(graph_replay, exec, stream)?;
    holds(stream, other, 37.0, "with another factor and buffer")?;
    holds(stream, x, 17.0, "the buffer that was recorded")?;
    let answer = bind(exec, c"by", &[0; 8])?;
    refused(answer, Code::INVALID_ARGUMENT, "a value of another size")?;
    let answer = bind(exec, c"x", &[0; 8])?;
    refused(answer, Code::NOT_FOUND, "a value for a buffer")?;
    otr!(graph_replay, exec, stream)?;
    holds(stream, other, 118.0, "after bindings that were refused")
}

fn a_captured_launch(context: &Context) -> Verdict {
    start(context)?;
    let (stream, kernel) = (stream()?, kernel(c"affine")?);
    let x = numbers(stream, 1.0)?;
    let capture = |kernel, arguments: &Arguments| {
        begin(stream)?;
        launch(stream, kernel, arguments)?;
        end(stream)
    };
    let exec = executable(capture(kernel, &affine(x, 2, 1))?)?;
    otr!(graph_replay, exec, stream)?;
    otr!(graph_update, exec, capture(kernel, &affine(x, 5, 1))?)?;
    otr!(graph_replay, exec, stream)?;
    holds(stream, x, 16.0, "after a replay and one of the update")?;
    let other = self::kernel(c"sums")?;
    let answer = otr!(graph_update, exec, capture(other, &affine(x, 5, 1))?);
    refused(
        answer,
        Code::INVALID_ARGUMENT,
        "an update with another kernel",
    )?;
    otr!(graph_replay, exec, stream)?;
    holds(stream, x, 81.0, "after an update that was refused")
}

fn a_capture_fails(context: &Context) -> Verdict {
    start(context)?;
    let (stream, kernel) = (stream()?, kernel(c"affine")?);
    let x = numbers(stream, 1.0)?;
    let mut wrong = affine(x, 2, 1);
    wrong.parts[0].offset = 4;
    begin(stream)?;
    let failed = refused(launch(stream, kernel, &wrong), Code::INVALID_ARGUMENT, "it")?;
    check!(failed.text.contains("argument 0"), "{}", failed.text);
    let ended = tried(|out| otr!(capture_end, stream, out));
    let ended = refused(ended, Code::INVALID_ARGUMENT, "the end of the capture")?;
    equal!(ended.text, failed.text, "the first failure");
    launch(stream, kernel, &affine(x, 2, 1))?;
    holds(stream, x, 3.0, "the stream is usable")
}

fn names_of_arguments(context: &Context) -> Verdict {
    start(context)?;
    let (stream, kernel) = (stream()?, kernel(c"affine")?);
    let x = numbers(stream, 1.0)?;
    let (graph, node) = graph_of(kernel, &affine(x, 2, 3))?;
    let empty = made(|out| otr!(graph_add_empty, graph, null(), 0, out))?;
    let name = |name: &CStr, node: u32, index: u32| {
        otr!(graph_name_argument, graph, name.as_ptr(), node, index)
    };
    refused(name(c"a", node, 0), Code::INVALID_ARGUMENT, "an address")?;
    refused(name(c"a", node, 3), Code::NOT_FOUND, "a fourth argument")?;
    refused(name(c"a", empty, 0), Code::NOT_FOUND, "a node without work")?;
    name(c"a", node, 1)?;
    refused(
        name(c"a", node, 2),
        Code::INVALID_ARGUMENT,
        "a name that is taken",
    )
    .map(drop)
}
