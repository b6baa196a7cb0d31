"""Kernels of the suite `triton`, written as Triton's tutorials write theirs, and the functions that launch them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BACKWARD_PROGRAMS = 64


@triton.jit
def softmax_kernel(x, y, x_stride, y_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < columns
    value = tl.load(x + row * x_stride + i, mask=mask, other=-float("inf"))
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row * y_stride + i, power / tl.sum(power, axis=0), mask=mask)


def softmax(x: Tensor) -> Tensor:
    """Softmax of each row."""
    y = torch.empty_like(x)
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, y, x.stride(0), y.stride(0), columns, BLOCK=triton.next_power_of_2(columns))
    return y


@triton.jit
def layer_norm_kernel(x, y, weight, bias, means, scales, stride, columns, eps, BLOCK: tl.constexpr):
    """Goes over a row three times, in blocks: for the mean, for the variance, and for the result."""
    row = tl.program_id(0)
    x += row * stride
    y += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, columns, BLOCK):
        i = first + tl.arange(0, BLOCK)
        total += tl.load(x + i, mask=i < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, columns, BLOCK):
        i = first + tl.arange(0, BLOCK)
        value = tl.load(x + i, mask=i < columns, other=0.0).to(tl.float32)
        value = tl.where(i < columns, value - mean, 0.0)
        total += value * value
    scale = 1 / tl.sqrt(tl.sum(total, axis=0) / columns + eps)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)
    for first in range(0, columns, BLOCK):
        i = first + tl.arange(0, BLOCK)
        mask = i < columns
        value = tl.load(x + i, mask=mask, other=0.0).to(tl.float32)
        normal = (value - mean) * scale
        tl.store(y + i, normal * tl.load(weight + i, mask=mask) + tl.load(bias + i, mask=mask), mask=mask)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm of each row, with its mean and scale."""
    rows, columns = x.shape
    y = torch.empty_like(x)
    means, scales = (torch.empty(rows, 1, dtype=torch.float32, device=x.device) for _ in range(2))
    block = triton.next_power_of_2(columns)
    layer_norm_kernel[(rows,)](x, y, weight, bias, means, scales, x.stride(0), columns, eps, BLOCK=block)
    return y, means, scales


