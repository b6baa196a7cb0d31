"""Memory of a device: what is used, what the cache holds, its limits, its history, pools.

Names and meanings are those of `torch.cuda.memory`; what PyTorch does not have is at the end. This module must
never count anything itself: the figures are the runtime's.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from . import _C, _snapshot as _snapshots
from ._lifetime import DeviceLike, _lazy_init, device_count, device_index, device_type, is_initialized
from ._pools import MemPool, use_mem_pool
from ._summary import summary

__all__ = [
    "MemPool",
    "attach_out_of_memory_observer",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "empty_cache",
    "empty_host_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "label",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_holders",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "memory_trace",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "trim_cache",
    "use_mem_pool",
]

_HOST = -1
_STACKS = {None: 0, "python": 1, "all": 2}
_CONTEXTS = (None, "state", "alloc", "all")


# ---- figures ---------------------------------------------------------------------------------------


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """Statistics of the caching allocator under torch's flat names, such as "allocated_bytes.all.current".

    Beside torch's there are `num_maps`, `num_unmaps`, `num_views`, `num_view_reuses` (large requests that idle
    memory from several places served), `num_stream_waits` and `num_host_waits`.
    """
    if not is_initialized():
        return collections.OrderedDict()
    stats = dict(torch.accelerator.memory_stats(device_index(device)))
    stats.update(_C.memory_stats(device_index(device)))
    return collections.OrderedDict(sorted(stats.items()))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """`memory_stats` with a dictionary for each part of the names."""
    return _nested(memory_stats(device))


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
    """Resets all peaks to the current values."""
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Resets all accumulated counts to 0."""
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """The statistics of a device as a table; `abbreviated` leaves out the size classes."""
    index = device_index(device)
    return summary(f"{device_type()}:{index}", memory_stats(index), abbreviated)


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of a device."""
    return torch.accelerator.get_memory_info(device_index(device))


def host_memory_stats() -> dict[str, Any]:
    """Statistics of pinned memory under the names of `torch.cuda.host_memory_stats`.

    "allocations" and "allocated_bytes" count memory that is held from the system; "active_requests" and
    "active_bytes" count the part of it that is in use. Times are not measured.
    """
    if not is_initialized():
        return collections.OrderedDict()
    stats = _C.memory_stats(_HOST)
    names = {
        "allocations": "segment",
        "allocated_bytes": "reserved_bytes",
        "active_requests": "active",
        "active_bytes": "active_bytes",
    }
    result = {
        f"{name}.{field}": stats[f"{ours}.all.{field}"]
        for name, ours in names.items()
        for field in ("current", "peak", "allocated", "freed")
    }
    result["num_host_alloc"] = stats["num_device_alloc"]
    result["num_host_free"] = stats["num_device_free"]
    return collections.OrderedDict(sorted(result.items()))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """`host_memory_stats` with a dictionary for each part of the names."""
    return _nested(host_memory_stats())


def reset_peak_host_memory_stats() -> None:
    """Resets the peaks of pinned memory to the current values."""
    _lazy_init()
    _C.host_reset_peak()


def reset_accumulated_host_memory_stats() -> None:
    """Resets the accumulated counts of pinned memory to 0."""
    _lazy_init()
    _C.host_reset_accumulated()


def get_allocator_backend() -> str:
    """The allocator that serves tensors: "native", there is no other."""
    return "native"


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *parts, last = name.split(".")
        place = nested
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


# ---- cache and limits ------------------------------------------------------------------------------


def empty_cache() -> None:
    """Gives memory that is cached but not used back to the devices."""
    torch.accelerator.empty_cache()


def empty_host_cache() -> None:
    """Gives pinned memory that is cached but not used back to the system."""
    torch.accelerator.empty_host_cache()


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits what this process may take from a device to a part of its memory, from 0 to 1.

    1 lifts the limit. A request beyond it raises `torch.OutOfMemoryError`.
    """
    if not isinstance(fraction, float | int) or isinstance(fraction, bool):
        raise TypeError(f"the fraction must be a number: {fraction!r}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction must be from 0 to 1: {fraction}")
    _C.memory_set_fraction(device_index(device), float(fraction))


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The part of a device's memory that this process may take: 1 without a limit."""
    return _C.memory_fraction(device_index(device))


def caching_allocator_alloc(size: int, device: DeviceLike = None, stream: torch.Stream | int | None = None) -> int:
    """Allocates bytes outside of any tensor, in the order of a stream (the current one), and gives their
    address. `caching_allocator_delete` frees them."""
    if size < 0:
        raise ValueError(f"the size must not be negative: {size}")
    index = device_index(device)
    if isinstance(stream, torch.Stream):
        stream = stream.stream_id or torch.accelerator.current_stream(index).stream_id
    return _C.memory_alloc(index, size, stream or 0)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees what `caching_allocator_alloc` has given."""
    _C.memory_free(mem_ptr)


def attach_out_of_memory_observer(observer: Callable[[int, int, int, int], object]) -> None:
    """Calls a function when a request cannot be met, before the error is raised. It replaces an earlier function.
    Its arguments are the device, the requested bytes, and the device's total and free bytes."""
    _lazy_init()
    _C.attach_out_of_memory_observer(observer)


# ---- snapshots and history -------------------------------------------------------------------------


