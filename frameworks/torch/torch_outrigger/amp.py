"""`torch.outrigger.amp`: mixed precision under the device's own name, as `torch.cuda.amp` has it for CUDA.

`torch.amp` takes the name of any device; this module is for programs that replace one device's name by another's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ._lifetime import device_type

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.autocast):
    """`torch.autocast` for this device type."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True) -> None:
        super().__init__(device_type(), enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` for this device type."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(device_type(), *arguments, **keywords)


def custom_fwd(fwd: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None) -> Callable[..., Any]:
    """`torch.amp.custom_fwd` for this device type."""
    if fwd is None:
        return functools.partial(custom_fwd, cast_inputs=cast_inputs)
    return torch.amp.custom_fwd(fwd, device_type=device_type(), cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.amp.custom_bwd` for this device type."""
    return torch.amp.custom_bwd(bwd, device_type=device_type())
