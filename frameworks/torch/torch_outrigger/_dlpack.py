"""DLPack for a renamed device.

torch 2.15 exports tensors of PrivateUse1 as kDLExtDev, but its `Tensor.__dlpack_device__` looks for the
name "privateuse1" and refuses a device that was renamed. This must change nothing for other devices.
"""

from __future__ import annotations

import functools

import torch
from torch.overrides import has_torch_function_unary


def patch(name: str) -> None:
    """Has tensors of the device called `name` answer `__dlpack_device__`. Once."""
    original = torch.Tensor.__dlpack_device__

    @functools.wraps(original)
    def dlpack_device(self: torch.Tensor) -> tuple[int, int]:
        if not has_torch_function_unary(self) and self.device.type == name:
            from torch.utils.dlpack import DLDeviceType

            return DLDeviceType.kDLExtDev, self.device.index or 0
        return original(self)

    torch.Tensor.__dlpack_device__ = dlpack_device
