"""Pools of memory that a host chooses: `torch.cuda.MemPool` for these devices, and pools that sleep.

A pool has one name for memory of all devices; graphs can be captured into it by its id. It must never outlive its
last user: memory in use stays with its user.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from . import _C, _snapshot
from ._lifetime import DeviceLike, _lazy_init, device_index

PoolId = tuple[int, int]

_NO_LIMIT = 2**64 - 1


class MemPool:
    """A pool of memory. Within `use_mem_pool` this thread allocates from it.

    `torch.cuda.MemPool` also has allocator, use_on_oom and no_split; they have no counterpart here.
    """

    def __init__(self, allocator: object = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        if allocator is not None or use_on_oom or no_split:
            raise NotImplementedError(
                "pools of this device have no allocator of their own, are never used for what runs out of "
                "memory elsewhere, and always split"
            )
        _lazy_init()
        self._id: PoolId = _C.graph_pool_handle()
        self._pool = _C.pool_new(*self._id)

    @property
    def id(self) -> PoolId:
        """The pool's name, for `graph(pool=...)`."""
        return self._id

    def use_count(self) -> int:
        """The number of graphs and threads that use the pool, on all devices, and 1 for this object."""
        return 1 + sum(info["users"] for info in self._infos())

    def info(self, device: DeviceLike = None) -> dict[str, Any]:
        """Figures of the pool on a device: `reserved_bytes`, `allocated_bytes`, `peak_allocated_bytes`, `limit`,
        `users`, `asleep`, `asleep_bytes`, and its `number`, as snapshots have it."""
        return _C.pool_info(self._pool, device_index(device))

    def set_limit(self, limit: int | None, device: DeviceLike = None) -> None:
        """Limits the bytes that may be in use of a device; None lifts the limit."""
        _C.pool_set_limit(self._pool, device_index(device), _NO_LIMIT if limit is None else limit)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """The pool's segments and their blocks, of all devices where it was used."""
        numbers = {index: _C.pool_info(self._pool, index)["number"] for index in _C.pool_devices(self._pool)}
        segments = _snapshot.take()["segments"]
        return [one for one in segments if numbers.get(one["device"]) == one["segment_pool_id"][1] != 0]

    def sleep(self) -> int:
        """Copies the pool's memory in use to the host, gives its memory back to the devices, and returns how many bytes
        the devices got. Waits for all work.

        Until `wake` its tensors must not be used: operators, copies and graphs that would are refused as far
        as the runtime sees it. NotImplementedError on a device without virtual memory. What fails leaves the
        pool as it was on each device.
        """
        return sum(_C.pool_sleep(self._pool, index) for index in _C.pool_devices(self._pool))

    def wake(self) -> None:
        """Brings the pool's memory back, at the same addresses and with the same contents.

        torch.OutOfMemoryError if there is not enough: then it still sleeps, and nothing is lost.
        """
        for index in _C.pool_devices(self._pool):
            _C.pool_wake(self._pool, index)

    @property
    def is_asleep(self) -> bool:
        """Whether the pool sleeps, on any device."""
        return any(info["asleep"] for info in self._infos())

    def _infos(self) -> list[dict[str, Any]]:
        return [_C.pool_info(self._pool, index) for index in _C.pool_devices(self._pool)]


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: DeviceLike = None) -> Iterator[None]:
    """Makes this thread allocate from a pool on a device (the current one) in the context; autograd's threads
    do not. A stream that captures always allocates from the pool of its graph."""
    index = device_index(device)
    _C.pool_begin_use(pool._pool, index)
    try:
        yield
    finally:
        _C.pool_end_use(pool._pool, index)
