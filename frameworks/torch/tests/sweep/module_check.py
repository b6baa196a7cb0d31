"""Checks one module on the device: its results and gradients, its state, its copies, its refusals.

A module is made on the CPU and moved, as programs do it. Must give both sides the same seed before each call: a module that
draws random numbers is compared by form with the CPU's, and by value with copies of itself.
"""

from __future__ import annotations

import functools
import inspect
import io
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from . import compare
from .cases import ACCUMULATING, Module, Tolerance
from .chance import draws_random
from .check import CPU, Check, on_cpu, refusal, roots, weight
from .compare import Mismatch
from .transfer import WIDER_THAN, Transfer

if TYPE_CHECKING:  # Its import takes seconds.
    from torch.testing._internal.common_modules import ModuleInput

SEED = 5
GRADIENT = ACCUMULATING.widened(Tolerance(rtol=1e-4, atol=1e-4))
# Gradients of gradients are sums of large terms that cancel, in the CPU's kernels too.
SECOND_GRADIENT = GRADIENT.widened(Tolerance(rtol=1e-3, atol=1e-3))


@dataclass
class Side:
    """A module with the arguments of one call, all on one side."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = None

    def call(self) -> Any:
        """Calls the module, and keeps what it gives."""
        self.result = run(self.module, self.args, self.kwargs)
        return self.result

    def again(self, module: torch.nn.Module | None = None) -> Any:
        """The result of `module`, or of this one, for the same arguments, without gradients."""
        with torch.no_grad():
            return run(module or self.module, *deepcopy((detached(self.args), detached(self.kwargs))))

    def variables(self) -> list[Tensor]:
        """The tensors that have gradients: arguments and parameters."""
        leaves = [one for one in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(one, Tensor)]
        return [one for one in (*leaves, *self.module.parameters()) if one.requires_grad]

    def gradients(self, results: list[Tensor], weights: list[Tensor], twice: bool) -> list[Tensor | None]:
        """The gradients of `results`, weighted by `weights`; with `twice` they have gradients themselves."""
        weights = [one.to(result) for one, result in zip(weights, results, strict=True)]
        return list(torch.autograd.grad(results, self.variables(), weights, allow_unused=True, create_graph=twice))


@dataclass
class Sides:
    """The same call on the CPU, on the device, and on the CPU in a wider dtype where it has one."""

    expected: Side
    actual: Side
    wide: Side | None

    @functools.cached_property
    def random(self) -> bool:
        """Whether the call draws random numbers."""
        return draws_random(self.expected.again)


class ModuleCheck(Check):
    """The check of one module on one device."""

    case: Module

    def samples(self) -> Iterator[ModuleInput]:
        """The inputs of torch's database, of CPU tensors."""
        return iter(self.case.make_inputs())

    def sample(self, sample: ModuleInput) -> None:
        """Every stage of one input."""
        if self.index == 0:
            self.attempt("errors", self.errors)
        args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
        sides = self.attempt("forward", lambda: self.forward(sample, args, kwargs))
        if sides is None:
            return
        self.attempt("backward", lambda: self.backward(sides))
        self.attempt("state", lambda: self.state(sample, sides))
        self.attempt("copies", lambda: self.copies(sides))
        self.attempt("made on the device", lambda: self.made_there(sample, sides))
        self.attempt("in-place", lambda: self.in_place(sample))
        self.attempt("non-contiguous", lambda: self.rearranged(sample, apart))
        for dimensions, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
            self.attempt(f"channels last, {dimensions}-D", lambda: self.channels_last(sample, dimensions, layout))

    def make(self, sample: ModuleInput, given_on: torch.device = CPU, **others: Any) -> torch.nn.Module:
        """The module as the database makes it, of arguments on the device `given_on`."""
        # A module may keep an argument of its constructor.
        given = deepcopy((sample.constructor_input.args, sample.constructor_input.kwargs))
        args, kwargs = pytree.tree_map_only((Tensor, torch.nn.Module), lambda one: one.to(given_on), given)
        torch.manual_seed(SEED)
        module = self.case.make(*args, **{**kwargs, **others})
        return module.train(self.case.training)

    def forward(self, sample: ModuleInput, args: Any, kwargs: Any, **others: Any) -> Sides:
        """Calls the module on both sides and compares the results."""
        expected = self.side(on_cpu(lambda: self.make(sample, **others).to(self.case.dtype)), CPU, args, kwargs)
        actual = self.side(deepcopy(expected.module), self.device, args, kwargs)
        if any(is_lazy(one) for one in expected.module.parameters()):
            # The first call makes the parameters, on each side its own.
            on_cpu(expected.again)
            actual.again()
            actual.module.load_state_dict(expected.module.state_dict())
        wide = self.wide(expected, args, kwargs)
        on_cpu(expected.call)
        actual.call()
        sides = Sides(expected, actual, wide)
        self.same("result", expected.result, actual.result, sides, ACCUMULATING, wide and wide.result)
        arguments = ((one.args, one.kwargs) for one in (expected, actual))
        self.same("argument", *map(plain, arguments), sides, ACCUMULATING)
        return sides

    def side(self, module: torch.nn.Module, device: torch.device, args: Any, kwargs: Any, wide: bool = False) -> Side:
        """A call on `device`: the module is moved there, arguments are copied."""
        return Side(module.to(device), *Transfer(device, wide).tree((args, kwargs)))

    def wide(self, expected: Side, args: Any, kwargs: Any) -> Side | None:
        """The call in float64; nothing where the CPU refuses that."""
        dtype = WIDER_THAN.get(self.case.dtype)
        if dtype is None:
            return None
        try:
            side = self.side(deepcopy(expected.module).to(dtype), CPU, args, kwargs, wide=True)
            side.call()
        except Exception:
            return None
        return side

    def backward(self, sides: Sides) -> None:
        """Gradients of arguments and parameters; the gradients of these where the database says that they exist."""
        all_sides = [side for side in (sides.expected, sides.actual, sides.wide) if side is not None]
        results = [roots(plain(side.result)) for side in all_sides]
        if not results[0] or not sides.expected.variables():
            return
        stages = ("gradient", "second gradient") if self.case.twice_differentiable else ("gradient",)
        for what in stages:
            twice = what != stages[-1]
            weights = [weight(one) for one in results[0]]
            wanted = on_cpu(lambda: sides.expected.gradients(results[0], weights, twice))
            given = sides.actual.gradients(results[1], weights, twice)
            wide = sides.wide.gradients(results[2], weights, twice) if sides.wide is not None else None
            self.same(what, wanted, given, sides, SECOND_GRADIENT if what != stages[0] else GRADIENT, wide)
            results = [roots(one) for one in (wanted, given, wide)]
            if not results[0]:
                return

    def state(self, sample: ModuleInput, sides: Sides) -> None:
        """The state is that of the CPU, and comes back from a file, to the device and to the CPU."""
        expected, actual = sides.expected.module.state_dict(), sides.actual.module.state_dict()
        wide = dict(sides.wide.module.state_dict()) if sides.wide is not None else None
        self.same("state", dict(expected), dict(actual), sides, ACCUMULATING, wide)
        file = io.BytesIO()
        torch.save(actual, file)
        for device in (self.device, CPU):
            file.seek(0)
            loaded = torch.load(file, weights_only=True, map_location=None if device == self.device else device)
            self.exactly("state of a file", actual, loaded, device)
            other = self.make(sample).to(device, self.case.dtype)
            other.load_state_dict(loaded)
            self.exactly("state after load_state_dict", actual, other.state_dict(), device)

    def copies(self, sides: Sides) -> None:
        """Copies by `deepcopy`, by a file, and over the CPU compute what the module itself does."""
        on_cpu(lambda: pickled(sides.expected.module))
        module = sides.actual.module
        ways: dict[str, Callable[[], torch.nn.Module]] = {
            "deepcopy": lambda: deepcopy(module),
            "file": lambda: pickled(module),
            "CPU and back": lambda: deepcopy(module).cpu().to(self.device),
        }
        made = {way: make() for way, make in ways.items()}
        states = {way: deepcopy(copy.state_dict()) for way, copy in made.items()}
        state = deepcopy(module.state_dict())
        result = on_host(plain(sides.actual.again()))
        for way, copy in made.items():
            self.exactly(f"state of a copy ({way})", state, states[way], self.device)
            given = plain(sides.actual.again(copy))
            compare.equal(f"result of a copy ({way})", result, given, ACCUMULATING, None)

    def made_there(self, sample: ModuleInput, sides: Sides) -> None:
        """Made on the device, by an argument or under it as the default, the module has its state there."""
        if "device" in inspect.signature(self.case.make.__init__).parameters:
            others = {"device": self.device, "dtype": self.case.dtype}
            self.placed(self.make(sample, self.device, **others), sides)
        with self.device:
            named = {"device": self.device} if "device" in sample.constructor_input.kwargs else {}
            made = self.make(sample, self.device, **named)
        self.placed(made.to(self.case.dtype), sides)

    def placed(self, made: torch.nn.Module, sides: Sides) -> None:
        """The state of `made` has the form of the moved module's."""
        wanted = {name: one for name, one in made.state_dict().items() if not is_lazy(one)}
        if all(not is_lazy(one) for one in made.state_dict().values()):
            compare.alike("state", dict(sides.actual.module.state_dict()), wanted, self.device.type, finite=False)

    def in_place(self, sample: ModuleInput) -> None:
        """A module that can work in place gives the same so, and leaves it in its argument."""
        if "inplace" not in inspect.signature(self.case.make.__init__).parameters:
            return
        args, kwargs = pytree.tree_map_only(Tensor, Tensor.detach, (sample.forward_input.args, sample.forward_input.kwargs))
        self.forward(sample, args, kwargs, inplace=True)

    def rearranged(self, sample: ModuleInput, change: Callable[[Tensor], Tensor]) -> Sides | None:
        """The same call with its arguments laid out otherwise in memory, forward and backward."""
        given = (sample.forward_input.args, sample.forward_input.kwargs)
        laid_out = pytree.tree_map_only(Tensor, change, given, is_leaf=lambda one: isinstance(one, PackedSequence))
        leaves = zip(pytree.tree_leaves(given), pytree.tree_leaves(laid_out), strict=True)
        if all(one is other for one, other in leaves):
            return None
        sides = self.forward(sample, *laid_out)
        self.backward(sides)
        return sides

    def channels_last(self, sample: ModuleInput, dimensions: int, layout: torch.memory_format) -> None:
        """Arguments that are channels last, and a result that is so where the database says it."""

        def change(tensor: Tensor) -> Tensor:
            if tensor.dim() != dimensions or not tensor.is_floating_point():
                return tensor
            return tensor.detach().contiguous(memory_format=layout).requires_grad_(tensor.requires_grad)

        sides = self.rearranged(sample, change)
        if sides is None or not self.case.keeps_memory_format:
            return
        one, other = sides.expected.result, sides.actual.result
        if one.is_contiguous(memory_format=layout) and not other.is_contiguous(memory_format=layout):
            raise Mismatch(f"the result has strides {other.stride()}, not {one.stride()}")

    def errors(self) -> None:
        """Arguments that the module must refuse are refused on the device in the words of the CPU."""
        for given in self.case.make_errors(self.device):
            made, called = given.module_error_input.constructor_input, given.module_error_input.forward_input

            def call() -> Any:
                module = self.case.make(*made.args, **made.kwargs)
                if given.error_on.name == "CONSTRUCTION_ERROR":
                    return module
                module.to(self.device)
                # Buffers keep their dtype: it may be what is to be refused.
                for one in module.parameters():
                    one.data = one.data.to(self.case.dtype)
                return module(*called.args, **called.kwargs)

            if said := refusal(call, given.error_type, given.error_regex):
                raise Mismatch(said)

    def same(self, what: str, expected: Any, actual: Any, sides: Sides, tolerance: Tolerance, wide: Any = None) -> None:
        """Compares values; the form only where they are left to chance."""
        expected, actual, wide = plain(expected), plain(actual), plain(wide)
        place = self.device.type
        try:
            compare.equal(what, expected, actual, tolerance, place, wide)
        except Mismatch:
            if not sides.random:
                raise
            self.left_to_chance.add(self.index)
            compare.alike(what, expected, actual, place, finite=True)

    def exactly(self, what: str, expected: dict[str, Tensor], actual: dict[str, Tensor], device: torch.device) -> None:
        """Both states are the same to the last bit, and `actual` is on `device`."""
        compare.equal(what, on_host(dict(expected)), dict(actual), Tolerance(0, 0), device.type)


