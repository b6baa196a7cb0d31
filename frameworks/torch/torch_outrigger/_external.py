"""Streams over queues that other libraries made by the driver's own interface, as `torch.cuda.ExternalStream` has them.

The runtime keeps such a stream for the rest of the process, as torch keeps all streams: parts of torch remember a
stream by its number. This must never make two streams of one queue.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from . import _C
from ._lifetime import DeviceLike, device_index

_lock = threading.Lock()
_streams: dict[tuple[int, int], int] = {}
"""The stream of a queue, by the device's index and the queue."""


def _stream_of(index: int, native: int) -> int:
    with _lock:
        if (index, native) not in _streams:
            _streams[index, native] = _C.stream_from_native(index, native)
        return _streams[index, native]


def stream_class(device_type: str, kind: int) -> type[torch.Stream]:
    """The class `ExternalStream` of a device type, which torch knows by a number."""

    class ExternalStream(torch.Stream):
        """A stream over a queue that another library made by the driver's own interface, such as a cl_command_queue or a
        CUstream. `torch.Stream.native_handle` is the opposite: the queue of a stream, for another library.

        The queue must be of the device, in order, and live as long as work is submitted to it; the driver's
        documentation says more. What the library has put in before a call of torch comes before that. For what comes
        behind, the library reads `native_handle` again, which brings torch's work into the queue.

        NotImplementedError if the driver shares no queues; RuntimeError for a queue that does not fit.
        """

        def __new__(cls, stream_ptr: int, device: DeviceLike = None, **_keywords: Any) -> ExternalStream:
            index = device_index(device)
            if not isinstance(stream_ptr, int) or isinstance(stream_ptr, bool) or stream_ptr < 0:
                raise TypeError(f"the queue must be its handle as a number, got {stream_ptr!r}")
            number = _stream_of(index, stream_ptr)
            return super().__new__(cls, stream_id=number, device_index=index, device_type=kind)

    ExternalStream.__module__, ExternalStream.__qualname__ = f"torch.{device_type}", "ExternalStream"
    return ExternalStream
