"""transformers: asks CUDA and others by name whether a capture runs, which device it uses, and what that can do."""

from __future__ import annotations

import functools
import inspect
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from .. import _C, _lifetime
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
                if found.type not in ("cpu", *types) and _lifetime.is_served(found.type) and self._n_gpu > 1:
                    # By CUDA's name Trainer would use DataParallel.
                    warnings.warn(
                        f"Trainer uses the first of {self._n_gpu} devices: torch.nn.DataParallel is for CUDA alone. "
                        f"Start it by torchrun --nproc-per-node={self._n_gpu} to use all of them",
                        stacklevel=2,
                    )
                    self._n_gpu = 1
                device = getattr(self.distributed_state, "device", found)
                if found.type != "cpu" or device.type not in types:
                    return found
                self._n_gpu = 1
                return device

            changed = functools.cached_property(_setup_devices)
            changed.__set_name__(module.TrainingArguments, "_setup_devices")
            return changed

        replace_in(module.TrainingArguments, "_setup_devices", choosing)

    def change_memory(module: ModuleType) -> None:
        """Trainer's figures of memory: the CPU's are transformers' own, ours stand beside them as those of other devices do."""
        tracker = module.TrainerMemoryTracker

        def deriving(original: Any) -> Any:
            @functools.wraps(original)
            def derive_stage(self: Any) -> str:
                # As the original does it, which counts frames, and does not know `start` below.
                frame = inspect.currentframe()
                while frame is not None and frame.f_code.co_name not in self.stages:
                    frame = frame.f_back
                return original(self) if frame is None else self.stages[frame.f_code.co_name]

            return derive_stage

        def starting(original: Any) -> Any:
            @functools.wraps(original)
            def start(self: Any) -> None:
                is_nested = self.skip_memory_metrics or self.cur_stage is not None
                original(self)
                device = chosen()
                if device is not None and not is_nested:
                    ours = torch.get_device_module(device)
                    ours.reset_peak_memory_stats()
                    ours.empty_cache()
                    self.gpu_mem_used_at_start = ours.memory_allocated()

            return start

        def stopping(original: Any) -> Any:
            @functools.wraps(original)
            def stop(self: Any, stage: str) -> None:
                device = chosen() if self.cur_stage in (None, stage) else None
                original(self, stage)
                if device is not None:
                    ours = torch.get_device_module(device)
                    ours.empty_cache()
                    begin, end = self.gpu_mem_used_at_start, ours.memory_allocated()
                    peaked = max(0, ours.max_memory_allocated() - end)
                    vars(self).setdefault("gpu", {})[stage] = {"begin": begin, "end": end, "alloc": end - begin, "peaked": peaked}

            return stop

        def updating(original: Any) -> Any:
            @functools.wraps(original)
            def update_metrics(self: Any, stage: str, metrics: dict[str, Any]) -> None:
                if self.skip_memory_metrics or chosen() is None:
                    return original(self, stage, metrics)
                # Without `torch` the tracker takes no figures of a device.
                self.torch = torch
                try:
                    original(self, stage, metrics)
                finally:
                    self.torch = None

            return update_metrics

        replace_in(tracker, "derive_stage", deriving)
        replace_in(tracker, "start", starting)
        replace_in(tracker, "stop", stopping)
        replace_in(tracker, "update_metrics", updating)

    def change_generation(module: ModuleType) -> None:
        def knowing(original: Any) -> Any:
            # Devices that compile are a constant of this function.
            return devices.knowing(original, types, {"cuda", "xpu"})

        replace_in(module.GenerationMixin, "_valid_auto_compile_criteria", knowing)

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
    after_import("transformers.trainer_utils", change_memory)
    after_import("transformers.generation.utils", change_generation)
    after_import("transformers.pipelines.base", change_pipelines)
