"""Helpers of the tests: comparing with the CPU, and running a piece of Python in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from types import ModuleType

import pytest
import torch

NO_GRAPHS = None if hasattr(torch.accelerator, "Graph") else "torch.accelerator has no graphs before torch 2.12"
needs_graphs_of_torch = pytest.mark.skipif(NO_GRAPHS is not None, reason=str(NO_GRAPHS))

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGRAL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
ALL_DTYPES = (*FLOATING, *INTEGRAL, torch.bool, *COMPLEX)


def sample(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """A CPU tensor with small values that every dtype holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    low = -8 if dtype.is_signed and dtype is not torch.bool else 0
    values = torch.randint(low, 9, shape, generator=generator)
    if dtype.is_complex:
        values = torch.complex(values.double(), torch.randint(-8, 9, shape, generator=generator).double())
    return values.to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor, **tolerance: float) -> None:
    """Asserts that a device tensor has the dtype, shape and values of a CPU tensor; exactly, unless told."""
    assert actual.device.type not in ("cpu", "meta"), f"{actual.device} is not a device"
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, **tolerance)


def tested_triton() -> ModuleType:
    """Triton, for a file of tests that need the version whose kernels run on the device: without it the file is left out. That it
    has not found the device is no reason, and fails the tests."""
    triton = pytest.importorskip("triton")
    if not triton.__version__.startswith("3.9."):
        pytest.skip("kernels of Triton run with Triton 3.9", allow_module_level=True)
    return triton


def run_python(code: str, timeout: int = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter that finds the same packages."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
