//! R45 and R7: which operators the driver has, and how the entries answer to arguments that make no
//! sense.

use std::collections::HashSet;
use std::ptr::{null, null_mut};

use outrigger_device::sys::{
    otr_operator, otr_operator_answer, otr_operator_api, otr_operator_call_t, otr_tensor_t,
};
use outrigger_device::{Code, DType};

use super::operand::{Arguments, Operand, empty_call};
use super::sample::Sample;
use crate::test::tests;
use crate::tests::host::otr;
use crate::tests::raw::{Bare, Raw, call};
use crate::verdict::{answers, check, equal};
use crate::{Context, Failure, Verdict};

tests! { "ops.prepare":
    /// Names, element types and operands for which there is no operator are OTR_ERR_UNSUPPORTED, and nothing
    /// is written.
    what_there_is_not_is_unsupported: R4 R45, needs Operators;
    /// Each name is of docs/operators.md or a framework's, and stands once; what is prepared is among them.
    names_are_those_that_are_taken: R45, needs Operators;
    /// Neither addresses nor scalars are looked at.
    addresses_and_scalars_do_not_matter: R45, needs Operators;
    /// NULL, devices that do not exist and calls that are cut off are refused, and nothing is written.
    wrong_arguments_are_refused: R1 R4 R7, needs Operators;
    /// A launch on NULL, on another driver's queue or of NULL is refused, and nothing is submitted.
    wrong_launches_are_refused: R4 R7, needs Operators;
}

/// The group, and places for what it gives.
struct Asked<'a> {
    raw: &'a Raw,
    group: &'a otr_operator_api,
    answer: otr_operator_answer,
    operator: *mut otr_operator,
}

/// The bytes that outputs hold before a call.
const BYTES: u64 = 0x5a5a;
const ANSWER: otr_operator_answer = otr_operator_answer {
    struct_size: size_of::<otr_operator_answer>(),
    next: null(),
    workspace_bytes: BYTES,
    cost_ns: BYTES,
};
const OPERATOR: *mut otr_operator = 0x5a5a as *mut otr_operator;

impl<'a> Asked<'a> {
    fn new(raw: &'a Raw) -> Verdict<Self> {
        // SAFETY: NULL, or a group that the loader found whole.
        let group = unsafe { raw.api().operators.as_ref() };
        Ok(Self {
            raw,
            group: group.ok_or_else(|| Failure::new("the driver has the group operators"))?,
            answer: ANSWER,
            operator: OPERATOR,
        })
    }

    /// Asks device 0.
    fn prepare(&mut self, question: &otr_operator_call_t) -> Verdict<i32> {
        let (answer, operator) = (&mut self.answer, &mut self.operator);
        Ok(call!(
            self.group,
            prepare,
            self.raw.handle(),
            0,
            question,
            answer,
            operator
        ))
    }

    fn is_untouched(&self, what: &str) -> Verdict {
        equal!(
            (
                self.answer.workspace_bytes,
                self.answer.cost_ns,
                self.operator
            ),
            (BYTES, BYTES, OPERATOR),
            "R4: the outputs of {what}"
        );
        Ok(())
    }

    /// Releases what was prepared.
    fn release(&mut self) -> Verdict {
        check!(!self.operator.is_null(), "an operator was given");
        let answer = call!(self.group, release, self.operator);
        (self.answer, self.operator) = (ANSWER, OPERATOR);
        self.raw.takes(answer, "release")
    }
}

