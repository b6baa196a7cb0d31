//! Every function of the dialect: as plain C, by each compiler that is there, and over OpenCL. Numbers are compared with those
//! of another library.

use std::ffi::{CString, c_void};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::Library;
use outrigger_device::{Arguments, CopyKind, Driver, Grid, Module, sys};

const DIALECT: &str = concat!(
    include_str!("../../../include/outrigger/dialect.h"),
    include_str!("../../../include/outrigger/dialect_functions.h")
);
const TEXT: &str = include_str!("functions.c");

/// Threads that run groups of plain C.
const THREADS: usize = 4;

/// Something that runs a kernel of the text over rows of words, which it changes.
type Run<'a> = &'a dyn Fn(&str, u32, &mut [Vec<u64>; 3], i64);

/// Runs kernels on a device, in groups of so many items.
fn over(driver: &Driver, group: u32, judge: &dyn Fn(Run<'_>)) {
    let text = [&format!("#define OTR_GROUP_SIZE {group}\n"), DIALECT, TEXT].concat();
    let module: Module = driver
        .module_load(0, sys::OTR_CODE_OPENCL_C, text.as_bytes(), None)
        .unwrap();
    let run = |name: &str, groups: u32, rows: &mut [Vec<u64>; 3], count: i64| {
        let kernel = module.kernel(Some(&CString::new(name).unwrap())).unwrap();
        let queue = driver.queue_create(0, 0).unwrap();
        let places: Vec<u64> = rows
            .iter()
            .map(|row| driver.memory_alloc(0, row.len() as u64 * 8).unwrap())
            .collect();
        let mut block: Vec<u8> = places
            .iter()
            .flat_map(|place| place.to_ne_bytes())
            .collect();
        block.extend(count.to_ne_bytes());
        let part = |at: u32| sys::otr_argument {
            offset: at * 8,
            size: 8,
            kind: if at < 3 {
                sys::OTR_ARGUMENT_ADDRESS
            } else {
                sys::OTR_ARGUMENT_VALUE
            },
        };
        let parts = [part(0), part(1), part(2), part(3)];
        let args = Arguments {
            block: &block,
            parts: &parts,
        };
        let grid = Grid {
            items: [group, 1, 1],
            groups: [groups, 1, 1],
            ..Grid::ONE
        };
        // SAFETY: the kernels get what they expect; rows and places live until the queue has done all.
        unsafe {
            for (row, place) in rows.iter().zip(&places) {
                let from = row.as_ptr() as u64;
                queue
                    .copy(*place, from, row.len() as u64 * 8, CopyKind::HostToDevice)
                    .unwrap();
            }
            queue
                .launch_grid(&kernel, &grid, args, 0, c"a function")
                .unwrap();
            for (row, place) in rows.iter_mut().zip(&places) {
                let to = row.as_mut_ptr() as u64;
                queue
                    .copy(to, *place, row.len() as u64 * 8, CopyKind::DeviceToHost)
                    .unwrap();
            }
            queue.synchronize().unwrap();
            for place in places {
                driver.memory_free(place).unwrap();
            }
        }
    };
    judge(&run);
}

/// Runs kernels that a compiler has made of plain C with all that the processor has. `None` without the compiler.
fn compiled(compiler: &str, judge: &dyn Fn(Run<'_>)) -> Option<()> {
    type Kernel = unsafe extern "C" fn(*const [i32; 6], *mut c_void, *mut c_void, *mut c_void, i64);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("functions.so");
    let mut child = Command::new(compiler)
        .args([
            "-x",
            "c",
            "-std=gnu11",
            "-O3",
            "-march=native",
            "-shared",
            "-fPIC",
            "-w",
            "-ffp-contract=off",
            "-o",
        ])
        .arg(&path)
        .args(["-", "-lm"])
        .stdin(Stdio::piped())
        .spawn()
        .ok()?;
    child
        .stdin
        .take()
        .unwrap()
        .write_all([DIALECT, TEXT].concat().as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success(), "{compiler}");
    // SAFETY: the library has no initializers but those of the C runtime.
    let library = unsafe { Library::new(path) }.unwrap();
    let run = |name: &str, groups: u32, rows: &mut [Vec<u64>; 3], count: i64| {
        // SAFETY: the kernels have this type, with a struct of one word as the last argument.
        let kernel = *unsafe { library.get::<Kernel>(name.as_bytes()) }.unwrap();
        let places = rows.each_mut().map(|row| row.as_mut_ptr() as usize);
        let (next, start) = (AtomicU32::new(0), Barrier::new(THREADS));
        let work = || {
            start.wait();
            loop {
                let group = next.fetch_add(1, Ordering::Relaxed);
                if group >= groups {
                    break;
                }
                let place = [group as i32, 0, 0, groups as i32, 1, 1];
                let [a, b, c] = places.map(|place| place as *mut c_void);
                // SAFETY: the rows are as long as the kernels expect, and nothing else uses them.
                unsafe { kernel(&raw const place, a, b, c, count) };
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(work);
            }
        });
    };
    judge(&run);
    Some(())
}

/// The driver `opencl` that the environment names.
#[expect(clippy::print_stdout, reason = "what was skipped is said")]
fn opencl() -> Option<Driver> {
    let Ok(spec) = std::env::var("OUTRIGGER_TEST_OPENCL") else {
        println!("in part skipped: OUTRIGGER_TEST_OPENCL names no driver for OpenCL");
        return None;
    };
    Some(Driver::open(&spec.parse().unwrap()).unwrap())
}

/// The right value of a row of the kernel for numbers, by the function's name, and how many units in the last place a
/// device may be off. Where numbers are far off relatively, because the function has a zero there, so many units of 1
/// count.
fn right(name: &str, x: f64, y: f64, power: i32, is_f32: bool) -> (f64, f64) {
    let close = |value: f64| (value, 4.0);
    let exact = |value: f64| (value, 0.0);
    match name {
        "exp" => close(libm::exp(x)),
        "exp2" => close(libm::exp2(x)),
        "expm1" => close(libm::expm1(x)),
        "log" => close(libm::log(x)),
        "log1p" => close(libm::log1p(x)),
        "log2" => close(libm::log2(x)),
        "log10" => close(libm::log10(x)),
        "sqrt" => (libm::sqrt(x), 1.0),
        "rsqrt" => close(1.0 / libm::sqrt(x)),
        "cbrt" => close(libm::cbrt(x)),
        "pow" => (libm::pow(x, y), 16.0),
        "hypot" => close(libm::hypot(x, y)),
        "sin" => close(libm::sin(x)),
        "cos" => close(libm::cos(x)),
        "tan" => (libm::tan(x), 5.0),
        "asin" => close(libm::asin(x)),
        "acos" => close(libm::acos(x)),
        "atan" => (libm::atan(x), 5.0),
        "atan2" => (libm::atan2(x, y), 6.0),
        "sinh" => close(libm::sinh(x)),
        "cosh" => close(libm::cosh(x)),
        "tanh" => (libm::tanh(x), 5.0),
        "asinh" => close(libm::asinh(x)),
        "acosh" => close(libm::acosh(x)),
        "atanh" => (libm::atanh(x), 5.0),
        "erf" => (libm::erf(x), 16.0),
        "erfc" => (libm::erfc(x), 16.0),
        "lgamma" => (libm::lgamma(x), 32.0),
        "tgamma" => (libm::tgamma(x), 32.0),
        "floor" => exact(x.floor()),
        "ceil" => exact(x.ceil()),
        "trunc" => exact(x.trunc()),
        "round" => exact(x.round_ties_even()),
        "round_away" => exact(x.round()),
        "fmod" => exact(libm::fmod(x, y)),
        "ieee_remainder" => exact(libm::remainder(x, y)),
        "remainder" => {
            let rest = libm::fmod(x, y);
            let moved = rest != 0.0 && (rest < 0.0) != (y < 0.0);
            (if moved { rest + y } else { rest }, 1.0)
        }
        "logb" if x == 0.0 => exact(f64::NEG_INFINITY),
        "logb" if x.is_infinite() => exact(f64::INFINITY),
        "logb" if x.is_nan() => exact(x),
        "logb" => exact(f64::from(libm::ilogb(x))),
        "nextafter" if is_f32 => exact(f64::from(libm::nextafterf(x as f32, y as f32))),
        "nextafter" => exact(libm::nextafter(x, y)),
        "fdim" => (libm::fdim(x, y), 1.0),
        "copysign" => exact(x.copysign(y)),
        "abs" => exact(x.abs()),
        "max" | "min" if x.is_nan() || y.is_nan() => exact(f64::NAN),
        "max" => exact(if x > y { x } else { y }),
        "min" => exact(if x < y { x } else { y }),
        "ldexp" => (libm::ldexp(x, power), 0.5),
        "frexp" => exact(libm::frexp(x).0),
        "found" if x.is_finite() => exact(f64::from(libm::frexp(x).1)),
        "found" => exact(0.0),
        _ => panic!("no function {name}"),
    }
}

/// The names of the rows, out of the text.
fn names() -> Vec<&'static str> {
    let begin = TEXT.find("#define NUMBERS(T)").unwrap();
    let end = TEXT.find("#define NUMBERS_KERNEL(T)").unwrap();
    let rows = TEXT[begin..end].split("ROW(").skip(1);
    rows.map(|row| {
        row.strip_prefix("otr_")
            .map_or("found", |name| name.split_once("_##").unwrap().0)
    })
    .collect()
}

