"""Copies, views, type promotion and what makes a tensor usable in Python, each against the CPU."""

from __future__ import annotations

import copy
import io
import itertools
import operator
import pickle

import pytest
import torch
from support import ALL_DTYPES, FLOATING, INTEGRAL, same, sample

pytestmark = pytest.mark.of_driver

# Layouts as functions of a contiguous tensor of shape (4, 6).
LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t(),
    "sliced": lambda t: t[1:, ::2],
    "offset": lambda t: t[2, 1:5],
    "expanded": lambda t: t[:, :1].expand(4, 5),
    "zero-dim": lambda t: t[1, 2],
    "empty": lambda t: t[2:2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_copies_keep_every_element(device, dtype, layout):
    host = sample((4, 6), dtype)
    there = host.to(device)
    expected, view = LAYOUTS[layout](host), LAYOUTS[layout](there)
    assert view.stride() == expected.stride() and view.storage_offset() == expected.storage_offset()
    same(view, expected)  # device to host, strided
    same(expected.to(device), expected)  # host to device, strided
    same(view.clone(), expected)  # device to device
    same(view.contiguous(), expected)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "offset"])
def test_copies_into_strided_targets_write_nothing_else(device, layout):
    expected = torch.full((4, 6), -1.0)
    source = sample(tuple(LAYOUTS[layout](expected).shape), torch.float32, seed=3)
    LAYOUTS[layout](expected).copy_(source)
    for origin in (source, source.to(device)):
        target = torch.full((4, 6), -1.0, device=device)
        LAYOUTS[layout](target).copy_(origin)
        same(target, expected)
    host = torch.full((4, 6), -1.0)
    LAYOUTS[layout](host).copy_(source.to(device))
    assert torch.equal(host, expected)


def test_copies_between_devices(device, other_device):
    host = sample((64, 33), torch.float32)
    there = host.to(device).t()
    across = there.to(other_device)
    assert across.device == other_device
    same(across, host.t())
    target = torch.zeros(33, 64, device=device, dtype=torch.float64)
    target.copy_(across)  # back, casting
    same(target, host.t().double())


@pytest.mark.parametrize("source", ALL_DTYPES, ids=str)
def test_copies_cast(device, source):
    host = sample((5, 7), source)
    for target in ALL_DTYPES:
        if source.is_complex and not target.is_complex:
            continue  # torch warns that it discards the imaginary part
        expected = host.to(target)
        same(host.to(device).to(target), expected)
        same(torch.empty(7, 5, dtype=target, device=device).t().copy_(host), expected)  # from the host, casting
        assert torch.equal(torch.empty(5, 7, dtype=target).copy_(host.to(device)), expected)  # to the host, casting


def test_views_share_memory(device):
    base = torch.zeros(4, 6, device=device)
    views = {
        "view": base.view(2, 12),
        "slice": base[1:3],
        "transpose": base.t(),
        "unfold": base.unfold(1, 2, 2),
        "detach": base.detach(),
        "as_strided": base.as_strided((3, 3), (7, 1), 1),
        "bytes": base.view(torch.uint8),
        "unsqueeze": base.unsqueeze(0),
        "diagonal": base.diagonal(),
        "split": base.split(2)[1],
    }
    for name, view in views.items():
        assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr(), name
    expected = torch.zeros(4, 6)
    for tensor in (base, expected):
        tensor.t()[1].add_(2)
        tensor.diagonal().mul_(3).sub_(1)
        tensor.unfold(1, 2, 2)[0].fill_(5)
        tensor.view(-1)[3:20:4] = 9
        tensor[torch.arange(2), torch.arange(2)] = -7
    same(base, expected)
    pair = sample((4, 6), torch.complex64)
    same(torch.view_as_real(pair.to(device)), torch.view_as_real(pair))


def test_in_place_broadcasting_and_out(device):
    left, row, column = sample((5, 6), torch.float32), sample((6,), torch.float32, 1), sample((5, 1), torch.float32, 2)
    there = left.to(device)
    same(there + row.to(device) * column.to(device) - 2, left + row * column - 2)
    there.mul_(row.to(device)).add_(column.to(device), alpha=0.5).clamp_(-3, 3)
    same(there, left.mul(row).add(column, alpha=0.5).clamp(-3, 3))
    out = torch.empty(0, device=device)
    torch.add(row.to(device), column.to(device), out=out)  # out= is resized
    same(out, row + column)
    with pytest.raises(RuntimeError, match="[Oo]utput with shape|doesn't match the broadcast shape"):
        row.to(device).add_(column.to(device))
    with pytest.raises(RuntimeError, match="size of tensor"):
        row.to(device) + torch.ones(5, device=device)


BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, torch.maximum, operator.gt, operator.eq]


