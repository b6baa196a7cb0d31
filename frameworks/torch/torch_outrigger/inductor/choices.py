"""`mode="max-autotune"`: which kernel computes a product, a convolution or attention, measured once and kept by the project's tuner.

The candidates are the device's operator and kernels of this backend. The questions of a graph are asked in their order
on a thread of their own, from the first one on. Nothing is measured in this process: `measure.py` is the worker.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import operator
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir, lowering
from torch._inductor.virtualized import V

from .. import _C
from .._lifetime import is_served
from . import config, kept, product
from .program import code_version
from .template import ProductBuffer
from .types import MEMORY

log = logging.getLogger(__name__)
aten = torch.ops.aten

LIBRARY = "library"
"""The device's operator, which is the default."""

_TUNE_MEASURE = 1
"""OTR_TUNE_MEASURE."""

_LEAST_TUNED = 1 << 18
"""A product of fewer multiplications is not tuned: a launch takes longer."""

_MOST = 1 << 30
"""Rows and columns of a matrix, at most."""

PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Operators that are products, and which argument is the first matrix."""

CONVOLUTION, ATTENTION = "convolution", "attention"

_ATTENTION = aten._scaled_dot_product_fused_attention_overrideable.default


@dataclass(frozen=True)
class Operand:
    """An operand with which a candidate is measured. Sizes that move are those of the first call."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    moves: bool

    @classmethod
    def of(cls, sizes: Any, strides: Any, dtype: torch.dtype) -> Operand:
        """Of sizes that may be symbols."""

        def known(one: Any) -> int:
            expr = one.node.expr if isinstance(one, torch.SymInt) else one
            return int(V.graph.sizevars.optimization_hint(expr, fallback=1024))

        moves = any(isinstance(one, torch.SymInt) or not getattr(one, "is_number", True) for one in (*sizes, *strides))
        return cls(tuple(map(known, sizes)), tuple(map(known, strides)), dtype, moves)

    def described(self) -> str:
        return f"{list(self.sizes)} by {list(self.strides)}" + ", moving" * self.moves


@dataclass(frozen=True)
class Variant:
    """A kernel that computes a product, in one go or in parts of its sum."""

    kernel: product.Kernel
    parts: int = 1

    @property
    def name(self) -> str:
        return f"tile {self.kernel.tile.name}" + (f", {self.parts} parts" if self.parts > 1 else "")


@dataclass
class Question:
    """Work for which one candidate is the best."""

    operation: str
    device: torch.device
    operands: list[Operand]
    how: product.Convolution | product.Attention | None
    followed: bool
    """Whether elementwise work comes next, which a kernel of this backend does at once."""
    variants: list[Variant]
    limit_ms: int = field(default_factory=lambda: 1000 * config.candidate_seconds)
    answer: Future[str] = field(default_factory=Future)
    times: dict[str, str] = field(default_factory=dict)
    """The times of the candidates, but for those that failed."""

    @property
    def sizes(self) -> str:
        parts = [one.described() for one in self.operands]
        if self.how is not None:
            parts.append(" ".join(f"{name} {value}" for name, value in self.how._asdict().items()))
        return "; ".join(parts) + ", followed" * self.followed

    def key(self) -> tuple[Any, ...]:
        return self.operation, self.device, self.sizes, self.operands[0].dtype, *(one.name for one in self.variants)

    def ask(self) -> None:
        """Gives the answer: in a moment if it is kept, in seconds if the worker measures."""
        try:
            names, chosen, times = self._choose(_TUNE_MEASURE, json.dumps(self._task()))
            self.times = {name: f"{time / 1000:.1f} us" for name, time in zip(names, times, strict=True) if time}
            log.info("%s %s: %s of %s", self.operation, self.sizes, names[chosen], self.times)
            self.answer.set_result(names[chosen])
        except Exception as error:
            log.warning("%s %s: not measured: %s", self.operation, self.sizes, error)
            self.answer.set_result(LIBRARY)

    def _choose(self, flags: int, task: str | None) -> tuple[list[str], int, list[int]]:
        names = [LIBRARY, *(one.name for one in self.variants)]
        about = f"torch.{self.operation}", self.sizes, MEMORY[self.operands[0].dtype], _code()
        return names, *_C.tune_choose(self.device.index or 0, flags, about, names, self.limit_ms, _worker(), task)

    def compile(self) -> None:
        """Compiles the candidates if they will be measured, so that the worker finds them in the store. What fails here fails there too."""
        if isinstance(self.how, product.Attention) or os.environ.get("OUTRIGGER_TUNE") == "off":
            return
        try:
            if any(self._choose(0, None)[2]):
                return
            names = (product.candidate_name(one.name) for one in self.variants)
            begun = [product.begun(one.kernel, name, self.device, one.parts, True) for one, name in zip(self.variants, names, strict=True)]
            for one in begun:
                # The program may end meanwhile, which waits for this thread.
                if threading.main_thread().is_alive() and not self.answer.done():
                    one.load()
        except Exception as error:
            log.info("%s %s: not compiled ahead: %s", self.operation, self.sizes, error)

    def _task(self) -> dict[str, Any]:
        return {
            "code": code_version(),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "operation": self.operation,
            "operands": [[one.sizes, one.strides, MEMORY[one.dtype]] for one in self.operands],
            "how": self.how,
            "followed": self.followed,
            "variants": {one.name: [*one.kernel.tile, one.parts] for one in self.variants},
        }


