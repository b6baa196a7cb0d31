"""The runtime below all device types: fallbacks, drivers, traces, observers.

It must never depend on which device types are served.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import _C
from ._kernels import Kernel, LocalMemory, compile_kernel
from .integrations.sharing import collect

__all__ = [
    "Kernel",
    "LocalMemory",
    "MemoryObserver",
    "Observation",
    "compile_kernel",
    "fallback_mode",
    "fallback_report",
    "get_sync_debug_mode",
    "host_view",
    "ipc_collect",
    "load_driver",
    "load_report",
    "observe",
    "operator_report",
    "reset_fallback_report",
    "set_fallback_mode",
    "set_sync_debug_mode",
    "set_threads",
    "timed_operators",
    "trace",
]

_KINDS = {
    "alloc": 1,
    "free": 2,
    "segment_alloc": 4,
    "segment_free": 8,
    "out_of_memory": 16,
    "fallback": 32,
    "host_kernel": 64,
}
_KIND_NAMES = {number: name for name, number in _KINDS.items()}


def fallback_report() -> list[dict[str, Any]]:
    """The operators that ran in torch's CPU kernels, the most expensive first, in the form of `operator_report`."""
    return json.loads(_C.fallback_report())


def operator_report() -> list[dict[str, Any]]:
    """The operators that ran so far, and the places where they ran.

    Each entry has `operator`; `place`: "device" (an operator of the driver; on a device that is the CPU also a kernel
    of Outrigger), "compiled" (kernels that were compiled for it: docs/compile.md), "host_kernel" (a kernel of Outrigger on
    the CPU) or "framework" (a CPU kernel of torch); `calls`; `seconds` of the `timed_calls` among them, without the wait
    for work that was submitted before, and with staging; and `staged_bytes` (copied between device and host for it; 0
    where the host sees the device's memory). CPU kernels of torch are always timed, those that were compiled never, the
    others within `timed_operators`.
    """
    untimed = {"timed_calls": 0, "seconds": 0.0, "staged_bytes": 0}
    compiled = [{"operator": name, "place": "compiled", "calls": calls, **untimed} for name, calls in _C.compiled_report().items()]
    return json.loads(_C.operator_report()) + compiled


def reset_fallback_report() -> None:
    """Forgets what `operator_report` and `fallback_report` have counted."""
    _C.fallback_reset()


@contextlib.contextmanager
def timed_operators() -> Iterator[None]:
    """Times each call of an operator, in the whole process. Each call is waited for meanwhile."""
    _C.operator_timing(1)
    try:
        yield
    finally:
        _C.operator_timing(0)


def fallback_mode() -> str:
    """The setting for operators that have no kernel on the device, in the form of `set_fallback_mode`."""
    return _C.fallback_policy()


def set_fallback_mode(mode: str) -> None:
    """Sets what happens if the device has no kernel for an operator, for the whole process.

    "silent" runs it on the CPU, "warn" also warns at the first run of each operator, "error" refuses it. Kernels of
    torch and of Outrigger can have a mode each, as in "framework:error,host:warn"; what is not named is silent.
    """
    try:
        _C.fallback_set_policy(mode)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"fallback mode {mode!r}: {error}") from None


def load_driver(spec: str | os.PathLike[str]) -> None:
    """Loads one more driver. Its devices get the next numbers.

    `spec` is a path or a built-in name, with options: `"host?face=discrete&devices=2"`.
    """
    _C.driver_load(os.fspath(spec))