/// Numbers at the ends of ranges, at places where functions change, and some of all sizes.
fn samples() -> Vec<f64> {
    let mut all = vec![
        0.0,
        0.25,
        0.5,
        1.0,
        1.5,
        2.0,
        2.5,
        3.0,
        4.5,
        5.0,
        10.25,
        33.0,
        88.5,
        100.0,
        126.5,
        127.99,
        128.0,
        149.5,
        1e4,
        1e-3,
        1e-7,
        1e-20,
        f64::from(f32::MAX),
        f64::from(f32::MIN_POSITIVE),
        f64::from(f32::from_bits(1)),
        f64::INFINITY,
    ];
    let mut state = 1_u64;
    for _ in 0..60 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let real = (state >> 40) as f64 / f64::from(1 << 24);
        all.push(f64::from(
            (real * 2_f64.powi((state >> 32 & 7) as i32 - 3)) as f32,
        ));
    }
    all.extend(all.clone().iter().map(|x| -x));
    all.push(f64::NAN);
    all.iter().map(|x| f64::from(*x as f32)).collect()
}

/// The distance in units of the last place of the type, with some leave for small results of functions that have zeros.
fn distance(found: f64, right: f64, is_f32: bool) -> f64 {
    if found.is_nan() || right.is_nan() {
        return if found.is_nan() && right.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    if found == right {
        // The sign of a 0 counts.
        let same = found != 0.0 || found.is_sign_negative() == right.is_sign_negative();
        return if same { 0.0 } else { f64::INFINITY };
    }
    let size = right.abs().max(found.abs());
    if size.is_infinite() {
        return f64::INFINITY;
    }
    let (digits, least) = if is_f32 { (23, -149) } else { (52, -1074) };
    let exponent = if size == 0.0 {
        -2000
    } else {
        libm::ilogb(size)
    };
    (found - right).abs() / libm::ldexp(1.0, (exponent - digits).max(least))
}

fn judge_numbers(run: Run<'_>, is_f32: bool, place: &str) {
    let xs = samples();
    let count = xs.len();
    let ys: Vec<f64> = (0..count).map(|at| xs[(at * 7 + 3) % count]).collect();
    let names = names();
    let pack = |numbers: &[f64]| -> Vec<u64> {
        if is_f32 {
            let bits: Vec<u32> = numbers.iter().map(|x| (*x as f32).to_bits()).collect();
            let pair = |two: &[u32]| {
                let low = two[0].to_ne_bytes();
                let high = two.get(1).copied().unwrap_or(0).to_ne_bytes();
                u64::from_ne_bytes([
                    low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3],
                ])
            };
            bits.chunks(2).map(pair).collect()
        } else {
            numbers.iter().map(|x| x.to_bits()).collect()
        }
    };
    let mut rows = [pack(&xs), pack(&ys), vec![0; names.len() * count]];
    run(
        if is_f32 { "numbers_f32" } else { "numbers_f64" },
        3,
        &mut rows,
        count as i64,
    );
    let found = |at: usize| {
        if is_f32 {
            let bytes = rows[2][at / 2].to_ne_bytes();
            f64::from(f32::from_ne_bytes(
                bytes[at % 2 * 4..][..4].try_into().unwrap(),
            ))
        } else {
            f64::from_bits(rows[2][at])
        }
    };
    let mut wrong = Vec::new();
    for (row, name) in names.iter().enumerate() {
        for (at, (x, y)) in xs.iter().zip(&ys).enumerate() {
            let limited = if y.is_nan() {
                0.0
            } else {
                y.clamp(-400.0, 400.0)
            };
            let (real, ulps) = right(name, *x, *y, limited as i32, is_f32);
            let exact = if is_f32 { f64::from(real as f32) } else { real };
            let found = found(row * count + at);
            // A result that is too small to be there may have lost its sign.
            let lost = exact == 0.0 && real != 0.0 && found == 0.0;
            if !lost && distance(found, exact, is_f32) > ulps {
                wrong.push(format!("{name}({x:e}, {y:e}) is {found:e}, not {exact:e}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{place}, {} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn judge_integers(run: Run<'_>, place: &str) {
    let mut xs = vec![
        0,
        1,
        2,
        3,
        u64::MAX,
        1 << 31,
        (1 << 32) - 1,
        1 << 32,
        1 << 63,
        (1 << 63) - 1,
    ];
    xs.extend((0..30).map(|at: u64| {
        at.wrapping_add(3)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(at as u32)
    }));
    let count = xs.len();
    let ys: Vec<u64> = (0..count).map(|at| xs[(at * 7 + 3) % count]).collect();
    let mut rows = [xs.clone(), ys.clone(), vec![0; 12 * count]];
    run("integers", 3, &mut rows, count as i64);
    for (at, (x, y)) in xs.iter().zip(&ys).enumerate() {
        let (x, y) = (*x, *y);
        let wide = i128::from(x as i64) * i128::from(y as i64);
        let right = [
            (u64::from(x as u32) * u64::from(y as u32)) >> 32,
            (((i64::from(x as i32) * i64::from(y as i32)) >> 32) as i32) as u64,
            ((u128::from(x) * u128::from(y)) >> 64) as u64,
            (wide >> 64) as u64,
            u64::from((x as u32).count_ones()),
            u64::from((x as u32).count_ones()),
            u64::from(x.count_ones()),
            u64::from(x.count_ones()),
            u64::from((x as u32).leading_zeros()),
            u64::from((x as u32).leading_zeros()),
            u64::from(x.leading_zeros()),
            u64::from(x.leading_zeros()),
        ];
        let found: Vec<u64> = (0..12).map(|row| rows[2][row * count + at]).collect();
        assert_eq!(found, right, "{place}: {x:#x}, {y:#x}");
    }
}

/// The number of times that atomics are tried, since threads meet by chance.
const ROUNDS: usize = 12;

/// Items of a test of atomics: bf16 counts no further.
const ITEMS: usize = 256;

/// A row of a kernel with atomics, by the macro of its text and with the type.
struct Row {
    function: String,
    dtype: String,
    /// Of a type of less than 32 bits: the first byte in the cell, and how many.
    inside: Option<(usize, usize)>,
}

/// The rows of a kernel with atomics, out of the text.
fn atomic_rows(kernel: &str) -> Vec<Row> {
    let body = TEXT.split_once(&format!("OTR_KERNEL({kernel})")).unwrap().1;
    let body = body.split_once("\n}\n").unwrap().0;
    let mut rows = Vec::new();
    for line in body.lines().map(str::trim) {
        if let Some(row) = line.strip_prefix("ROW(") {
            let (_, name) = row.split_once("otr_atomic_").unwrap();
            let (name, rest) = name.split_once('(').unwrap();
            let (function, dtype) = name.rsplit_once('_').unwrap();
            let inside = rest.strip_prefix("INSIDE(").map(|place| {
                let (held, place) = place.split_once(", ").unwrap();
                let size = if held.ends_with("16") { 2 } else { 1 };
                let at: usize = place.split_once(')').unwrap().0.parse().unwrap();
                (at * size, size)
            });
            rows.push(Row {
                function: function.to_owned(),
                dtype: dtype.to_owned(),
                inside,
            });
            continue;
        }
        for one in line.split(' ') {
            let Some((group, dtype)) = one.trim_end_matches(')').split_once('(') else {
                continue;
            };
            let functions: &[&str] = match group {
                "COUNTED" => &["add"],
                "CHANGED" => &["exchange", "cas"],
                "FOUND" => &["max", "min"],
                "BITS" => &["or", "and", "xor"],
                "NOTED" => &["load"],
                _ => continue,
            };
            rows.extend(functions.iter().map(|function| Row {
                function: (*function).to_owned(),
                dtype: dtype.to_owned(),
                inside: None,
            }));
        }
    }
    rows
}

/// The number that the bits of a cell are.
fn number(row: &Row, cell: u64) -> i64 {
    let bytes = cell.to_ne_bytes();
    if let Some((at, size)) = row.inside {
        let bits = if size == 1 {
            u16::from(bytes[at])
        } else {
            u16::from_ne_bytes([bytes[at], bytes[at + 1]])
        };
        return match row.dtype.as_str() {
            "f16" => half::f16::from_bits(bits).to_f64() as i64,
            "bf16" => half::bf16::from_bits(bits).to_f64() as i64,
            _ => i64::from(bits),
        };
    }
    let half = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
    match row.dtype.as_str() {
        "f32" => f32::from_bits(half) as i64,
        "i32" => i64::from(half as i32),
        "u32" => i64::from(half),
        "f64" => f64::from_bits(cell) as i64,
        _ => cell as i64,
    }
}

fn judge_atomics(run: Run<'_>, kernel: &str, place: &str) {
    let rows = atomic_rows(kernel);
    // The bytes around a number of a cell must stay.
    let first = |row: &Row| match (row.inside, row.function.as_str()) {
        (_, "and") => u64::MAX,
        (Some((at, size)), _) => {
            let mut bytes = [0xa5; 8];
            bytes[at..at + size].fill(0);
            u64::from_ne_bytes(bytes)
        }
        _ => 0,
    };
    let mut cells: Vec<u64> = rows.iter().map(first).collect();
    // The rows from here on are judged below.
    let special = rows.iter().rposition(|row| row.function == "load").unwrap() + 1;
    if let [_, zero, nan] = &mut cells[special..] {
        (*zero, *nan) = (u64::from((-0_f32).to_bits()), 0x7fc0_0000);
    }
    let mut words = [cells.clone(), vec![0; ITEMS], vec![0; rows.len() * ITEMS]];
    // As many groups as items, so that all threads are at the same cells at once.
    run(kernel, ITEMS as u32, &mut words, ITEMS as i64);
    for (at, row) in rows.iter().enumerate().take(special) {
        let about = format!("{place}: {} of {}", row.function, row.dtype);
        let cell = words[0][at];
        if let Some((begin, size)) = row.inside {
            let mut bytes = cell.to_ne_bytes();
            bytes[begin..begin + size].fill(0);
            assert_eq!(
                u64::from_ne_bytes(bytes),
                cells[at],
                "{about}: what stands around it"
            );
        }
        let last = number(row, cell);
        let mut seen: Vec<i64> = words[2][at * ITEMS..][..ITEMS]
            .iter()
            .map(|one| *one as i64)
            .collect();
        let noted = seen.clone();
        seen.sort_unstable();
        let items = ITEMS as i64;
        let all: Vec<i64> = (0..items).collect();
        // The numbers that items bring to `max` and `min`.
        let brought = |at: i64| {
            let number = at * 37 % items - 100;
            match row.dtype.as_str() {
                "u32" => i64::from(number as u32),
                _ => number,
            }
        };
        match row.function.as_str() {
            "add" if row.dtype == "b8" => {
                assert_eq!((last, seen[0], seen[1]), (1, 0, 1), "{about}");
            }
            "add" => {
                let narrow = row.inside.is_some_and(|(_, size)| size == 1);
                let mut counted: Vec<i64> = seen
                    .iter()
                    .map(|one| if narrow { one & 255 } else { *one })
                    .collect();
                counted.sort_unstable();
                assert_eq!(counted, all, "{about}");
                assert_eq!(last, if narrow { 0 } else { items }, "{about}");
            }
            "exchange" => {
                seen.push(last);
                seen.sort_unstable();
                assert_eq!(seen, (0..=items).collect::<Vec<_>>(), "{about}");
            }
            "cas" => {
                // An item of a byte brings 0 too, which changes nothing.
                let winners = seen.iter().filter(|one| **one == 0).count();
                assert!(
                    winners == 1 || (row.dtype == "u8" && winners <= 2),
                    "{about}: {winners}"
                );
                assert!(
                    last != 0 && seen[winners..].iter().all(|one| *one == last),
                    "{about}"
                );
                assert_eq!(noted[last as usize - 1], 0, "{about}");
            }
            "max" | "min" => {
                let mut possible: Vec<i64> = (0..items).map(brought).chain([0]).collect();
                let wide = row.dtype == "u64";
                possible.sort_unstable_by_key(|one| {
                    if wide {
                        *one as u64
                    } else {
                        (*one as u64) ^ (1 << 63)
                    }
                });
                let best = if row.function == "max" {
                    possible[ITEMS]
                } else {
                    possible[0]
                };
                assert_eq!(last, best, "{about}");
                assert!(seen.iter().all(|one| possible.contains(one)), "{about}");
            }
            "or" => assert_eq!(cell, (1 << 31) - 1, "{about}"),
            "and" => {
                let low = !((1_u64 << 31) - 1);
                assert_eq!(cell, low, "{about}");
            }
            "xor" => {
                let whole = (0..items).fold(0_i64, |sum, at| sum ^ (at * 0x9e37_79b9));
                let right = if row.dtype.ends_with("32") {
                    whole & 0xffff_ffff
                } else {
                    whole
                };
                assert_eq!(cell as i64, right, "{about}");
            }
            "load" => assert_eq!(
                noted,
                all.iter().map(|at| at % 200).collect::<Vec<_>>(),
                "{about}"
            ),
            other => panic!("{other}"),
        }
        if matches!(row.function.as_str(), "or" | "and" | "xor") {
            // Somebody came first, and saw what nobody had changed.
            assert_ne!(seen.first(), seen.last(), "{about}");
        }
    }
    let bits: Vec<u32> = words[0][special..]
        .iter()
        .map(|cell| *cell as u32)
        .collect();
    if let [max, zero, nan] = bits[..] {
        assert!(f32::from_bits(max).is_nan(), "{place}: NaN wins");
        assert_eq!(zero, (-0_f32).to_bits(), "{place}: 0 is not -0");
        assert_eq!(nan, 1_f32.to_bits(), "{place}: NaN is NaN");
    }
}

/// Groups that wait for each other.
fn judge_order(run: Run<'_>, place: &str) {
    const GROUPS: usize = 24;
    let mut rows = [vec![0; 1], vec![0; 8 + GROUPS], vec![0; GROUPS]];
    run("ordered", GROUPS as u32, &mut rows, 0);
    let sum: u64 = (0..GROUPS as u64).sum();
    assert_eq!(rows[1][..8], [50 * sum; 8], "{place}: a lock");
    let sums: Vec<u64> = (0..GROUPS as u64).map(|at| (0..=at).sum()).collect();
    assert_eq!(rows[1][8..], sums, "{place}: messages");
}

fn judge_all(run: Run<'_>, place: &str, wide: bool) {
    judge_numbers(run, true, place);
    judge_integers(run, place);
    for _ in 0..ROUNDS {
        judge_atomics(run, "atomics", place);
    }
    judge_order(run, place);
    if wide {
        judge_numbers(run, false, place);
        for _ in 0..ROUNDS {
            judge_atomics(run, "wide_atomics", place);
        }
    }
}

#[test]
fn functions_are_right_where_undefined_behaviour_is_trapped() {
    let driver =
        outrigger_dialect_driver::driver("devices=1,memory=64M,checked=1,threads=4").unwrap();
    over(&driver, 1, &|run| judge_all(run, "checked", true));
}

#[test]
#[expect(clippy::print_stdout, reason = "what was skipped is said")]
fn functions_are_right_as_compilers_optimize_them() {
    for compiler in ["cc", "clang"] {
        if compiled(compiler, &|run| judge_all(run, compiler, true)).is_none() {
            println!("in part skipped: no {compiler}");
        }
    }
}

#[test]
fn functions_are_right_over_opencl() {
    let Some(driver) = opencl() else { return };
    let features = driver.properties(0).unwrap().limits.features;
    let both = sys::OTR_FEATURE_F64 | sys::OTR_FEATURE_ATOMIC_64;
    for group in [1, 32] {
        let place = format!("OpenCL, groups of {group}");
        // If a thread runs a group, only functions in f32 are special.
        let wide = group > 1 && features & both == both;
        over(&driver, group, &|run| judge_all(run, &place, wide));
    }
}
