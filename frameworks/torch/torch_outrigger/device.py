"""The module `torch.outrigger`: devices, streams, events, memory, random numbers, fallbacks.

Names and behaviour follow `torch.cuda` where both have a thing. It must never do on import what needs
a device: torch imports it while it is being imported itself.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any

import torch

from torch_outrigger import _C
from torch_outrigger.memory import (
    empty_cache,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_outrigger.rng import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_outrigger.streams import Event, ExternalStream, Stream, StreamContext, current_stream, default_stream
from torch_outrigger.streams import set_stream, stream

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "driver_load",
    "empty_cache",
    "fallback_mode",
    "fallback_report",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "load_report",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_fallback_report",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_fallback_mode",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "trace",
]

_lock = threading.Lock()
_initialized = False
_in_bad_fork = False


def _after_fork() -> None:
    global _in_bad_fork
    _in_bad_fork = _initialized


os.register_at_fork(after_in_child=_after_fork)


def _is_in_bad_fork() -> bool:
    """True in a child process whose parent had used a device before the fork."""
    return _in_bad_fork


def _lazy_init() -> None:
    """Makes the devices ready. Called before their first use by this module and by torch."""
    global _initialized
    if _in_bad_fork:
        raise RuntimeError(
            "Cannot use an outrigger device in a forked subprocess: its parent used one before the fork. "
            "Use the 'spawn' start method of multiprocessing."
        )
    if _initialized:
        return
    with _lock:
        if not _initialized:
            if _C.device_count() == 0:
                raise RuntimeError(f"there is no outrigger device: {json.dumps(load_report())}")
            _initialized = True


def init() -> None:
    """Makes the devices ready; done by itself at the first use of one."""
    _lazy_init()


def is_initialized() -> bool:
    """Whether a device has been used by this process."""
    return _initialized and not _in_bad_fork


def is_available() -> bool:
    """Whether there is at least one device. Never raises."""
    return not _in_bad_fork and _C.device_count() > 0


def device_count() -> int:
    """The number of devices; 0 if none could be loaded (`load_report` says why)."""
    return 0 if _in_bad_fork else _C.device_count()


def _index(device: Any = None) -> int:
    """The index that a device argument means: an int, a string, a torch.device, or None for the current."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type not in ("outrigger", "mtia"):
        raise ValueError(f"expected an outrigger device, got {device}")
    return current_device() if device.index is None else device.index


def current_device() -> int:
    """The index of this thread's current device."""
    _lazy_init()
    return _C.current_device()


def set_device(device: Any) -> None:
    """Makes a device the current one of this thread."""
    _lazy_init()
    _C.set_device(_index(device))


class device:
    """Context manager that changes the current device of this thread."""

    def __init__(self, device: Any) -> None:
        self.idx = _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        if self.idx >= 0:
            set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        set_device(self.prev_idx)


class device_of(device):
    """Context manager that changes the current device to that of a tensor, if it is on one."""

    def __init__(self, obj: Any) -> None:
        ours = obj.device.type == "outrigger"
        super().__init__(obj.device.index if ours else -1)


def synchronize(device: Any = None) -> None:
    """Waits for all work on all streams of a device."""
    _lazy_init()
    _C.synchronize(_index(device))


def get_device_properties(device: Any = None) -> Any:
    """Name, vendor, driver, memory and more of a device."""
    from types import SimpleNamespace

    _lazy_init()
    return SimpleNamespace(**_C.properties(_index(device)))


def get_device_name(device: Any = None) -> str:
    """The name of a device."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The version of the driver contract that the device's driver implements."""
    _lazy_init()
    _C.properties(_index(device))
    return (1, 0)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What autocast may use on these devices."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Every device computes bfloat16: what has no kernel of its own runs on the CPU."""
    return including_emulation or is_available()


def driver_load(spec: str) -> None:
    """Loads one more driver, as in OUTRIGGER_DRIVER, and adds its devices."""
    _C.driver_load(spec)


def load_report() -> Any:
    """Which drivers were tried, taken and refused, and why."""
    return json.loads(_C.load_report())


def fallback_report() -> list[dict[str, Any]]:
    """Operators that ran on the CPU: calls, seconds, bytes staged; the most expensive first."""
    return json.loads(_C.fallback_report())


def reset_fallback_report() -> None:
    """Forgets all counts of `fallback_report`."""
    _C.fallback_reset()


def fallback_mode() -> str:
    """What happens when an operator runs on the CPU: "silent", "warn" or "error"."""
    return _C.fallback_mode()


def set_fallback_mode(mode: str) -> None:
    """Sets what happens when an operator runs on the CPU: "silent", "warn" or "error"."""
    _C.set_fallback_mode(mode)


class trace:
    """Context manager that writes what devices run to a file that Perfetto opens."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def __enter__(self) -> None:
        _C.trace_begin(self.path)

    def __exit__(self, *_: object) -> None:
        _C.trace_end()
