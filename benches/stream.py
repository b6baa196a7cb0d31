"""Streams and events through the C ABI, against OpenCL on the CPU. `cargo xtask bench stream`.

`launch_wait`: launch a kernel that adds 1 to a float32 on an idle stream, and wait for the stream. `launch`:
the launch alone, with a hint that the kernel is tiny; every 64 launches the stream is waited for, outside of the
time. `launch_deep`: the launch alone, without a hint; every 1,000 launches the stream is waited for. `event_query`,
`event_wait_done`: asking of, and waiting for, an event that has passed. `stream_hop`: a kernel that
waits for the one before on the other stream: launch, record, wait and run; every 64 the streams are waited for.
"""

from __future__ import annotations

from .harness import US, Bar, Best, Metric, Missing, Parts, Seconds
from .subjects import Subjects

PEERS = ["pocl", "pocl_basic", "intel_opencl"]
OPENCL = Best("best OpenCL", tuple(PEERS))


def nanoseconds(seconds: Seconds) -> float:
    """The figure of a metric that is one time."""
    return 1e9 * seconds["block"]


def metrics(subjects: Subjects) -> list[Metric]:
    """The suite."""

    def metric(name: str, *bars: Bar) -> Metric:
        def contest() -> dict[str, Parts | Missing]:
            us = {US: subjects.parts("outrigger_stream", block=name)}
            return us | subjects.contest(PEERS, block=name)

        return Metric(name, contest, bars, "ns", figure=nanoseconds)

    return [
        metric("launch_wait", Bar(1 / 3, OPENCL)),
        metric("launch", Bar(1 / 3, OPENCL)),
        metric("launch_deep", Bar(1 / 3, OPENCL)),
        metric("event_query", Bar(1 / 3, OPENCL)),
        metric("event_wait_done", Bar(1 / 3, OPENCL)),
        metric("stream_hop", Bar(1 / 3, OPENCL)),
    ]
