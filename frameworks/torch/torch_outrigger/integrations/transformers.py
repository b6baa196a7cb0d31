"""transformers: asks CUDA and others by name whether a capture runs, and which device Trainer uses."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from .. import _C
from .._after_import import after_import, replace


def serve(types: tuple[str, ...]) -> None:
    """Tells transformers of captures on devices of these types, and has Trainer use the device of Accelerate."""

    def change_captures(module: ModuleType) -> None:
        # Unless something captures, transformers looks at the values of a mask.
        def asking_us(original: Any) -> Any:
            def is_cuda_stream_capturing() -> bool:
                started = any(torch.get_device_module(each).is_initialized() for each in types)
                return original() or (started and _C.stream_is_capturing(-1))

            return is_cuda_stream_capturing

        replace(module, "is_cuda_stream_capturing", asking_us)

    def change_trainer(module: ModuleType) -> None:
        before = module.TrainingArguments._setup_devices

        def _setup_devices(self: Any) -> torch.device:
            found = before.func(self)
            chosen = getattr(self.distributed_state, "device", found)
            return chosen if found.type == "cpu" and chosen.type in types else found

        after = functools.cached_property(_setup_devices)
        after.__set_name__(module.TrainingArguments, "_setup_devices")
        module.TrainingArguments._setup_devices = after

    after_import("transformers.utils.import_utils", change_captures)
    after_import("transformers.training_args", change_trainer)
