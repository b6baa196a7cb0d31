"""Compares what CPU tensors gave with what the device gave.

Raises `Mismatch` with one readable sentence; must never accept what it did not compare.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .cases import Tolerance
from .result import one_line

TOLERANT = frozenset({torch.float32, torch.float64, torch.complex64, torch.complex128})


class Mismatch(Exception):
    """The device gave something else than CPU tensors."""


def equal(
    what: str, expected: Any, actual: Any, tolerance: Tolerance, device: str | None, wide: Any = None
) -> None:
    """Both trees hold the same values, within `tolerance` where they are floating.

    Where the tree `wide` has a floating tensor, its values take the place of the expected ones, as `near` compares them.
    """
    references = [one for _, one, _ in pairs(what, wide, actual)] if wide is not None else None
    for index, (path, one, other) in enumerate(pairs(what, expected, actual)):
        if isinstance(one, Tensor):
            same_form(path, one, other, device)
            reference = references[index] if references is not None else None
            if reference is not None and (reference.is_floating_point() or reference.is_complex()):
                near(path, reference.detach(), other.detach(), tolerance)
            else:
                values_close(path, one, other, tolerance)
        elif isinstance(one, (bool, int, float, complex)):
            numbers_close(path, one, other, tolerance)
        elif one != other:
            raise Mismatch(f"{path} is {other!r}, not {one!r}")


# The distance of a result in half precision from a reference, at most: this share of its own value and of the root
# of the tensor's mean square, for roundings before sums that cancel.
NEAR = {torch.float16: 4e-3, torch.bfloat16: 3.2e-2}


def near(what: str, reference: Tensor, actual: Tensor, tolerance: Tolerance) -> None:
    """The values of `actual` are those of a reference, within what their dtype can hold."""
    dtype = actual.dtype
    actual = actual.cpu()
    if actual.layout is not torch.strided:
        reference, actual = reference.to_dense(), actual.to_dense()
    # Infinite where the reference is beyond the dtype's range.
    wide = reference.to(dtype).to(reference.dtype)
    finite = torch.isfinite(wide)
    same = torch.where(finite, reference, wide)
    share = max(NEAR.get(dtype, 0.0), tolerance.rtol)
    share_of = reference[finite].to(torch.promote_types(reference.dtype, torch.float32))
    scale = share_of.abs().square().mean().sqrt().nan_to_num(0.0).item() if finite.any() else 0.0
    try:
        torch.testing.assert_close(
            actual.to(reference.dtype), same, rtol=share, atol=tolerance.atol + share * scale, equal_nan=True
        )
    except AssertionError as error:
        raise Mismatch(f"{what} against {str(reference.dtype).removeprefix('torch.')}: {one_line(str(error).splitlines())}") from None


def alike(what: str, expected: Any, actual: Any, device: str | None, finite: bool) -> None:
    """Both trees have the same form; with `finite`, what is finite in one is finite in the other, unless in float16,
    which ends at 65504."""
    for path, one, other in pairs(what, expected, actual):
        if isinstance(one, Tensor):
            same_form(path, one, other, device)
            if finite and one.dtype is not torch.float16 and all_finite(one) and not all_finite(other):
                raise Mismatch(f"{path} is not finite")
        elif type(one) is not type(other):
            raise Mismatch(f"{path} is a {type(other).__name__}, not a {type(one).__name__}")


def pairs(what: str, expected: Any, actual: Any) -> list[tuple[str, Any, Any]]:
    """The leaves of both trees, side by side, each with its place in words."""
    ones, shape = pytree.tree_flatten_with_path(expected)
    others, other_shape = pytree.tree_flatten(actual)
    if shape != other_shape:
        raise Mismatch(f"{what} is made up as {other_shape}, not as {shape}")
    triples = []
    for (path, one), other in zip(ones, others, strict=True):
        if isinstance(one, Tensor) != isinstance(other, Tensor):
            raise Mismatch(f"{what} is a {type(other).__name__}, not a {type(one).__name__}")
        triples.append((what + pytree.keystr(path), one, other))
    return triples


def same_form(what: str, expected: Tensor, actual: Tensor, device: str | None) -> None:
    """Same shape, dtype and layout, and on a device of the type `device` unless that is None."""
    if device is not None and actual.device.type != device:
        raise Mismatch(f"{what} is on {actual.device}, not on {device}")
    for attribute in ("shape", "dtype", "layout"):
        one, other = getattr(expected, attribute), getattr(actual, attribute)
        if one != other:
            raise Mismatch(f"{what} has {attribute} {describe(other)}, not {describe(one)}")


def describe(value: Any) -> str:
    """A shape without its class name, anything else as it prints."""
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)


def values_close(what: str, expected: Tensor, actual: Tensor, tolerance: Tolerance) -> None:
    """The tensors' values are equal, or close if they are floating."""
    # Narrower dtypes are compared as torch does by default: our tolerances are for float32. In float16 that is one unit of
    # the last place; the CPU rounds twice where it multiplies and adds.
    limits = {"rtol": tolerance.rtol, "atol": tolerance.atol} if expected.dtype in TOLERANT else {}
    if expected.dtype is torch.float16:
        limits = {"rtol": 2e-3, "atol": 1e-5}
    try:
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), equal_nan=True, **limits)
    except AssertionError as error:
        raise Mismatch(f"{what}: {one_line(str(error).splitlines())}") from None


def numbers_close(what: str, expected: Any, actual: Any, tolerance: Tolerance) -> None:
    """The Python numbers are of one type and close."""
    if type(expected) is not type(actual):
        raise Mismatch(f"{what} is a {type(actual).__name__}, not a {type(expected).__name__}")
    values_close(what, torch.tensor(expected), torch.tensor(actual), tolerance)


def all_finite(tensor: Tensor) -> bool:
    """No value of `tensor` is infinite or not a number."""
    values = tensor.detach().cpu()
    if values.layout is not torch.strided:
        values = values.to_dense()
    return bool(torch.isfinite(values).all())
