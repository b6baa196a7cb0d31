"""Graphs: through the C ABI against other systems that replay graphs on the CPU, and through PyTorch against
eager CPU tensors. `cargo xtask bench graph`; docs/benchmarks.md says what each metric means.
"""

from __future__ import annotations

from collections.abc import Iterable

from . import graph_torch
from .harness import US, Bar, Best, Metric, Missing, Parts, Seconds
from .subjects import CPUS, Subjects, busy_cpus

NODES = 1000  # CHAIN of native/work.h
LOADED_BLOCK_SECONDS = 0.05  # several turns of the system's scheduler

OPENCLS = ["pocl", "pocl_basic", "intel_opencl"]
OPENCL = Best("best OpenCL", tuple(OPENCLS))
FLOWS = ["tbb", "tbb_lightweight", "taskflow"]
TBB = Best("best tbb", ("tbb", "tbb_lightweight"))
FLOW = Best("best flow", tuple(FLOWS))
OURS = "outrigger_graph"


def per_node(seconds: Seconds) -> float:
    """Nanoseconds that each further node of a chain costs: what replays of any length cost drops out."""
    return 1e9 * (seconds["chain_1000"] - seconds["chain_1"]) / (NODES - 1)


def base(seconds: Seconds) -> float:
    """Nanoseconds of a replay with its wait, without its nodes."""
    return 1e9 * seconds["chain_1"] - per_node(seconds)


def of_each_node(seconds: Seconds) -> float:
    """Nanoseconds of a whole replay or capture, over its nodes."""
    return 1e9 * seconds["block"] / NODES


def speedup(seconds: Seconds) -> float:
    """The time of the serial replay in times of the parallel one."""
    return seconds["serial"] / seconds["parallel"]


def rebind(seconds: Seconds) -> float:
    """Nanoseconds that one changed argument adds to a replay."""
    return 1e9 * (seconds["rebind"] - seconds["chain_1000"]) / NODES


def update(seconds: Seconds) -> float:
    """The time of an update in times of a capture with its instantiation."""
    return seconds["update"] / seconds["capture"]


def metrics(subjects: Subjects) -> Iterable[Metric]:
    """The suite."""

    def contest(peers: list[str], **measures: str) -> dict[str, Parts | Missing]:
        return {US: subjects.parts(OURS, **measures)} | subjects.contest(peers, **measures)

    def chains() -> dict[str, Parts | Missing]:
        everybody = ["c_loop", *FLOWS, "warp", "iree", *OPENCLS]
        return contest(everybody, chain_1="chain_1", chain_1000="chain_1000")

    def spinning() -> dict[str, Parts | Missing]:
        """Each subject next to the plain loop over the same nodes, which is the serial time for all."""
        serial = subjects.parts("c_loop", serial="wide8_spin")
        both: dict[str, Parts | Missing] = {}
        for name, parts in contest(FLOWS, parallel="wide8_spin").items():
            if isinstance(parts, Missing):
                both[name] = parts
            else:
                both[name] = serial if isinstance(serial, Missing) else {**parts, **serial}
        return both

    return [
        Metric("replay_chain_1000", chains, (Bar(0.25, TBB), Bar(1.0, FLOW)), "ns", figure=per_node),
        Metric("replay_base", chains, (Bar(1 / 3, OPENCL), Bar(1.0, TBB)), "ns", figure=base),
        Metric(
            "replay_wide8_1000",
            lambda: contest(["c_loop", *FLOWS], block="wide8"),
            (Bar(0.25, TBB),),
            "ns",
            figure=of_each_node,
        ),
        Metric(
            "parallel_speedup",
            spinning,
            (Bar(0.95, FLOW), Bar(0.9, "ideal")),
            "x",
            "higher",
            speedup,
            known={"ideal": float(len(CPUS))},
        ),
        Metric(
            "parallel_loaded",
            spinning,
            (Bar(0.9, FLOW), Bar(0.9, "ideal")),
            "x",
            "higher",
            speedup,
            around=busy_cpus,
            block_seconds=LOADED_BLOCK_SECONDS,
            known={"ideal": len(CPUS) / 2},  # the system gives half of each CPU to the work beside
        ),
        Metric(
            "rebind_arg",
            lambda: contest(["c_loop"], rebind="rebind", chain_1000="chain_1000"),
            (Bar(4.0, "c_loop"),),
            "ns",
            figure=rebind,
        ),
        Metric(
            "capture_node",
            lambda: contest([*FLOWS, "warp", *OPENCLS], block="capture"),
            (Bar(1 / 3, OPENCL),),
            "ns",
            figure=of_each_node,
        ),
        Metric(
            "update_ratio",
            lambda: contest([], update="update", capture="capture"),
            (Bar(0.1),),
            "x",
            figure=update,
        ),
        *graph_torch.metrics(),
    ]