def run(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """A call after a fixed seed."""
    torch.manual_seed(SEED)
    return module(*args, **kwargs)


def plain(values: Any) -> Any:
    """`values` with packed sequences as their data: the sizes of batches are on the CPU on both sides."""

    def packed(one: Any) -> bool:
        return isinstance(one, PackedSequence)

    return pytree.tree_map(lambda one: one.data if packed(one) else one, values, is_leaf=packed)


def on_host(values: Any) -> Any:
    """`values` with their tensors on the CPU."""
    return pytree.tree_map_only(Tensor, Tensor.cpu, values)


def detached(values: Any) -> Any:
    """`values` without their history, packed sequences too."""

    def packed(one: Any) -> bool:
        return isinstance(one, PackedSequence)

    def detach(one: Any) -> Any:
        if packed(one):
            return one._replace(data=one.data.detach())
        return one.detach() if isinstance(one, Tensor) else one

    return pytree.tree_map(detach, values, is_leaf=packed)


def pickled(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of the whole module by a file."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def apart(tensor: Tensor) -> Tensor:
    """The same values with a gap after each element."""
    if tensor.dim() == 0 or tensor.numel() < 2:
        return tensor
    wide = tensor.detach().repeat_interleave(2, dim=-1)
    return wide[..., ::2].requires_grad_(tensor.requires_grad)
