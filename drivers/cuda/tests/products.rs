//! Products of matrices by cuBLASLt: what is asked for and what is refused. That results are right is what the conformance
//! suite tests too; here are the forms that it does not have.

use std::ffi::CStr;

use crate::bench::{Bench, free, read, refusal, write};
use outrigger_device::{Code, Driver, Error, Operator, Queue, sys};
use serial_test::serial;

/// An operand: where it is, sizes and strides.
#[derive(Clone)]
struct Matrix {
    at: u64,
    dtype: u32,
    sizes: Vec<i64>,
    strides: Vec<i64>,
}

fn matrix(at: u64, sizes: &[i64], strides: &[i64]) -> Matrix {
    Matrix {
        at,
        dtype: sys::OTR_DTYPE_F32,
        sizes: sizes.to_vec(),
        strides: strides.to_vec(),
    }
}

/// Lets a function see a call.
fn with_call<R>(
    name: &CStr,
    inputs: &[&Matrix],
    out: &Matrix,
    scalars: &[f64],
    with: impl FnOnce(&sys::otr_operator_call) -> R,
) -> R {
    let tensor = |matrix: &Matrix| sys::otr_tensor {
        address: matrix.at,
        dtype: matrix.dtype,
        rank: matrix.sizes.len() as u32,
        sizes: matrix.sizes.as_ptr(),
        strides: matrix.strides.as_ptr(),
    };
    let inputs: Vec<_> = inputs.iter().map(|input| tensor(input)).collect();
    let outputs = [tensor(out)];
    let scalar = |value: &f64| sys::otr_scalar {
        dtype: sys::OTR_DTYPE_F64,
        reserved: 0,
        value: sys::otr_scalar__bindgen_ty_1 { f64_: *value },
    };
    let scalars: Vec<_> = scalars.iter().map(scalar).collect();
    with(&sys::otr_operator_call {
        struct_size: size_of::<sys::otr_operator_call>(),
        next: std::ptr::null(),
        name: name.as_ptr(),
        inputs: inputs.as_ptr(),
        outputs: outputs.as_ptr(),
        scalars: scalars.as_ptr(),
        input_count: inputs.len() as u32,
        output_count: 1,
        scalar_count: scalars.len() as u32,
        flags: 0,
    })
}

/// The operator of a call, and its workspace.
fn prepare(
    driver: &Driver,
    name: &CStr,
    inputs: &[&Matrix],
    out: &Matrix,
) -> Result<Option<(Operator, u64)>, Error> {
    with_call(name, inputs, out, &[], |call| {
        // SAFETY: what the call points to lives as long as it.
        let answer = unsafe { driver.operators().unwrap().prepare(0, call) }?;
        Ok(answer.map(|(operator, needs)| (operator, needs.workspace_bytes)))
    })
}

fn launch(
    queue: &Queue,
    operator: &Operator,
    (name, inputs, out): (&CStr, &[&Matrix], &Matrix),
    scalars: &[f64],
    workspace: u64,
) {
    with_call(name, inputs, out, scalars, |call| {
        // SAFETY: the operands and the workspace live until the queue has finished.
        unsafe { queue.launch_operator(operator, call, workspace) }.unwrap();
    });
}

fn floats(queue: &Queue, at: u64, count: usize) -> Vec<f32> {
    let bytes = read(queue, at, 4 * count);
    let words = bytes.chunks(4).map(|word| word.try_into().unwrap());
    words.map(f32::from_le_bytes).collect()
}

fn put(queue: &Queue, at: u64, numbers: &[f32]) {
    let bytes: Vec<u8> = numbers.iter().flat_map(|one| one.to_le_bytes()).collect();
    write(queue, at, &bytes);
}

