"""Registers the device types with torch: the C++ side first, then what only Python can register.

It must never start the runtime. It runs once, at the end of `import torch`.
"""

from __future__ import annotations

import sys

import torch

from . import _C


def activate() -> None:
    """Registers the device types that OUTRIGGER_TORCH names. Raises ValueError if its value makes no sense."""
    outrigger, _mtia = _C.activate()
    if not outrigger:
        return
    from . import _device, _dlpack, _dynamo, memory

    name = "outrigger"
    # The C++ side has renamed the device type; torch's Python side keeps the name a second time.
    torch.utils.rename_privateuse1_backend(name)
    torch._register_device_module(name, _device)
    sys.modules[f"torch.{name}"] = _device
    sys.modules[f"torch.{name}.memory"] = memory
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _dlpack.patch(name)
    _dynamo.register(name)
