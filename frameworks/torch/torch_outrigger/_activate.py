"""Registers the device types with torch: the C++ side first, then what only Python can register.

It must never start the runtime. It runs once, at the end of `import torch`.
"""

from __future__ import annotations

import sys

import torch

from . import _shim, _vendor


def activate() -> None:
    """Registers the device types that OUTRIGGER_TORCH names, under a vendor's name if its package is installed.

    ImportError if there is no shim for this torch, ValueError if OUTRIGGER_TORCH makes no sense, RuntimeError if the
    choice among vendors is not made.
    """
    shim = _shim.load()
    vendor = _vendor.find()
    name = "outrigger" if vendor is None else vendor.name
    outrigger, mtia = shim.activate(name)
    if vendor is not None:
        shim.default_drivers(vendor.specification())
    from . import _dlpack, _dynamo, _fake, integrations

    types = ((name,) if outrigger else ()) + (("mtia",) if mtia else ())
    _dlpack.patch(types)
    integrations.serve(types)
    for each in types:
        _fake.register(each)
        _dynamo.register_compiler(each)
    if not outrigger:
        return
    from . import _device, _distributed, amp, memory

    # The C++ side has renamed the device type; torch's Python side keeps the name a second time.
    torch.utils.rename_privateuse1_backend(name)
    if vendor is not None:
        _device.autocast_dtypes = vendor.autocast
        _dynamo.whole_operators = vendor.whole_operators
    torch._register_device_module(name, _device)
    sys.modules[f"torch.{name}"] = _device
    sys.modules[f"torch.{name}.amp"] = amp
    sys.modules[f"torch.{name}.memory"] = memory
    sys.modules[f"torch.{name}.random"] = _device.random
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _dynamo.register(name)
    _distributed.register(name)