#[test]
#[serial]
fn a_product_is_one_call_and_its_algorithm_goes_by_the_addresses() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 1 << 14).unwrap();
    // [2, 3] and [3, 2] at an address of any alignment.
    put(&queue, memory + 4, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    put(&queue, memory + 64, &[1.0, 0.0, 0.0, 1.0, 2.0, 2.0]);
    let (a, b) = (
        matrix(memory + 4, &[2, 3], &[3, 1]),
        matrix(memory + 64, &[3, 2], &[2, 1]),
    );
    let out = matrix(memory + 128, &[2, 2], &[2, 1]);
    bench.calls();
    let (operator, bytes) = prepare(&driver, c"mm", &[&a, &b], &out).unwrap().unwrap();
    assert!(bytes > 0);
    let asked = bench.calls();
    let asked = asked
        .iter()
        .filter(|call| *call == "cublasLtMatmulAlgoGetHeuristic");
    assert_eq!(asked.count(), 2, "for aligned addresses and for others");
    launch(
        &queue,
        &operator,
        (c"mm", &[&a, &b], &out),
        &[],
        memory + 4096,
    );
    let calls = bench.calls();
    assert!(!calls.contains(&"cublasLtMatmulAlgoGetHeuristic".to_owned()));
    assert_eq!(
        calls
            .iter()
            .filter(|call| *call == "cublasLtMatmul")
            .count(),
        1
    );
    // The stand-in notes addresses that the algorithm does not take.
    assert_eq!(floats(&queue, memory + 128, 4), [7.0, 8.0, 16.0, 17.0]);
    put(&queue, memory + 32, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let aligned = matrix(memory + 32, &[2, 3], &[3, 1]);
    launch(
        &queue,
        &operator,
        (c"mm", &[&aligned, &b], &out),
        &[],
        memory + 4096,
    );
    assert_eq!(floats(&queue, memory + 128, 4), [7.0, 8.0, 16.0, 17.0]);
    assert_eq!(
        read(&queue, memory + 4096, 1),
        [0xa5],
        "the workspace was used"
    );
    free(&driver, memory);
    drop((operator, queue));
    bench.finish(driver);
}

/// The strides of a matrix of these sizes: in rows, in columns, and both with a gap behind each.
fn layouts([rows, columns]: [i64; 2]) -> [[i64; 2]; 4] {
    [[columns, 1], [1, rows], [columns + 3, 1], [1, rows + 2]]
}

/// Numbers that are small, so that sums of products are exact.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count)
        .map(|at| ((at * 7 + seed) % 5) as f32 - 2.0)
        .collect()
}

fn at(numbers: &[f32], strides: &[i64], place: &[i64]) -> f32 {
    let at: i64 = strides
        .iter()
        .zip(place)
        .map(|(stride, at)| stride * at)
        .sum();
    numbers[at as usize]
}

