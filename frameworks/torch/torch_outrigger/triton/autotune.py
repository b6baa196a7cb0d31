"""`@triton.autotune` on the device: all configurations are compiled side by side, then measured, and choices are kept in the project's store.

No compiler runs beside what is measured: on many devices both would have the same processors. It must never choose by a time of
another device, driver or version.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from triton import knobs
from triton.compiler.compiler import CompiledKernel, make_backend
from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from .. import _C
from .._after_import import replace_in
from ..inductor.program import device_version
from .launch import Launcher


def install() -> None:
    """Changes Triton's autotuner for this backend's devices."""
    replace_in(Autotuner, "run", _run)
    replace_in(Autotuner, "check_disk_cache", _look_up)


def _is_here() -> bool:
    from .driver import Driver

    return isinstance(driver.active, Driver)


def _run(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not knobs.runtime.interpret and _is_here():
            # Has Triton ask for a choice that is kept.
            self.cache_results = True
            self._given = args, {key: value for key, value in kwargs.items() if key != "warmup"}
        try:
            return stock(self, *args, **kwargs)
        finally:
            self._given = None

    return run


def _look_up(stock: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(stock)
    def check_disk_cache(self: Any, tuning_key: Any, configs: list[Config], measure: Callable[[], None]) -> bool:
        if not _is_here():
            return stock(self, tuning_key, configs, measure)
        if any(one.pre_hook is not None for one in configs):
            # What a hook does to arguments is not known before, and no key has it.
            measure()
            return False
        key = _key(self, tuning_key, configs)
        kept = _C.store_get(key)
        if kept is not None:
            times = json.loads(kept)
            self.configs_timings = dict(zip(configs, times, strict=True))
            self.cache[tuning_key] = min(self.configs_timings, key=self.configs_timings.get)
            return True
        _compile(self, configs)
        measure()
        _C.store_put(key, json.dumps([self.configs_timings[one] for one in configs]).encode())
        return False

    return check_disk_cache


def _key(tuner: Any, tuning_key: Any, configs: list[Config]) -> bytes:
    kernel = tuner.fn
    while not isinstance(kernel, JITFunction):
        kernel = kernel.fn
    parts = (
        make_backend(driver.active.get_current_target()).hash(),
        device_version(driver.active.get_current_device()),
        f"{torch.get_num_threads()} threads",
        kernel.cache_key,
        str(tuning_key),
        *map(str, configs),
    )
    return b"torch_outrigger triton " + hashlib.sha256("\0".join(parts).encode()).digest()


def _compile(tuner: Any, configs: list[Config]) -> None:
    """Compiles the kernels of configurations. One that cannot be compiled says so again when it is measured."""
    args, kwargs = tuner._given

    def load(kernel: CompiledKernel) -> None:
        with contextlib.suppress(Exception):
            launcher = kernel.run
            if isinstance(launcher, Launcher):
                launcher.bind(kernel.function, driver.active.device_type).load()

    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        for config in configs:
            with contextlib.suppress(Exception):
                compilers.submit(load, tuner.fn.warmup(*args, **kwargs, **config.all_kwargs()))
