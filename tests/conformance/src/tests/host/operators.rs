//! Operators over the C ABI, by the driver's own library or by host kernels: which of the two runs,
//! what is refused, and the order of a stream's calls.

use std::ptr::null;

use outrigger_device::sys::{otr_operator_call_t, otr_scalar_t, otr_tensor_t};
use outrigger_device::{Code, DType};

pub(super) use super::super::operators::operand::empty_call;
use super::super::operators::operand::{Arguments, Operand, Runner};
use super::super::operators::sample::Sample;
use crate::tests::host::bindings::OTR_CALL_DEVICE_ONLY;

use super::{
    Refused, alloc, begin, download, end, executable, json, made, nodes, otr, refused, replay,
    scalar, start, start_under, stream, string, upload,
};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Failure, Need, Verdict};

/// The C ABI as a runner of operators. Its memory goes with the process.
pub(in crate::tests) struct Host {
    stream: u64,
    seed: u64,
}

/// The C ABI over the driver under test.
pub(in crate::tests) fn host(context: &Context) -> Verdict<Host> {
    start(context)?;
    Host::new(context)
}

impl Host {
    /// The host of a test, after a start.
    fn new(context: &Context) -> Verdict<Self> {
        Ok(Self {
            stream: stream()?,
            seed: context.seed(),
        })
    }

    /// Runs a call to its end; false if nothing can.
    pub(in crate::tests) fn supports(&self, call: &otr_operator_call_t) -> Verdict<bool> {
        match self.submit(call)? {
            Err(refused) if refused.code == Code::UNSUPPORTED => return Ok(false),
            outcome => outcome?,
        }
        otr!(stream_synchronize, self.stream)?;
        Ok(true)
    }

    fn submit(&self, call: &otr_operator_call_t) -> Verdict<Result<(), Refused>> {
        let id = made(|out| otr!(operator_find, call.name, out))?;
        Ok(otr!(operator_call, self.stream, id, call))
    }
}

impl Runner for Host {
    fn place(&self, bytes: &[u8]) -> Verdict<u64> {
        let address = alloc(bytes.len() as u64, self.stream)?;
        upload(self.stream, address, bytes)?;
        Ok(address)
    }

    fn fetch(&self, address: u64, size: usize) -> Verdict<Vec<u8>> {
        download(self.stream, address, size)
    }

    fn run(&self, call: &otr_operator_call_t) -> Verdict<bool> {
        self.submit(call)??;
        otr!(stream_synchronize, self.stream)?;
        Ok(true)
    }

    fn seed(&self) -> u64 {
        self.seed
    }
}

/// A call without scalars. The operands have to outlive it.
fn call_of(inputs: &[otr_tensor_t], outputs: &[otr_tensor_t]) -> otr_operator_call_t {
    otr_operator_call_t {
        inputs: inputs.as_ptr(),
        outputs: outputs.as_ptr(),
        input_count: inputs.len() as u32,
        output_count: outputs.len() as u32,
        ..empty_call()
    }
}

tests! { "ops.call":
    /// A call that does not fit an operator's table is refused, and nothing is done.
    a_wrong_call_is_refused: H2 H6;
    /// A number that the dtype of a fill cannot hold is refused, also in a capture.
    numbers_that_do_not_fit: H2 H3 H26, needs OwnOperators;
    /// Sizes and strides that no memory could hold are refused by the operand, in calls and in nodes.
    operands_that_no_memory_could_hold: H2 H3 H22;
    /// Dtypes for which there is no kernel are OTR_ERR_UNSUPPORTED, and nothing is done.
    what_is_not_there_is_unsupported: H2 H29;
    /// An index out of bounds fails the stream with OTR_ERR_OUT_OF_RANGE, and names the operator.
    an_index_out_of_bounds_fails_the_stream: H3 H19;
    /// Calls are counted by operator and place, and timed while that is asked for.
    calls_are_counted_where_they_run: H11 H29;
    /// A policy names a mode for each place, and a wrong one changes nothing. What it forbids is refused.
    policies_hold_for_their_place: H2 H29;
    /// A call that only the driver may serve is refused where the driver does not offer the operator.
    a_call_for_the_driver_alone: H2 H29;
    /// Operators of the framework have numbers by their schema names, and those that the page serves are found as that.
    schema_names_have_numbers: H29;
    /// Operators of a stream see each other's results, without a wait between them.
    a_chain_of_calls: H18;
}

