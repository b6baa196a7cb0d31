"""`torch.outrigger.nvtx`: ranges under the device's own name, as `torch.cuda.nvtx` has them for CUDA.

A range is a user annotation of torch.profiler, which shows it on its thread and over the device's work that was
submitted in it. Where torch was built with ITT, tools such as VTune see it too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import itt

__all__ = ["mark", "range", "range_pop", "range_push"]


class _Open(threading.local):
    """The ranges that a thread is in."""

    def __init__(self) -> None:
        self.ranges: list[torch.autograd.profiler.record_function] = []


_open = _Open()


def range_push(msg: str) -> int:
    """Begins a range on this thread, and returns how many it lies in."""
    entered = torch.autograd.profiler.record_function(msg)
    entered.__enter__()
    if itt.is_available():
        itt.range_push(msg)
    _open.ranges.append(entered)
    return len(_open.ranges) - 1


def range_pop() -> int:
    """Ends this thread's last range, and returns how many it lay in."""
    if not _open.ranges:
        raise RuntimeError("range_pop: this thread is in no range; range_push begins one")
    if itt.is_available():
        itt.range_pop()
    _open.ranges.pop().__exit__(None, None, None)
    return len(_open.ranges)


def mark(msg: str) -> None:
    """A moment on this thread: a range that ends where it begins."""
    with torch.autograd.profiler.record_function(msg):
        pass
    if itt.is_available():
        itt.mark(msg)


@contextlib.contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """A range over a block or a function. Further arguments go to `msg.format`."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
