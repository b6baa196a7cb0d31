"""The results of Triton's kernels on the device, operation by operation, against torch on the CPU.

A kernel has many operations, because each one is compiled by the system's C compiler. Each writes a row of `out`.
"""

from __future__ import annotations

import pytest
import torch
from support import same, sample, tested_triton

triton = tested_triton()
tl = triton.language

from torch_outrigger.inductor import program  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiles")


@triton.jit
def folds(x, out, where, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr, SIZE: tl.constexpr):
    a, b, c = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    v = tl.load(x + (a[:, None, None] * B + b[None, :, None]) * C + c[None, None, :])
    i = tl.arange(0, SIZE)
    tl.store(out + i, tl.reshape(tl.sum(v, AXIS), SIZE))
    tl.store(out + SIZE + i, tl.reshape(tl.max(v, AXIS), SIZE))
    tl.store(out + 2 * SIZE + i, tl.reshape(tl.min(v, AXIS), SIZE))
    tl.store(out + 3 * SIZE + i, tl.reshape(tl.sum(v * 2 + 1, AXIS), SIZE))
    tl.store(where + i, tl.reshape(tl.argmax(v, AXIS), SIZE))
    tl.store(where + SIZE + i, tl.reshape(tl.argmin(v, AXIS), SIZE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((4, 8, 32), 0), ((4, 2, 16), 1), ((2, 4, 1024), 2), ((8, 64, 1), 1), ((1, 1, 4), 2)], ids=str)
