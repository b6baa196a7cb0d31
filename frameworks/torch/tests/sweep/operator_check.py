"""Checks one operator on the device: every sample, forward, backward, in place and with `out=`.

Must compare every value that a call returns or writes to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils import _pytree as pytree

from . import compare
from .cases import Operator, Tolerance
from .chance import draws_random
from .check import CPU, Check, on_cpu, refusal, roots, weight
from .compare import Mismatch
from .transfer import Arguments, Transfer


# Tensors that `out=` may be given: the right form, nothing yet, and a part of a larger tensor, whose strides stay.
OUTS: dict[str, Callable[[Tensor, torch.device], Tensor]] = {
    "": lambda result, device: torch.zeros_like(result, device=device, requires_grad=False),
    " empty": lambda result, device: torch.empty(0, dtype=result.dtype, device=device),
    " with gaps": lambda result, device: torch.zeros(*result.shape, 2, dtype=result.dtype, device=device)[..., 1],
}


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
    """The result of the call for them."""

    @functools.cached_property
    def random(self) -> bool:
        """Whether the call draws random numbers, so that only the form of its results can be compared."""
        return draws_random(self.again)


class OperatorCheck(Check):
    """The check of one operator on one device."""

    case: Operator

    def samples(self) -> Iterator[SampleInput]:
        """The samples of torch's database, of CPU tensors."""
        return iter(self.case.make_samples())

    def sample(self, sample: SampleInput) -> None:
        """Checks every variant of the operator on one sample."""
        if self.index == 0:
            self.attempt("errors", self.errors)
        pair = self.attempt("forward", lambda: self.forward(sample))
        if pair is None:
            return
        if self.case.differentiable:
            self.attempt("backward", lambda: self.backward(sample, pair))
        if self.case.supports_out:
            for form, make in OUTS.items():
                self.attempt(f"out={form}", lambda: self.into_given(sample, pair, make))
        if self.case.inplace is not None and not sample.broadcasts_input:
            self.attempt("in-place", lambda: self.in_place(sample))
        self.attempt("non-contiguous", lambda: self.rearranged(sample))

    def forward(self, sample: SampleInput) -> Pair:
        """The operator as a function: results, and arguments written to."""
        pair = self.call(sample, self.case.function)
        self.compare_results(pair, sample.output_process_fn_grad)
        return pair

    def in_place(self, sample: SampleInput) -> None:
        """The operator's in-place variant, without gradients."""
        with torch.no_grad():
            self.compare_results(self.call(sample, self.case.inplace), sample.output_process_fn_grad)

    def errors(self) -> None:
        """Arguments that the operator must refuse are refused on the device in the words of the CPU."""

        def failures(device: torch.device) -> list[str]:
            said = []
            for given in self.case.make_errors(device):
                sample = given.sample_input
                call = functools.partial(self.case.function, sample.input, *sample.args, **sample.kwargs)
                said.append(refusal(call, given.error_type, given.error_regex))
            return said

        found = failures(self.device)
        # A call that CPU tensors do not refuse either is an entry of the database for tensors of another kind.
        if any(found) and (unlike := [one for one in found if one not in failures(CPU)]):
            raise Mismatch(unlike[0])

    def rearranged(self, sample: SampleInput) -> None:
        """The same call with gaps in the memory of its arguments, forward and backward."""
        laid_out = on_cpu(sample.noncontiguous)
        pair = self.forward(laid_out)
        if self.case.differentiable:
            self.backward(laid_out, pair)

    def into_given(self, sample: SampleInput, pair: Pair, make: Callable[[Tensor, torch.device], Tensor]) -> None:
        """The `out=` variant, into tensors that `make` makes after the results."""
        results = pytree.tree_leaves(pair.expected)
        if not results or not all(isinstance(one, Tensor) and one.layout is torch.strided for one in results):
            return

        def given(device: torch.device) -> Any:
            outs = [make(one, device) for one in results]
            return outs[0] if isinstance(pair.expected, Tensor) else tuple(outs)

        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            device = tensors[0].device if tensors else torch.device(kwargs.get("device", "cpu"))
            out = given(device)
            returned = self.case.function(*args, **kwargs, out=out)
            filled = [one is other for one, other in zip(pytree.tree_leaves(returned), pytree.tree_leaves(out))]
            return returned, filled, [one.stride() for one in pytree.tree_leaves(out)]

        finish = sample.output_process_fn_grad
        with torch.no_grad():
            given_pair = self.call(sample, call)
        try:
            self.compare_results(given_pair, lambda result: (finish(result[0]), *result[1:]))
        except Mismatch:
            # Some kernels of the CPU write where there are gaps as if there were none. What the function gives is right.
            written, found, wanted = given_pair.actual[0], given_pair.actual[1:], given_pair.expected[1:]
            wide = finish(pair.wide) if pair.wide_arguments is not None else None
            written = pytree.tree_unflatten(pytree.tree_leaves(written), pytree.tree_structure(pair.expected))
            self.same("result", finish(pair.expected), finish(written), pair, self.case.tolerance, wide)
            if found != wanted:
                raise

    def call(self, sample: SampleInput, function: Callable[..., Any]) -> Pair:
        """Calls `function` on both sides, with copies of the arguments."""

        def on(device: torch.device, wide: bool = False) -> tuple[Arguments, Any]:
            moved = Transfer(device, wide, self.case.keeps_devices).sample(sample, self.case.host_arguments)
            return moved, function(moved.input, *moved.args, **moved.kwargs)

        arguments, expected = on_cpu(lambda: on(CPU))
        wide_arguments, wide = self.reference(on)
        moved, actual = on(self.device)
        if self.case.keeps_devices:
            # A copy to the host that does not block ends up in pinned memory some time later.
            self.wait()
        return Pair(arguments, moved, expected, actual, lambda: on(CPU), wide_arguments, wide)

    def reference(self, on: Callable[[torch.device, bool], tuple[Arguments, Any]]) -> tuple[Arguments | None, Any]:
        """The call in float64; nothing where the CPU refuses that, as it does for results of a given dtype."""
        if not self.case.has_reference:
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
        self.same("result", finish(pair.expected), finish(pair.actual), pair, self.case.tolerance, wide)
        expected, actual = pair.expected_arguments.tensors(), pair.actual_arguments.tensors()
        wide = pair.wide_arguments.tensors() if pair.wide_arguments is not None else None
        self.same("argument", expected, actual, pair, self.case.tolerance, wide)

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
        wanted = on_cpu(lambda: torch.autograd.grad(expected, inputs, weights, allow_unused=True))
        given = torch.autograd.grad(
            actual,
            pair.actual_arguments.differentiable(),
            [one.to(root.device) for one, root in zip(weights, actual, strict=True)],
            allow_unused=True,
        )
        # A gradient is a formula of several roundings: in half precision it is compared like a sum.
        wide = wanted if self.case.dtype in compare.NEAR else None
        # Digits that torch's formulas for complex gradients lose are not the device's fault.
        if pair.wide_arguments is not None and not self.case.dtype.is_complex:
            wide = torch.autograd.grad(
                roots(finish(pair.wide)),
                pair.wide_arguments.differentiable(),
                [one.to(root.dtype) for one, root in zip(weights, roots(finish(pair.wide)), strict=True)],
                allow_unused=True,
            )
        self.same("gradient", wanted, given, pair, self.case.gradient_tolerance, wide)

    def same(self, what: str, expected: Any, actual: Any, pair: Pair, tolerance: Tolerance, wide: Any = None) -> None:
        """Compares values, with the reference `wide` where there is one, or the form only where values are left to chance."""
        place = None if self.case.keeps_devices else pair.actual_arguments.place(self.device)
        if not self.case.initialised:
            compare.alike(what, expected, actual, place, finite=False)
            return
        try:
            compare.equal(what, expected, actual, tolerance, place, wide)
        except Mismatch:
            if not pair.random:
                raise
            self.left_to_chance.add(self.index)
            compare.alike(what, expected, actual, place, finite=True)
