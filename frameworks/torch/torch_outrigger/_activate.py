"""Registers the device types with torch: the C++ side first, then what only Python can register.

It must never start the runtime. It runs once, at the end of `import torch`.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from types import ModuleType

import torch

from . import _shim, _vendor


def activate() -> None:
    """Registers the device types that OUTRIGGER_TORCH names, under a vendor's name if its package is installed.

    ImportError if there is no shim for this torch, ValueError if OUTRIGGER_TORCH or OUTRIGGER_EAGER_COMPILE makes no sense,
    RuntimeError if the choice among vendors is not made.
    """
    shim = _shim.load()
    vendor = _vendor.find()
    name = "outrigger" if vendor is None else vendor.name
    outrigger, mtia = shim.activate(name)
    if vendor is not None:
        shim.default_drivers(vendor.specification())
    from . import _distributed, _dlpack, _dynamo, _eager, _fake, _lifetime, _recomputed
    from .integrations import serve

    types = ((name,) if outrigger else ()) + (("mtia",) if mtia else ())
    shim.set_compile_mode(_eager.mode_of_environment())
    _lifetime.serve(types)
    if vendor is not None:
        _vendor.autocast_dtypes = vendor.autocast
        _dynamo.whole_operators = vendor.whole_operators
    _dlpack.patch(types)
    serve(types)
    for each in types:
        _fake.register(each)
        _dynamo.register_compiler(each)
        _recomputed.register(each)
    if outrigger:
        # The C++ side has renamed the device type; torch's Python side keeps the name a second time.
        torch.utils.rename_privateuse1_backend(name)
    _dynamo.register_triton()
    _distributed.register(types)
    if outrigger:
        _serve_outrigger(name)
        _dynamo.register(name)
    if mtia:
        from . import _mtia

        _mtia.complete()
        if outrigger:
            _mtia.stand_behind(name)


def as_cuda() -> None:
    """Has the process run a program for CUDA if OUTRIGGER_AS_CUDA asks for it. A warning says why it cannot.

    ValueError for a value that makes no sense.
    """
    wanted = os.environ.get("OUTRIGGER_AS_CUDA", "")
    if wanted in ("", "0"):
        return
    if wanted != "1":
        raise ValueError(f"OUTRIGGER_AS_CUDA={wanted} makes no sense: 1 runs programs for CUDA on the device, 0 does not")
    try:
        importlib.import_module(f"{__package__}.as_cuda")
    except RuntimeError as error:
        warnings.warn(f"OUTRIGGER_AS_CUDA=1 has no effect: {error}", RuntimeWarning, stacklevel=2)


def _serve_outrigger(name: str) -> None:
    from ._later import Later

    torch._register_device_module(name, Later(f"torch.{name}", lambda: _place(name)))
    for part in ("amp", "memory", "random"):
        full = f"torch.{name}.{part}"
        sys.modules[full] = Later(full, lambda part=part: getattr(_place(name), part))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def _place(name: str) -> ModuleType:
    """Imports the device's module, and puts it and its parts where torch has had placeholders."""
    from . import _device

    setattr(torch, name, _device)
    sys.modules[f"torch.{name}"] = _device
    for part in ("amp", "memory", "random"):
        sys.modules[f"torch.{name}.{part}"] = getattr(_device, part)
    return _device
