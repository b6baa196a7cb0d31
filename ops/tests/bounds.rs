//! Sizes and strides that no memory could hold are refused before anything is planned, for every operator.

use outrigger_ops::{Call, DType, OperatorId, Plan, PlanError, Scalar, Tensor, plan};
use proptest::prelude::*;

/// The most elements of an operand, and the most between two of its elements.
const MOST: u128 = 1 << 56;

type Layout = (Vec<i64>, Vec<i64>);

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        6 => 0..6i64,
        2 => -5..0i64,
        3 => (0..63u32, -2..3i64).prop_map(|(bits, by)| (1i64 << bits).wrapping_add(by)),
        1 => any::<i64>(),
        1 => prop_oneof![Just(i64::MIN), Just(i64::MAX), Just(1 << 56), Just((1 << 56) + 1)],
    ]
}

/// Sizes and strides: dense ones, dense ones with some changed, or any.
fn layout() -> impl Strategy<Value = Layout> {
    let sizes = prop::collection::vec(number(), 0..5);
    (sizes, prop::collection::vec(number(), 5), 0..4u8).prop_map(|(sizes, others, how)| {
        let mut strides = vec![1i64; sizes.len()];
        for d in (1..sizes.len()).rev() {
            strides[d - 1] = strides[d].wrapping_mul(sizes[d].max(1));
        }
        match (how, strides.first_mut()) {
            (0, _) => strides.copy_from_slice(&others[..sizes.len()]),
            (1, Some(first)) => *first = others[0],
            _ => {}
        }
        (sizes, strides)
    })
}

/// Whether memory could hold an operand, in arithmetic that cannot overflow.
fn could_be((sizes, strides): &Layout) -> bool {
    let mut numel = 1u128;
    for &size in sizes {
        if size < 0 {
            return false;
        }
        numel = numel.saturating_mul(size.max(1) as u128);
    }
    let strides = || {
        strides
            .iter()
            .map(|stride| u128::from(stride.unsigned_abs()))
    };
    let steps = sizes.iter().map(|&size| size.max(1) as u128 - 1);
    let span: u128 = steps.zip(strides()).map(|(steps, by)| steps * by).sum();
    numel <= MOST && span <= MOST && strides().all(|stride| stride <= MOST)
}

fn tensor((sizes, strides): &Layout, dtype: DType) -> Tensor<'_> {
    let address = 1 << 32;
    Tensor::new(address, dtype, sizes, strides)
}

fn planned(
    name: &std::ffi::CStr,
    inputs: &[Tensor<'_>],
    outputs: &[Tensor<'_>],
    scalars: &[Scalar],
) -> Result<Plan, PlanError> {
    let id = OperatorId::find(name).expect("the operator exists");
    plan(
        id,
        &Call {
            inputs,
            outputs,
            scalars,
            ..Call::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_operator_plans_operands_that_cannot_be(
        layouts in prop::collection::vec(layout(), 1..4),
        alike in any::<bool>(),
        inputs in 0..5usize,
        outputs in 1..4usize,
        scalars in prop::collection::vec(prop_oneof![3 => 0..3i64, 1 => any::<i64>()], 0..4),
        dtype in prop_oneof![Just(DType::F32), Just(DType::F64), Just(DType::I64), Just(DType::C128)],
        indices in any::<bool>(),
    ) {
        let of = |at: usize| &layouts[if alike { 0 } else { at % layouts.len() }];
        let operands: Vec<_> = (0..inputs + outputs).map(of).collect();
        let wrong = operands.iter().position(|layout| !could_be(layout));
        let mut tensors: Vec<_> = operands.iter().map(|layout| tensor(layout, dtype)).collect();
        if indices && inputs > 1 {
            tensors[1] = tensors[1].of_dtype(DType::I64);
        }
        let scalars: Vec<_> = scalars.into_iter().map(Scalar::I64).collect();
        for id in OperatorId::all() {
            let (inputs, outputs) = tensors.split_at(inputs);
            let planned = plan(id, &Call { inputs, outputs, scalars: &scalars, ..Call::default() });
            let Some(wrong) = wrong else { continue };
            let operand = match wrong.checked_sub(inputs.len()) {
                None => format!("input {wrong} has size"),
                Some(output) => format!("output {output} has size"),
            };
            match planned {
                Err(PlanError::Invalid(text)) => prop_assert!(text.starts_with(&operand), "{text}"),
                other => prop_assert!(false, "{:?} of {:?}: {other:?}", id.name(), layouts),
            }
        }
    }

    #[test]
    fn what_memory_could_hold_is_planned(layout in layout()) {
        let operand = [tensor(&layout, DType::F64)];
        let planned = planned(c"neg", &operand, &operand, &[]);
        prop_assert_eq!(planned.is_ok(), could_be(&layout), "{:?}", planned);
    }
}

#[test]
fn operands_whose_sizes_multiply_past_all_numbers_do_not_fit_each_other() {
    let dense = |sizes: &[i64]| (sizes.to_vec(), vec![1; sizes.len()]);
    let refused = |planned: Result<Plan, PlanError>, text: &str| match planned {
        Err(PlanError::Invalid(reason)) => assert!(reason.contains(text), "{reason}"),
        other => panic!("{other:?}"),
    };

    // The products are 2^110, which wraps to 0: the number of elements of the output.
    let (many, most) = (dense(&[1 << 55]), dense(&[1 << 56]));
    let rows = (vec![1, 1 << 55], vec![0, 1]);
    let out = (vec![0, 1 << 55], vec![1 << 55, 1]);
    let indices = [tensor(&rows, DType::F32), tensor(&many, DType::I64)];
    let output = [tensor(&out, DType::F32)];
    refused(
        planned(c"embedding", &indices, &output, &[]),
        "is not indices",
    );
    let inputs = [tensor(&out, DType::F32), tensor(&many, DType::I64)];
    let output = [tensor(&rows, DType::F32)];
    let backward = planned(c"embedding_dense_backward", &inputs, &output, &[]);
    refused(backward, "is not");

    let out = (vec![8, 1 << 40], vec![1 << 40, 1]);
    let output = [tensor(&out, DType::F32)];
    let part = (vec![1 << 16, 1 << 40], vec![0, 1]);
    let parts = [tensor(&part, DType::F32); 40];
    refused(
        planned(c"cat", &parts, &output, &[Scalar::I64(0)]),
        "more than the 8",
    );
    let parts = [tensor(&most, DType::F32); 64];
    let out = dense(&[1 << 10]);
    let output = [tensor(&out, DType::F32)];
    refused(
        planned(c"cat", &parts, &output, &[Scalar::I64(0)]),
        "more than the 1024",
    );
}

#[test]
#[should_panic(expected = "a tensor of 2 sizes and 1 strides")]
fn a_tensor_has_as_many_strides_as_sizes() {
    let _ = Tensor::new(0, DType::F32, &[2, 3], &[3]);
}
