"""torchvision: its operators under autocast compute in float32, as torchvision has them do on other devices."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from .._after_import import after_import

SEEN = ("0.29",)

_OPERATORS = ("deform_conv2d", "nms", "ps_roi_align", "ps_roi_pool", "roi_align", "roi_pool")

_libraries: list[torch.library.Library] = []
"""Registrations last as long as their library."""


def serve(types: tuple[str, ...]) -> None:
    """Registers the operators for autocast on these device types when torchvision is imported."""

    def change(_module: ModuleType) -> None:
        library = torch.library.Library("torchvision", "IMPL")
        _libraries.append(library)
        for name in _OPERATORS:
            packet = getattr(torch.ops.torchvision, name, None)
            if packet is None:
                # torchvision without its compiled part.
                continue
            for device_type in types:
                key = "AutocastMTIA" if device_type == "mtia" else "AutocastPrivateUse1"
                library.impl(packet.default, _in_float(packet.default, device_type), key)

    after_import("torchvision", change)


def _in_float(operator: Any, device_type: str) -> Any:
    """The operator over float32, with results of the first tensor's type."""

    def run(*arguments: Any) -> Any:
        kind = arguments[0].dtype
        with torch.autocast(device_type, enabled=False):
            results = operator(*(_widened(each, device_type) for each in arguments))
        if isinstance(results, tuple):
            return tuple(_narrowed(each, kind) for each in results)
        return _narrowed(results, kind)

    return run


def _widened(value: Any, device_type: str) -> Any:
    eligible = isinstance(value, torch.Tensor) and value.is_floating_point() and value.device.type == device_type
    return value.float() if eligible and value.dtype is not torch.float64 else value


def _narrowed(value: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    # Indices stay what they are.
    return value.to(kind) if value.is_floating_point() else value
