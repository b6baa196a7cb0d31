//! Operators that make values from a position alone: sequences and random numbers.
//!
//! Random numbers are Philox 4x32-10 (Salmon, Moraes, Dror and Shaw 2011). The seed is the key. The number of an
//! element depends on seed, offset and position only, so results are the same for any number of threads. Positions
//! count in the memory order of the output.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use outrigger_device::{Code, DType};

use crate::call::{Call, Scalar};
use crate::convert::{Class, Compute, class_of};
use crate::elementwise::engine::{self, Header, code};
use crate::elementwise::real::Real;
use crate::error::{Result, invalid, unsupported};
use crate::geometry;
use crate::isa::{Isa, Vectorised, dispatch};
use crate::memory::ArgumentBlock;
use crate::plan::{KernelFn, Plan};
use crate::registry::Definition;

/// Sequences.
pub(crate) const SEQUENCES: &[Definition] = &[Definition {
    name: c"arange",
    plan: plan_arange,
}];

/// Random numbers. The last two scalars of each are seed and offset.
pub(crate) const RANDOM: &[Definition] = &[
    Definition {
        name: c"uniform",
        plan: plan_uniform,
    },
    Definition {
        name: c"normal",
        plan: plan_normal,
    },
    Definition {
        name: c"bernoulli",
        plan: plan_bernoulli,
    },
    Definition {
        name: c"random_int",
        plan: plan_random_int,
    },
];

/// A function that makes the values of consecutive positions.
trait Generator: Copy + Send + Sync + 'static {
    type Out: Compute;
    fn new(params: [u64; 4]) -> Self;
    /// Makes values from position `first` on. Must write all of `out`.
    fn fill<I: Isa>(self, first: i64, out: &mut [MaybeUninit<Self::Out>]);
}

struct Fill<'a, G: Generator> {
    generator: G,
    first: i64,
    out: &'a mut [MaybeUninit<G::Out>],
}

impl<G: Generator> Vectorised for Fill<'_, G> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        self.generator.fill::<I>(self.first, self.out);
    }
}

/// # Safety
/// `args` is a block that `plan_generator` made for this kernel, and the output, moved by `bias`, lies
/// in live memory.
unsafe extern "C" fn kernel<G: Generator>(args: *const c_void, args_size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((header, tail)) = block.split::<Header>() else {
        return Code::INTERNAL.0;
    };
    let generator = G::new(header.params);
    let fill = |first: i64, _: [&[G::Out]; 0], out: &mut [MaybeUninit<G::Out>]| {
        dispatch(Fill {
            generator,
            first,
            out,
        });
    };
    // SAFETY: the header is of a plan for this kernel. This function's contract: the output is live.
    unsafe { engine::run::<G::Out, G::Out, 0>(&header, tail, bias, &fill) }.0
}

/// Fills the plan of a generator. `cost` is in picoseconds per element.
fn plan_generator(
    call: &Call<'_>,
    plan: &mut Plan,
    kernel: KernelFn,
    params: [u64; 4],
    cost: u32,
) -> Result<()> {
    let ([output], []) = (call.outputs, call.inputs) else {
        return invalid("no inputs and 1 output are expected");
    };
    let geometry = geometry::broadcast(output, &[])?;
    if geometry.numel == 0 {
        return Ok(());
    }
    plan.kernel = kernel;
    plan.cost_ns = crate::plan::cost_ns(geometry.numel, cost);
    plan.push(&Header {
        numel: geometry.numel,
        addresses: [output.address(), 0, 0, 0],
        params,
        dtypes: [code(output.dtype()), 0, 0, 0],
        rank: geometry.rank as u16,
        grain_blocks: 8,
    });
    geometry.push(1, plan);
    Ok(())
}

fn output_class(call: &Call<'_>) -> Result<(Class, DType)> {
    let [output] = call.outputs else {
        return invalid("1 output is expected");
    };
    match class_of(output.dtype()) {
        Some(class) => Ok((class, output.dtype())),
        None => unsupported(format!("not defined for {}", output.dtype())),
    }
}

/// start + step * position. Floats are computed in f64, whatever type they are stored in.
#[derive(Clone, Copy)]
struct Arange<T>(T, T);

