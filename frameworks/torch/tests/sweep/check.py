"""The check of one case on the device: sample after sample, each in stages.

What a kind of case does in its stages stands in `operator_check.py`, `module_check.py` and `optimizer_check.py`. Runs in a
worker. A failure of the case is a result here and never an exception; what a crash or a hang leaves behind is the parent's
to see, which is why every stage is announced before it starts.
"""

from __future__ import annotations

import random
import re
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .cases import Case
from .compare import Mismatch
from .places import Places
from .result import Outcome, Result, one_line

CPU = torch.device("cpu")
WEIGHT_SEED = 20260

Heartbeat = Callable[[int, str], None]
T = TypeVar("T")


class Refused(Exception):
    """CPU tensors cannot do this either."""


class Check:
    """The check of one case on one device. A kind of case says how its samples are made and what is done with one."""

    def __init__(self, case: Case, device: torch.device, heartbeat: Heartbeat, limit: int | None = None) -> None:
        self.case = case
        self.device = device
        self.heartbeat = heartbeat
        self.limit = limit
        self.result = Result(case.name, Outcome.PASS, str(case.dtype).removeprefix("torch."))
        self.index = 0
        self.failed: set[int] = set()
        self.left_to_chance: set[int] = set()

    def samples(self) -> Iterator[Any]:
        """All samples of the case."""
        raise NotImplementedError

    def sample(self, sample: Any) -> None:
        """Checks one sample: every stage by `attempt`, the first of them named `forward`."""
        raise NotImplementedError

    def run(self) -> Result:
        """Checks the samples: all, made one by one, or `limit` of them. They are the same in every run."""
        started = time.monotonic()
        places = Places(self.device)
        seed = zlib.crc32(self.case.name.encode())
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        try:
            made = self.samples()
            for self.index, sample in enumerate(made if self.limit is None else spread(list(made), self.limit)):
                self.result.samples += 1
                self.sample(sample)
        except Exception as error:  # The generator of samples is torch's, and may lack what it needs.
            self.note(f"no further samples: {explain(error)}")
        self.attempt("synchronize", self.wait)
        self.result.failed = len(self.failed)
        self.result.random = len(self.left_to_chance)
        self.result.places = places.taken()
        self.result.seconds = round(time.monotonic() - started, 3)
        self.result.outcome = self.outcome()
        return self.result

    def outcome(self) -> Outcome:
        """The outcome that the counts tell."""
        if self.result.error:
            return Outcome.FAIL
        if self.result.samples == self.result.refused_by_cpu:
            return Outcome.NOT_APPLICABLE
        return Outcome.PASS

    def attempt(self, stage: str, work: Callable[[], T]) -> T | None:
        """The result of a stage of the sample; None if it failed, or if CPU tensors lack it, which is no failure.

        A sample without its stage `forward` has nothing to compare.
        """
        self.heartbeat(self.index, stage)
        try:
            return work()
        except Refused:
            self.result.refused_by_cpu += stage == "forward"
        except Exception as error:
            self.note(f"{stage}: {explain(error)}" if stage == "synchronize" else f"sample {self.index} ({stage}): {explain(error)}")
        return None

    def note(self, text: str) -> None:
        """Counts a failed sample and keeps the first failure."""
        self.failed.add(self.index)
        if not self.result.error:
            self.result.error = one_line([text])

    def wait(self) -> None:
        """Waits for all work of the device, so that a late failure is this case's."""
        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize()


def spread(values: list[Any], limit: int) -> list[Any]:
    """At most `limit` of the values, evenly spread, the first and the last among them."""
    if len(values) <= limit:
        return values
    if limit == 1:
        return values[:1]
    return [values[index * (len(values) - 1) // (limit - 1)] for index in range(limit)]


def on_cpu(work: Callable[[], T]) -> T:
    """The result of `work`, which uses CPU tensors alone."""
    try:
        return work()
    except Exception as error:
        raise Refused from error


def refusal(call: Callable[[], Any], error_type: type[Exception], words: str) -> str:
    """The reason why `call` is not refused by such an error in such words; empty if it is."""
    try:
        result = call()
    except error_type as error:
        return "" if re.search(words, str(error)) else f"refused by {one_line(str(error).splitlines())}, not by {words}"
    except Exception as error:
        return f"refused by {explain(error)}, not by {error_type.__name__} {words}"
    return "" if result is NotImplemented else f"not refused: {error_type.__name__} {words}"


def roots(results: Any) -> list[Tensor]:
    """The results that gradients flow from, dense."""
    tensors = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
    flowing = [tensor for tensor in tensors if tensor.requires_grad]
    return [one if one.layout is torch.strided else one.to_dense() for one in flowing]


def weight(result: Tensor) -> Tensor:
    """The fixed random numbers that weight `result` in the sum that is differentiated, on the CPU."""
    generator = torch.Generator().manual_seed(WEIGHT_SEED)
    return torch.randn(result.shape, dtype=result.dtype, generator=generator)


def explain(error: Exception) -> str:
    """The error in one line, with its type unless it is ours."""
    lines = str(error).splitlines()
    # torch appends the C++ stack and advice that no table has room for.
    text = one_line(line for line in lines[:8] if not line.startswith(("Exception raised from", "frame #")))
    return text if isinstance(error, Mismatch) else f"{type(error).__name__}: {text}"
