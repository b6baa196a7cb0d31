"""The line protocol of benches/native/wire.h, for peers that are driven from Python.

It imports nothing but the standard library: peers have environments of their own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

Block = Callable[[int], None]  # repeats what is measured, and waits for it


def timed(block: Block) -> Callable[[int], float]:
    """The nanoseconds of everything that `block` does."""

    def run(repetitions: int) -> float:
        started = time.perf_counter_ns()
        block(repetitions)
        return float(time.perf_counter_ns() - started)

    return run


def serve(version: str, measures: dict[str, Callable[[int], float]]) -> None:
    """Answers until the input ends."""
    say({"version": version, "measures": list(measures)})
    for line in sys.stdin:
        name, repetitions = line.split()
        try:
            say({"ns": measures[name](int(repetitions))})
        except Exception as error:  # whatever it is, it belongs into the answer
            say({"error": f"{type(error).__name__}: {error}"})


def say(answer: dict[str, object]) -> None:
    """Writes one line."""
    print(json.dumps(answer), flush=True)
