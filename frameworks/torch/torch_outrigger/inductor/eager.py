"""Compiles one operator for a class of its calls: a trace with sizes that move, Inductor's kernels, and a recipe of them.

The recipe is found by running the code that Inductor wrote with stand-ins for its tensors: what is allocated and launched
is noted, and whatever else the code does makes the operator one that is not compiled. It must never touch the tensors of
the call beyond their shapes, and never leave a mode of the calling thread: it works on a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import sympy
import torch
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._inductor import lowering
from torch._inductor.codegen.common import patch_compile_options
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree
from torch.utils._sympy import functions as sizes

from . import wrapper

BUSY = object()
"""The answer where another compilation goes on, of which the call may be a part."""

MOST_KERNELS = 4
"""An operator of more kernels is left to the CPU."""

_CHECKS = ("OTR_CHECK(", "otr_checked(", "otr_within(")
"""Texts of checks that find indices out of bounds. Indices of a call may be wrong, and the CPU names the index then.
Where a call has no whole numbers, the operator computes its indices from sizes."""


_THREAD = "outrigger-eager"


class _Quiet(logging.Filter):
    """A trace that fails is no news: the CPU computes the operator."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.threadName != _THREAD


logging.getLogger("torch._subclasses.fake_tensor").addFilter(_Quiet())


class Refused(Exception):
    """The operator cannot be a recipe."""


def compile_call(
    name: str, overload: str, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device, is_flat: bool
) -> Any:
    """The recipe of a call, as values for JSON; None if the operator has none, BUSY if this is no time to compile.

    What the trace raises is raised: the call may be wrong.
    """
    if getattr(wrapper.where, "programs", None) is not None:
        return BUSY
    answer: list[Any] = []

    def work() -> None:
        # A thread that holds the lock may wait for this call.
        if not compile_lock.acquire(blocking=False):
            answer.append(BUSY)
            return
        wrapper.where.programs = __name__
        try:
            answer.append(_recipe(name, overload, args, kwargs, device, is_flat))
        except Refused:
            answer.append(None)
        except BaseException as error:
            answer.append(error)
        finally:
            wrapper.where.programs = None
            compile_lock.release()

    thread = threading.Thread(target=work, name=_THREAD)
    thread.start()
    thread.join()
    if isinstance(answer[0], BaseException):
        raise answer[0]
    return answer[0]


def _recipe(
    name: str, overload: str, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device, is_flat: bool
) -> dict[str, Any]:
    from . import patches, register

    register(device.type)
    op = getattr(getattr(torch.ops.aten, name), overload)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [number for number, one in enumerate(leaves) if isinstance(one, torch.Tensor)]
    env = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=env)
    fakes = [_fake(mode, leaves[place], f"input{number}") for number, place in enumerate(places)]

    def call(*tensors: Any) -> tuple[Any, ...]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        positional, named = pytree.tree_unflatten(filled, spec)
        result = op(*positional, **named)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    with torch.no_grad(), tracing(TracingContext(mode)):
        with mode:
            graph = make_fx(call, decomposition_table=_decompositions())(*fakes)
        end = next(node for node in graph.graph.nodes if node.op == "output")
        results = [node.meta["val"] if isinstance(node, torch.fx.Node) else None for node in end.args[0]]
        if not all(isinstance(one, torch.Tensor) and one.device == device for one in results):
            raise Refused
        if any(node.op == "get_attr" for node in graph.graph.nodes):
            raise Refused
        # The strides of results are those of the operator.
        end.meta["user_visible_output_idxs"] = list(range(len(results)))
        with patch_compile_options({**patches([device]), "fx_graph_cache": False}):
            source = _source(graph, fakes)
    tape = _Tape(fakes, env)
    returned = tape.run(source)
    return _Writer(tape, env, fakes).recipe(f"otr_{name.rstrip('_')}", returned, results, is_flat)


def _source(graph: torch.fx.GraphModule, fakes: list[torch.Tensor]) -> str:
    """The code that Inductor writes for a graph."""
    try:
        compile_fx_inner(graph, fakes)
    except wrapper.Written as written:
        return written.source
    # A graph without a kernel of ours.
    raise Refused