#[test]
#[serial]
fn every_layout_gives_the_product() {
    const ROOM: usize = 4096;
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 4 * 4 * ROOM as u64 + 4096).unwrap();
    let places: Vec<u64> = (0..4).map(|at| memory + 4 * ROOM as u64 * at).collect();
    let workspace = memory + 4 * 4 * ROOM as u64;
    let (left, right, added) = (numbers(ROOM, 1), numbers(ROOM, 3), numbers(ROOM, 2));
    for (place, numbers) in places.iter().zip([&left, &right, &added]) {
        put(&queue, *place, numbers);
    }
    let mut served = 0;
    for [m, k, n] in [[3, 4, 5], [1, 4, 5], [3, 1, 5], [3, 4, 1], [1, 1, 1]] {
        for (a_strides, b_strides) in layouts([m, k])
            .into_iter()
            .flat_map(|a| layouts([k, n]).into_iter().map(move |b| (a, b)))
        {
            for out_strides in layouts([m, n]) {
                let a = matrix(places[0], &[m, k], &a_strides);
                let b = matrix(places[1], &[k, n], &b_strides);
                let out = matrix(places[3], &[m, n], &out_strides);
                // No bias; one like the result; the result itself; a row.
                let (same, own) = (matrix(places[2], &[m, n], &out_strides), out.clone());
                let (row, wide) = (
                    matrix(places[2], &[n], &[1]),
                    matrix(places[2], &[m, n], &[0, 1]),
                );
                for (name, bias) in [
                    (c"mm", None),
                    (c"addmm", Some(&same)),
                    (c"addmm", Some(&own)),
                    (c"addmm", Some(&row)),
                    (c"addmm", Some(&wide)),
                ] {
                    let mut inputs = vec![&a, &b];
                    inputs.splice(0..0, bias);
                    let is_row = bias.is_some_and(|bias| {
                        bias.strides[0] != out_strides[0] || bias.sizes.len() == 1
                    });
                    let Some((operator, _)) = prepare(&driver, name, &inputs, &out).unwrap() else {
                        // Rows are added to results with dense rows alone.
                        assert!(
                            is_row && (out_strides != [n, 1]),
                            "{name:?} {bias:?}",
                            bias = bias.map(|bias| &bias.strides)
                        );
                        continue;
                    };
                    served += 1;
                    let scalars: &[[f64; 2]] = match bias {
                        None => &[[0.0, 1.0]],
                        Some(_) => &[[1.0, 1.0], [0.0, 2.0], [-3.0, 1.0], [2.0, 0.0]],
                    };
                    for [beta, alpha] in scalars {
                        put(&queue, places[3], &added);
                        let given = [*beta, *alpha];
                        let given = if bias.is_some() { &given[..] } else { &[] };
                        launch(&queue, &operator, (name, &inputs, &out), given, workspace);
                        let found = floats(&queue, places[3], ROOM);
                        let mut expected = added.clone();
                        for i in 0..m {
                            for j in 0..n {
                                let sum: f32 = (0..k)
                                    .map(|at_k| {
                                        at(&left, &a_strides, &[i, at_k])
                                            * at(&right, &b_strides, &[at_k, j])
                                    })
                                    .sum();
                                let place = [i, j];
                                let bias = bias.map_or(0.0, |bias| {
                                    let place = &place[2 - bias.sizes.len()..];
                                    at(&added, &bias.strides, place)
                                });
                                let place = i * out_strides[0] + j * out_strides[1];
                                expected[place as usize] =
                                    *alpha as f32 * sum + *beta as f32 * bias;
                            }
                        }
                        assert!(
                            found == expected,
                            "{name:?} {m} {k} {n}: {a_strides:?} {b_strides:?} {out_strides:?}, beta {beta}"
                        );
                    }
                }
            }
        }
    }
    assert!(served > 700, "{served} calls");
    free(&driver, memory);
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn batches_have_steps_of_their_own() {
    const ROOM: usize = 1024;
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 4 * 4 * ROOM as u64 + 4096).unwrap();
    let places: Vec<u64> = (0..4).map(|at| memory + 4 * ROOM as u64 * at).collect();
    let workspace = memory + 4 * 4 * ROOM as u64;
    let (left, right, added) = (numbers(ROOM, 1), numbers(ROOM, 3), numbers(ROOM, 2));
    for (place, numbers) in places.iter().zip([&left, &right, &added]) {
        put(&queue, *place, numbers);
    }
    let [batches, m, k, n] = [3, 2, 4, 5];
    // Dense, one for all, with a gap, and rows of all matrices side by side.
    let a_all = [[8, 4, 1], [0, 4, 1], [11, 1, 2]];
    let b_all = [[20, 5, 1], [0, 1, 4], [5, 15, 1]];
    let out_all = [[10, 5, 1], [13, 1, 2], [5, 15, 1]];
    for (a_strides, b_strides) in a_all.iter().flat_map(|a| b_all.iter().map(move |b| (a, b))) {
        for out_strides in &out_all {
            let a = matrix(places[0], &[batches, m, k], a_strides);
            let b = matrix(places[1], &[batches, k, n], b_strides);
            let out = matrix(places[3], &[batches, m, n], out_strides);
            let [_, down, right_step] = *out_strides;
            // A bias for all of the batch.
            let bias_strides = [0, down, right_step];
            let bias = matrix(places[2], &[batches, m, n], &bias_strides);
            for (name, inputs) in [(c"bmm", vec![&a, &b]), (c"baddbmm", vec![&bias, &a, &b])] {
                let with_bias = inputs.len() == 3;
                let (operator, _) = prepare(&driver, name, &inputs, &out).unwrap().unwrap();
                put(&queue, places[3], &added);
                let scalars = if with_bias { &[2.0, -1.0][..] } else { &[] };
                launch(&queue, &operator, (name, &inputs, &out), scalars, workspace);
                let mut expected = added.clone();
                for batch in 0..batches {
                    for i in 0..m {
                        for j in 0..n {
                            let sum: f32 = (0..k)
                                .map(|step| {
                                    at(&left, a_strides, &[batch, i, step])
                                        * at(&right, b_strides, &[batch, step, j])
                                })
                                .sum();
                            let bias = at(&added, &bias_strides, &[batch, i, j]);
                            let place = batch * out_strides[0] + i * down + j * right_step;
                            expected[place as usize] =
                                if with_bias { 2.0 * bias - sum } else { sum };
                        }
                    }
                }
                let found = floats(&queue, places[3], ROOM);
                assert!(
                    found == expected,
                    "{name:?}: {a_strides:?} {b_strides:?} {out_strides:?}"
                );
            }
        }
    }
    free(&driver, memory);
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn what_cublaslt_does_not_have_is_refused() {
    let bench = Bench::new();
    let driver = bench.open();
    let is_there = |name: &CStr, inputs: &[&Matrix], out: &Matrix| {
        prepare(&driver, name, inputs, out).unwrap().is_some()
    };
    let square = matrix(64, &[4, 4], &[4, 1]);
    assert!(is_there(c"mm", &[&square, &square], &square));
    let of = |dtype| Matrix {
        dtype,
        ..square.clone()
    };
    for dtype in [
        sys::OTR_DTYPE_I32,
        sys::OTR_DTYPE_C64,
        sys::OTR_DTYPE_F8E4M3,
    ] {
        assert!(
            !is_there(c"mm", &[&of(dtype), &of(dtype)], &of(dtype)),
            "{dtype}"
        );
    }
    assert!(!is_there(
        c"mm",
        &[&of(sys::OTR_DTYPE_F16), &square],
        &square
    ));
    for strides in [[8, 2], [0, 1], [1, 0], [-4, 1], [3, 1], [2, 2]] {
        let odd = matrix(64, &[4, 4], &strides);
        assert!(!is_there(c"mm", &[&odd, &square], &square), "{strides:?}");
        assert!(!is_there(c"mm", &[&square, &square], &odd), "{strides:?}");
    }
    for (a, b, out) in [
        ([4, 3], [4, 4], [4, 4]),
        ([4, 0], [0, 4], [4, 4]),
        ([4, 4], [4, 4], [3, 4]),
    ] {
        let dense = |[rows, columns]: [i64; 2]| matrix(64, &[rows, columns], &[columns, 1]);
        assert!(
            !is_there(c"mm", &[&dense(a), &dense(b)], &dense(out)),
            "{a:?} {b:?} {out:?}"
        );
    }
    // A batch may be read again and again, and not be written so.
    let batch = |stride| matrix(64, &[2, 4, 4], &[stride, 4, 1]);
    assert!(is_there(c"bmm", &[&batch(0), &batch(16)], &batch(16)));
    assert!(!is_there(c"bmm", &[&batch(16), &batch(16)], &batch(0)));
    assert!(!is_there(c"bmm", &[&batch(16), &batch(-16)], &batch(16)));
    assert!(!is_there(c"bmm", &[&square, &square], &square));
    // A column that is added, and a row with gaps.
    let column = matrix(64, &[4, 1], &[1, 1]);
    assert!(!is_there(c"addmm", &[&column, &square, &square], &square));
    let gaps = matrix(64, &[4], &[2]);
    assert!(!is_there(c"addmm", &[&gaps, &square, &square], &square));
    assert!(!is_there(c"add", &[&square, &square], &square));
    // The library may say no to all of it.
    bench.fail("cublasLtMatmulAlgoGetHeuristic", 0, 15);
    assert!(!is_there(c"mm", &[&square, &square], &square));
    // And what is for aligned addresses alone is not taken.
    bench.fail("cublasLtMatmulAlgoGetHeuristic", 1, 15);
    let (_, bytes) = prepare(&driver, c"mm", &[&square, &square], &square)
        .unwrap()
        .unwrap();
    assert_eq!(bytes, 0);
    bench.fail("cublasLtMatmulAlgoGetHeuristic", 0, 3);
    let (code, text) = refusal(prepare(&driver, c"mm", &[&square, &square], &square));
    assert_eq!(code, Code::OUT_OF_MEMORY);
    assert!(
        text.contains("cublasLtMatmulAlgoGetHeuristic answered 3"),
        "{text}"
    );
    bench.finish(driver);
}

