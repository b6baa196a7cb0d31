"""`torch.outrigger.amp` and `torch.mtia.amp`: mixed precision under the device's own name, as `torch.cuda.amp` has it.

`torch.amp` takes the name of any device; these modules are for programs that replace one device's name by another's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch


def module_of(device_type: str) -> ModuleType:
    """The module `amp` of a device type."""

    class autocast(torch.autocast):
        """`torch.autocast` for this device type."""

        def __init__(self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True) -> None:
            super().__init__(device_type, enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)

    class GradScaler(torch.amp.GradScaler):
        """`torch.amp.GradScaler` for this device type."""

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(device_type, *arguments, **keywords)

    def custom_fwd(
        fwd: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None
    ) -> Callable[..., Any]:
        """`torch.amp.custom_fwd` for this device type."""
        if fwd is None:
            return functools.partial(custom_fwd, cast_inputs=cast_inputs)
        return torch.amp.custom_fwd(fwd, device_type=device_type, cast_inputs=cast_inputs)

    def custom_bwd(bwd: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.amp.custom_bwd` for this device type."""
        return torch.amp.custom_bwd(bwd, device_type=device_type)

    made = ModuleType(f"torch.{device_type}.amp", __doc__)
    members = (GradScaler, autocast, custom_bwd, custom_fwd)
    for member in members:
        # Pickle looks for the member by these names.
        member.__module__, member.__qualname__ = made.__name__, member.__name__
        setattr(made, member.__name__, member)
    made.__all__ = [member.__name__ for member in members]
    return made