def _code() -> str:
    """The key of what the answer depends on besides the question and the device."""
    text = f"{code_version()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _worker() -> list[str]:
    start = f"import sys; sys.path[:] = {sys.path!r}; from torch_outrigger.inductor.measure import main; main()"
    return [sys.executable, "-c", start]


# ---- what is asked ----

_asked: dict[tuple[Any, ...], Question] = {}
_lock = threading.Lock()


def _answers(questions: list[Question]) -> None:
    """Has questions answered, once in this process, and gives each the answer that comes."""
    fresh = []
    with _lock:
        for one in questions:
            known = _asked.setdefault(one.key(), one)
            if known is one:
                fresh.append(one)
            else:
                one.answer = known.answer
    if fresh:
        threading.Thread(target=_compile_all, args=(fresh,), name="outrigger-compile").start()
        # A process may end meanwhile: the worker ends with it.
        threading.Thread(target=_ask_all, args=(fresh,), name="outrigger-tune", daemon=True).start()


def _ask_all(questions: list[Question]) -> None:
    for one in questions:
        one.ask()


def _compile_all(questions: list[Question]) -> None:
    """Compiles what is measured next."""
    for one in questions:
        if threading.main_thread().is_alive():
            one.compile()


def _is_on(device: torch.device, is_convolution: bool) -> bool:
    here = "max_autotune_conv" if is_convolution else "max_autotune_gemm"
    on = inductor_config.max_autotune or getattr(inductor_config, here, False)
    backends = getattr(inductor_config, f"{here}_backends")
    return on and config.templates and is_served(device.type) and backends.upper() != "ATEN"


def _variants(device: torch.device, dtype: torch.dtype, sizes: Sequence[int], kernel: Callable[..., Any]) -> list[Any]:
    """A variant for each tile that comes into question for a product of so many rows, columns, elements of a sum, and
    batches. Few multiplications take less than a launch."""
    m, n, k, count = sizes
    if min(sizes) < 1 or m * n * k * count < _LEAST_TUNED or max(m, n, k) > _MOST:
        return []
    return [Variant(kernel(tile)) for tile in product.tiles(device, dtype, m)]


def _of_product(name: str, device: torch.device, operands: list[Operand], node: torch.fx.Node | None) -> Question | None:
    a, b = operands
    *batch, m, k = a.sizes
    sizes = (m, b.sizes[-1], k, batch[0] if batch else 1)
    if a.dtype != b.dtype:
        return None

    def kernel(tile: product.Tile) -> product.Kernel:
        return product.Kernel(a.dtype, tile, a.strides[-1] == 1, b.strides[-1] == 1)

    variants = _variants(device, a.dtype, sizes, kernel)
    if variants and config.split_k and not batch and not a.moves:
        variants += [Variant(variants[0].kernel, parts) for parts in product.splits(*sizes[:3], a.dtype)]
    return Question(name, device, operands, None, _is_followed(node), variants) if variants else None


