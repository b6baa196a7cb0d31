"""peft: asks CUDA and others by name which device there is, and takes the CPU instead of others."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from .._after_import import after_import, replace
from . import devices

SEEN = ("0.21",)


def serve(types: tuple[str, ...]) -> None:
    """Has peft load adapters to devices of these types."""

    def change(module: ModuleType) -> None:
        def choosing(original: Any) -> Any:
            @functools.wraps(original)
            def infer_device() -> str:
                found = original()
                device = devices.chosen(types) if found == "cpu" else None
                return found if device is None else device.type

            return infer_device

        replace(module, "infer_device", choosing)

    after_import("peft.utils.other", change)
