"""Tensors of floating-point numbers of 8 bits, and products of them with scales."""

from __future__ import annotations

import pytest
import torch
from support import sample

FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


def bits(tensor):
    return tensor.cpu().view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_tensors_hold_what_those_of_the_cpu_hold(device, dtype):
    host = sample((6, 5), torch.float32) * 300
    there = host.to(device)
    assert bits(there.to(dtype)) == bits(host.to(dtype))
    narrow, right = host.to(dtype).to(device), host.to(dtype)
    assert bits(narrow.t().contiguous()) == bits(right.t().contiguous())
    assert bits(torch.cat([narrow, narrow[:2]])) == bits(torch.cat([right, right[:2]]))
    torch.testing.assert_close(narrow.float().cpu(), right.float(), equal_nan=True)
    for value in (0.0, -0.0, 1.3, -17.0, 0.003, float("nan")):
        filled = torch.empty(3, dtype=dtype, device=device).fill_(value)
        assert bits(filled) == bits(torch.empty(3, dtype=dtype).fill_(value)), value


@pytest.mark.parametrize("dtype", [torch.float8_e8m0fnu, torch.float4_e2m1fn_x2], ids=str)
def test_bytes_of_other_formats_are_moved(device, dtype):
    host = torch.arange(24, dtype=torch.uint8).view(4, 6)
    there = host.to(device).view(dtype)
    assert bits(there.clone()) == host.tolist()
    assert bits(torch.cat([there, there])) == torch.cat([host, host]).tolist()


def scaled(a, b, scale_a, scale_b, bias, out):
    product = (a.double() * scale_a.double()) @ (b.double() * scale_b.double())
    return (product if bias is None else product + bias.double()).to(out)


@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("by_row", [False, True], ids=["whole", "by_row"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
def test_scaled_products(device, out, by_row, with_bias):
    a = sample((16, 32), torch.float32).to(torch.float8_e4m3fn)
    b = sample((16, 32), torch.float32).to(torch.float8_e4m3fn).t()
    scale_a = torch.rand(16, 1) + 0.1 if by_row else torch.tensor(0.5)
    scale_b = torch.rand(1, 16) + 0.1 if by_row else torch.tensor(0.25)
    bias = torch.rand(16).to(out) if with_bias else None
    there = [None if tensor is None else tensor.to(device) for tensor in (a, b, scale_a, scale_b, bias)]
    found = torch._scaled_mm(*there[:2], scale_a=there[2], scale_b=there[3], bias=there[4], out_dtype=out)
    torch.testing.assert_close(found.cpu(), scaled(a, b, scale_a, scale_b, bias, out))
