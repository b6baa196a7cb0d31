"""How every suite measures: all subjects of a metric take turns in one process, and medians are compared.

Taking turns is what makes it fair: a noisy moment of the machine, a change of clock or a neighbour hits
all of them. A subject runs in blocks that are long enough for the clock; the time of a block is divided
by its repetitions. It never judges: bars are shown, and kept by whoever reads the numbers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

BLOCK_SECONDS = 0.01  # a block is at least this long
ROUNDS = 31  # blocks per subject that count
MOST_REPETITIONS = 1_000_000  # per block
WARM_UP_ROUNDS = 3  # blocks per subject that do not

Block = Callable[[int], None]  # runs its subject so many times, and waits for all of it


@dataclass(frozen=True)
class Bar:
    """What is demanded of a metric: a ratio to a peer, or an absolute value in the metric's unit."""

    most: float
    peer: str | None = None


@dataclass
class Metric:
    """One comparison, in microseconds: less is better."""

    name: str
    outrigger: Block
    peers: dict[str, Block] = field(default_factory=dict)
    bar: Bar | None = None


@dataclass(frozen=True)
class Outcome:
    """The medians of a metric in microseconds per repetition."""

    metric: Metric
    outrigger: float
    peers: dict[str, float]

    def to_json(self, suite: str) -> dict[str, Any]:
        """The form that all suites share."""
        return {
            "suite": suite,
            "metric": self.metric.name,
            "unit": "us",
            "outrigger": self.outrigger,
            "peers": self.peers,
            "better": "lower",
        }

    def row(self) -> list[str]:
        """One line of the table."""
        peers = "  ".join(f"{name} {value:.3f}" for name, value in self.peers.items())
        reference = self.peers.get(self.bar_peer())
        ratio = f"{self.outrigger / reference:.2f}x" if reference else ""
        return [self.metric.name, f"{self.outrigger:.3f}", peers, ratio, *self.verdict()]

    def bar_peer(self) -> str:
        """The peer that the ratio is to: the bar's, else the first."""
        if self.metric.bar is not None and self.metric.bar.peer is not None:
            return self.metric.bar.peer
        return next(iter(self.peers), "")

    def verdict(self) -> tuple[str, str]:
        """The bar in words, and whether it is met."""
        bar = self.metric.bar
        if bar is None:
            return "", ""
        if bar.peer is None:
            return f"at most {bar.most:g} us", "met" if self.outrigger <= bar.most else "MISSED"
        met = self.outrigger <= bar.most * self.peers[bar.peer]
        return f"at most {bar.most:g}x {bar.peer}", "met" if met else "MISSED"


def measure(metric: Metric) -> Outcome:
    """Measures all subjects of `metric`, taking turns."""
    blocks = {"": metric.outrigger, **metric.peers}
    repetitions = {name: calibrate(block) for name, block in blocks.items()}
    times: dict[str, list[float]] = {name: [] for name in blocks}
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        # Every other round goes backwards, so that nobody always runs after the same neighbour.
        for name in list(blocks) if number % 2 else reversed(blocks):
            seconds = time_block(blocks[name], repetitions[name])
            if number >= WARM_UP_ROUNDS:
                times[name].append(1e6 * seconds / repetitions[name])
    medians = {name: median(values) for name, values in times.items()}
    return Outcome(metric, medians.pop(""), medians)


def calibrate(block: Block) -> int:
    """How often a block repeats its subject so that it lasts `BLOCK_SECONDS`."""
    block(1)  # waits for what the making of the tensors has left to do
    repetitions = 1
    while repetitions < MOST_REPETITIONS and (seconds := time_block(block, repetitions)) < BLOCK_SECONDS:
        wanted = int(repetitions * BLOCK_SECONDS / max(seconds, 1e-7))
        repetitions = min(max(2 * repetitions, wanted), MOST_REPETITIONS)
    return repetitions


def time_block(block: Block, repetitions: int) -> float:
    """Seconds that one block takes."""
    started = time.perf_counter()
    block(repetitions)
    return time.perf_counter() - started


def run(suite: str, metrics: list[Metric], only: set[str], json_file: Path | None) -> None:
    """Measures the chosen metrics, prints the table as it grows, writes the JSON."""
    unknown = only - {metric.name for metric in metrics}
    if unknown:
        raise SystemExit(f"error: no such metric: {', '.join(sorted(unknown))}")
    head = ["metric", "outrigger us", "peers us", "ratio", "bar", ""]
    print(line(head), flush=True)
    outcomes = []
    for metric in metrics:
        if not only or metric.name in only:
            outcomes.append(measure(metric))
            print(line(outcomes[-1].row()), flush=True)
    if json_file is not None:
        json_file.write_text(json.dumps([outcome.to_json(suite) for outcome in outcomes], indent=2) + "\n")


def line(cells: list[str]) -> str:
    """One line of the table."""
    widths = (18, 13, 34, 8, 20, 6)
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
