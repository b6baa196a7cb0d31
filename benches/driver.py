"""The driver `opencl` against OpenCL by hand on the same device. `cargo xtask bench driver`; docs/benchmarks.md says what
each metric means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .harness import US, Bar, Metric, Missing, Parts, Seconds
from .subjects import Subjects

NODES = 1000  # CHAIN of native/work.h
COPY_GB = 2 * (64 << 20) / 1e9  # both ways
START_ROUNDS = 7  # of what starts processes and compiles

# The sizes of the operators of native/driver_kernels.h, from which bytes and floating-point operations follow.
ELEMENTS, SUM_COUNT, SOFTMAX, MM = 1 << 20, 4 << 20, 1024 * 1024, 512
CONVOLUTION = 2 * 32 * 32 * 9 * 32 * 32
ATTENTION = 4 * 4 * 128 * 128 * 64
GIGABYTES = {
    "add": 12 * ELEMENTS / 1e9,
    "gelu": 8 * ELEMENTS / 1e9,
    "sum": 4 * SUM_COUNT / 1e9,
    "softmax": 8 * SOFTMAX / 1e9,
}
GIGAFLOPS = {"mm": 2 * MM**3 / 1e9, "convolution": CONVOLUTION / 1e9, "attention": ATTENTION / 1e9}


@dataclass(frozen=True)
class Runtime:
    """An OpenCL implementation and the bars over it: launches as bars relative to the raw ones, and the speed of
    operators in times of the host's."""

    name: str
    launch_wait: Bar
    enqueue: Bar | None
    persistent: Bar | None
    simple: float
    product: float


RUNTIMES = [
    Runtime("intel", Bar(1.0, "raw", above=150), Bar(1.0, "raw", above=60), Bar(0.3, "raw"), simple=0.8, product=0.4),
    Runtime("pocl", Bar(1.05, "raw"), None, None, simple=0.6, product=0.2),
    Runtime("pocl_basic", Bar(1.0, "raw", above=150), Bar(1.0, "raw", above=60), None, simple=0.6, product=0.2),
]


def nanoseconds(seconds: Seconds) -> float:
    """The figure of a metric that is one time."""
    return 1e9 * seconds["block"]


def milliseconds(seconds: Seconds) -> float:
    """The same, of something slow."""
    return 1e3 * seconds["block"]


def per_node(seconds: Seconds) -> float:
    """Nanoseconds of a block of launches with its wait, over its launches."""
    return 1e9 * seconds["block"] / NODES


def metrics(subjects: Subjects) -> list[Metric]:
    """The suite: over OpenCL, or over CUDA where `cargo xtask gpu-pack` has prepared that alone."""
    if "driver_cuda" in subjects.entries:
        return of_cuda(subjects)
    return [metric for runtime in RUNTIMES for metric in metrics_of(subjects, runtime)]


def metrics_of(subjects: Subjects, runtime: Runtime) -> list[Metric]:
    """The metrics over one implementation."""
    program = f"driver_{runtime.name}"

    def metric(
        name: str, measures: dict[str, str], *bars: Bar, unit: str = "ns", better: str = "lower", **further: Any
    ) -> Metric:
        def contest() -> dict[str, Parts | Missing]:
            return {who: subjects.parts(program, block=measure) for who, measure in measures.items()}

        return Metric(f"{name}/{runtime.name}", contest, bars, unit, better, program=program, **further)

    def speed(name: str, work: float, unit: str, bar: float) -> Metric:
        return metric(
            f"kernel/{name}",
            {US: name, "host": f"host_{name}", "opencl_c": f"raw_{name}"},
            Bar(bar, "host"),
            unit=unit,
            better="higher",
            figure=lambda seconds: work / seconds["block"],
        )

    def start(name: str, measures: dict[str, str], *bars: Bar) -> Metric:
        # Each repetition is a process or two.
        return metric(
            name, measures, *bars, unit="ms", figure=milliseconds, block_seconds=0.0, most_rounds=START_ROUNDS
        )

    enqueue = () if runtime.enqueue is None else (runtime.enqueue,)
    persistent = () if runtime.persistent is None else (runtime.persistent,)
    return [
        metric("launch_wait", {US: "launch_wait", "raw": "raw_launch_wait"}, runtime.launch_wait, figure=nanoseconds),
        metric("enqueue_1000", {US: "enqueue", "raw": "raw_enqueue"}, *enqueue, figure=per_node),
        metric("replay", {US: "replay", "raw": "raw_enqueue"}, Bar(1.0, "raw"), figure=per_node),
        metric(
            "replay_persistent",
            {US: "replay_persistent", "node_by_node": "enqueue_dialect", "raw": "raw_enqueue_dialect"},
            *persistent,
            figure=per_node,
        ),
        metric(
            "copy",
            {US: "copy", "raw": "raw_copy"},
            Bar(0.95, "raw"),
            unit="GB/s",
            better="higher",
            figure=lambda seconds: COPY_GB / seconds["block"],
        ),
        *(speed(name, work, "GB/s", runtime.simple) for name, work in GIGABYTES.items()),
        *(speed(name, work, "GFLOP/s", runtime.product) for name, work in GIGAFLOPS.items()),
        start("second_start", {US: "second_load", "first": "first_load"}, Bar(0.05, "first")),
        start("open", {US: "second_open", "raw": "raw_open"}),
    ]


def of_cuda(subjects: Subjects) -> list[Metric]:
    """The metrics over CUDA, each beside CUDA by hand in the same process. Bars wait for figures of a device."""

    def metric(name: str, unit: str, better: str, figure: Callable[[Seconds], float]) -> Metric:
        def contest() -> dict[str, Parts | Missing]:
            return {who: subjects.parts("driver_cuda", block=f"{side}{name}") for who, side in ((US, ""), ("raw", "raw_"))}

        return Metric(f"{name}/cuda", contest, (), unit, better, program="driver_cuda", figure=figure)

    def speed(seconds: Seconds) -> float:
        return COPY_GB / 2 / seconds["block"]

    return [
        *(metric(name, "ns", "lower", nanoseconds) for name in ("launch_wait", "fill", "event")),
        *(metric(name, "ns", "lower", per_node) for name in ("enqueue", "replay")),
        *(metric(name, "GB/s", "higher", speed) for name in ("to_device", "to_host")),
    ]
