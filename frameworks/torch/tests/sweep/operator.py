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

    def samples(self) -> Iterator[SampleInput]:
        """All samples, the same ones in every run, made one by one."""
        seed = zlib.crc32(self.name.encode())
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        return iter(self.make_samples())