def load_report() -> Any:
    """The drivers that were tried: which were taken, and which were refused and why."""
    return json.loads(_C.load_report())


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of a device tensor, without a copy; `.numpy()` of it is an array over this memory.

    It waits for the work on the current stream. For later work on the tensor the caller waits. NotImplementedError if
    the CPU does not see the device's memory.
    """
    return _C.host_view(tensor)


def ipc_collect() -> None:
    """Lets go of memory that was sent to other processes, and that none of them has any more.

    The next tensor that is sent does the same.
    """
    collect()


_SYNC_MODES = {"default": 0, "warn": 1, "error": 2}


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Sets what happens when a call waits for the device without saying so in its name, such as `item()`, a copy to the
    CPU or an operator that runs there: "default" (0) nothing, "warn" (1) a warning, "error" (2) RuntimeError when it has
    waited.

    `synchronize` of devices, streams and events is not meant. The mode is that of all threads.
    """
    mode = _SYNC_MODES.get(debug_mode) if isinstance(debug_mode, str) else debug_mode
    if mode not in _SYNC_MODES.values():
        raise ValueError(f"sync debug mode {debug_mode!r} is unknown: it is one of {', '.join(map(repr, _SYNC_MODES))}")
    _C.set_sync_debug_mode(mode)


def get_sync_debug_mode() -> int:
    """The mode that `set_sync_debug_mode` has set: 0, 1 or 2."""
    return _C.sync_debug_mode()


def set_threads(threads: int) -> None:
    """Sets the number of threads of the library's own pool; 0 means as many as there are cores.

    While torch is loaded, host kernels run on torch's threads: use `torch.set_num_threads` for them.
    """
    if threads < 0:
        raise ValueError(f"the number of threads must not be negative: {threads}")
    _C.set_threads(threads)


@contextlib.contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Writes a trace to a file that Perfetto and chrome://tracing open.

    It contains fallbacks, the log of the drivers, and the work of the built-in driver. For the work of any other
    driver use the layer `trace` of `OUTRIGGER_LAYERS`.
    """
    _C.trace_begin(os.fspath(path))
    try:
        yield
    finally:
        _C.trace_end()


@dataclass(frozen=True, slots=True)
class Observation:
    """One event for an observer."""

    kind: str
    """One of "alloc", "free", "segment_alloc", "segment_free", "out_of_memory", "fallback", "host_kernel"."""
    device: int
    address: int
    """The address of block or segment; else 0."""
    size: int
    """Bytes of the block or segment, requested bytes, or bytes staged by a fallback."""
    allocated_bytes: int
    reserved_bytes: int
    name: str
    """The operator that fell back; else empty."""
    nanoseconds: int
    """The time that a fallback took; else 0."""


class MemoryObserver:
    """A function that is called for events, until `remove`. It is a context manager that removes itself."""

    def __init__(self, number: int) -> None:
        self._number: int | None = number

    def remove(self) -> None:
        """Ends the calls. None is running when this returns. A second call does nothing."""
        number, self._number = self._number, None
        if number is not None:
            _observers.discard(self)
            _C.observer_remove(number)

    def __enter__(self) -> MemoryObserver:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.remove()


_observers: set[MemoryObserver] = set()


def observe(function: Callable[[Observation], object], kinds: list[str] | tuple[str, ...] = tuple(_KINDS)) -> MemoryObserver:
    """Calls `function` for every event of these kinds, on the thread that caused it.

    An exception of `function` goes to `sys.unraisablehook`. Events that it causes itself are not reported.
    """
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown or not kinds:
        raise ValueError(f"{unknown or 'nothing'} to observe; there is: {', '.join(_KINDS)}")
    if not callable(function):
        raise TypeError("the observer must be callable")

    def tell(
        kind: int, device: int, address: int, size: int, allocated: int, reserved: int, name: str, nanoseconds: int
    ) -> None:
        function(Observation(_KIND_NAMES[kind], device, address, size, allocated, reserved, name, nanoseconds))

    observer = MemoryObserver(_C.observer_add(sum(_KINDS[kind] for kind in set(kinds)), tell))
    _observers.add(observer)
    return observer


@atexit.register
def _remove_observers() -> None:
    """Removes all observers, so that nothing calls into Python after it shuts down."""
    for observer in list(_observers):
        observer.remove()