#[test]
#[serial]
fn a_failure_of_the_library_is_that_of_the_device_if_it_is_lost() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 8192).unwrap();
    let square = matrix(memory, &[4, 4], &[4, 1]);
    let out = matrix(memory + 64, &[4, 4], &[4, 1]);
    let (operator, _) = prepare(&driver, c"mm", &[&square, &square], &out)
        .unwrap()
        .unwrap();
    let answer = || {
        bench.fail("cublasLtMatmul", 0, 13);
        with_call(c"mm", &[&square, &square], &out, &[], |call| {
            // SAFETY: refused.
            refusal(unsafe { queue.launch_operator(&operator, call, memory + 4096) }).0
        })
    };
    assert_eq!(answer(), Code::EXECUTION);
    bench.lose(0, 700);
    assert_eq!(answer(), Code::DEVICE_LOST);
    free(&driver, memory);
    drop((operator, queue));
    drop(driver);
    assert_eq!(bench.retained(), 0);
}

#[test]
#[serial]
fn a_recorded_product_is_a_node_or_a_part_where_it_cannot_be_captured() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 1 << 14).unwrap();
    put(&queue, memory, &[1.0, 2.0, 3.0, 4.0]);
    let square = |at: u64| matrix(memory + at, &[2, 2], &[2, 1]);
    let (a, once, twice) = (square(0), square(64), square(128));
    let (operator, _) = prepare(&driver, c"mm", &[&a, &a], &once).unwrap().unwrap();
    let graphs = driver.native_graphs().unwrap();
    let record = |inputs: &[&Matrix], out: &Matrix| {
        launch(&queue, &operator, (c"mm", inputs, out), &[], memory + 4096);
    };
    let part = |inputs: &[&Matrix], out: &Matrix| {
        graphs.record_begin(&queue).unwrap();
        record(inputs, out);
        graphs.record_end(&queue).unwrap()
    };
    let count = |calls: &[String], name: &str| calls.iter().filter(|call| *call == name).count();
    // A capture that does not begin, one that does not end, and one in which cuBLASLt refuses.
    let broken = [
        "cuStreamBeginCapture_v2",
        "cuStreamEndCapture",
        "cublasLtMatmul",
    ];
    for broken in std::iter::once(None).chain(broken.map(Some)) {
        graphs.record_begin(&queue).unwrap();
        record(&[&a, &a], &once);
        // SAFETY: within the allocation, which lives until the queue has finished.
        unsafe { queue.fill(memory + 128, 16, &[0]) }.unwrap();
        record(&[&once, &a], &twice);
        if let Some(name) = broken {
            bench.fail(name, 0, 1);
        }
        bench.calls();
        let graph = graphs.record_end(&queue).unwrap();
        let children = count(&bench.calls(), "cuGraphAddChildGraphNode");
        assert_eq!(children, if broken.is_some() { 1 } else { 2 }, "{broken:?}");
        let run = || {
            // SAFETY: as above.
            unsafe { queue.launch_graph(&graph) }.unwrap();
            let calls = bench.calls();
            let issued = count(&calls, "cublasLtMatmul");
            assert_eq!(issued, usize::from(broken.is_some()), "{calls:?}");
            floats(&queue, memory + 128, 4)
        };
        assert_eq!(run(), [37.0, 54.0, 81.0, 118.0], "{broken:?}");
        // The square of before stays, and is multiplied from the other side.
        put(&queue, memory + 64, &[1.0, 0.0, 0.0, 0.0]);
        let first = part(&[&a, &a], &square(192));
        let last = part(&[&a, &once], &twice);
        bench.calls();
        graph.update_part(0, &first).unwrap();
        graph.update_part(2, &last).unwrap();
        let calls = bench.calls();
        let set = count(&calls, "cuGraphExecChildGraphNodeSetParams");
        assert_eq!(set, if broken.is_some() { 1 } else { 2 }, "{calls:?}");
        assert_eq!(run(), [1.0, 0.0, 3.0, 0.0], "{broken:?}");
    }
    free(&driver, memory);
    drop((operator, queue));
    bench.finish(driver);
}
