"""The few places where torch itself must be told about our device types.

Each function says which line of torch makes it necessary, so that it can go when that line does.
It must never change what torch does for other devices.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

_OURS = ("outrigger", "mtia")


def _dlpack_device(types: tuple[str, ...]) -> None:
    # Tensor.__dlpack_device__ compares with the name "privateuseone", which is gone after renaming, and
    # does not know MTIA.
    original = torch.Tensor.__dlpack_device__

    @functools.wraps(original)
    def dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type in types:
            index = self.device.index
            return (DLDeviceType.kDLExtDev, 0 if index is None else index)
        return original(self)

    torch.Tensor.__dlpack_device__ = dlpack_device


def apply(types: tuple[str, ...]) -> None:
    """Applies what the served device types need."""
    ours = tuple(kind for kind in types if kind in _OURS)
    _dlpack_device(ours)
