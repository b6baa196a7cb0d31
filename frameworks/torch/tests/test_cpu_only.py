"""Programs that never ask for a device, with the package installed: no driver is opened for them."""

from __future__ import annotations

import os

import pytest
from support import run_python

WORK = {
    # Through oneDNN, which takes its memory from the CPU allocator as bare pointers.
    "convolution": "torch.nn.Conv2d(16, 32, 3)(torch.randn(8, 16, 56, 56))",
    "mkldnn": "torch.mm(torch.randn(64, 64).to_mkldnn().to_dense(), torch.ones(64, 64)).to_mkldnn().relu().to_dense()",
    "lstm": "torch.nn.LSTM(8, 8)(torch.randn(4, 2, 8))",
    "seeds": "torch.manual_seed(3); torch.get_rng_state()",
    "pinned": "assert not torch.ones(2).is_pinned(); torch.ones(3).untyped_storage().is_pinned()",
    "saving": "import io; file = io.BytesIO(); torch.save(torch.ones(3), file); file.seek(0); torch.load(file)",
}


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("name", WORK)
def test_no_driver_is_opened(name, device_type):
    """The driver that the environment names while the work runs does not exist; the one that it names after it
    does, so whoever opened the first has no device. A fork before the first use of a device is no fork of a driver."""
    finished = run_python(
        f"""
        import os
        import torch

        for _ in range(2):
            {WORK[name]}
        os.environ["OUTRIGGER_DRIVER"] = {os.environ.get("OUTRIGGER_DRIVER", "host")!r}
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.ones(2, device="{device_type}").sum().item() == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.ones(2, device="{device_type}").sum().item() == 2
        """,
        OUTRIGGER_DRIVER="/nonexistent/driver.so",
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.usefixtures("once")
def test_memory_of_the_cpu_is_freed_as_what_it_is(device_type):
    """oneDNN keeps memory between calls: what it took for an operator of the device, and what it took for the CPU."""
    finished = run_python(
        f"""
        import torch

        x, layer = torch.randn(2, 16, 28, 28), torch.nn.Conv2d(16, 32, 3)
        expected = layer(x)
        there = layer.to("{device_type}")
        for _ in range(3):
            assert torch.allclose(there(x.to("{device_type}")).cpu(), expected, atol=1e-5)
            assert torch.allclose(torch.nn.functional.conv2d(x, there.weight.cpu(), there.bias.cpu()), expected, atol=1e-5)
            torch.randn(64, 64).to_mkldnn().to_dense()
        kept = torch.nonzero(torch.ones(1000, device="{device_type}"))
        torch.{device_type}.synchronize()
        assert kept.sum().item() == 499500
        """
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
