"""The measurement of every suite: all subjects of a metric take turns, and medians are compared.

Taking turns is what makes it fair: a noisy moment of the machine, a change of clock or a neighbour hits
all of them. A subject runs in blocks that are long enough for the clock; the time of a block is divided
by its repetitions. It never judges: bars are shown, and kept by whoever reads the numbers. A peer that
cannot be measured is named with the reason, and so is Outrigger itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

BLOCK_SECONDS = 0.01  # a block is at least this long
ROUNDS = 31  # blocks per subject that count, unless somebody asks for another number
MOST_REPETITIONS = 1_000_000  # per block
WARM_UP_ROUNDS = 3  # blocks per subject that do not

US = "outrigger"  # the subject that bars are for

Timer = Callable[[int], float]  # runs its part so many times; the seconds that this took
Parts = dict[str, Timer]  # what a subject's figure is made of
Seconds = dict[str, float]  # per repetition, of each part


class SubjectFailure(RuntimeError):
    """A subject cannot be measured; the message says why."""


@dataclass(frozen=True)
class Missing:
    """In place of a subject's parts: why it does not take part."""

    reason: str


@dataclass(frozen=True)
class Best:
    """The best of some peers. It is unknown while one of them is missing."""

    name: str
    of: tuple[str, ...]


@dataclass(frozen=True)
class Bar:
    """The demand on a metric: an absolute limit in its unit, or one relative to a peer, which may be so much above it
    in the metric's unit."""

    limit: float
    peer: str | Best | None = None
    above: float = 0.0


@dataclass(frozen=True)
class Metric:
    """One comparison. `contest` makes the subjects ready, Outrigger among them; `figure` turns the times of
    a subject's parts into its figure; `around` is what the machine does meanwhile, and what shares the CPUs
    with other work needs longer blocks. `known` are figures that stand beside those of the peers and that nobody
    has to measure, such as the ideal. What takes seconds has `most_rounds`, and what cannot be repeated is not
    `warmed_up`. Where one program measures all subjects it is `program`."""

    name: str
    contest: Callable[[], dict[str, Parts | Missing]]
    bars: tuple[Bar, ...] = ()
    unit: str = "us"
    better: str = "lower"
    figure: Callable[[Seconds], float] = lambda seconds: 1e6 * seconds["block"]
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    block_seconds: float = BLOCK_SECONDS
    known: dict[str, float] = field(default_factory=dict)
    most_rounds: int = sys.maxsize
    warmed_up: bool = True
    program: str | None = None


@dataclass
class Outcome:
    """The medians of a metric's figures, in its unit."""

    metric: Metric
    figures: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def peers(self) -> dict[str, float]:
        """The figures of all others."""
        return {name: figure for name, figure in self.figures.items() if name != US}

    def to_json(self, suite: str) -> dict[str, Any]:
        """The form that all suites share."""
        return {
            "suite": suite,
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "outrigger": self.figures.get(US),
            "peers": self.peers(),
            "better": self.metric.better,
            "bars": [
                {"bar": self.demand(bar), "ratio": self.ratio(bar), "verdict": self.verdict(bar)}
                for bar in self.metric.bars
            ],
            "missing": self.missing,
        }

    def rows(self) -> list[list[str]]:
        """The lines of the table: one, and one more for each further bar."""
        us, unit = self.figures.get(US), self.metric.unit
        peers = "  ".join(f"{name} {number(value)}" for name, value in self.peers().items())
        bars = [[times(self.ratio(bar)), self.demand(bar), self.verdict(bar)] for bar in self.metric.bars]
        if not bars:
            # Without a bar the first peer is what the figure is compared with.
            first_peer = next(iter(self.peers()), None)
            bars = [["" if first_peer is None else times(self.ratio(Bar(1.0, first_peer))), "", ""]]
        rows = [[self.metric.name, "failed" if us is None else f"{number(us)} {unit}", *bars[0], peers]]
        rows += [["", "", *bar, ""] for bar in bars[1:]]
        return rows

    def reference(self, bar: Bar) -> float | None:
        """The figure that a bar is relative to, if there is one and it was measured."""
        if not isinstance(bar.peer, Best):
            return None if bar.peer is None else self.figures.get(bar.peer)
        figures = [self.figures.get(name) for name in bar.peer.of]
        measured = [figure for figure in figures if figure is not None]
        if len(measured) < len(figures):
            return None
        return min(measured) if self.metric.better == "lower" else max(measured)

    def ratio(self, bar: Bar) -> float | None:
        """Outrigger's figure over the one that a bar is relative to."""
        us, reference = self.figures.get(US), self.reference(bar)
        return None if us is None or reference is None or reference <= 0 else us / reference

    def demand(self, bar: Bar) -> str:
        """A bar in words."""
        side = "at most" if self.metric.better == "lower" else "at least"
        name = bar.peer.name if isinstance(bar.peer, Best) else bar.peer
        of = f" {self.metric.unit}" if name is None else f"x {name}"
        above = f" + {bar.above:g} {self.metric.unit}" if bar.above else ""
        return f"{side} {bar.limit:.3g}{of}{above}"

    def verdict(self, bar: Bar) -> str:
        """Whether a bar is met."""
        us = self.figures.get(US)
        if us is None:
            return "MISSED"
        reference = 1.0 if bar.peer is None else self.reference(bar)
        if reference is None:
            return "unknown"
        limit = bar.limit * reference + bar.above
        met = us <= limit if self.metric.better == "lower" else us >= limit
        return "met" if met else "MISSED"