def _decompositions() -> dict[Any, Any]:
    """Inductor's decompositions, and torch's for operators without loops, which Inductor then meets in another form."""
    others = torch._decomp.decomposition_table.items()
    return {**{op: one for op, one in others if op not in lowering.lowerings}, **select_decomp_table()}


def _fake(mode: FakeTensorMode, tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A stand-in whose sizes move, each by itself, and whose strides follow them where they can."""
    every = tensor.dim()
    context = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC] * every,
        dynamic_strides=[DimDynamic.INFER_STRIDE] * every,
        constraint_sizes=[None] * every,
        constraint_strides=[None] * every,
    )
    return mode.from_tensor(tensor, source=ConstantSource(name), symbolic_context=context)


# ---- running what Inductor wrote ----


class Number:
    """A size in the code: an expression."""

    def __init__(self, expr: Any) -> None:
        self.expr = sympy.sympify(expr)

    def __index__(self) -> int:
        raise Refused


def _expr(value: Any) -> sympy.Expr:
    if isinstance(value, Number):
        return value.expr
    if type(value) is int:
        return sympy.Integer(value)
    raise Refused


def _defined(compute: Any) -> Any:
    def method(self: Number, other: Any) -> Number:
        return Number(compute(self.expr, _expr(other)))

    return method


for _name, _compute in {
    "__add__": lambda a, b: a + b,
    "__radd__": lambda a, b: b + a,
    "__sub__": lambda a, b: a - b,
    "__rsub__": lambda a, b: b - a,
    "__mul__": lambda a, b: a * b,
    "__rmul__": lambda a, b: b * a,
    "__floordiv__": sizes.FloorDiv,
    "__mod__": sizes.PythonMod,
}.items():
    setattr(Number, _name, _defined(_compute))
Number.__neg__ = lambda self: Number(-self.expr)  # type: ignore[attr-defined]


class Stand:
    """A tensor in the code: an input, or what is allocated."""

    def __init__(self, slot: int, shape: Any, strides: Any, dtype: torch.dtype, root: Stand | None = None) -> None:
        self.slot = slot
        self.shape = tuple(_expr(one) for one in shape)
        self.strides = tuple(_expr(one) for one in strides)
        self.dtype = dtype
        self.root = root or self

    def size(self) -> list[Number]:
        return [Number(one) for one in self.shape]

    def stride(self) -> list[Number]:
        return [Number(one) for one in self.strides]


class Noted:
    """A kernel of the code. Calling it notes the launch."""

    def __init__(self, *about: Any) -> None:
        self.about = about

    def __call__(self, *arguments: Any) -> None:
        _current.tape.launches.append((self, arguments))


class Program:
    """Stands for the program of kernels, and compiles none."""

    def __init__(self, device_type: str, index: int) -> None:
        pass

    def kernel(self, *about: Any) -> Noted:
        return Noted(*about)

    def begin(self) -> None:
        pass


_current = threading.local()


class _Tape:
    """The allocations and launches of the code when it runs."""

    def __init__(self, fakes: list[torch.Tensor], env: ShapeEnv) -> None:
        def known(value: Any) -> Number:
            return Number(env.replace(value.node.expr) if isinstance(value, torch.SymInt) else value)

        self.inputs = [
            Stand(slot, map(known, fake.size()), map(known, fake.stride()), fake.dtype) for slot, fake in enumerate(fakes)
        ]
        self.allocated: list[Stand] = []
        self.launches: list[tuple[Noted, tuple[Any, ...]]] = []

    def _empty(self, shape: Any, strides: Any, dtype: torch.dtype, device: torch.device) -> Stand:
        made = Stand(len(self.inputs) + len(self.allocated), shape, strides, dtype)
        self.allocated.append(made)
        return made

    @staticmethod
    def _view(tensor: Any, shape: Any, strides: Any, offset: Any) -> Stand:
        if not isinstance(tensor, Stand) or _expr(offset) != 0:
            raise Refused
        return Stand(tensor.slot, shape, strides, tensor.dtype, tensor.root)

    def run(self, source: str) -> list[Stand]:
        """Runs the code of a module. What it does that no recipe can makes it refuse."""
        space: dict[str, Any] = {"__name__": __name__}
        exec(compile(source, "<compiled operator>", "exec"), space)
        space["outrigger_program_empty"] = self._empty
        space["reinterpret_tensor"] = self._view
        for check in ("assert_size_stride", "assert_size_stride_grouped", "assert_alignment"):
            space[check] = lambda *arguments: None
        _current.tape = self
        try:
            returned = list(space["call"](list(self.inputs)))
        except Exception as error:
            raise Refused from error
        finally:
            _current.tape = None
        if not all(isinstance(one, Stand) and one.slot >= len(self.inputs) for one in returned):
            raise Refused
        return returned


# ---- writing the recipe ----

# Numbers of csrc/recipe.h.
_CONSTANT, _SYMBOL, _FIELD = 0, 1, 2
_FUNCTIONS: dict[Any, int] = {
    sympy.Add: 3,
    sympy.Mul: 4,
    sizes.FloorDiv: 5,
    sizes.CleanDiv: 5,
    sizes.PythonMod: 6,
    sizes.Mod: 6,
    sizes.Max: 7,
    sizes.Min: 8,
    sympy.Eq: 9,
    sympy.Ne: 10,
    sympy.Lt: 11,
    sympy.Le: 12,
    sympy.And: 13,
    sympy.Or: 14,
}
_ARGUMENT_TENSOR, _ARGUMENT_NUMBER = 0, 1


class _Writer:
    """Turns a tape into numbers."""

    def __init__(self, tape: _Tape, env: ShapeEnv, fakes: list[torch.Tensor]) -> None:
        self._tape, self._env = tape, env
        self._fields = [expr for one in tape.inputs for expr in (*one.shape, *one.strides)]
        self._hints = [int(_hint(value)) for fake in fakes for value in (*fake.size(), *fake.stride())]
        self._symbols: dict[sympy.Symbol, int] = {}
        for number, expr in enumerate(self._fields):
            if isinstance(expr, sympy.Symbol):
                self._symbols.setdefault(expr, number)
        self._order = {symbol: number for number, symbol in enumerate(self._symbols)}

    def program(self, expr: Any) -> list[int]:
        """An expression as steps of a stack machine, behind their count."""
        steps = self._steps(sympy.sympify(expr))
        return [len(steps) // 2, *steps]

    def _steps(self, expr: Any) -> list[int]:
        if expr in (sympy.true, sympy.false):
            return [_CONSTANT, int(expr == sympy.true)]
        if isinstance(expr, sympy.Integer):
            if not -(2**63) <= int(expr) < 2**63:
                raise Refused
            return [_CONSTANT, int(expr)]
        if isinstance(expr, sympy.Symbol):
            if expr not in self._order:
                raise Refused
            return [_SYMBOL, self._order[expr]]
        if isinstance(expr, (sympy.Gt, sympy.Ge)):
            return self._steps(expr.reversed)
        if isinstance(expr, sympy.Not):
            return self._steps(expr.args[0]) + [_CONSTANT, 0, _FUNCTIONS[sympy.Eq], 0]
        if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and 0 < int(expr.exp) <= 8:
            return self._joined(_FUNCTIONS[sympy.Mul], [expr.base] * int(expr.exp))
        if isinstance(expr, sizes.ModularIndexing):
            base, divisor, modulus = expr.args
            return self._steps(sizes.PythonMod(sizes.FloorDiv(base, divisor), modulus))
        number = next((found for kind, found in _FUNCTIONS.items() if isinstance(expr, kind)), None)
        if number is None:
            raise Refused
        return self._joined(number, list(expr.args))

    def _joined(self, number: int, parts: list[Any]) -> list[int]:
        steps = self._steps(parts[0])
        for one in parts[1:]:
            steps += [*self._steps(one), number, 0]
        return steps

    def _conditions(self) -> list[list[int]]:
        """The conditions that a call has to meet for the recipe to hold."""
        found = []
        for number, expr in enumerate(self._fields):
            if self._symbols.get(expr) != number:
                steps = [_FIELD, number, *self._steps(expr), _FUNCTIONS[sympy.Eq], 0]
                found.append([len(steps) // 2, *steps])
        for guard in self._env.guards:
            known = self._env.replace(sympy.sympify(guard.expr)) if hasattr(guard, "expr") else self._env.replace(guard[0])
            if known != sympy.true:
                found.append(self.program(known))
        for symbol, place in self._order.items():
            bounds = self._env.var_to_range.get(symbol)
            for bound, relation in () if bounds is None else ((bounds.lower, sympy.Le), (bounds.upper, sympy.Ge)):
                if isinstance(bound, sympy.Integer) and abs(int(bound)) < 2**62:
                    steps = [_CONSTANT, int(bound), _SYMBOL, place]
                    if relation is sympy.Ge:
                        steps = [_SYMBOL, place, _CONSTANT, int(bound)]
                    found.append([3, *steps, _FUNCTIONS[sympy.Le], 0])
        return found

    def recipe(self, name: str, returned: list[Stand], results: list[torch.Tensor], is_flat: bool) -> dict[str, Any]:
        """The whole as values for JSON."""
        tape = self._tape
        known = {id(one): one for one, _ in tape.launches}
        if not tape.launches or len(tape.launches) > MOST_KERNELS or len({one.slot for one in returned}) < len(returned):
            raise Refused
        outputs = {one.root.slot: (number, one) for number, one in enumerate(returned)}
        for one, result in zip(returned, results, strict=True):
            # A result is all that was allocated for it, and has the strides that the operator gives.
            if not self._is(one.shape, result.size()) or not self._is(one.strides, result.stride()) or one.dtype != result.dtype:
                raise Refused
            if not self._env.evaluate_expr(sympy.Eq(_extent(one), _extent(one.root))):
                raise Refused
            if is_flat and (one.shape != self._flat() or one.strides != (1,)):
                raise Refused
        conditions = self._conditions()
        code = [len(tape.inputs), len(self._fields), len(self._symbols), *self._symbols.values(), len(conditions)]
        for one in conditions:
            code += one
        code.append(len(tape.allocated))
        dtypes = []
        for one in tape.allocated:
            number, shown = outputs.get(one.slot, (-1, one))
            code += [number, len(shown.shape)]
            for expr in (*shown.shape, *shown.strides):
                code += self.program(expr)
            dtypes.append(str(shown.dtype).removeprefix("torch."))
        order = {key: number for number, key in enumerate(known)}
        code.append(len(tape.launches))
        for kernel, arguments in tape.launches:
            code += [order[id(kernel)], len(arguments)]
            for one in arguments:
                if isinstance(one, Stand):
                    code += [_ARGUMENT_TENSOR, one.slot]
                else:
                    code += [_ARGUMENT_NUMBER, *self.program(_expr(one))]
        kernels = [self._kernel(one, f"{name}_{number}") for number, one in enumerate(known.values())]
        return {"code": code, "dtypes": dtypes, "kernels": kernels}

    def _flat(self) -> tuple[Any, ...]:
        """The shape of the operands that are shown with one dimension."""
        return next(one.shape for one in self._tape.inputs if one.shape)

    def _is(self, exprs: Any, values: Any) -> bool:
        """Whether expressions have, for the sizes of the call, the values of the traced results."""
        by_symbol = {symbol: self._hints[place] for symbol, place in self._symbols.items()}
        return [int(one.xreplace(by_symbol)) for one in exprs] == [int(_hint(one)) for one in values]

    def _kernel(self, noted: Noted, name: str) -> list[Any]:
        before, kinds, items, reduced, by_row, pointers, text = noted.about
        has_indices = any(not one.dtype.is_floating_point and one.dtype != torch.bool for one in self._tape.inputs)
        # Numbers that are added in any order differ from call to call, and a recipe is for every mode of the process.
        if "w" in kinds or "otr_atomic_add_" in text or (has_indices and any(one in text for one in _CHECKS)):
            raise Refused
        extents = [list(one) if isinstance(one, tuple) else one for one in (items, reduced)]
        return [name, kinds, *extents, by_row, pointers, text.replace(before, name)]


def _hint(value: Any) -> int:
    return value.node.hint if isinstance(value, torch.SymInt) else value


def _extent(one: Stand) -> sympy.Expr:
    """The number of elements of a tensor without gaps."""
    return sympy.Mul(*one.shape)
