//! The reader against right and wrong text, and the writer against the reader.
//!
//! The tests must never depend on the wording of an error beyond what a user needs from it.

use proptest::prelude::*;

use super::*;

const TEXT: &str = "# alloctrace v1; name=small; torch=2.15\nm step0\n# a comment\n# label enc 1\n\
                    a 7 4096 0\r\na 900000000000 1 3\n\nr 7 3\nf 7\n# label\n# oom 18446744073709551615 3\n\
                    a 8 0 0";

#[test]
fn a_trace_is_read_and_numbered_anew() {
    let trace = Trace::load(TEXT.as_bytes()).expect("a correct trace");
    assert_eq!(trace.header, "alloctrace v1; name=small; torch=2.15");
    assert_eq!(trace.header_field("name"), Some("small"));
    assert_eq!(trace.header_field("nam"), None);
    let (s0, s3) = (StreamId(0), StreamId(3));
    let texts: Vec<_> = ["step0", "enc 1", ""].map(Box::from).into();
    let ops = [
        Op::Mark { text: 0 },
        Op::Label { text: 1 },
        Op::Alloc {
            id: 0,
            bytes: 4096,
            stream: s0,
        },
        Op::Alloc {
            id: 1,
            bytes: 1,
            stream: s3,
        },
        Op::Record { id: 0, stream: s3 },
        Op::Free { id: 0 },
        Op::Label { text: 2 },
        Op::OutOfMemory {
            bytes: u64::MAX,
            stream: s3,
        },
        Op::Alloc {
            id: 2,
            bytes: 0,
            stream: s0,
        },
    ];
    assert_eq!(trace.ops, ops);
    assert_eq!(trace.texts, texts);
    assert_eq!((trace.allocations, trace.peak_requested()), (3, 4097));
}

#[test]
fn errors_name_the_line_and_what_would_be_right() {
    for (text, line, parts) in [
        ("a 1 2 0\nx 1", 2, &["\"x 1\"", "`f <id>`"][..]),
        ("alloc 1 2 0", 1, &["\"alloc 1 2 0\""]),
        (
            "a 1 2",
            1,
            &["<stream> is missing", "`a <id> <bytes> <stream>`"],
        ),
        ("a", 1, &["<id> is missing"]),
        ("f ", 1, &["<id> is missing", "`f <id>`"]),
        ("a 1 2k 0", 1, &["\"2k\"", "<bytes>"]),
        ("a 1 -2 0", 1, &["\"-2\"", "<bytes>"]),
        (
            "a 1 18446744073709551616 0",
            1,
            &["<bytes> is 18446744073709551616"],
        ),
        ("a 1 2 0 7", 1, &["\"7\" follows"]),
        ("a 1 2 0\na 1 2 0", 2, &["allocation 1 before"]),
        ("a 1 2 0\nf 1\na 1 2 0", 3, &["used only once"]),
        ("#\nf 4", 2, &["no line before this one allocates 4"]),
        ("r 4 0", 1, &["no line before this one allocates 4"]),
        ("a 1 2 0\nf 1\nf 1", 3, &["allocation 1 was freed before"]),
        (
            "a 1 2 0\nf 1\nr 1 1",
            3,
            &["freed before", "before the free"],
        ),
        ("# alloctrace v2; name=x", 1, &["alloctrace v2", "v1"]),
        ("#\n# oom 1", 2, &["<stream> is missing"]),
    ] {
        let error = Trace::load(text.as_bytes()).expect_err(text);
        assert_eq!(error.line, line, "{text:?}: {error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{text:?}: {error}");
        }
    }
    let error = Trace::load(&b"m \xff"[..]).expect_err("no UTF-8");
    assert!(matches!(error.problem, Problem::NotText), "{error}");
    let endless = vec![b'a'; 3 << 20];
    let error = Trace::load(&endless[..]).expect_err("no line end");
    assert!(matches!(error.problem, Problem::TooLong(_)), "{error}");
}

#[test]
fn a_reader_ends_after_an_error() {
    let mut reader = Reader::new(&b"a 1 2 0\nf 2\nf 1\n"[..]);
    assert!(reader.next().is_some_and(|op| op.is_ok()));
    assert!(reader.next().is_some_and(|op| op.is_err()));
    assert_eq!(reader.line(), 2);
    assert!(reader.next().is_none());
}

#[test]
fn line_ends_in_texts_do_not_make_lines() {
    let mut writer = Writer::new(Vec::new(), "name=a\nb").expect("memory takes it");
    writer.mark("step\r\n1").expect("memory takes it");
    let text = writer.into_inner();
    let trace = Trace::load(&text[..]).expect("what the writer wrote");
    assert_eq!(trace.header_field("name"), Some("a b"));
    assert_eq!(trace.ops.len(), 1);
}

/// A correct trace: ids far apart, any sizes, some frees, uses, marks, labels and failures.
fn any_trace() -> impl Strategy<Value = Vec<(u8, u64, u64)>> {
    proptest::collection::vec((0..7u8, any::<u64>(), any::<u64>()), 0..300)
}

proptest! {
    /// The reader gives an error or operations that a replay can index by, and never panics, whatever
    /// the text.
    #[test]
    fn any_text_is_read_or_refused(text in "((a [0-3] 9 0|[fr] [0-3]|r [0-3] 1|[afrmx#é -]{1,4}|# oom 9{1,21} 0)\r?\n){1,5}") {
        if let Ok(trace) = Trace::load(text.as_bytes()) {
            for op in &trace.ops {
                if let Op::Alloc { id, .. } | Op::Free { id } | Op::Record { id, .. } = *op {
                    prop_assert!((id as usize) < trace.allocations);
                }
            }
        }
    }

    #[test]
    fn what_is_written_is_read(steps in any_trace()) {
        let mut writer = Writer::new(Vec::new(), "name=p").expect("memory takes it");
        let mut live = Vec::new(); // (id in the file, number in the order of the allocations)
        let mut expected = Vec::new();
        let mut allocations = 0;
        let mut used = std::collections::HashSet::new();
        for (kind, x, y) in steps {
            let stream = StreamId(y);
            match kind {
                0 | 1 => {
                    let id = x >> (x % 64); // mostly small ones, some far out
                    if used.insert(id) {
                        writer.alloc(id, y, stream).expect("memory takes it");
                        expected.push(Op::Alloc { id: allocations, bytes: y, stream });
                        live.push((id, allocations));
                        allocations += 1;
                    }
                }
                2 if !live.is_empty() => {
                    let (id, number) = live.swap_remove(x as usize % live.len());
                    writer.free(id).expect("memory takes it");
                    expected.push(Op::Free { id: number });
                }
                3 if !live.is_empty() => {
                    let (id, number) = live[x as usize % live.len()];
                    writer.record_stream(id, stream).expect("memory takes it");
                    expected.push(Op::Record { id: number, stream });
                }
                4 => {
                    writer.mark("again").expect("memory takes it");
                    expected.push(Op::Mark { text: 0 });
                }
                5 => {
                    writer.out_of_memory(x, stream).expect("memory takes it");
                    expected.push(Op::OutOfMemory { bytes: x, stream });
                }
                _ => {}
            }
        }
        let text = writer.into_inner();
        let trace = Trace::load(&text[..]).expect("what the writer wrote");
        prop_assert_eq!(&trace.ops, &expected);
        // And once more, with ids that count from 0.
        let mut again = Writer::new(Vec::new(), "name=p").expect("memory takes it");
        again.trace(&trace).expect("memory takes it");
        prop_assert_eq!(Trace::load(&again.into_inner()[..]).expect("a correct trace"), trace);
    }
}
