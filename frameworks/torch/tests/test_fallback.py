"""Operators without a kernel run on the CPU: without copies where the CPU sees the memory, and counted."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch_outrigger
from support import same, sample
from torch_outrigger import _C

pytestmark = pytest.mark.of_driver

# No driver has kernels for these; each exercises another kind of result.
CASES = {
    "mode": lambda t: torch.mode(t, dim=0),
    "unique": lambda t: torch.unique(t, return_counts=True),
    "renorm": lambda t: torch.renorm(t, 2, 0, 1.0),
    "histc": lambda t: torch.histc(t, 4, -8, 8),
    "qr": lambda t: torch.linalg.qr(t).R.abs(),
    "nonzero": lambda t: torch.nonzero(t),
    "tril_indices": lambda t: torch.tril_indices(3, 3, device=t.device),
    "split list": lambda t: torch.atleast_2d([t, t])[1].cummax(0).values,
    "index list": lambda t: torch.kthvalue(t[torch.tensor([0, 2], device=t.device), :], 1),
    "median": lambda t: t.median(),
}


def tensors_of(value) -> list[torch.Tensor]:
    """All tensors in a result."""
    return [value] if isinstance(value, torch.Tensor) else [t for item in value for t in tensors_of(item)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
def test_results_are_those_of_the_cpu_and_born_on_the_device(device, host_visible, name, strided):
    host = sample((6, 4), torch.float32)
    there = host.to(device)
    if strided:
        host, there = host.t(), there.t()
    torch_outrigger.reset_fallback_report()
    expected, actual = tensors_of(CASES[name](host)), tensors_of(CASES[name](there))
    report = torch_outrigger.fallback_report()
    for result, truth in zip(actual, expected, strict=True):
        same(result, truth, rtol=1e-4, atol=1e-5)
        allocation = _C.pointer_info(result.data_ptr())
        assert allocation is not None and allocation["device"] == device.index, f"{name} is not in device memory"
    assert report and all(entry["calls"] >= 1 and entry["seconds"] > 0 for entry in report)
    if host_visible:
        assert all(entry["staged_bytes"] == 0 for entry in report), report
    elif name not in ("tril_indices",):
        assert any(entry["staged_bytes"] > 0 for entry in report), report


def test_calls_are_counted(device):
    tensor = sample((8,), torch.float32).to(device)
    torch_outrigger.reset_fallback_report()
    for _ in range(3):
        torch.digamma(tensor)
    assert {entry["operator"]: entry["calls"] for entry in torch_outrigger.fallback_report()} == {"digamma": 3}
    torch_outrigger.reset_fallback_report()
    assert torch_outrigger.fallback_report() == []


def test_native_operators_do_not_fall_back(device):
    a, b = sample((32, 32), torch.float32).to(device), sample((32, 32), torch.float32, 1).to(device)
    weight = torch.rand(32, device=device)
    torch_outrigger.reset_fallback_report()
    torch_outrigger.set_fallback_mode("framework:error")
    (a + b).mul_(2).relu().sum()
    torch.mm(a, b).t().contiguous().to(torch.float64).mean(0)
    torch.softmax(a, 1), torch.nn.functional.layer_norm(a, (32,), weight, weight)
    torch.zeros(4, device=device).fill_(3).copy_(torch.ones(4))
    assert torch_outrigger.fallback_report() == []


def test_in_place_and_out_variants_reach_the_device(device):
    host = sample((5, 3), torch.float32)
    there = host.to(device)
    same(there.t().cumsum_(1), host.clone().t().cumsum_(1))  # in place, strided
    same(there, host.cumsum(0))
    values, indices = torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device)
    torch.sort(there, dim=0, out=(values, indices))  # both are resized
    expected = torch.sort(host.cumsum(0), dim=0)
    same(values, expected.values)
    same(indices, expected.indices)


def test_buffers_that_no_schema_marks_as_written(device):
    host = torch.nn.BatchNorm1d(3)
    there = torch.nn.BatchNorm1d(3).to(device)
    data = sample((8, 3), torch.float32)
    same(there(data.to(device)).detach(), host(data).detach(), rtol=1e-5, atol=1e-5)
    same(there.running_mean, host.running_mean, rtol=1e-5, atol=1e-5)
    same(there.running_var, host.running_var, rtol=1e-5, atol=1e-5)
    same(there.num_batches_tracked, host.num_batches_tracked)


def test_fallbacks_obey_stream_order(device, module):
    tensor = torch.zeros(64, device=device)
    module.synchronize(device)
    torch_outrigger.reset_fallback_report()
    _C._sleep_on_stream(300, device.index)
    tensor.fill_(2)  # behind the sleep: who does not wait for it sees zeros, of which this is -infinity
    result = torch.digamma(tensor)
    after = result + 1
    place = {row["operator"]: row["place"] for row in torch_outrigger.operator_report()}
    assert place["digamma"] == "framework", "another operator is needed here: this one does not fall back"
    expected = torch.digamma(torch.full((64,), 2.0))
    same(result, expected)
    same(after, expected + 1)


def test_mode_warn_warns_once_per_operator(device):
    tensor = sample((8,), torch.float32).to(device)
    torch_outrigger.set_fallback_mode("warn")
    assert torch_outrigger.fallback_mode() == "warn"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.digamma(tensor)
        torch.digamma(tensor)
    about = [str(w.message) for w in caught if "digamma" in str(w.message)]
    assert len(about) == 1 and "CPU" in about[0]


def test_mode_error_names_the_operator_and_how_to_allow_it(device):
    tensor = sample((4,), torch.float32).to(device)
    torch_outrigger.set_fallback_mode("error")
    with pytest.raises(RuntimeError, match=r"OUTRIGGER_FALLBACK=error.*silent allow") as caught:
        torch.digamma(tensor)
    assert "digamma" in str(caught.value)
    torch_outrigger.set_fallback_mode("silent")
    same(torch.digamma(tensor), torch.digamma(sample((4,), torch.float32)))


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match="loud.*silent, warn or error"):
        torch_outrigger.set_fallback_mode("loud")


def test_an_error_of_the_cpu_kernel_leaves_everything_usable(device):
    with pytest.raises(RuntimeError, match="A must be batches of square matrices"):
        torch.linalg.inv(torch.ones(2, 3, device=device))
    outside = torch.empty(3)
    assert _C.pointer_info(outside.data_ptr()) is None  # CPU tensors are host memory again
    same(torch.digamma(torch.ones(2, device=device)), torch.digamma(torch.ones(2)))


def test_cpu_tensors_made_meanwhile_stay_on_the_host(device):
    torch.digamma(torch.rand(1000, device=device))
    assert _C.pointer_info(torch.empty(1000).data_ptr()) is None


def test_observers_are_told_of_fallbacks_and_memory(device, module):
    seen = []
    with module.observe(seen.append, ("alloc", "free", "fallback")):
        tensor = sample((100_000,), torch.float32).to(device)
        torch.digamma(tensor)
        address = tensor.data_ptr()
        del tensor
    count = len(seen)
    torch.digamma(sample((10,), torch.float32).to(device))
    assert len(seen) == count, "an observer that was removed is told nothing"
    assert [o.name for o in seen if o.kind == "fallback"] == ["digamma"]
    assert any(o.kind == "alloc" and o.address == address and o.size >= 400_000 for o in seen)
    assert any(o.kind == "free" and o.address == address for o in seen)


def test_an_exception_in_an_observer_is_reported_and_harmless(device, module, monkeypatch):
    reported = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: reported.append(args.exc_value))

    def broken(_event):
        raise KeyError("from the observer")

    with module.observe(broken, ("alloc",)):
        same(torch.full((1000,), 2.0, device=device), torch.full((1000,), 2.0))
    assert reported and isinstance(reported[0], KeyError)
