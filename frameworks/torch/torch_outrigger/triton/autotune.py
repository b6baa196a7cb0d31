"""`@triton.autotune` on the device: configurations are compiled and measured as a pipeline, and choices are kept in the project's store.

Where kernels are functions of the host, a configuration is measured in a process of its own, so that one that crashes, hangs or writes
to wrong places costs itself. It must never choose by a time of another device, driver or version.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch
from triton import knobs
from triton.compiler.compiler import make_backend
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.driver import driver
from triton.runtime.errors import AutotunerError, OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from .. import _C, _timing
from .._after_import import replace_in
from ..inductor import program
from .launch import Launch, taken_by

log = logging.getLogger(__name__)

_LIMIT, _LONGEST_LIMIT = 5.0, 60.0
"""Seconds that a configuration may take to be measured; the second if none has worked."""

_SECONDS_OF_TRIAL = 0.04
"""Seconds for each time that a configuration is measured."""

_NEAR, _NEAR_ROUGHLY = 0.1, 0.25
"""Configurations that are so near to the best one are measured again; the second where many threads will run what one has run."""

_FINALISTS, _ROUNDS = 3, 3
"""The most configurations that are measured again, and how often each."""

_EXPECTED = (OutOfResources, CompileTimeAssertionFailure, PTXASError)
"""Errors for which Triton itself leaves out a configuration."""


def install() -> None:
    """Changes Triton's autotuner for this backend's devices."""
    replace_in(Autotuner, "run", _run)
    replace_in(Autotuner, "check_disk_cache", _look_up)
    replace_in(Autotuner, "_bench", _bench)


def _is_here() -> bool:
    from .driver import Driver

    return isinstance(driver.active, Driver)


def _run(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not knobs.runtime.interpret and _is_here():
            # Has Triton ask for a choice that is kept.
            self.cache_results = True
        return stock(self, *args, **kwargs)

    return run


def _bench(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def bench(self: Any, *args: Any, config: Config, **meta: Any) -> Any:
        # A tuner of a library may ask for one configuration by itself.
        if knobs.runtime.interpret or not _is_here() or getattr(self, "_asked", None) is None:
            return stock(self, *args, config=config, **meta)
        if self._times is None:
            # Triton asks for one after the other.
            self._times = _Tuning(self, self._asked, args, meta, stock).run()
        return self._times[config]

    return bench


def _look_up(stock: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(stock)
    def check_disk_cache(self: Any, tuning_key: Any, configs: list[Config], measure: Callable[[], None]) -> bool:
        if not _is_here():
            return stock(self, tuning_key, configs, measure)

        def measured() -> None:
            self._asked, self._times = configs, None
            try:
                measure()
            finally:
                self._asked = None

        if any(one.pre_hook is not None for one in configs):
            # Changes of arguments by a hook are not known before, and no key has them.
            measured()
            return False
        key = _key(self, tuning_key, configs)
        kept = _C.store_get(key)
        if kept is not None:
            times = json.loads(kept)
            self.configs_timings = dict(zip(configs, times, strict=True))
            self.cache[tuning_key] = min(self.configs_timings, key=self.configs_timings.get)
            return True
        measured()
        _C.store_put(key, json.dumps([self.configs_timings[one] for one in configs]).encode())
        return False

    return check_disk_cache


def _key(tuner: Any, tuning_key: Any, configs: list[Config]) -> bytes:
    kernel = tuner.fn
    while not isinstance(kernel, JITFunction):
        kernel = kernel.fn
    parts = (
        make_backend(driver.active.get_current_target()).hash(),
        program.device_version(driver.active.get_current_device()),
        f"{torch.get_num_threads()} threads",
        kernel.cache_key,
        str(tuning_key),
        *map(str, configs),
    )
    return b"torch_outrigger triton " + hashlib.sha256("\0".join(parts).encode()).digest()


@dataclass(eq=False)
class _Tried:
    """A configuration, and what is known of it."""

    config: Config
    launch: Launch | None = None
    times: list[float] = field(default_factory=list)
    """Milliseconds of a launch: the least, or the median where all is measured in this process; then two quantiles."""
    failure: Exception | None = None


class _Turns:
    """Turns, one for each processor. A thread with a turn compiles a configuration, or measures one, which goes first."""

    def __init__(self) -> None:
        self.count = self._free = len(os.sched_getaffinity(0))
        self._changed = threading.Condition()
        self._is_awaited = False

    def take(self, first: bool = False) -> None:
        with self._changed:
            self._is_awaited |= first
            self._changed.wait_for(lambda: self._free and (first or not self._is_awaited))
            self._is_awaited &= not first
            self._free -= 1
            self._changed.notify_all()

    def give(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify_all()


class _Tuning:
    """Measures the configurations of a call: each as soon as it is compiled, while the next ones compile."""

    def __init__(self, tuner: Any, configs: list[Config], args: tuple[Any, ...], meta: dict[str, Any], bench: Callable[..., Any]) -> None:
        self._tuner, self._args, self._meta, self._bench = tuner, args, meta, bench
        self.tried = [_Tried(one) for one in configs]
        self._turns = _Turns()
        # A function of the program's own that measures is called as Triton calls it.
        is_host = program.language(driver.active.get_current_device()) is None
        self._is_apart = is_host and tuner._do_bench is None
        # Whether the device works on other processors than compilers do.
        self._is_remote = program.group_size(driver.active.get_current_device()) > 1
        self._threads = torch.get_num_threads()
        self._seconds = _SECONDS_OF_TRIAL

    def run(self) -> dict[Config, list[float]]:
        """The times of all configurations; infinite ones for those that failed."""
        # Work that an argument comes from may have failed.
        torch.accelerator.synchronize()
        self._measure_all(_LIMIT)
        if not self._works() and any(isinstance(one.failure, TimeoutError) for one in self.tried):
            self._measure_all(_LONGEST_LIMIT)
        self._measure_best_again()
        self._tell()
        return {one.config: one.times if one.failure is None else [math.inf] * 3 for one in self.tried}

    def _works(self) -> list[_Tried]:
        return sorted((one for one in self.tried if one.failure is None), key=lambda one: one.times)

    def _measure_all(self, limit: float) -> None:
        self._turns.take(first=True)
        compilers = ThreadPoolExecutor(self._turns.count)
        try:
            waiting = {}
            for one in self.tried:
                one.failure = None
                if self._prepare(one):
                    waiting[compilers.submit(self._compile, one.launch)] = one
            while waiting:
                self._turns.give()
                everything = not self._is_apart and not self._is_remote
                done, _ = wait(waiting, return_when=ALL_COMPLETED if everything else FIRST_COMPLETED)
                self._turns.take(first=True)
                for future in [one for one in waiting if one in done]:
                    one = waiting.pop(future)
                    error = future.exception()
                    if error is None:
                        self._measure(one, limit, alone=True)
                    else:
                        self._fail(one, error)
        finally:
            self._turns.give()
            compilers.shutdown(cancel_futures=True)

    def _prepare(self, one: _Tried) -> bool:
        """Has Triton make the text of a configuration, and finds out how it is launched."""
        current = {**self._meta, **one.config.all_kwargs()}

        def take(launch: Launch) -> None:
            one.launch = launch

        try:
            with taken_by(take):
                self._tuner.fn.run(*self._args, **current)
        except Exception as error:
            if knobs.autotuning.print:
                print(f"Autotuning kernel {self._tuner.base_fn.__name__} with config {one.config}")
            self._fail(one, error)
        return one.failure is None

    def _fail(self, one: _Tried, error: Exception) -> None:
        one.failure = error
        if knobs.autotuning.print:
            print(f"Autotuning failed with {_said(error)}")

    def _compile(self, launch: Launch) -> None:
        self._turns.take()
        try:
            launch.kernel().load()
        finally:
            self._turns.give()

    def _measure(self, one: _Tried, limit: float, alone: bool = False) -> None:
        """Notes the times of a configuration: as the device runs it, or on one thread alone."""
        try:
            found = self._bench_with(one, limit, alone)
        except Exception as error:
            self._fail(one, error)
            return
        one.times = min(one.times, found) if one.times else found

    def _bench_with(self, one: _Tried, limit: float, alone: bool) -> list[float]:
        """Has Triton's own way of measuring, with its hooks, measure a configuration: apart if that can be."""
        tuner = self._tuner
        if not self._is_apart:
            return list(self._bench(tuner, *self._args, config=one.config, **self._meta))

        def apart(call: Callable[[], Any], **_: Any) -> list[float]:
            found: list[list[float]] = []
            with taken_by(lambda launch: found.append(self._apart(launch, one, limit, alone))):
                call()
            return found[0]

        stock, tuner.do_bench = tuner.do_bench, apart
        try:
            return self._bench(tuner, *self._args, config=one.config, **self._meta)
        finally:
            tuner.do_bench = stock

    def _apart(self, launch: Launch, one: _Tried, limit: float, alone: bool) -> list[float]:
        """Times of a launch in a process of its own."""
        groups = math.prod(launch.grid)
        threads = min(self._threads, groups)
        is_shared = not alone and threads > 1
        kernel = launch.kernel()
        found = kernel.attempt(launch.arguments, self._restored(launch, one.config), is_shared, self._seconds, limit)
        if found is None:
            log.info("%s is measured in the process: no other one was to be had", launch.launcher.name)
            found = _timing.times(lambda: kernel(*launch.arguments), torch.accelerator.synchronize, self._seconds)
        if isinstance(found, str):
            raise (TimeoutError if found.startswith("it took") else RuntimeError)(found)
        found.sort()
        # The largest share takes this part of the time, where many threads are to share it.
        part = 1 if is_shared or threads < 2 else -(-groups // threads) / groups
        return [1e3 * part * found[round(at * (len(found) - 1))] for at in (0, 0.2, 0.8)]

    def _restored(self, launch: Launch, config: Config) -> list[tuple[int, int]]:
        """Addresses and sizes of what each launch is to find as the first one does."""
        tuner = self._tuner
        if tuner.user_defined_pre_hook or config.pre_hook is not None:
            # Nobody knows what a hook prepares.
            tensors = launch.given
        else:
            named = {**tuner.nargs, **self._meta}
            tensors = [named[one] for one in (*tuner.reset_to_zero, *tuner.restore_value)]
        return [_bytes(one) for one in tensors if isinstance(one, torch.Tensor) and one.numel()]

    def _measure_best_again(self) -> None:
        """Measures the best ones again, one after the other and with all threads, now that nothing compiles."""
        works = self._works()
        if not works or self._tuner._do_bench is not None:
            return
        # A launch on one thread says less of one on many.
        is_rough = self._is_apart and self._threads > 1 and any(math.prod(one.launch.grid) > 1 for one in works)
        near = _NEAR_ROUGHLY if is_rough else _NEAR
        best = [one for one in works if one.times[0] <= (1 + near) * works[0].times[0]][:_FINALISTS]
        if len(best) < 2:
            return
        before = {one.config: one.times[0] for one in best}
        if is_rough:
            for one in best:
                one.times = []
        for _ in range(_ROUNDS):
            for one in best:
                if one.failure is None:
                    self._measure(one, _LONGEST_LIMIT)
        # Times of the others are of another kind, and never less than those.
        more = max((one.times[0] / before[one.config] for one in best if one.failure is None), default=1.0)
        for one in works:
            if one not in best:
                one.times = [max(1.0, more) * time for time in one.times]

    def _tell(self) -> None:
        """Warns of configurations that failed. An error if all did."""
        name = self._tuner.base_fn.__name__
        failed = [one for one in self.tried if one.failure is not None]
        if len(failed) == len(self.tried):
            if all(one.launch is None for one in failed):
                # None was ever launched: the kernel or the call is wrong.
                raise failed[0].failure
            reasons = "; ".join(f"{one.config}: {_said(one.failure)}" for one in failed)
            raise AutotunerError(f"no configuration of {name} works: {reasons}") from failed[0].failure
        for one in failed:
            if not isinstance(one.failure, _EXPECTED):
                warnings.warn(f"a configuration of {name} is left out: {one.config}: {_said(one.failure)}", RuntimeWarning, stacklevel=2)


def _said(error: Exception | None) -> str:
    return str(error) or type(error).__name__


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """The first address of a tensor, and the bytes up to its last element."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr(), reach * tensor.element_size()
