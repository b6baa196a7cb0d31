"""Kernels of Triton that tests launch. They are in a file of their own since `triton.jit` reads source, also in a fresh process."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


def sum_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x + y by `add`."""
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out


@triton.jit
def numbers(out, a, b, c, flag):
    """Each number that a kernel is given, in its own type."""
    tl.store(out, a.to(tl.float64))
    tl.store(out + 1, b.to(tl.float64))
    tl.store(out + 2, c.to(tl.float64))
    tl.store(out + 3, flag.to(tl.float64))


@triton.jit
def places(out, BLOCK: tl.constexpr):
    """The number of each program, in three dimensions."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out + at, x + 100 * y + 10000 * z)


@triton.jit
def copy_pair(pair, n, BLOCK: tl.constexpr):
    """From the first tensor of a tuple to the second one."""
    i = tl.arange(0, BLOCK)
    tl.store(pair[1] + i, tl.load(pair[0] + i, mask=i < n), mask=i < n)


@triton.jit
def copy_described(source, out, n, BLOCK: tl.constexpr):
    """A tile of a descriptor that the host has made."""
    tile = source.load([0, 0])
    i = tl.arange(0, BLOCK)
    tl.store(out + i[:, None] * BLOCK + i[None, :], tile)


@triton.jit
def with_bias(x, bias, out, n, BLOCK: tl.constexpr):
    """A kernel whose bias may be None."""
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    if bias is not None:
        value += tl.load(bias + i, mask=i < n)
    tl.store(out + i, value, mask=i < n)


@triton.jit
def seen_again(x, y, out, n, BLOCK: tl.constexpr):
    """Reads x again behind a store to y."""
    i = tl.arange(0, BLOCK)
    mask = i < n
    first = tl.load(x + i, mask=mask)
    tl.store(y + i, first + 1, mask=mask)
    tl.store(out + i, tl.load(x + i, mask=mask), mask=mask)


@triton.jit
def gathered(x, places, out, n, BLOCK: tl.constexpr):
    """out = x[places], and x[0] = x[places[0]]."""
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + tl.load(places + i, i < n), i < n), i < n)
    tl.store(x, tl.load(x + tl.load(places)))


@triton.jit
def scattered(x, places, n, BLOCK: tl.constexpr):
    """x[places] += 1."""
    i = tl.arange(0, BLOCK)
    tl.atomic_add(x + tl.load(places + i, i < n), 1, i < n)


@triton.jit
def checked(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.device_assert(tl.load(x + i, mask=i < n, other=0.0) >= 0, "a number is negative")


FACTOR: tl.constexpr = tl.constexpr(3)


@triton.jit
def times_global(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * FACTOR, mask=i < n)


def tuned(configs: list[triton.Config], **options: object) -> triton.runtime.autotuner.Autotuner:
    """A kernel that counts its launches, over several configurations."""
    return triton.autotune(configs=configs, key=["n"], **options)(count_launches)


@triton.jit
def count_launches(x, count, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)
    if tl.program_id(0) == 0:
        tl.atomic_add(count, 1)


@triton.jit
def may_fail(x, count, n, MODE: tl.constexpr, WORK: tl.constexpr, BLOCK: tl.constexpr):
    """Adds 1 to x, and fails as it is asked to."""
    i = tl.arange(0, BLOCK)
    if MODE == "crash":
        tl.store(x + i + (1 << 40), 1.0)
    if MODE == "hang":
        while tl.atomic_add(count, 0) < 1000000:
            pass
    if MODE == "write":
        # To every element of the tensor's segment that others may have.
        tl.store(x + i + 128, 7.0)
    for _ in range(WORK):
        tl.atomic_add(count, 1)
    tl.device_assert(MODE != "assert" and MODE != "write", "it is asked to fail")
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def counted_once(x, count, n, BLOCK: tl.constexpr):
    """Leads out of x unless `count` is 0 before each launch."""
    at = tl.atomic_add(count, 1).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(x + i + (at << 40), tl.load(x + i, mask=i < n) + 1, mask=i < n)


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def tuned_add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def told(out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, EVEN + 0 * i, mask=i < n)


@triton.jit
def printed(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    numbers = tl.load(x + i)
    tl.device_print("100% of \"x\"", numbers)
    tl.device_print("two", tl.program_id(0), i.to(tl.int64)[:, None] - tl.arange(0, 2)[None, :] * 2)
    tl.device_print("hex", (i - 1).to(tl.int16), numbers, hex=True)
    tl.device_print("bits", numbers > 1, (i - 1).to(tl.uint8), numbers.to(tl.bfloat16), numbers.to(tl.float8e5))
    tl.device_print("here")
