"""FlexAttention and control flow in compiled code, against eager execution."""

from __future__ import annotations

import pytest
import torch
from support import same
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


@pytest.fixture(autouse=True)
def fresh(compiles):
    """No graph of another test is used."""
    torch._dynamo.reset()


def reference(q, k, v, bias, window):
    """What the calls below compute, in operators of the CPU and float64."""
    q, k, v, bias = (one.double() for one in (q, k, v, bias))
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    rows, columns = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = (scores + bias[:, None, None] * (rows - columns)).tanh() * 3
    scores = scores.masked_fill((rows < columns) | (rows - columns > window), -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def test_flex_attention_is_attention_with_its_gradients(device):
    def attend(q, k, v, bias, mask):
        def score(score, batch, head, row, column):
            return torch.tanh(score + bias[head] * (row - column)) * 3

        return flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=True, return_lse=True)

    # The first call with a size runs as by default, the second one by a graph.
    compiled = torch.compile(attend, mode="reduce-overhead", dynamic=True)
    for size in (40, 40, 72):
        window = torch.tensor(9)
        given = [torch.randn(2, heads, size, 16, requires_grad=True) for heads in (4, 2, 2)]
        given.append((torch.randn(4) / 9).requires_grad_())
        there = [one.detach().to(device).requires_grad_() for one in given]
        reach = window.to(device)

        def mask(batch, head, row, column, reach=reach):
            return (row >= column) & (row - column <= reach)

        blocks = create_block_mask(mask, None, None, size, size, device=device, BLOCK_SIZE=8)
        ours, expected = compiled(*there, blocks), reference(*given, window)
        weights = torch.randn(2, 4, size, 16)
        for (out, lse), factor in ((ours, weights.to(device)), (expected, weights)):
            ((out * factor).sum() + lse.sin().sum()).backward()
        for one, other in zip(ours, expected, strict=True):
            same(one.detach(), other.detach().float(), rtol=1e-3, atol=1e-4)
        for one, other in zip(there, given, strict=True):
            same(one.grad, other.grad, rtol=2e-3, atol=2e-3)


def test_flex_attention_in_half_precision_and_without_gradients(device):
    compiled = torch.compile(flex_attention)
    q, k, v = (torch.randn(1, 2, 24, 32).to(torch.bfloat16) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float())
    with torch.no_grad():
        out = compiled(*[one.to(device) for one in (q, k, v)])
    assert out.dtype == torch.bfloat16
    same(out.float(), expected, rtol=3e-2, atol=3e-2)


def test_the_operator_is_taken_apart_where_torch_traces_it(device):
    """Fails if torch moves what inductor/attention.py changes."""
    from torch._inductor.utils import run_and_get_code

    q = torch.randn(1, 1, 16, 8, device=device)
    with torch._inductor.config.patch(force_disable_caches=True):
        _, code = run_and_get_code(torch.compile(flex_attention), q, q, q)
    assert "OTR_KERNEL" in code[0] and "aten._safe_softmax" in code[0]


def test_branches_and_loops_ask_the_device(device):
    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: (x.sin() * 2).relu(), lambda x: x.cos() - 1, (x,)).exp()

    def loop(x):
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, x: (i < 9) & (x.sum() < 40), lambda i, x: (i + 1, x * 1.5 + i), (start, x))

    both = [torch.compile(one, mode="reduce-overhead") for one in (branch, loop)]
    for sign in (1, -1, 2, -2):
        x = torch.rand(8) * sign
        mine, ours = x.clone().requires_grad_(), x.to(device).requires_grad_()
        expected, result = branch(mine), both[0](ours)
        same(result.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
        expected.sum().backward()
        result.sum().backward()
        same(ours.grad, mine.grad, rtol=1e-5, atol=1e-6)
        for one, other in zip(both[1](x.to(device)), loop(x), strict=True):
            same(one, other, rtol=1e-5, atol=1e-5)
