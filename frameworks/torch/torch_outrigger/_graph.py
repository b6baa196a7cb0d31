"""A graph and its capture: what `torch_outrigger.graphs` is made of.

It must never run what is recorded, and never hold a tensor that the graph itself holds.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import _C

PoolId = tuple[int, int]
"""Names a pool of memory that graphs share."""

_MODES = ("global", "thread_local", "relaxed")


def is_current_stream_capturing() -> bool:
    """Whether work of the current stream is being recorded into a graph instead of being run."""
    return _C.stream_is_capturing(-1)


def graph_pool_handle() -> PoolId:
    """A new name for a pool of memory, which graphs share when they are captured with it.

    Graphs of one pool must not be replayed at the same time: their intermediates lie in the same memory.
    """
    return _C.graph_pool_handle()


@dataclass(frozen=True, slots=True)
class _Layout:
    """The properties in which tensors must agree to stand for each other in a graph."""

    device: torch.device
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @staticmethod
    def of(name: str, tensor: torch.Tensor) -> _Layout:
        """The layout of a dense tensor; TypeError for anything else."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            raise TypeError(f"{name} must be a dense tensor, got {type(tensor).__name__}")
        return _Layout(tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())

    def check(self, name: str, other: _Layout) -> None:
        """ValueError naming the first property in which another layout differs."""
        for what in ("device", "dtype", "shape", "stride"):
            mine, its = getattr(self, what), getattr(other, what)
            if mine != its:
                raise ValueError(f"{name} was captured with {what} {mine}, and cannot be replaced by {what} {its}")


def _reach(tensor: torch.Tensor) -> int:
    """The bytes from a tensor's first to its last element."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


class Graph:
    """A recorded piece of work. `graph` records; `replay` runs it on the current stream, asynchronously.

    keep_graph: leaves it to `instantiate`, or to the first `replay`, to make the graph executable.

    The graph holds the memory that it uses. Its results are overwritten by each replay. Replays of one
    graph run in the order of their calls, on whatever streams.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._handle = _C.graph_new(keep_graph)
        # For `dump`, also after the capture.
        _C.graph_enable_debug_mode(self._handle)
        self._bound: dict[str, _Layout] = {}
        self._alive: list[torch.Tensor] = []

    # ---- the life of a graph ------------------------------------------------------------------------

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global") -> None:
        """Starts to record the current stream of the current device; `graph` is the comfortable way.

        pool: `graph_pool_handle()` or the `pool()` of another graph, to share its memory.
        capture_error_mode: "global" and "thread_local" refuse to wait for any stream on this thread
        meanwhile, "relaxed" allows it for streams that are not recorded.
        """
        if capture_error_mode not in _MODES:
            raise ValueError(f"capture_error_mode {capture_error_mode!r} is not one of {', '.join(_MODES)}")
        _C.graph_capture_begin(self._handle, pool or (0, 0), _MODES.index(capture_error_mode))

    def capture_end(self) -> None:
        """Ends the recording, and makes the graph executable unless it is kept.

        RuntimeError names the first call that could not be recorded. Called while an exception is being
        handled that came after `capture_begin`, it throws the graph away: it can never be replayed.
        """
        try:
            _C.graph_capture_end(self._handle)
        finally:
            self._alive.clear()

    def instantiate(self) -> None:
        """Makes a kept graph executable."""
        _C.graph_instantiate(self._handle)

    def replay(self, /, **tensors: torch.Tensor) -> None:
        """Runs the graph on the current stream of its device. Tensors are given to `set` first."""
        if tensors:
            self.set(**tensors)
        _C.graph_replay(self._handle)

    def reset(self) -> None:
        """Gives back the graph and its share of the pool, also while a replay runs.

        Then another capture may follow.
        """
        _C.graph_reset(self._handle)
        self._bound.clear()
        self._alive.clear()

    def pool(self) -> PoolId:
        """The name of the graph's pool, for other captures."""
        return _C.graph_pool(self._handle)

    def update(self, other: Graph) -> None:
        """Gives this executable graph what `other` has recorded, which is kept and has the same nodes.

        RuntimeError names the first difference if it has others.
        """
        _C.graph_update(self._handle, other._handle)

    # ---- what a replay may change -------------------------------------------------------------------

    def bind(self, name: str, tensor: torch.Tensor) -> None:
        """Names a tensor that the graph uses, so that `set` and `replay` can put another in its place.

        To be called before the graph is executable: within its capture, or before `instantiate`.
        """
        layout = _Layout.of(name, tensor)
        if name in self._bound:
            raise ValueError(f"the name {name!r} is taken in this graph")
        _C.graph_name(self._handle, name, tensor.data_ptr(), _reach(tensor))
        self._bound[name] = layout
        # Until the graph itself holds the memory.
        self._alive.append(tensor)

    def set(self, /, **tensors: torch.Tensor) -> None:
        """Puts other tensors in the place of those that `bind` has named, for later replays.

        Nothing is copied; the graph holds their memory until they are replaced. ValueError if one is not of
        the same device, dtype, shape and stride.
        """
        for name, tensor in tensors.items():
            if name not in self._bound:
                known = ", ".join(self._bound) or "nothing"
                raise ValueError(f"this graph has no tensor named {name!r}; bound is {known}")
            self._bound[name].check(name, _Layout.of(name, tensor))
        for name, tensor in tensors.items():
            _C.graph_set(self._handle, name, tensor.data_ptr())

    @property
    def bound(self) -> tuple[str, ...]:
        """The names that `set` takes."""
        return tuple(self._bound)

    # ---- looking at it ------------------------------------------------------------------------------

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Writes the graph to a file: .dot for Graphviz, .svg as a picture, .json for programs."""
        _C.graph_debug_dump(self._handle, os.fspath(path))

    debug_dump = dump

    def enable_debug_mode(self) -> None:
        """Does nothing: these graphs can always be dumped. For code that is written for torch.cuda."""

    def profile(self) -> Any:
        """Replays once and waits: how long each node took, and the whole."""
        return json.loads(_C.graph_profile(self._handle))

    def cost(self) -> Any:
        """Runs a replay, and the nodes in each other way, some times each, and waits: what each way took."""
        return json.loads(_C.graph_cost(self._handle))

    def check(self) -> None:
        """Runs the nodes one by one, then as a replay does, from the same contents of memory, and waits.

        RuntimeError names the first node whose results differ.
        """
        _C.graph_check(self._handle)

    def info(self) -> dict[str, Any]:
        """Figures of the captured graph (`nodes`, `edges`, `memory_bytes`) and of the executable one (`exec`)."""
        return {**_C.graph_info(self._handle), "exec": _C.graph_exec_info(self._handle)}

    def pool_info(self) -> dict[str, int]:
        """The graph's pool: its `users`, `reserved_bytes`, `allocated_bytes` and `peak_allocated_bytes`."""
        return _C.graph_pool_info(self._handle)


