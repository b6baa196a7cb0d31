"""The live loss on the terminal: one line that is rewritten, or a plain line now and then in a log."""

from __future__ import annotations

import sys
import time

from .train import Pair

REWRITE_SECONDS = 0.1
LINES_IN_A_LOG = 5


class Progress:
    """Shows how the training of `pair` goes; call `after_step` after each step."""

    def __init__(self, pair: Pair, steps: int) -> None:
        self.pair = pair
        self.steps = steps
        self.is_terminal = sys.stdout.isatty()
        self.shown = 0.0

    def after_step(self, step: int) -> None:
        """Shows the losses of `step`, if it is time to."""
        last = step == self.steps
        if self.is_terminal:
            now = time.monotonic()
            if last or now - self.shown >= REWRITE_SECONDS:
                self.shown = now
                print(f"\r{self.line(step)}", end="\n" if last else "", flush=True)
        elif last or step % max(1, self.steps // LINES_IN_A_LOG) == 0:
            print(self.line(step), flush=True)

    def line(self, step: int) -> str:
        """The state after `step` in words."""
        device, cpu, replayed = self.pair.on_device, self.pair.on_cpu, self.pair.replayed
        return (
            f"  {self.pair.name}: step {step:>{len(str(self.steps))}}/{self.steps}"
            f"   loss {device.losses[-1]:.5f} (CPU {cpu.losses[-1]:.5f})"
            f"   {1e3 * device.seconds[-1]:6.2f} ms"
            f" (replayed {1e3 * replayed.seconds[-1]:6.2f} ms, CPU {1e3 * cpu.seconds[-1]:6.2f} ms)"
        )
