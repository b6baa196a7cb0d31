"""Tensors that are more than their bytes: quantized ones, lazy clones, sparse ones on another device."""

from __future__ import annotations

import warnings

import pytest
import torch
from support import same


@pytest.fixture(params=["per tensor", "per channel"])
def quantize(request):
    """Quantizes a matrix; torch says at each that these tensors will go one day."""

    def call(x: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if request.param == "per tensor":
                return torch.quantize_per_tensor(x, 0.25, 3, torch.qint8)
            scales = torch.tensor([0.5, 0.25], device=x.device)
            return torch.quantize_per_channel(x, scales, torch.tensor([0, 3], device=x.device), 0, torch.quint8)

    return call


def test_a_quantized_tensor_keeps_its_quantizer(quantize, device):
    x = torch.arange(6.0).reshape(2, 3)
    expected = quantize(x)
    for here in (quantize(x.to(device)), expected.to(device), quantize(x.to(device)).clone()):
        assert here.is_quantized and here.device == device and here.qscheme() == expected.qscheme()
        same(here.int_repr(), expected.int_repr())
        same(here.dequantize(), expected.dequantize())
        assert here.cpu().is_quantized and torch.equal(here.cpu().int_repr(), expected.int_repr())
    here = quantize(x.to(device))
    assert "quantization_scheme" in repr(here)
    same(torch.empty_like(here, device="cpu").copy_(here).to(device).dequantize(), expected.dequantize())


def test_views_and_arithmetic_of_quantized_tensors(device):
    x = torch.arange(6.0).reshape(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = torch.quantize_per_tensor(x, 0.5, 1, torch.quint8)
        here = torch.quantize_per_tensor(x.to(device), 0.5, 1, torch.quint8)
    assert (here.q_scale(), here.q_zero_point()) == (0.5, 1)
    for view in (lambda q: q[1], lambda q: q.t(), lambda q: q.view(3, 2), lambda q: q[:, 1:].contiguous()):
        same(view(here).dequantize(), view(expected).dequantize())
    assert here[1, 2].item() == 5
    total = torch.ops.quantized.add
    same(total(here, here, 1.0, 0).dequantize(), total(expected, expected, 1.0, 0).dequantize())
    same(torch.relu(here).dequantize(), torch.relu(expected).dequantize())
    with pytest.raises(RuntimeError):
        here.copy_(x.to(device))
    assert torch.empty(2, dtype=torch.qint8, device=device).is_quantized


def optimizer_step(x: torch.Tensor) -> None:
    x.requires_grad_().grad = torch.ones_like(x)
    torch.optim.SGD([x], 0.1, fused=True).step()


WRITES = {
    "add_": lambda x: x.add_(1),
    "a fallback": lambda x: x.cumsum_(0),
    "copy_ from the CPU": lambda x: x.copy_(torch.full((4,), 5.0)),
    "copy_ from the device": lambda x: x.copy_(torch.full((4,), 5.0, device=x.device)),
    "copy_ with strides": lambda x: x[::2].copy_(torch.full((2,), 5.0, device=x.device)),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(5),
    "uniform_": lambda x: x.uniform_(5, 6),
    "resize_": lambda x: x.resize_(9).fill_(5),
    "out=": lambda x: torch.mul(x, 3, out=x),
    "optimizer": optimizer_step,
}


@pytest.mark.parametrize("which", ["the clone", "the original"])
@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_to_a_lazy_clone_is_its_own(name, which, device, other_device):
    for place in (device, other_device):
        original = torch.arange(1.0, 5.0, device=place)
        clone = original._lazy_clone()
        written, kept = (clone, original) if which == "the clone" else (original, clone)
        assert torch._C._is_cow_tensor(written)
        WRITES[name](written)
        same(kept, torch.arange(1.0, 5.0))
        assert not torch.equal(written.detach().cpu(), kept.cpu())
        assert written.device == place


def test_what_is_only_read_stays_a_lazy_clone(device):
    for dtype in (torch.float32, torch.complex64):
        original = torch.ones(2, dtype=dtype, device=device)
        clone = original._lazy_clone()
        same(original + clone, torch.full((2,), 2, dtype=dtype))
        same(torch.cumsum(clone, 0), torch.tensor([1, 2], dtype=dtype))
        clone.cpu(), clone.clone(), clone.sum().item()
        assert torch._C._is_cow_tensor(original) and torch._C._is_cow_tensor(clone)


def test_sparse_tensors_of_the_second_device(other_device):
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    # torch makes no compressed tensors for MTIA.
    compressed = () if other_device.type == "mtia" else (torch.Tensor.to_sparse_csr,)
    for convert in (torch.Tensor.to_sparse, *compressed):
        sparse = convert(dense.to(other_device))
        assert sparse.device == other_device and sparse.values().device == other_device
        same(sparse.to_dense(), dense)
        same((sparse @ torch.ones(2, 2, device=other_device)), dense @ torch.ones(2, 2))
    total = (dense.to(other_device).to_sparse() + dense.to(other_device).to_sparse()).coalesce()
    assert total.device == other_device
    same(total.to_dense(), dense * 2)
    made = torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.ones(1), (2, 2), device=other_device)
    assert made.device == other_device
    same(made.to_dense(), torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
