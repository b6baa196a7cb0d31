"""torch.distributed: the backend `outrigger`, which moves device tensors between ranks.

It must never start the runtime when it is registered: the first collective does that.
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

    def create(options: Any, _backend_options: object) -> Any:
        return _create(options, types[0])

    torch.distributed.Backend.register_backend(NAME, create, extended_api=True, devices=list(types))


def _create(options: Any, device_type: str) -> Any:
    """The backend of one group, beside which Gloo joins the same ranks."""
    from torch.distributed import PrefixStore, ProcessGroupGloo

    gloo = ProcessGroupGloo(
        PrefixStore("gloo", options.store), options.group_rank, options.group_size, timeout=options.timeout
    )
    gloo.options.global_ranks_in_group = options.global_ranks_in_group
    gloo.options.group_name = options.group_id
    bound = options.process_group.bound_device_id
    return _C.device_group(
        PrefixStore("device", options.store),
        gloo,
        options.timeout.total_seconds(),
        options.group_id,
        device_type,
        os.environ.get(CHOICE) or "auto",
        -1 if bound is None else bound.index,
    )
