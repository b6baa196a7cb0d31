"""The process that measures candidates of `choices.py`, one line of JSON after the other, so that one that crashes or hangs harms
nobody. It ends with its input, also in the middle of a measurement, and when nothing was asked for a minute. docs/device-code.md
describes the lines. It must never tell a time of a kernel that computes something else.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .._timing import times
from . import product
from .program import code_version
from .types import MEMORY

MARK = "outrigger-tune "
"""In front of a reply."""

IDLE = 60
"""Seconds without a request after which the process ends."""

TIME = 0.1
"""Seconds that a candidate is measured for, each time."""

_DTYPES = {name: dtype for dtype, name in MEMORY.items()}

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""The differences that results may have, in relation to the largest number."""


class Bench:
    """The operands of the last task, and its candidates, which are compiled side by side."""

    def __init__(self, task: dict[str, Any]) -> None:
        if task["code"] != code_version():
            raise ValueError("this process has another version of torch_outrigger")
        self.task = task
        torch.set_num_threads(task["threads"])
        self.device = torch.device(task["device"])
        self.operands = [self._operand(*one) for one in task["operands"]]
        kinds = {"convolution": product.Convolution, "attention": product.Attention}
        self.how = task["how"] and kinds[task["operation"]](*task["how"])
        self.expected = self._library()
        self.result = torch.empty_like(self.expected)
        self.programs: dict[str, Any] = {}
        self.launches: list[Any] = []
        for name, about in task["variants"].items():
            try:
                is_one = not isinstance(self.how, product.Attention)
                self.programs[name] = self._program(product.candidate_name(name), *about) if is_one else self._compiled(name)
            except Exception as error:
                self.programs[name] = functools.partial(_refuse, error)
        # No compiler runs beside what is measured. A kernel that does not compile says so again when it is called.
        for launch in self.launches:
            with contextlib.suppress(Exception):
                launch.load()

    def _operand(self, sizes: list[int], strides: list[int], dtype: str) -> torch.Tensor:
        reach = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
        filled = torch.randn(reach, device="cpu").to(_DTYPES[dtype]).to(self.device)
        return filled.as_strided(sizes, strides)

    def _library(self) -> torch.Tensor:
        operation, (a, b, *rest) = self.task["operation"], self.operands
        if isinstance(self.how, product.Attention):
            return F.scaled_dot_product_attention(a, b, *rest, scale=self.how.scale, is_causal=self.how.is_causal)
        if self.how is not None:
            stride, padding, dilation, groups = self.how
            return torch.convolution(a, b, None, stride, padding, dilation, False, [0] * len(stride), groups)
        if operation in ("addmm", "baddbmm"):
            bias = torch.zeros(b.shape[-1], dtype=a.dtype, device=self.device)
            return getattr(torch, operation)(bias, a, b)
        return getattr(torch, operation)(a, b)

    def _library_and_what_follows(self) -> None:
        result = self._library()
        if self.task["followed"]:
            # A pass over the result, as loops are that are not a part of the product.
            result.neg_()

    def _compiled(self, candidate: str) -> Callable[[], None]:
        """Work of more than one kernel, compiled with a candidate."""
        options = {"max_autotune": True, f"{self.device.type}.candidate": candidate}
        compiled = torch.compile(self._library, options=options)

        def run() -> None:
            self.result = compiled()

        return run

    def _program(self, name: str, *about: int) -> Callable[[], None]:
        *tile, parts = about
        (a, b), how = self.operands, self.how
        of_a, of_b = (product.Layout(tuple(one.shape), one.stride()) for one in (a, b))
        if how is not None:
            kernel = product.Kernel.convolving(a.dtype, product.Tile(*tile), of_a, of_b, how)
        else:
            kernel = product.Kernel(a.dtype, product.Tile(*tile), a.stride(-1) == 1, b.stride(-1) == 1)
        held = self.result
        if parts > 1:
            held = torch.empty((parts, *self.result.shape), dtype=torch.float32, device=self.device)
        launch = product.begun(kernel, name, self.device, parts)
        self.launches.append(launch)
        if how is not None:
            numbers, matrices = product.convolved(kernel, of_a, of_b, how), (b, a)
        else:
            sizes = [*a.shape[:-1], b.shape[-1], a.shape[-1]]
            numbers = product.numbers(kernel.tile, sizes, of_a, of_b, parts)
            matrices = (a, b)

        def run() -> None:
            launch(*matrices, held, *numbers)
            if parts > 1:
                torch.sum(held, 0, dtype=self.result.dtype, out=self.result)

        return run

    def nanoseconds(self, candidate: str) -> int:
        """The shortest time of a product. RuntimeError if its result is wrong."""
        run = self.programs.get(candidate, self._library_and_what_follows)
        self.result.zero_()
        run()
        if candidate in self.programs:
            difference = (self.result - self.expected).abs().max().item()
            most = _TOLERANCE[self.result.dtype] * max(self.expected.abs().max().item(), 1)
            if not difference <= most:
                raise RuntimeError(f"its result is off by {difference:g}")
        return max(1, round(min(times(run, lambda: torch.accelerator.synchronize(self.device), TIME)) * 1e9))


def _refuse(error: Exception) -> None:
    raise error


def _read(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    # A candidate that hangs is not waited for.
    os._exit(0)


def main() -> None:
    """Answers requests until there are no more."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    bench: Bench | None = None
    while True:
        try:
            request = json.loads(lines.get(timeout=IDLE))
        except queue.Empty:
            os._exit(0)
        try:
            if bench is None or bench.task != request["task"]:
                bench = None
                bench = Bench(request["task"])
            reply: dict[str, Any] = {"Ok": bench.nanoseconds(request["candidate"])}
        except Exception as error:
            reply = {"Err": f"{type(error).__name__}: {error}"}
        # A line of its own, whatever was printed before.
        sys.stdout.write(f"\n{MARK}{json.dumps(reply)}\n")
        sys.stdout.flush()
