"""Streams and events of `torch.outrigger`: torch's own classes, with the device type filled in.

It must never add behaviour that `torch.Stream` and `torch.Event` lack.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_outrigger import _C


def _device(device: Any) -> torch.device:
    from torch_outrigger import device as module

    module._lazy_init()
    return torch.device("outrigger", module._index(device))


class Stream(torch.Stream):
    """A stream of a device, out of its pool. A lower priority number is more urgent."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=_device(device), priority=priority)


class ExternalStream(Stream):
    """A stream that was made elsewhere, by its handle (`stream_id` of a stream, or of the C ABI)."""

    def __new__(cls, handle: int, device: Any = None) -> ExternalStream:
        where = _device(device)
        kind = default_stream(where).device_type
        return super().__new__(cls, stream_id=handle, device_index=where.index, device_type=kind)


class Event(torch.Event):
    """An event of a device; `enable_timing` makes `elapsed_time` work."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        return super().__new__(
            cls, device="outrigger", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )


def current_stream(device: Any = None) -> torch.Stream:
    """The current stream of this thread on a device."""
    return _C.current_stream("outrigger", _device(device).index)


def default_stream(device: Any = None) -> torch.Stream:
    """The default stream of a device."""
    return _C.default_stream("outrigger", _device(device).index)


def set_stream(stream: torch.Stream) -> None:
    """Makes a stream the current one of this thread on the stream's device."""
    _C.set_stream(stream)


class StreamContext:
    """Context manager that makes a stream current, and its device; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._before: tuple[int, torch.Stream] | None = None

    def __enter__(self) -> torch.Stream | None:
        from torch_outrigger import device as module

        if self.stream is not None:
            self._before = (module.current_device(), current_stream(self.stream.device))
            module.set_device(self.stream.device)
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        from torch_outrigger import device as module

        if self._before is not None:
            index, before = self._before
            set_stream(before)
            module.set_device(index)
            self._before = None


def stream(stream: torch.Stream | None) -> StreamContext:
    """A context in which a stream is the current one."""
    return StreamContext(stream)
