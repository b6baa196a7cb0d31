"""Questions of torch.compile and torch's profiler to a device."""

from __future__ import annotations

import pytest
import torch
from support import run_python
from torch.autograd import profiler


@pytest.mark.usefixtures("once")
@pytest.mark.not_on_mtia("torch has an interface of its own for MTIA, and asks it for the device")
@pytest.mark.parametrize("order", ["dynamo first", "device first"])
@pytest.mark.takes_turns
def test_dynamo_knows_the_device_and_does_not_start_the_runtime(order):
    finished = run_python(
        f"""
        import sys
        import torch

        assert "torch._dynamo" not in sys.modules
        if {order!r} == "device first":
            torch.ones(2, device="outrigger")
        from torch._dynamo.device_interface import get_interface_for_device, get_registered_device_interfaces

        interface = get_interface_for_device("outrigger")
        assert ("outrigger", interface) in list(get_registered_device_interfaces())
        assert interface.is_available() == ({order!r} == "device first") == torch.outrigger.is_initialized()
        x = torch.ones(2, device="outrigger")
        assert interface.is_available() and interface.device_count() == torch.outrigger.device_count()
        assert interface.current_device() == 0 and interface.get_device_properties(0).name
        with interface.device(0):
            interface.synchronize()
        assert interface.current_stream() == torch.outrigger.current_stream()
        assert torch.compile(lambda y: y + 1, backend="aot_eager")(x).sum().item() == 4
        """
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.not_on_mtia("torch adds up the device times of CUDA, XPU and PrivateUse1 alone")
def test_the_profiler_times_operators_on_the_device(device, timestamps):
    x = torch.randn(64, 64, device=device)
    with profiler.profile(use_device="outrigger") as profile:
        x @ x
        torch.cumsum(x, 0)
    events = {event.name: event for event in profile.function_events}
    assert {"aten::mm", "aten::cumsum"} <= set(events)
    assert all(event.cpu_time_total >= 0 and event.device_time_total >= 0 for event in events.values())
    assert sum(event.device_time_total for event in events.values()) > 0
