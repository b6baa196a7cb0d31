"""The time of work on a device: seconds of several launches in a row over their number, so that no wait is a part."""

from __future__ import annotations

import time
from collections.abc import Callable

FEWEST, LEAST_RUN = 5, 2e-4
"""Runs, at least; seconds of a run, at least."""


def times(work: Callable[[], object], synchronize: Callable[[], None], seconds: float) -> list[float]:
    """Seconds of `work` in each run. The runs take `seconds` together. Work that is slow the first time is to have run before."""
    synchronize()
    begin = time.perf_counter()
    work()
    synchronize()
    count = max(1, int(LEAST_RUN / max(time.perf_counter() - begin, 1e-7)))
    found: list[float] = []
    begin = time.perf_counter()
    while len(found) < FEWEST or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for _ in range(count):
            work()
        synchronize()
        found.append((time.perf_counter() - start) / count)
    return found
