"""The kinds of cases, with all that the checks need to know of each, and how close results must be.

Knows nothing of torch's databases, whose import takes long: `operators.py`, `modules.py` and `optimizers.py` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.opinfo.core import SampleInput


@dataclass(frozen=True)
class Tolerance:
    """The distance that two floating results may have, as `torch.testing.assert_close` takes it."""

    rtol: float
    atol: float

    def widened(self, other: Tolerance) -> Tolerance:
        """The wider of both."""
        return Tolerance(max(self.rtol, other.rtol), max(self.atol, other.atol))


ELEMENTWISE = Tolerance(rtol=1.3e-6, atol=1e-5)
# A sum of another order is another sum: whatever accumulates, and every gradient of a broadcast input.
ACCUMULATING = Tolerance(rtol=1e-4, atol=1e-5)


@dataclass(frozen=True)
class Case:
    """One line of a sweep."""

    name: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Operator(Case):
    """One operator, and all that its check needs to know."""

    function: Callable[..., Any]
    inplace: Callable[..., Any] | None
    supports_out: bool
    differentiable: bool
    initialised: bool
    keeps_devices: bool
    """A device among the arguments is tested as it stands: it does not say where to compute."""
    host_arguments: bool
    """All arguments but the first stay on the host, on every device."""
    tolerance: Tolerance
    gradient_tolerance: Tolerance
    make_samples: Callable[[], Iterator[SampleInput]]
    make_errors: Callable[[torch.device], Iterator[Any]]
    """torch's `ErrorInput`s, of tensors of the device."""
    has_reference: bool = False
    """Results and gradients are judged by the same call in float64, not by the CPU's kernel for the dtype."""


@dataclass(frozen=True)
class Module(Case):
    """One module of `torch.nn`, in training or in evaluation."""

    make: Callable[..., torch.nn.Module]
    """The class."""
    training: bool
    make_inputs: Callable[[], list[Any]]
    """torch's `ModuleInput`s, of CPU tensors: arguments of the constructor and of a call."""
    make_errors: Callable[[torch.device], list[Any]]
    """torch's `ErrorModuleInput`s, of tensors of the device."""
    twice_differentiable: bool
    keeps_memory_format: bool
    """The result of an input that is channels last is channels last."""


@dataclass(frozen=True)
class Optimizer(Case):
    """One optimizer in one form."""

    make: Callable[..., torch.optim.Optimizer]
    """The class."""
    options: dict[str, Any]
    """Of the form, on the device."""
    options_of_cpu: dict[str, Any]
    """Of what it is compared with."""
    make_inputs: Callable[[], list[Any]]
    """torch's `OptimizerInput`s: arguments of the constructor."""
    sparse: bool
    """Gradients are sparse."""
    needs_closure: bool
    has_groups: bool
    tolerance: Tolerance
    make_schedulers: tuple[Callable[[torch.optim.Optimizer], Any], ...]
    """Of learning rates, used together."""
