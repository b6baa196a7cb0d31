"""The door to the device: opens it, and asks it for what the report shows.

Everything goes through stock PyTorch or the functions of `torch_outrigger` that no device type owns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch_outrigger
from torch_outrigger import _runtime as runtime


class NoDevice(RuntimeError):
    """The wanted device cannot be used; the message says why."""


@dataclass(frozen=True)
class MemorySample:
    """Device memory at one moment: bytes in tensors, and bytes that the allocator holds."""

    label: str
    allocated: int
    reserved: int


def open_device(name: str) -> torch.device:
    """The first device of the personality `name` (`outrigger` or `mtia`)."""
    if error := torch_outrigger.load_error():
        raise NoDevice(f"torch_outrigger did not load: {error}")
    if not getattr(torch, name).is_available():
        raise NoDevice(f"torch.{name} has no device; what was tried:\n{runtime.load_report()}")
    return torch.device(name, 0)


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile can make kernels for `device`: its driver takes source or functions of the host, and this version
    of torch is served."""
    from torch_outrigger.inductor.program import check_torch, language

    try:
        check_torch()
        language(device.index)
    except NotImplementedError:
        return False
    return True


def sample_memory(device: torch.device, label: str) -> MemorySample:
    """The memory that the allocator of `device` has handed out and holds now."""
    return MemorySample(
        label,
        torch.accelerator.memory_allocated(device),
        torch.accelerator.memory_reserved(device),
    )


def peak_memory(device: torch.device) -> int:
    """The most bytes that tensors on `device` held at once."""
    return torch.accelerator.max_memory_allocated(device)