fn a_wrong_call_is_refused(context: &Context) -> Verdict {
    let host = host(context)?;
    let stream = host.stream;
    let add = made(|out| otr!(operator_find, c"add".as_ptr(), out))?;
    let a = Operand::dense(&host, DType::F32, &[4], &[1.0; 4])?;
    let other = Operand::dense(&host, DType::F32, &[5], &[1.0; 5])?;
    let out = Operand::dense(&host, DType::F32, &[4], &[9.0; 4])?;
    let (inputs, outputs) = ([a.tensor(), other.tensor()], [out.tensor()]);
    let mut wrong = empty_call();
    (wrong.inputs, wrong.outputs) = (inputs.as_ptr(), outputs.as_ptr());
    for (what, inputs, outputs) in [
        ("no operands", 0, 0),
        ("no output", 2, 0),
        ("shapes that do not fit", 2, 1),
    ] {
        (wrong.input_count, wrong.output_count) = (inputs, outputs);
        refused(
            otr!(operator_call, stream, add, &wrong),
            Code::INVALID_ARGUMENT,
            what,
        )?;
    }
    refused(
        otr!(operator_call, stream, u32::MAX, &wrong),
        Code::NOT_FOUND,
        "an operator that does not exist",
    )
    .or_else(|_| {
        refused(
            otr!(operator_call, stream, u32::MAX, &wrong),
            Code::INVALID_ARGUMENT,
            "an operator that does not exist",
        )
    })?;
    otr!(stream_synchronize, stream)?;
    equal!(
        out.values(&host, "the output")?,
        [9.0; 4],
        "the output of refused calls"
    );
    Ok(())
}

/// Fills four elements at an address.
fn fill_with(
    host: &Host,
    address: u64,
    dtype: DType,
    number: otr_scalar_t,
) -> Verdict<Result<(), Refused>> {
    let (sizes, strides) = ([4], [1]);
    let output = otr_tensor_t {
        address,
        dtype: dtype.0,
        rank: 1,
        sizes: sizes.as_ptr(),
        strides: strides.as_ptr(),
    };
    host.submit(&otr_operator_call_t {
        name: c"fill".as_ptr(),
        scalars: &raw const number,
        scalar_count: 1,
        ..call_of(&[], &[output])
    })
}

fn numbers_that_do_not_fit(context: &Context) -> Verdict {
    let host = host(context)?;
    let stream = host.stream;
    let address = alloc(64, stream)?;
    upload(stream, address, &[7u8; 16])?;
    for (dtype, of, number) in [
        (DType::U8, DType::I64, 300),
        (DType::I8, DType::F64, -129),
        (DType::I32, DType::I64, 1 << 40),
        (DType::F16, DType::F64, 70_000),
    ] {
        let what = format!("{number} as {dtype:?}");
        let answer = fill_with(&host, address, dtype, scalar(of, number))?;
        let told = refused(answer, Code::INVALID_ARGUMENT, &what)?;
        check!(
            told.text.contains(&number.to_string()),
            "H3: the number in {}",
            told.text
        );
    }
    equal!(
        download::<u8>(stream, address, 16)?,
        [7; 16],
        "memory after refused fills"
    );
    // Negative numbers wrap in unsigned types.
    fill_with(&host, address, DType::U8, scalar(DType::I64, -1))??;
    equal!(
        download::<u8>(stream, address, 5)?,
        [255, 255, 255, 255, 7],
        "what was filled with -1"
    );
    begin(stream)?;
    let answer = fill_with(&host, address, DType::U8, scalar(DType::I64, 300))?;
    refused(answer, Code::INVALID_ARGUMENT, "a call in a capture")?;
    refused(
        otr!(capture_end, stream, &mut 0),
        Code::INVALID_ARGUMENT,
        "the end of that capture",
    )?;
    Ok(())
}

