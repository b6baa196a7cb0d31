"""Trains the demo's models with ever other shapes and watches the memory: `cargo xtask demo --memory SECONDS`.

The character model and the digits model take turns on two streams, with batches and sequence lengths drawn
anew for each step, while graphs of both are captured, replayed and thrown away. It must be as honest as a
user's program: no call that empties a cache or waits, other than those that a loop has anyway.

Reported are the most bytes that were held over the most that were in use, and how far the most that were held
grew in the second half of the time. Exit status: 0 if both bars were met, 1 if not, 2 without a device.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_outrigger import graphs

from . import device
from .models import CharModel, DigitNet

ALPHABET = 96
SCALE = 5  # about 1 GiB in use: at the demo's own size single chunks of 2 MiB are most of the overhead
GRAPH_SHAPES = 3
STEPS_PER_GRAPH = 10
OVERHEAD_BAR = 1.05
SEED = 2026


@dataclass(frozen=True)
class Outcome:
    """The figures of the run."""

    seconds: float
    steps: int
    captures: int
    used: tuple[int, int]
    """The most bytes in use in each half of the time."""
    held: tuple[int, int]
    """The most bytes held in each half."""

    @property
    def overhead(self) -> float:
        """The most bytes held over the most in use."""
        return max(self.held) / max(*self.used, 1)

    @property
    def growth(self) -> int:
        """Bytes by which the second half held more than the first one, beyond what it had in use more."""
        needed = max(self.used[1] - self.used[0], 0)
        return max(self.held[1] - self.held[0] - needed, 0)


class Trained:
    """One model in training on a stream of its own, and graphs of it."""

    def __init__(self, model: nn.Module, draw: Callable[[], tuple[Tensor, Tensor]], target: torch.device) -> None:
        self.model = model.to(target)
        self.draw = draw
        self.target = target
        self.stream = torch.Stream(target)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)
        self.captured: list[tuple[graphs.Graph, Tensor]] = []
        self.captures = 0

    def step(self) -> None:
        """A training step on a batch of its own, on its stream; the loss comes to the host, as one logs it."""
        with self.stream:
            inputs, targets = (part.to(self.target, non_blocking=True) for part in self.draw())
            self.optimizer.zero_grad(set_to_none=True)
            logits = self.model(inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
            loss.backward()
            self.optimizer.step()
            loss.item()

    def replay(self) -> None:
        """Replays the graphs that there are."""
        with self.stream:
            for graph, _ in self.captured:
                graph.replay()

    @torch.no_grad()
    def capture(self) -> None:
        """Throws the graphs away and captures the evaluation of some batches, in one pool."""
        self.captured.clear()
        pool = graphs.graph_pool_handle()
        self.model.eval()
        for _ in range(GRAPH_SHAPES):
            inputs = self.draw()[0].to(self.target)
            graph = graphs.Graph()
            with graphs.graph(graph, pool=pool):
                result = self.model(inputs)
            self.captured.append((graph, result))
            self.captures += 1
        self.model.train()


def models(scale: int, target: torch.device) -> list[Trained]:
    """Both models; `scale` multiplies widths and batches, 1 is what the demo trains."""
    draw = random.Random(SEED)

    def characters() -> tuple[Tensor, Tensor]:
        size = (draw.randint(4, 32) * scale, draw.randint(16, 64))
        return torch.randint(ALPHABET, size), torch.randint(ALPHABET, size)

    def digits() -> tuple[Tensor, Tensor]:
        size = draw.randint(8, 128) * scale
        return torch.rand(size, 1, 8, 8), torch.randint(10, (size,))

    width = 128 * scale
    return [
        Trained(CharModel(ALPHABET, width=width, heads=4), characters, target),
        Trained(DigitNet(), digits, target),
    ]


def run(seconds: float, scale: int, with_graphs: bool, target: torch.device) -> Outcome:
    """Trains for so long, and looks at the peaks of both halves."""
    trained = models(scale, target)
    started = time.monotonic()
    steps, peaks = 0, []
    while len(peaks) < 2:
        for one in trained:
            if with_graphs and steps % STEPS_PER_GRAPH == 0:
                one.capture()
            one.step()
            one.replay()
        steps += 1
        if time.monotonic() - started > seconds * (len(peaks) + 1) / 2:
            allocated = torch.accelerator.max_memory_allocated(target)
            peaks.append((allocated, torch.accelerator.max_memory_reserved(target)))
            torch.accelerator.reset_peak_memory_stats(target)
    return Outcome(
        seconds=time.monotonic() - started,
        steps=steps,
        captures=sum(one.captures for one in trained),
        used=(peaks[0][0], peaks[1][0]),
        held=(peaks[0][1], peaks[1][1]),
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="demo.memory", description=__doc__)
    parser.add_argument("--device", choices=["outrigger", "mtia"], default="outrigger")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--scale", type=int, default=SCALE, help="multiplies the demo's widths and batches")
    parser.add_argument("--no-graphs", action="store_true", help="leave the graphs out")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    try:
        target = device.open_device(options.device)
    except device.NoDevice as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    torch.manual_seed(SEED)
    outcome = run(options.seconds, options.scale, not options.no_graphs, target)
    used, held = ([bytes_ / 2**20 for bytes_ in halves] for halves in (outcome.used, outcome.held))
    print(
        f"{outcome.steps} steps of each model and {outcome.captures} captures in {outcome.seconds:.0f} s\n"
        f"most in use {used[0]:.1f} MiB in the first half, {used[1]:.1f} in the second\n"
        f"most held   {held[0]:.1f} MiB in the first half, {held[1]:.1f} in the second: "
        f"growth {outcome.growth} bytes (bar 0)\n"
        f"most held over most in use {outcome.overhead:.3f} (bar {OVERHEAD_BAR})"
    )
    if options.json is not None:
        figures = {**asdict(outcome), "overhead": outcome.overhead, "growth": outcome.growth}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if outcome.overhead <= OVERHEAD_BAR and outcome.growth == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
