"""A function as a bounded set of graphs, one for each combination of shapes that it meets.

It must never replay a graph for arguments of another kind than those of its capture: everything that decides what
the function does with its arguments is part of the key.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ._graph import Graph, graph, graph_pool_handle


@dataclass(frozen=True)
class _View:
    """A result that lies in the memory of an argument."""

    number: int
    """The number of the leaf among the arguments."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Elements from the argument's first to its own first."""

    def over(self, leaves: list[Any]) -> Tensor:
        """The same view of the argument of another call; the argument itself if it is all of it."""
        leaf: Tensor = leaves[self.number]
        if self.offset == 0 and self.shape == tuple(leaf.shape) and self.stride == leaf.stride():
            return leaf
        return leaf.detach().as_strided(self.shape, self.stride, leaf.storage_offset() + self.offset)


@dataclass
class _Variant:
    """The graph of one key, and where its results are."""

    graph: Graph
    bound: dict[str, int]
    """The names of tensors in the graph, and which leaves of the arguments they are."""
    results: list[Any]
    structure: pytree.TreeSpec
    replays: int = 0


class Variants:
    """A function whose work is captured per combination of shapes, dtypes and strides of its arguments.

    The first call with a combination runs eagerly, and the second one captures. From then on each call is a replay
    over the tensors of the call, which are not copied. Results are copies that belong to the caller, without
    gradient history: a function that needs gradients calls `backward` itself. All graphs share one pool.

    The function must do the same for the same shapes: apart from its tensor arguments, everything it reads
    (weights, buffers) must stay in its place, and what it does on the host happens at the first two calls
    only.
    """

    def __init__(self, function: Callable[..., Any], max_graphs: int = 8) -> None:
        if max_graphs < 1:
            raise ValueError(f"max_graphs must be at least 1: {max_graphs}")
        functools.update_wrapper(self, function)
        self._function = function
        self._max = max_graphs
        self._lock = threading.RLock()
        self._pool: tuple[int, int] | None = None
        self._variants: OrderedDict[Hashable, _Variant] = OrderedDict()
        # Keys that ran eagerly once. Bounded too: a key that is seen rarely is not worth a graph.
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        # The stream of each device's last replay, and its end.
        self._last: dict[torch.device, tuple[torch.Stream, torch.Event]] = {}
        self._counts = {"eager": 0, "captures": 0, "replays": 0, "evictions": 0}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, by a graph if there is one or if it is worth one. TypeError if no key can be made of the
        arguments."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        key = (structure, torch.is_grad_enabled(), _autocast(), *_key_of(leaves))
        device = next((leaf.device.index for leaf in leaves if isinstance(leaf, Tensor)), None)
        with self._lock, torch.accelerator.device_index(device):
            variant = self._variants.get(key)
            if variant is None:
                if key not in self._seen:
                    self._seen[key] = None
                    if len(self._seen) > 4 * self._max:
                        self._seen.popitem(last=False)
                    self._counts["eager"] += 1
                    return pytree.tree_map_only(Tensor, _without_history, self._function(*args, **kwargs))
                variant = self._capture(key, args, kwargs, leaves)
            self._variants.move_to_end(key)
            return self._replay(variant, leaves)

    def _capture(self, key: Hashable, args: Any, kwargs: Any, leaves: list[Any]) -> _Variant:
        """Captures the function for these arguments."""
        self._pool = self._pool or graph_pool_handle()
        made = Graph()
        bound: dict[str, int] = {}
        with graph(made, self._pool):
            result = self._function(*args, **kwargs)
            for number, leaf in enumerate(leaves):
                if isinstance(leaf, Tensor) and leaf.numel() and not any(leaf is leaves[n] for n in bound.values()):
                    bound[f"argument{number}"] = number
                    made.bind(f"argument{number}", leaf)
        results, structure = pytree.tree_flatten(result)
        variant = _Variant(made, bound, [_kept(each, leaves) for each in results], structure)
        while len(self._variants) >= self._max:
            _, old = self._variants.popitem(last=False)
            old.graph.reset()
            self._counts["evictions"] += 1
        del self._seen[key]
        self._variants[key] = variant
        self._counts["captures"] += 1
        return variant

    def _replay(self, variant: _Variant, leaves: list[Any]) -> Any:
        """Replays a variant over the tensors of a call, after all earlier replays of any variant."""
        stream = torch.accelerator.current_stream()
        last, event = self._last.get(stream.device, (stream, torch.Event(stream.device)))
        if last != stream:
            # Variants share their memory, so that they cannot run at the same time.
            stream.wait_event(event)
        variant.graph.replay(**{name: leaves[number] for name, number in variant.bound.items()})
        results = [
            each.over(leaves) if isinstance(each, _View) else each.clone() if isinstance(each, Tensor) else each
            for each in variant.results
        ]
        event.record(stream)
        self._last[stream.device] = (stream, event)
        variant.replays += 1
        self._counts["replays"] += 1
        return pytree.tree_unflatten(results, variant.structure)

    def reset(self) -> None:
        """Gives back all graphs and their memory. Later calls start again."""
        with self._lock:
            for variant in self._variants.values():
                variant.graph.reset()
            self._variants.clear()
            self._seen.clear()
            self._pool = None

    def report(self) -> dict[str, Any]:
        """Counts of calls (`eager`, `captures`, `replays`, `evictions`), the pool, and each live graph."""
        with self._lock:
            graphs = [
                {
                    "arguments": [_text(part) for part in key[3:]],
                    "replays": variant.replays,
                    "nodes": variant.graph.info()["nodes"],
                }
                for key, variant in self._variants.items()
            ]
            newest = next(reversed(self._variants.values()), None)
            pool = newest.graph.pool_info() if newest is not None else {}
            return {**self._counts, "max_graphs": self._max, "pool": pool, "graphs": graphs}