def _of_convolution(
    device: torch.device, operands: list[Operand], how: product.Convolution, node: torch.fx.Node | None
) -> Question | None:
    x, weight = operands
    if x.dtype != weight.dtype:
        return None
    of_x, of_weight = (product.Layout(one.sizes, one.strides) for one in operands)
    n, depth = math.prod(how.places(x.sizes, weight.sizes)), math.prod(weight.sizes[1:])
    sizes = (weight.sizes[0] // how.groups, n, depth, x.sizes[0] * how.groups)
    kernel = product.Kernel.convolving
    variants = _variants(device, x.dtype, sizes, lambda tile: kernel(x.dtype, tile, of_x, of_weight, how))
    return Question(CONVOLUTION, device, operands, how, _is_followed(node), variants) if variants else None


def _of_node(node: torch.fx.Node) -> Question | None:
    """The question of a node of a graph, as far as its operands are known before they are lowered."""
    if node.target is aten.convolution.default:
        name, arguments = CONVOLUTION, node.args[:2]
    elif node.target is _ATTENTION:
        name, arguments = ATTENTION, node.args[:3]
    else:
        name = next((one for one in PRODUCTS if node.target is getattr(aten, one).default), "")
        arguments = node.args[PRODUCTS[name] :] if name else ()
    values = [one.meta.get("val") if isinstance(one, torch.fx.Node) else None for one in arguments]
    if not values or not all(isinstance(one, torch.Tensor) and kept._is_ours(one) for one in values):
        return None
    operands = [Operand.of(one.size(), one.stride(), one.dtype) for one in values]
    if name == ATTENTION:
        weighs = _weighs(node, *node.args[3:], **node.kwargs)
        return weighs and _of_attention(values[0].device, operands, weighs)
    if name != CONVOLUTION:
        return _of_product(name, values[0].device, operands, node)
    how = _how(node, *node.args[3:9]) if len(node.args) == 9 else None
    return how and _of_convolution(values[0].device, operands, how, node)


def _how(node: torch.fx.Node, *given: Any) -> product.Convolution | None:
    """The parameters of a convolution; None if it has no kernel here: a transposed one, one in the layout of channels
    last, one without batches."""
    stride, padding, dilation, transposed, _, groups = given
    made = node.meta.get("val")
    numbers = [*stride, *padding, *dilation, groups]
    if transposed or not isinstance(made, torch.Tensor) or not all(isinstance(one, int) for one in numbers):
        return None
    spatial, image = made.dim() - 2, made.shape[1:]
    # Sizes of images are known. Asking the tensor whether it is contiguous might fix the number of images too.
    if not 1 <= spatial <= 3 or any(isinstance(one, torch.SymInt) for one in image):
        return None
    if list(made.stride()[1:]) != [math.prod(image[d + 1 :]) for d in range(len(image))]:
        return None
    lists = (tuple(one) * spatial if len(one) == 1 else tuple(one) for one in (stride, padding, dilation))
    return product.Convolution(*lists, groups)


def _of_attention(device: torch.device, operands: list[Operand], how: product.Attention) -> Question | None:
    """Two products with the softmax of the scores between them, all scores in memory."""
    q, k, v = operands
    if len(q.sizes) != 4 or len({one.dtype for one in operands}) > 1 or q.sizes[:2] != k.sizes[:2]:
        return None
    sizes = (q.sizes[2], k.sizes[2], q.sizes[3], q.sizes[0] * q.sizes[1])
    variants = _variants(device, q.dtype, sizes, lambda tile: product.Kernel(q.dtype, tile, q.strides[3] == 1, k.strides[2] == 1))
    return Question(ATTENTION, device, operands, how, False, variants) if variants else None


def _weighs(node: torch.fx.Node, *given: Any, scale: float | None = None) -> product.Attention | None:
    """The parameters of attention; None if the node has a bias, drops out, or more than its first result is used."""
    bias, dropout, is_causal, debug = (*given, *(None, 0.0, False, False)[len(given) :])
    if any(user.target is not operator.getitem or user.args[1] != 0 for user in node.users):
        return None
    query = node.args[0].meta["val"]
    if bias is not None or dropout != 0 or debug or isinstance(query.shape[-1], torch.SymInt):
        return None
    return product.Attention(query.shape[-1] ** -0.5 if scale is None else scale, is_causal)


def _is_followed(node: torch.fx.Node | None) -> bool:
    """Whether only elementwise work uses the result."""
    users = list(node.users) if node is not None else []
    return bool(users) and all(torch.Tag.pointwise in getattr(one.target, "tags", ()) for one in users)


# ---- lowering ----


def _chosen(mine: Question | None) -> Variant | None:
    """The kernel that is the best for what is lowered now; None: the operator."""
    if mine is None:
        return None
    named = next((one for one in mine.variants if one.name == config.candidate), None)
    if named is not None:
        return named
    # Other nodes of the graph are measured while this one is lowered. Those of a graph that was seen have been asked for.
    fresh = mine.key() not in _asked
    nodes = V.graph.current_node.graph.nodes if fresh else ()
    others = (_of_node(one) for one in nodes if one.op == "call_function")
    _answers([mine, *(one for one in others if one is not None)])
    answer = mine.answer.result()
    return next((one for one in mine.variants if one.name == answer), None)


def _operands(values: Sequence[Any]) -> list[Operand]:
    """The operands of a node that is lowered, whose strides stay."""
    for one in values:
        one.freeze_layout()
    return [Operand.of(one.get_size(), one.get_stride(), one.get_dtype()) for one in values]


def _in_memory(*values: Any) -> list[Any]:
    """Operands as they are in memory, with whatever strides."""
    return [ir.ExternKernel.realize_input(one) for one in values]


def _layout(value: Any) -> product.Layout:
    layout = value.get_layout()
    return product.Layout(value.get_size(), layout.stride, layout.offset)


def _node(target: Any) -> torch.fx.Node | None:
    """The node that is lowered, if it is this operator and not a part of another one."""
    node = V.graph.current_node
    return node if node.target is target else None


def _made(device: torch.device, dtype: torch.dtype, sizes: Any, operands: Any, kernel: product.Kernel, numbers: Any) -> Any:
    layout = ir.FixedLayout(device, dtype, sizes)
    return ir.TensorBox.create(ProductBuffer(layout, operands, kernel, numbers))


def _product(a: Any, b: Any, variant: Variant) -> Any:
    """A product by a kernel of this backend."""
    kernel, parts = variant.kernel, variant.parts
    (*batch, m, k), n = a.get_size(), b.get_size()[-1]
    numbers = product.numbers(kernel.tile, [*batch, m, n, k], _layout(a), _layout(b), parts)
    if parts == 1:
        return _made(a.get_device(), kernel.dtype, [*batch, m, n], [a, b], kernel, numbers)
    made = _made(a.get_device(), torch.float32, [parts, m, n], [a, b], kernel, numbers)
    return lowering.to_dtype(lowering.lowerings[aten.sum.dim_IntList](made, [0]), kernel.dtype)


def _added(given: Any, made: Any, alpha: Any, beta: Any) -> Any:
    """The sum of `addmm`, in loops behind the product."""
    multiply = lowering.lowerings[aten.mul.Tensor]
    made = made if alpha == 1 else multiply(made, alpha)
    if beta == 0:
        return made
    return lowering.lowerings[aten.add.Tensor](made, given if beta == 1 else multiply(given, beta))


def _lowered_product(name: str, stock: Callable[..., Any]) -> Callable[..., Any]:
    first, target = PRODUCTS[name], getattr(aten, name).default

    def lower(*args: Any, **kwargs: Any) -> Any:
        extra = kwargs.keys() - {"alpha", "beta"}
        device = args[first].get_device() if len(args) == first + 2 and not extra else None
        if device is None or not _is_on(device, False):
            return stock(*args, **kwargs)
        matrices = _in_memory(*args[first:])
        variant = _chosen(_of_product(name, device, _operands(matrices), _node(target)))
        if variant is None:
            return stock(*args[:first], *matrices, **kwargs)
        made = _product(*matrices, variant)
        return _added(args[0], made, kwargs.get("alpha", 1), kwargs.get("beta", 1)) if first else made

    return lower


def _lowered_convolution(stock: Callable[..., Any]) -> Callable[..., Any]:
    def lower(x: Any, weight: Any, bias: Any, *given: Any) -> Any:
        node, device = _node(aten.convolution.default), x.get_device()
        how = _how(node, *given) if node is not None and len(given) == 6 and _is_on(device, True) else None
        if how is None:
            return stock(x, weight, bias, *given)
        x, weight = _in_memory(x, weight)
        variant = _chosen(_of_convolution(device, _operands([x, weight]), how, node))
        if variant is None:
            return stock(x, weight, bias, *given)
        of_x, of_weight = _layout(x), _layout(weight)
        numbers = product.convolved(variant.kernel, of_x, of_weight, how)
        sizes = [of_x.sizes[0], of_weight.sizes[0], *how.places(of_x.sizes, of_weight.sizes)]
        made = _made(device, variant.kernel.dtype, sizes, [weight, x], variant.kernel, numbers)
        if bias is None:
            return made
        return lowering.lowerings[aten.add.Tensor](made, lowering.view(bias, [-1, *[1] * (len(sizes) - 2)]))

    return lower


def _softmax(scores: Any, how: product.Attention) -> Any:
    """The weights of scores, in loops of Inductor."""
    table = lowering.lowerings
    x = table[aten.mul.Tensor](scores, how.scale)
    if how.is_causal:
        rows, columns = scores.get_size()[-2:]
        here = {"start": 0, "step": 1, "dtype": torch.int64, "device": scores.get_device(), "requires_grad": False}
        row, column = (table[torch.ops.prims.iota.default](size, **here) for size in (rows, columns))
        seen = table[aten.ge.Tensor](lowering.view(row, [rows, 1]), lowering.view(column, [1, columns]))
        x = table[aten.where.self](seen, x, lowering.full_like(x, float("-inf")))
    x = table[aten.exp.default](table[aten.sub.Tensor](x, table[aten.amax.default](x, [-1], True)))
    return table[aten.div.Tensor](x, table[aten.sum.dim_IntList](x, [-1], True))


def _lowered_attention(stock: Callable[..., Any]) -> Callable[..., Any]:
    def lower(query: Any, key: Any, value: Any, *given: Any, **named: Any) -> Any:
        node, device = _node(_ATTENTION), query.get_device()
        how = _weighs(node, *given, **named) if node is not None and _is_on(device, False) else None
        if how is None:
            return stock(query, key, value, *given, **named)
        query, key, value = _in_memory(query, key, value)
        variant = _chosen(_of_attention(device, _operands([query, key, value]), how))
        if variant is None:
            return stock(query, key, value, *given, **named)
        dtype, tile = variant.kernel.dtype, variant.kernel.tile
        (*batch, rows, depth), columns = query.get_size(), key.get_size()[2]
        of_query, of_key, of_value = map(_layout, (query, key, value))
        *outer, row, column = of_key.strides
        transposed = of_key._replace(strides=[*outer, column, row])
        numbers = product.numbers(tile, [*batch, rows, columns, depth], of_query, transposed)
        wide = dtype if dtype == torch.float64 else torch.float32
        scores = _made(device, wide, [*batch, rows, columns], [query, key], variant.kernel, numbers)
        (weights,) = _in_memory(lowering.to_dtype(_softmax(scores, how), dtype))
        weights.freeze_layout()
        of_weights = _layout(weights)
        kernel = product.Kernel(dtype, tile, of_weights.strides[-1] == 1, of_value.strides[-1] == 1)
        width = value.get_size()[-1]
        numbers = product.numbers(tile, [*batch, rows, width, columns], of_weights, of_value)
        made = _made(device, dtype, [*batch, rows, width], [weights, value], kernel, numbers)
        strides = node.meta["val"][0].stride()
        return ir.ExternKernel.require_exact_strides(made, strides), *[None] * 8

    return lower


def install() -> None:
    """Has Inductor's tables ask for products, convolutions and attention, once."""
    for name in PRODUCTS:
        overload = getattr(aten, name).default
        lowering.lowerings[overload] = _lowered_product(name, lowering.lowerings[overload])
    for overload, lowered in ((aten.convolution.default, _lowered_convolution), (_ATTENTION, _lowered_attention)):
        lowering.lowerings[overload] = lowered(lowering.lowerings[overload])
