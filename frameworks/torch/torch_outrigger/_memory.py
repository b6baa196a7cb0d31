"""Memory of a device: what is used, what the cache holds, its limits.

The figures are torch's own (`torch.accelerator.memory`), under the names of `torch.cuda`. This must never
count anything itself.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from . import _C
from ._lifetime import DeviceLike, device_count, device_index

_NO_LIMIT = 2**64 - 1


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """Statistics of the caching allocator under torch's flat names, such as "allocated_bytes.all.current".

    The allocator has one pool: "all" is told, "small_pool" and "large_pool" stay 0.
    """
    return torch.accelerator.memory_stats(device_index(device))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that tensors occupy."""
    return torch.accelerator.memory_allocated(device_index(device))


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that tensors have occupied since `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(device_index(device))


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes that the cache has taken from the device."""
    return torch.accelerator.memory_reserved(device_index(device))


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes that the cache has held since `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_reserved(device_index(device))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Starts all peaks anew from the current values."""
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Starts all accumulated counts anew from 0."""
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of a device."""
    return torch.accelerator.get_memory_info(device_index(device))


def empty_cache() -> None:
    """Gives memory that is cached but not used back to the devices."""
    torch.accelerator.empty_cache()


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits what this process may take from a device to a part of its memory, from 0 to 1.

    1 lifts the limit. A request beyond it raises `torch.OutOfMemoryError`.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction must be from 0 to 1: {fraction}")
    index = device_index(device)
    total = _C.device_info(index)["total_memory"]
    _C.memory_set_limit(index, _NO_LIMIT if fraction == 1 else int(total * fraction))


def memory_snapshot(device: DeviceLike = None) -> list[dict[str, Any]]:
    """The segments that the cache holds and their blocks; of all devices, or of one."""
    indices = range(device_count()) if device is None else [device_index(device)]
    return [
        {"device": index, **segment}
        for index in indices
        for segment in json.loads(_C.memory_snapshot(index))["segments"]
    ]
