"""torch.nn.attention.flex_attention: its list of devices has ours, too."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from .._after_import import after_import, replace


def serve(types: tuple[str, ...]) -> None:
    """Lets flex_attention take tensors of these device types."""

    def change(module: ModuleType) -> None:
        def accepting(original: Any) -> Any:
            @functools.wraps(original)
            def validate(query: Any, key: Any, value: Any) -> None:
                if query.device.type not in types:
                    original(query, key, value)

            return validate

        replace(module, "_validate_device", accepting)

    after_import("torch.nn.attention.flex_attention", change)
