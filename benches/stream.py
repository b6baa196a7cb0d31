"""Streams and events through the C ABI, against OpenCL on the CPU. `cargo xtask bench stream`.

`launch_wait`: launch a kernel that adds 1 to a float32 on an idle stream, and wait for the stream. `launch`:
the launch alone; every 64 launches the stream is waited for, outside of the time. `event_query`,
`event_wait_done`: asking of, and waiting for, an event that has passed. `stream_hop`: a kernel that
waits for the one before on the other stream: launch, record, wait and run; every 64 the streams are waited for.
"""

from __future__ import annotations

from .harness import US, Bar, Metric, Missing, Parts, Seconds
from .subjects import Subjects

PEERS = ["pocl", "pocl_basic", "intel_opencl"]


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
        metric("launch_wait", Bar(100.0), Bar(1 / 3, "pocl_basic")),
        metric("launch", Bar(40.0)),
        metric("event_query", Bar(5.0)),
        metric("event_wait_done", Bar(10.0)),
        metric("stream_hop", Bar(100.0)),
    ]
