"""Operators that stay calls: what has no text in the dialect, what the device cannot compute, what is better whole.

A lowering is asked for the device of its operands. Other devices of the process compile as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import decomposition, lowering
from torch._inductor.codegen.common import pointwise_overrides_data
from torch._inductor.ir import IRNode, TensorBox
from torch.utils import _pytree as pytree

from .._lifetime import is_served
from . import config
from .types import MEMORY

aten = torch.ops.aten

NOT_IN_THE_DIALECT = ("frexp", "erfinv", "special_erfcx", "digamma", "igamma", "igammac", "i0")
"""Operators whose numbers the dialect does not compute, besides those of Inductor's table of special functions."""


def _is_ours(value: Any) -> bool:
    device = getattr(value, "device", None)
    if isinstance(value, (IRNode, TensorBox)):
        device = value.get_device()
    return isinstance(device, torch.device) and is_served(device.type)


def _any_ours(*arguments: Any) -> bool:
    return any(_is_ours(one) for one in pytree.tree_leaves(arguments))


def _overloads(name: str) -> list[Any]:
    packet = getattr(aten, name, None)
    return [getattr(packet, one) for one in packet.overloads()] if packet is not None else []


WITH_ATOMICS = "index_put index_put_ _unsafe_index_put scatter_add scatter_add_ scatter_reduce scatter_reduce_".split()
"""Operators that add atomically to places that meet."""


def _lacks_atomics(*arguments: Any) -> bool:
    """Whether the elements are too wide for the atomics of the device."""
    from .program import has_atomic64

    held = arguments[0][0]
    wide = held.get_dtype().itemsize == 8
    return wide and _is_ours(held) and not has_atomic64(held.get_device().index or 0)


def _keep(name: str, when: Callable[..., bool] = _any_ours) -> None:
    """Makes a lowering call the operator itself for some tensors: those of ours, unless told."""
    for overload in _overloads(name):
        stock = lowering.lowerings.get(overload)
        if stock is None:
            continue

        def choose(*args: Any, stock: Callable[..., Any] = stock, overload: Any = overload, **kwargs: Any) -> Any:
            if when(args, kwargs):
                return lowering.fallback_handler(overload, add_to_fallback_set=False)(*args, **kwargs)
            return stock(*args, **kwargs)

        lowering.lowerings[overload] = choose


def _names() -> list[str]:
    """The operators that are to stay whole."""
    return [one.strip() for one in config.whole_operators.split(",") if one.strip()]


def keep_whole() -> None:
    """Prepares Inductor's tables for the operators that are to stay whole. ValueError for one that there is not."""
    for name in _names():
        if name not in _prepared:
            _whole(name)
            _prepared.add(name)


_prepared: set[str] = set()


def _whole(name: str) -> None:
    """Stops the decomposition of an operator for tensors of ours, and calls it."""
    if not _overloads(name):
        raise ValueError(f"whole_operators names {name!r}, and torch.ops.aten has no such operator")
    for overload in _overloads(name):
        stock = decomposition.decompositions.get(overload) or torch._decomp.decomposition_table.get(overload)
        if stock is None:
            continue

        def decompose(*args: Any, stock: Callable[..., Any] = stock, name: str = name, **kwargs: Any) -> Any:
            if name in _names() and _any_ours(args, kwargs):
                return NotImplemented
            return stock(*args, **kwargs)

        decomposition.decompositions[overload] = decompose
        if overload not in lowering.lowerings:
            lowering.make_fallback(overload, warn=False, override_decomp=True)
    decomposition.fast_random_decomps.cache_clear()


def _unsupported(stock: Callable[..., bool]) -> Callable[..., bool]:
    """Says of a tensor that its dtype has no text for its device."""

    def answer(tensor: Any, *rest: Any, **more: Any) -> bool:
        if isinstance(tensor, torch.Tensor) and _is_ours(tensor):
            if tensor.dtype not in MEMORY:
                return True
            if tensor.dtype == torch.float64:
                from .program import has_f64

                if not has_f64(tensor.device.index or 0):
                    return True
        return stock(tensor, *rest, **more)

    return answer


def _two_steps(stock: Callable[..., bool]) -> Callable[..., bool]:
    """Has variances computed from the mean of the row, which is at hand: quicker than a mean that moves."""

    def answer(x: Any, *rest: Any, **more: Any) -> bool:
        return True if _is_ours(x) else stock(x, *rest, **more)

    return answer


def install() -> None:
    """Changes Inductor's tables, once."""
    if getattr(lowering, "_outrigger_has_its_operators", False):
        return
    lowering._outrigger_has_its_operators = True
    special = [one.name for key, one in pointwise_overrides_data.items() if key not in ("fma", "mul_rn")]
    for name in dict.fromkeys([*special, *NOT_IN_THE_DIALECT]):
        _keep(name)
    for name in WITH_ATOMICS:
        _keep(name, _lacks_atomics)
    lowering.use_two_step_variance = _two_steps(lowering.use_two_step_variance)
    lowering.unsupported_input_tensor = _unsupported(lowering.unsupported_input_tensor)
    lowering.unsupported_output_tensor = _unsupported(lowering.unsupported_output_tensor)
