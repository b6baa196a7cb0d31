"""The results of the demo: the final table, two plots and `report.json`."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed, on any machine
import matplotlib.pyplot as plt
import torch

from .device import MemorySample
from .trace import MemoryMoment
from .train import COMPARED_STEPS, REPLAY_TOLERANCE, TOLERANCE, Pair, Run


@dataclass
class Result:
    """One model's outcome. Accuracies are shares of the test images; None for the text model."""

    pair: Pair
    peak_bytes: int
    accuracy: float | None = None
    cpu_accuracy: float | None = None
    demanded_accuracy: float | None = None

    def failures(self) -> list[str]:
        """The demands that this model has not met, in words."""
        found = [
            f"{self.pair.name}: a loss of the first {COMPARED_STEPS} {run}steps differs from the CPU's by "
            f"{difference:.1e}, more than {TOLERANCE:.0e}"
            for run, difference in self.pair.differing().items()
        ]
        if self.pair.replay_difference() > REPLAY_TOLERANCE:
            found.append(
                f"{self.pair.name}: a loss of the replayed steps differs from that of the eager ones by "
                f"{self.pair.replay_difference():.1e}, more than {REPLAY_TOLERANCE:.0e}"
            )
        if self.demanded_accuracy is not None and (self.accuracy or 0.0) < self.demanded_accuracy:
            found.append(
                f"{self.pair.name}: {self.accuracy:.2%} of the test images are right, "
                f"{self.demanded_accuracy:.0%} are demanded"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """The fields of `report.json` for this model."""
        device, cpu, replayed = self.pair.on_device, self.pair.on_cpu, self.pair.replayed
        fields: dict[str, Any] = {
            "max_rel_loss_diff": self.pair.max_relative_difference(),
            "compared_steps": min(COMPARED_STEPS, len(device.losses)),
            "steps": len(device.losses),
            "first_loss": device.losses[0],
            "last_loss": device.losses[-1],
            "ms_per_step": device.milliseconds_per_step(),
            "cpu_ms_per_step": cpu.milliseconds_per_step(),
            "replay_ms": replayed.milliseconds_per_step(),
            "replay_max_rel_loss_diff": self.pair.replay_difference(),
            "peak_bytes": self.peak_bytes,
        }
        if (compiled := self.pair.compiled) is not None:
            fields["compiled_ms"] = compiled.milliseconds_per_step()
            fields["compiled_max_rel_loss_diff"] = self.pair.max_relative_difference(compiled)
        if replayed.captured_loss is not None:
            fields["graph"] = replayed.graph.info()
        if self.accuracy is not None:
            fields |= {"accuracy": self.accuracy, "cpu_accuracy": self.cpu_accuracy}
        return fields


PLACES = {"device": "device", "compiled": "compiled for it", "host_kernel": "host kernel", "framework": "torch's CPU kernel"}
"""The demo's names for the places of the runtime's report."""
TIMED_STEPS = 10
"""Steps of each model in which each call of an operator is timed."""
MOST_EXPENSIVE = 8
"""Rows of the table of operators."""


@dataclass
class Report:
    """The outcome of the whole demo."""

    device: str
    driver: str
    results: list[Result]
    ran: list[dict[str, Any]]
    """The operators of the training with the places where they ran."""
    timed: list[dict[str, Any]]
    """The same of `TIMED_STEPS` steps of each model, with times."""
    memory: list[MemorySample]
    traced_memory: list[MemoryMoment]
    extra: dict[str, Any] = field(default_factory=dict)

    def failures(self) -> list[str]:
        """The demands that were not met."""
        return [failure for result in self.results for failure in result.failures()]

    def write(self, folder: Path) -> None:
        """Writes `report.json`, `loss.png` and `memory.png` into `folder`."""
        report = {result.pair.name: result.to_json() for result in self.results}
        report |= {
            "target": self.device,
            "driver": self.driver,
            "torch": torch.__version__,
            "machine": platform.platform(),
            "threads": torch.get_num_threads(),
            "fallback": self.at("framework"),
            "host_kernels": self.at("host_kernel"),
            "compiled": self.at("compiled"),
            "device": self.at("device"),
            "timed_steps": self.timed,
            "failures": self.failures(),
            **self.extra,
        }
        (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        plot_losses([result.pair for result in self.results], folder / "loss.png")
        plot_memory(self.memory, self.traced_memory, folder / "memory.png")

    def table(self) -> str:
        """The final table, for people."""
        rows = [["", *(result.pair.name for result in self.results)]]
        rows += [
            ["test accuracy (CPU)", *(accuracy_cell(result) for result in self.results)],
            ["last loss", *(f"{result.pair.on_device.losses[-1]:.4f}" for result in self.results)],
            [
                f"largest loss difference, {COMPARED_STEPS} steps",
                *(f"{result.pair.max_relative_difference():.1e}" for result in self.results),
            ],
            [
                f"largest loss difference, {COMPARED_STEPS} steps compiled",
                *(compiled_difference_cell(result.pair) for result in self.results),
            ],
            [
                "largest loss difference, replayed to eager",
                *(f"{result.pair.replay_difference():.1e}" for result in self.results),
            ],
            ["ms per step (CPU, ratio)", *(time_cell(result.pair) for result in self.results)],
            ["ms per step replayed (of eager, of CPU)", *(ratios_cell(result.pair, result.pair.replayed) for result in self.results)],
            ["ms per step compiled (of eager, of CPU)", *(ratios_cell(result.pair, result.pair.compiled) for result in self.results)],
            ["peak device memory, all runs", *(f"{result.peak_bytes / 2**20:.1f} MiB" for result in self.results)],
        ]
        lines = [*aligned(rows), "", f"where operators ran, in {TIMED_STEPS} steps of each model:"]
        head = ["", "calls", "ms", "MiB staged"]
        places = []
        for place, name in PLACES.items():
            here = [row for row in self.timed if row["place"] == place]
            count = f"{len(here)} operator{'s' if len(here) != 1 else ''}"
            places.append([f"{name}: {count}", *figures(here)])
        most = sorted(self.timed, key=lambda row: -row["seconds"])[:MOST_EXPENSIVE]
        places += [[f"  {row['operator']} ({PLACES[row['place']]})", *figures([row])] for row in most]
        return "\n".join([*lines, *aligned([head, *places])])

    def at(self, place: str) -> list[dict[str, Any]]:
        """The operators that ran at a place in the training."""
        return [row for row in self.ran if row["place"] == place]


def figures(rows: list[dict[str, Any]]) -> list[str]:
    """Calls, time and staged bytes of some operators."""
    calls, seconds, staged = (sum(row[name] for row in rows) for name in ("calls", "seconds", "staged_bytes"))
    return [str(calls), f"{1e3 * seconds:.1f}", f"{staged / 2**20:.1f}"]


def accuracy_cell(result: Result) -> str:
    """Both accuracies, or a dash for a model that has none."""
    if result.accuracy is None or result.cpu_accuracy is None:
        return "-"
    return f"{result.accuracy:.2%} ({result.cpu_accuracy:.2%})"


def time_cell(pair: Pair) -> str:
    """Both times per step and their ratio."""
    device, cpu = pair.on_device.milliseconds_per_step(), pair.on_cpu.milliseconds_per_step()
    return f"{device:.2f} ({cpu:.2f}, {device / cpu:.2f}x)"


def ratios_cell(pair: Pair, run: Run | None) -> str:
    """The time per step of a run, and its ratios to the eager one and to the CPU's."""
    if run is None:
        return "-"
    mine = run.milliseconds_per_step()
    eager, cpu = pair.on_device.milliseconds_per_step(), pair.on_cpu.milliseconds_per_step()
    return f"{mine:.2f} ({mine / eager:.2f}x, {mine / cpu:.2f}x)"


def compiled_difference_cell(pair: Pair) -> str:
    """The largest difference of compiled losses from the CPU's, or a dash where nothing is compiled."""
    return "-" if pair.compiled is None else f"{pair.max_relative_difference(pair.compiled):.1e}"


def aligned(rows: list[list[str]]) -> list[str]:
    """The rows as lines, first column left, others right aligned, a rule under the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  " + "   ".join(cells))
    lines.insert(1, "  " + "-" * (len(lines[0]) - 2))
    return lines


def plot_losses(pairs: list[Pair], path: Path) -> None:
    """Above: the losses of all runs. Below: their relative difference, with the bar."""
    figure, axes = plt.subplots(2, len(pairs), figsize=(6 * len(pairs), 7), squeeze=False, sharex="col")
    for column, pair in enumerate(pairs):
        steps = range(1, len(pair.on_device.losses) + 1)
        upper, lower = axes[0][column], axes[1][column]
        upper.plot(steps, pair.on_cpu.losses, label="CPU tensors", linewidth=3, alpha=0.4)
        upper.plot(steps, pair.on_device.losses, label=str(pair.on_device.device), linewidth=1)
        upper.plot(steps, pair.replayed.losses, label="replayed", linewidth=1, linestyle=":")
        if pair.compiled is not None:
            upper.plot(steps, pair.compiled.losses, label="compiled", linewidth=1, linestyle="--")
        upper.set(title=pair.name, ylabel="loss")
        upper.legend()
        # A difference of exactly 0 has no place on a logarithmic axis: show it as one rounding error.
        lower.semilogy(steps, [max(value, 1e-9) for value in pair.relative_differences()], linewidth=1)
        lower.hlines(TOLERANCE, 1, min(COMPARED_STEPS, len(steps)), colors="red", label="bar")
        lower.set(xlabel="step", ylabel="relative difference of the loss")
        lower.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_memory(samples: list[MemorySample], moments: list[MemoryMoment], path: Path) -> None:
    """Left: device memory after each step, one background colour per model. Right: every allocation and
    release of the traced steps."""
    figure, (steps, traced) = plt.subplots(1, 2, figsize=(12, 4), sharey=True)
    numbers = range(len(samples))
    steps.plot(numbers, [sample.reserved / 2**20 for sample in samples], label="held by the allocator")
    steps.plot(numbers, [sample.allocated / 2**20 for sample in samples], label="in tensors")
    for index, label in enumerate(dict.fromkeys(sample.label for sample in samples)):
        inside = [number for number in numbers if samples[number].label == label]
        steps.axvspan(inside[0], inside[-1], alpha=0.1, color=f"C{index + 2}", label=label)
    steps.set(xlabel="training step", ylabel="MiB", ylim=(0, None), title="device memory after each step")
    steps.legend()
    times = [(moment.at_ns - moments[0].at_ns) / 1e6 for moment in moments]
    traced.step(times, [moment.reserved / 2**20 for moment in moments], where="post")
    traced.step(times, [moment.allocated / 2**20 for moment in moments], where="post", linewidth=0.7)
    traced.set(xlabel="ms", title="every allocation of the traced steps")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
