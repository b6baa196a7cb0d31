"""Registers the devices with torch, in the one order that works.

It must never start the runtime: drivers are loaded when a device is first asked for.
"""

from __future__ import annotations

import torch

from torch_outrigger import _C, _patches


def serve(types: tuple[str, ...]) -> None:
    """Makes torch serve these device types ("outrigger", "mtia")."""
    for kind in types:
        _C.serve(kind)
    if "outrigger" in types:
        from torch_outrigger import device

        # The name is taken in C++ by now; this tells torch's Python side.
        torch.utils.rename_privateuse1_backend("outrigger")
        torch._register_device_module("outrigger", device)
        torch.utils.generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )
    _patches.apply(types)