def test_folds_along_each_axis(device, dtype, shape, axis):
    x = torch.randint(-50, 50, shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    size = x.numel() // shape[axis]
    out = torch.empty(4, size, dtype=dtype, device=device)
    where = torch.empty(2, size, dtype=torch.int32, device=device)
    folds[(1,)](x.to(device), out, where, *shape, AXIS=axis, SIZE=size)
    rows = [x.sum(axis), x.amax(axis), x.amin(axis), (x * 2 + 1).sum(axis)]
    same(out, torch.stack([one.reshape(-1).to(dtype) for one in rows]))
    # The first of equal ones counts.
    found = [(x == x.amax(axis, keepdim=True)), (x == x.amin(axis, keepdim=True))]
    same(where, torch.stack([one.int().argmax(axis).reshape(-1) for one in found]).int())


@triton.jit
def sum_and_count(a, n, b, m):
    return a + b, n + m


@triton.jit
def larger(a, b):
    if a > b:
        r = a
    else:
        r = b
    return r


@triton.jit
def linear(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def combined(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    v, w = tl.load(x + i), tl.load(y + i)
    total, count = tl.reduce((v, tl.where(v == v, 1, 0)), 0, sum_and_count)
    tl.store(out + i, tl.where(i == 0, total, count.to(tl.float32)))
    tl.store(out + N + i, tl.zeros([N], tl.float32) + tl.reduce(v, 0, larger))
    tl.store(out + 2 * N + i, tl.associative_scan(v, 0, larger))
    tl.store(out + 3 * N + i, tl.associative_scan(v, 0, larger, reverse=True))
    tl.store(out + 4 * N + i, tl.cumsum(v, 0))
    tl.store(out + 5 * N + i, tl.cumsum(v, 0, reverse=True))
    tl.store(out + 6 * N + i, tl.cumprod(w, 0))
    _, r = tl.associative_scan((w, v), 0, linear)
    tl.store(out + 7 * N + i, r)
    m = tl.reshape(v, (N // 8, 8))
    tl.store(out + 8 * N + i, tl.reshape(tl.cumsum(m, 0), N))
    tl.store(out + 9 * N + i, tl.reshape(tl.cumsum(m, 1), N))
    tl.store(out + 10 * N + i, tl.zeros([N], tl.float32) + tl.max(tl.where(i == 3, float("nan"), v), 0))


def test_folds_and_scans_with_functions_of_the_program(device):
    x, y = torch.randint(-8, 9, (64,)).float(), torch.rand(64) * 0.1 + 0.95
    out = torch.empty(11, 64, device=device)
    combined[(1,)](x.to(device), y.to(device), out, N=64)
    linear_rows, state = [], torch.tensor(0.0)
    for a, b in zip(y, x, strict=True):
        state = state * a + b
        linear_rows.append(state)
    linear_rows[0] = x[0]
    expected = torch.stack(
        [
            torch.where(torch.arange(64) == 0, x.sum(), torch.tensor(64.0)),
            x.max().expand(64),
            x.cummax(0).values,
            x.flip(0).cummax(0).values.flip(0),
            x.cumsum(0),
            x.flip(0).cumsum(0).flip(0),
            y.cumprod(0),
            torch.stack(linear_rows),
            x.reshape(8, 8).cumsum(0).reshape(-1),
            x.reshape(8, 8).cumsum(1).reshape(-1),
            torch.cat([x[:3], x[4:]]).max().expand(64),
        ]
    )
    same(out, expected, rtol=1e-5, atol=1e-5)


@triton.jit
def layouts(x, y, places, out, bins, M: tl.constexpr, N: tl.constexpr):
    r, c, i = tl.arange(0, M), tl.arange(0, N), tl.arange(0, M * N)
    at = r[:, None] * N + c[None, :]
    v, w, p = tl.load(x + at), tl.load(y + at), tl.load(places + at)
    S: tl.constexpr = M * N
    tl.store(out + i, tl.reshape(tl.trans(v), S))
    tl.store(out + S + i, tl.reshape(v + tl.reshape(tl.trans(w), (M, N)), S))
    j = tl.join(v, w)
    tl.store(out + 2 * S + tl.arange(0, 2 * S), tl.reshape(j, 2 * S))
    a, b = tl.split(tl.reshape(v, (M, N // 2, 2)))
    tl.store(out + 4 * S + tl.arange(0, S // 2), tl.reshape(a - b, S // 2))
    tl.store(out + 4 * S + S // 2 + tl.arange(0, S // 2), tl.reshape(a * b, S // 2))
    tl.store(out + 5 * S + i, tl.reshape(tl.gather(v, p % N, 1), S))
    tl.store(out + 6 * S + i, tl.reshape(tl.gather(v, p % M, 0), S))
    tl.store(out + 7 * S + i, tl.reshape(tl.sort(v), S))
    tl.store(out + 8 * S + i, tl.reshape(tl.sort(v, descending=True), S))
    tl.store(out + 9 * S + i, tl.reshape(tl.flip(v, 1), S))
    tl.store(out + 10 * S + tl.arange(0, 2 * S), tl.cat(tl.reshape(v, S), tl.reshape(w, S)))
    tl.store(out + 12 * S + i, tl.reshape(tl.permute(tl.reshape(v, (2, M // 2, N)), (2, 0, 1)), S))
    tl.store(out + 13 * S + tl.arange(0, 2 * S), tl.reshape(tl.interleave(v, w), 2 * S))
    tl.store(out + 15 * S + tl.arange(0, S // 4), tl.reshape(tl.topk(v, N // 4), S // 4))
    tl.store(bins + tl.arange(0, 16), tl.histogram(tl.reshape(p, S), 16))
    tl.store(bins + 16 + tl.arange(0, 16), tl.histogram(tl.reshape(p, S), 16, mask=i % 3 == 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16], ids=str)
def test_layouts_gathers_sorts_and_histograms(device, dtype):
    m, n = 8, 16
    x, y = (torch.randint(-99, 99, (m, n)).to(dtype) for _ in range(2))
    places = torch.randint(0, 16, (m, n), dtype=torch.int32)
    out, bins = torch.zeros(16, m * n, dtype=dtype, device=device), torch.empty(2, 16, dtype=torch.int32, device=device)
    layouts[(1,)](x.to(device), y.to(device), places.to(device), out, bins, M=m, N=n)
    a, b = x.reshape(m, n // 2, 2).unbind(-1)
    rows = [
        *(x.T, x + y.T.reshape(m, n), torch.stack([x, y], -1), a - b, a * b),
        *(x.gather(1, places.long() % n), x.gather(0, places.long() % m)),
        *(x.sort(1).values, x.sort(1, descending=True).values, x.flip(1), x, y, x.reshape(2, m // 2, n).permute(2, 0, 1)),
        *(torch.stack([x, y], -1), x.topk(n // 4, 1).values, torch.zeros(m * n - m * n // 4, dtype=dtype)),
    ]
    same(out, torch.cat([one.reshape(-1) for one in rows]).reshape(16, -1))
    flat = places.reshape(-1)
    same(bins, torch.stack([flat.bincount(minlength=16), flat[::3].bincount(minlength=16)]).int())


@triton.jit
def product(x, y, z, out, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    b, m, n, k = tl.arange(0, B), tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    v = tl.load(x + b[:, None, None] * (M * K) + m[None, :, None] * K + k[None, None, :])
    w = tl.load(y + b[:, None, None] * (K * N) + k[None, :, None] * N + n[None, None, :])
    at = b[:, None, None] * (M * N) + m[None, :, None] * N + n[None, None, :]
    first = tl.load(z + at)
    if B == 1:
        s = tl.dot(tl.reshape(v, (M, K)), tl.reshape(w, (K, N)), tl.reshape(first, (M, N)), out_dtype=first.dtype)
        tl.store(out + at, tl.reshape(s, (1, M, N)))
    else:
        tl.store(out + at, tl.dot(v, w, first, out_dtype=first.dtype))


@pytest.mark.parametrize(
    ("dtype", "sums"),
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
        (torch.int8, torch.int32),
        (torch.float8_e5m2, torch.float32),
        (torch.float8_e4m3fn, torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(1, 8, 32, 16), (2, 2, 4, 8)], ids=str)
def test_products(device, dtype, sums, shape):
    b, m, n, k = shape
    x, y = torch.randint(-4, 5, (b, m, k)).float().to(dtype), torch.randint(-4, 5, (b, k, n)).float().to(dtype)
    z, out = torch.randint(-4, 5, (b, m, n)).to(sums), torch.empty(b, m, n, dtype=sums, device=device)
    product[(1,)](x.to(device), y.to(device), z.to(device), out, B=b, M=m, N=n, K=k)
    same(out, (x.double() @ y.double() + z.double()).to(sums))


@triton.jit
def wrapped(x, out, m, n, M: tl.constexpr, N: tl.constexpr, MODULO: tl.constexpr):
    """A tile with rows and columns behind the end in the place of none: those of the beginning, or the first one."""
    i, j = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N)
    to, mask = out + i[:, None] * n + j[None, :], (i[:, None] < m) & (j[None, :] < n)
    if MODULO:
        i, j = i % m, j % n
    else:
        i, j = tl.where(i < m, i, 0), tl.where(j < n, j, 0)
    tile = tl.load(x + i[:, None] * n + j[None, :])
    tl.store(to, tile + tl.sum(tile), mask=mask)
    # All elements of the tile are read again, where none may stand behind the end.
    tl.store(x + i[:, None] * n + j[None, :], tile)


@pytest.mark.parametrize("modulo", [True, False])
@pytest.mark.parametrize("shape", [(16, 32), (13, 21), (3, 5)], ids=str)
def test_tiles_without_masks_end_where_the_matrix_does(device, modulo, shape):
    (m, n), rows, columns = shape, 8, 16
    x, out = torch.randint(-9, 10, shape).float(), torch.empty(shape, device=device)
    # Numbers behind the matrix must not be read.
    held = torch.cat([x.reshape(-1), torch.full((rows * columns,), 1e6)]).to(device)
    wrapped[(-(-m // rows), -(-n // columns))](held, out, m, n, M=rows, N=columns, MODULO=modulo)
    expected = torch.empty(shape)
    for top in range(0, m, rows):
        for left in range(0, n, columns):
            i, j = torch.arange(top, top + rows), torch.arange(left, left + columns)
            i, j = (i % m, j % n) if modulo else (i * (i < m), j * (j < n))
            tile = x[i][:, j]
            expected[top : top + rows, left : left + columns] = (tile + tile.sum())[: m - top, : n - left]
    same(out, expected)
    same(held[: m * n].reshape(shape), x)


@triton.jit(noinline=True)
def apart(a, b):
    if b > 3:
        return a - 1
    return a * b


@triton.jit
def control(x, numbers, out, n, stop, N: tl.constexpr):
    i, j = tl.arange(0, N), tl.arange(0, 4)
    if tl.load(numbers) == stop:
        tl.store(out + i, 7.0)
        return
    v = tl.load(x + i)
    # Two values that change places in each round.
    a, b = v, v * 2
    for _ in range(n):
        a, b = b, a + 1
    tl.store(out + i, a)
    tl.store(out + N + i, b)
    # A carried tensor is read elsewhere than where it is written.
    m = tl.reshape(v, (4, N // 4))
    s = tl.load(x + j[:, None] * 4 + j[None, :])
    for _ in range(n):
        s = tl.trans(s) + 1
    tl.store(out + 2 * N + (j[:, None] * 4 + j[None, :]), s)
    k, steps = n, 0
    while k > 1:
        k = apart(k, 4) if k % 2 == 0 else k - 1
        steps += 1
    if steps > 2:
        t = tl.max(m, 1)
        u = v + steps
    else:
        t = tl.min(m, 1)
        u = v - steps
    tl.store(out + 3 * N + i, u)
    tl.store(out + 4 * N + j, t)
    # A position that moves, and one that was, at once.
    at, before = i, i
    total = tl.zeros([N], tl.float32)
    for q in range(0, n, 2):
        total += tl.load(x + at % N) * (before + q).to(tl.float32)
        before = at + 1
        at += 3
    tl.store(out + 5 * N + i, total)
    count = 0.0
    for outer in range(n):
        for inner in range(outer, n):
            count += outer * inner
    tl.store(out + 6 * N, count)
    w = s
    for _ in range(2):
        w = tl.dot(w, s, w)
    tl.store(out + 7 * N + (j[:, None] * 4 + j[None, :]), w)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_loops_branches_and_calls(device, n):
    size = 32
    x, out = torch.randint(-9, 9, (size,)).float(), torch.zeros(8, size, device=device)
    numbers = torch.tensor([3], dtype=torch.int32, device=device)
    control[(1,)](x.to(device), numbers, out, n, 3, N=size)
    same(out, torch.cat([torch.full((size,), 7.0), torch.zeros(7 * size)]).reshape(8, size))
    out = torch.zeros(8, size, device=device)
    control[(1,)](x.to(device), numbers, out, n, 4, N=size)
    expected = torch.zeros(8, size)
    a, b = x, x * 2
    s = x[:16].reshape(4, 4)
    for _ in range(n):
        a, b = b, a + 1
        s = s.T + 1
    k, steps = n, 0
    while k > 1:
        k, steps = k - 1, steps + 1
    rows = x.reshape(4, size // 4)
    at = before = torch.arange(size)
    total = torch.zeros(size)
    for q in range(0, n, 2):
        total += x[at % size] * (before + q).float()
        before, at = at + 1, at + 3
    w = s
    for _ in range(2):
        w = w @ s + w
    expected[0], expected[1], expected[2, :16], expected[5] = a, b, s.reshape(-1), total
    expected[3], expected[4, :4] = (x + steps, rows.amax(1)) if steps > 2 else (x - steps, rows.amin(1))
    expected[6, 0] = float(sum(outer * inner for outer in range(n) for inner in range(outer, n)))
    expected[7, :16] = w.reshape(-1)
    same(out, expected)


@triton.jit
def lives(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    m = v * 3
    c, d = v + 1, v - 1
    t = tl.zeros([N], tl.float32)
    for k in range(n):
        # An array from before the loop is read first, and then many of the same size are made.
        g = tl.gather(m, i ^ 1, 0)
        h = tl.gather(g + k, i ^ 2, 0)
        t += tl.gather(h * 2, i ^ 4, 0)
        c, d = d, c
    tl.store(out + i, t)
    tl.store(out + N + i, c)
    tl.store(out + 2 * N + i, d)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_memory_of_arrays_is_used_again_only_when_nobody_reads_it(device, n):
    x, out = torch.randn(32), torch.empty(3, 32, device=device)
    lives[(1,)](x.to(device), out, n, N=32)
    i, t, c, d = torch.arange(32), torch.zeros(32), x + 1, x - 1
    for k in range(n):
        g = (x * 3)[i ^ 1]
        h = (g + k)[i ^ 2]
        t += (h * 2)[i ^ 4]
        c, d = d, c
    same(out, torch.stack([t, c, d]))


@triton.jit
def ragged(x, out, rows, columns, stride, M: tl.constexpr, N: tl.constexpr):
    r = tl.program_id(0) * M + tl.arange(0, M)
    c = tl.program_id(1) * N + tl.arange(0, N)
    mask = (r[:, None] < rows) & (c[None, :] < columns) & (c[None, :] >= 1)
    v = tl.load(x + r[:, None] * stride + c[None, :], mask=mask, other=-1.0)
    tl.store(out + r[:, None] * stride + c[None, :], v + tl.num_programs(1), mask=(r[:, None] < rows) & (c[None, :] < columns))


@pytest.mark.parametrize(("rows", "columns"), [(8, 64), (5, 33), (17, 1), (1, 100), (16, 32)])
def test_masks_of_ragged_tiles(device, rows, columns):
    x, out = torch.randn(rows, columns), torch.zeros(rows, columns, device=device)
    grid = (triton.cdiv(rows, 8), triton.cdiv(columns, 32))
    ragged[grid](x.to(device), out, rows, columns, columns, M=8, N=32)
    expected = x.clone()
    expected[:, 0] = -1
    same(out, expected + grid[1])


@triton.jit
def shifted(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(out + i, v + 1)
    w = tl.load(x + i)
    tl.store(out + i, w * 2)


def test_arguments_that_overlap(device):
    """A load behind a store of another argument reads what was stored, where the launch says that they overlap."""
    whole = torch.arange(65.0)
    memory = whole.to(device)
    shifted[(1,)](memory[:64], memory[1:], N=64, overlap=True)
    expected = whole.clone()
    expected[1:] = whole[:64] + 1
    expected[1:] = expected[:64].clone() * 2
    same(memory, expected)


@triton.jit
def atomics(x, places, sums, small, flags, out, N: tl.constexpr):
    i = tl.arange(0, N)
    v, p = tl.load(x + i), tl.load(places + i)
    tl.atomic_add(sums + p, v, mask=i % 2 == 0)
    tl.atomic_add(small + p, v.to(small.dtype.element_ty))
    old = tl.atomic_max(flags + p, i)
    tl.store(out + i, old >= -1)
    tl.atomic_min(flags + 8 + p, i)
    tl.atomic_or(flags + 16 + p, 1 << (i % 5))
    tl.atomic_and(flags + 24 + p, i | 7)
    tl.atomic_xor(flags + 32 + p, i)
    before = tl.atomic_add(flags + 40, 5, sem="relaxed")
    tl.store(out + N, before)
    tl.store(out + N + 1, tl.atomic_xchg(flags + 41, 9))
    tl.store(out + N + 2, tl.atomic_cas(flags + 41, 9, 11))
    tl.store(out + N + 3, tl.atomic_cas(flags + 41, 9, 12))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_atomic_operations(device, dtype):
    n = 64
    x, places = torch.randint(0, 4, (n,)).float(), torch.randint(0, 8, (n,), dtype=torch.int32)
    sums, small = torch.zeros(8, device=device), torch.zeros(8, dtype=dtype, device=device)
    flags = torch.zeros(42, dtype=torch.int32)
    flags[:8], flags[8:16], flags[24:32], flags[41] = -1, 1000, -1, 3
    device_flags, out = flags.to(device), torch.empty(n + 4, dtype=torch.int32, device=device)
    atomics[(1,)](x.to(device), places.to(device), sums, small, device_flags, out, N=n)
    even = torch.arange(n) % 2 == 0
    same(sums, torch.zeros(8).index_add(0, places[even].long(), x[even]))
    same(small, torch.zeros(8).index_add(0, places.long(), x).to(dtype))
    for k in range(n):
        p = int(places[k])
        flags[p], flags[8 + p] = max(int(flags[p]), k), min(int(flags[8 + p]), k)
        flags[16 + p] |= 1 << (k % 5)
        flags[24 + p] &= k | 7
        flags[32 + p] ^= k
    flags[40], flags[41] = 5, 11
    same(device_flags, flags)
    same(out, torch.cat([torch.ones(n), torch.tensor([0, 3, 9, 11])]).int())


@triton.jit
def wide_atomics(flags, sums, small, out):
    i = tl.arange(0, 8)
    tl.atomic_add(flags + 0 * i, i.to(tl.int64) << 33)
    tl.atomic_xor(flags + 1 + 0 * i, (i * 0 + 5).to(tl.int64), mask=i < 3)
    tl.atomic_min(flags + 2, -(1 << 40))
    tl.atomic_add(sums + 0 * i, 0.5 + i)
    expected, number = tl.full([], 7, tl.int64), tl.full([], 1 << 50, tl.int64)
    tl.store(out, tl.atomic_cas(flags + 3, expected, number))
    tl.atomic_store(flags + 4 + i, i.to(tl.int64))
    tl.store(out + 1 + i, tl.atomic_load(flags + 4 + i) * 2)
    tl.atomic_store(small + i, i.to(tl.float16))
    tl.store(out + 9, tl.atomic_load(small + 3).to(tl.int64))


def test_atomic_operations_on_64_and_16_bits(device):
    if not program.has_atomic64(device.index):
        pytest.skip("the device has no atomics on 64 bits")
    flags, sums = torch.tensor([1, 0, 3, 7] + [9] * 8, device=device), torch.zeros(1, dtype=torch.float64, device=device)
    small, out = torch.zeros(8, dtype=torch.float16, device=device), torch.empty(10, dtype=torch.int64, device=device)
    wide_atomics[(1,)](flags, sums, small, out)
    same(flags, torch.tensor([1 + (28 << 33), 5, -(1 << 40), 1 << 50, *range(8)]))
    same(sums, torch.tensor([32.0], dtype=torch.float64))
    same(small, torch.arange(8, dtype=torch.float16))
    same(out, torch.tensor([7, *range(0, 16, 2), 3]))


@triton.jit
def leaves(x, out, n):
    if n > 5:
        return
    v = tl.load(x + tl.arange(0, 8))
    if n > 4:
        return
    if n > 1:
        if n > 2:
            tl.store(out, tl.sum(v))
            return
        v += 1
        if n == 2:
            tl.store(out, tl.max(v))
            return
    v *= 2
    if n == 1:
        tl.store(out, tl.min(v))
        return
    tl.store(out, -tl.sum(v))


def test_returns_from_branches(device):
    x, out = torch.arange(8.0) - 3, torch.zeros(1, device=device)
    for n, expected in ((6, 0.0), (5, 0.0), (0, -8.0), (1, -6.0), (2, 5.0), (3, 4.0)):
        leaves[(1,)](x.to(device), out, n)
        same(out, torch.tensor([expected]))


@triton.jit
def polls(flags, out):
    tl.store(out, tl.atomic_poll(flags, 4))
    tl.store(out + 1, tl.atomic_poll(flags + 1, 4, timeout_ns=1000))


def test_a_poll_waits_for_a_number_or_gives_up(device):
    out = torch.full((2,), 7, dtype=torch.int32, device=device)
    polls[(1,)](torch.tensor([4, 5], dtype=torch.int32, device=device), out)
    same(out, torch.tensor([1, 0], dtype=torch.int32))


@triton.jit
def pair(a, b):
    if a > 0:
        r = a + b
    else:
        r = a * b
    return r, a - b


@triton.jit
def packed(a0, a1, b0, b1):
    return a0 + b1, a1 - b0


@triton.jit
def mapped(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    p, q = tl.map_elementwise(pair, a, b)
    tl.store(out + i, p)
    tl.store(out + N + i, q)
    (r,) = tl.map_elementwise(packed, a, b, pack=2)
    tl.store(out + 2 * N + i, r)


def test_functions_of_elements_with_branches_and_packs(device):
    x, y = torch.randn(32), torch.randn(32)
    out = torch.empty(3, 32, device=device)
    mapped[(1,)](x.to(device), y.to(device), out, N=32)
    pairs = torch.stack([x[::2] + y[1::2], x[1::2] - y[::2]], -1).reshape(-1)
    same(out, torch.stack([torch.where(x > 0, x + y, x * y), x - y, pairs]))


@triton.jit
def described(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    a = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N])
    b = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [M, N])
    r, c = tl.program_id(0) * M, tl.program_id(1) * N
    b.store([r, c], a.load([r, c]) * 2)


def test_descriptors(device):
    x, out = torch.randn(12, 40), torch.zeros(12, 40, device=device)
    described[(2, 2)](x.to(device), out, 12, 40, M=8, N=32)
    same(out, x * 2)


@triton.jit
def checked(x, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.device_assert(tl.load(x + i) < n, "a number (of x) is too large")


def test_an_assertion_fails_the_stream(device, module):
    x = torch.arange(16, dtype=torch.int32, device=device)
    checked[(1,)](x, 16, N=16, debug=True)
    module.synchronize()
    checked[(1,)](x, 15, N=16, debug=True)
    with pytest.raises(RuntimeError, match=r"test_triton_ops.py:\d+: a number \(of x\) is too large"):
        module.synchronize()


@triton.jit
def assembles(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.inline_asm_elementwise("mov $0, $1;", "=r,r", [i], dtype=tl.int32, is_pure=True, pack=1))


@triton.jit
def asks(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, libdevice.j0(tl.load(x + i)))


@triton.jit
def much(x, out, M: tl.constexpr):
    i = tl.arange(0, M)
    at = i[:, None] * M + i[None, :]
    numbers = tl.load(x + at)
    tl.store(out + at, tl.trans(tl.cumsum(numbers, 0)) + tl.trans(tl.cumsum(numbers, 1)))


def refused(call):
    with pytest.raises(NotImplementedError) as error:
        call()
    return str(error.value)


def test_what_is_not_served_is_refused_with_its_line(device):
    x = torch.zeros(16, dtype=torch.int32, device=device)
    lines = (assembles, 2), (asks, 2)
    calls = [lambda: assembles[(1,)](x, N=16), lambda: asks[(1,)](x.float(), N=16)]
    names = ["tt.elementwise_inline_asm is inline assembly", "libdevice's __nv_j0f"]
    for (kernel, offset), call, name in zip(lines, calls, names, strict=True):
        text = refused(call)
        line = kernel.starting_line_number + 1 + offset
        assert name in text
        assert f"test_triton_ops.py:{line}:" in text


def test_a_tile_that_does_not_fit_is_out_of_resources(device):
    """On the driver `host`, threads have memory besides the stack."""
    from triton.runtime.errors import OutOfResources

    is_host = triton.runtime.driver.active.get_current_target().arch == "host"
    x = sample((1024, 1024), torch.float32)
    out = torch.empty_like(x, device=device)
    limit = "memory of a (group for a )?program's tensors, Required: [0-9]+, Hardware limit: [0-9]+"
    if is_host:
        much[(1,)](x.to(device), out, M=1024)
        same(out, x.cumsum(0).mT + x.cumsum(1).mT)
        x, out = x.double(), out.double()
        limit = f"memory of a program's tensors, Required: 2[0-9]*, Hardware limit: {1 << 24}"
    with pytest.raises(OutOfResources, match=limit):
        much[(1,)](x.to(device), out, M=1024)


@triton.jit
def scaled(x, y, x_scale, y_scale, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, XK: tl.constexpr, FORM: tl.constexpr):
    m, n, k, g, p = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K), tl.arange(0, K // 32), tl.arange(0, XK)
    a = tl.load(x + m[:, None] * XK + p[None, :])
    b = tl.load(y + k[:, None] * N + n[None, :])
    sa, sb = tl.load(x_scale + m[:, None] * (K // 32) + g[None, :]), tl.load(y_scale + n[:, None] * (K // 32) + g[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot_scaled(a, sa, FORM, b, sb, "e5m2"))
    tl.store(out + M * N + m[:, None] * N + n[None, :], tl.dot_scaled(a, sa, FORM, b, None, "e5m2"))


@pytest.mark.parametrize("form", ["e4m3", "e2m1"])
def test_products_of_scaled_numbers(device, form):
    m, n, k = 16, 16, 64
    y = torch.randn(k, n).to(torch.float8_e5m2)
    scales = [torch.randint(120, 132, (one, k // 32), dtype=torch.uint8) for one in (m, n)]
    if form == "e4m3":
        x = torch.randn(m, k).to(torch.float8_e4m3fn)
        numbers = x.double()
    else:
        x = torch.randint(0, 256, (m, k // 2), dtype=torch.uint8)
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
        table = torch.cat([table, -table])
        numbers = torch.stack([table[(x & 15).long()], table[(x >> 4).long()]], -1).reshape(m, k)
    factors = [(2.0 ** (one.double() - 127)).repeat_interleave(32, 1) for one in scales]
    out = torch.empty(2, m, n, device=device)
    scaled[(1,)](x.to(device), y.to(device), scales[0].to(device), scales[1].to(device), out, M=m, N=n, K=k, XK=x.shape[1], FORM=form)
    left = numbers * factors[0]
    expected = torch.stack([left @ (y.double() * factors[1].T), left @ y.double()])
    same(out, expected.float(), rtol=1e-5, atol=1e-5)
