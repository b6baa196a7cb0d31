//! Calls with arguments that are wrong: each is refused with a text that says why, or fails when it runs.

mod common;

use common::{Array, run_call};
use outrigger_ops::{Argument, Call, Code, DType, PlanError, Scalar, Value};

const F: DType = DType::F32;
const I: DType = DType::I64;

/// Operands of a call by dtype and sizes, filled with a number. Of indices it is the last one, the others are 0.
type Operands<'a> = &'a [(DType, &'a [i64], f64)];

/// Runs a call on new tensors.
fn run(
    name: &str,
    inputs: Operands<'_>,
    outputs: Operands<'_>,
    args: &[Argument<'_>],
) -> Result<i32, PlanError> {
    let arrays = |operands: Operands<'_>| -> Vec<Array> {
        let one = |&(dtype, sizes, value): &(DType, &[i64], f64)| {
            let mut array = Array::dense(dtype, sizes);
            let first = if dtype == I { array.numel() - 1 } else { 0 };
            (first.max(0)..array.numel()).for_each(|at| array.set(at, value));
            array
        };
        operands.iter().map(one).collect()
    };
    let (inputs, outputs) = (arrays(inputs), arrays(outputs));
    let inputs: Vec<_> = inputs.iter().map(Array::tensor).collect();
    let outputs: Vec<_> = outputs.iter().map(Array::tensor).collect();
    let args: Vec<_> = args.iter().cloned().map(Value::new).collect();
    let call = Call {
        inputs: &inputs,
        outputs: &outputs,
        args: &args,
        scalars: &[Scalar::F64(2.0)],
        ..Call::default()
    };
    run_call(name, &call)
}

/// A call that is refused, with a part of the text.
fn refuses(
    name: &str,
    inputs: Operands<'_>,
    outputs: Operands<'_>,
    args: &[Argument<'_>],
    text: &str,
) {
    let Err(error) = run(name, inputs, outputs, args) else {
        panic!("{name} takes what is wrong: {text}");
    };
    assert!(error.to_string().contains(text), "{name}: {error}");
}

#[test]
fn orders_refuse_what_is_wrong() {
    use Argument::{Bool, Input, Int, None, String};
    let (x, same) = (
        (F, &[3, 4][..], 0.0),
        [(F, &[3, 4][..], 0.0), (I, &[3, 4], 0.0)],
    );
    let sort = |dim| [Input(0), None, Int(dim), Bool(false)];
    assert_eq!(run("sort", &[x], &same, &sort(-1)), Ok(0));
    refuses("sort", &[x], &same, &sort(2), "dimension 2");
    let narrow = [same[0], (I, &[3, 3], 0.0)];
    refuses("sort", &[x], &narrow, &sort(0), "[3, 4] are expected");
    let other = [(DType::F64, &[3, 4][..], 0.0), same[1]];
    refuses("sort", &[x], &other, &sort(0), "values of f64");
    let topk = |k| [Input(0), Int(k), Int(0), Bool(true), Bool(true)];
    refuses("topk", &[x], &same, &topk(4), "at most 3");
    refuses("topk", &[x], &same, &topk(-1), "at least 0");
    let search = |side| {
        let side = String(side);
        [Input(0), Input(1), Bool(false), Bool(true), side, Input(2)]
    };
    let operands = |sorter| {
        [
            (F, &[4][..], 0.0),
            (F, &[2][..], 0.0),
            (I, &[4][..], sorter),
        ]
    };
    let out = [(I, &[2][..], 0.0)];
    assert_eq!(
        run("searchsorted", &operands(3.0), &out, &search(c"right")),
        Ok(0)
    );
    refuses(
        "searchsorted",
        &operands(3.0),
        &out,
        &search(c"left"),
        "opposites",
    );
    refuses(
        "searchsorted",
        &operands(3.0),
        &out,
        &search(c"up"),
        "left or right",
    );
    let wrong = run("searchsorted", &operands(4.0), &out, &search(c"right"));
    assert_eq!(wrong, Ok(Code::OUT_OF_RANGE.0));
}

#[test]
fn pools_refuse_what_is_wrong() {
    use Argument::{Bool, Input, Int, Ints, None};
    let max = |kernel, stride, padding, dilation| {
        let lists = [Ints(kernel), Ints(stride), Ints(padding), Ints(dilation)];
        [&[Input(0)][..], &lists, &[Bool(false)]].concat()
    };
    let x = [(F, &[2, 4, 4][..], 0.0)];
    let out = [(F, &[2, 2, 2][..], 0.0), (I, &[2, 2, 2], 0.0)];
    assert_eq!(
        run("max_pool2d", &x, &out, &max(&[2], &[], &[0], &[1])),
        Ok(0)
    );
    let wrong: [(_, _, _, _, &str); 7] = [
        (&[2][..], &[0][..], &[0][..], &[1][..], "stride [0]"),
        (&[2], &[], &[2], &[1], "at most half"),
        (&[2], &[], &[-1], &[1], "padding [-1]"),
        (&[5], &[], &[0], &[1], "reaches over 5"),
        (&[1 << 40], &[], &[0], &[1 << 40], "kernel size"),
        (&[2, 2, 2], &[], &[0], &[1], "1 or 2 numbers"),
        (&[3], &[], &[0], &[1], "[2, 1, 1] are expected"),
    ];
    for (kernel, stride, padding, dilation, text) in wrong {
        refuses(
            "max_pool2d",
            &x,
            &out,
            &max(kernel, stride, padding, dilation),
            text,
        );
    }
    let flat = [(F, &[4, 4][..], 0.0)];
    refuses(
        "max_pool2d",
        &flat,
        &out,
        &max(&[2], &[], &[0], &[1]),
        "an input of [4, 4]",
    );
    let average = |divisor| {
        let first = [Input(0), Ints(&[2]), Ints(&[]), Ints(&[0])];
        [&first[..], &[Bool(false), Bool(true), divisor]].concat()
    };
    assert_eq!(run("avg_pool2d", &x, &out[..1], &average(None)), Ok(0));
    refuses(
        "avg_pool2d",
        &x,
        &out[..1],
        &average(Int(0)),
        "divisor is 0",
    );
    // An index behind the plane of 16 elements.
    let back = |index| {
        [
            (F, &[2, 2, 2][..], 1.0),
            (F, &[2, 4, 4][..], 0.0),
            (I, &[2, 2, 2][..], index),
        ]
    };
    let args = [Input(0), Input(1), Input(2)];
    for (index, code) in [
        (15.0, Code::OK),
        (16.0, Code::OUT_OF_RANGE),
        (-1.0, Code::OUT_OF_RANGE),
    ] {
        let ran = run("adaptive_max_pool2d_backward", &back(index), &x, &args);
        assert_eq!(ran, Ok(code.0), "index {index}");
    }
}

#[test]
fn resampling_refuses_what_is_wrong() {
    use Argument::{Input, Ints, None};
    let (x, out) = ([(F, &[1, 2, 4][..], 0.0)], [(F, &[1, 2, 6][..], 0.0)]);
    let args = |size| [Input(0), Ints(size), None];
    assert_eq!(run("upsample_nearest1d", &x, &out, &args(&[6])), Ok(0));
    refuses("upsample_nearest1d", &x, &out, &args(&[0]), "at least 1");
    refuses("upsample_nearest1d", &x, &out, &args(&[6, 6]), "1 numbers");
    refuses(
        "upsample_nearest1d",
        &x,
        &out,
        &args(&[5]),
        "[1, 2, 5] are expected",
    );
    let empty = [(F, &[1, 2, 0][..], 0.0)];
    refuses(
        "upsample_nearest1d",
        &empty,
        &out,
        &args(&[6]),
        "none but the batch empty",
    );
    let back = [Input(0), Ints(&[6]), Ints(&[1, 2, 5]), None];
    refuses(
        "upsample_nearest1d_backward",
        &out,
        &x,
        &back,
        "[1, 2, 5] are expected",
    );
}

#[test]
fn bags_and_masks_refuse_what_is_wrong() {
    use Argument::{Bool, Input, Int, None};
    let bag = |mode, weights, last| {
        let first = [Input(0), Input(1), Input(2), Bool(false), Int(mode)];
        [&first[..], &[Bool(false), weights, Bool(last), Int(-1)]].concat()
    };
    let inputs = |row, offset| {
        [
            (F, &[5, 2][..], 1.0),
            (I, &[4][..], row),
            (I, &[1][..], offset),
            (F, &[4][..], 1.0),
        ]
    };
    let out = [
        (F, &[1, 2][..], 0.0),
        (I, &[4], 0.0),
        (I, &[1], 0.0),
        (I, &[0], 0.0),
    ];
    let name = "embedding_bag";
    assert_eq!(
        run(name, &inputs(4.0, 0.0), &out, &bag(0, Input(3), false)),
        Ok(0)
    );
    refuses(
        name,
        &inputs(0.0, 0.0),
        &out,
        &bag(3, None, false),
        "mode Some(3)",
    );
    refuses(
        name,
        &inputs(0.0, 0.0),
        &out,
        &bag(1, Input(3), false),
        "mode 0 alone",
    );
    refuses(
        name,
        &inputs(0.0, 0.0),
        &out,
        &bag(0, None, true),
        "[0, 2] are expected",
    );
    for (row, offset) in [(5.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, 5.0), (0.0, -1.0)] {
        let ran = run(name, &inputs(row, offset), &out, &bag(0, None, false));
        assert_eq!(ran, Ok(Code::OUT_OF_RANGE.0), "row {row}, offset {offset}");
    }
    // The last bag ends behind the samples.
    let with_last = |end| [inputs(0.0, 0.0)[0], inputs(0.0, 0.0)[1], (I, &[2][..], end)];
    for (end, code) in [(4.0, Code::OK), (5.0, Code::OUT_OF_RANGE)] {
        let ran = run(name, &with_last(end), &out, &bag(0, None, true));
        assert_eq!(ran, Ok(code.0), "the last bag ends at {end}");
    }
    let masked = |count: &'static [i64]| {
        [
            (F, &[2, 3][..], 0.0),
            (DType::BOOL, &[3][..], 1.0),
            (F, count, 0.0),
        ]
    };
    let (args, out) = ([Input(0), Input(1), Input(2)], [(F, &[2, 3][..], 0.0)]);
    assert_eq!(run("masked_scatter", &masked(&[6]), &out, &args), Ok(0));
    let short = run("masked_scatter", &masked(&[5]), &out, &args);
    assert_eq!(short, Ok(Code::OUT_OF_RANGE.0));
    let wide = [(F, &[2, 2][..], 0.0)];
    refuses(
        "masked_scatter",
        &masked(&[6]),
        &wide,
        &args,
        "not broadcast",
    );
}

#[test]
fn cells_refuse_what_is_wrong() {
    use Argument::{Bool, Input, None};
    let args = [Input(0), Input(1), Input(2), None, None];
    let inputs = |gates: &'static [i64]| [(F, gates, 0.0), (F, &[2, 12], 0.0), (F, &[2, 3], 0.0)];
    let out = [(F, &[2, 3][..], 0.0), (F, &[2, 3], 0.0), (F, &[2, 12], 0.0)];
    assert_eq!(run("lstm_cell", &inputs(&[2, 12]), &out, &args), Ok(0));
    refuses(
        "lstm_cell",
        &inputs(&[2, 9]),
        &out,
        &args,
        "the input gates",
    );
    refuses("lstm_cell", &inputs(&[2, 12]), &out[..2], &args, "output 2");
    let back = [Input(0), Input(1), Bool(false)];
    let inputs = [(F, &[2, 3][..], 0.0), (F, &[2, 15], 0.0)];
    let gates = (F, &[2, 9][..], 0.0);
    let all = [gates, gates, (F, &[2, 3], 0.0), (F, &[9], 0.0)];
    assert_eq!(run("gru_cell_backward", &inputs, &all[..3], &back), Ok(0));
    refuses("gru_cell_backward", &inputs, &all, &back, "there is none");
}
