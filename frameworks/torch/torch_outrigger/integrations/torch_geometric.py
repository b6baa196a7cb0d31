"""PyTorch Geometric: knows CUDA and others by name where it chooses a device, prefetches, and makes the vectors of a batch."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from .._after_import import after_import, replace, replace_in
from . import devices

SEEN = ("2.8",)


def serve(types: tuple[str, ...]) -> None:
    """Has PyTorch Geometric use devices of these types."""

    def change_device(module: ModuleType) -> None:
        def choosing(original: Any) -> Any:
            @functools.wraps(original)
            def device(device: Any) -> torch.device:
                found = original(device)
                return devices.chosen(types) or found if device == "auto" else found

            return device

        replace(module, "device", choosing)

    def change_prefetching(module: ModuleType) -> None:
        def knowing(original: Any) -> Any:
            @functools.wraps(original)
            def __init__(self: Any, device: torch.device | None = None) -> None:
                original(self, device)
                wanted = devices.chosen(types) if device is None else self.device
                if wanted is not None and wanted.type in types:
                    self.device, self.is_gpu, self.module = wanted, True, torch.get_device_module(wanted)

            return __init__

        replace_in(module.DeviceHelper, "__init__", knowing)

    def change_batches(module: ModuleType) -> None:
        def moving(original: Any) -> Any:
            @functools.wraps(original)
            def collate(cls: type, data_list: Any, *arguments: Any, **keywords: Any) -> Any:
                out, slices, increments = original(cls, data_list, *arguments, **keywords)
                # The vectors that say to which graph a node belongs are made where the data is on CUDA, else on the CPU.
                tensors = [value for store in out.stores for value in store.values() if isinstance(value, torch.Tensor)]
                device = next((each.device for each in tensors if each.device.type in types), None)
                if device is not None:
                    for store in out.stores:
                        for name in [name for name in store.keys() if name.split("_")[-1] in ("batch", "ptr")]:
                            store[name] = store[name].to(device)
                return out, slices, increments

            return collate

        replace(module, "collate", moving)

    after_import("torch_geometric.data.collate", change_batches)
    after_import("torch_geometric.device", change_device)
    after_import("torch_geometric.loader.prefetch", change_prefetching)
