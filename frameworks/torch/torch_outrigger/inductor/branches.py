"""Branches and loops of compiled code, which numbers of the device decide. The host waits for the number; where a graph is
captured, the branches are bodies of a conditional node, and the replay decides. It must never leave a capture open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import _C
from .._graph import Graph
from .._lifetime import is_served

_WHILE, _SWITCH = 2, 3
"""Kinds of a node, OTR_GRAPH_*."""

Part = Callable[[list[Any]], Any]
"""A part of a compiled module: it takes a list, which it empties, and gives its results."""


@contextlib.contextmanager
def _unnoted() -> Iterator[None]:
    """Leaves tensors that branches make uncounted: a capture runs all of them, and a call one."""
    before = _C.suspend_notes(True)
    try:
        yield
    finally:
        _C.suspend_notes(before)


@_unnoted()
def switch(branches: list[Part], given: list[Any]) -> Any:
    """Runs a branch on what is given behind the number that chooses it; other numbers choose the last one. Empties `given`."""
    number, *inputs = given
    given.clear()
    last = len(branches) - 1
    if not _is_captured(number):
        chosen = int(number.item())
        return branches[chosen if 0 <= chosen < last else last](inputs)
    if number.dtype != torch.bool:
        number = torch.where((number < 0) | (number > last), last, number).to(torch.int64)
    outside = torch.accelerator.current_stream(number.device)
    results: list[torch.Tensor] = []

    def body(branch: Part) -> None:
        found = branch(list(inputs))
        if not results:
            with outside:
                results.extend(_tensor(one).new_empty_strided(one.shape, one.stride()) for one in found)
        _bring(found, results)

    bodies = [_record(number.device, lambda branch=branch: body(branch)) for branch in branches]
    _C.capture_conditional(_SWITCH, number, [one._handle for one in bodies])
    return results


@_unnoted()
def while_loop(condition: Part, body: Part, carried: list[Any], others: list[Any]) -> list[Any]:
    """Runs the body on what it gave before, and on the others, as long as the condition holds."""
    (holds,) = condition([*carried, *others])
    if not _is_captured(holds):
        if not holds:
            return [one.clone() for one in carried]
        while holds:
            carried = list(body([*carried, *others]))
            (holds,) = condition([*carried, *others])
        return carried
    state = [_tensor(one).clone() for one in carried]
    holds = holds.clone()

    def round_() -> None:
        _bring(body([*state, *others]), state)
        _bring(condition([*state, *others]), [holds])

    _C.capture_conditional(_WHILE, holds, [_record(holds.device, round_)._handle])
    return state


def _is_captured(number: Any) -> bool:
    """Whether a number is on a device whose current stream records a graph."""
    return isinstance(number, torch.Tensor) and is_served(number.device.type) and _C.stream_is_capturing(number.device.index)


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and is_served(value.device.type):
        return value
    what = f"a tensor on {value.device}" if isinstance(value, torch.Tensor) else f"a value of the type {type(value).__name__}"
    raise NotImplementedError(f"a graph captures branches and loops that give tensors of the device, and no {what.removeprefix('a ')}")


def _record(device: torch.device, work: Callable[[], None]) -> Graph:
    """The graph of some work. It is not made executable."""
    graph = Graph(keep_graph=True)
    with torch.Stream(device):
        graph.capture_begin()
        try:
            work()
        finally:
            graph.capture_end()
    return graph


def _bring(values: Any, places: list[torch.Tensor]) -> None:
    """Copies values to places of the same shapes. A value may lie in another one's place."""
    held = {place.untyped_storage()._cdata for place in places}
    apart = [one.clone() if _tensor(one).untyped_storage()._cdata in held else one for one in values]
    for one, place in zip(apart, places, strict=True):
        if one.shape != place.shape:
            sizes = f"{list(place.shape)} and {list(one.shape)}"
            raise NotImplementedError(f"a graph captures branches and loops whose results have the same sizes, and not {sizes}")
        place.copy_(one)
