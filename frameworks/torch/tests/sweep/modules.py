"""The modules to sweep: torch's `module_db`, each in training, and in evaluation where that differs.

Must not touch the device: inputs are made of CPU tensors and moved later.
"""

from __future__ import annotations

import functools

import torch
from torch.testing._internal.common_modules import ErrorModuleInput, ModuleInfo, module_db

from .cases import Module


def modules(dtype: torch.dtype = torch.float32) -> dict[str, Module]:
    """The modules that the database has in `dtype`, by name, in its order."""
    made = [
        describe(info, dtype, training)
        for info in module_db
        if dtype in info.supported_dtypes("cpu")
        for training in ((True, False) if info.train_and_eval_differ else (True,))
    ]
    return {case.name: case for case in made}


def describe(info: ModuleInfo, dtype: torch.dtype, training: bool) -> Module:
    """A module of the database as the check takes it."""
    mode = f" {'train' if training else 'eval'}" if info.train_and_eval_differ else ""
    inputs = functools.partial(info.module_inputs_func, info, dtype=dtype, training=training)
    return Module(
        name=f"module {info.name}{mode}",
        dtype=dtype,
        make=info.module_cls,
        training=training,
        make_inputs=lambda: inputs(device="cpu", requires_grad=True),
        make_errors=lambda device: errors(info, device, dtype, training),
        twice_differentiable=info.supports_gradgrad,
        keeps_memory_format=info.module_memformat_affects_out,
    )


def errors(info: ModuleInfo, device: torch.device, dtype: torch.dtype, training: bool) -> list[ErrorModuleInput]:
    """Arguments that the module must refuse; nothing if the database does not say."""
    make = info.module_error_inputs_func
    return make(info, device=device, dtype=dtype, requires_grad=False, training=training) if make is not None else []