@triton.jit
def layer_norm_backward_kernel(
    dy, x, weight, means, scales, dx, weight_parts, bias_parts, stride, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """A program has some rows, and its part of what is summed over all rows."""
    program = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < columns
    held = tl.load(weight + i, mask=mask, other=0.0).to(tl.float32)
    weight_part = tl.zeros([BLOCK], dtype=tl.float32)
    bias_part = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(program * ROWS, min((program + 1) * ROWS, rows)):
        value = tl.load(x + row * stride + i, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(dy + row * stride + i, mask=mask, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        normal = (value - tl.load(means + row)) * scale
        weight_part += grad * normal
        bias_part += grad
        grad *= held
        along = tl.sum(normal * grad, axis=0) / columns
        mean = tl.sum(grad, axis=0) / columns
        tl.store(dx + row * stride + i, (grad - (normal * along + mean)) * scale, mask=mask)
    tl.store(weight_parts + program * columns + i, weight_part, mask=mask)
    tl.store(bias_parts + program * columns + i, bias_part, mask=mask)


@triton.jit
def sum_parts_kernel(weight_parts, bias_parts, dweight, dbias, parts, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of_weight = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    of_bias = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in range(0, parts, ROWS):
        i = first + tl.arange(0, ROWS)
        mask = (i[:, None] < parts) & (j[None, :] < columns)
        at = i[:, None] * columns + j[None, :]
        of_weight += tl.load(weight_parts + at, mask=mask, other=0.0)
        of_bias += tl.load(bias_parts + at, mask=mask, other=0.0)
    tl.store(dweight + j, tl.sum(of_weight, axis=0), mask=j < columns)
    tl.store(dbias + j, tl.sum(of_bias, axis=0), mask=j < columns)


def layer_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, means: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of layer norm by its input, weight and bias."""
    rows, columns = x.shape
    each = triton.cdiv(rows, BACKWARD_PROGRAMS)
    programs = triton.cdiv(rows, each)
    dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
    parts = [torch.empty(programs, columns, dtype=torch.float32, device=x.device) for _ in range(2)]
    layer_norm_backward_kernel[(programs,)](
        dy, x, weight, means, scales, dx, *parts, x.stride(0), rows, columns, ROWS=each, BLOCK=triton.next_power_of_2(columns)
    )
    sum_parts_kernel[(triton.cdiv(columns, 128),)](*parts, dweight, dbias, programs, columns, ROWS=32, BLOCK=128)
    return dx, dweight, dbias


@triton.jit
def rms_norm_kernel(x, y, weight, stride, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < columns
    value = tl.load(x + row * stride + i, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / columns + eps)
    tl.store(y + row * stride + i, value * scale * tl.load(weight + i, mask=mask), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """RMS norm of each row."""
    y = torch.empty_like(x)
    rows, columns = x.shape
    rms_norm_kernel[(rows,)](x, y, weight, x.stride(0), columns, eps, BLOCK=triton.next_power_of_2(columns))
    return y


@triton.jit
def matmul_kernel(
    a, b, c, m, n, k, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    """A tile of a product. Rows and columns behind the end are those of the beginning, so that no load along them has a mask."""
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    in_group = GROUP * tiles_n
    first = program // in_group * GROUP
    size = min(tiles_m - first, GROUP)
    tile_m, tile_n = first + program % in_group % size, program % in_group // size
    i, j, z = (tile_m * BM + tl.arange(0, BM)) % m, (tile_n * BN + tl.arange(0, BN)) % n, tl.arange(0, BK)
    left, right = a + i[:, None] * am + z[None, :] * ak, b + z[:, None] * bk + j[None, :] * bn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, BK)):
        x = tl.load(left, mask=z[None, :] < k - step * BK, other=0.0)
        y = tl.load(right, mask=z[:, None] < k - step * BK, other=0.0)
        total = tl.dot(x, y, total)
        left += BK * ak
        right += BK * bk
    i, j = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN)
    mask = (i[:, None] < m) & (j[None, :] < n)
    tl.store(c + i[:, None] * cm + j[None, :] * cn, total.to(c.dtype.element_ty), mask=mask)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, 64) * triton.cdiv(n, 64),)
    matmul_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), BM=64, BN=64, BK=64, GROUP=8)
    return c


@triton.jit
def attention_kernel(
    q, k, v, out, scale, head_stride, stride, length, DEPTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr
):
    """Rows of the result, by blocks of keys with a maximum that moves."""
    head = tl.program_id(1) * head_stride
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, DEPTH)
    at = head + i[:, None] * stride + d[None, :]
    query = tl.load(q + at, mask=i[:, None] < length, other=0.0)
    largest = tl.full([BM], -float("inf"), dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    held = tl.zeros([BM, DEPTH], dtype=tl.float32)
    scale *= 1.4426950408889634
    end = min(length, (tl.program_id(0) + 1) * BM) if CAUSAL else length
    for first in range(0, end, BN):
        j = first + tl.arange(0, BN)
        key = tl.load(k + head + j[None, :] * stride + d[:, None], mask=j[None, :] < length, other=0.0)
        scores = tl.dot(query, key) * scale
        seen = j[None, :] < length
        if CAUSAL:
            seen = seen & (i[:, None] >= j[None, :])
        scores = tl.where(seen, scores, -float("inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        power = tl.exp2(scores - larger[:, None])
        shrink = tl.exp2(largest - larger)
        total = total * shrink + tl.sum(power, axis=1)
        value = tl.load(v + head + j[:, None] * stride + d[None, :], mask=j[:, None] < length, other=0.0)
        held = tl.dot(power.to(value.dtype), value, held * shrink[:, None])
        largest = larger
    tl.store(out + at, (held / total[:, None]).to(out.dtype.element_ty), mask=i[:, None] < length)


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attention of heads whose rows lie behind one another."""
    batch, heads, length, depth = q.shape
    out = torch.empty_like(q)
    grid = (triton.cdiv(length, 64), batch * heads)
    attention_kernel[grid](
        q, k, v, out, depth**-0.5, q.stride(1), q.stride(2), length, DEPTH=depth, BM=64, BN=128, CAUSAL=causal
    )
    return out


@triton.jit
def sort_kernel(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.sort(tl.load(x + at)))


def sort(x: Tensor) -> Tensor:
    """The numbers of each row, in order."""
    y = torch.empty_like(x)
    sort_kernel[(x.shape[0],)](x, y, BLOCK=x.shape[1])
    return y


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)
