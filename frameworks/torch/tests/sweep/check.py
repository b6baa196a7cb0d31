"""Checks one operator on the device: every sample, forward, backward, in place and with `out=`.

Runs in a worker. A failure of the operator is a result here and never an exception; what a crash or a hang
leaves behind is the parent's to see, which is why every stage of a sample is announced before it starts.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils import _pytree as pytree

from . import compare
from .operator import Operator, Tolerance
from .chance import draws_random
from .compare import Mismatch
from .places import Places
from .result import Outcome, Result, one_line
from .transfer import Arguments, Transfer

CPU = torch.device("cpu")
WEIGHT_SEED = 20260

Heartbeat = Callable[[int, str], None]


class Refused(Exception):
    """CPU tensors cannot compute this either."""


@dataclass
class Pair:
    """One call on both sides: its arguments, and what it returned."""

    expected_arguments: Arguments
    actual_arguments: Arguments
    expected: Any
    actual: Any
    again: Callable[[], Any]
    """Repeats the call on CPU tensors."""
    wide_arguments: Arguments | None = None
    """The arguments in float64, where the results have a reference."""
    wide: Any = None
    """What the call gives for them."""

    @functools.cached_property
    def random(self) -> bool:
        """Whether the call draws random numbers, so that only the form of its results can be compared."""
        return draws_random(self.again)


class Check:
    """The check of one operator on one device."""

    def __init__(
        self, operator: Operator, device: torch.device, heartbeat: Heartbeat, samples: int | None = None
    ) -> None:
        self.operator = operator
        self.device = device
        self.heartbeat = heartbeat
        self.limit = samples
        self.result = Result(operator.name, Outcome.PASS, str(operator.dtype).removeprefix("torch."))
        self.index = 0
        self.left_to_chance: set[int] = set()

    def run(self) -> Result:
        """Checks all samples."""
        started = time.monotonic()
        places = Places(self.device)
        try:
            for self.index, sample in enumerate(self.operator.samples(self.limit)):
                self.result.samples += 1
                self.sample(sample)
        except Exception as error:  # The generator of samples is torch's, and may lack what it needs.
            self.note(f"no further samples: {explain(error)}")
        self.synchronize()
        self.result.random = len(self.left_to_chance)
        self.result.places = places.taken()
        self.result.seconds = round(time.monotonic() - started, 3)
        self.result.outcome = self.outcome()
        return self.result

    def outcome(self) -> Outcome:
        """What the counts say."""
        if self.result.error:
            return Outcome.FAIL
        if self.result.samples == self.result.refused_by_cpu:
            return Outcome.NOT_APPLICABLE
        return Outcome.PASS

    def note(self, text: str) -> None:
        """Counts a failed sample and keeps the first failure."""
        self.result.failed += 1
        if not self.result.error:
            self.result.error = one_line([text])

    def synchronize(self) -> None:
        """Waits for the device, so that a late failure is this operator's."""
        self.heartbeat(self.index, "synchronize")
        try:
            self.wait()
        except Exception as error:
            self.note(f"synchronize: {explain(error)}")

    def wait(self) -> None:
        """Waits for all work of the device."""
        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize()

    def sample(self, sample: SampleInput) -> None:
        """Checks every variant of the operator on one sample."""
        stage = ""

        def begin(name: str) -> None:
            nonlocal stage
            stage = name
            self.heartbeat(self.index, name)

        try:
            self.functional(sample, begin)
            self.in_place(sample, begin)
        except Refused:
            # A variant that CPU tensors lack is no failure; a sample without its forward has nothing.
            self.result.refused_by_cpu += stage == "forward"
        except Exception as error:
            self.note(f"sample {self.index} ({stage}): {explain(error)}")

    def functional(self, sample: SampleInput, begin: Callable[[str], None]) -> None:
        """The operator as a function: results, arguments written to, gradients, and `out=`."""
        begin("forward")
        pair = self.call(sample, self.operator.function)
        self.compare_results(pair, sample.output_process_fn_grad)
        if self.operator.differentiable:
            begin("backward")
            self.backward(sample, pair)
        if self.operator.supports_out:
            begin("out=")
            self.into_given(sample, pair)

    def in_place(self, sample: SampleInput, begin: Callable[[str], None]) -> None:
        """The operator's in-place variant, without gradients."""
        variant = self.operator.inplace
        if variant is None or sample.broadcasts_input:
            return
        begin("in-place")
        with torch.no_grad():
            self.compare_results(self.call(sample, variant), sample.output_process_fn_grad)

    def into_given(self, sample: SampleInput, pair: Pair) -> None:
        """The `out=` variant, into tensors of the right form."""
        results = pytree.tree_leaves(pair.expected)
        if not results or not all(isinstance(one, Tensor) and one.layout is torch.strided for one in results):
            return

        def given(device: torch.device) -> Any:
            outs = [torch.zeros_like(one, device=device, requires_grad=False) for one in results]
            return outs[0] if isinstance(pair.expected, Tensor) else tuple(outs)

        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            device = tensors[0].device if tensors else torch.device(kwargs.get("device", "cpu"))
            out = given(device)
            returned = self.operator.function(*args, **kwargs, out=out)
            filled = [one is other for one, other in zip(pytree.tree_leaves(returned), pytree.tree_leaves(out))]
            return returned, filled

        finish = sample.output_process_fn_grad
        with torch.no_grad():
            self.compare_results(self.call(sample, call), lambda result: (finish(result[0]), result[1]))

    def call(self, sample: SampleInput, function: Callable[..., Any]) -> Pair:
        """Calls `function` on both sides, with copies of the arguments."""

        def on(device: torch.device, wide: bool = False) -> tuple[Arguments, Any]:
            moved = Transfer(device, self.operator, wide).sample(sample)
            return moved, function(moved.input, *moved.args, **moved.kwargs)

        try:
            arguments, expected = on(CPU)
        except Exception as error:
            raise Refused from error
        wide_arguments, wide = self.reference(on)
        moved, actual = on(self.device)
        if self.operator.keeps_devices:
            # A copy to the host that does not block ends up in pinned memory some time later.
            self.wait()
        return Pair(arguments, moved, expected, actual, lambda: on(CPU), wide_arguments, wide)

    def reference(self, on: Callable[[torch.device, bool], tuple[Arguments, Any]]) -> tuple[Arguments | None, Any]:
        """The call in float64; nothing where the CPU refuses that, as it does for results of a given dtype."""
        if not self.operator.has_reference:
            return None, None
        try:
            return on(CPU, True)
        except Exception:
            return None, None

    def compare_results(self, pair: Pair, finish: Callable[[Any], Any]) -> None:
        """Compares the results, and the arguments, which the call may have written to.

        `finish` makes results comparable that are defined only up to a sign or an order.
        """
        wide = finish(pair.wide) if pair.wide_arguments is not None else None
        self.same("result", finish(pair.expected), finish(pair.actual), pair, self.operator.tolerance, wide)
        expected, actual = pair.expected_arguments.tensors(), pair.actual_arguments.tensors()
        wide = pair.wide_arguments.tensors() if pair.wide_arguments is not None else None
        self.same("argument", expected, actual, pair, self.operator.tolerance, wide)

    def backward(self, sample: SampleInput, pair: Pair) -> None:
        """Compares the gradients of the results, weighted by fixed random numbers."""
        finish = sample.output_process_fn_grad
        expected, actual = roots(finish(pair.expected)), roots(finish(pair.actual))
        if len(expected) != len(actual):
            raise Mismatch(f"{len(actual)} results can be differentiated, not {len(expected)}")
        inputs = pair.expected_arguments.differentiable()
        if not expected or not inputs:
            return
        weights = [weight(one) for one in expected]
        try:
            wanted = torch.autograd.grad(expected, inputs, weights, allow_unused=True)
        except Exception as error:
            raise Refused from error
        given = torch.autograd.grad(
            actual,
            pair.actual_arguments.differentiable(),
            [one.to(root.device) for one, root in zip(weights, actual, strict=True)],
            allow_unused=True,
        )
        # A gradient is a formula of several roundings: in half precision it is compared like a sum.
        wide = wanted if self.operator.dtype in compare.NEAR else None
        # What torch's formulas for complex gradients lose is not the device's.
        if pair.wide_arguments is not None and not self.operator.dtype.is_complex:
            wide = torch.autograd.grad(
                roots(finish(pair.wide)),
                pair.wide_arguments.differentiable(),
                [one.to(root.dtype) for one, root in zip(weights, roots(finish(pair.wide)), strict=True)],
                allow_unused=True,
            )
        self.same("gradient", wanted, given, pair, self.operator.gradient_tolerance, wide)

    def same(self, what: str, expected: Any, actual: Any, pair: Pair, tolerance: Tolerance, wide: Any = None) -> None:
        """Compares values, with the reference `wide` where there is one, or the form only where values are left to chance."""
        place = None if self.operator.keeps_devices else pair.actual_arguments.place(self.device)
        if not self.operator.initialised:
            compare.alike(what, expected, actual, place, finite=False)
            return
        try:
            compare.equal(what, expected, actual, tolerance, place, wide)
        except Mismatch:
            if not pair.random:
                raise
            self.left_to_chance.add(self.index)
            compare.alike(what, expected, actual, place, finite=True)


def roots(results: Any) -> list[Tensor]:
    """The results that gradients flow from, dense."""
    tensors = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
    flowing = [tensor for tensor in tensors if tensor.requires_grad]
    return [one if one.layout is torch.strided else one.to_dense() for one in flowing]


def weight(result: Tensor) -> Tensor:
    """The fixed random numbers that weight `result` in the sum that is differentiated."""
    generator = torch.Generator().manual_seed(WEIGHT_SEED)
    return torch.randn(result.shape, dtype=result.dtype, generator=generator)


def explain(error: Exception) -> str:
    """The error in one line, with its type unless it is ours."""
    lines = str(error).splitlines()
    # torch appends the C++ stack and advice that no table has room for.
    text = one_line(line for line in lines[:8] if not line.startswith(("Exception raised from", "frame #")))
    return text if isinstance(error, Mismatch) else f"{type(error).__name__}: {text}"
