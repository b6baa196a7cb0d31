"""Runs the demo: trains both models, prints the table, writes the report. Started by `cargo xtask demo`.

Exit status: 0 if all demands were met, 1 if not, 2 if the device cannot be used.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import data, device, trace
from .data import Batch
from .device import MemorySample
from .models import CharModel, DigitNet
from .progress import Progress
from .report import TIMED_STEPS, Report, Result
from .train import Pair, accuracy, make_pair, train

DIGIT_STEPS = 300
CHAR_STEPS = 300
DEMANDED_ACCURACY = 0.97
TRACED_STEPS = 3
SEED = 2026


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--device", choices=["outrigger", "mtia"], default="outrigger")
    parser.add_argument("--steps", type=int, help="steps per model; fewer than the default skips the accuracy bar")
    parser.add_argument("--out", type=Path, required=True, help="folder for the report")
    options = parser.parse_args()
    if options.steps is not None and options.steps < 1:
        parser.error("--steps must be at least 1")
    return options


def main() -> int:
    """The demo from start to end."""
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        target = device.open_device(options.device)
    except device.NoDevice as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"device {target}, {torch.get_num_threads()} threads, torch {torch.__version__}", flush=True)

    memory: list[MemorySample] = []
    device.runtime.reset_fallback_report()
    digits = train_digits(target, options.steps or DIGIT_STEPS, memory)
    chars = train_chars(target, options.steps or CHAR_STEPS, memory)
    ran = device.runtime.operator_report()
    timed = time_steps([digits, chars])

    traced = trace_steps([digits, chars], options.out / "trace.json")
    report = Report(
        device=str(target),
        driver=os.environ.get("OUTRIGGER_DRIVER", "host"),
        results=[result for result, _ in (digits, chars)],
        ran=ran,
        timed=timed,
        memory=memory,
        traced_memory=traced.memory,
        extra={"traced_commands": traced.commands},
    )
    report.write(options.out)
    print(f"\n{report.table()}\n")
    for name in ("report.json", "loss.png", "memory.png", "trace.json"):
        print(f"  {options.out / name}")
    failures = report.failures()
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


Trained = tuple[Result, Iterator[Batch]]


def time_steps(trained: list[Trained]) -> list[dict[str, Any]]:
    """Trains each model a few steps more, with each call of an operator timed, and returns where they ran."""
    device.runtime.reset_fallback_report()
    with device.runtime.timed_operators():
        for result, batches in trained:
            for batch in islice(batches, TIMED_STEPS):
                result.pair.on_device.update(batch)
    return device.runtime.operator_report()


def train_digits(target: torch.device, steps: int, memory: list[MemorySample]) -> Trained:
    """The CNN on the handwritten digits."""
    digits = data.load_digits()
    print(f"digits: {len(digits.train_labels)} images to learn, {len(digits.test_labels)} to test", flush=True)
    torch.manual_seed(SEED)
    pair = make_pair(
        "digits",
        DigitNet(),
        lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=1e-4),
        F.cross_entropy,
        target,
    )
    batches = digits.batches(size=64, seed=SEED)
    peak = train_with_progress(pair, batches, steps, memory)
    result = Result(
        pair,
        peak,
        accuracy=accuracy(pair.on_device, digits.test_images, digits.test_labels),
        cpu_accuracy=accuracy(pair.on_cpu, digits.test_images, digits.test_labels),
        demanded_accuracy=DEMANDED_ACCURACY if steps >= DIGIT_STEPS else None,
    )
    print(f"  digits: {result.accuracy:.2%} of the test images are right", flush=True)
    return result, batches


def train_chars(target: torch.device, steps: int, memory: list[MemorySample]) -> Trained:
    """The GPT on a text of this machine."""
    text = data.load_text()
    size = f"{len(text.encoded)} characters, {len(text.alphabet)} different ones"
    print(f"chars: {text.path} ({size})", flush=True)
    torch.manual_seed(SEED)
    model = CharModel(len(text.alphabet))
    pair = make_pair("chars", model, make_adam, text_loss, target)
    batches = text.batches(size=16, length=model.length, seed=SEED)
    peak = train_with_progress(pair, batches, steps, memory)
    sample = pair.on_device.model.continue_text(text.encoded[: model.length].tolist(), count=60)
    print(f"  chars: continues the text with {text.decode(sample)!r}", flush=True)
    return Result(pair, peak), batches


def make_adam(weights: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer that counts its steps on the device, so that it can be captured."""
    return torch.optim.AdamW(weights, lr=2e-3, fused=True, capturable=True)


def text_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy over all characters of all windows."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train_with_progress(pair: Pair, batches: Iterator[Batch], steps: int, memory: list[MemorySample]) -> int:
    """Trains `pair`, shows its losses, samples the memory after each step; the peak of the memory."""
    target = pair.on_device.device
    progress = Progress(pair, steps)
    torch.accelerator.reset_peak_memory_stats(target)

    def after_step(step: int) -> None:
        memory.append(device.sample_memory(target, pair.name))
        progress.after_step(step)

    train(pair, batches, steps, after_step)
    return device.peak_memory(target)


def trace_steps(trained: list[Trained], path: Path) -> trace.Traced:
    """Records a few more steps of each model on the device."""

    def work() -> None:
        for result, batches in trained:
            for _ in range(TRACED_STEPS):
                with torch.profiler.record_function(f"step of {result.pair.name}"):
                    result.pair.on_device.update(next(batches))

    return trace.record(work, path)


if __name__ == "__main__":
    sys.exit(main())