@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_type_promotion(device, function):
    dtypes = (*FLOATING, torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64)
    for a, b in itertools.product(dtypes, dtypes):
        left, right = sample((3, 4), a, 5), sample((3, 4), b, 6).clone()
        for other in (right, right[1, 1]):  # a tensor, and a zero-dimensional one, which promotes less
            try:
                expected = function(left, other)
            except (RuntimeError, TypeError):  # neither has the CPU: complex has no order, for example
                with pytest.raises((RuntimeError, TypeError)):
                    function(left.to(device), other.to(device))
                continue
            half = expected.dtype in (torch.float16, torch.bfloat16)
            close = {"rtol": 1e-2 if half else 1e-6, "atol": 1e-2 if half else 1e-6}
            same(function(left.to(device), other.to(device)), expected, **close)
            if other.dim() == 0:
                same(function(left.to(device), other), expected, **close)  # a scalar in host memory


@pytest.mark.parametrize("dtype", (*FLOATING, *INTEGRAL, torch.bool), ids=str)
def test_python_scalars_promote_as_on_the_cpu(device, dtype):
    host = sample((4,), dtype)
    half = dtype in (torch.float16, torch.bfloat16)  # the CPU has no complex numbers of half precision
    for scalar in (2, 2.5, True) if half else (2, 2.5, True, 1 + 2j):
        expected = host + scalar
        same(host.to(device) + scalar, expected, rtol=1e-2, atol=1e-2)
        same(scalar * host.to(device), scalar * host, rtol=1e-2, atol=1e-2)


def test_mixed_devices_are_refused(device):
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=device) + torch.ones(3)


def test_reading_values(device):
    values = torch.tensor([1.5, float("inf"), float("nan"), -0.0], device=device)
    assert values[0].item() == 1.5 and values[1].item() == float("inf") and values[2].isnan().item()
    assert values.tolist()[:2] == [1.5, float("inf")]
    assert torch.tensor(2**60 + 1, device=device).item() == 2**60 + 1
    assert bool(torch.tensor([True], device=device)) and int(torch.tensor(7, device=device)) == 7
    assert [x.item() for x in torch.arange(3, device=device)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar|elements"):
        values.item()
    with pytest.raises(TypeError, match="[cC]onvert|host memory"):
        values.numpy()


def test_printing(device):
    host = torch.tensor([[1.0, -2.5], [3e8, float("nan")]])
    assert repr(host.to(device)) == repr(host).replace(")", f", device='{device}')")
    assert "device=" in repr(torch.empty(0, device=device))


def test_copies_of_the_object(device, device_type):
    value = {"weight": torch.nn.Parameter(sample((3, 4), torch.float32).to(device).t()), "step": 3}
    for duplicate in (copy.deepcopy(value), pickle.loads(pickle.dumps(value)), saved_and_loaded(value)):
        again = duplicate["weight"]
        assert again.device == device and again.requires_grad and again.stride() == value["weight"].stride()
        assert again.data_ptr() != value["weight"].data_ptr()
        same(again.detach(), value["weight"].detach().cpu())
    on_host = saved_and_loaded(value, map_location="cpu")["weight"]
    assert on_host.device.type == "cpu" and torch.equal(on_host, value["weight"].cpu())
    there = saved_and_loaded({"t": torch.arange(3)}, map_location=device_type)["t"]
    same(there, torch.arange(3))


def saved_and_loaded(value, **options):
    """The value that is read back after torch.save."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def test_conjugate_and_negative_views(device):
    host = sample((3, 4), torch.complex64)
    there = host.to(device)
    assert there.conj().is_conj() and there.conj().imag.is_neg()
    same(there.conj(), host.conj())
    same(there.conj() * there, host.conj() * host)
    same(there.conj().imag + 1, host.conj().imag + 1)
    same(there.conj().resolve_conj(), host.conj().resolve_conj())
    target = torch.zeros(4, 3, dtype=torch.complex64, device=device)
    target.t().copy_(there.conj())
    same(target.t(), host.conj().resolve_conj())


@pytest.mark.not_on_mtia("DLPack has no number for MTIA")
def test_dlpack_shares_memory(device):
    tensor = torch.arange(6.0, device=device)
    again = torch.from_dlpack(tensor)
    again[2] = 40
    assert tensor[2].item() == 40 and again.device == device and again.data_ptr() == tensor.data_ptr()


def test_generated_methods_and_storage(device, device_type, module):
    tensor = getattr(torch.ones(3), device_type)()
    assert getattr(tensor, f"is_{device_type}") and not getattr(torch.ones(3), f"is_{device_type}")
    assert tensor.device == device and getattr(torch.nn.Linear(2, 2), device_type)().weight.device == device
    storage = tensor.untyped_storage()
    assert storage.device == device and storage.nbytes() == 12
    assert storage.cpu().tolist() == list(torch.ones(3).untyped_storage())
    assert tensor.type() == f"torch.{device_type}.FloatTensor"
    assert issubclass(module.FloatStorage, torch.storage.TypedStorage)
