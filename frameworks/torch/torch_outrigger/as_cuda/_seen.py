"""Answers to the program's own modules that ask what a device is called: CUDA. `_rewrite` puts calls of these there.

torch.compile traces these functions, so they are plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._distributed import NAME as _BACKEND
from .._lifetime import device_type

_OURS = device_type()
_DEVICES = frozenset([torch.device(_OURS), *(torch.device(_OURS, index) for index in range(128))])
"""All of our devices that torch can number. Looking one up takes less than half of the time that the type of a device takes, which is a new text."""


def ours(device: torch.device) -> torch.device:
    """Our device for one that is called CUDA's; any other as it is."""
    if device.type != "cuda":
        return device
    return torch.device(_OURS) if device.index is None else torch.device(_OURS, device.index)


def type_of(value: Any) -> Any:
    """`value.type`"""
    found = value.type
    return "cuda" if isinstance(value, torch.device) and found == _OURS else found


def type_name(value: Any) -> Any:
    """`value.type()`, which names a class for tensors and storages."""
    found = value.type()
    return found.replace(f"torch.{_OURS}.", "torch.cuda.") if isinstance(found, str) else found


def is_cuda(value: Any) -> Any:
    """`value.is_cuda`"""
    return value.device in _DEVICES if isinstance(value, torch.Tensor) else value.is_cuda


def shown(value: Any) -> Any:
    """A value of an f-string, or of `str`."""
    if not isinstance(value, torch.device) or value.type != _OURS:
        return value
    return "cuda" if value.index is None else f"cuda:{value.index}"


def text(function: Callable[..., Any], value: Any) -> Any:
    """`str(value)`, if the name still means that."""
    return function(shown(value) if function is str else value)


def made(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """`torch.device(...)`: the device itself, so that the program's devices are those of its tensors."""
    result = function(*arguments, **keywords)
    return ours(result) if function is torch.device else result


def compared(value: Any) -> Any:
    """One side of a comparison with a device."""
    return ours(value) if isinstance(value, torch.device) else value


def backend(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """`get_backend()` of torch.distributed."""
    result = function(*arguments, **keywords)
    return "nccl" if result == _BACKEND else result
