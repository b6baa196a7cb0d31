"""Compares what CPU tensors gave with what the device gave.

Raises `Mismatch` with one readable sentence; must never accept what it did not compare.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .operator import Tolerance
from .result import one_line

TOLERANT = frozenset({torch.float32, torch.float64, torch.complex64, torch.complex128})


class Mismatch(Exception):
    """The device gave something else than CPU tensors."""


def equal(what: str, expected: Any, actual: Any, tolerance: Tolerance, device: str | None) -> None:
    """Both trees hold the same values, within `tolerance` where they are floating."""
    for path, one, other in pairs(what, expected, actual):
        if isinstance(one, Tensor):
            same_form(path, one, other, device)
            values_close(path, one, other, tolerance)
        elif isinstance(one, (bool, int, float, complex)):
            numbers_close(path, one, other, tolerance)
        elif one != other:
            raise Mismatch(f"{path} is {other!r}, not {one!r}")


def alike(what: str, expected: Any, actual: Any, device: str | None, finite: bool) -> None:
    """Both trees have the same form; with `finite`, what is finite in one is finite in the other."""
    for path, one, other in pairs(what, expected, actual):
        if isinstance(one, Tensor):
            same_form(path, one, other, device)
            if finite and all_finite(one) and not all_finite(other):
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
    # Narrower dtypes are compared as torch does by default: our tolerances are for float32.
    limits = {"rtol": tolerance.rtol, "atol": tolerance.atol} if expected.dtype in TOLERANT else {}
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
