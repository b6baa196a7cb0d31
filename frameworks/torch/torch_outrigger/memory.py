"""Device memory: statistics, the cache, limits. The figures are the runtime's own.

It must never count anything itself.
"""

from __future__ import annotations

import json
from typing import Any


from torch_outrigger import _C


def _index(device: Any) -> int:
    from torch_outrigger import device as module

    module._lazy_init()
    return module._index(device)


def memory_stats(device: Any = None) -> dict[str, int]:
    """All statistics of a device's memory, under the names of `torch.cuda.memory_stats`."""
    index = _index(device)
    return dict(_C.memory_stats(index))


def memory_allocated(device: Any = None) -> int:
    """Bytes in use by tensors."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Any = None) -> int:
    """Most bytes in use by tensors since the peaks were reset."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Any = None) -> int:
    """Bytes that the cache holds, in use or not."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Any = None) -> int:
    """Most bytes that the cache held since the peaks were reset."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Starts the peaks anew from the current values."""
    _C.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Starts the accumulated counts anew from 0."""
    _C.reset_accumulated_memory_stats(_index(device))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of a device."""
    return _C.memory_info(_index(device))


def memory_snapshot(device: Any = None) -> Any:
    """All segments of a device's memory and their blocks."""
    return json.loads(_C.memory_snapshot(_index(device)))


def empty_cache() -> None:
    """Gives cached memory that is not in use back to the drivers of all devices."""
    from torch_outrigger import device as module

    if module.is_initialized():
        for index in range(module.device_count()):
            _C.empty_cache(index)


_fractions: dict[int, float] = {}


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limits this process to a part of a device's memory; more is an out-of-memory error."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction {fraction} is not between 0 and 1")
    index = _index(device)
    _C.memory_set_limit(index, int(fraction * _C.properties(index)["total_memory"]))
    _fractions[index] = fraction


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part of a device's memory that this process may use."""
    return _fractions.get(_index(device), 1.0)


