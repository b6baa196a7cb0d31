"""Arithmetic, functions and conversions of kernels of Triton, against torch on the CPU.

A kernel has many operations, because each one is compiled by the system's C compiler. Each writes a row of `out`.
"""

from __future__ import annotations

import pytest
import torch
from support import same, tested_triton

triton = tested_triton()
tl = triton.language

from triton.language.extra import libdevice  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiles")


@triton.jit
def floats(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a + b)
    tl.store(out + N + i, a - b)
    tl.store(out + 2 * N + i, a * b)
    tl.store(out + 3 * N + i, -a)
    tl.store(out + 4 * N + i, tl.abs(a))
    tl.store(out + 5 * N + i, tl.maximum(a, b))
    tl.store(out + 6 * N + i, tl.minimum(a, b))
    tl.store(out + 7 * N + i, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 8 * N + i, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 9 * N + i, tl.where(a > b, a, b))
    tl.store(out + 10 * N + i, (a != b).to(a.dtype))
    tl.store(out + 11 * N + i, (a <= b).to(a.dtype))
    tl.store(out + 12 * N + i, tl.clamp(a, -0.5, 0.75))
    tl.store(out + 13 * N + i, (a + b) * b - a)


def of_floats(x, y):
    none = torch.isnan(x) & torch.isnan(y)
    low, high = torch.tensor(-0.5, dtype=x.dtype), torch.tensor(0.75, dtype=x.dtype)
    return torch.stack(
        [
            x + y,
            x - y,
            x * y,
            -x,
            x.abs(),
            torch.where(none, x, torch.fmax(x, y)),
            torch.where(none, x, torch.fmin(x, y)),
            torch.maximum(x, y),
            torch.minimum(x, y),
            torch.where(x > y, x, y),
            (x != y).to(x.dtype),
            (x <= y).to(x.dtype),
            torch.fmin(torch.fmax(x, low), high),
            (x + y) * y - x,
        ]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_arithmetic_is_rounded_after_each_operation_and_nan_wins_where_it_must(device, dtype):
    x, y = torch.randn(256, dtype=torch.float64).to(dtype), torch.randn(256, dtype=torch.float64).to(dtype)
    x[:4] = torch.tensor([float("nan"), float("nan"), 1.0, float("inf")])
    y[:4] = torch.tensor([float("nan"), 2.0, float("nan"), float("-inf")])
    out = torch.empty(14, 256, dtype=dtype, device=device)
    floats[(1,)](x.to(device), y.to(device), out, N=256)
    same(out, of_floats(x, y))


@triton.jit
def functions(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    p = tl.abs(a) + 0.125
    tl.store(out + i, tl.exp(a))
    tl.store(out + N + i, tl.exp2(a))
    tl.store(out + 2 * N + i, tl.log(p))
    tl.store(out + 3 * N + i, tl.log2(p))
    tl.store(out + 4 * N + i, tl.sqrt(p))
    tl.store(out + 5 * N + i, tl.rsqrt(p))
    tl.store(out + 6 * N + i, tl.sin(a))
    tl.store(out + 7 * N + i, tl.cos(a))
    tl.store(out + 8 * N + i, tl.erf(a))
    tl.store(out + 9 * N + i, tl.floor(a))
    tl.store(out + 10 * N + i, tl.ceil(a))
    tl.store(out + 11 * N + i, tl.sigmoid(a))
    tl.store(out + 12 * N + i, a / p)
    tl.store(out + 13 * N + i, tl.fma(a, p, a))
    if a.dtype == tl.float32:
        tl.store(out + 14 * N + i, tl.sqrt_rn(p))
        tl.store(out + 15 * N + i, tl.div_rn(a, p))
    else:
        tl.store(out + 14 * N + i, tl.sqrt(p))
        tl.store(out + 15 * N + i, a / p)
    tl.store(out + 16 * N + i, libdevice.atan2(a, p))
    tl.store(out + 17 * N + i, libdevice.tanh(a))
    tl.store(out + 18 * N + i, libdevice.rint(a))
    tl.store(out + 19 * N + i, libdevice.pow(p, a))
    tl.store(out + 20 * N + i, libdevice.isnan(a).to(a.dtype))
    tl.store(out + 21 * N + i, libdevice.asinh(a))
    tl.store(out + 22 * N + i, a % 2.5)


def of_functions(x):
    p = x.abs() + 0.125
    return torch.stack(
        [
            *(x.exp(), x.exp2(), p.log(), p.log2(), p.sqrt(), p.rsqrt(), x.sin(), x.cos(), torch.erf(x), x.floor(), x.ceil()),
            *(x.sigmoid(), x / p, x * p + x, p.sqrt(), x / p, torch.atan2(x, p), x.tanh(), x.round(), p.pow(x)),
            *(torch.isnan(x).to(x.dtype), x.asinh(), torch.fmod(x, 2.5)),
        ]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions_are_those_of_the_cpu(device, dtype):
    x = torch.randn(256, dtype=dtype) * 4
    x[:3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    out = torch.empty(23, 256, dtype=dtype, device=device)
    functions[(1,)](x.to(device), out, N=256)
    same(out, of_functions(x), rtol=3e-6, atol=1e-6)


@triton.jit
def integers(x, y, z, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c = tl.load(x + i), tl.load(y + i), tl.load(z + i)
    tl.store(out + i, a + b)
    tl.store(out + N + i, a - b)
    tl.store(out + 2 * N + i, a * b)
    tl.store(out + 3 * N + i, a & b)
    tl.store(out + 4 * N + i, a | b)
    tl.store(out + 5 * N + i, a ^ b)
    tl.store(out + 6 * N + i, a // c)
    tl.store(out + 7 * N + i, a % c)
    tl.store(out + 8 * N + i, a << (c & 7))
    tl.store(out + 9 * N + i, a >> (c & 7))
    tl.store(out + 10 * N + i, tl.minimum(a, b))
    tl.store(out + 11 * N + i, tl.maximum(a, b))
    tl.store(out + 12 * N + i, (a < b).to(a.dtype))
    tl.store(out + 13 * N + i, ~a)
    tl.store(out + 14 * N + i, tl.abs(a))
    tl.store(out + 15 * N + i, a.to(tl.int64).to(a.dtype) + a.to(tl.int8).to(a.dtype))
    tl.store(out + 16 * N + i, a.to(tl.float32).to(a.dtype) if a.dtype.primitive_bitwidth < 32 else a)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8], ids=str)
def test_integers_wrap_and_are_divided_as_in_c(device, dtype):
    info, generator = torch.iinfo(dtype), torch.Generator().manual_seed(1)
    x, y = (torch.randint(info.min, info.max, (256,), generator=generator, dtype=dtype) for _ in range(2))
    z = torch.randint(1, 12, (256,), generator=generator).to(dtype)
    z = torch.where(torch.arange(256) % 3 == 0, -z, z) if dtype.is_signed else z
    out = torch.empty(17, 256, dtype=dtype, device=device)
    integers[(1,)](x.to(device), y.to(device), z.to(device), out, N=256)
    quotient = torch.div(x, z, rounding_mode="trunc")
    shift = z & 7
    expected = [
        *(x + y, x - y, x * y, x & y, x | y, x ^ y, quotient, x - quotient * z, x << shift, x >> shift),
        *(torch.minimum(x, y), torch.maximum(x, y), (x < y).to(dtype), ~x, x.abs(), x + x.to(torch.int8).to(dtype), x),
    ]
    same(out, torch.stack(expected))


@triton.jit
def wide_products(x, y, out, high, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    # The product is one of 32 bits, whatever becomes of it.
    tl.store(out + i, (a * b + i).to(tl.int64))
    tl.store(high + i, tl.umulhi(a, b))
    s = tl.load(x)
    tl.store(out + N, (s * s).to(tl.int64))


def test_a_product_of_32_bits_wraps_before_it_is_widened(device):
    x = torch.randint(-(2**31), 2**31 - 1, (128,), dtype=torch.int32)
    y = torch.randint(-(2**31), 2**31 - 1, (128,), dtype=torch.int32)
    out, high = torch.empty(129, dtype=torch.int64, device=device), torch.empty(128, dtype=torch.int32, device=device)
    wide_products[(1,)](x.to(device), y.to(device), out, high, N=128)
    products = x * y + torch.arange(128, dtype=torch.int32)
    same(out, torch.cat([products.long(), (x[:1] * x[:1]).long()]))
    unsigned = [(int(a) & 0xFFFFFFFF) * (int(b) & 0xFFFFFFFF) >> 32 for a, b in zip(x, y, strict=True)]
    same(high, torch.tensor(unsigned, dtype=torch.int64).to(torch.int32))


@triton.jit
def conversions(x, out, N: tl.constexpr, OF: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, a.to(OF))


@pytest.mark.parametrize("source", [torch.float32, torch.float64], ids=str)
def test_conversions_round_once(device, source):
    # Halfway between two numbers of f16 and bf16, and a little beside it, which a stop in f32 loses.
    x = torch.tensor([1.0, 1.5, 1 + 2.0**-11, 1 + 2.0**-8, -3.25, 70000.0, 1e-8, float("nan")], dtype=source)
    x = torch.cat([x, x * (1 + 2.0**-40), torch.randn(48, dtype=source) * 100])
    for of, dtype in ((tl.float16, torch.float16), (tl.bfloat16, torch.bfloat16), (tl.float32, torch.float32)):
        out = torch.empty(64, dtype=dtype, device=device)
        conversions[(1,)](x.to(device), out, N=64, OF=of)
        same(out, nearest(x, dtype))


def nearest(x, dtype):
    """x rounded once: torch makes an f32 of an f64 first."""
    near = x.to(dtype)
    if dtype is torch.float32:
        return near
    best, least = near.clone(), (near.double() - x.double()).abs()
    for step in (-1, 1):
        other = (near.view(torch.int16) + step).view(dtype)
        distance = (other.double() - x.double()).abs()
        best, least = torch.where((distance < least) & near.isfinite(), other, best), torch.minimum(distance, least)
    return best


@triton.jit
def draws(out, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c, d = tl.randint4x(seed, i)
    tl.store(out + i, a)
    tl.store(out + N + i, d)
    tl.store(out + 2 * N + i, tl.rand(seed, i) < 1)


def philox(seed, counter):
    """The first and the last word of Philox 4x32-10."""
    low = 0xFFFFFFFF
    c, k = [counter, 0, 0, 0], [seed & low, seed >> 32]
    for _ in range(10):
        x, y = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(y >> 32) ^ c[1] ^ k[0], y & low, (x >> 32) ^ c[3] ^ k[1], x & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return c[0], c[3]


def test_random_numbers_are_philox(device):
    out = torch.empty(3, 16, dtype=torch.int32, device=device)
    draws[(1,)](out, 5 << 32 | 77, N=16)
    words = torch.tensor([philox(5 << 32 | 77, one) for one in range(16)], dtype=torch.int64).to(torch.int32).T
    same(out, torch.cat([words, torch.ones(1, 16, dtype=torch.int32)]))


@triton.jit
def cut(x, out, other, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(out + i, v.to(tl.float16, fp_downcast_rounding="rtz"))
    tl.store(other + i, v.to(tl.bfloat16, fp_downcast_rounding="rtz"))
    tl.store(out + N + i, v.to(tl.float16).to(tl.int16, bitcast=True).to(tl.float16, bitcast=True))


def test_numbers_are_cut_where_a_cast_asks_for_it(device):
    x = torch.randn(32)
    out, other = torch.empty(2, 32, dtype=torch.float16, device=device), torch.empty(32, dtype=torch.bfloat16, device=device)
    cut[(1,)](x.to(device), out, other, N=32)
    near = x.half()
    toward_zero = (near.view(torch.int16) - (near.float().abs() > x.abs()).to(torch.int16)).view(torch.float16)
    same(out, torch.stack([toward_zero, near]))
    same(other, (x.view(torch.int32) & ~0xFFFF).view(torch.float32).to(torch.bfloat16))


@triton.jit
def small_floats(x, out, back, N: tl.constexpr, OF: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i).to(OF)
    tl.store(out + i, v)
    tl.store(back + i, tl.abs(v).to(tl.float32))


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e4m3fn], ids=str)
def test_numbers_of_8_bits(device, dtype):
    x = torch.cat([torch.randn(60) * 10, torch.tensor([0.0, float("nan"), -float("nan"), 1e-9])])
    out, back = torch.empty(64, dtype=dtype, device=device), torch.empty(64, device=device)
    small_floats[(1,)](x.to(device), out, back, N=64, OF={torch.float8_e5m2: tl.float8e5, torch.float8_e4m3fn: tl.float8e4nv}[dtype])
    same(out.float(), x.to(dtype).float())
    same(back, x.to(dtype).float().abs())