def variants(function: Callable[..., Any] | None = None, *, max_graphs: int = 8) -> Any:
    """Makes a function a `Variants`; also a decorator, `@variants` or `@variants(max_graphs=4)`."""
    if function is None:
        return functools.partial(Variants, max_graphs=max_graphs)
    return Variants(function, max_graphs)


def _autocast() -> tuple[bool, torch.dtype] | None:
    """The settings of autocast."""
    kind = torch.accelerator.current_accelerator().type
    return (True, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None


def _key_of(leaves: list[Any]) -> list[Hashable]:
    """The key that selects the graph for these arguments: the layouts of tensors, which of them are the same, and
    all other values."""
    key: list[Hashable] = []
    first: dict[int, int] = {}
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            if leaf.device.type == "cpu":
                raise TypeError(
                    f"argument {number} is a CPU tensor, which a replay would not read anew: move it to the device"
                )
            same = first.setdefault(id(leaf), number)
            key.append((leaf.device, leaf.dtype, tuple(leaf.shape), leaf.stride(), leaf.requires_grad, same))
        else:
            try:
                hash(leaf)
            except TypeError:
                raise TypeError(f"argument {number} is neither a tensor nor hashable: {type(leaf).__name__}") from None
            key.append((type(leaf), leaf))
    return key


def _without_history(tensor: Tensor) -> Tensor:
    """The tensor itself, unless it has a gradient history."""
    return tensor.detach() if tensor.grad_fn is not None else tensor


def _kept(result: Any, leaves: list[Any]) -> Any:
    """The part of a result of the capture that is kept, to find the result of each replay."""
    if not isinstance(result, Tensor):
        return result
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata == result.untyped_storage()._cdata:
            offset = result.storage_offset() - leaf.storage_offset()
            return _View(number, tuple(result.shape), result.stride(), offset)
    return _without_history(result)


def _text(part: Any) -> str:
    """One part of a key for people."""
    if isinstance(part[0], torch.device):
        return f"{part[1]} {list(part[2])} {part[0]}"
    return repr(part[1])