fn operands_that_no_memory_could_hold(context: &Context) -> Verdict {
    let host = host(context)?;
    let address = alloc(1 << 20, host.stream)?;
    let graph = made(|out| otr!(graph_create, 0, 0, out))?;
    type Layout = ([i64; 2], [i64; 2]);
    let (huge, fine): (i64, Layout) = (1 << 32, ([4, 4], [4, 1]));
    let wrong: [(Layout, &str); 9] = [
        (([-1, 4], [4, 1]), "-1"),
        (([-4, -4], [-4, 1]), "-4"),
        (([0, i64::MIN], [1, 1]), "-9223372036854775808"),
        (([huge, huge], [huge, 1]), "4294967296"),
        (([huge + 1, huge], [huge, 1]), "4294967297"),
        (([1 << 62, 5], [5, 1]), "4611686018427387904"),
        (([0, i64::MAX], [1, 1]), "9223372036854775807"),
        (([4, 4], [i64::MIN, 1]), "-9223372036854775808"),
        (([4, 4], [i64::MAX, -1]), "9223372036854775807"),
    ];
    for (wrong, number) in &wrong {
        for (layouts, operand) in [
            ([wrong, wrong, wrong], "input 0"),
            ([&fine, wrong, &fine], "input 1"),
            ([&fine, &fine, wrong], "output 0"),
        ] {
            let [first, second, output] = layouts.map(|(sizes, strides)| otr_tensor_t {
                address,
                dtype: DType::F32.0,
                rank: 2,
                sizes: sizes.as_ptr(),
                strides: strides.as_ptr(),
            });
            let (inputs, outputs) = ([first, second], [output]);
            let call = call_of(&inputs, &outputs);
            for name in [c"mul", c"mm"] {
                let id = made(|out| otr!(operator_find, name.as_ptr(), out))?;
                let mut node = 0x5a;
                for answer in [
                    otr!(operator_call, host.stream, id, &call),
                    otr!(graph_add_operator, graph, null(), 0, id, &call, &mut node),
                ] {
                    let told = refused(answer, Code::INVALID_ARGUMENT, number)?;
                    for part in [operand, number] {
                        check!(told.text.contains(part), "H3: {part} in {}", told.text);
                    }
                }
                equal!(node, 0x5a, "H2: the output of a failed call");
            }
        }
    }
    equal!(nodes(graph)?, 0, "nodes that were added");
    Ok(otr!(stream_synchronize, host.stream)?)
}

fn what_is_not_there_is_unsupported(context: &Context) -> Verdict {
    let host = host(context)?;
    let stream = host.stream;
    let exp = made(|out| otr!(operator_find, c"exp".as_ptr(), out))?;
    let a = Operand::dense(&host, DType::I32, &[4], &[1.0; 4])?;
    let out = Operand::dense(&host, DType::I32, &[4], &[9.0; 4])?;
    let (inputs, outputs) = ([a.tensor()], [out.tensor()]);
    let call = call_of(&inputs, &outputs);
    refused(
        otr!(operator_call, stream, exp, &call),
        Code::UNSUPPORTED,
        "exp to integers",
    )?;
    otr!(stream_synchronize, stream)?;
    equal!(out.values(&host, "the output")?, [9.0; 4], "the output");
    Ok(())
}

fn an_index_out_of_bounds_fails_the_stream(context: &Context) -> Verdict {
    let host = host(context)?;
    let stream = host.stream;
    let weight = Operand::dense(&host, DType::F32, &[3, 2], &[1.0; 6])?;
    let indices = Operand::dense(&host, DType::I64, &[2], &[0.0, 7.0])?;
    let out = Operand::dense(&host, DType::F32, &[2, 2], &[9.0; 4])?;
    let (inputs, outputs) = ([weight.tensor(), indices.tensor()], [out.tensor()]);
    let embedding = made(|out| otr!(operator_find, c"embedding".as_ptr(), out))?;
    let call = call_of(&inputs, &outputs);
    // The call fails by itself, and in a replay.
    otr!(operator_call, stream, embedding, &call)?;
    let told = refused(
        otr!(stream_synchronize, stream),
        Code::OUT_OF_RANGE,
        "the stream",
    )?;
    equal!(told.stream, stream, "H3: the stream of the status");
    begin(stream)?;
    otr!(operator_call, stream, embedding, &call)?;
    let exec = executable(end(stream)?)?;
    replay(exec, stream)?;
    let failure = refused(
        otr!(stream_synchronize, stream),
        Code::OUT_OF_RANGE,
        "the stream of a replay",
    )?;
    if context.has(&context.open()?, Need::OwnOperators) {
        for told in [&told, &failure] {
            for part in ["index 7 ", "size 3"] {
                check!(told.text.contains(part), "H3: {part} in {}", told.text);
            }
        }
    }
    check!(
        failure
            .operator
            .is_none_or(|name| name.contains("embedding")),
        "H3: the operator of the status"
    );
    otr!(stream_synchronize, stream)?;
    out.values(&host, "the output, around which nothing is written")?;
    Ok(())
}

fn a_chain_of_calls(context: &Context) -> Verdict {
    let host = host(context)?;
    let stream = host.stream;
    let add = made(|out| otr!(operator_find, c"add".as_ptr(), out))?;
    let (x, one) = (
        Operand::dense(&host, DType::F32, &[5000], &[0.0; 5000])?,
        Operand::dense(&host, DType::F32, &[5000], &[1.0; 5000])?,
    );
    let (inputs, outputs) = ([x.tensor(), one.tensor()], [x.tensor()]);
    let call = call_of(&inputs, &outputs);
    for _ in 0..200 {
        otr!(operator_call, stream, add, &call)?;
    }
    otr!(stream_synchronize, stream)?;
    equal!(
        x.values(&host, "the sum")?,
        vec![200.0; 5000],
        "200 times 1"
    );
    Ok(())
}