def memory_snapshot(device: DeviceLike = None) -> list[dict[str, Any]]:
    """The segments that the cache holds and their blocks; of all devices, or of one."""
    _lazy_init()
    wanted = None if device is None else device_index(device)
    segments = _snapshots.take()["segments"]
    return [one for one in segments if wanted is None or one["device"] == wanted]


def _record_memory_history(
    enabled: Literal["state", "all"] | bool | None = "all",
    context: Literal["state", "alloc", "all"] | None = "all",
    stacks: Literal["python", "all"] = "all",
    max_entries: int = sys.maxsize,
    device: DeviceLike = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    """Keeps the places where memory was allocated, and with "all" also its events, for `_snapshot`.

    enabled: None ends it; "state" keeps the stacks of live memory; "all" also keeps the latest events.
    context: None keeps no stacks; "all" keeps those of allocations and frees; other values those of allocations.
    stacks: "all" also has C++ frames, which cost more.
    max_entries: the most events for each device.
    device: only this device; all by default.
    skip_actions: events that `_snapshot` leaves out.
    record_pinned_host_memory: pinned memory, too; record_cuda: the devices (the name is PyTorch's).
    """
    global _skipped
    _lazy_init()
    if isinstance(enabled, bool):
        enabled = "all" if enabled else None
    for name, value, known in (
        ("enabled", enabled, (None, "state", "all")),
        ("context", context, _CONTEXTS),
        ("stacks", stacks, ("python", "all")),
    ):
        if value not in known:
            raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(map(repr, known))}")
    if compile_context or global_record_annotations:
        raise NotImplementedError("compile_context and global_record_annotations are not recorded on this device")
    memories = [device_index(device)] if device is not None else list(range(device_count()))
    memories = (memories if record_cuda else []) + ([_HOST] if record_pinned_host_memory else [])
    if enabled is None:
        memories.append(_HOST)
    _skipped = tuple(skip_actions or ())
    entries = 0 if enabled == "state" else min(max_entries, sys.maxsize)
    kept = _STACKS[stacks] if context is not None else 0
    if enabled is not None:
        # Nothing asks for stacks once Python shuts down.
        atexit.unregister(_end_history)
        atexit.register(_end_history)
    for memory in memories:
        if enabled is None:
            _C.history_stop(memory)
            continue
        if clear_history:
            _C.history_clear(memory)
        _C.history_start(memory, entries, kept, context == "all")


_skipped: tuple[str, ...] = ()


def _end_history() -> None:
    for memory in [*range(device_count()), _HOST]:
        _C.history_stop(memory)


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """The state of the memory of all devices as PyTorch's memory snapshots have it: "segments",
    "device_traces" (the events of each device, if `_record_memory_history` keeps some), "host_segments" and
    "host_traces". Labels are "label" of blocks, and "user_metadata" of events."""
    if augment_with_fx_traces:
        raise NotImplementedError("snapshots of this device have no traces of FX graphs")
    _lazy_init()
    snapshot = _snapshots.take(skip_actions=_skipped)
    if device is not None:
        index = device_index(device)
        snapshot["segments"] = [one for one in snapshot["segments"] if one["device"] == index]
    return snapshot


def _dump_snapshot(filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Pickles `_snapshot` to a file for PyTorch's viewer, pytorch.org/memory_viz."""
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(snapshot, file)


# ---- labels ----------------------------------------------------------------------------------------


class _Metadata(threading.local):
    text = ""


_metadata = _Metadata()


def _set_memory_metadata(metadata: str | dict[str, Any]) -> None:
    """Labels what this thread allocates from now on; the label replaces an earlier one, and "" ends it."""
    text = json.dumps(metadata, separators=(",", ":")) if isinstance(metadata, dict) else metadata
    if _metadata.text:
        _C.label_pop()
        _metadata.text = ""
    if text:
        _C.label_push(text)
        _metadata.text = text


def _get_memory_metadata() -> str:
    """The label that `_set_memory_metadata` has set on this thread."""
    return _metadata.text


@contextlib.contextmanager
def label(name: str) -> Iterator[None]:
    """Labels what this thread allocates in the context, on any device. Labels nest. They appear in snapshots, in
    `memory_holders`, and in the error when memory runs out. Autograd's threads have labels of their own."""
    _C.label_push(name)
    try:
        yield
    finally:
        _C.label_pop()


def memory_holders(device: DeviceLike = None, count: int = 10) -> list[dict[str, Any]]:
    """The labels that hold most memory in use, the largest first: "label" (None for memory without one),
    "bytes" and "blocks", of what was allocated since the first label or the start of the history."""
    return json.loads(_C.memory_holders(device_index(device), count))


# ---- what PyTorch does not have --------------------------------------------------------------------


def trim_cache(keep: int = 0, device: DeviceLike = None) -> int:
    """Gives memory that is cached but not used back to a device until at most `keep` bytes of it are left.
    Returns how many bytes it gave back."""
    return _C.memory_trim(device_index(device), keep)


class memory_trace:
    """A context that writes all allocations and frees on a device to a file. `outrigger memory` draws the file, and
    the benchmarks replay it."""

    def __init__(self, path: str, device: DeviceLike = None) -> None:
        self._path = path
        self._device = device_index(device)

    def __enter__(self) -> memory_trace:
        _C.memory_trace_start(self._device, self._path)
        return self

    def mark(self, name: str) -> None:
        """Notes that a step begins. Waits for the device."""
        _C.memory_trace_mark(self._device, name)

    def __exit__(self, *_exception: object) -> None:
        _C.memory_trace_stop(self._device)
