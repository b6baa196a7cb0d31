"""transformers: asks CUDA and others by name whether a capture runs, which device it uses, and what that can do."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from .. import _C
from .._after_import import after_import, replace, replace_in
from . import devices

SEEN = ("5.24",)


def serve(types: tuple[str, ...]) -> None:
    """Has transformers see captures on devices of these types, and has Trainer and pipelines use them."""
    chosen = functools.partial(devices.chosen, types)

    def change_questions(module: ModuleType) -> None:
        # Unless something captures, transformers looks at the values of a mask.
        def asking_us(original: Any) -> Any:
            @functools.wraps(original)
            def is_cuda_stream_capturing() -> bool:
                started = any(torch.get_device_module(each).is_initialized() for each in types)
                return original() or (started and _C.stream_is_capturing(-1))

            return is_cuda_stream_capturing

        def asking_the_device(original: Any) -> Any:
            @functools.wraps(original)
            def is_torch_bf16_gpu_available() -> bool:
                device = chosen()
                return original() if device is None else torch.get_device_module(device).is_bf16_supported()

            return is_torch_bf16_gpu_available

        replace(module, "is_cuda_stream_capturing", asking_us)
        replace(module, "is_torch_bf16_gpu_available", asking_the_device)

    def change_arguments(module: ModuleType) -> None:
        def choosing(original: Any) -> Any:
            @functools.wraps(original.func)
            def _setup_devices(self: Any) -> torch.device:
                found = original.func(self)
                device = getattr(self.distributed_state, "device", found)
                if found.type != "cpu" or device.type not in types:
                    return found
                self._n_gpu = 1
                return device

            changed = functools.cached_property(_setup_devices)
            changed.__set_name__(module.TrainingArguments, "_setup_devices")
            return changed

        replace_in(module.TrainingArguments, "_setup_devices", choosing)

    def change_trainer(module: ModuleType) -> None:
        def file(trainer: Any, folder: str) -> Path:
            number = f"_{trainer.args.process_index}" if trainer.args.world_size > 1 else ""
            return Path(folder) / f"rng_state{number}.pth"

        def saving(original: Any) -> Any:
            @functools.wraps(original)
            def _save_rng_state(self: Any, output_dir: str) -> None:
                original(self, output_dir)
                if self.args.device.type in types:
                    devices.save_random_states(file(self, output_dir), self.args.device.type)

            return _save_rng_state

        def loading(original: Any) -> Any:
            @functools.wraps(original)
            def _load_rng_state(self: Any, checkpoint: str | None) -> None:
                original(self, checkpoint)
                if checkpoint is not None and self.args.device.type in types:
                    devices.load_random_states(file(self, checkpoint), self.args.device.type)

            return _load_rng_state

        replace_in(module.Trainer, "_save_rng_state", saving)
        replace_in(module.Trainer, "_load_rng_state", loading)

    def change_pipelines(module: ModuleType) -> None:
        def choosing(original: Any) -> Any:
            signature = inspect.signature(original)

            @functools.wraps(original)
            def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
                given = signature.bind(self, *arguments, **keywords)
                number = given.arguments.get("device")
                if number is None and getattr(given.arguments["model"], "hf_device_map", None) is None:
                    number = 0
                device = chosen()
                # A number is an accelerator; transformers knows some by name, and takes the CPU instead of others.
                if device is not None and isinstance(number, int) and number >= 0:
                    given.arguments["device"] = torch.device(device.type, number)
                original(*given.args, **given.kwargs)

            return __init__

        replace_in(module.Pipeline, "__init__", choosing)

    def change_batching(module: ModuleType) -> None:
        def leaving_out(original: Any) -> Any:
            @functools.wraps(original)
            def create_device_stream(device: torch.device) -> Any:
                # Batches are made on the current stream, and computed on this one without an event between the two.
                return None if device.type in types else original(device)

            return create_device_stream

        def measuring(original: Any) -> Any:
            @functools.wraps(original)
            def get_device_and_memory_breakdown() -> tuple[torch.device, int, int, int]:
                device = chosen()
                if device is None:
                    return original()
                module = torch.get_device_module(device)
                module.synchronize()
                module.empty_cache()
                free, total = module.mem_get_info()
                return device, total, module.memory_reserved(), total - free

            return get_device_and_memory_breakdown

        replace(module, "create_device_stream", leaving_out)
        replace(module, "get_device_and_memory_breakdown", measuring)

    after_import("transformers.generation.continuous_batching.utils", change_batching)
    after_import("transformers.utils.import_utils", change_questions)
    after_import("transformers.training_args", change_arguments)
    after_import("transformers.trainer", change_trainer)
    after_import("transformers.pipelines.base", change_pipelines)