macro_rules! arange {
    ($($t:ident, |$start:ident, $step:ident, $at:ident| $value:expr;)*) => {$(
        impl Generator for Arange<$t> {
            type Out = $t;
            fn new(params: [u64; 4]) -> Self {
                Self($t::from_word(params[0]), $t::from_word(params[1]))
            }
            #[inline(always)]
            fn fill<I: Isa>(self, first: i64, out: &mut [MaybeUninit<$t>]) {
                let Self($start, $step) = self;
                for (k, out) in out.iter_mut().enumerate() {
                    let $at = first + k as i64;
                    out.write($value);
                }
            }
        }
    )*};
}
arange! {
    f64, |start, step, at| start + step * at as f64;
    i64, |start, step, at| start.wrapping_add(step.wrapping_mul(at));
}

fn plan_arange(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let [start, step] = call.scalars else {
        return invalid("scalars (start, step) are expected");
    };
    let (class, _) = output_class(call)?;
    if let [output] = call.outputs
        && (output.rank() != 1 || output.strides()[0] < 0)
    {
        return unsupported("a sequence that is not a vector with a positive stride");
    }
    match class {
        Class::F32 | Class::F64 => {
            let params = [f64::to_word(*start), f64::to_word(*step), 0, 0];
            plan_generator(call, plan, kernel::<Arange<f64>>, params, 300)
        }
        Class::I32 | Class::I64 => {
            if start.is_float() || step.is_float() {
                return unsupported("a sequence of integers with a floating-point start or step");
            }
            let params = [i64::to_word(*start), i64::to_word(*step), 0, 0];
            plan_generator(call, plan, kernel::<Arange<i64>>, params, 300)
        }
    }
}

/// One block of Philox 4x32-10: four words for a counter.
#[inline(always)]
pub(crate) fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    let ([mut k0, mut k1], [mut c0, mut c1, mut c2, mut c3]) = (key, counter);
    for _ in 0..10 {
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c0);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c2);
        (c0, c2) = ((p1 >> 32) as u32 ^ c1 ^ k0, (p0 >> 32) as u32 ^ c3 ^ k1);
        (c1, c3) = (p1 as u32, p0 as u32);
        (k0, k1) = (k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1]));
    }
    [c0, c1, c2, c3]
}

/// The numbers of a seed from an offset on. The offset counts blocks of four words.
#[derive(Clone, Copy)]
struct Stream {
    seed: u64,
    offset: u64,
}

impl Stream {
    #[inline(always)]
    fn block(self, index: u64) -> [u32; 4] {
        let at = self.offset.wrapping_add(index);
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        philox(key, [at as u32, (at >> 32) as u32, 0, 0])
    }

    /// Makes values of consecutive positions. One block makes `PER` of them.
    #[inline(always)]
    fn each<T: Copy, const PER: usize>(
        self,
        first: i64,
        out: &mut [MaybeUninit<T>],
        make: impl Fn([u32; 4]) -> [T; PER],
    ) {
        let first = first as u64;
        let per = PER as u64;
        // The rest of a block, then whole blocks, then the first values of one more block.
        let head = ((per - first % per) % per).min(out.len() as u64) as usize;
        let (start, body) = out.split_at_mut(head);
        if !start.is_empty() {
            let values = make(self.block(first / per));
            for (out, value) in start.iter_mut().zip(&values[(first % per) as usize..]) {
                out.write(*value);
            }
        }
        let base = (first + head as u64) / per;
        let (blocks, tail) = body.as_chunks_mut::<PER>();
        let count = blocks.len() as u64;
        for (index, block) in blocks.iter_mut().enumerate() {
            *block = make(self.block(base + index as u64)).map(MaybeUninit::new);
        }
        if !tail.is_empty() {
            let values = make(self.block(base + count));
            for (out, value) in tail.iter_mut().zip(&values) {
                out.write(*value);
            }
        }
    }
}

/// The top bits of a word as a fraction in [0, 1), as many as the output type can hold.
#[inline(always)]
fn fraction32(word: u32, digits: u32) -> f32 {
    (word >> (32 - digits)) as f32 * f32::from_bits((127 - digits) << 23)
}

/// One number of `uniform` of f32 in [0, 1), by its position.
pub(crate) fn uniform(seed: u64, offset: u64, position: u64) -> f32 {
    let words = Stream { seed, offset }.block(position / 4);
    fraction32(words[(position % 4) as usize], 24)
}

