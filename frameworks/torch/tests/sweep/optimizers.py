"""The optimizers to sweep: torch's `optim_db`, each in every form that it has.

Must not touch the device: what is optimized is made by the check.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, OptimizerInput, optim_db

from .cases import ACCUMULATING, Optimizer, Tolerance

# The only device type for which the database has inputs that can be captured.
CAPTURING = "cuda"

# Muon computes in bfloat16, whatever the dtype. LBFGS divides by small differences of gradients, and follows them far.
WIDER = {"Muon": Tolerance(rtol=2e-3, atol=1e-3), "LBFGS": Tolerance(rtol=1e-3, atol=1e-3)}
# Few iterations, so that the rounding of the first is not what the last finds.
ITERATIONS = {"max_iter": 3}


def optimizers(dtype: torch.dtype = torch.float32) -> dict[str, Optimizer]:
    """The optimizers for parameters of `dtype`, by name, in the order of the database."""
    made = [case for info in optim_db if has(info, dtype) for case in forms(info, dtype)]
    return {case.name: case for case in made}


def has(info: OptimizerInfo, dtype: torch.dtype) -> bool:
    """Whether the optimizer is for parameters of `dtype`."""
    return dtype.is_floating_point or (dtype.is_complex and info.supports_complex)


def forms(info: OptimizerInfo, dtype: torch.dtype) -> Iterator[Optimizer]:
    """A parameter at a time, lists of parameters, one native call, ready for a capture, with sparse gradients.

    In half precision only the native call: a step of several operators rounds in each of them, and differences of averages
    are then rounding alone.
    """
    half = dtype in (torch.float16, torch.bfloat16)
    off = {name: False for name in ("foreach", "fused") if name in info.supported_impls}
    if "fused" in info.supported_impls and "cpu" in info.supports_fused_on and not dtype.is_complex:
        yield describe(info, dtype, "fused", {**off, "fused": True})
    if half:
        return
    if info.only_supports_sparse_grads:
        yield describe(info, dtype, "sparse", {}, sparse=True)
        return
    yield describe(info, dtype, "for-loop", ITERATIONS if info.step_requires_closure else off)
    if "foreach" in info.supported_impls:
        yield describe(info, dtype, "foreach", {**off, "foreach": True})
    if info.has_capturable_arg:
        yield describe(info, dtype, "capturable", {"capturable": True})
    if info.supports_sparse and not dtype.is_complex:
        yield describe(info, dtype, "sparse", off, sparse=True)


def describe(info: OptimizerInfo, dtype: torch.dtype, form: str, options: dict[str, Any], sparse: bool = False) -> Optimizer:
    """An optimizer of the database in one form, as the check takes it."""
    capturable = "capturable" in options
    # An optimizer that can be captured is compared with one parameter at a time on the CPU, which has no captures.
    plain = {"foreach": False} if capturable else options

    def inputs() -> list[OptimizerInput]:
        if sparse and not info.only_supports_sparse_grads:
            # Other options need dense gradients.
            return [one for one in info.optim_inputs_func("cpu") if one.kwargs.keys() <= {"lr", "maximize"}]
        made = [one for one in info.optim_inputs_func(CAPTURING if capturable else "cpu") if ("capturable" in one.kwargs) is capturable]
        lists = (False, True) if capturable else (None,)
        return [with_lists(one, lists_at_once) for lists_at_once in lists for one in made]

    return Optimizer(
        name=f"optimizer {info.name} {form}",
        dtype=dtype,
        make=info.optim_cls,
        options=options,
        options_of_cpu=plain,
        make_inputs=inputs,
        sparse=sparse,
        needs_closure=info.step_requires_closure,
        has_groups=info.supports_param_groups,
        tolerance=WIDER.get(info.name, ACCUMULATING),
        make_schedulers=tuple(itertools.chain(*info.scheduler_inputs[:1])),
    )


def with_lists(given: OptimizerInput, foreach: bool | None) -> OptimizerInput:
    """The input with a choice of lists of parameters; as it is for None."""
    return given if foreach is None else OptimizerInput(params=None, kwargs={**given.kwargs, "foreach": foreach}, desc=given.desc)
