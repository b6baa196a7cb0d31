"""Operators as libraries of Triton's kernels have them, forward and backward, each with what torch computes in its place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# ---- normalization ----


@triton.jit
def rms_forward(x, weight, y, scales, stride, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < size
    value = tl.load(x + row * stride + i, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / size + eps)
    tl.store(scales + row, scale)
    tl.store(y + row * stride + i, value * scale * tl.load(weight + i, mask=mask), mask=mask)


@triton.jit
def rms_backward(dy, x, weight, scales, dx, parts, stride, rows, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A program goes through some rows, and has one part of the weight's gradient."""
    program = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < size
    held = tl.load(weight + i, mask=mask, other=0.0)
    part = tl.zeros([BLOCK], tl.float32)
    for row in range(program * ROWS, min((program + 1) * ROWS, rows)):
        scale = tl.load(scales + row)
        normal = tl.load(x + row * stride + i, mask=mask, other=0.0) * scale
        grad = tl.load(dy + row * stride + i, mask=mask, other=0.0)
        part += grad * normal
        grad *= held
        mean = tl.sum(grad * normal, 0) / size
        tl.store(dx + row * stride + i, scale * (grad - normal * mean), mask=mask)
    tl.store(parts + program * size + i, part, mask=mask)


class RmsNorm(torch.autograd.Function):
    """x / sqrt(mean(x²) + eps) · weight."""

    @staticmethod
    def forward(context, x, weight, eps):
        rows, size = x.shape
        y, scales = torch.empty_like(x), torch.empty(rows, device=x.device)
        rms_forward[(rows,)](x, weight, y, scales, x.stride(0), size, eps, BLOCK=triton.next_power_of_2(size))
        context.save_for_backward(x, weight, scales)
        return y

    @staticmethod
    def backward(context, dy):
        x, weight, scales = context.saved_tensors
        rows, size = x.shape
        programs = triton.cdiv(rows, 8)
        dx, parts = torch.empty_like(x), torch.empty(programs, size, device=x.device)
        block = triton.next_power_of_2(size)
        rms_backward[(programs,)](dy.contiguous(), x, weight, scales, dx, parts, x.stride(0), rows, size, ROWS=8, BLOCK=block)
        return dx, parts.sum(0), None


@triton.jit
def rms_rope(x, weight, cosine, sine, out, heads, eps, HALF: tl.constexpr):
    """Normalizes a head, and turns its halves by the angles of its place."""
    place, head = tl.program_id(0), tl.program_id(1)
    at = (place * heads + head) * 2 * HALF
    i = tl.arange(0, HALF)
    low, high = tl.load(x + at + i), tl.load(x + at + HALF + i)
    scale = tl.rsqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / (2 * HALF) + eps)
    low *= scale * tl.load(weight + i)
    high *= scale * tl.load(weight + HALF + i)
    c, s = tl.load(cosine + place * HALF + i), tl.load(sine + place * HALF + i)
    tl.store(out + at + i, low * c - high * s)
    tl.store(out + at + HALF + i, high * c + low * s)


# ---- activations with a gate ----


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    return 2 * sigmoid(2 * x) - 1


@triton.jit
def activated(a, GELU: tl.constexpr):
    """An activation, and its derivative."""
    if GELU:
        inner = 0.7978845608028654 * (a + 0.044715 * a * a * a)
        t = tanh(inner)
        value = 0.5 * a * (1 + t)
        slope = 0.5 * (1 + t) + 0.5 * a * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * a * a)
    else:
        s = sigmoid(a)
        value = a * s
        slope = s * (1 + a * (1 - s))
    return value, slope