fn what_there_is_not_is_unsupported(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let mut asked = Asked::new(&raw)?;
    let unknown = DType(0x7fff);
    let vector = |dtype, size| Operand::nowhere(dtype, &[size]);
    let (four, five) = (vector(DType::F32, 4), vector(DType::F32, 5));
    let matrix = Operand::nowhere(DType::F32, &[4, 4]);
    for (what, name, inputs, outputs) in [
        (
            "a name of nothing",
            "no_such_operator",
            &[&four, &four][..],
            &[&four][..],
        ),
        ("no name", "", &[&four, &four], &[&four]),
        ("a name that goes on", "add_", &[&four, &four], &[&four]),
        ("the beginning of a name", "ad", &[&four, &four], &[&four]),
        (
            "an element type of nothing",
            "add",
            &[&vector(unknown, 4); 2],
            &[&vector(unknown, 4)],
        ),
        (
            "an element type of nothing",
            "mm",
            &[&Operand::nowhere(unknown, &[4, 4]); 2],
            &[&Operand::nowhere(unknown, &[4, 4])],
        ),
    ] {
        let arguments = Arguments::new(name, inputs, outputs, &[])?;
        let answer = asked.prepare(&arguments.call())?;
        raw.refuses(answer, Code::UNSUPPORTED, what)?;
        asked.is_untouched(what)?;
    }
    // A call that no table has is wrong for a driver that has the operator, and nothing to others.
    for (what, name, inputs, outputs) in [
        ("add of nothing", "add", &[][..], &[][..]),
        ("add without an output", "add", &[&four, &four], &[]),
        (
            "add of sizes that do not fit",
            "add",
            &[&four, &five],
            &[&four],
        ),
        (
            "add to more than there is",
            "add",
            &[&four, &five],
            &[&five],
        ),
        ("mm of vectors", "mm", &[&four, &four], &[&four]),
        (
            "mm of sizes that do not fit",
            "mm",
            &[&matrix, &Operand::nowhere(DType::F32, &[5, 4])],
            &[&matrix],
        ),
    ] {
        let arguments = Arguments::new(name, inputs, outputs, &[])?;
        let answer = asked.prepare(&arguments.call())?;
        if answer != Code::INVALID_ARGUMENT.0 {
            raw.refuses(answer, Code::UNSUPPORTED, what)?;
        }
        asked.is_untouched(what)?;
    }
    Ok(())
}

fn names_are_those_that_are_taken(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let group = raw.driver().operators();
    let group = group.ok_or_else(|| Failure::new("the driver has the group operators"))?;
    let names = group.names(0)?;
    let mut seen = HashSet::new();
    for name in &names {
        let text = name.to_string_lossy();
        let mut id = 0;
        check!(
            otr!(operator_find, name.as_ptr(), &raw mut id).is_ok(),
            "R45: '{text}' is no name of docs/operators.md, and no schema name of a framework's operator"
        );
        check!(seen.insert(id), "R45: '{text}' stands in the list once");
    }
    let (taken, _) = Sample::sorted(raw.driver())?;
    for sample in taken {
        check!(
            names
                .iter()
                .any(|name| name.to_bytes() == sample.name.as_bytes()),
            "R45: {} is prepared, so it is among the names",
            sample.name
        );
    }
    equal!(group.names(0)?, names, "R45: the names, asked for again");
    Ok(())
}

fn addresses_and_scalars_do_not_matter(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let mut asked = Asked::new(&raw)?;
    let (taken, others) = Sample::sorted(raw.driver())?;
    for (samples, code) in [(taken, Code::OK), (others, Code::UNSUPPORTED)] {
        for sample in samples {
            let question = sample.question()?;
            let mut given = question.call();
            // SAFETY: as many operands as the call says.
            let inputs =
                unsafe { std::slice::from_raw_parts(given.inputs, given.input_count as usize) };
            let moved: Vec<_> = inputs
                .iter()
                .map(|tensor| otr_tensor_t {
                    address: u64::MAX,
                    ..*tensor
                })
                .collect();
            given.inputs = moved.as_ptr();
            let what = sample.what();
            let mut answers = Vec::new();
            for call in [question.call(), given] {
                let answer = asked.prepare(&call)?;
                answers.push((answer, asked.answer.workspace_bytes));
                if answer == Code::OK.0 {
                    asked.release()?;
                }
            }
            equal!(answers[0].0, code.0, "prepare of {what}, as before");
            equal!(
                answers[1],
                answers[0],
                "prepare of {what}, with other addresses"
            );
        }
    }
    Ok(())
}

