"""Operators that misbehave in every way that the sweep must survive, for the tests of the sweep itself.

`operators()` stands in for the catalogue. Nothing but `test_harness.py` may use it, with CPU tensors in the
place of the device. The check calls an operator on CPU tensors, then on the device, and where both differ
once more on CPU tensors to see whether it draws random numbers: so the second call is the one to go wrong.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.opinfo.core import SampleInput

from .operator import ACCUMULATING, ELEMENTWISE, Operator

HANG_SECONDS = 3600


def operators(dtype: torch.dtype) -> dict[str, Operator]:
    """All of them, by name. They have one dtype."""
    neg = torch.neg
    made = [
        operator("good", neg),
        operator("wrong", turns(neg, lambda x: -x + 1e-3, neg)),
        operator("wrong_gradient", turns(neg, lambda x: x.detach() - 2 * x, neg)),
        operator("wrong_dtype", turns(neg, lambda x: neg(x).double(), neg)),
        operator("writes_argument", turns(neg, writes_argument, neg)),
        operator("raises", turns(neg, raises)),
        operator("refused", raises),
        operator("random", torch.rand_like),
        operator("random_infinite", turns(torch.rand_like, lambda x: x / 0, torch.rand_like)),
        operator("crash", turns(neg, lambda x: os.abort())),
        operator("exit", turns(neg, lambda x: os._exit(7))),
        operator("hang", turns(neg, lambda x: time.sleep(HANG_SECONDS))),
        operator("noisy", noisy),
        operator("imprecise", lambda x: -x + 1e-3 * (x.dtype is torch.float32), has_reference=True),
        operator("precise", neg, has_reference=True),
        operator("last", torch.abs),
    ]
    return {one.name: one for one in made}


def operator(name: str, function: Callable[..., Any], has_reference: bool = False) -> Operator:
    """An operator on two small tensors."""
    return Operator(
        name=name,
        dtype=torch.float32,
        function=function,
        inplace=None,
        supports_out=False,
        differentiable=True,
        initialised=True,
        keeps_devices=False,
        host_arguments=False,
        tolerance=ELEMENTWISE,
        gradient_tolerance=ACCUMULATING,
        make_samples=samples,
        has_reference=has_reference,
    )


def samples() -> Iterator[SampleInput]:
    """Two small tensors."""
    yield SampleInput(torch.arange(1.0, 5.0).requires_grad_())
    yield SampleInput(torch.ones(2, 3).requires_grad_())


def turns(*functions: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is each of `functions` in turn, again and again."""
    turn = itertools.cycle(functions)
    return lambda *args: next(turn)(*args)


def writes_argument(x: Tensor) -> Tensor:
    """Right, but not with its argument."""
    result = torch.neg(x)
    with torch.no_grad():
        x.add_(1)
    return result


def raises(x: Tensor) -> Tensor:
    """Raises an error of two lines."""
    raise RuntimeError(f"not for {x.dim()} dimensions\nnor others")


def noisy(x: Tensor) -> Tensor:
    """Right, and prints where answers go."""
    os.write(1, b"some library says hello\n")
    return torch.neg(x)
