"""Functions that torch.mtia lacks beside `torch.outrigger`: figures and pools of memory, graphs with bindings,
observers, ranges and others. They are the same functions, which take devices of both types.

torch's own names stay torch's, also where torch.outrigger has more to say under the same name: `torch_outrigger.memory`
has that. This must never start the runtime.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import torch

from . import _device, _external, _storage, memory
from .amp import module_of


class device_of(torch.mtia.device):
    """Makes the device of a tensor or storage the current one. A device of another type changes nothing."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device.index if obj.device.type == "mtia" else -1)


def complete() -> None:
    """Gives torch.mtia and torch.mtia.memory the names that they lack. Once."""
    mtia = torch.mtia
    external = _external.stream_class("mtia", torch._C._autograd.DeviceType.MTIA.value)
    own = {
        "ExternalStream": external,
        "amp": module_of("mtia"),
        "device_of": device_of,
        "get_stream_from_external": lambda data_ptr, device=None: external(data_ptr, device),
        "random": _random(),
        **_storage.storage_classes("torch.mtia"),
    }
    for name in (*own, *_device.__all__):
        if not hasattr(mtia, name):
            setattr(mtia, name, own.get(name) or getattr(_device, name))
    for name in (*memory.__all__, "_dump_snapshot", "_record_memory_history", "_snapshot"):
        if not hasattr(mtia.memory, name):
            setattr(mtia.memory, name, getattr(memory, name))
    for name in ("amp", "random"):
        sys.modules.setdefault(f"torch.mtia.{name}", getattr(mtia, name))


def stand_behind(other: str) -> None:
    """Makes PrivateUse1 torch's accelerator, where it is served too. Once.

    Parts of torch that look for a device find that, and not MTIA. The engine of gradients looks for the accelerator's
    streams, and would end with an internal assertion for tensors of MTIA: the error says so.
    """
    find = torch._utils._get_available_device_type

    @functools.wraps(find)
    def accelerator() -> str | None:
        found = find()
        return other if found == "mtia" else found

    torch._utils._get_available_device_type = accelerator
    run_backward = torch.autograd.graph._engine_run_backward

    @functools.wraps(run_backward)
    def naming(outputs: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return run_backward(outputs, *arguments, **keywords)
        except RuntimeError as error:
            if "opt_ready_stream" not in str(error):
                raise
            raise NotImplementedError(
                f"torch takes gradients of one accelerator in a process, and with OUTRIGGER_TORCH=both that is {other}: "
                "for gradients on mtia set OUTRIGGER_TORCH=mtia"
            ) from error

    for module in (torch.autograd, torch.autograd.graph):
        module._engine_run_backward = naming


def _random() -> ModuleType:
    """torch.mtia has the functions of such a module, and not the module."""
    made = ModuleType("torch.mtia.random", "Random states of the devices' default generators.")
    for name in _device.random.__all__:
        setattr(made, name, getattr(torch.mtia, name))
    made.__all__ = list(_device.random.__all__)
    return made
