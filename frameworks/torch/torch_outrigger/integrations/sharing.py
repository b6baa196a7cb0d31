"""torch.multiprocessing: tensors of our devices go to other processes as memory, if the driver shares it.

As with CUDA, the process that sends owns the memory, and keeps it until all that received it have let go of it; it must
outlive them. Nothing is copied. The work queued on the current stream is waited for before the tensor is sent.

Each pickled tensor is a message with a number. The sender has a file, its ledger, in which receivers note that a message has arrived, and
which they lock as long as they have its memory: no message needs a descriptor, and a process that ends has no locks.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import reduction, util
from typing import Any, NamedTuple

import torch

from .. import _C

_lock = threading.Lock()
LOOK = 16
"""A look at all messages is due when a part of them has been sent since the last one: one of so many."""


class _Shared(NamedTuple):
    """A storage that was sent, and what others import."""

    number: int
    storage: torch.UntypedStorage
    where: tuple[Any, ...]


class _Sender:
    """Storages that a process has sent, and not got back."""

    def __init__(self) -> None:
        handle, self.path = tempfile.mkstemp(prefix="outrigger-", dir=util.get_temp_dir())
        self.ledger = handle
        self.messages: dict[int, _Shared] = {}
        self.storages: dict[tuple[Any, ...], _Shared] = {}
        """By device, address and bytes."""
        self.free: list[int] = []
        """Numbers of messages that are over."""
        self.shared = 0
        self.since_look = 0

    def add(self, tensor: torch.Tensor) -> tuple[int, _Shared]:
        """A new message with the storage of a tensor."""
        text, offset = _C.memory_export(tensor)
        storage = tensor.untyped_storage()
        place = (tensor.device, storage.data_ptr(), storage.nbytes())
        shared = self.storages.get(place)
        if shared is None:
            where = (tensor.device.type, tensor.device.index, text, offset, storage.nbytes())
            shared = self.storages[place] = _Shared(self.shared, storage, where)
            self.shared += 1
        number = self.free.pop() if self.free else len(self.messages)
        self.messages[number] = shared
        self.since_look += 1
        return number, shared

    def look(self) -> list[_Shared]:
        """Takes out the messages whose memory nobody has any more."""
        self.since_look = 0
        arrived = os.pread(self.ledger, len(self.messages) + len(self.free), 0)
        over = [number for number in self.messages if arrived[number : number + 1] == b"\1" and not self.locked(number)]
        ended = [self.messages.pop(number) for number in over]
        for number in over:
            os.pwrite(self.ledger, b"\0", number)
        self.free.extend(over)
        left = {shared.number for shared in self.messages.values()}
        self.storages = {place: shared for place, shared in self.storages.items() if shared.number in left}
        return ended

    def locked(self, number: int) -> bool:
        """Whether a process has the memory of a message that has arrived."""
        try:
            fcntl.lockf(self.ledger, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return True
        fcntl.lockf(self.ledger, fcntl.LOCK_UN, 1, number)
        return False


_sender: _Sender | None = None
_received: dict[tuple[str, int], Any] = {}
"""By ledger and number of the storage: weak references to storages of other processes."""


def collect() -> None:
    """Lets go of memory that was sent to other processes, and that none of them has any more."""
    with _lock:
        ended = _sender.look() if _sender is not None else []
    # Memory is freed behind the lock.
    del ended


def _forget() -> None:
    # A child has no device.
    global _lock, _sender
    _lock = threading.Lock()
    if _sender is not None:
        os.close(_sender.ledger)
        _kept.append(_sender)
        _sender = None


_kept: list[Any] = []
"""In a child that was forked: memory of its parent, which it must not free."""

os.register_at_fork(after_in_child=_forget)


def _send(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    """The function and arguments that make the tensor in another process."""
    global _sender
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "only a leaf can be sent to another process, and this tensor is a result that requires a gradient: "
            "send tensor.detach()"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise NotImplementedError(
            f"only dense tensors of {tensor.device.type} can be sent to other processes: send tensor.cpu()"
        )
    layout = (tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.requires_grad)
    if tensor.untyped_storage().nbytes() == 0:
        return _rebuild_empty, (type(tensor), str(tensor.device), layout)
    torch.get_device_module(tensor.device.type).current_stream(tensor.device).synchronize()
    with _lock:
        if _sender is None:
            _sender = _Sender()
        try:
            number, shared = _sender.add(tensor)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"a tensor of {tensor.device} cannot be sent to another process: {error}. Send tensor.cpu()"
            ) from None
        ended = _sender.look() if _sender.since_look * LOOK >= len(_sender.messages) else []
    del ended
    return _rebuild, (type(tensor), os.getpid(), _sender.path, number, shared.number, shared.where, layout)


def _rebuild(
    kind: type, pid: int, ledger: str, number: int, shared: int, where: tuple[Any, ...], layout: Any
) -> torch.Tensor:
    """Makes the tensor that another process has sent."""
    if pid == os.getpid():
        # Came back through a queue: no process imports its own memory.
        with _lock:
            storage = _sender.messages[number].storage
            os.pwrite(_sender.ledger, b"\1", number)
        return _over(kind, storage, layout)
    torch.get_device_module(where[0])._lazy_init()
    with _lock:
        storage = _known(ledger, shared)
        if storage is None:
            storage = _C.memory_import(*where, ledger, number).untyped_storage()
            _remember(ledger, shared, storage)
        else:
            _C.memory_arrived(ledger, number)
    return _over(kind, storage, layout)


def _known(ledger: str, shared: int) -> torch.UntypedStorage | None:
    """The storage of another process, if this one has it already. The sender keeps it as long, so the number is still its own."""
    reference = _received.get((ledger, shared))
    return None if reference is None else torch.UntypedStorage._new_with_weak_ptr(reference.cdata)


def _remember(ledger: str, shared: int, storage: torch.UntypedStorage) -> None:
    from torch.multiprocessing.reductions import StorageWeakRef

    for key in [key for key, reference in _received.items() if reference.expired()]:
        del _received[key]
    _received[ledger, shared] = StorageWeakRef(storage)


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
