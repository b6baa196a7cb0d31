"""Operators, modules and optimizers that misbehave in every way that the sweep must survive, for the tests of the sweep itself.

`cases()` stands in for the catalogue. Nothing but `test_harness.py` may use it, with CPU tensors in the
place of the device. The check calls an operator on CPU tensors, then on the device, and where both differ
once more on CPU tensors to see whether it draws random numbers: so the second call is the one to go wrong. A module
is called in float64 before these, and an optimizer is made on CPU tensors first.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.opinfo.core import SampleInput

from .cases import ACCUMULATING, ELEMENTWISE, Case, Module, Operator, Optimizer

HANG_SECONDS = 3600


def cases(dtype: torch.dtype) -> dict[str, Case]:
    """All cases of one dtype, by name."""
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
    return {one.name: one for one in (*made, *modules(), *optimizers())}


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
        make_errors=lambda device: iter(()),
        has_reference=has_reference,
    )


def samples() -> Iterator[SampleInput]:
    """Two small tensors."""
    yield SampleInput(torch.arange(1.0, 5.0).requires_grad_())
    yield SampleInput(torch.ones(2, 3).requires_grad_())


def turns(*functions: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is each of `functions` in turn, again and again."""
    turn = itertools.cycle(functions)
    return lambda *args, **kwargs: next(turn)(*args, **kwargs)


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


class Scale(torch.nn.Module):
    """Multiplies by a parameter. What goes wrong is up to its subclasses."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([1.5, 2.5, 3.5]))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        return x * self.factor


class WrongCopy(Scale):
    """Every second copy, the first among them, is another module."""

    def __deepcopy__(self, memory: object) -> Scale:
        made = type(self)()
        Scale.copies = getattr(Scale, "copies", 0) + 1
        made.factor.data += 1e-2 * (Scale.copies % 2)
        return made


class WrongFile(Scale):
    """A file brings back other values, a copy does not."""

    def __deepcopy__(self, memory: object) -> Scale:
        made = type(self)()
        made.factor.data.copy_(self.factor.data)
        return made.to(self.factor)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.factor = torch.nn.Parameter(self.factor.detach() + 1e-2)


class WrongLayout(Scale):
    """Takes a view of memory for what is packed in it."""

    def forward(self, x: Tensor) -> Tensor:
        """Wrong with every second call on what has gaps."""
        gaps = not x.is_contiguous() and x.dtype is torch.float32
        Scale.seen = getattr(Scale, "seen", 0) + gaps
        return super().forward(x) + 1e-2 * (gaps and Scale.seen % 2 == 0)


class WrongGradient(Scale):
    """The gradient of every second call in float32 is twice what it is."""

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        right = super().forward(x)
        if x.dtype is torch.float32:
            Scale.turns = getattr(Scale, "turns", 0) + 1
            if Scale.turns % 2 == 0:
                return 2 * right - right.detach()
        return right


def modules() -> list[Module]:
    """Modules, right and wrong."""
    return [
        module("module good", Scale),
        module("module wrong copy", WrongCopy),
        module("module wrong file", WrongFile),
        module("module wrong layout", WrongLayout),
        module("module wrong gradient", WrongGradient),
        module("module refuses nothing", Scale, refuses="never"),
    ]


def module(name: str, make: Callable[..., torch.nn.Module], refuses: str = "") -> Module:
    """A module with one input."""
    nothing = SimpleNamespace(args=(), kwargs={})
    called = SimpleNamespace(args=(torch.arange(6.0).reshape(2, 3).requires_grad_(),), kwargs={})
    given = SimpleNamespace(constructor_input=nothing, forward_input=called)
    when = SimpleNamespace(name="FORWARD_ERROR")
    error = SimpleNamespace(module_error_input=given, error_on=when, error_type=RuntimeError, error_regex=refuses)
    return Module(
        name=name,
        dtype=torch.float32,
        make=make,
        training=True,
        make_inputs=lambda: [given],
        make_errors=lambda device: [error] if refuses else [],
        twice_differentiable=True,
        keeps_memory_format=False,
    )


class Forgetful(torch.optim.SGD):
    """Loads nothing."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Forgets."""


class Fast(torch.optim.SGD):
    """Goes too far in each step."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step and a bit."""
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for one in group["params"]:
                    one -= 1e-3
        return loss


class Silent(torch.optim.SGD):
    """Tells no loss."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        super().step(closure)
        return torch.tensor(0.0)


def optimizers() -> list[Optimizer]:
    """Optimizers, right and wrong."""
    sgd = torch.optim.SGD
    return [
        optimizer("optimizer good", sgd),
        optimizer("optimizer fast", turns(sgd, Fast)),
        optimizer("optimizer forgetful", Forgetful),
        # Made for steps, a file, a copy, the state of the CPU and a schedule, then for the closure.
        optimizer("optimizer silent", turns(*[sgd] * 8, Silent)),
    ]


def optimizer(name: str, make: Callable[..., torch.optim.Optimizer]) -> Optimizer:
    """An optimizer with momentum."""
    return Optimizer(
        name=name,
        dtype=torch.float32,
        make=make,
        options={},
        options_of_cpu={},
        make_inputs=lambda: [SimpleNamespace(kwargs={"lr": 0.05, "momentum": 0.9})],
        sparse=False,
        needs_closure=False,
        has_groups=True,
        tolerance=ACCUMULATING,
        make_schedulers=(lambda made: torch.optim.lr_scheduler.StepLR(made, 2),),
    )
