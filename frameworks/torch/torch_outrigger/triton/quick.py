"""A launch of a kernel that has run before with arguments of the same kinds: in place of most of Triton's own `run`.

Triton looks at its settings, makes texts of keys and tells hooks about each launch. Here a launch is found by what Triton itself has
found out of the arguments, and whatever is unusual goes the whole way.
"""

from __future__ import annotations

import functools
from typing import Any

from triton import knobs
from triton.compiler.compiler import CompiledKernel
from triton.knobs import HookChain
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from .launch import Launcher

_MISSING = object()


def install() -> None:
    """Puts the short way in front of `JITFunction.run`. Once."""
    from .driver import Driver

    stock = JITFunction.run
    if getattr(stock, "_of_outrigger", False):
        return

    @functools.wraps(stock)
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        active, settings = driver._active, knobs.runtime
        enter, leave = settings.launch_enter_hook, settings.launch_exit_hook
        is_watched = self.pre_run_hooks or type(enter) is not HookChain or enter.calls or type(leave) is not HookChain or leave.calls
        if warmup or is_watched or type(active) is not Driver or settings.add_stages_inspection_hook is not None:
            return stock(self, *args, grid=grid, warmup=warmup, **kwargs)
        _, keys, _, _, bind = self.device_caches[active.get_current_device()]
        bound, specialization, options = bind(*args, **kwargs)
        # Among Triton's own keys, so that what empties them empties these.
        key = (tuple(specialization), tuple(options.items()), self.debug or settings.debug)
        kernel = keys.get(key)
        if kernel is None:
            kernel = stock(self, *args, grid=grid, warmup=warmup, **kwargs)
            if type(kernel) is CompiledKernel and type(kernel._run) is Launcher:
                keys[key] = kernel
            return kernel
        for (name, _), (value, where) in self.used_global_vals.items():
            if where.get(name, _MISSING) != value:
                return stock(self, *args, grid=grid, warmup=warmup, **kwargs)
        if callable(grid):
            grid = grid(bound)
        gx, gy, gz = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
        launcher = kernel._run
        launcher.launch(kernel.function, gx, gy, gz, launcher.pick(tuple(bound.values())))
        return kernel

    run._of_outrigger = True
    JITFunction.run = run