/// 53 bits of two words as a fraction in [0, 1).
#[inline(always)]
fn fraction64(high: u32, low: u32) -> f64 {
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

/// The numbers that a generator of reals takes.
#[derive(Clone, Copy)]
struct Params {
    a: f64,
    b: f64,
    stream: Stream,
}

impl Params {
    fn new(params: [u64; 4]) -> Self {
        Self {
            a: f64::from_bits(params[0]),
            b: f64::from_bits(params[1]),
            stream: Stream {
                seed: params[2],
                offset: params[3],
            },
        }
    }
}

/// Uniform in [a, b), with as many random bits as the element type holds.
#[derive(Clone, Copy)]
struct Uniform<T, const DIGITS: u32>(Params, std::marker::PhantomData<T>);

impl<const DIGITS: u32> Generator for Uniform<f32, DIGITS> {
    type Out = f32;
    fn new(params: [u64; 4]) -> Self {
        Self(Params::new(params), std::marker::PhantomData)
    }
    #[inline(always)]
    fn fill<I: Isa>(self, first: i64, out: &mut [MaybeUninit<f32>]) {
        let (from, width) = (self.0.a as f32, (self.0.b - self.0.a) as f32);
        self.0.stream.each(first, out, |words| {
            words.map(|word| I::fma32(fraction32(word, DIGITS), width, from))
        });
    }
}

impl Generator for Uniform<f64, 53> {
    type Out = f64;
    fn new(params: [u64; 4]) -> Self {
        Self(Params::new(params), std::marker::PhantomData)
    }
    #[inline(always)]
    fn fill<I: Isa>(self, first: i64, out: &mut [MaybeUninit<f64>]) {
        let (from, width) = (self.0.a, self.0.b - self.0.a);
        self.0.stream.each(first, out, |[a, b, c, d]| {
            [fraction64(a, b), fraction64(c, d)].map(|u| I::fma64(u, width, from))
        });
    }
}

/// Normal with mean a and deviation b, in pairs (Box and Muller 1958).
#[derive(Clone, Copy)]
struct Normal<T>(Params, std::marker::PhantomData<T>);

impl Generator for Normal<f32> {
    type Out = f32;
    fn new(params: [u64; 4]) -> Self {
        Self(Params::new(params), std::marker::PhantomData)
    }
    #[inline(always)]
    fn fill<I: Isa>(self, first: i64, out: &mut [MaybeUninit<f32>]) {
        const CHUNK: usize = 256;
        let (mean, deviation) = (self.0.a as f32, self.0.b as f32);
        // Several passes over a chunk, each of which is vectorised. A pair that two chunks share is made for both,
        // because a chunk may begin and end within a pair.
        let mut first = first;
        for out in out.chunks_mut(CHUNK) {
            let begin = first & !1;
            let skip = (first - begin) as usize;
            let count = (skip + out.len()).div_ceil(2) * 2;
            let mut words = [MaybeUninit::<u32>::uninit(); CHUNK + 2];
            self.0
                .stream
                .each(begin, &mut words[..count], |words| words);
            let mut normals = [0.0f32; CHUNK + 2];
            for (pair, words) in normals
                .as_chunks_mut::<2>()
                .0
                .iter_mut()
                .zip(words.as_chunks::<2>().0)
                .take(count / 2)
            {
                // SAFETY: `each` wrote the first `count` words.
                let [x, y] = words.map(|word| unsafe { word.assume_init() });
                // 1 - u lies in (0, 1], where the logarithm is finite.
                *pair = [
                    1.0 - fraction32(x, 24),
                    std::f32::consts::TAU * fraction32(y, 24),
                ];
            }
            for pair in normals[..count].as_chunks_mut::<2>().0 {
                let radius = (-2.0 * pair[0].log_::<I>()).sqrt() * deviation;
                let angle = pair[1];
                pair[0] = I::fma32(radius, angle.cos_::<I>(), mean);
                pair[1] = I::fma32(radius, angle.sin_::<I>(), mean);
            }
            for (out, value) in out.iter_mut().zip(&normals[skip..]) {
                out.write(*value);
            }
            first += out.len() as i64;
        }
    }
}

impl Generator for Normal<f64> {
    type Out = f64;
    fn new(params: [u64; 4]) -> Self {
        Self(Params::new(params), std::marker::PhantomData)
    }
    #[inline(always)]
    fn fill<I: Isa>(self, first: i64, out: &mut [MaybeUninit<f64>]) {
        let (mean, deviation) = (self.0.a, self.0.b);
        self.0.stream.each(first, out, |[a, b, c, d]| {
            let radius = (-2.0 * (1.0 - fraction64(a, b)).ln()).sqrt();
            let angle = std::f64::consts::TAU * fraction64(c, d);
            [radius * angle.cos(), radius * angle.sin()].map(|z| I::fma64(z, deviation, mean))
        });
    }
}

/// 1 with probability a, else 0.
#[derive(Clone, Copy)]
struct Bernoulli(Params);

impl Generator for Bernoulli {
    type Out = i32;
    fn new(params: [u64; 4]) -> Self {
        Self(Params::new(params))
    }
    #[inline(always)]
    fn fill<I: Isa>(self, first: i64, out: &mut [MaybeUninit<i32>]) {
        // The probability in steps of 2^-32: 0 is never drawn, 1 always.
        let limit = (self.0.a * 4_294_967_296.0) as u64;
        self.0.stream.each(first, out, |words| {
            words.map(|word| i32::from(u64::from(word) < limit))
        });
    }
}

/// An integer in [from, from + range), or any if the range is 0.
#[derive(Clone, Copy)]
struct RandomInt {
    from: i64,
    range: u64,
    stream: Stream,
}

impl Generator for RandomInt {
    type Out = i64;
    fn new(params: [u64; 4]) -> Self {
        let stream = Stream {
            seed: params[2],
            offset: params[3],
        };
        Self {
            from: params[0] as i64,
            range: params[1],
            stream,
        }
    }
    #[inline(always)]
    fn fill<I: Isa>(self, first: i64, out: &mut [MaybeUninit<i64>]) {
        self.stream.each(first, out, |[a, b, c, d]| {
            [
                u64::from(a) << 32 | u64::from(b),
                u64::from(c) << 32 | u64::from(d),
            ]
            .map(|bits| {
                // The high half of a product: without a division, with a bias of at most 2^-64 of the range.
                let value = match self.range {
                    0 => bits,
                    range => ((u128::from(bits) * u128::from(range)) >> 64) as u64,
                };
                self.from.wrapping_add_unsigned(value)
            })
        });
    }
}

/// Two reals, then seed and offset.
fn real_params(scalars: &[Scalar], names: &'static str) -> Result<[u64; 4]> {
    let [a, b, seed, offset] = scalars else {
        return invalid(names);
    };
    Ok([
        a.to_f64().to_bits(),
        b.to_f64().to_bits(),
        seed.to_i64() as u64,
        offset.to_i64() as u64,
    ])
}

fn plan_uniform(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let params = real_params(
        call.scalars,
        "scalars (from, to, seed, offset) are expected",
    )?;
    let kernel: KernelFn = match output_class(call)?.1 {
        DType::F32 => kernel::<Uniform<f32, 24>>,
        DType::F16 => kernel::<Uniform<f32, 11>>,
        DType::BF16 => kernel::<Uniform<f32, 8>>,
        DType::F64 => kernel::<Uniform<f64, 53>>,
        other => return unsupported(format!("not defined for {other}")),
    };
    plan_generator(call, plan, kernel, params, 2000)
}

fn plan_normal(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let params = real_params(
        call.scalars,
        "scalars (mean, std, seed, offset) are expected",
    )?;
    let kernel: KernelFn = match output_class(call)?.0 {
        Class::F32 => kernel::<Normal<f32>>,
        Class::F64 => kernel::<Normal<f64>>,
        _ => return unsupported("normal numbers are floating-point"),
    };
    plan_generator(call, plan, kernel, params, 6000)
}

fn plan_bernoulli(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let [p, seed, offset] = call.scalars else {
        return invalid("scalars (p, seed, offset) are expected");
    };
    if !(0.0..=1.0).contains(&p.to_f64()) {
        return invalid(format!("probability {} is not within 0..=1", p.to_f64()));
    }
    output_class(call)?;
    let params = [
        p.to_f64().to_bits(),
        0,
        seed.to_i64() as u64,
        offset.to_i64() as u64,
    ];
    plan_generator(call, plan, kernel::<Bernoulli>, params, 2000)
}

fn plan_random_int(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let [from, to, seed, offset] = call.scalars else {
        return invalid("scalars (from, to, seed, offset) are expected");
    };
    let (from, to) = (from.to_i64(), to.to_i64());
    output_class(call)?;
    // Equal bounds stand for all 2^64 integers.
    let range = (to as u64).wrapping_sub(from as u64);
    if from > to {
        return invalid(format!("from {from} is beyond to {to}"));
    }
    let params = [
        from as u64,
        range,
        seed.to_i64() as u64,
        offset.to_i64() as u64,
    ];
    plan_generator(call, plan, kernel::<RandomInt>, params, 4000)
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// Known answers of Random123 for `philox4x32 10`.
    #[test]
    fn philox_gives_the_published_answers() {
        let all = [u32::MAX; 4];
        assert_eq!(
            philox([0, 0], [0; 4]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 2], all),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0xa409_3822, 0x299f_31d0],
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