/// Operators of the driver's own, where it has some.
pub(in crate::tests) mod own {
    use super::*;

    tests! { "ops.own":
        /// An operator that the driver has is used, and its failure is told.
        what_the_driver_has_is_used: H2 H18, needs Operators;
        /// An operator that the driver does not have runs elsewhere, and its library is left alone.
        what_it_has_not_runs_elsewhere: H2 H29, needs Operators;
        /// A driver is asked once for each signature; a question that failed is asked again.
        each_signature_is_asked_once: H2 H18, needs Operators;
    }

    /// Samples that the driver has, and those that it has not. Before the start of the runtime.
    fn sorted(context: &Context) -> Verdict<(Vec<Sample>, Vec<Sample>)> {
        let sorted = Sample::sorted(&context.open()?)?;
        if sorted.0.is_empty() {
            context.note("the driver has none of the operators of this test");
        }
        Ok(sorted)
    }

    impl Host {
        /// The host of a test, under layers.
        fn under(context: &Context, layers: &str) -> Verdict<Self> {
            start_under(context, layers)?;
            Self::new(context)
        }

        /// A sample that is refused, and has written nothing.
        fn refuses(&self, sample: Sample, code: Code, what: &str) -> Verdict {
            let (inputs, out) = sample.operands(self, 1)?;
            let before = out.values(self, what)?;
            let inputs: Vec<&Operand> = inputs.iter().collect();
            let arguments = Arguments::new(sample.name, &inputs, &[&out], &[])?;
            refused(self.submit(&arguments.call())?, code, what)?;
            equal!(out.values(self, what)?, before, "the output of {what}");
            Ok(())
        }
    }

    fn what_the_driver_has_is_used(context: &Context) -> Verdict {
        let (taken, _) = sorted(context)?;
        let host = Host::under(context, "fault:operator_launch@2=call:EXECUTION")?;
        for (at, sample) in taken.into_iter().enumerate() {
            sample.gives(&host, 1)?;
            if at == 0 {
                host.refuses(sample, Code::EXECUTION, "the second launch")?;
                sample.gives(&host, 2)?;
            }
        }
        Ok(())
    }

    fn what_it_has_not_runs_elsewhere(context: &Context) -> Verdict {
        let (_, others) = sorted(context)?;
        let host = Host::under(context, "fault:operator_launch@1..=call:EXECUTION")?;
        others
            .into_iter()
            .try_for_each(|sample| sample.gives(&host, 3))
    }

    fn each_signature_is_asked_once(context: &Context) -> Verdict {
        let (taken, _) = sorted(context)?;
        let host = Host::under(context, "fault:operator_prepare@2=call:OUT_OF_HOST_MEMORY")?;
        let Some(first) = taken.first() else {
            return Ok(());
        };
        for seed in 0..5 {
            first.gives(&host, seed)?;
        }
        let Some(second) = taken.get(1) else {
            return Ok(());
        };
        host.refuses(*second, Code::OUT_OF_HOST_MEMORY, "the second question")?;
        second.gives(&host, 6)
    }
}

/// The row of an operator in the report.
fn row(operator: &str) -> Verdict<Option<serde_json::Value>> {
    let report = json(|out| otr!(operator_report, out))?;
    let rows = report.as_array().cloned().unwrap_or_default();
    Ok(rows.into_iter().find(|row| row["operator"] == operator))
}

fn neg(host: &Host, flags: u32) -> Verdict<Result<(), Refused>> {
    let a = Operand::dense(host, DType::F32, &[4], &[1.0; 4])?;
    let out = Operand::dense(host, DType::F32, &[4], &[9.0; 4])?;
    let (inputs, outputs) = ([a.tensor()], [out.tensor()]);
    let mut call = call_of(&inputs, &outputs);
    call.flags = flags;
    call.name = c"neg".as_ptr();
    let answer = host.submit(&call)?;
    otr!(stream_synchronize, host.stream)?;
    Ok(answer)
}

