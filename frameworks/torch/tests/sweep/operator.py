"""What the check needs to know of one operator, and how close results must be.

Knows nothing of torch's operator database, whose import takes long: `catalog.py` does.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.testing._internal.opinfo.core import SampleInput


@dataclass(frozen=True)
class Tolerance:
    """How far two floating results may be apart, as `torch.testing.assert_close` takes it."""

    rtol: float
    atol: float

    def widened(self, other: Tolerance) -> Tolerance:
        """The wider of both."""
        return Tolerance(max(self.rtol, other.rtol), max(self.atol, other.atol))


ELEMENTWISE = Tolerance(rtol=1.3e-6, atol=1e-5)
# A sum of another order is another sum: whatever accumulates, and every gradient of a broadcast input.
ACCUMULATING = Tolerance(rtol=1e-4, atol=1e-5)


@dataclass(frozen=True)
class Operator:
    """One operator to check, and all that the check needs to know of it."""

    name: str
    dtype: torch.dtype
    function: Callable[..., Any]
    inplace: Callable[..., Any] | None
    supports_out: bool
    differentiable: bool
    initialised: bool
    keeps_devices: bool
    """A device among the arguments is tested as it stands: it does not say where to compute."""
    host_arguments: bool
    """All arguments but the first stay on the host, on every device."""
    tolerance: Tolerance
    gradient_tolerance: Tolerance
    make_samples: Callable[[], Iterator[SampleInput]]
    has_reference: bool = False
    """Results and gradients are judged by the same call in float64, not by the CPU's kernel for the dtype."""

    def samples(self, limit: int | None = None) -> Iterator[SampleInput]:
        """The samples, the same ones in every run: all, made one by one, or `limit` of them, the first and the last among them."""
        seed = zlib.crc32(self.name.encode())
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        made = iter(self.make_samples())
        return made if limit is None else iter(spread(list(made), limit))


def spread(values: list[Any], limit: int) -> list[Any]:
    """At most `limit` of the values, evenly spread, the first and the last among them."""
    if len(values) <= limit:
        return values
    if limit == 1:
        return values[:1]
    return [values[index * (len(values) - 1) // (limit - 1)] for index in range(limit)]
