"""Graphs as PyTorch captures and replays them, against the same work on CPU tensors in eager mode.

`torch_chain_speedup`: 1,000 operators on tensors of one element, each on the result of the one before.
`torch_mlp_speedup`: the training step of an MLP that is bound by launches, captured whole: a batch of 8 through
16-32-32-10 with ReLU, cross entropy, backward, SGD with momentum.
"""

from __future__ import annotations

from collections.abc import Callable

from .harness import US, Bar, Metric, Missing, Parts, Seconds, SubjectFailure, timed

OPERATORS = 1000


def repeated(call: Callable[[], object], finish: Callable[[], object]) -> Callable[[int], float]:
    """The time of so many calls, each finished before the next one."""

    def block(repetitions: int) -> None:
        for _ in range(repetitions):
            call()
            finish()

    return timed(block)


def chain(device: str) -> Callable[[], object]:
    """Sums and products in turn, so that the values stay small."""
    import torch

    x, half = torch.ones(1, device=device), torch.full((1,), 0.5, device=device)

    def call() -> torch.Tensor:
        y = x
        for _ in range(OPERATORS // 2):
            y = y + x
            y = y * half
        return y

    return call


def training_step(device: str) -> Callable[[], object]:
    """A step on one batch; gradients stay where they are, as a graph needs it."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(8, 16, generator=generator).to(device)
    labels = torch.arange(8).to(device)
    loss_function = nn.CrossEntropyLoss()

    def call() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = loss_function(model(batch), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return call


def captured(make: Callable[[str], Callable[[], object]]) -> tuple[Callable[[], object], Callable[[], object]]:
    """A replay of the call that `make` gives for the device, and the wait for it."""
    import torch

    from demo.device import open_device

    device = open_device("outrigger")
    call = make(str(device))
    for _ in range(3):  # everything that is made on first use has been made
        call()
    torch.accelerator.synchronize()
    graph = torch.accelerator.Graph()
    with graph:
        result = call()

    def replay() -> object:
        graph.replay()
        return result  # the graph's results live as long as the replays

    return replay, torch.accelerator.synchronize


def contest(make: Callable[[str], Callable[[], object]]) -> dict[str, Parts | Missing]:
    """The replay against the same on CPU tensors, taking turns; each is judged next to the other."""
    try:
        replay, finish = captured(make)
    except (RuntimeError, ImportError, AttributeError) as error:
        return {US: Missing(f"{type(error).__name__}: {error}".splitlines()[0])}
    on_cpu = repeated(make("cpu"), lambda: None)

    def checked(timer: Callable[[int], float]) -> Callable[[int], float]:
        def run(repetitions: int) -> float:
            try:
                return timer(repetitions)
            except RuntimeError as error:
                raise SubjectFailure(str(error)) from error

        return run

    return {US: {"replay": checked(repeated(replay, finish)), "cpu": on_cpu}}


def speedup(seconds: Seconds) -> float:
    """How often a replay fits into an eager run on CPU tensors."""
    return seconds["cpu"] / seconds["replay"]


def metrics() -> list[Metric]:
    """The part of the suite that goes through PyTorch."""
    return [
        Metric("torch_chain_speedup", lambda: contest(chain), (Bar(20.0),), "x", "higher", speedup),
        Metric("torch_mlp_speedup", lambda: contest(training_step), (Bar(3.0),), "x", "higher", speedup),
    ]
