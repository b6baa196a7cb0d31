"""torch's own `torch.mtia` on an Outrigger device. Other tests run on it too, with `--device mtia`."""

from __future__ import annotations

import pytest
from support import run_python

PROGRAM = """
    import torch

    assert torch.mtia.is_available()
    count = torch.mtia.device_count()
    assert count == torch.accelerator.device_count() > 0
    assert torch.accelerator.current_accelerator().type == "mtia"
    torch.mtia.init()
    assert torch.mtia.is_initialized() and not torch.mtia._is_in_bad_fork()
    assert torch.mtia.current_device() == 0

    x = torch.arange(6.0, device="mtia").reshape(2, 3)
    assert x.device == torch.device("mtia", 0) and (x @ x.t()).tolist() == [[5.0, 14.0], [14.0, 50.0]]
    assert torch.mtia.default_stream() == torch.mtia.current_stream()

    stream = torch.mtia.Stream()
    with torch.mtia.stream(stream):
        assert torch.mtia.current_stream() == stream
        y = x * 2
        event = torch.mtia.Event()
        event.record()
    event.synchronize()
    assert event.query() and y.sum().item() == 30
    stream.wait_stream(torch.mtia.default_stream())
    torch.mtia.synchronize()

    stats = torch.mtia.memory_stats()
    allocated = torch.mtia.memory_allocated()
    kept = torch.empty(1 << 20, device="mtia")
    assert torch.mtia.memory_allocated() >= allocated + (4 << 20)
    assert torch.mtia.max_memory_allocated() >= torch.mtia.memory_allocated()
    torch.mtia.reset_peak_memory_stats()
    torch.mtia.empty_cache()
    properties = torch.mtia.get_device_properties()
    assert properties["total_memory"] > 0, properties
    assert len(torch.mtia.get_device_capability()) == 2

    torch.mtia.manual_seed(3)
    first = torch.rand(9, device="mtia")
    state = torch.mtia.get_rng_state()
    second = torch.rand(9, device="mtia")
    torch.mtia.set_rng_state(state)
    assert torch.equal(torch.rand(9, device="mtia"), second) and not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(9, device="mtia"), first)

    if count > 1:
        with torch.mtia.device(1):
            assert torch.empty(1, device="mtia").device.index == 1 == torch.mtia.current_device()
        assert torch.mtia.current_device() == 0
        torch.mtia.set_device(1)
        assert torch.mtia.current_device() == 1
        torch.mtia.set_device(0)

    model = torch.nn.Linear(3, 1).to("mtia")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10, losses
    pinned = torch.ones(4).pin_memory()
    assert pinned.is_pinned() and pinned.to("mtia", non_blocking=True).sum().item() == 4
    assert torch_outrigger.fallback_report() is not None
    print("done")
"""


def test_torch_mtia():
    result = run_python("    import torch_outrigger" + PROGRAM, OUTRIGGER_TORCH="mtia")
    assert result.returncode == 0 and result.stdout.endswith("done\n"), result.stdout + result.stderr


@pytest.mark.usefixtures("once")
def test_mtia_is_there_however_torch_is_first_asked():
    for first in ("torch.accelerator.is_available()", "torch.Event()", "torch.ones(1).pin_memory()"):
        result = run_python(f"import torch; {first}; print(torch.ones(2, device='mtia').sum().item())", OUTRIGGER_TORCH="mtia")
        assert result.stdout == "2.0\n", f"{first}: {result.stderr}"


@pytest.mark.usefixtures("once")
def test_mtia_is_left_alone_unless_chosen():
    result = run_python("import torch; print(torch.mtia.is_available())", OUTRIGGER_TORCH="outrigger")
    assert result.stdout == "False\n", result.stderr
