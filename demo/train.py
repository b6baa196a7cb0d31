"""Trains one model four times in lockstep and compares every loss: on the device in eager mode, on the
device with the whole step as a graph that is replayed, on the device compiled, and on CPU tensors.

A step of the device includes the copy of its batch and ends with the loss on the host, so its time is
the whole time that a user would wait.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor, nn
from torch_outrigger import graphs

from .data import Batch
from .device import can_compile

# Losses of these first steps must agree. After some more steps two runs may part even if they differ by rounding alone:
# a ReLU or a maximum that is almost a tie goes another way in one of them.
COMPARED_STEPS = 10
TOLERANCE = 1e-5  # largest relative difference of a loss
NO_NUMBER = 1e9  # the difference of a loss that is not finite; JSON has no infinity
WARM_UP_STEPS = 5  # not counted in the time per step
EAGER_STEPS = 3  # before the step is captured; they make the optimizer's state
REPLAY_TOLERANCE = 1e-6  # largest relative difference between the losses of the eager and the replayed run

Loss = Callable[[Tensor, Tensor], Tensor]
MakeOptimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


@dataclass
class Run:
    """One of the runs: a model with its optimizer on one device, and what its steps gave."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Loss
    device: torch.device
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def step(self, batch: Batch) -> None:
        """One training step. Records its loss and how long it took."""
        started = time.perf_counter()
        loss = self.update(batch)
        self.losses.append(float(loss))
        self.seconds.append(time.perf_counter() - started)

    def update(self, batch: Batch) -> Tensor:
        """Forward, backward and optimizer step on one batch; the loss stays on the device."""
        inputs, targets = (part.to(self.device, non_blocking=True) for part in batch)
        return self.update_on(inputs, targets)

    def update_on(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The same with the batch on the device already."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def milliseconds_per_step(self) -> float:
        """The median of the steps after the first few."""
        return 1e3 * median(self.seconds[WARM_UP_STEPS:] or self.seconds)


@dataclass
class ReplayedRun(Run):
    """A run whose step is captured after a few eager ones, and replayed from then on over each batch."""

    graph: graphs.Graph = field(default_factory=graphs.Graph)
    captured_loss: Tensor | None = None

    def update_on(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """A replay; the first few times an eager step, then once a capture."""
        if len(self.losses) < EAGER_STEPS:
            return super().update_on(inputs, targets)
        if self.captured_loss is None:
            with graphs.graph(self.graph):
                self.captured_loss = super().update_on(inputs, targets)
                self.graph.bind("inputs", inputs)
                self.graph.bind("targets", targets)
        self.graph.replay(inputs=inputs, targets=targets)
        return self.captured_loss


@dataclass
class Pair:
    """The same training on the device, eagerly, replayed and compiled, and on CPU tensors."""

    name: str
    on_device: Run
    on_cpu: Run
    replayed: ReplayedRun
    compiled: Run | None
    """None where torch.compile makes no kernels for the device."""

    def relative_differences(self, run: Run | None = None) -> list[float]:
        """For every step, how far the loss of a run, or of the eager one, is from the CPU's, relative to that."""
        losses = zip((run or self.on_device).losses, self.on_cpu.losses, strict=True)
        return [relative_difference(device, cpu) for device, cpu in losses]

    def max_relative_difference(self, run: Run | None = None) -> float:
        """The largest of the first `COMPARED_STEPS` relative differences."""
        return max(self.relative_differences(run)[:COMPARED_STEPS], default=NO_NUMBER)

    def replay_difference(self) -> float:
        """The largest relative difference between the losses of the replayed and of the eager run."""
        losses = zip(self.replayed.losses, self.on_device.losses, strict=True)
        return max((relative_difference(replayed, eager) for replayed, eager in losses), default=NO_NUMBER)

    def differing(self) -> dict[str, float]:
        """The runs whose losses do not agree well enough with the CPU's, and by how much."""
        runs = {"": self.on_device, "compiled ": self.compiled}
        found = {name: self.max_relative_difference(run) for name, run in runs.items() if run is not None}
        return {name: difference for name, difference in found.items() if difference > TOLERANCE}


def relative_difference(device: float, cpu: float) -> float:
    """The difference of the device's loss from the CPU's, relative to that; at most `NO_NUMBER`."""
    difference = abs(device - cpu) / max(abs(cpu), 1e-12)
    return min(difference, NO_NUMBER) if math.isfinite(difference) else NO_NUMBER


def make_pair(name: str, model: nn.Module, make_optimizer: MakeOptimizer, loss: Loss, device: torch.device) -> Pair:
    """Runs from the same weights: `model` was initialised on the CPU, those of the device get copies."""
    twin, other, third = (copy.deepcopy(model).to(device) for _ in range(3))
    third.compile()
    return Pair(
        name,
        on_device=Run(twin, make_optimizer(twin.parameters()), loss, device),
        on_cpu=Run(model, make_optimizer(model.parameters()), loss, torch.device("cpu")),
        replayed=ReplayedRun(other, make_optimizer(other.parameters()), loss, device),
        compiled=Run(third, make_optimizer(third.parameters()), loss, device) if can_compile(device) else None,
    )


def train(pair: Pair, batches: Iterator[Batch], steps: int, after_step: Callable[[int], None]) -> None:
    """Runs `steps` steps of all, in turning order; calls `after_step` with each number."""
    runs = [pair.on_device, pair.on_cpu, pair.replayed]
    runs += [pair.compiled] if pair.compiled is not None else []
    for number in range(1, steps + 1):
        batch = next(batches)
        for run in runs:
            run.step(batch)
        runs.append(runs.pop(0))
        after_step(number)


@torch.no_grad()
def accuracy(run: Run, images: Tensor, labels: Tensor) -> float:
    """The share of `images` that the model labels rightly, in evaluation mode."""
    run.model.eval()
    predicted = run.model(images.to(run.device)).argmax(dim=1).cpu()
    run.model.train()
    return (predicted == labels).double().mean().item()