@triton.jit
def gate_forward(a, b, out, n, GELU: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    value, _ = activated(tl.load(a + i, mask=mask).to(tl.float32), GELU)
    tl.store(out + i, value * tl.load(b + i, mask=mask), mask=mask)


@triton.jit
def gate_backward(grad, a, b, da, db, n, GELU: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    value, slope = activated(tl.load(a + i, mask=mask).to(tl.float32), GELU)
    g = tl.load(grad + i, mask=mask)
    tl.store(da + i, g * tl.load(b + i, mask=mask) * slope, mask=mask)
    tl.store(db + i, g * value, mask=mask)


class Gated(torch.autograd.Function):
    """SwiGLU, or GeGLU by the tangent."""

    @staticmethod
    def forward(context, a, b, gelu):
        out = torch.empty_like(a)
        gate_forward[(triton.cdiv(a.numel(), 512),)](a, b, out, a.numel(), GELU=gelu, BLOCK=512)
        context.save_for_backward(a, b)
        context.gelu = gelu
        return out

    @staticmethod
    def backward(context, grad):
        a, b = context.saved_tensors
        da, db = torch.empty_like(a), torch.empty_like(b)
        grid = (triton.cdiv(a.numel(), 512),)
        gate_backward[grid](grad.contiguous(), a, b, da, db, a.numel(), GELU=context.gelu, BLOCK=512)
        return da, db, None


# ---- softmax and losses ----


@triton.jit
def softmax_forward(x, y, size, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * size + i, mask=i < size, other=float("-inf"))
    power = tl.exp(value - tl.max(value, 0))
    tl.store(y + row * size + i, power / tl.sum(power, 0), mask=i < size)


@triton.jit
def softmax_backward(grad, y, dx, size, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    g = tl.load(grad + row * size + i, mask=i < size, other=0.0)
    value = tl.load(y + row * size + i, mask=i < size, other=0.0)
    tl.store(dx + row * size + i, value * (g - tl.sum(g * value, 0)), mask=i < size)


class Softmax(torch.autograd.Function):
    """Of the last dimension of a matrix."""

    @staticmethod
    def forward(context, x):
        y = torch.empty_like(x)
        softmax_forward[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context, grad):
        (y,) = context.saved_tensors
        dx = torch.empty_like(y)
        softmax_backward[(y.shape[0],)](grad.contiguous(), y, dx, y.shape[1], BLOCK=triton.next_power_of_2(y.shape[1]))
        return dx


@triton.jit
def cross_entropy(logits, classes, losses, size, rows, ignored, BLOCK: tl.constexpr):
    """The loss of a row, whose gradient takes the place of the logits. A row is read in blocks, with a maximum that moves."""
    row = tl.program_id(0)
    logits += row * size
    wanted = tl.load(classes + row)
    if wanted == ignored:
        for first in range(0, size, BLOCK):
            i = first + tl.arange(0, BLOCK)
            tl.store(logits + i, 0.0, mask=i < size)
        tl.store(losses + row, 0.0)
        return
    of_wanted = tl.load(logits + wanted)
    largest, total = float("-inf"), 0.0
    for first in range(0, size, BLOCK):
        i = first + tl.arange(0, BLOCK)
        value = tl.load(logits + i, mask=i < size, other=float("-inf"))
        larger = tl.maximum(largest, tl.max(value, 0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(value - larger), 0)
        largest = larger
    for first in range(0, size, BLOCK):
        i = first + tl.arange(0, BLOCK)
        value = tl.load(logits + i, mask=i < size, other=float("-inf"))
        power = tl.exp(value - largest) / total
        tl.store(logits + i, tl.where(i == wanted, power - 1, power) / rows, mask=i < size)
    tl.store(losses + row, (largest + tl.log(total) - of_wanted) / rows)


class CrossEntropy(torch.autograd.Function):
    """The mean over rows that are not ignored."""

    @staticmethod
    def forward(context, logits, classes, ignored):
        grads, losses = logits.clone(), torch.empty(logits.shape[0], device=logits.device)
        count = (classes != ignored).sum().item()
        cross_entropy[(logits.shape[0],)](grads, classes, losses, logits.shape[1], count, ignored, BLOCK=64)
        context.save_for_backward(grads)
        return losses.sum()

    @staticmethod
    def backward(context, grad):
        (grads,) = context.saved_tensors
        return grads * grad, None, None


@triton.jit
def kl(log_q, p, losses, grads, size, rows, BLOCK: tl.constexpr):
    """p · (log p - log q), as `kl_div` with batchmean, and its gradient."""
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    mask = i < size
    of_p, of_q = tl.load(p + row * size + i, mask=mask, other=0.0), tl.load(log_q + row * size + i, mask=mask, other=0.0)
    loss = tl.where(of_p > 0, of_p * (tl.log(tl.maximum(of_p, 1e-30)) - of_q), 0.0)
    tl.store(losses + row, tl.sum(loss, 0) / rows)
    tl.store(grads + row * size + i, -of_p / rows, mask=mask)


@triton.jit
def js(log_q, log_p, losses, grads, size, rows, beta, BLOCK: tl.constexpr):
    """beta · KL(p, m) + (1 - beta) · KL(q, m), where m = beta · p + (1 - beta) · q, and its gradient by log q."""
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    mask = i < size
    of_q = tl.load(log_q + row * size + i, mask=mask, other=float("-inf"))
    of_p = tl.load(log_p + row * size + i, mask=mask, other=float("-inf"))
    p, q = tl.exp(of_p), tl.exp(of_q)
    of_m = tl.log(beta * p + (1 - beta) * q)
    loss = tl.where(mask, beta * p * (of_p - of_m) + (1 - beta) * q * (of_q - of_m), 0.0)
    tl.store(losses + row, tl.sum(loss, 0) / rows)
    tl.store(grads + row * size + i, (1 - beta) * q * (of_q - of_m) / rows, mask=mask)


def divergence(kernel: triton.JITFunction, of_q: torch.Tensor, other: torch.Tensor, *more: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss by its rows, and its gradient."""
    rows, size = of_q.shape
    losses, grads = torch.empty(rows, device=of_q.device), torch.empty_like(of_q)
    kernel[(rows,)](of_q, other, losses, grads, size, rows, *more, BLOCK=triton.next_power_of_2(size))
    return losses.sum(), grads


# ---- products ----


@triton.jit
def linear_attention(q, k, v, out, length, DEPTH: tl.constexpr, CHUNK: tl.constexpr):
    """Causal attention without a softmax: within a chunk by scores, and by a state that has the chunks before."""
    head = tl.program_id(0) * length * DEPTH
    i, d = tl.arange(0, CHUNK), tl.arange(0, DEPTH)
    state = tl.zeros([DEPTH, DEPTH], tl.float32)
    for first in range(0, length, CHUNK):
        at = head + (first + i)[:, None] * DEPTH + d[None, :]
        mask = (first + i)[:, None] < length
        of_q, of_k = tl.load(q + at, mask=mask, other=0.0), tl.load(k + at, mask=mask, other=0.0)
        of_v = tl.load(v + at, mask=mask, other=0.0)
        scores = tl.where(i[:, None] >= i[None, :], tl.dot(of_q, tl.trans(of_k)), 0.0)
        tl.store(out + at, tl.dot(scores, of_v) + tl.dot(of_q, state), mask=mask)
        state += tl.dot(tl.trans(of_k), of_v)


@triton.jit
def int4_product(a, packed, scales, out, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """Weights of 4 bits, eight to a word along k, with a scale for each group of rows and each column."""
    i, j = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    for first in range(0, k, BK):
        z = first + tl.arange(0, BK)
        left = tl.load(a + i[:, None] * k + z[None, :], mask=(i[:, None] < m) & (z[None, :] < k), other=0.0)
        mask = (z[:, None] < k) & (j[None, :] < n)
        words = tl.load(packed + (z // 8)[:, None] * n + j[None, :], mask=mask, other=0)
        weights = ((words >> (z % 8 * 4)[:, None]) & 15) - 8
        scale = tl.load(scales + (z // GROUP)[:, None] * n + j[None, :], mask=mask, other=0.0)
        total = tl.dot(left, weights.to(tl.float32) * scale, total)
    tl.store(out + i[:, None] * n + j[None, :], total, mask=(i[:, None] < m) & (j[None, :] < n))
