"""safetensors: reads on the CPU, and copies to our devices, whose names it does not know."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from .._after_import import after_import, replace

SEEN = ("0.8",)


class _Slice:
    """A part of a tensor that has not been read yet. An index reads it."""

    def __init__(self, on_cpu: Any, device: torch.device) -> None:
        self._on_cpu = on_cpu
        self._device = device

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._on_cpu[index].to(self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._on_cpu, name)


class _File:
    """An open file whose tensors come on a device. What gives no tensors is the file's own."""

    def __init__(self, on_cpu: Any, device: torch.device) -> None:
        self._on_cpu = on_cpu
        self._device = device

    def __enter__(self) -> _File:
        self._on_cpu.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._on_cpu.__exit__(*exception)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._on_cpu.get_tensor(name).to(self._device)

    def get_tensors(self, *arguments: Any, **keywords: Any) -> dict[str, torch.Tensor]:
        tensors = self._on_cpu.get_tensors(*arguments, **keywords)
        return {name: tensor.to(self._device) for name, tensor in tensors.items()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._on_cpu.get_slice(name), self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._on_cpu, name)


def serve(types: tuple[str, ...]) -> None:
    """Has `safe_open`, and with it `load_file` and others, take devices of these types."""

    def device_of(given: Any) -> torch.device | None:
        """The device of ours that is meant, or None."""
        if isinstance(given, int) and not isinstance(given, bool):
            # A number is an accelerator for torch, and CUDA for safetensors.
            current = torch.accelerator.current_accelerator()
            given = None if current is None else torch.device(current.type, given)
        elif isinstance(given, str) and given.split(":")[0] in types:
            given = torch.device(given)
        return given if isinstance(given, torch.device) and given.type in types else None

    def serving(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def safe_open(filename: Any, framework: str, device: Any = "cpu", **keywords: Any) -> Any:
            ours = device_of(device)
            if ours is None:
                return original(filename, framework, device, **keywords)
            return _File(original(filename, framework, "cpu", **keywords), ours)

        return safe_open

    def change(module: ModuleType) -> None:
        replace(module, "safe_open", serving)

    after_import("safetensors", change)
