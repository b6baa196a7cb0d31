//! Pickles that Python wrote, and pickles that nobody should write.
//!
//! The bytes of good ones come from `pickle.dumps`. The code under test must never make them.

use serde::Deserialize;

use super::*;

#[derive(Debug, PartialEq, Deserialize)]
struct Frame {
    name: String,
}

type Numbers = (u8, i64, u32, u32, i64, u64);

#[derive(Debug, PartialEq, Deserialize)]
struct All {
    a: (Vec<Frame>, Vec<Frame>, Numbers),
    b: (bool, Option<u8>, f64, String, serde::de::IgnoredAny),
}

/// A stack that is shared, and numbers of all lengths, in protocol 2.
const PROTOCOL_2: &[u8] = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(]q\x03(}q\x04X\x04\x00\x00\x00nameq\x05X\x07\x00\x00\x00forwardq\x06sh\x04eh\x03(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x05\x00\x0e\xfa\xd5\xfe\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00tq\x07eX\x01\x00\x00\x00bq\x08(\x88NG@\x04\x00\x00\x00\x00\x00\x00X\x02\x00\x00\x00\xc3\xa9q\x09X&\x00\x00\x00bytes are made by a call in protocol 2q\x0atq\x0bu.";
/// A stack that is shared, and numbers of all lengths, in protocol 4.
const PROTOCOL_4: &[u8] = b"\x80\x04\x95h\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(]\x94(}\x94\x8c\x04name\x94\x8c\x07forward\x94sh\x04eh\x03(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x05\x00\x0e\xfa\xd5\xfe\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00t\x94e\x8c\x01b\x94(\x88NG@\x04\x00\x00\x00\x00\x00\x00\x8c\x02\xc3\xa9\x94C\x01\x01\x94t\x94u.";

#[test]
fn what_python_wrote_is_read() {
    for bytes in [PROTOCOL_2, PROTOCOL_4] {
        let all: All = from_slice(bytes).expect("a pickle of data");
        let stack = || {
            (0..2)
                .map(|_| Frame {
                    name: "forward".to_owned(),
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(
            all.a,
            (
                stack(),
                stack(),
                (1, -2, 300, 70_000, -5_000_000_000, u64::MAX)
            )
        );
        assert_eq!(
            (all.b.0, all.b.1, all.b.2, all.b.3.as_str()),
            (true, None, 2.5, "é")
        );
    }
}

#[test]
fn nothing_is_run_and_nothing_damaged_is_read() {
    let refused = |bytes: &[u8]| from_slice::<All>(bytes).expect_err("refused").to_string();
    // `os.system("true")`, as protocol 2 spells a call.
    let call = b"\x80\x02cos\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03.";
    assert!(refused(call).contains("would make an object"));
    // A list that contains itself.
    let own = b"\x80\x02]q\x00h\x00a.";
    let error = from_slice::<Endless>(own).expect_err("endless").to_string();
    assert!(error.contains("contain themselves"), "{error}");
    assert!(refused(b"\x80\x02j\xff\xff\xff\xff.").contains("never filled"));
    assert!(refused(b"\x80\x02Nr\xff\xff\xff\xff.").contains("out of order"));
    assert!(refused(b"\x80\x09N.").contains("protocol 9"));
    // Cut anywhere, it is an error and never a panic.
    for end in 0..PROTOCOL_4.len() {
        from_slice::<All>(&PROTOCOL_4[..end]).expect_err("cut");
    }
    // A changed byte is an error too, unless it changes a value only.
    let mut bytes = PROTOCOL_4.to_vec();
    for place in 0..bytes.len() {
        for bit in 0..8 {
            bytes[place] ^= 1 << bit;
            let _ = from_slice::<All>(&bytes);
            bytes[place] ^= 1 << bit;
        }
    }
}

#[derive(Debug, Deserialize)]
struct Endless(#[expect(dead_code, reason = "only the attempt counts")] Vec<Endless>);