def timed(block: Callable[[int], None]) -> Timer:
    """The time of everything that `block` does."""

    def run(repetitions: int) -> float:
        started = time.perf_counter()
        block(repetitions)
        return time.perf_counter() - started

    return run


def measure(metric: Metric, rounds: int = ROUNDS) -> Outcome:
    """Measures all subjects of `metric`."""
    contest = metric.contest()
    with metric.around():
        return take_turns(metric, contest, min(rounds, metric.most_rounds))


def take_turns(metric: Metric, contest: dict[str, Parts | Missing], rounds: int) -> Outcome:
    """Every round has one block of each part of each subject."""
    outcome = Outcome(metric)
    repetitions: dict[str, dict[str, int]] = {}
    subjects: dict[str, Parts] = {}
    for name, parts in contest.items():
        if isinstance(parts, Missing):
            outcome.missing[name] = parts.reason
            continue
        try:
            repetitions[name] = {
                part: calibrate(timer, metric.block_seconds) if metric.warmed_up else 1 for part, timer in parts.items()
            }
            subjects[name] = parts
        except SubjectFailure as failure:
            outcome.missing[name] = str(failure)
    figures: dict[str, list[float]] = {name: [] for name in subjects}
    idle = WARM_UP_ROUNDS if metric.warmed_up else 0
    for turn in range(idle + rounds):
        # Every other round goes backwards, so that nobody always runs after the same neighbour.
        for name in list(subjects) if turn % 2 else list(reversed(subjects)):
            try:
                seconds = {
                    part: timer(repetitions[name][part]) / repetitions[name][part]
                    for part, timer in subjects[name].items()
                }
            except SubjectFailure as failure:
                outcome.missing[name] = str(failure)
                del subjects[name]
                continue
            if turn >= idle:
                figures[name].append(metric.figure(seconds))
    outcome.figures = {name: median(figures[name]) for name in subjects} | metric.known
    return outcome


def calibrate(timer: Timer, block_seconds: float) -> int:
    """The repetitions of a part that make a block last `block_seconds`."""
    timer(1)  # whatever the making of the subject has left to do is done here
    repetitions = 1
    while repetitions < MOST_REPETITIONS and (seconds := timer(repetitions)) < block_seconds:
        wanted = int(repetitions * block_seconds / max(seconds, 1e-7))
        repetitions = min(max(2 * repetitions, wanted), MOST_REPETITIONS)
    return repetitions


def report(outcome: Outcome) -> None:
    """Prints the lines of one metric."""
    for row in outcome.rows():
        print(line(row), flush=True)
    for name, reason in outcome.missing.items():
        print(f"    {name} {'failed' if name == US else 'is missing'}: {reason}", flush=True)


def line(cells: list[str]) -> str:
    """One line of the table."""
    widths = (30, 14, 8, 34, 8, 0)
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def times(ratio: float | None) -> str:
    """A ratio, if there is one."""
    return "" if ratio is None else f"{ratio:.3g}x"


def number(value: float) -> str:
    """Four digits, however large or small."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
