"""The operators to sweep: torch's `op_db`, with the dtype and the tolerances for each.

Must not touch the device: samples are made of CPU tensors and moved later.
"""

from __future__ import annotations

import re

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

from .cases import ACCUMULATING, ELEMENTWISE, Operator, Tolerance
from .transfer import WIDER_THAN

# In the sweep of float32, an operator without it is run with the first of these that it has.
INSTEAD = (torch.float32, torch.int64, torch.complex64, torch.bool, torch.bfloat16, torch.float16)

# A call in float64 judges these: families whose results depend on the order of sums. The kernel of the CPU may have run
# on both sides of the comparison. Not among them is what torch's own formula gets wrong in a dtype: gradients of
# logcumsumexp and ctc_loss by 1e-3 in float32, soft_margin_loss by an overflow in float16, cosine_embedding_loss by
# roundings.
REFERENCE = re.compile(
    r"""(\w*\.)*(
        _?_?r?matmul_?_? | mm | bmm | mv | dot | vdot | inner | einsum | tensordot | addmm | addmv | addbmm | baddbmm | addr
        | linalg\.(multi_dot|vecdot|norm|vector_norm) | linear | bilinear | conv\w* | \w*(batch|layer|group|instance|rms)_norm\w*
        | local_response_norm | normalize | \w*softmax\w* | softmin | logsumexp | masked\.logsumexp | scaled_dot_product_attention
        | multi_head_attention_forward | sum | nansum | mean | nanmean | prod | var | std | var_mean | std_mean | norm
        | cumsum | cumprod | cumulative_trapezoid | sum_to_size | trapezoid | trapz | cov | corrcoef | renorm
        | scatter_add | scatter_reduce | index_add | index_put | index_reduce | segment_reduce | embedding_bag | avg_pool\dd
        | adaptive_avg_pool\dd | lp_pool\dd | (?!ctc|soft_margin|cosine_embedding)\w*_loss | nll_loss\w* | (linear_)?cross_entropy | kl_div | logaddexp\d?
    )(\.\w+)*""",
    re.VERBOSE,
)

# The values of these operators are whatever the memory held.
UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)

# The device is an argument of these that is tested as it stands, not one that says where to compute.
KEEPS_DEVICES = frozenset({"to"})

# torch wants the indices of these as CPU tensors, whatever the device.
HOST_ARGUMENTS = frozenset({"tensor_split"})

# Gradients of norms, where torch's own tests of a device grant nothing but a difference is rounding: if one element is
# normalised, its gradient is exactly 0, of terms of 1/sqrt(eps) = 316 that cancel.
NORM = re.compile(r"(\w*\.)*_?\w*(batch|layer|group|instance)_norm\w*")
OF_NORMS = {
    torch.float32: Tolerance(rtol=1e-4, atol=1e-4),
    torch.float16: Tolerance(rtol=4e-3, atol=1e-3),
    torch.bfloat16: Tolerance(rtol=3.2e-2, atol=1e-2),
}

# The tests of torch that compare the way this sweep does; overrides for others are not about us.
COMPARING_TESTS = frozenset(
    {None, "test_compare_cpu", "test_noncontiguous_samples", "test_out", "test_variant_consistency_eager"}
)


def operators(dtype: torch.dtype = torch.float32) -> dict[str, Operator]:
    """The operators of `op_db` by name, in its order: all in a sweep of float32, else those that have the dtype."""
    if dtype is torch.float32:
        return {info.full_name: describe(info, instead(info)) for info in op_db}
    return {info.full_name: describe(info, dtype) for info in op_db if info.supports_dtype(dtype, "cpu")}


def instead(info: OpInfo) -> torch.dtype:
    """The dtype of an operator in a sweep of float32."""
    return next((dtype for dtype in INSTEAD if info.supports_dtype(dtype, "cpu")), torch.float32)


def describe(info: OpInfo, dtype: torch.dtype) -> Operator:
    """An operator of the database as the check takes it."""
    differentiable = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    elementwise = isinstance(info, (UnaryUfuncInfo, BinaryUfuncInfo, ShapeFuncInfo))
    overrides = tolerance_of_torch(info, dtype)
    of_norm = OF_NORMS.get(dtype, overrides) if NORM.fullmatch(info.full_name) else overrides
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
        gradient_tolerance=ACCUMULATING.widened(overrides).widened(of_norm),
        make_samples=lambda: info.sample_inputs("cpu", dtype, requires_grad=differentiable),
        # Errors have dtypes of their own: those of one sweep are those of all.
        make_errors=lambda device: info.error_inputs(str(device)) if dtype is instead(info) and info.error_inputs_func else iter(()),
        has_reference=dtype in WIDER_THAN and REFERENCE.fullmatch(info.full_name) is not None,
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