fn calls_are_counted_where_they_run(context: &Context) -> Verdict {
    let host = host(context)?;
    otr!(fallback_reset)?;
    for _ in 0..3 {
        neg(&host, 0)??;
    }
    otr!(operator_timing, 1)?;
    neg(&host, 0)??;
    otr!(operator_timing, 0)?;
    neg(&host, 0)??;
    let Some(row) = row("neg")? else {
        return Err(Failure::new(
            "the report has no row of an operator that ran",
        ));
    };
    let place = row["place"].as_str().unwrap_or_default();
    check!(
        ["device", "host_kernel"].contains(&place),
        "an operator that no framework ran was run at '{place}'"
    );
    equal!(
        (row["calls"].as_u64(), row["timed_calls"].as_u64()),
        (Some(5), Some(1)),
        "calls, and those of them that were timed"
    );
    let seconds = row["seconds"].as_f64().unwrap_or_default();
    check!(seconds != 0.0, "a timed call took {seconds} seconds");
    otr!(fallback_reset)?;
    let report = json(|out| otr!(operator_report, out))?;
    equal!(report, serde_json::json!([]), "counts that were forgotten");
    Ok(())
}

fn policies_hold_for_their_place(context: &Context) -> Verdict {
    let host = host(context)?;
    let policy = || string(|out| otr!(fallback_policy, out));
    otr!(fallback_set_policy, c"framework:error,host:warn".as_ptr())?;
    equal!(
        policy()?,
        "framework:error,host:warn",
        "the policy that was set"
    );
    refused(
        otr!(fallback_begin, c"aten::nothing".as_ptr(), &mut 0),
        Code::UNSUPPORTED,
        "a kernel of the framework where they are forbidden",
    )?;
    neg(&host, 0)??;
    let told = refused(
        otr!(fallback_set_policy, c"host:loud".as_ptr()),
        Code::INVALID_ARGUMENT,
        "a mode that there is not",
    )?;
    check!(
        told.text.contains("loud"),
        "the word that is wrong: {}",
        told.text
    );
    equal!(
        policy()?,
        "framework:error,host:warn",
        "the policy after a refused one"
    );
    otr!(fallback_set_policy, c"host:error".as_ptr())?;
    equal!(
        policy()?,
        "framework:silent,host:error",
        "what is not named is silent"
    );
    otr!(fallback_reset)?;
    if let Err(told) = neg(&host, 0)? {
        equal!(
            told.code,
            Code::UNSUPPORTED,
            "a host kernel where they are forbidden"
        );
        equal!(
            told.operator.as_deref(),
            Some("neg"),
            "H3: the operator of the failure"
        );
    } else {
        let row = row("neg")?.unwrap_or_default();
        equal!(
            row["place"],
            "device",
            "what runs while host kernels are forbidden"
        );
    }
    otr!(fallback_set_policy, c"silent".as_ptr())?;
    equal!(policy()?, "silent", "one mode for both places");
    Ok(neg(&host, 0)??)
}

fn a_call_for_the_driver_alone(context: &Context) -> Verdict {
    let host = host(context)?;
    let id = made(|out| otr!(operator_find, c"neg".as_ptr(), out))?;
    let offered: u32 = made(|out| otr!(operator_offered, 0, id, out))?;
    otr!(fallback_reset)?;
    match neg(&host, OTR_CALL_DEVICE_ONLY)? {
        Ok(()) => {
            equal!(offered, 1, "R45: an operator of the driver is offered");
            let row = row("neg")?.unwrap_or_default();
            equal!(
                row["place"],
                "device",
                "where a call for the driver alone ran"
            );
        }
        Err(told) => equal!(
            told.code,
            Code::UNSUPPORTED,
            "the driver has no such operator"
        ),
    }
    refused(
        otr!(operator_offered, 0, u32::MAX, &mut 0),
        Code::NOT_FOUND,
        "an operator that there is not",
    )?;
    Ok(())
}

fn schema_names_have_numbers(context: &Context) -> Verdict {
    start(context)?;
    let find = |name: &std::ffi::CStr| made::<u32>(|out| otr!(operator_find, name.as_ptr(), out));
    let grid = find(c"aten::grid_sampler_2d")?;
    equal!(
        find(c"aten::grid_sampler_2d")?,
        grid,
        "the number, asked for again"
    );
    check!(
        find(c"aten::grid_sampler_3d")? != grid,
        "another operator has another number"
    );
    equal!(
        find(c"aten::scatter.src")?,
        find(c"scatter")?,
        "an operator that the page serves"
    );
    refused(
        made_raw(c"no_such_operator"),
        Code::NOT_FOUND,
        "a name of nothing",
    )?;
    Ok(())
}

fn made_raw(name: &std::ffi::CStr) -> Result<(), Refused> {
    otr!(operator_find, name.as_ptr(), &mut 0)
}
