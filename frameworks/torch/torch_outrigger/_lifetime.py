"""When the runtime starts, and what a forked child may do.

The runtime starts at the first use of a device, once per process. It must never be used in a child that
was forked after that: no driver survives a fork.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable

import torch

from . import _C

DeviceLike = torch.device | str | int | None
"""A device as functions here take it: None is the current one."""

_types: tuple[str, ...] = ()
_lock = threading.RLock()
_started_in: int | None = None
_waiting: dict[str, Callable[[], None]] = {}
_warned_of_no_device = False


def serve(types: tuple[str, ...]) -> None:
    """Tells which device types are served, that of PrivateUse1 first. Once."""
    global _types
    _types = types


def answer_to(device_type: str) -> None:
    """Has the functions of the package take devices of one more type's name for ours."""
    global _types
    _types = (*(name for name in _types if name != device_type), device_type)


def answer_no_more_to(device_type: str) -> None:
    """Undoes `answer_to`."""
    global _types
    _types = tuple(name for name in _types if name != device_type)


def device_type() -> str:
    """The name of the device type in torch: outrigger or a vendor's, or mtia where that alone is served."""
    return _types[0]


def is_served(device_type: str) -> bool:
    """Whether devices of this type are Outrigger's."""
    return device_type in _types


def is_initialized() -> bool:
    """Whether the runtime has started in this process."""
    return _started_in == os.getpid() or (is_served("mtia") and torch.mtia.is_initialized())


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one in which the runtime had started."""
    return _started_in is not None and _started_in != os.getpid()


def _lazy_init() -> None:
    """Starts the runtime. torch calls it before the first use of a device.

    RuntimeError names the reason if there is no device, or if the process was forked after the start.
    """
    global _started_in
    if is_initialized():
        return
    if _is_in_bad_fork():
        raise RuntimeError(
            f"Cannot re-initialize {device_type()} in forked subprocess. To use {device_type()} with multiprocessing, "
            "you must use the 'spawn' start method"
        )
    with _lock:
        if is_initialized():
            return
        _C.runtime_init()
        _started_in = os.getpid()
        waiting = list(_waiting.values())
        _waiting.clear()
        for action in waiting:
            action()


def when_initialized(key: str, action: Callable[[], None]) -> None:
    """Does something now if the runtime has started, else when it starts, in the order of these calls.

    A later action replaces a waiting one of the same key.
    """
    with _lock:
        if not is_initialized():
            _waiting.pop(key, None)
            _waiting[key] = action
            return
    action()


def device_count() -> int:
    """The number of devices. If there is none, a warning says why, once."""
    global _warned_of_no_device
    if _is_in_bad_fork():
        return 0
    try:
        _lazy_init()
    except RuntimeError as error:
        if not _warned_of_no_device:
            _warned_of_no_device = True
            warnings.warn(f"There is no {device_type()} device: {error}", RuntimeWarning, stacklevel=2)
        return 0
    return _C.device_count()


def device_index(device: DeviceLike) -> int:
    """The index of the device that is meant. RuntimeError if it does not exist, ValueError if it is of
    another type."""
    _lazy_init()
    if device is None:
        return torch.accelerator.current_device_index()
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if not is_served(device.type):
            raise ValueError(f"expected a device of type {' or '.join(_types)}, got {device}")
        if device.index is None:
            return torch.accelerator.current_device_index()
        device = device.index
    if not isinstance(device, int) or isinstance(device, bool):
        raise TypeError(f"expected a torch.device, a string, an index or None, got {device!r}")
    _C.check_device(device)
    return device