fn wrong_arguments_are_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let mut asked = Asked::new(&raw)?;
    let (group, handle, count) = (asked.group, raw.handle(), raw.driver().device_count());
    let operand = Operand::nowhere(DType::F32, &[4]);
    let arguments = Arguments::new("add", &[&operand, &operand], &[&operand], &[])?;
    let good = arguments.call();
    let (place, operator) = (&mut asked.answer, &mut asked.operator);
    let mut short = otr_operator_answer {
        struct_size: 8,
        ..ANSWER
    };
    let (mut names, mut found) = (null(), 0);
    let (list, number) = (&raw mut names, &raw mut found);
    for (what, code, answer) in [
        (
            "prepare of NULL",
            Code::INVALID_HANDLE,
            call!(group, prepare, null_mut(), 0, &good, place, operator),
        ),
        (
            "prepare on no device",
            Code::INVALID_DEVICE,
            call!(group, prepare, handle, count, &good, place, operator),
        ),
        (
            "prepare without a call",
            Code::INVALID_ARGUMENT,
            call!(group, prepare, handle, 0, null(), place, operator),
        ),
        (
            "prepare with a place for less than an answer",
            Code::INVALID_ARGUMENT,
            call!(group, prepare, handle, 0, &good, &mut short, operator),
        ),
        (
            "prepare without a place for the answer",
            Code::INVALID_ARGUMENT,
            call!(group, prepare, handle, 0, &good, null_mut(), operator),
        ),
        (
            "prepare without a place for the operator",
            Code::INVALID_ARGUMENT,
            call!(group, prepare, handle, 0, &good, place, null_mut()),
        ),
        (
            "names of NULL",
            Code::INVALID_HANDLE,
            call!(group, names, null_mut(), 0, list, number),
        ),
        (
            "names of no device",
            Code::INVALID_DEVICE,
            call!(group, names, handle, count, list, number),
        ),
        (
            "names without a place for the list",
            Code::INVALID_ARGUMENT,
            call!(group, names, handle, 0, null_mut(), number),
        ),
        (
            "names without a place for the number",
            Code::INVALID_ARGUMENT,
            call!(group, names, handle, 0, list, null_mut()),
        ),
        (
            "release of NULL",
            Code::INVALID_HANDLE,
            call!(group, release, null_mut()),
        ),
    ] {
        raw.refuses(answer, code, what)?;
    }
    for (what, wrong) in [
        (
            "a call that is cut off",
            otr_operator_call_t {
                struct_size: 16,
                ..good
            },
        ),
        (
            "a call without a name",
            otr_operator_call_t {
                name: null(),
                ..good
            },
        ),
        (
            "a call without its inputs",
            otr_operator_call_t {
                inputs: null(),
                ..good
            },
        ),
        (
            "a call without its outputs",
            otr_operator_call_t {
                outputs: null(),
                ..good
            },
        ),
        (
            "no call at all",
            otr_operator_call_t {
                struct_size: 0,
                ..empty_call()
            },
        ),
    ] {
        raw.refuses(asked.prepare(&wrong)?, Code::INVALID_ARGUMENT, what)?;
    }
    asked.is_untouched("refused calls")
}

fn wrong_launches_are_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let mut asked = Asked::new(&raw)?;
    let (taken, _) = Sample::sorted(raw.driver())?;
    let (group, queue) = (asked.group, raw.queue()?);
    let other = Bare::open(context, &raw)?;
    let its_queue = other.queue()?;
    for sample in taken {
        let question = sample.question()?;
        let given = question.call();
        raw.takes(asked.prepare(&given)?, sample.name)?;
        let operator = asked.operator;
        for (what, code, answer) in [
            (
                "launch on NULL",
                Code::INVALID_HANDLE,
                call!(group, launch, null_mut(), operator, &given, 0),
            ),
            (
                "launch of NULL",
                Code::INVALID_HANDLE,
                call!(group, launch, queue, null_mut(), &given, 0),
            ),
            (
                "launch on a queue of another driver",
                Code::INVALID_HANDLE,
                call!(group, launch, its_queue, operator, &given, 0),
            ),
            (
                "launch without a call",
                Code::INVALID_ARGUMENT,
                call!(group, launch, queue, operator, null(), 0),
            ),
            (
                "launch on operands at address 0",
                Code::INVALID_ARGUMENT,
                call!(group, launch, queue, operator, &given, 0),
            ),
        ] {
            raw.refuses(answer, code, what)?;
        }
        asked.release()?;
    }
    answers!(
        raw.query(queue)?,
        Code::OK,
        "queue_query: nothing was submitted"
    );
    raw.destroy(queue, null_mut())?;
    raw.destroy(its_queue, null_mut())?;
    other.close("close after refused launches")
}
