"""The operators to sweep: torch's `op_db`, with the dtype and the tolerances for each.

Must not touch the device: samples are made of CPU tensors and moved later.
"""

from __future__ import annotations

import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    DecorateInfo,
    OpInfo,
    ShapeFuncInfo,
    UnaryUfuncInfo,
)

from .operator import ACCUMULATING, ELEMENTWISE, Operator, Tolerance

# The sweep is of float32; an operator without it is run with the first of these that it has.
DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool, torch.bfloat16, torch.float16)

# Their values are whatever the memory held.
UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)

# The device is an argument of these that is tested as it stands, not one that says where to compute.
KEEPS_DEVICES = frozenset({"to"})

# torch wants the indices of these as CPU tensors, whatever the device.
HOST_ARGUMENTS = frozenset({"tensor_split"})

# Where torch's own tests of a device grant nothing but a difference is rounding:
WIDER = {
    # One element is normalised: its gradient is exactly 0, of terms of 1/sqrt(eps) = 316 that cancel.
    "native_layer_norm": Tolerance(rtol=1e-4, atol=1e-4),
    "nn.functional.layer_norm": Tolerance(rtol=1e-4, atol=1e-4),
}

# The tests of torch that compare the way this sweep does; overrides for others are not about us.
COMPARING_TESTS = frozenset(
    {None, "test_compare_cpu", "test_noncontiguous_samples", "test_out", "test_variant_consistency_eager"}
)


def operators() -> dict[str, Operator]:
    """All operators of `op_db` by name, in its order."""
    return {info.full_name: describe(info) for info in op_db}


def describe(info: OpInfo) -> Operator:
    """What the check needs to know of `info`."""
    dtype = next((dtype for dtype in DTYPES if info.supports_dtype(dtype, "cpu")), torch.float32)
    differentiable = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    elementwise = isinstance(info, (UnaryUfuncInfo, BinaryUfuncInfo, ShapeFuncInfo))
    overrides = tolerance_of_torch(info, dtype)
    return Operator(
        name=info.full_name,
        dtype=dtype,
        function=info,
        inplace=info.get_inplace(),
        supports_out=info.supports_out,
        differentiable=differentiable,
        initialised=info.name not in UNINITIALISED,
        keeps_devices=info.name in KEEPS_DEVICES,
        host_arguments=info.name in HOST_ARGUMENTS,
        tolerance=(ELEMENTWISE if elementwise else ACCUMULATING).widened(overrides),
        gradient_tolerance=ACCUMULATING.widened(overrides).widened(WIDER.get(info.full_name, overrides)),
        make_samples=lambda: info.sample_inputs("cpu", dtype, requires_grad=differentiable),
    )


def tolerance_of_torch(info: OpInfo, dtype: torch.dtype) -> Tolerance:
    """The widest tolerance that torch's own comparing tests grant `info` on any device."""
    widest = Tolerance(0.0, 0.0)
    for decorator in info.decorators:
        if isinstance(decorator, DecorateInfo):
            applies = decorator.test_name in COMPARING_TESTS and (
                decorator.dtypes is None or dtype in decorator.dtypes
            )
            candidates = decorator.decorators if applies else []
        else:
            candidates = [decorator]
        for candidate in candidates:
            if isinstance(candidate, toleranceOverride) and dtype in candidate.d:
                granted = candidate.d[dtype]
                widest = widest.widened(Tolerance(granted.rtol, granted.atol))
    return widest
