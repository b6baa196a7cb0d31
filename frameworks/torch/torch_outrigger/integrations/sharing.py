"""torch.multiprocessing: tensors of our devices go to other processes as memory, if the driver shares it.

As with CUDA, the process that sends owns the memory, and keeps it until all that received it have let go of it; it must
outlive them. Nothing is copied. The work queued on the current stream is waited for before the tensor is sent.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from multiprocessing import context, reduction
from typing import Any

import torch

from .. import _C

_lock = threading.Lock()
_sent: dict[int, tuple[int, torch.UntypedStorage]] = {}
"""By number: a pipe that ends when no other process has the memory any more, and the memory."""
_next = 0

_starting: list[tuple[Any, int]] = []
"""Processes that are being started with a tensor among their arguments, and the end of the pipe that they inherit."""


def collect() -> None:
    """Lets go of memory that was sent to other processes, and that none of them has any more."""
    with _lock:
        poll = select.poll()
        numbers = {}
        for number, (pipe, _storage) in _sent.items():
            numbers[pipe] = number
            # Nothing is ever written: what can come is the end.
            poll.register(pipe, 0)
        ended = [_sent.pop(numbers[pipe]) for pipe, _event in poll.poll(0)]
        started = [each for each in _starting if getattr(each[0], "pid", None) is not None]
        for each in started:
            _starting.remove(each)
            os.close(each[1])
    for pipe, _storage in ended:
        os.close(pipe)


def _forget() -> None:
    # A child has copies of the pipes, and no device.
    global _lock
    _lock = threading.Lock()
    for pipe, _storage in _sent.values():
        os.close(pipe)
    for _process, pipe in _starting:
        os.close(pipe)
    _starting.clear()
    _kept.extend(_sent.values())
    _sent.clear()


_kept: list[Any] = []
"""In a child that was forked: memory of its parent, which it must not free."""

os.register_at_fork(after_in_child=_forget)


def _send(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    """How to make the tensor in another process."""
    global _next
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "only a leaf can be sent to another process, and this tensor is a result that requires a gradient: "
            "send tensor.detach()"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise NotImplementedError(
            f"only dense tensors of {tensor.device.type} can be sent to other processes: send tensor.cpu()"
        )
    storage = tensor.untyped_storage()
    layout = (tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.requires_grad)
    if storage.nbytes() == 0:
        return _rebuild_empty, (type(tensor), str(tensor.device), layout)
    try:
        text, offset = _C.memory_export(tensor)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"a tensor of {tensor.device} cannot be sent to another process: {error}. Send tensor.cpu()"
        ) from None
    torch.get_device_module(tensor.device.type).current_stream(tensor.device).synchronize()
    collect()
    mine, theirs = os.pipe()
    with _lock:
        number, _next = _next, _next + 1
        _sent[number] = (mine, storage)
    # A copy of the pipe waits for the receiver, or the process that is being started inherits this one.
    process = context.get_spawning_popen()
    ticket = reduction.DupFd(theirs)
    if process is None:
        os.close(theirs)
    else:
        _starting.append((process, theirs))
    sender = (os.getpid(), number)
    where = (tensor.device.type, tensor.device.index, text, offset, storage.nbytes())
    return _rebuild, (type(tensor), sender, where, ticket, layout)


def _rebuild(kind: type, sender: tuple[int, int], where: tuple[Any, ...], ticket: Any, layout: Any) -> torch.Tensor:
    """Makes the tensor that another process has sent."""
    if sender[0] == os.getpid():
        # Came back through a queue: no process imports its own memory.
        with _lock:
            _pipe, storage = _sent[sender[1]]
        os.close(ticket.detach())
        return _over(kind, storage, layout)
    pipe = ticket.detach()
    try:
        torch.get_device_module(where[0])._lazy_init()
        memory = _C.memory_import(where[0], where[1], where[2], where[3], where[4], pipe)
    except BaseException:
        os.close(pipe)
        raise
    return _over(kind, memory.untyped_storage(), layout)


def _rebuild_empty(kind: type, device: str, layout: Any) -> torch.Tensor:
    return _over(kind, torch.UntypedStorage(0, device=device), layout)


def _over(kind: type, storage: torch.UntypedStorage, layout: Any) -> torch.Tensor:
    dtype, offset, shape, stride, requires_grad = layout
    made = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, stride)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(made, requires_grad=requires_grad)
    return made.requires_grad_(requires_grad)


def serve(types: tuple[str, ...]) -> None:
    """Has torch.multiprocessing send tensors of these device types."""
    from torch.multiprocessing import reductions

    def reduce_tensor(tensor: torch.Tensor) -> Any:
        return _send(tensor) if tensor.device.type in types else reductions.reduce_tensor(tensor)

    def reduce_storage(storage: torch.UntypedStorage) -> Any:
        if storage.device.type in types:
            raise RuntimeError(f"a storage of {storage.device} cannot be sent to another process: send a tensor")
        return reductions.reduce_storage(storage)

    reduction.ForkingPickler.register(torch.UntypedStorage, reduce_storage)
    for kind in (torch.Tensor, torch.nn.Parameter):
        reduction.ForkingPickler.register(kind, reduce_tensor)
