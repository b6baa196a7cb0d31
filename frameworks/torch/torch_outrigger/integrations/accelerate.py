"""Accelerate, and what stands on it (Trainer and device_map of transformers): uses our devices where it finds no others."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from .._after_import import after_import, replace


def serve(types: tuple[str, ...]) -> None:
    """Has Accelerate choose devices of these types."""

    def ours() -> Any:
        """Our device without its number if Accelerate should use it, else None."""
        found = torch.accelerator.current_accelerator(check_available=True)
        return found if found is not None and found.type in types else None

    def change_state(module: ModuleType) -> None:
        before = module.PartialState.default_device

        def default_device(self: Any) -> torch.device:
            found = before.fget(self)
            return (ours() or found) if found.type == "cpu" else found

        module.PartialState.default_device = property(default_device, doc=before.__doc__)

    def change_memory(module: ModuleType) -> None:
        def with_ours(original: Any) -> Any:
            @functools.wraps(original)
            def get_max_memory(max_memory: dict[int | str, int | str] | None = None) -> dict[int | str, int]:
                device = ours()
                if device is None:
                    return original(max_memory)
                if max_memory is None:
                    numbers = {index: torch.accelerator.get_memory_info(index)[0] for index in _all_devices()}
                    return {**numbers, **original({"cpu": _host_memory()})}
                unknown = [key for key in max_memory if isinstance(key, int) and key not in _all_devices()]
                if unknown:
                    raise ValueError(
                        f"max_memory names device {unknown[0]}, but {device.type} has {len(_all_devices())}, "
                        "numbered from 0"
                    )
                # Accelerate's own code turns texts into bytes, and warns of any number.
                size = module.convert_file_size_to_int
                numbers = {key: max_memory[key] for key in sorted(key for key in max_memory if isinstance(key, int))}
                others = {key: value for key, value in max_memory.items() if not isinstance(key, int)}
                return {**{key: size(value) for key, value in numbers.items()}, **original(others)}

            return get_max_memory

        replace(module, "get_max_memory", with_ours)

    after_import("accelerate.state", change_state)
    after_import("accelerate.utils.modeling", change_memory)


def _all_devices() -> range:
    return range(torch.accelerator.device_count())


def _host_memory() -> int:
    # Accelerate needs it itself.
    import psutil

    return psutil.virtual_memory().available
