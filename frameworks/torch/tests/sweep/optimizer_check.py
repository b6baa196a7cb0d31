"""Checks one form of an optimizer on the device: its steps, its state, its copies, schedules of its learning rate.

Both sides start from the same parameters, and their gradients come from the same loss. Must look at every step: errors that
cancel in the end do not pass.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import compare
from .cases import Optimizer
from .check import CPU, Check, on_cpu

if TYPE_CHECKING:  # Its import takes seconds.
    from torch.testing._internal.common_optimizers import OptimizerInput

STEPS = 4
SHAPES = ((3, 5), (4, 2), (6, 1))


class Side:
    """Parameters and the optimizer of them, on one side."""

    def __init__(self, check: OptimizerCheck, given: OptimizerInput, device: torch.device) -> None:
        case = check.case
        self.case = case
        made = torch.Generator().manual_seed(check.index)
        numbers = [torch.randn(2, *shape, dtype=case.dtype, generator=made).to(device) for shape in SHAPES]
        self.parameters = [one[0].clone().requires_grad_() for one in numbers]
        self.targets = [one[1] for one in numbers]
        self.options = {**deepcopy(given.kwargs), **(case.options_of_cpu if device == CPU else case.options)}
        if device == CPU:
            self.options.pop("capturable", None)
        # A search for the maximum must find one.
        self.sign = -1 if case.needs_closure and given.kwargs.get("maximize") else 1
        self.optimizer = self.make(self.parameters)

    def make(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """An optimizer of `parameters`: in two groups, where it has them."""
        options = deepcopy(self.options)
        if not self.case.has_groups:
            return self.case.make(parameters, **options)
        return self.case.make([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.02}], **options)

    def loss(self) -> Tensor:
        """The distance of the parameters from their targets; sets the gradients."""
        self.optimizer.zero_grad()
        parts = [(one - target).abs().square().sum() for one, target in zip(self.parameters, self.targets, strict=True)]
        loss = self.sign * torch.stack(parts).sum()
        loss.backward()
        if self.case.sparse:
            for one in self.parameters:
                one.grad = one.grad.to_sparse()
        return loss

    def step(self) -> None:
        """One step, with the loss as a closure where the optimizer calls it more than once."""
        if self.case.needs_closure:
            self.optimizer.step(self.loss)
        else:
            self.loss()
            self.optimizer.step()

    def steps(self) -> list[list[Tensor]]:
        """The parameters after each of some steps."""
        return [self.after_a_step() for _ in range(STEPS)]

    def after_a_step(self) -> list[Tensor]:
        """The parameters after one more step."""
        self.step()
        return [one.detach().clone() for one in self.parameters]

    def copy(self, state: dict[str, Any]) -> Side:
        """A side of its own from here on, whose optimizer has loaded `state`."""
        other = object.__new__(Side)
        other.case, other.options, other.targets, other.sign = self.case, self.options, self.targets, self.sign
        other.parameters = [one.detach().clone().requires_grad_() for one in self.parameters]
        other.optimizer = other.make(other.parameters)
        other.optimizer.load_state_dict(state)
        return other


class OptimizerCheck(Check):
    """The check of one form of an optimizer on one device."""

    case: Optimizer

    def samples(self) -> Iterator[OptimizerInput]:
        """The inputs of torch's database."""
        return iter(self.case.make_inputs())

    def sample(self, sample: OptimizerInput) -> None:
        """Every stage of one input."""
        sides = self.attempt("forward", lambda: self.forward(sample))
        if sides is None:
            return
        self.attempt("state", lambda: self.state(*sides))
        self.attempt("schedule", lambda: self.schedule(sample))
        if not self.case.needs_closure:
            self.attempt("closure", lambda: self.closure(sample))

    def forward(self, sample: OptimizerInput) -> tuple[Side, Side]:
        """Steps on both sides."""
        expected = on_cpu(lambda: Side(self, sample, CPU))
        wanted = on_cpu(expected.steps)
        actual = Side(self, sample, self.device)
        self.near("parameters after steps", wanted, actual.steps())
        return expected, actual

    def state(self, expected: Side, actual: Side) -> None:
        """The state is that of the CPU; from a file, from a copy and from the CPU, it makes the next step of the optimizer itself."""
        states = [one.optimizer.state_dict() for one in (expected, actual)]
        if not self.case.needs_closure:
            # A search along a line keeps small differences, which amount to nothing in the parameters.
            self.near("state", states[0]["state"], states[1]["state"], None)
        for one in actual.optimizer.state.values():
            for name, value in one.items():
                if isinstance(value, Tensor) and value.dim() and value.device.type != self.device.type:
                    raise compare.Mismatch(f"the state {name} is on {value.device}, not on {self.device}")
        file = io.BytesIO()
        torch.save(states[1], file)
        file.seek(0)
        others = {
            "file": actual.copy(torch.load(file, weights_only=True)),
            "deepcopy": actual.copy(deepcopy(actual.optimizer).state_dict()),
        }
        if "capturable" not in self.case.options:
            others["CPU"] = actual.copy(deepcopy(states[0]))
        wanted = on_cpu(expected.after_a_step)
        self.near("parameters after one more step", wanted, actual.after_a_step())
        for way, side in others.items():
            self.near(f"parameters after one more step, state of a {way}", wanted, side.after_a_step())

    def schedule(self, sample: OptimizerInput) -> None:
        """Steps of an optimizer whose learning rate changes."""

        def scheduled(side: Side) -> list[list[Tensor]]:
            schedulers = [make(side.optimizer) for make in self.case.make_schedulers]
            made = []
            for _ in range(STEPS):
                made.append(side.after_a_step())
                for one in schedulers:
                    needs_loss = isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau)
                    one.step(1.0) if needs_loss else one.step()
            return made

        wanted = on_cpu(lambda: scheduled(Side(self, sample, CPU)))
        self.near("parameters after steps on a schedule", wanted, scheduled(Side(self, sample, self.device)))

    def closure(self, sample: OptimizerInput) -> None:
        """A step with a closure returns its loss."""
        wanted = on_cpu(lambda: Side(self, sample, CPU))
        one = on_cpu(lambda: wanted.optimizer.step(wanted.loss))
        side = Side(self, sample, self.device)
        self.near("loss", one, side.optimizer.step(side.loss))

    def near(self, what: str, expected: Any, actual: Any, place: str | None = "here") -> None:
        """Both are the same numbers; on the device, unless `place` is None."""
        # A native step rounds to half precision once, on each side where it wants to.
        wide = expected if self.case.dtype in compare.NEAR else None
        compare.equal(what, expected, actual, self.case.tolerance, self.device.type if place else None, wide)
