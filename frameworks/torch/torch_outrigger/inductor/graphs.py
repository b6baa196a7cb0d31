"""Compiled code as graphs: `mode="reduce-overhead"`.

A region that Inductor has compiled is a function of a list. Its first call with a combination of sizes runs it, the second
one captures it, and from then on a call is one replay. Nothing is copied into a graph: what is no parameter is a named
range of memory, in whose place each replay has that of its call. Results are new tensors of each call too, so a result is
valid as long as any other tensor, and the passes of a step may come in any order. Only what lies between is in the
graph's pool, which all regions of a device share.

It must never run a region twice for a call, and never let an error of a capture reach the program: the region then runs
without a graph, and Inductor's log of skipped graphs says why.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._inductor.cudagraph_utils import CUDAGraphPolicy, log_cudagraph_skip_and_bump_counter

from .. import _C
from .._graph import Graph, graph, graph_pool_handle
from . import config

Region = Callable[[list[Any]], Any]

_ALIGNMENT = 16
"""As in csrc/compiled_calls.cpp: what a range of memory keeps of its address."""


class _Unfit(Exception):
    """The reason why a region is not for a graph."""


class _Device:
    """The pool that the regions of a device share for their graphs, and the stream that ran last in it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lock = threading.RLock()
        self.pool = graph_pool_handle()
        self._last: torch.Stream | None = None

    def take_turn(self) -> None:
        """Has the current stream wait for earlier graphs of the pool on other streams: they use the same memory."""
        stream = torch.accelerator.current_stream(self.index)
        if stream != self._last:
            if self._last is not None:
                stream.wait_event(self._last.record_event())
            self._last = stream


_devices: dict[int, _Device] = {}
_devices_lock = threading.Lock()


def _device(index: int) -> _Device:
    with _devices_lock:
        return _devices.setdefault(index, _Device(index))


@dataclass(frozen=True)
class _New:
    """A result that is a new tensor of each call."""

    number: int
    """The tensor's number among those that are new."""
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None
    """Sizes, strides, and the elements from that tensor's first to its own first, if it is not all of that tensor."""


@dataclass(frozen=True)
class _OfInput:
    """A result that lies in the memory of an argument."""

    number: int
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None


@dataclass(frozen=True)
class _Constant:
    """A result that is the same for each call."""

    value: Any


@dataclass(frozen=True)
class _Plan:
    """The places of a region's results."""

    results: tuple[_New | _OfInput | _Constant, ...]
    made: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device], ...]
    """Sizes, strides, dtype and device of the new tensors."""
    sources: tuple[tuple[int, int], ...]
    """For each new tensor a result in whose memory it is, and the element at which it begins, from that of the result."""
    numbers: tuple[int | None, ...] = field(compare=False)
    """For each new tensor its number among those that the region makes; None if it is no whole one."""

    def make(self) -> list[Tensor]:
        """The new tensors of a call."""
        return [_C.program_empty(*one) for one in self.made]

    def give(self, made: list[Tensor], inputs: Sequence[Any]) -> list[Any]:
        """The results of the region."""
        given: list[Any] = []
        for one in self.results:
            if type(one) is _Constant:
                given.append(one.value)
                continue
            tensor = made[one.number] if type(one) is _New else inputs[one.number]
            if one.view is not None:
                shape, stride, offset = one.view
                tensor = tensor.as_strided(shape, stride, tensor.storage_offset() + offset)
            given.append(tensor)
        return given