_own = threading.local()


_idle: dict[int, list[torch.Stream]] = {}
"""Streams for captures that no capture uses, by the device's index."""


def _capture_stream() -> torch.Stream:
    """An idle stream of the current device. One of torch's pool could be a side stream of the program at the same time."""
    index = torch.accelerator.current_device_index()
    idle = _idle.setdefault(index, [])
    try:
        return idle.pop()
    except IndexError:
        kind = torch.accelerator.current_stream(index).device_type
        return torch.Stream(stream_id=_C.new_stream(index, 0), device_index=index, device_type=kind)


class graph:
    """Records what its body does on a stream into a graph.

    graph: an empty `Graph`.
    pool: shares the memory of other graphs, see `graph_pool_handle`.
    stream: what is recorded; by default a stream that is used for captures only.
    capture_error_mode: see `Graph.capture_begin`.

    If the body raises, the graph is thrown away and the exception goes on.
    """

    def __init__(
        self,
        graph: Graph,
        pool: PoolId | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self._graph = graph
        self._pool = pool
        self._stream = stream
        self._mode = capture_error_mode
        self._context: torch.Stream | None = None

    def __enter__(self) -> None:
        torch.accelerator.synchronize()
        if torch.compiler.config.force_cudagraph_gc:
            gc.collect()
        torch.accelerator.empty_cache()
        self._context = self._stream if self._stream is not None else _capture_stream()
        self._context.__enter__()
        try:
            self._graph.capture_begin(self._pool, self._mode)
        except BaseException:
            self._leave(None, None, None)
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            self._graph.capture_end()
        finally:
            self._leave(*exception)

    def _leave(self, *exception: object) -> None:
        self._context.__exit__(*exception)
        if self._stream is None:
            _idle[self._context.device_index].append(self._context)


@contextlib.contextmanager
def label(text: str) -> Iterator[None]:
    """Labels what the current stream records meanwhile, in dumps and profiles. Labels nest."""
    index = torch.accelerator.current_device_index()
    labels: list[str] = _own.__dict__.setdefault("labels", [])
    labels.append(text)
    _C.capture_label(index, text)
    try:
        yield
    finally:
        labels.pop()
        _C.capture_label(index, labels[-1] if labels else None)
