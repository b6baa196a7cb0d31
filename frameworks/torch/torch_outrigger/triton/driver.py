"""The driver that Triton finds: which device, how a kernel is launched, how it is timed.

It must never start the runtime before a kernel is launched: Triton and torch ask it in programs that compile for the CPU alone.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from .. import _timing, load_error
from .._after_import import after_import

NAME = "outrigger"
"""The name of the backend in Triton, whatever torch calls the device."""

TESTED = "3.9"

_SECONDS = 0.1
"""Seconds for each time that a configuration is measured."""

_CACHE_BYTES = 32 << 20
"""Bytes that are written between two launches which are to find nothing of theirs in a cache."""


def refusal() -> str | None:
    """The reason why kernels of Triton do not run on the device; None if they do."""
    if load_error() is not None:
        return f"torch_outrigger could not be loaded: {load_error()}"
    if not triton.__version__.startswith(f"{TESTED}."):
        return (
            f"Triton {triton.__version__} was not tested with Outrigger's devices: kernels run on them with Triton {TESTED}, which comes "
            "with torch 2.15"
        )
    return None


class Utils:
    """The device's properties and the loading of kernels, as Triton asks for them."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        from .. import _C
        from ..inductor.program import group_limits

        info, (_, step, local) = _C.device_info(device), group_limits(device)
        return {
            "max_shared_mem": local or info["local_memory"],
            "multiprocessor_count": max(1, info["compute_units"]),
            "max_num_regs": 1 << 16,
            "warpSize": step,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }

    def load_binary(self, name: str, text: bytes, shared: int, device: int) -> tuple[Any, Any, int, int, int]:
        from .launch import Function

        function = Function(text.decode(), device)
        return function, function, 0, 0, 1 << 30

    def unload_module(self, module: Any) -> None:
        """Nothing to do: a program goes with its last kernel."""


class Driver(DriverBase):
    """Devices of Outrigger, as Triton sees them."""

    def __init__(self) -> None:
        from . import quick
        from .launch import Launcher

        reason = refusal()
        if reason is not None:
            raise RuntimeError(reason)
        # Else TRITON_STORE_BINARY_ONLY keeps no step but those that Triton knows as binaries, and ours is none of them.
        knobs.compilation.store_binary_only = False
        self._starts = True
        self.utils = Utils()
        self.launcher_cls = Launcher
        quick.install()

    @classmethod
    def is_active(cls) -> bool:
        """Whether kernels run here. If another backend has a device, TRITON_DEFAULT_BACKEND chooses."""
        if os.environ.get("TRITON_DEFAULT_BACKEND") != NAME:
            others = (one.driver for name, one in triton.backends.backends.items() if name != NAME)
            if any(one.is_active() for one in others):
                return False
        reason = refusal()
        if reason is not None:
            warnings.warn(f"Triton's kernels do not run on Outrigger's devices: {reason}", RuntimeWarning, stacklevel=2)
        return reason is None

    @functools.cached_property
    def device_type(self) -> str:
        # Torch's name of the device.
        from .._lifetime import device_type

        return device_type()

    def get_current_device(self) -> int:
        if self._starts:
            from .._lifetime import _lazy_init

            _lazy_init()
            self._starts = False
        return torch._C._accelerator_getDeviceIndex()

    def set_current_device(self, device: int) -> None:
        torch.accelerator.set_device_index(device)

    def get_current_stream(self, device: int) -> int:
        return torch._C._accelerator_getStream(device).stream_id

    def get_current_target(self) -> GPUTarget:
        from .._dynamo import arch
        from .._lifetime import is_initialized

        return GPUTarget(NAME, arch(self.get_current_device() if is_initialized() else 0), 1)

    def get_active_torch_device(self) -> torch.device:
        return torch.device(self.device_type, self.get_current_device())

    def get_device_interface(self) -> Any:
        return torch.get_device_module(self.device_type)

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "void*" if ty.startswith("*") else "int64_t"

    def get_benchmarker(self) -> Callable[..., Any]:
        return benchmark

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(_CACHE_BYTES, dtype=torch.int8, device=self.get_active_torch_device())

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()


def benchmark(kernel_call: Callable[[], object], *, quantiles: Sequence[float] | None = None, **_: Any) -> Any:
    """Milliseconds of a call: the median, or the quantiles that are asked for."""
    # The first call compiles.
    kernel_call()
    found = sorted(_timing.times(kernel_call, torch.accelerator.synchronize, _SECONDS))
    taken = [1e3 * found[round(one * (len(found) - 1))] for one in (quantiles or [0.5])]
    return taken if quantiles else taken[0]


def _serve_autotuner(_: Any) -> None:
    from . import autotune

    autotune.install()


# Before a driver is chosen: that happens within the first call of a tuned kernel.
after_import("triton.runtime.autotuner", _serve_autotuner)