def _layout(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _reach(tensor: Tensor) -> int:
    """The elements from the first to the last one."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _plan(results: Sequence[Any], inputs: Sequence[Any], constants: Sequence[Tensor], storages: Sequence[int]) -> _Plan:
    """Finds out where results are. `storages` are those of the tensors that the region has made, in their order."""
    of_input = {}
    for number, one in enumerate(inputs):
        if isinstance(one, Tensor):
            of_input.setdefault(one.untyped_storage()._cdata, number)
    fixed = {one.untyped_storage()._cdata for one in constants}
    shared: dict[tuple[int, torch.dtype], list[int]] = {}
    found: list[Any] = [None] * len(results)
    for place, one in enumerate(results):
        if not isinstance(one, Tensor):
            found[place] = _Constant(one)
            continue
        storage = one.untyped_storage()._cdata
        if storage in fixed:
            found[place] = _Constant(one)
        elif storage in of_input:
            number = next((n for n, given in enumerate(inputs) if given is one), of_input[storage])
            if inputs[number].dtype != one.dtype:
                raise _Unfit(f"result {place} is an argument as another dtype")
            shape, stride, offset = _layout(one)
            relative = (shape, stride, offset - inputs[number].storage_offset())
            found[place] = _OfInput(number, None if inputs[number] is one else relative)
        elif one.device.type == "cpu" or one.layout is not torch.strided:
            raise _Unfit(f"result {place} is no dense tensor of the device")
        else:
            shared.setdefault((storage, one.dtype), []).append(place)
    made, sources, numbers = [], [], []
    number_of = {storage: number for number, storage in enumerate(storages)}
    for (storage, _), places in shared.items():
        first = results[places[0]]
        if len(places) == 1:
            found[places[0]] = _New(len(made), None)
            made.append((tuple(first.shape), first.stride(), first.dtype, first.device))
            sources.append((places[0], 0))
            numbers.append(number_of.get(storage))
            continue
        # All of the memory between the first and the last element of any of them.
        begin = min(results[place].storage_offset() for place in places)
        end = max(results[place].storage_offset() + _reach(results[place]) for place in places if results[place].numel())
        for place in places:
            shape, stride, offset = _layout(results[place])
            found[place] = _New(len(made), (shape, stride, offset - begin))
        sources.append((places[0], begin - first.storage_offset()))
        made.append(((end - begin,), (1,), first.dtype, first.device))
        numbers.append(None)
    return _Plan(tuple(found), tuple(made), tuple(sources), tuple(numbers))


@dataclass
class _Captured:
    """A graph for one combination of sizes."""

    graph: Graph
    plan: _Plan
    named: list[int]
    """The new tensors that have bytes."""


class _Graphed:
    """A region that is replayed. Called with a list, which it empties, as Inductor's own code does."""

    _boxed_call = True

    def __init__(
        self, region: Region, fixed: frozenset[int], index: int, constants: tuple[Tensor, ...], name: str
    ) -> None:
        self._region = region
        self._fixed_numbers = fixed
        # A byte for each argument, once a call has told their number: what torch compiled with may have another one.
        self._fixed = b""
        self._index = index
        self._constants = constants
        self._name = name
        # Options hold while torch compiles.
        self._most, self._least = max(1, config.max_graphs), config.min_graph_nodes
        self._graphs: OrderedDict[bytes, _Captured] = OrderedDict()
        # Keys that ran once, and where their results were. A key that is seen rarely is not worth a graph.
        self._seen: OrderedDict[bytes, _Plan] = OrderedDict()
        self._reason = ""
        self._device: _Device | None = None
        self._told = False

    def __call__(self, inputs: list[Any]) -> Any:
        if self._reason or _C.stream_is_capturing(self._index):
            return self._region(inputs)
        if len(self._fixed) != len(inputs):
            self._fixed = bytes(number in self._fixed_numbers for number in range(len(inputs)))
        selected = _C.call_key(inputs, self._fixed)
        if selected is None:
            self._give_up("an argument that is no dense tensor of the device and no number")
            return self._region(inputs)
        key, places = selected
        captured = self._graphs.get(key)
        if captured is None:
            return self._without_graph(key, places, inputs)
        return self._replay(captured, places, inputs)

    def _replay(self, captured: _Captured, places: bytes, inputs: list[Any]) -> Any:
        plan = captured.plan
        made = plan.make()
        device = self._device
        with device.lock:
            device.take_turn()
            _C.graph_run(captured.graph._handle, places, [made[number] for number in captured.named])
        given = plan.give(made, inputs)
        inputs.clear()
        return given

    def _without_graph(self, key: bytes, places: bytes, inputs: list[Any]) -> Any:
        """The first call runs the region, the second one captures it."""
        plan = self._seen.pop(key, None)
        if plan is None:
            given = list(inputs)
            results, storages = self._noted(inputs, {})
            try:
                self._seen[key] = _plan(results, given, self._constants, storages)
            except _Unfit as error:
                self._give_up(str(error))
            if len(self._seen) > 4 * self._most:
                self._seen.popitem(last=False)
            return results
        self._device = device = _device(self._index)
        try:
            with device.lock, torch.accelerator.device_index(self._index):
                captured = self._capture(plan, list(inputs))
        except Exception as error:
            self._give_up(str(error).split("\n")[0])
            return self._region(inputs)
        if captured.graph.info()["nodes"] < self._least:
            # Launches cost less than a replay, for other sizes too.
            self._reason = "too few nodes"
            captured.graph.reset()
            return self._region(inputs)
        while len(self._graphs) >= self._most:
            self._graphs.popitem(last=False)[1].graph.reset()
            if not self._told:
                self._told = True
                log_cudagraph_skip_and_bump_counter(
                    f"{self._name} has run with more than {self._most} combinations of sizes, the most that have a "
                    "graph at a time (the option max_graphs of the device): the oldest graph is given back"
                )
        self._graphs[key] = captured
        return self._replay(captured, places, inputs)

    def _noted(self, inputs: list[Any], handed: dict[int, Tensor]) -> tuple[Any, list[int]]:
        """Runs the region. Returns its results, and the storages of the tensors that it has made."""
        _C.note_tensors(handed)
        try:
            results = self._region(inputs)
        finally:
            storages = _C.noted_tensors()
        return results, storages

    def _capture(self, plan: _Plan, inputs: list[Any]) -> _Captured:
        """Captures the region with memory in the place of what moves."""
        made = Graph()
        with graph(made, self._device.pool, capture_error_mode="thread_local"):
            stand_ins, ranges = self._stand_ins(inputs)
            # Made first: nothing else lies in their memory at any time of the capture.
            targets = plan.make()
            # The region makes its results there where it can, and what it makes elsewhere is copied.
            handed = {number: target for number, target in zip(plan.numbers, targets, strict=True) if number is not None}
            results, storages = self._noted(list(stand_ins), handed)
            found = _plan(results, stand_ins, self._constants, storages)
            if (found.results, found.made, found.numbers) != (plan.results, plan.made, plan.numbers):
                raise _Unfit("results that are in other places at each call")
            for target, (place, begin) in zip(targets, plan.sources, strict=True):
                source = results[place]
                if source.untyped_storage()._cdata == target.untyped_storage()._cdata:
                    continue
                source = source.as_strided(target.shape, target.stride(), source.storage_offset() + begin)
                target.copy_(source)
            named = [number for number, target in enumerate(targets) if target.numel()]
            for number, (address, size) in enumerate(ranges):
                _C.graph_name(made._handle, f"argument{number}", address, size)
            for number in named:
                target = targets[number]
                _C.graph_name(made._handle, f"result{number}", target.data_ptr(), _reach(target) * target.element_size())
        return _Captured(made, plan, named)

    def _stand_ins(self, inputs: list[Any]) -> tuple[list[Any], list[tuple[int, int]]]:
        """Arguments of the capture, and the ranges of memory in which those are that move."""
        ranges, places = _C.call_ranges(inputs, self._fixed)
        device = next((one.device for one in inputs if isinstance(one, Tensor)), None)
        memory, named = [], []
        for begin, size in ranges:
            whole = -(-(begin + size) // _ALIGNMENT) * _ALIGNMENT
            memory.append(torch.empty(whole, dtype=torch.uint8, device=device))
            named.append((memory[-1].data_ptr() + begin, size))
        given = list(inputs)
        for number, (one, (place, offset)) in enumerate(zip(inputs, places, strict=True)):
            if place >= 0:
                start = (ranges[place][0] + offset) // one.element_size()
                given[number] = memory[place].view(one.dtype).as_strided(one.shape, one.stride(), start)
        # The stand-ins live until the graph has been named, which is at the end of the capture.
        return given, named

    def _give_up(self, why: str) -> None:
        """Runs the region without graphs from now on, and says so once."""
        self._reason = why
        self._graphs.clear()
        self._seen.clear()
        log_cudagraph_skip_and_bump_counter(f"skipping cudagraphs due to {why} ({self._name})")


class Policy(CUDAGraphPolicy):
    """Makes graphs for Inductor. Regions of other devices are not compiled with it."""

    def should_wrap(self, compiled_graph: Any) -> bool:
        # Inductor tells its reasons for devices alone that Triton serves.
        info = compiled_graph.cudagraph_info
        reason = compiled_graph.disabled_cudagraphs_reason or (info and ", ".join(info.cudagraph_fail_reasons))
        if reason:
            text = str(reason)
            log_cudagraph_skip_and_bump_counter(text if "skipping" in text else f"skipping cudagraphs due to {text}")
        return not reason

    def cudagraphify(
        self,
        model: Region,
        example_inputs: Sequence[Any],
        static_input_idxs: Sequence[int],
        *,
        device_index: int,
        is_backward: bool,
        is_inference: bool,
        **more: Any,
    ) -> Callable[..., Any]:
        if more.get("kernel_free_cudagraph"):
            return model
        # Tensors that a forward pass has saved are new for each call: torch takes them for fixed.
        fixed = frozenset(() if is_backward else static_input_idxs)
        name = f"a {'backward' if is_backward else 'forward'} pass"
        return _Graphed(model, fixed, device_index, tuple(more.get("constants", ())), name)
