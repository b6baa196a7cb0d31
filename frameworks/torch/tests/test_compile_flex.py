"""FlexAttention through torch.compile on the device, against eager execution, on the CPU where torch has it."""

from __future__ import annotations

import warnings

import pytest
import torch
from support import same
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention


@pytest.fixture(autouse=True)
def fresh(once, compiles):
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells eager execution of FlexAttention to compile
        yield


def causal(batch, head, query, key):
    return query >= key


def window(batch, head, query, key):
    return (query - key).abs() <= 3 + head


class Biased:
    """Scores that read what the program has captured."""

    def __init__(self, bias, slope):
        self.bias, self.slope = bias, slope

    def __call__(self, score, batch, head, query, key):
        return torch.tanh(score * 0.5) + self.bias[head, (query - key).abs()] - self.slope * (query - key)


def attend(inputs, change, mask, device, compiled, **options):
    """Output, log-sum-exp, and the gradients of everything that has some."""
    inputs = [one.detach().to(device).requires_grad_() for one in inputs]
    captured = [one.detach().to(device).requires_grad_(one.requires_grad) for one in change]
    score_mod = Biased(*captured) if captured else None
    query, key = inputs[0], inputs[1]
    blocks = None
    if mask is not None:
        blocks = create_block_mask(mask, None, query.shape[1], query.shape[2], key.shape[2], device=device)

    def call(query, key, value):
        return flex_attention(
            query, key, value, score_mod=score_mod, block_mask=blocks, enable_gqa=query.shape[1] != key.shape[1],
            return_aux=AuxRequest(lse=True),
        )

    out, aux = (torch.compile(call, **options) if compiled else call)(*inputs)
    sums = aux.lse
    finite = sums.masked_fill(sums.isinf(), 0)
    loss = out.float().pow(3).sum() + finite.sin().sum()
    wanted = [one for one in (*inputs, *captured) if one.requires_grad]
    return [out, sums, *torch.autograd.grad(loss, wanted)]


def given(heads=4, shared=4, length=20, keys=20, width=8, dtype=torch.float32, batches=2):
    torch.manual_seed(3)
    sizes = ((batches, heads, length, width), (batches, shared, keys, width), (batches, shared, keys, width))
    return [torch.randn(size).to(dtype) for size in sizes]


CAPTURED = (torch.randn(4, 64, generator=torch.Generator().manual_seed(1)), torch.tensor(0.1))


@pytest.mark.parametrize(
    ("inputs", "change", "mask"),
    [
        (given(), (), None),
        (given(), (), causal),
        (given(shared=2), CAPTURED, causal),
        (given(length=9, keys=37), CAPTURED, window),
    ],
    ids=["plain", "causal", "captured and grouped", "window of other lengths"],
)
def test_flex_attention(device, inputs, change, mask):
    change = [one.requires_grad_() for one in change]
    expected = attend(inputs, change, mask, device, False)
    for one, other in zip(attend(inputs, change, mask, device, True), expected, strict=True):
        same(one, other.cpu(), rtol=1e-4, atol=1e-5)


def test_a_row_that_the_mask_leaves_empty_is_zero(device):
    def late(batch, head, query, key):
        return (query >= 5) & (query >= key)

    found = attend(given(), (), late, device, True)
    for one, other in zip(found, attend(given(), (), late, device, False), strict=True):
        same(one, other.cpu(), rtol=1e-4, atol=1e-5)
    assert not found[0][:, :, :5].any() and found[1][:, :, :5].isneginf().all()


def test_lengths_of_flex_attention_move(device):
    def call(*inputs):
        return flex_attention(*inputs, score_mod=lambda score, b, h, query, key: score - (query - key))

    several = [given(length=length, keys=length) for length in (11, 23, 40)]
    expected = [call(*inputs) for inputs in several]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(call, dynamic=True)
    for inputs, wanted in zip(several, expected, strict=True):
        same(compiled(*(one.to(device) for one in inputs)), wanted, rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_flex_attention_in_bf16(device):
    inputs = given(dtype=torch.bfloat16)
    found = attend(inputs, (), causal, device, True)
    for one, other in zip(found, attend(inputs, (), causal, device, False), strict=True):
        same(one, other.cpu(), rtol=3e-2, atol=3e-2)


def test_the_operator_is_taken_apart_where_torch_traces_it(device):
    """Fails if torch moves what inductor/attention.py changes."""
    from torch._inductor.utils import run_and_get_code

    q = torch.randn(1, 1, 16, 8, device=device)
    with torch._inductor.config.patch(force_disable_caches=True):
        _, code = run_and_get_code(torch.compile(flex_attention), q, q, q)
    assert "OTR_KERNEL" in code[0] and "aten._safe_softmax" in code[0]
