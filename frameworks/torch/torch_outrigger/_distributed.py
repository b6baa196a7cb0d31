"""torch.distributed: the backend `outrigger`, which moves device tensors between ranks.

Groups of the backend `gloo` serve device tensors, too. This module must never start the runtime when it registers the
backend: the first collective does that.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from . import _C

NAME = "outrigger"
"""The name of the backend, for a vendor's devices too."""
CHOICE = "OUTRIGGER_DISTRIBUTED"


def register(types: tuple[str, ...]) -> None:
    """Makes the backend known to torch, as the one that groups of these device types get if none is named."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import Backend

    def create(options: Any, _backend_options: object) -> Any:
        return _create(options, types[0])

    Backend.register_backend(NAME, create, extended_api=True, devices=list(types))
    Backend.backend_capability[Backend.GLOO].extend(types)
    _complete_groups(types)


def _create(options: Any, device_type: str) -> Any:
    """The backend of one group, beside which Gloo joins the same ranks."""
    if not hasattr(options, "process_group"):
        raise NotImplementedError(
            f"torch {torch.__version__} does not tell a backend for which group it is made: groups of {device_type} need torch 2.14 or 2.15"
        )
    gloo = _gloo(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id,
        options.global_ranks_in_group,
    )
    bound = options.process_group.bound_device_id
    return _C.device_group(
        _prefixed("device", options.store),
        gloo,
        options.timeout.total_seconds(),
        options.group_id,
        device_type,
        os.environ.get(CHOICE) or "auto",
        -1 if bound is None else bound.index,
    )


def _gloo(store: Any, rank: int, size: int, timeout: Any, name: str, global_ranks: list[int]) -> Any:
    """Gloo among the ranks of a group."""
    from torch.distributed import ProcessGroupGloo

    gloo = ProcessGroupGloo(_prefixed("gloo", store), rank, size, timeout=timeout)
    gloo.options.global_ranks_in_group = global_ranks
    gloo.options.group_name = name
    return gloo


def _prefixed(prefix: str, store: Any) -> Any:
    return torch.distributed.PrefixStore(prefix, store)


def _complete_groups(types: tuple[str, ...]) -> None:
    """Has the groups that torch makes serve all tensors that the program and torch give them.

    Torch's Gloo takes tensors of the CPU and of CUDA: where it is the backend for one of our devices, it becomes that of the CPU, and
    the device gets a backend of ours over Gloo. A group without a backend for the CPU gets Gloo for it: the reducer of
    DistributedDataParallel reduces a tensor of the CPU if the parameters are on MTIA, `ProcessGroup.barrier` asks the CPU's backend, and
    what a library offloads is on the CPU.
    """
    from torch.distributed import ProcessGroup

    torchs = ProcessGroup._register_backend
    kinds = ProcessGroup.BackendType
    cpu = torch.device("cpu")

    def register_backend(group: Any, device: torch.device, kind: Any, backend: Any = None) -> None:
        if device.type in types and kind == kinds.GLOO:
            torchs(group, cpu, kind, backend)
            kind, backend = kinds.CUSTOM, _over_gloo(group, device, types, backend)
        torchs(group, device, kind, backend)
        if device.type in types and cpu not in group._device_types:
            torchs(group, cpu, kinds.GLOO, _gloo_beside(group, cpu, backend))

    ProcessGroup._register_backend = register_backend


def _over_gloo(group: Any, device: torch.device, types: tuple[str, ...], gloo: Any) -> Any:
    """The backend for a device in a group of Gloo."""
    for other in group._device_types:
        if other.type in types:
            return group._get_backend(other)
    # With TORCH_DISTRIBUTED_DEBUG=DETAIL torch wraps each backend.
    gloo = getattr(gloo, "wrapped_pg", gloo)
    return _C.device_group(
        _prefixed(f"{device.type}/device", group.get_group_store()),
        _gloo_beside(group, device, gloo),
        gloo.options._timeout.total_seconds(),
        gloo.options.group_name,
        device.type,
        "gloo",
        -1,
    )


def _gloo_beside(group: Any, device: torch.device, other: Any) -> Any:
    """Gloo for one more device, among the ranks of another backend. Gloo numbers its calls, so each device has its own."""
    options = other.options
    store = _prefixed(device.type, group.get_group_store())
    return _gloo(store, other.rank(), other.size(), options._timeout, options.group_name, options.global_ranks_in_group)
