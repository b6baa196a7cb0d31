"""FlexAttention on the device: products around loops that Inductor fuses, where torch has templates for Triton and C++.

The scores are in memory, so that the functions of a program are loops over them as any other. It must never change what other
devices of the process compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._inductor import ir, lowering
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import _vmap_for_bhqkv
from torch.utils import _pytree as pytree

_NOTHING = -math.inf
"""The score of a place that the mask leaves out."""


class _Scores:
    """The scores of all places, before and behind the functions of a program."""

    def __init__(
        self, query: torch.Tensor, key: torch.Tensor, score_mod: Callable[..., Any], mask_mod: Callable[..., Any],
        scale: float, score_buffers: tuple[Any, ...], mask_buffers: tuple[Any, ...],
    ) -> None:  # fmt: skip
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        self.plain = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
        self.places = [torch.arange(size, device=query.device) for size in self.plain.shape]
        with TransformGetItemToIndex():
            mask = _vmap_for_bhqkv(mask_mod, prefix=(), suffix=(None,) * len(mask_buffers))
            self.seen = mask(*self.places, *mask_buffers)
            change = _vmap_for_bhqkv(score_mod, prefix=(0,), suffix=(None,) * len(score_buffers))
            changed = change(self.plain, *self.places, *score_buffers)
        self.changed = torch.where(self.seen, changed, _NOTHING)


def _of_each_head(query: torch.Tensor, *shared: torch.Tensor) -> list[torch.Tensor]:
    """Keys and values for each head and batch of the queries, which may share them."""
    heads, batches = query.size(1), query.size(0)
    each = [one.repeat_interleave(heads // one.size(1), 1) if one.size(1) != heads else one for one in shared]
    return [one.expand(batches, *one.shape[1:]) for one in each]


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Callable[..., Any], block_mask: tuple[Any, ...],
    scale: float, kernel_options: dict[str, Any], score_buffers: tuple[Any, ...], mask_buffers: tuple[Any, ...],
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    key, value = _of_each_head(query, key, value)
    scores = _Scores(query, key, score_mod, block_mask[-1], scale, score_buffers, mask_buffers).changed
    largest = scores.amax(-1)
    is_empty = largest == _NOTHING
    weights = torch.exp(scores - torch.where(is_empty, 0.0, largest).unsqueeze(-1))
    total = weights.sum(-1)
    # The operator gives logarithms to the base 2.
    sums = torch.where(is_empty, _NOTHING, largest + total.log()) / math.log(2)
    weights = weights / torch.where(is_empty, 1.0, total).unsqueeze(-1)
    return weights.to(query.dtype) @ value, sums, largest / math.log(2)


def _backward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, sums: torch.Tensor,
    grad_out: torch.Tensor | None, grad_sums: torch.Tensor | None, score_mod: Callable[..., Any], joint: Callable[..., Any],
    block_mask: tuple[Any, ...], scale: float, kernel_options: dict[str, Any], score_buffers: tuple[Any, ...],
    mask_buffers: tuple[Any, ...],
) -> tuple[Any, ...]:  # fmt: skip
    shapes = key.shape, value.shape
    key, value = _of_each_head(query, key, value)
    scores = _Scores(query, key, score_mod, block_mask[-1], scale, score_buffers, mask_buffers)
    sums = sums.unsqueeze(-1) * math.log(2)
    weights = torch.where(sums == _NOTHING, 0.0, torch.exp(scores.changed - sums))
    wide = weights.dtype
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    grad_value = weights.to(query.dtype).transpose(-2, -1) @ grad_out
    along = (out.to(wide) * grad_out.to(wide)).sum(-1, keepdim=True)
    if grad_sums is not None:
        along = along - grad_sums.unsqueeze(-1) / math.log(2)
    grad_changed = weights * (grad_out.to(wide) @ value.to(wide).transpose(-2, -1) - along)
    places = (None,) * (4 + len(score_buffers))
    back = _vmap_for_bhqkv(joint, prefix=(0,), suffix=(0,) + (None,) * len(score_buffers), out_dims=[0, *places])
    with TransformGetItemToIndex():
        grad_plain, _, _, _, _, *captured = back(scores.plain, *scores.places, grad_changed, *score_buffers)
    grad_plain = torch.where(scores.seen, grad_plain * scale, 0.0).to(query.dtype)
    grad_key = grad_plain.transpose(-2, -1) @ query
    return grad_plain @ key, _summed(grad_key, shapes[0]), _summed(grad_value, shapes[1]), tuple(captured)


def _summed(gradient: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The gradient of what heads and batches share."""
    groups = gradient.unflatten(1, (shape[1], -1)).sum(2)
    return groups.sum(0, keepdim=True) if shape[0] != groups.size(0) else groups


def _lower(dense: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Lowers a call as the program `dense` of ordinary operators."""
    node = V.graph.current_node
    leaves, spec = pytree.tree_flatten(arguments)
    graphs = [one.graph_module if isinstance(one, ir.Subgraph) else None for one in leaves]
    values = [one.meta.get("val") if isinstance(one, torch.fx.Node) else one for one in pytree.tree_leaves(node.args)]
    moving = [place for place, one in enumerate(values) if isinstance(one, (torch.Tensor, torch.SymInt))]

    def call(*given: Any) -> Any:
        filled = [values[place] if graph is None else graph for place, graph in enumerate(graphs)]
        for place, one in zip(moving, given, strict=True):
            filled[place] = one
        return dense(*pytree.tree_unflatten(filled, spec))

    with torch.no_grad(), V.fake_mode:
        graph = make_fx(call, decomposition_table=select_decomp_table())(*(values[place] for place in moving))
    found = lowering.process_subgraph_nodes(graph, [leaves[place] for place in moving])

    def laid_out(one: Any, like: Any) -> Any:
        if one is None:
            return None
        strides = [part.node.expr if isinstance(part, torch.SymInt) else part for part in like.stride()]
        return ir.ExternKernel.require_exact_strides(one, strides)

    # A program expects the layout that torch has promised.
    return pytree.tree_map(laid_out, found, node.meta["val"], is_leaf=lambda one: one is None)


def install(is_ours: Callable[[Any], bool]) -> None:
    """Changes Inductor's table for tensors of ours."""
    operators = torch.ops.higher_order
    for operator, dense in ((operators.flex_attention, _forward), (operators.flex_attention_backward, _backward)):
        stock = lowering.lowerings[operator]

        def choose(*args: Any, stock: Callable[..., Any] = stock, dense: Callable[..., Any] = dense, **named: Any) -> Any:
            return _lower(dense, args) if is_ours(args[0]) else stock(*args, **named)

        lowering.lowerings[operator] = choose
