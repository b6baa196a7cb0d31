"""Helion: its autotuner knows the processors and the runtime of devices by name, where it sizes a grid and where it keeps a choice."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from .._after_import import after_import, replace

SEEN = ("1.5",)


class _Device:
    """A device in the key of a choice. Its type is one of those for which Helion asks for no version of a runtime: the name has all."""

    type = "mtia"

    def __init__(self, device: torch.device) -> None:
        from ..inductor.program import device_version

        self.name = f"{device.type}, {device_version(device.index)}, {torch.get_num_threads()} threads"


def serve(types: tuple[str, ...]) -> None:
    """Has Helion's autotuner serve devices of these types."""

    def change_grid(module: ModuleType) -> None:
        def counting(original: Any) -> Any:
            @functools.wraps(original)
            def get_num_sm(device: torch.device, *, reserved_sms: int = 0) -> int:
                if device.type not in types:
                    return original(device, reserved_sms=reserved_sms)
                units = torch.get_device_module(device).get_device_properties(device).compute_units
                return max(1, units - reserved_sms)

            return get_num_sm

        replace(module, "get_num_sm", counting)

    def change_key(module: ModuleType) -> None:
        extract, name = getattr(module, "extract_device", None), getattr(module, "get_device_name", None)
        if extract is None or name is None:
            return

        @functools.wraps(extract)
        def extract_device(args: Any) -> Any:
            found = extract(args)
            return _Device(found) if found is not None and found.type in types else found

        @functools.wraps(name)
        def get_device_name(device: Any = None) -> str | None:
            return device.name if isinstance(device, _Device) else name(device)

        # Other modules of Helion take the device itself.
        module.extract_device, module.get_device_name = extract_device, get_device_name

    after_import("helion.runtime", change_grid)
    after_import("helion.autotuner.local_cache", change_key)
