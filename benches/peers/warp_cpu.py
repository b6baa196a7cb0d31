"""NVIDIA Warp's graphs on its device `cpu`: a captured chain of launches, replayed by `capture_launch`.

Its replays run in the calling thread and have finished when the call returns. Capturing on the CPU knows no
streams: what is captured is a sequence.
"""

from __future__ import annotations

import time
from typing import Any

import warp as wp
from wire import serve, timed

CHAIN = 1000  # as in benches/native/work.h


@wp.kernel(enable_backward=False)
def add_one(value: wp.array(dtype=float)):  # type: ignore[valid-type]  # Warp's own annotations
    value[0] = value[0] + 1.0


def capture_chain(value: wp.array, nodes: int) -> Any:
    """A graph of `nodes` additions to `value`."""
    with wp.ScopedCapture(device="cpu") as capture:
        for _ in range(nodes):
            wp.launch(add_one, dim=1, inputs=[value], device="cpu")
    return capture.graph


def main() -> None:
    """Answers the harness."""
    wp.config.log_level = wp.LOG_ERROR  # standard output is for answers
    wp.init()
    wp.load_module(device="cpu")
    value = wp.zeros(1, dtype=float, device="cpu")

    def chain(nodes: int, repetitions: int) -> float:
        graph = capture_chain(value, nodes)
        value.zero_()

        def block(count: int) -> None:
            for _ in range(count):
                wp.capture_launch(graph)

        nanoseconds = timed(block)(repetitions)
        if value.numpy()[0] != min(nodes * repetitions, 1 << 24):
            raise RuntimeError(f"the nodes ran {value.numpy()[0]} times, not {nodes * repetitions}")
        return nanoseconds

    def capture(repetitions: int) -> float:
        nanoseconds = 0.0
        for _ in range(repetitions):
            started = time.perf_counter_ns()
            graph = capture_chain(value, CHAIN)
            nanoseconds += time.perf_counter_ns() - started
            del graph
        return nanoseconds

    serve(
        f"Warp {wp.__version__}",
        {
            "chain_1": lambda n: chain(1, n),
            "chain_1000": lambda n: chain(CHAIN, n),
            "capture": capture,
        },
    )


if __name__ == "__main__":
    main()
